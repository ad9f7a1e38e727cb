"""Foreign numbers and entries in a tube: no call loops forever or stores values that it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tubes
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes import Unreadable
from tubes.redis.port.coalesced_puts import CoalescedPuts
from tubes.redis.transport.wire import ErrorReply, Wire
from tubes.testing import LocalServer, ManualClock


@pytest.fixture
def client(valkey: LocalServer) -> Any:
    return valkey.client()


def dump_all(client: Any, key: str) -> dict[bytes, bytes]:
    return {name: client.dump(name) for name in client.scan_iter(match=f"{key}:*")}


@pytest.mark.sample(14)
@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utubettl"])
@pytest.mark.parametrize("next_id", ["1e400", "1.5", "nan", "0x10", "-1", "9007199254740993", "281474976710655", ""])
def test_put_is_refused_when_the_next_id_is_invalid(url: str, client: Any, driver: str, next_id: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        tube.put("first")
        key = port_of(tube).shared.key
        client.hset(key, "next", next_id)
        before = dump_all(client, key)

        async def run_async() -> None:
            async with tubes.aio.connect(url) as other:
                there = await other.tube("t")
                await asyncio.gather(*(there.put(number) for number in range(3)))

        for put in (
            lambda: tube.put("more"),
            lambda: tube.put_many([1, 2]),
            lambda: tube.put("keyed", key="k"),
            lambda: tube.put_many([tubes.Item(1, key="k")]),
            lambda: asyncio.run(run_async()),
        ):
            with pytest.raises(Unreadable):
                put()
        after = dump_all(client, key)
        assert {name: value for name, value in after.items() if not name.endswith(b":leases")} == {
            name: value for name, value in before.items() if not name.endswith(b":leases")
        }
        queue.admin.repair("t")
        assert tube.put("second").id == 1


@pytest.mark.parametrize("record", [None, b"", b"garbage"])
def test_cooldown_of_an_unknown_lane_ends(url: str, client: Any, clock: ManualClock, record: bytes | None) -> None:
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", "utubettl", interval=5)
        for number in range(4):
            tube.put(number, utube=f"{number % 2}")
        task = take_task(tube)
        task.ack()
        key = port_of(tube).shared.key
        for lane in client.hkeys(f"{key}:lanes"):
            if record is None:
                client.hdel(f"{key}:lanes", lane)
            else:
                client.hset(f"{key}:lanes", lane, record)
        clock.advance(10)
        before = client.info("commandstats")["cmdstat_fcall"]["calls"]
        try:
            assert tube.statistics().tasks["ready"] == 3
        except Unreadable:
            assert record is not None
        assert client.info("commandstats")["cmdstat_fcall"]["calls"] - before <= 3
        queue.admin.repair("t")
        clock.advance(10)
        assert [task.data for task in (tube.take(timeout=0), tube.take(timeout=0)) if task] != []


@pytest.mark.parametrize("score", ["inf", "-inf", "0.5", "-1", "1e300"])
def test_check_reports_invalid_scores(url: str, client: Any, score: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put("first")
        client.zadd(f"{port_of(tube).shared.key}:taken", {"0": float(score)})
        assert queue.admin.check("t") != []
        queue.admin.repair("t")
        assert queue.admin.check("t") == []
        assert tube.take(timeout=0) is not None


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_buried_ignores_entries_without_a_task(url: str, client: Any, driver: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        for number in range(3):
            tube.bury(tube.put(number))
        client.zadd(f"{port_of(tube).shared.key}:buried", {"": 0, "abc": 0})
        assert [task.data for task in tube.select("buried", limit=10)] == [0, 1, 2]
        client.delete(f"{port_of(tube).shared.key}:buried")
        client.zadd(f"{port_of(tube).shared.key}:buried", {"": 0})
        assert [*tube.select("buried", limit=10)] == []


def test_invalid_stored_reply_is_ignored(url: str, client: Any) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put("first")
        key = port_of(tube).shared.key
        (reply_field,) = [field for field in client.hkeys(key) if field.startswith(b"as")]
        client.hset(key, reply_field, "{}")
        assert tube.statistics().tasks["ready"] == 1
        assert tube.put("second").id == 1


def test_coalesced_puts_are_done_once_despite_a_foreign_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has executed the puts: the reply came from another program."""
    from tubes.redis.transport import loop_channel

    original = loop_channel.LoopChannel.handle_reply
    lies = iter([True])

    def lie(self: Any, pipe: Any, one: Any, reply: Any) -> None:
        is_lie = isinstance(one.call, CoalescedPuts) and isinstance(reply, bytes) and next(lies, False)
        original(self, pipe, one, ErrorReply("ERR proxy: upstream said no") if is_lie else reply)

    monkeypatch.setattr(loop_channel.LoopChannel, "handle_reply", lie)

    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t")
            tasks = await asyncio.gather(*(tube.put(number) for number in range(6)))
            assert sorted(task.id for task in tasks) == list(range(6))
            assert (await tube.statistics()).tasks["total"] == 6

    asyncio.run(main())
    assert next(lies, None) is None


@pytest.mark.parametrize("error", ["ERR proxy: upstream said no", "NOSCRIPT no", "x", "AGAIN later"])
def test_put_is_done_once_despite_a_foreign_error(url: str, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put("first")
        call, lies = Wire.call, iter([True])

        def lie(self: Wire, *request: Any) -> Any:
            reply = call(self, *request)
            return ErrorReply(error) if isinstance(reply, bytes) and next(lies, False) else reply

        monkeypatch.setattr(Wire, "call", lie)
        assert tube.put("second").id == 1
        assert next(lies, None) is None
        assert tube.statistics().tasks["total"] == 2


@pytest.mark.parametrize(
    ("driver", "options", "plant"),
    [
        ("utubettl", {"interval": 0.5}, {"rate_limits": None}),
        ("utube", {}, {"cooldowns": "a"}),
        ("fifo", {}, {"due": "xxxxxx"}),
    ],
)
def test_due_entry_that_cannot_be_processed_does_not_cause_a_loop(
    url: str, client: Any, clock: ManualClock, driver: str, options: dict[str, Any], plant: dict[str, str | None]
) -> None:
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", driver, **options)
        tube.put("first")
        take_task(tube).ack()
        key = port_of(tube).shared.key
        for part, member in plant.items():
            if member is None:
                client.hdel(key, part)
            else:
                client.zadd(f"{key}:{part}", {member: 5})
                client.hset(key, "soonest", 1)
        clock.advance(10)
        before = client.info("commandstats")["cmdstat_fcall"]["calls"]
        assert tube.put("second").id == 1
        assert client.info("commandstats")["cmdstat_fcall"]["calls"] - before <= 3
