"""Measure the longest script of each call on a full server: `python -m benchmarks.scale.longest [--quick]`.

While a script runs, the server serves no other client. A script should therefore take a few milliseconds at most,
unless its caller requests more: `put_many` is one script, since it puts all of its tasks or none.
`--program redis` measures a Redis instead of a Valkey.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any, Final, Self, cast
from unittest.mock import patch
from uuid import uuid4

from rich.console import Console
from rich.table import Table

import tubes
from benchmarks.scale.places import BATCH
from benchmarks.scale.show import README
from benchmarks.shared.report import machine, write_result
from benchmarks.shared.tasks import PAYLOAD, TTL, TTR
from tubes.backend.selecting import Scan
from tubes.redis.library import text
from tubes.redis.library.functions import FUNCTIONS, LAYOUT
from tubes.redis.transport.script_call import ScriptCall
from tubes.redis.transport.wire import Wire
from tubes.testing import LocalServer

#: A driver and the options of its tube, by name. Lanes with an interval cost most.
KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{driver: (driver, {}) for driver in ("fifo", "fifottl", "utube", "utubettl")},
    "utubettl, throttled": ("utubettl", {"max_in_flight": 2, "order": "round_robin"}),
}
#: The limit of a script in milliseconds.
LIMIT: Final = 10.0
#: A call that requests a long script; the limit does not apply.
ASKED: Final = "put_many of 4,000"
UTUBES: Final = 1000
_DATA: Final = PAYLOAD.encode()
#: Data of 200 kB: a thousand of them would be 200 MB.
_LARGE: Final = b"x" * 200_000


class Bench:
    """A full server, and the times for which single requests kept it busy."""

    def __init__(self, program: str, tasks: int, crowd: int, names: int, rounds: int) -> None:
        self.tasks: Final = tasks
        #: The number of sessions and of waiting processes.
        self.crowd: Final = crowd
        self.names: Final = names
        self.rounds: Final = rounds
        #: The longest request of each round in seconds, by kind and call.
        self.found: Final[dict[tuple[str, str], list[float]]] = {}
        self._longest = 0.0
        self._server: Final = LocalServer(program)
        self.url: Final = self._server.url
        self.client: Final[Any] = self._server.client()
        # The CPU clock of a process, see clock_getcpuclockid(3).
        self._clock: Final = (~self._server.pid << 3) | 2
        send: Any = Wire.call

        def timed(wire: Wire, *request: Any) -> Any:
            began, worked = time.perf_counter(), self._worked()
            try:
                return send(wire, *request)
            finally:
                spans = time.perf_counter() - began, self._worked() - worked
                # CPU time includes threads that free memory, wall time waits on a busy machine: use the smaller.
                self._longest = max(self._longest, min(spans) if spans[1] else spans[0])

        self._patch: Final = patch.object(Wire, "call", timed)
        self._patch.start()
        self.queue: Final = self.connect()

    def _worked(self) -> float:
        """Return the CPU seconds of the server, if the system provides them."""
        with suppress(OSError, OverflowError):
            return time.clock_gettime(self._clock)
        return 0.0

    def connect(self, session_ttl: float = 3600) -> tubes.Queue:
        return tubes.connect(self.url, codec="raw", session_ttl=session_ttl)

    def round(self, kind: str, method: str, act: Callable[[], object]) -> None:
        """Run a call and record its longest request."""
        self._longest = 0.0
        act()
        self.found.setdefault((kind, method), []).append(self._longest)

    def rounds_of(self, kind: str, method: str, act: Callable[[], object]) -> None:
        """Run a call several times and record the longest request of each."""
        for _ in range(self.rounds):
            self.round(kind, method, act)

    def send(self, calls: list[ScriptCall]) -> list[Any]:
        """Send several calls of one script at once and return the replies."""
        self.client.execute_command("FUNCTION", "LOAD", "REPLACE", text.library())
        pool, connection = self.client.connection_pool, cast("Any", self.queue._connection)
        line = pool.get_connection()
        for call in calls:
            call.begin(0)
        try:
            line.send_packed_command([call.pack(connection.store.server) for call in calls])
            return [line.read_response() for _ in calls]
        finally:
            pool.release(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()
        self._patch.stop()
        self.client.close()
        self._server.close()


class Crowd:
    """A tube with very many tasks, sessions and waiting processes."""

    def __init__(self, bench: Bench, kind: str) -> None:
        self.bench: Final = bench
        self.kind: Final = kind
        driver, self.options = KINDS[kind]
        self.tube: Any = bench.queue.create_tube(kind.replace(", ", "-"), driver, **self.options)
        self.lanes: Final = self.tube.driver.lane is not None
        self.timed: Final = "ttr" in self.tube.driver.options
        self.spans: Final[dict[str, Any]] = {"ttl": TTL, "ttr": TTR} if self.timed else {}
        #: The maximum number of tasks of one take.
        self.much: Final = UTUBES if self.lanes else 4_000

    def lane(self, number: int) -> dict[str, Any]:
        return {"utube": f"host-{number % UTUBES}"} if self.lanes else {}

    def ids_after(self, first: int, count: int) -> list[int]:
        """Return the ids of some tasks in the middle of the tube."""
        filters = self.tube.select()._filters
        scan, found = Scan(filters, first), list[int]()
        while len(found) < count and not scan.ended:
            found += [one[0] for one in self.tube._port.select(filters, scan, 250, False)]
        return found[:count]

    def items(self, count: int, **options: Any) -> list[Any]:
        return [tubes.Item(_DATA, **self.lane(number), **self.spans, **options) for number in range(count)]

    def fill(self) -> None:
        """Put the tasks and open the other sessions: each opens the tube and puts one task."""
        bench, port = self.bench, self.tube._port
        for first in range(0, bench.tasks, BATCH):
            self.tube.put_many(self.items(min(BATCH, bench.tasks - first)))
        key: str = port.shared.key
        version = port.session.version
        opening, putting = FUNCTIONS["open"], port.session.version.function("put")
        for first in range(0, bench.crowd, 1000):
            some = range(first, min(first + 1000, bench.crowd))
            args = (3_600_000_000, "", "any", "", "", 0, "", LAYOUT)
            opened = bench.send([ScriptCall(opening, key, (uuid4().hex, *args)) for _ in some])
            sessions = [(number, token.decode(), "0", version) for _, _, number, token, *_ in opened]
            bench.send([ScriptCall(putting, key, (b"\0", _DATA, *[""] * 6), session) for session in sessions])

    def wait(self) -> None:
        """Register this many waiting processes on the server, which forgets them after ten seconds."""
        until = f"{(time.time() + 9) * 1e6:.0f}"
        for first in range(0, self.bench.crowd, 1000):
            some = {f"process-{number}": f"1 {until}" for number in range(first, min(first + 1000, self.bench.crowd))}
            self.bench.client.hset(f"{self.tube._port.shared.key}:waiting", mapping=some)

    def measure(self) -> None:
        """Measure all calls."""
        self._measure_single()
        self._measure_many()
        self._measure_ends()
        self._measure_large()
        self._measure_full()
        if self.kind == "fifo":
            self._measure_stale()
        self.wait()
        self.bench.round(self.kind, "drop", lambda: self.tube.drop(force=True))

    def _measure_single(self) -> None:
        """Measure calls on one task, and counts."""
        tube, times = self.tube, range(50)
        taken: list[Any] = []

        def each(method: str, act: Callable[[], object]) -> None:
            self.bench.round(self.kind, method, lambda: [act() for _ in times])

        each("put", lambda: tube.put(_DATA, **self.lane(0), **self.spans))
        each("take", lambda: taken.append(tube.take(timeout=0)))
        if self.timed:
            each("touch", lambda: taken[0].touch(1))
        each("release", lambda: taken.pop().release())
        each("take", lambda: taken.append(tube.take(timeout=0)))
        each("ack", lambda: taken.pop().ack())
        ids = self.ids_after(self.bench.tasks // 2 - 1, 50)
        for method in ("peek", "bury", "kick_task", "update", "delete"):
            rest = iter(ids)
            act = getattr(tube, method)
            options = {"data": b"new"} if method == "update" else {}
            each(method, lambda act=act, rest=rest, options=options: act(next(rest), **options))  # type: ignore[misc]
        self.wait()
        for method, looks in {
            "statistics": tube.statistics,
            "overview": lambda: self.bench.queue.admin.overview(ages=True),
            "oldest_ready_age": tube.admin.oldest_ready_age,
            "due_histogram": lambda: tube.admin.due_histogram([1, 10, 100]),
            "connect, tube": lambda: self.bench.connect().tube(tube.name),
        }.items():
            self.bench.rounds_of(self.kind, method, looks)

    def _measure_many(self) -> None:
        """Measure calls on many tasks."""
        tube, bench, kind = self.tube, self.bench, self.kind
        taken: list[Any] = []

        def take() -> None:
            taken[:] = tube.take_many(self.much)

        for number in range(bench.rounds):
            bench.round(kind, ASKED, lambda: tube.put_many(self.items(4_000)))
            keyed = [
                tubes.Item(_DATA, key=f"{number} {task}", **self.lane(task), **self.spans) for task in range(4_000)
            ]
            bench.round(kind, f"{ASKED} with keys", lambda keyed=keyed: tube.put_many(keyed))  # type: ignore[misc]
            bench.round(kind, "take_many", take)
            if self.timed:
                bench.round(kind, "renew_many", lambda: tube.touch_many(taken, 2 * TTR))
            bench.round(kind, "release_many", lambda: tube.release_many(taken))
            take()
            bench.round(kind, "release_all", tube.admin.release_all)
            take()
            bench.round(kind, "ack_many", lambda: tube.ack_many(taken))
            ids = self.ids_after(bench.tasks // 3 - 1, 4_000)
            bench.round(kind, "delete_many", lambda ids=ids: tube.delete_many(ids[2_000:]))  # type: ignore[misc]
            for id in ids[:2_000]:
                tube.bury(id)
            bench.round(kind, "buried", lambda: [*tube.select("buried", limit=2_000)])
            bench.round(kind, "kick", lambda: tube.select("buried", limit=2_000).kick())
            bench.round(kind, "tasks", lambda: [*tube.select(limit=2_000)])
            if self.lanes:
                bench.round(kind, "lanes", tube.lanes)
                bench.round(kind, "tasks of a lane", lambda: [*tube.select("ready", limit=100, **self.lane(0))])

    def _measure_ends(self) -> None:
        """Measure sessions, leases and other spans that end at one moment."""
        tube, bench, kind = self.tube, self.bench, self.kind
        for _ in range(bench.rounds):
            other = bench.queue.session()
            other.tube(tube.name).take_many(self.much)
            bench.round(kind, "close of a session with tasks", other.close)
            lost = bench.connect(0.5)
            lost.tube(tube.name).take_many(self.much)
            lost.admin.detach()
            time.sleep(0.6)
            bench.round(kind, "the end of a lease", tube.statistics)
            if self.timed:
                for what in ("delay", "ttl"):
                    tube.put_many(self.items(4_000), **{what: 2})
                    time.sleep(2.1)
                    bench.round(kind, f"the end of 4,000 {what}s", tube.statistics)
        tube.put_many([tubes.Item(_DATA, key=f"seen {n}", key_ttl=0.1, **self.lane(n)) for n in range(2_000)])
        puts = tube.statistics().calls["put"]
        tube.delete_many(self.ids_after(puts - 2_001, 2_000))
        time.sleep(0.2)
        bench.round(kind, "keys are forgotten", lambda: tube.put(_DATA, key="new", **self.lane(0)))

    def _measure_large(self) -> None:
        """Measure tasks of 200 kB."""
        bench, kind = self.bench, f"{self.kind}"
        tube: Any = bench.queue.create_tube(f"{self.tube.name}-large", KINDS[kind][0], **self.options)
        tasks = [tube.put(_LARGE, key=str(number), **self.lane(number)) for number in range(200)]
        for _ in range(bench.rounds):
            taken: list[Any] = []
            bench.round(kind, "take_many of 200 kB", lambda taken=taken: taken.extend(tube.take_many(200)))  # type: ignore[misc]
            tube.release_many(taken)
            bench.round(kind, "tasks of 200 kB", lambda: [*tube.select(limit=200)])
            again = [tubes.Item(b"x", key=str(number), **self.lane(number)) for number in range(200)]
            bench.round(kind, "put_many, keys of 200 kB", lambda again=again: tube.put_many(again))  # type: ignore[misc]
            for task in tasks:
                tube.bury(task.id)
            bench.round(kind, "oldest_ready_age, 200 kB", tube.admin.oldest_ready_age)
            bench.round(kind, "buried of 200 kB", lambda: [*tube.select("buried", limit=200)])
            tube.select("buried", limit=200).kick()
        tube.drop(force=True)

    def _measure_full(self) -> None:
        """Measure a full tube on which very many processes wait."""
        bench, kind = self.bench, self.kind
        tube: Any = bench.queue.create_tube(f"{self.tube.name}-full", KINDS[kind][0], capacity=1000, **self.options)
        tube.put_many([tubes.Item(_DATA, **self.lane(number)) for number in range(1000)])
        port = tube._port
        putting = port.session.version.function("put")
        for first in range(0, bench.crowd, 1000):
            waits = [
                (b"\0", _DATA, "", "", "", 1000, 1, uuid4().hex) for _ in range(first, min(first + 1000, bench.crowd))
            ]
            bench.send([ScriptCall(putting, port.shared.key, words, port.session) for words in waits])
        bench.round(kind, "release in a full tube", lambda: [tube.take(timeout=0).release() for _ in range(50)])
        bench.round(kind, "ack in a full tube", lambda: [tube.take(timeout=0).ack() for _ in range(50)])
        bench.round(kind, "drop of a full tube", lambda: tube.drop(force=True))

    def _measure_stale(self) -> None:
        """Measure a tube in which nine of ten tasks are deleted."""
        first = self.bench.tasks // 10

        def delete() -> None:
            for start in range(first, self.bench.tasks, 10_000):
                self.tube.delete_many(range(start, min(start + 10_000, self.bench.tasks)))
                self.tube.put(_DATA)

        self.bench.round(self.kind, "delete_many, put: 9 of 10 deleted", delete)
        self.bench.round(self.kind, "take: 9 of 10 were deleted", lambda: [self.tube.take(0).ack() for _ in range(200)])


def measure_names(bench: Bench) -> None:
    """Measure very many tubes."""
    for first in range(0, bench.names, 10_000):
        bench.client.sadd("tubes:names", *(f"tube-{number}" for number in range(first, first + 10_000)))
    bench.queue.create_tube("one")
    bench.rounds_of("fifo", f"tubes, {bench.names:,} names", bench.queue.tubes)
    bench.rounds_of("fifo", f"overview, {bench.names:,} names", bench.queue.admin.overview)


def rows(bench: Bench) -> list[list[str]]:
    """Return a row per call: its milliseconds for each kind, '' where the kind lacks the call."""
    methods = dict.fromkeys(method for _, method in bench.found)
    spans = {found: f"{median(seconds) * 1e3:.2f}" for found, seconds in bench.found.items()}
    return [[method, *(spans.get((kind, method), "") for kind in KINDS)] for method in methods]


def main() -> int:
    """Measure and show the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.longest", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="2% of the tasks, sessions and processes, for a quick look"
    )
    parser.add_argument("--program", choices=["valkey", "redis"], default="valkey", help="the server (default: valkey)")
    parser.add_argument("--kind", choices=list(KINDS), help="measure only this kind of driver")
    parser.add_argument("--write-readme", action="store_true", help="write the table into README.md")
    args = parser.parse_args()
    if args.write_readme and (args.quick or args.kind):
        parser.error("--write-readme requires a full run")
    extent = (20_000, 1_000, 10_000, 1) if args.quick else (1_000_000, 50_000, 100_000, 3)
    with Bench(args.program, *extent) as bench:
        for kind in KINDS:
            if args.kind in (None, kind):
                began = time.perf_counter()
                crowd = Crowd(bench, kind)
                crowd.fill()
                crowd.measure()
                print(f"{kind} ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
        measure_names(bench)
    tasks, sessions, *_ = extent
    title = f"The longest script of each call, in ms: {args.program}, {tasks:,} tasks, {sessions:,} sessions"
    table = Table("call", *KINDS, title=title, title_justify="left")
    for method, *cells in rows(bench):
        long = (cell and float(cell) > LIMIT and not method.startswith(ASKED) for cell in cells)
        table.add_row(
            method, *(f"[red]{cell}[/red]" if is_long else cell for cell, is_long in zip(cells, long, strict=True))
        )
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)
    if args.write_readme:
        lines = [
            f"{title}. One result, of {machine()}.",
            "",
            f"| | {' | '.join(KINDS)} |",
            f"|---|{'---|' * len(KINDS)}",
        ]
        write_result(README, "longest", "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows(bench))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
