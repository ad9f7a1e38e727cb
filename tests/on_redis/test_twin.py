"""Twins: the same random calls at the same moments in memory and on a real server must have equal results."""

from __future__ import annotations

import math
import os
import random
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support import indexes
from tests.support.stepping import SteppingClock
from tubes import Backoff, Driver, Item, Task, TaskCancelled, TaskNotTaken, TubesError
from tubes.drivers.invariants import check_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.drivers import Ranked
    from tubes.testing import LocalServer

STEPS = 250
#: `make soak-faults` uses another seed in each round.
SEEDS = [int(os.environ.get("TUBES_SEED", "1"))]
LEASE = 1.05
LANES = ("a", "b", "ü" * 300, "nil")


def by_age_and_pri(task: Ranked) -> float:
    return task.pri * 1.5 - task.id / 7


DRIVERS: dict[str, tuple[str | Driver, dict[str, Any]]] = {
    "fifo": ("fifo", {}),
    "fifottl": ("fifottl", {"ttl": 3, "ttr": 1.5}),
    "limfifottl": ("limfifottl", {"capacity": 5}),
    "utube": ("utube", {}),
    "utubettl": ("utubettl", {"ttr": 2, "pri": 1}),
    "polite utube": ("utube", {"interval": 0.7, "jitter": 0.5}),
    "rounds": ("utube", {"order": "round_robin", "max_in_flight": 2}),
    "polite rounds": ("utubettl", {"order": "round_robin", "max_in_flight": 3, "interval": 0.3, "ttr": 1}),
    "cooldowns": ("utubettl", {"interval": 0.4, "interval_from": "ack", "max_in_flight": 2, "ttr": 1, "jitter": 0.5}),
    "bursts": ("utubettl", {"lane_rate": 2, "lane_burst": 3, "max_in_flight": 2, "ttr": 1, "jitter": 0.5}),
    "lifo": (Driver("lifo", order="-id"), {}),
    "timed fifo": (Driver("timed", options={"ttl", "ttr", "delay"}), {}),
    "lifo lanes": (Driver("stacks", options={"lane"}, lane="lane", order="-id"), {}),
    "everything": (
        Driver(
            "everything",
            options={"tenant", "pri", "ttl", "ttr", "delay", "capacity", "timeout"},
            order="-pri,-id",
            lane="tenant",
            ttl_spares_taken=True,
        ),
        {"capacity": 9, "interval": 0.5, "max_in_flight": 2},
    ),
    "crowded lanes": ("utubettl", {"lane_capacity": 3, "ttr": 1, "key_ttl": 1}),
    "rate": ("fifottl", {"ttr": 1.5, "rate": 2, "burst": 3}),
    "rate of a fifo": ("fifo", {"rate": "5/s"}),
    "rate of lanes": ("utubettl", {"ttr": 1, "rate": 3, "burst": 2, "interval": 0.3}),
    "done tasks": ("fifottl", {"ttl": 3, "ttr": 1.5, "keep_done": 2, "keep_done_max": 4}),
    "some done tasks": ("utube", {"key_ttl": 1}),
    "retries": (
        "utubettl",
        {"ttr": 1, "max_attempts": 3, "key_ttl": 2, "backoff": Backoff(0.5, cap=3, jitter=0.4, seed=5), "capacity": 12},
    ),
    "retries of a fifo": ("fifo", {"max_attempts": 2, "key_ttl": 1}),
    "retries by ttr": (
        "fifottl",
        {"ttl": 3, "ttr": 0.5, "backoff": [0.1, 1], "max_attempts": 2, "buried_ttl": math.inf},
    ),
    "rank": (
        Driver("ranked", options={"pri", "ttl"}, rank=by_age_and_pri, rank_lua="pri * 1.5 - id / 7"),
        {"ttl": 4},
    ),
}


class Result(NamedTuple):
    """The result of a call: the attributes of a task that are equal on both sides."""

    kind: str
    facts: Any


def facts(result: Any) -> Result:
    if isinstance(result, list):
        results: list[Any] = result
        return Result("list", [facts(each) for each in results])
    if isinstance(result, Task):
        times: tuple[Any, ...] = (result.created, result.ttl, result.ttr, result.due, result.expires)
        more: tuple[Any, ...] = (result.key, result.max_attempts, result.reason, result.created_now, result.context)
        more += result.calls, result.keep_done, result.result, result.ended, result.why
        if result.state != "done":  # The result of an ack has the values that the task had when it was taken.
            more += result.saved, result.progress, result.note
        # The times of a remembered key are not stored.
        times = () if result.state == "done" and not result.created_now else times
        letter = result.state.letter
        visible = (result.id, letter, result.data, result.utube, result.pri, result.attempts, *more, *times)
        return Result("task", visible)
    return Result(type(result).__name__, result)


def outcome(call: Callable[[], Any]) -> tuple[Any, Result]:
    try:
        result = call()
    except TaskCancelled:
        # By the lease of a session that has ended, a server raises the base class.
        return None, Result("error", TaskNotTaken)
    except TubesError as error:
        return None, Result("error", type(error))
    return result, facts(result)


class Side:
    """One of the twins: a tube, three sessions, a listener, and the returned tasks."""

    def __init__(
        self, url: str, driver: str | Driver, options: dict[str, Any], clock: SteppingClock, *, listens: bool
    ) -> None:
        self.root = tubes.connect(url, clock=clock, session_ttl=LEASE, codec="json")
        self.tube = self.root.create_tube("twin", driver, **options)
        self.target = self.root.create_tube("target", driver, **options)
        self.workers = [self.root.session() for _ in range(3)]
        self.tasks: deque[Task] = deque(maxlen=8)
        self.leases: deque[str] = deque(maxlen=8)
        self.received: list[tuple[str, Result]] = []
        if listens:
            self.tube.on_task_change(lambda task, event: self.received.append((event, facts(task))))

    def of(self, worker: int) -> tubes.Tube:
        return self.workers[worker].tube("twin")

    def leave(self, worker: int, lost: bool) -> None:
        session = self.workers.pop(worker)
        if lost:
            session.admin.detach()
        else:
            session.close()
        self.workers.insert(worker, self.root.session())

    def join(self, worker: int, other: int) -> bool:
        uuid = self.workers[other].admin.identify()
        return self.workers[worker].admin.identify(uuid) == uuid

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.root.close()


class Twins:
    """Both sides and their common random steps."""

    def __init__(
        self, url: str, driver: str | Driver, options: dict[str, Any], seed: int, *, listens: bool, start: float = 0
    ) -> None:
        self.clock = SteppingClock(start)
        self.sides = [Side(each, driver, options, self.clock, listens=listens) for each in ("memory://", url)]
        self.random = random.Random(seed)
        self.driver = self.sides[0].tube.driver
        self.puts = 0
        #: True if tasks may have keys.
        self.keyed = True
        self.has_checkpoints = True
        #: True if done tasks may be kept.
        self.keeps = False
        #: True if lanes may have a capacity.
        self.crowded = "lane_capacity" in options
        self.rated = "rate" in options
        self.has_bursts = "lane_burst" in options
        self.has_rounds = "order" in options

    def same(self, call: Callable[[Side], Any], *, takes: bool = False) -> None:
        """Check that both sides return the same; `takes`: the result has leases."""
        results = [outcome(lambda side=side: call(side)) for side in self.sides]  # type: ignore[misc]
        assert results[0][1] == results[1][1]
        for side, (result, _) in zip(self.sides, results, strict=True):
            for task in result if isinstance(result, list) else [result]:  # pyright: ignore[reportUnknownVariableType]
                if isinstance(task, Task):
                    side.tasks.append(task)
                    if takes:
                        side.leases.append(str(task.lease))

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def options(self) -> dict[str, Any]:
        known = {"pri": (0, 1, 2, 13), "ttl": (0, 0.5, 2, 9), "ttr": (0, 0.5, 2), "delay": (0, 0.5, 2)}
        options = {name: self.pick(*values) for name, values in known.items() if self.random.random() < 0.4}
        options = {name: value for name, value in options.items() if name in self.driver.options}
        if self.random.random() < 0.15:
            options["max_attempts"] = self.pick(1, 2)
        if self.random.random() < 0.2:
            options["context"] = self.pick({}, {"trace": "1"}, {"ü" * 300: "", "": "x"})
        if self.random.random() < 0.3 and self.keyed:
            options["key"] = self.pick("k", "l", "m", "ü" * 300)
            options["on_duplicate"] = self.pick("keep", "replace", "update", "raise", None)
            options["key_ttl"] = self.pick(None, None, 0, 0.5, 2)
        if self.keeps and self.random.random() < 0.5:
            options["keep_done"] = self.pick(0, 0.5, 2, 5)
        if self.driver.lane and self.random.random() < 0.8:
            options[self.driver.lane] = self.pick(*LANES[:-1])
        return options

    def pick_task(self, *, alone: bool = True) -> Callable[[Side], Any]:
        """Return a random task argument: an id, an earlier result of a side, or a lease if it is the only argument.

        A server processes leases of several sessions session by session.
        """
        if alone and self.random.random() < 0.2 and self.sides[0].leases:
            number = self.random.randrange(len(self.sides[0].leases))
            return lambda side: side.leases[number]
        if self.random.random() < 0.5 or not self.sides[0].tasks:
            id = self.random.randrange(max(self.puts, 1) + 1)
            return lambda side: id
        place = self.random.randrange(len(self.sides[0].tasks))
        return lambda side: side.tasks[place]

    def pick_id(self) -> int:
        """Return a random id, perhaps of a task."""
        return self.random.randrange(self.puts + 1)

    def filters(self, state: str | None) -> dict[str, Any]:
        """Return random filters of a selection."""
        known: dict[str, tuple[Any, ...]] = {
            "attempts": (1, 2), "older_than": (0.5, 2), "contains": ('"n":1', "ated"), "key": ("k", "ü" * 300),
            "function": ("mail", "send"),
        }  # fmt: skip
        if state in (None, "buried", "done"):
            known["reason"] = ("why not", "none", "max_attempts: ttr", "ü" * 60, "odd")
        if self.driver.lane:
            known["lane"] = LANES[:-1]
        return {name: self.pick(*values) for name, values in known.items() if self.random.random() < 0.2}

    def done(self) -> tuple[str, ...]:
        """Return the state of done tasks, if they may be kept."""
        return ("done", "done") if self.keeps else ()

    def pri(self) -> int | None:
        """Return a new priority sometimes."""
        return self.pick(None, None, 0, 1, 300) if "pri" in self.driver.options else None

    def changes(self) -> dict[str, Any]:
        """Return random changes of an update."""
        known = {"pri": (0, 1, 300), "ttl": (0, 0.5, 2, 9), "delay": (0, 0.5, 2)}
        changes = {name: self.pick(*values) for name, values in known.items() if self.random.random() < 0.3}
        return {name: value for name, value in changes.items() if name in self.driver.options}

    def random_changes(self) -> dict[str, Any]:
        """Return random changes of an alter; sometimes options that the driver lacks."""
        known: dict[str, tuple[Any, ...]] = {
            "max_attempts": (None, 1, 3), "capacity": (None, 0, 3, 9), "ttl": (None, 2, 9), "ttr": (None, 0.5, 2),
            "buried_ttl": (None, 0, 0.5, 2, math.inf),
            "pri": (None, 0, 2), "backoff": (None, [0.5], [0.1, 1]), "interval": (None, 0, 0.3, 1.2),
            "interval_from": (None, "take", "ack"),
            "max_in_flight": (None, 1, 2, 4), "jitter": (None, 0.5), "order": (None, "fifo", "round_robin"),
        }  # fmt: skip
        if self.rated:
            known |= {"rate": (None, "2/s", 7), "burst": (None, 1, 5)}
        if self.has_bursts:
            known |= {"lane_rate": (None, 5), "lane_burst": (None, 1, 4)}
        if self.crowded:
            known |= {"lane_capacity": (None, 0, 1, 4)}
        if self.keeps:
            known |= {"keep_done": (None, 0, 1), "keep_done_max": (None, 2)}
        names = [name for name in known if self.driver.check_of(name) is not None or self.random.random() < 0.02]
        return {name: self.pick(*known[name]) for name in names if self.random.random() < 0.3}

    def step(self) -> None:
        worker, named = self.random.randrange(3), self.pick_task()
        method = self.random.choices(
            ["put", "take", "ack", "release", "touch", "bury", "delete", "kick", "peek", "advance", "leave", "join",
             "release_all", "truncate", "put_many", "take_many", "ack_many", "release_many", "delete_many",
             "pause", "update", "kick_task", "look", "move", "block", "configure", "touch_many",
             "alter", "take_task", "set_ttr", "truncate_state", "forget", "change", "checkpoint",
             "cancel"],
            [30, 30, 14, 10, 5, 6, 4, 5, 3, 14, 3, 2, 1, 1, 5, 5, 4, 3, 2, 2, 7, 3, 3, 3, 3, 3, 4, 4, 5, 4, 1,
             4 * self.keyed, 3, 5 * self.has_checkpoints, 4],
        )[0]  # fmt: skip
        if method == "put":
            options = self.options()
            self.puts += 1
            data = {"n": self.puts, "task": ("mail", "send", "mails")[self.puts % 3]}
            self.same(lambda side: side.of(worker).put(data, **options))
        elif method == "take":
            ttr = self.pick(None, None, 0, 0.5, 2)
            self.same(lambda side: side.of(worker).take(0, ttr=ttr), takes=True)
        elif method == "take_task":
            ttr = self.pick(None, None, 0.5) if "ttr" in self.driver.options else None
            id = self.random.randrange(max(self.puts, 1) + 1)
            self.same(lambda side: side.of(worker).peek(id).take(ttr=ttr), takes=True)
        elif method == "set_ttr":
            seconds = self.pick(None, 0, 0.5, 3)
            self.same(lambda side: side.of(worker).touch(named(side), **({} if seconds is None else {"ttr": seconds})))
        elif method == "change":
            act = self.pick("release", "bury", "delete", "cancel")
            filters = self.filters(None) | {"limit": self.pick(1, 2)}
            self.same(lambda side: getattr(side.of(worker).select(**filters), act)())
        elif method == "truncate_state":
            state = self.pick("ready", "taken", "buried", "delayed", *self.done())
            for side in self.sides:
                side.of(worker).select(state).delete()
            # A server removes them in an arbitrary order.
            assert eventually(lambda: len(self.sides[1].received) >= len(self.sides[0].received))
            for side in self.sides:
                side.received.sort(key=lambda event: (event[0] == "delete", str(event)))
        elif method == "forget":
            key = self.pick("k", "l", "m", "ü" * 300)
            self.same(lambda side: side.of(worker).admin.forget_key(key))
        elif method.endswith("_many"):
            self.step_of_many(worker, method)
        elif method == "release":
            delay, pri = self.pick(None, 0, 0.5, 2), self.pri()
            self.same(lambda side: side.of(worker).release(named(side), delay=delay, pri=pri))
        elif method == "checkpoint":
            saved, progress = self.pick(None, 0, ["ü" * 300]), self.pick(None, 0.25, 1)
            note = self.pick(None, "", "\ud800")
            self.same(lambda side: side.of(worker)._checkpoint(named(side), saved, progress, note))
        elif method == "touch":
            seconds = self.pick(0, 0.5, 3)
            self.same(lambda side: side.of(worker).touch(named(side), seconds))
        elif method == "bury":
            reason, pri = self.pick(None, "why not", "ü" * 300, "\u00a0odd\x1c: x"), self.pri()
            self.same(lambda side: side.of(worker).bury(named(side), reason, pri=pri))
        elif method == "cancel":
            reason = self.pick(None, "why not", "ü" * 300, "\u00a0odd\x1c: x")
            self.same(lambda side: side.of(worker).cancel(named(side), reason))
        elif method == "update":
            changes = self.changes()
            id = self.random.randrange(max(self.puts, 1) + 1)
            if self.pick(True, True, False):
                changes["data"] = {"updated": self.random.randrange(9)}
            self.same(lambda side: side.of(worker).update(id, **changes))
        elif method == "kick_task":
            attempts = self.pick(None, 1, 2)
            self.same(lambda side: side.of(worker).kick(task=named(side), attempts=attempts))
        elif method == "move":
            state, limit = self.pick("ready", "delayed", "buried"), self.pick(1, 3)
            self.same(lambda side: side.of(worker).select(state, limit=limit).move_to(side.target))
            self.same(lambda side: [*side.target.select()])
            self.same(lambda side: side.target.truncate())
        elif method == "look":
            self.same(lambda side: side.of(worker).admin.reasons())
            limit = self.pick(1, 3, 100)
            state = self.pick("ready", "taken", "delayed", "buried", None, *self.done())
            filters = {"limit": limit, "newest_first": self.pick(False, True)} | self.filters(state)
            self.same(lambda side: [*side.of(worker).select(state, **filters)])
            self.same(lambda side: side.of(worker).select(state, **filters).count())
            self.same(lambda side: side.of(worker).admin.oldest_ready_age())
            self.same(lambda side: side.of(worker).admin.due_histogram([0.1, 0.5, 1, 2]))
        elif method == "delete":
            state = self.pick(None, None, "ready", ["taken", "!"], *self.done())
            self.same(lambda side: side.of(worker).delete(named(side), state=state))
        elif method == "ack" and self.keeps:
            value = self.pick(None, 7, ["ü" * 300])
            self.same(lambda side: side.of(worker).ack(named(side), value))
        elif method == "peek" and self.keeps:
            self.puts += 1
            self.same(lambda side: side.of(worker).kick(task=named(side)))
        elif method in ("ack", "peek"):
            self.same(lambda side: getattr(side.of(worker), method)(named(side)))
        elif method == "kick":
            count = self.pick(0, 1, 3)
            attempts, ttl = self.pick(None, 1, 3), self.pick(None, 1) if "ttl" in self.driver.options else None
            state = self.pick("buried", "buried", "delayed", None)
            chosen = {"limit": count, "newest_first": self.pick(False, False, True)}
            self.same(lambda side: side.of(worker).select(state, **chosen).kick(attempts=attempts, ttl=ttl))
            self.same(lambda side: side.of(worker)._first())
        elif method == "pause":
            seconds = self.pick(None, 0, 0, 0.5, 1, 2)
            self.same(lambda side: side.of(worker).pause(seconds))
        elif method == "advance":
            self.clock.advance(self.pick(0.1, 0.5, 1, 2.5))
        elif method == "leave":
            lost = self.pick(True, False)
            for side in self.sides:
                side.leave(worker, lost)
            # The order of two sessions that end at the same moment is undefined.
            self.clock.advance(0.01)
        elif method == "block":
            name, seconds = self.pick(*LANES), self.pick(0, 0.1, 0.5, 2)
            options = {"extend": self.pick(True, False), "reason": self.pick(None, "429", "\ud800")}
            self.same(lambda side: side.of(worker).lane(name).block(seconds, **options))
            self.same(lambda side: side.of(worker).lane(name).info())
        elif method == "configure":
            name, limits = self.pick(*LANES), {"interval": self.pick(None, 0, 0.4, 1.5)}
            limits = self.pick(
                limits, {"max_in_flight": self.pick(None, 1, 2, 4)}, {"interval_from": self.pick(None, "take", "ack")}
            )
            if self.has_bursts:
                limits = self.pick(limits, {"burst": self.pick(None, 1, 2, 5)}, {"rate": self.pick(None, 0, "4/s")})
            if self.has_rounds:
                limits = self.pick(limits, {"weight": self.pick(None, 1, 2, 5)})
            if self.crowded:
                limits = self.pick(limits, {"capacity": self.pick(None, 0, 1, 5)})
            self.same(lambda side: side.of(worker).lane(name).configure(**limits))
        elif method == "alter":
            altered = self.random_changes()
            self.same(lambda side: side.of(worker).alter(**altered))
            self.same(lambda side: dict(side.of(worker).options))
        elif method == "join":
            other = self.random.randrange(3)
            self.same(lambda side: side.join(worker, other))
        elif method == "release_all":
            self.same(lambda side: side.of(worker).admin.release_all())
        else:
            self.same(lambda side: getattr(side.of(worker), method)())

    def step_of_many(self, worker: int, method: str) -> None:
        count = self.random.randrange(5)
        if method == "put_many":
            items = [Item({"n": self.puts + n}, **self.options()) for n in range(count)]
            self.puts += count
            self.same(lambda side: side.of(worker).put_many(items))
        elif method == "take_many":
            self.same(lambda side: side.of(worker).take_many(count + 1, timeout=0), takes=True)
        else:
            named = [self.pick_task(alone=count == 1) for _ in range(count)]
            more = {"delay": self.pick(None, 0, 0.5, 2)} if method == "release_many" else {}
            more = {"ttr": self.pick(0, 0.5, 3)} if method == "touch_many" else more
            more = {"state": self.pick(None, None, "ready", ["~", "!"])} if method == "delete_many" else more
            self.same(lambda side: getattr(side.of(worker), method)([name(side) for name in named], **more))

    def set_back(self, seconds: float) -> None:
        """Set the clock back after both sides have processed due events, which stay processed."""
        for side in self.sides:
            side.tube.statistics()
        self.clock.set_back(seconds)

    def compare(self) -> None:
        """Check that the visible states of both sides are equal."""
        memory, server = self.sides
        assert memory.tube.statistics() == server.tube.statistics()
        if self.driver.lane:
            assert memory.tube.lanes() == server.tube.lanes()
        for id in range(self.puts):
            assert outcome(lambda: memory.tube.peek(id))[1] == outcome(lambda: server.tube.peek(id))[1]  # noqa: B023
        assert eventually(lambda: len(server.received) >= len(memory.received))
        assert server.received == memory.received
        for side in self.sides:
            side.received.clear()

    def check(self, client: Any) -> None:
        """Check the consistency of each side."""
        memory, server = self.sides
        shared: Any = memory.tube._port.shared
        check_engine(shared.engine)
        indexes.check(client, server.tube)
        assert server.root.admin.check("twin") == []

    def close(self) -> None:
        for side in self.sides:
            side.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DRIVERS)
def test_memory_and_server_behave_alike(valkey: LocalServer, name: str, seed: int) -> None:
    driver, options = DRIVERS[name]
    twins = Twins(f"{valkey.url}?prefix={uuid4().hex}", driver, options, seed, listens=True)
    twins.keeps = "done" in name
    try:
        client = valkey.client()
        for step in range(STEPS):
            twins.step()
            twins.compare()
            if step % 5 == 0:
                twins.check(client)
    finally:
        twins.close()


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DRIVERS)
def test_memory_and_server_without_functions_behave_alike(scripted: LocalServer, name: str, seed: int) -> None:
    test_memory_and_server_behave_alike(scripted, name, seed)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DRIVERS)
def test_memory_and_server_agree_when_rarely_observed(valkey: LocalServer, name: str, seed: int) -> None:
    """Reads and listeners process due events: without them, later calls must process them."""
    driver, options = DRIVERS[name]
    twins = Twins(f"{valkey.url}?prefix={uuid4().hex}", driver, options, seed, listens=False)
    twins.keeps = "done" in name
    try:
        client = valkey.client()
        for step in range(STEPS):
            twins.step()
            if step % 25 == 24:
                twins.compare()
                twins.check(client)
    finally:
        twins.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name in DRIVERS if "done" not in name])
def test_memory_and_server_agree_when_the_clock_is_set_back(valkey: LocalServer, name: str, seed: int) -> None:
    """Remembered keys and kept done tasks are excluded, because one side checks their ends earlier."""
    driver, options = DRIVERS[name]
    twins = Twins(f"{valkey.url}?prefix={uuid4().hex}", driver, options, seed, listens=False, start=100_000)
    twins.keyed = twins.has_checkpoints = False
    try:
        client = valkey.client()
        for step in range(STEPS):
            twins.step()
            if step % 10 == 9:
                twins.set_back(twins.pick(30, 3, 0.7, 0.1))
                twins.compare()
                twins.check(client)
    finally:
        twins.close()
