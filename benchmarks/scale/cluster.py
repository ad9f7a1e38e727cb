"""Simulate tubes with partitions on clusters of up to a thousand nodes: `python -m benchmarks.scale.cluster [--full]`.

Routes, slots and the decisions of each process are those of the product: `layout` and `Looks`. The rest is a model of
`PartitionedPort`, `Sleepers`, `NodeHealth` and drivers/lua/waiting.lua: a node makes one call at a time, a message
takes half a round trip, and a partition wakes one process at a time. All times are microseconds of the simulated clock.
Nothing waits, and the same seed gives the same result.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.shared.report import write_result
from tubes.backend.looks import LOOK, Looks
from tubes.drivers.options import SECOND
from tubes.partitions.layout import SLOTS, name_of, route, slot_of

#: A call of the library on a node, a PING, a round trip, and the mean time of a handler.
CALL: Final = 40
PING: Final = 5
ROUND_TRIP: Final = 300
HANDLER: Final = 1000
#: Callers for each node. With the times above, the nodes are busy for 86 % of the time if all callers are busy.
CALLERS: Final = 12
#: As in waiting.lua and health.py: how long a woken process may be on its way, how long a reply shows that a node
#: lives, and how long a caller waits for the reply of a dead one.
WAKING: Final = 50_000
LIVING: Final = 100_000
PATIENCE: Final = SECOND
LOST: Final = object()

#: A caller or a put. It yields a pause (None: until it is woken), or a call: the node, the time that it takes there,
#: what it does, and its arguments.
Flow: TypeAlias = Generator[Any, Any, Any]


@dataclass(frozen=True)
class Setting:
    """One row. `load`: the share of busy callers if nothing waits; `hot`: the share of tasks in one lane."""

    nodes: int
    partitions: int
    load: float
    processes: int = 0
    callers: int = 0
    tasks: int = 20_000
    hot: float = 0.0
    dead: int = 0
    lanes: bool = True
    note: str = ""


@dataclass
class Result:
    """What a run has shown. `waits` and `hot_waits` are sorted: from the begin of a put to the begin of its handler."""

    waits: list[int]
    hot_waits: list[int]
    calls: float
    wakeups: float
    pings: float
    busiest: float
    left: int
    asked: list[set[int]]


class Node:
    """A server. It makes one call at a time."""

    def __init__(self) -> None:
        self.free_at, self.calls, self.is_dead = 0, 0, False


class Partition:
    """The tasks of a partition by lane, one of a lane in flight, and the line of processes."""

    def __init__(self, world: World, number: int, node: Node) -> None:
        self.world, self.number, self.node = world, number, node
        self.lanes: defaultdict[Any, deque[int]] = defaultdict(deque)
        self.ready: deque[Any] = deque()
        self.line: OrderedDict[Process, None] = OrderedDict()
        self.marker_until = 0

    def put(self, at: int, lane: Any, born: int) -> None:
        self.lanes[lane].append(born)
        if len(self.lanes[lane]) == 1:
            self.ready.append(lane)
        self.flush(at)

    def take(self, at: int, process: Process, *, stands: bool, was_woken: bool) -> tuple[Any, int | None]:
        """Return the lane and the birth of a task, or None, and what `Looks.note` gets."""
        if was_woken:
            self.marker_until = 0
        task = None
        if self.ready:
            lane = self.ready.popleft()
            task = lane, self.lanes[lane][0]
        if stands and not self.ready:
            self.line.setdefault(process)
        self.flush(at)
        return task, None if self.ready else 0

    def ack(self, at: int, lane: Any) -> None:
        self.lanes[lane].popleft()
        if self.lanes[lane]:
            self.ready.append(lane)
        else:
            del self.lanes[lane]
        self.flush(at)

    def wake(self, at: int) -> None:
        self.marker_until = 0
        self.wake_next(at)

    def flush(self, at: int) -> None:
        if self.ready:
            self.wake_next(at)

    def wake_next(self, at: int) -> None:
        if self.line and at >= self.marker_until:
            self.marker_until = at + WAKING
            process, _ = self.line.popitem(last=False)
            self.world.counts["wakeups"] += 1
            self.world.schedule(at + self.world.half_trip(), process.note_wakeup, self.number)


class Process:
    """A process with callers that take, handle and ack one task after the other."""

    def __init__(self, world: World, home: int) -> None:
        self.world, self.looks = world, Looks(len(world.partitions), home)
        self.idle: deque[Flow] = deque()
        self.using = 0  # Callers that were woken, or ask.
        self.alarm = 0
        self.asked: set[int] = set()
        self.living: dict[Node, int] = {}
        self.dead: set[Node] = set()
        self.puts = count(world.random.randrange(len(world.partitions)))
        for partition in world.partitions:
            self.looks.note_subscribed(partition.number)

    def consume(self) -> Flow:
        while True:
            self.using += 1
            found = yield from self.ask()
            while found is None:
                self.idle.append(self.world.running)
                self.serve()
                yield None
                found = yield from self.ask()
            partition, (lane, born) = found
            self.world.note_start(lane, born)
            yield round(self.world.random.expovariate(1 / HANDLER))
            yield partition.node, CALL, partition.ack, lane
            self.world.counts["done"] += 1

    def ask(self) -> Flow:
        task = number = None
        while task is None and (found := self.looks.next(self.world.now)) is not None:
            number, was_woken = found
            if was_woken or (yield from self.replies(number)):
                reply = yield from self.call_take(number, stands=True, was_woken=was_woken)
                if reply is not LOST:
                    task = reply[0]
                    self.looks.note(number, reply[1], self.world.now)
            else:
                self.looks.note_failure(number, self.world.now)
        self.using -= 1
        if number is not None:
            self.looks.give_up(number)
        self.serve()
        return None if task is None or number is None else (self.world.partitions[number], task)

    def call_take(self, number: int, *, stands: bool, was_woken: bool) -> Flow:
        partition = self.world.partitions[number]
        self.asked.add(number)

        def take(at: int) -> Any:
            return partition.take(at, self, stands=stands, was_woken=was_woken)

        return (yield partition.node, CALL, take)

    def replies(self, number: int) -> Flow:
        """Return False if the node of a partition is dead. In a cluster this costs a PING in 100 ms."""
        node = self.world.partitions[number].node
        if len(self.world.nodes) > 1 and node not in self.dead and self.world.now >= self.living.get(node, 0):
            self.world.counts["pings"] += 1
            if (yield node, PING, reply_to_ping) is LOST:
                self.dead.add(node)
            else:
                self.living[node] = self.world.now + LIVING
        return node not in self.dead

    def put(self, lane: str | None) -> Flow:
        born, partitions = self.world.now, self.world.partitions
        number = next(self.puts) % len(partitions) if lane is None else route(lane, len(partitions))
        if lane is None:  # It goes to the next living node.
            while not (yield from self.replies(number)):
                number = next(self.puts) % len(partitions)
        partition = partitions[number]
        lane = f"{born}-{self.world.random.random()}" if lane is None else lane
        if not partition.node.is_dead:
            self.world.counts["put"] += 1
            yield partition.node, CALL, partition.put, lane, born

    def note_wakeup(self, number: int) -> None:
        self.looks.note_wakeup(number)
        self.serve()

    def serve(self) -> None:
        if not self.looks.may_sleep(self.world.now):
            if self.idle:
                self.using += 1
                self.world.schedule(self.world.now, self.world.resume, self.idle.popleft())
                return
            if self.using:
                return
            for number, _ in self.looks.pass_on():
                partition = self.world.partitions[number]
                self.world.start(one_call(partition.node, partition.wake))
        when = self.looks.wake_time()
        if when is not None and not self.world.now < self.alarm <= when:
            self.alarm = when
            self.world.schedule(when, self.fire, when)

    def fire(self, when: int) -> None:
        if when == self.alarm:
            self.alarm = 0
            self.serve()


def reply_to_ping(_at: int) -> None:
    """Do nothing: a PING changes nothing."""


def one_call(node: Node, run: Callable[[int], None]) -> Flow:
    yield node, CALL, run


class World:
    """A cluster and its clients."""

    def __init__(self, setting: Setting, seed: int = 1) -> None:
        self.setting, self.now, self.order = setting, 0, count()
        self.events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.waits: list[int] = []
        self.hot_waits: list[int] = []
        self.running: Flow = one_call(Node(), lambda _at: None)
        self.nodes = [Node() for _ in range(setting.nodes)]
        slots = [slot_of(name_of("tube", n, setting.partitions, "").encode()) for n in range(setting.partitions)]
        places = [self.nodes[slot * setting.nodes // SLOTS] for slot in slots]
        self.partitions = [Partition(self, number, node) for number, node in enumerate(places)]
        size = setting.processes or min(4 * setting.nodes, 128)
        self.callers = setting.callers or CALLERS * setting.nodes // size
        self.processes = [Process(self, self.random.randrange(setting.partitions)) for _ in range(size)]
        self.interval = (2 * ROUND_TRIP + 2 * CALL + HANDLER) / (setting.load * size * self.callers)

    # -- events --------------------------------------------------------------------------------------------------------

    def schedule(self, at: int, run: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self.events, (at, next(self.order), run, args))

    def half_trip(self) -> int:
        return round(ROUND_TRIP / 2 * self.random.uniform(0.75, 1.25))

    def start(self, flow: Flow) -> None:
        self.schedule(self.now, self.resume, flow)

    def resume(self, flow: Flow, reply: Any = None) -> None:
        self.running = flow
        try:
            step = flow.send(reply)
        except StopIteration:
            return
        if isinstance(step, int):
            self.schedule(self.now + step, self.resume, flow)
        elif step is not None:
            self.schedule(self.now + self.half_trip(), self.arrive, flow, *step)

    def arrive(self, flow: Flow, node: Node, span: int, run: Callable[..., Any], *args: Any) -> None:
        if node.is_dead:
            self.schedule(self.now + PATIENCE, self.resume, flow, LOST)
            return
        node.free_at = max(node.free_at, self.now) + span
        node.calls += span == CALL
        self.schedule(node.free_at + self.half_trip(), self.resume, flow, run(node.free_at, *args))

    # -- one run -------------------------------------------------------------------------------------------------------

    def stand(self) -> None:
        """Let each process stand in all lines, since some moment of the last `LOOK`."""
        begins = sorted(self.random.randrange(-LOOK, 0) for _ in self.processes)
        for process, began in zip(self.processes, begins, strict=True):
            for partition in self.partitions:
                process.looks.next(began)
                process.looks.note(partition.number, 0, began)
                partition.line[process] = None

    def put_all(self) -> Flow:
        lanes = 100 * self.callers * len(self.processes)
        for _ in range(self.setting.tasks):
            lane = None
            if self.setting.lanes:
                is_hot = self.random.random() < self.setting.hot
                lane = "hot" if is_hot else str(self.random.randrange(lanes))
            self.start(self.random.choice(self.processes).put(lane))
            yield round(self.random.expovariate(1 / self.interval))

    def note_start(self, lane: Any, born: int) -> None:
        (self.hot_waits if lane == "hot" else self.waits).append(self.now - born)

    def run(self) -> Result:
        """Run the events until all puts have been made, and for a second more."""
        self.stand()
        for process in self.processes:
            for _ in range(self.callers):
                self.start(process.consume())
        for node in self.nodes[: self.setting.dead]:
            node.is_dead = True
        for partition in self.partitions:
            if partition.node.is_dead:
                for process in self.processes:
                    process.looks.note_unsubscribed(partition.number)
        self.start(self.put_all())
        end = round(self.setting.tasks * self.interval) + SECOND
        while self.events and self.events[0][0] <= end:
            self.now, _, run, args = heapq.heappop(self.events)
            run(*args)
        calls, done = [node.calls for node in self.nodes], max(self.counts["done"], 1)
        left = self.counts["put"] - self.counts["done"]
        per_task = (sum(calls) / done, self.counts["wakeups"] / done, self.counts["pings"] / done)
        busiest = max(calls) * len(calls) / max(sum(calls), 1)
        asked = [process.asked for process in self.processes]
        return Result(sorted(self.waits), sorted(self.hot_waits), *per_task, busiest, left, asked)


def percentiles(waits: list[int]) -> str:
    if not waits:
        return "| |"
    return " | ".join(f"{waits[min(int(len(waits) * part), len(waits) - 1)] / 1000:,.1f}" for part in (0.5, 0.99, 1))


def row(setting: Setting) -> str:
    """Return a row of the table."""
    world = World(setting)
    found = world.run()
    processes = len(world.processes)
    numbers = f"{found.calls:.2f} | {found.wakeups:.2f} | {found.pings:.2f} | {found.busiest:.2f} | {found.left}"
    who = f"{setting.nodes:,} | {setting.partitions:,} | {setting.load:.0%} | {processes:,} x {world.callers:,}"
    hot = f"; its waits: {percentiles(found.hot_waits).replace(' | ', ' / ')}" if found.hot_waits else ""
    return f"| {who} | {percentiles(found.waits)} | {numbers} | {setting.note}{hot} |"


#: The rows of the default command, and those that `--full` adds.
SMALL: Final = [
    Setting(1, 16, 0.01, 8, 1, 200, note="few processes"),
    *(Setting(1, p, load, tasks=4000) for p in (1, 4, 16) for load in (0.01, 0.5, 0.9)),
    *(Setting(3, p, load, tasks=4000) for p in (3, 12, 48) for load in (0.01, 0.5, 0.9)),
    Setting(3, 16, 0.5, tasks=4000, note="16 is not a multiple of 3"),
    Setting(3, 12, 0.5, 36, 1, tasks=4000, note="one caller per process"),
    Setting(3, 12, 0.5, 3, 12, tasks=4000, note="twelve callers per process"),
    Setting(3, 12, 0.5, tasks=4000, hot=0.1, note="a hot lane with 10 % of the tasks"),
    Setting(3, 12, 0.1, tasks=4000, hot=0.1, note="the same at a tenth of the load"),
    Setting(3, 12, 0.1, tasks=4000, dead=1, note="one node dead"),
]
FULL: Final = [
    *(Setting(64, p, load, 16, 48, 6000) for p in (64, 256) for load in (0.01, 0.5, 0.9)),
    Setting(1000, 4096, 0.01, 8, 1500, 2000),
    Setting(64, 64, 0.01, 16, 48, 2000, lanes=False, note="puts without lanes"),
    Setting(64, 64, 0.01, 16, 48, 6000, dead=1, note="one node dead"),
    Setting(1000, 1000, 0.01, 8, 1500, 3000),
    Setting(64, 1024, 0.5),
]
HEAD: Final = (
    "| nodes | partitions | load | processes x callers | wait p50, ms | p99 | max | calls per task | wake-ups | PINGs "
    "| busiest node / mean | left | |\n" + "|---" * 13 + "|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate tubes with partitions on clusters.")
    parser.add_argument("--full", action="store_true", help="also 64 and 1,000 nodes: some ten minutes")
    parser.add_argument("--write-readme", action="store_true", help="write the table into README.md")
    args = parser.parse_args()
    lines = [HEAD]
    print(HEAD)
    for setting in [*SMALL, *(FULL if args.full else [])]:
        lines.append(row(setting))
        print(lines[-1], flush=True)
    if args.write_readme:
        write_result(Path(__file__).parent / "README.md", "cluster", "\n".join(lines))


if __name__ == "__main__":
    main()
