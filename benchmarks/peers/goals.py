"""The speed of tubes relative to each peer, with the goals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.peers.registry import REDIS, SUBJECTS, Subject
from benchmarks.peers.results import BATCHES, BYTES, CPU_PUT, CPU_WORK, CYCLE, ONE, SEVERAL, WORK, Results

CALLS: Final = "tubes, calls"
LOOP: Final = "tubes, a loop"
ASYNCIO: Final = "tubes, asyncio"
AWAITED: Final = "tubes, Worker, async"
THREADED: Final = "tubes, Worker, threads"
#: Goals for puts and for work, relative to a peer on Redis.
PUT_GOAL: Final = 2.0
WORK_GOAL: Final = 3.0
#: In process: the maximum time of fifo and utubettl, as a multiple of queue.Queue's.
CYCLE_GOALS: Final = {"tubes, fifo": 1.2, "tubes, utubettl": 2.2}


#: The comparisons in the order of the table: rates, then measures of which less is better.
RATES: Final = ("put", "50 at a time", "batches", "a loop", "take + ack", "a Worker")
WHATS: Final = (*RATES, "wake-up", "bytes", "server: put", "server: processed")


@dataclass(frozen=True)
class Lead:
    """One comparison; above 1 means that tubes is faster."""

    peer: str
    what: str
    times: float
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        """Return True if the goal is reached, None without a goal."""
        return None if self.goal is None else self.times >= self.goal


def leads(results: Results) -> Iterator[Lead]:
    """Compare tubes with each measured peer, in the same way of use and on the same server."""
    for peer in SUBJECTS:
        if peer.family == "peer" and results.of(peer.key).turns:
            yield from _lead_over(peer, results)


def _lead_over(peer: Subject, results: Results) -> Iterator[Lead]:
    on_redis, on_tarantool = peer.server == REDIS, peer.server == "tarantool"
    theirs = results.of(peer.key)

    def ours(name: str, measure: str) -> float | None:
        return results.of(f"{name} on {results.server}").ratio(measure)

    # Compare asyncio-only peers with asyncio puts, and async handlers with async handlers.
    puts, worker = (CALLS, THREADED) if "plain calls" not in peer.lacks else (ASYNCIO, AWAITED)
    put_goal = PUT_GOAL if on_redis else 1.0 if on_tarantool else None
    work_goal = WORK_GOAL if on_redis else 1.0
    compared: list[tuple[str, float | None, float | None, float | None]] = [
        ("put", ours(puts, ONE), theirs.ratio(ONE), put_goal),
        ("50 at a time", ours(ASYNCIO, SEVERAL), theirs.ratio(SEVERAL), put_goal),
        ("batches", ours(puts, BATCHES), theirs.ratio(BATCHES), put_goal),
        ("a loop", ours(LOOP, WORK), theirs.ratio(WORK), work_goal),
        ("take + ack", ours(CALLS, WORK), theirs.ratio(WORK), 1.0 if on_tarantool else None),
    ]
    if on_redis:
        compared.append(("a Worker", ours(worker, WORK), theirs.ratio(WORK), work_goal))
    calls = results.of(f"{CALLS} on {results.server}")
    wakes = (results.of(f"{worker} on {results.server}") if on_redis else calls).latency(50)
    goal = 1.0 if on_tarantool else None
    compared += [
        ("wake-up", theirs.latency(50), wakes, goal),
        ("bytes", theirs.cost(BYTES), calls.cost(BYTES), goal),
        ("server: put", theirs.cost(CPU_PUT), calls.cost(CPU_PUT), goal),
        ("server: processed", theirs.cost(CPU_WORK), calls.cost(CPU_WORK), goal),
    ]
    for what, above, below, goal in compared:
        if above is not None and below:
            yield Lead(peer.key, what, above / below, goal)
        elif goal is not None and (below if what in RATES else above):
            yield Lead(peer.key, what, 0.0, goal)  # tubes was not measured or failed, so the lead is 0.


def cycle_goals(results: Results) -> Iterator[tuple[str, float, float]]:
    """Yield, for tubes in memory, the name, the time relative to queue.Queue, and the goal."""
    for key, goal in CYCLE_GOALS.items():
        ratio = results.of(key).ratio(CYCLE)
        if ratio is not None:
            yield key, 1 / ratio, goal
