"""Waiting for a task of a partitioned tube on a server: which process is woken, and what that costs."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tubes.backend.looks import HOME, LOOK, SILENCE, Looks
from tubes.errors import QueueClosed, TubeNotFound
from tubes.testing import LocalServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 5


class World:
    """Partitions with lines, and processes that wait; each message takes its time."""

    def __init__(self, processes: int) -> None:
        self.now = 0
        self.tasks = [0] * PARTITIONS
        self.lines: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.looks = [Looks(PARTITIONS) for _ in range(processes)]
        # The takes on the way, the wake-ups on the way, and the replies on the way, of each process.
        self.takes: list[list[int]] = [[] for _ in range(processes)]
        self.wakeups: list[list[int]] = [[] for _ in range(processes)]
        self.replies: list[list[tuple[int, int | None]]] = [[] for _ in range(processes)]
        for looks in self.looks:
            for number in range(PARTITIONS):
                looks.note_subscribed(number)

    def wake(self, number: int) -> None:
        if self.tasks[number] and self.lines[number]:
            self.wakeups[self.lines[number].pop(0)].append(number)

    def put(self, number: int) -> None:
        self.tasks[number] += 1
        self.wake(number)

    def ask(self, process: int) -> None:
        """A caller of a process sends its next take."""
        found = self.looks[process].next(self.now)
        if found is not None:
            self.takes[process].append(found[0])

    def run_take(self, process: int) -> None:
        """The server runs the first take of a process."""
        if self.takes[process]:
            number = self.takes[process].pop(0)
            self.tasks[number] -= bool(self.tasks[number])
            if not self.tasks[number] and process not in self.lines[number]:
                self.lines[number].append(process)
            self.replies[process].append((number, None if self.tasks[number] else 0))
            self.wake(number)

    def read(self, process: int) -> None:
        """A process reads its first reply."""
        if self.replies[process]:
            self.looks[process].note(*self.replies[process].pop(0), self.now)

    def receive(self, process: int) -> None:
        """A process receives its first wake-up."""
        if self.wakeups[process]:
            self.looks[process].note_wakeup(self.wakeups[process].pop(0))

    def lose(self, process: int) -> None:
        """A process loses its subscriptions with all wake-ups on the way, and gets new ones."""
        self.wakeups[process].clear()
        for number in range(PARTITIONS):
            self.looks[process].note_unsubscribed(number)
        for number in range(PARTITIONS):
            self.looks[process].note_subscribed(number)

    def settle(self) -> None:
        """Let all messages arrive, and all callers ask until they may sleep."""
        for _ in range(1000):
            for process in range(len(self.looks)):
                for step in (self.receive, self.run_take, self.read, self.ask):
                    step(process)
        for messages in (*self.takes, *self.wakeups, *self.replies):
            assert not messages


STEPS = ["put", "ask", "run_take", "read", "receive", "lose"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), max_size=60), st.integers(1, 3))
def test_process_sleeps_only_if_no_partition_has_a_task(steps: list[tuple[str, int]], processes: int) -> None:
    world = World(processes)
    for step, which in steps:
        getattr(world, step)(which if step == "put" else which % processes)
    world.settle()
    assert not any(world.tasks)
    for process, looks in enumerate(world.looks):
        assert looks.may_sleep(world.now)
        assert all(process in line for line in world.lines)


def test_reply_to_a_take_is_used_although_the_partition_was_given_up() -> None:
    looks = Looks(1)
    with looks.lock:
        looks.note_subscribed(0)
        assert looks.next(0) == (0, False)
        looks.update(LOOK)
        looks.note(0, 0, LOOK + 1)
        assert looks.next(LOOK + 1) == (0, False)


def test_partition_is_asked_again_after_a_lost_ring() -> None:
    looks = Looks(2, home=1)
    for number in (0, 1):
        looks.note_subscribed(number)
    while (found := looks.next(0)) is not None:
        looks.note(found[0], 0, 0)
    assert looks.may_sleep(HOME - 1)
    assert looks.wake_time() == HOME
    assert looks.next(HOME) == (1, False)
    looks.note(1, 0, LOOK - 1)
    assert looks.wake_time() == LOOK
    assert looks.next(LOOK) == (0, False)


def test_partition_without_a_subscription_is_asked_each_second() -> None:
    looks = Looks(1)
    found = looks.next(0)
    assert found == (0, False)
    looks.note(0, 0, 0)
    assert looks.may_sleep(SILENCE - 1)
    assert looks.next(SILENCE) == (0, False)


def test_every_partition_is_asked_within_two_rounds_although_one_stays_hot() -> None:
    looks, asked = Looks(PARTITIONS), set[int]()
    for _ in range(2 * PARTITIONS):
        found = looks.next(0)
        assert found is not None
        asked.add(found[0])
        looks.note(found[0], None if found[0] == 0 else 0, 0)
    assert asked == set(range(PARTITIONS))


# -- on a server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
def parts(server: LocalServer) -> Iterator[list[tubes.Tube]]:
    """One tube as four processes see it: each has a store of its own, since each has other settings."""
    with ExitStack() as stack:
        queues = [stack.enter_context(tubes.connect(server.url, session_ttl=60 + number)) for number in range(4)]
        queues[0].create_tube("mail", "fifottl", partitions=PARTITIONS)
        yield [queue.tube("mail") for queue in queues]


def stands(tube: tubes.Tube) -> bool:
    """Return True if the process of this tube stands in the line of each partition."""
    looks = port_of(tube)._looks
    with looks.lock:
        return len(looks._standing) == PARTITIONS


def start_takes(parts: list[tubes.Tube], got: list[Any], count: int = 1) -> list[threading.Thread]:
    """Start a thread per process that takes and acks `count` tasks; return when all stand in all lines."""

    def take(tube: tubes.Tube) -> None:
        for _ in range(count):
            try:
                task = tube.take(timeout=60)
            except (QueueClosed, TubeNotFound) as error:
                got.append(type(error))
                return
            got.append(task and task.ack().data)

    threads = [threading.Thread(target=take, args=(tube,)) for tube in parts]
    for thread in threads:
        thread.start()
    assert eventually(lambda: all(map(stands, parts)))
    return threads


def count_calls(server: LocalServer) -> tuple[int, int]:
    """Return how many functions of the library and how many SPUBLISH the server has run."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    calls, wakeups = (stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("fcall", "spublish"))
    return calls, wakeups


def test_task_costs_three_calls_and_one_ring_while_all_processes_wait(
    server: LocalServer, parts: list[tubes.Tube]
) -> None:
    got: list[Any] = []
    threads = start_takes(parts, got, 5)
    calls, wakeups = count_calls(server)
    for number in range(20):
        parts[0].put(number)
        assert eventually(lambda: len(got) == number + 1)  # noqa: B023
        assert eventually(lambda: sum(map(stands, parts)) >= len(parts) - 1)
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(20))
    calls_after, wakeups_after = count_calls(server)
    assert wakeups_after - wakeups == 20
    assert calls_after - calls <= 20 * 4


def test_burst_wakes_all_processes(parts: list[tubes.Tube]) -> None:
    got: list[Any] = []
    threads = start_takes(parts, got, 25)
    parts[0].put_many(range(100))
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(100))


def test_ring_that_a_process_cannot_use_goes_to_the_next_one(parts: list[tubes.Tube]) -> None:
    got: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        wait_in_vain(parts[1])
    threads = start_takes(parts[2:3], got)
    parts[0].put("first")
    threads[0].join(60)
    assert got == ["first"]


def wait_in_vain(tube: tubes.Tube) -> None:
    """Stand in all lines, and leave by an error."""

    def leave() -> None:
        assert eventually(lambda: stands(tube))
        port_of(tube)._sleepers.dismiss(None, ZeroDivisionError)

    threading.Thread(target=leave).start()
    tube.take(timeout=60)


def test_waiting_take_gets_a_delayed_task_on_time(parts: list[tubes.Tube]) -> None:
    got: list[Any] = []
    threads = start_takes(parts, got)
    started = time.monotonic()
    for number in range(4):
        parts[0].put(number, delay=0.3)
    for thread in threads:
        thread.join(60)
    assert sorted(got) == [0, 1, 2, 3]
    assert 0.3 <= time.monotonic() - started < HOME / 1e6


def test_waiting_takes_end_when_the_tube_is_dropped(parts: list[tubes.Tube]) -> None:
    got: list[Any] = []
    threads = start_takes(parts, got)
    parts[0].drop(force=True)
    for thread in threads:
        thread.join(LOOK / 2e6)
    assert got == [TubeNotFound] * len(parts)


def test_waiting_take_ends_when_its_queue_is_closed(server: LocalServer, parts: list[tubes.Tube]) -> None:
    got: list[Any] = []
    with tubes.connect(server.url) as queue:
        threads = start_takes([queue.tube("mail")], got)
    threads[0].join(60)
    assert got == [QueueClosed]


def test_callers_are_counted_as_waiting_once(server: LocalServer, parts: list[tubes.Tube]) -> None:
    threads = start_takes(parts, [])
    assert eventually(lambda: parts[0].statistics().waiting == len(parts))
    with tubes.connect(server.url, session_ttl=60) as queue:  # In the process of the first tube.
        assert queue.admin.overview()[parts[0].name].statistics.waiting == len(parts)
    parts[0].put_many(range(4))
    for thread in threads:
        thread.join(60)
    assert eventually(lambda: parts[0].statistics().waiting == 0)


def test_killed_subscriptions_lose_no_task(server: LocalServer, parts: list[tubes.Tube]) -> None:
    got: list[Any] = []
    threads = start_takes(parts, got, 25)
    with server.client() as client:
        for number in range(100):
            parts[0].put(number)
            if number % 10 == 0:
                client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(100))


def test_take_any_waits_on_tubes_with_and_without_partitions(server: LocalServer, parts: list[tubes.Tube]) -> None:
    with tubes.connect(server.url) as queue:
        plain, other = queue.create_tube("plain"), queue.tube("mail")
        for name, tube in (("a", plain), ("b", other), ("c", plain), ("d", other)):
            got: list[Any] = []
            waiting = threading.Thread(target=lambda: got.append(queue.take_any([plain, other], 60)))  # noqa: B023
            waiting.start()
            assert eventually(lambda: stands(other) and plain.statistics().waiting > 0)
            tube.put(name)
            waiting.join(60)
            assert got[0].ack().data == name


def test_cancelled_takes_of_asyncio_lose_no_task(server: LocalServer, parts: list[tubes.Tube]) -> None:
    async def main() -> None:
        async with tubes.aio.connect(server.url) as queue:
            tube, got = await queue.tube("mail"), list[Any]()
            for number in range(60):
                take = asyncio.create_task(tube.take(timeout=60))
                await asyncio.sleep(random.random() / 100)
                await tube.put(number)
                await asyncio.sleep(random.random() / 300)
                take.cancel()
                try:
                    task = await take
                except asyncio.CancelledError:
                    continue
                assert task is not None
                got.append((await task.ack()).data)
            while (task := await tube.take(timeout=2)) is not None:
                got.append((await task.ack()).data)
            assert sorted(got) == list(range(60))

    asyncio.run(main())
