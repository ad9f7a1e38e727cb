"""Each command of each function is refused in turn: a repair makes the tube consistent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import tubes
import tubes.aio
from tests.support.internals import port_of
from tests.support.refusals import Refusals
from tubes.spark.server import streams
from tubes.spark.server.bulk_write import Writer
from tubes.spark.server.streams import Stream
from tubes.testing import LocalServer, ManualClock

#: Options by driver that enable all features.
DRIVERS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "fifottl": {"backoff": (1.0, 2.0), "ttr": 60},
    "limfifottl": {"capacity": 50},
    "utube": {},
    "utubettl": {"ttl": 10_000},
    "throttled utubettl": {"interval": 0.5, "max_in_flight": 2, "order": "round_robin"},
}


class Desk:
    """A tube, its server, and a clock."""

    def __init__(self, server: LocalServer, kind: str) -> None:
        self.driver = kind.split()[-1]
        self.url = server.url
        self.clock = ManualClock()
        self.client: Any = server.client()
        self.queue = tubes.connect(server.url, clock=self.clock)
        self.tube = self.queue.create_tube("t", self.driver, **DRIVERS[kind])
        self.laned = "utube" in self.driver
        self.timed = "ttl" in self.driver
        self.lanes = 0

    def put(self, data: object, lane: str | None = None, **options: Any) -> tubes.Task:
        self.lanes += 1
        if self.laned:
            options["utube"] = lane or f"lane {self.lanes}"
        task: tubes.Task | None = self.tube.put(data, **options)
        assert task is not None
        return task

    def item(self, data: object, lane: str, **options: Any) -> tubes.Item:
        return tubes.Item(data, **options, utube=lane) if self.laned else tubes.Item(data, **options)

    def take(self) -> tubes.Task:
        for _ in range(5):
            if task := self.tube.take(timeout=0):
                return task
            self.clock.advance(1)  # All lanes are in cooldown.
        raise AssertionError("nothing can be taken")

    def set_meta(self, **fields: object) -> None:
        """Write fields of the meta hash as if other clients had."""
        for name, value in fields.items():
            self.client.hset("tubes:{t}", name, value)


def puts(desk: Desk) -> None:
    desk.put("a")
    desk.put("b", lane="same")
    desk.put("c", lane="same")
    desk.put("key", key="k")
    desk.put("kept", key="k", on_duplicate="keep")
    desk.put("replaces", key="k", on_duplicate="replace")
    desk.put("updates", key="k", on_duplicate="update")
    desk.tube.put_many([desk.item("d", "x"), desk.item("e", "x"), desk.item("f", "y")])
    desk.tube.put_many([desk.item("g", "x", key="l"), desk.item("h", "z", key="k", on_duplicate="replace")])
    if desk.timed:
        desk.put("late", delay=10)
        desk.put("second", lane="other", pri=2)
        desk.put("first", lane="other", pri=1)
        desk.put("dies", ttl=20)


def takes(desk: Desk) -> None:
    one, two, three = desk.take(), desk.take(), desk.take()
    desk.tube.ack(one)
    desk.tube.ack(two.id)
    desk.tube.release(three)
    desk.tube.bury(desk.take(), "why")
    loop = iter(desk.tube)
    next(loop)
    next(loop)
    loop.close()
    many = desk.tube.take_many(4)
    desk.tube.release_many(many[:2])
    desk.tube.ack_many(many[2:])
    if desk.timed:
        task = desk.take()
        task.touch(5)
        desk.tube.touch_many([task], 500)
        task.release(delay=3)
        desk.take()
        desk.clock.advance(90)
        desk.tube.statistics()


def looks(desk: Desk) -> None:
    list(desk.tube.select("buried"))
    desk.tube.admin.oldest_ready_age()
    list(desk.tube.select())
    desk.queue.admin.overview(ages=True)
    desk.queue.statistics()
    if desk.timed:
        desk.tube.admin.due_histogram([1, 10])
    if desk.laned:
        desk.tube.lanes()


def changes(desk: Desk) -> None:
    ids = [desk.put(number, lane=f"{number // 2}").id for number in range(6)]
    desk.tube.peek(ids[0])
    desk.tube.bury(ids[0])
    desk.tube.bury(ids[1])
    desk.tube.kick(task=ids[0])
    desk.tube.select("buried", limit=5).kick(attempts=2)
    desk.tube.delete(ids[2])
    desk.tube.delete_many(ids[3:5])
    desk.tube.update(ids[5], data="new")
    if desk.timed:
        desk.tube.update(ids[5], delay=5)
        desk.tube.update(ids[5], delay=0, pri=3)
    desk.tube.pause(5)
    desk.tube.pause(0)
    if desk.laned:
        desk.tube.lane("0").block(5)
        desk.tube.lane("1").configure(interval=1, max_in_flight=3)
    desk.take()
    desk.tube.admin.release_all()


def failures(desk: Desk) -> None:
    for _ in range(2):
        desk.put("fails", max_attempts=1, key=f"{desk.lanes}")
    desk.tube.release(desk.take())
    desk.tube.release_many([desk.take()])
    if desk.timed:
        desk.put("ends", key="ends", key_ttl=5, ttl=2)
        desk.put("runs", max_attempts=1, ttr=1)
        desk.take()
        desk.clock.advance(30)
        desk.take()


def leaves(desk: Desk) -> None:
    with desk.queue.session() as other:
        other.admin.identify()
        other.tube("t").take(timeout=0)
    desk.put("x")
    desk.take()
    with pytest.raises(tubes.TubeBusy):
        desk.tube.drop()
    desk.tube.truncate()
    desk.tube.drop(force=True)


def batches(desk: Desk) -> None:
    for number in range(12):
        desk.put(number, lane=f"{number % 5}")
    stream = Stream.open(tubes.connect(desk.url, clock=desk.clock), "t", "s")
    stream.take(1, 3)
    (chunk,) = stream.take(2, 2)
    stream.claim.skip(desk.tube, list(zip(chunk.ids, chunk.attempts, strict=True))[:1])
    desk.tube.admin.release_all()
    stream.retake(1)
    stream.ack(2)
    port_of(stream.tube).connection.close(lost=True)
    writer = Writer(desk.tube)
    rows = [(writer.head({"utube": "w"} if desk.laned else {}), [b'"a"', b'"b"', b'"c"'])]
    writer.publish("load", 1, [writer.stage("load-1", chunk) for chunk in writer.chunks(rows)])


def others_wait(desk: Desk) -> None:
    desk.set_meta(waiting=1e18, filling=1e18, listening=1e18)
    desk.client.hset("tubes:{t}:waiting", "p:room", "0 1 9000000000000000000")


WAYS: dict[str, Callable[[Desk], None]] = {"no waiters": lambda desk: None, "waiters": others_wait}


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", DRIVERS)
def test_repair_fixes_tube_after_refused_command(
    server: LocalServer, kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK", 3)
    if "redis" in server.program and kind in ("limfifottl", "utube", "utubettl"):
        pytest.skip("Valkey is enough")
    desk = Desk(server, kind)
    WAYS[way](desk)
    refusals = Refusals(server, monkeypatch, desk.queue, "t")
    for scene in (puts, takes, looks, changes, failures, batches, leaves):
        scene(desk)
    refusals.close()
    assert refusals.harm == []
    assert refusals.refused.total() > 400
    assert refusals.repaired.total() > 100


@pytest.fixture
def restrict(server: LocalServer) -> Callable[..., str]:
    """Return a function that grants a user all commands except some and returns the URL."""

    def allow(*but: str) -> str:
        rights = ("reset", "on", ">pw", "~*", "&*", "+@all", *(f"-{name}" for name in but))
        client: Any = server.client()
        client.execute_command("ACL", "SETUSER", "limited", *rights)
        return f"unix://limited:pw@{server.socket}"

    return allow


def test_call_is_refused_when_processing_due_tasks_is(restrict: Callable[..., str]) -> None:
    clock = ManualClock()
    with tubes.connect(restrict(), clock=clock) as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put("late", delay=5)
        clock.advance(5)
        restrict("zrange")
        for _ in range(2):
            # Redis 7.0 does not name the command.
            with pytest.raises(tubes.ServerRefused, match=r"(?i)ZRANGE|can't run this command"):
                tube.put("refused")
        restrict()
        assert tube.put("done").id == 1
        assert tube.statistics().tasks["ready"] == 2


def test_async_call_is_refused_when_processing_due_tasks_is(restrict: Callable[..., str]) -> None:
    async def run() -> None:
        clock = ManualClock()
        async with tubes.aio.connect(restrict(), clock=clock) as queue:
            tube = await queue.create_tube("t", "fifottl")
            await tube.put("late", delay=5)
            clock.advance(5)
            restrict("zrange")
            refused = await asyncio.gather(*(tube.put("refused") for _ in range(3)), return_exceptions=True)
            assert {type(error) for error in refused} == {tubes.ServerRefused}
            restrict()
            done = await asyncio.gather(*(tube.put("done") for _ in range(3)))
            assert [task.id for task in done] == [1, 2, 3]
            assert (await tube.statistics()).tasks["ready"] == 4

    asyncio.run(run())
