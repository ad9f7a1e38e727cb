"""The tokens of sessions, takes and puts on a server, and their remains there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tubes
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes.redis.library.functions import TAKES
from tubes.redis.transport import script_call


def number_of(tube: Any) -> int:
    number: int = tube._port.session[0]
    return number


def fields(tube: Any, client: Any) -> set[str]:
    return {field.decode() for field in client.hkeys(tube._port.shared.key)}


def test_error_about_another_layout_names_the_tube(url: str, valkey: tubes.testing.LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("old")
        tube.put("task")
        valkey.client().hdel(port_of(tube).shared.key, "layout")
        with tubes.connect(url) as other:
            with pytest.raises(tubes.ServerRefused, match=r"\S+\{old\} was made by another version of tubes"):
                other.tube("old")
            with pytest.raises(tubes.ServerRefused, match="another version of tubes"):
                other.create_tube("old", if_not_exists=True)
        assert tube.statistics().tasks["ready"] == 1


def test_recreated_tube_does_not_inherit_old_keys(url: str, valkey: tubes.testing.LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "utubettl")
        tube.put_many([tubes.Item(number, utube=f"{number % 2}", key=str(number)) for number in range(6)])
        tube.take(timeout=0)
        valkey.client().delete(port_of(tube).shared.key)
        with tubes.connect(url) as other:
            again = other.create_tube("t", "fifo")
            assert again.statistics().tasks["total"] == 0
            assert again.put("first", key="1").id == 0
            assert take_task(again).ack().data == "first"
            assert again.take(timeout=0) is None
            again.drop()
        assert valkey.client().keys(f"{port_of(tube).shared.key}*") == []


def test_incomplete_tube_is_not_recreated(url: str, valkey: tubes.testing.LocalServer) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(3))
        valkey.client().hdel(port_of(tube).shared.key, "born")
        with tubes.connect(url) as other:
            with pytest.raises(tubes.ServerRefused, match="incomplete"):
                other.create_tube("t", if_not_exists=True)
            other.admin.repair("t")
            assert [task.data for task in other.tube("t").select()] == [0, 1, 2]


def test_session_numbers_wrap_and_skip_live_sessions(url: str, valkey: tubes.testing.LocalServer) -> None:
    with tubes.connect(url) as first, tubes.connect(url) as second:
        tube = first.create_tube("t")
        assert number_of(tube) == 1
        valkey.client().hset(port_of(tube).shared.key, "sessions", 2**27 - 2)
        assert number_of(second.tube("t")) == 2**27 - 1
        tube.put_many(range(3))
        numbers = []
        for _ in range(3):
            with tubes.connect(url) as other:
                task = take_task(other.tube("t"))
                numbers.append(number_of(other.tube("t")))
                mine = take_task(tube)
                task.release()
                mine.release()
        assert numbers == [2, 3, 4]
        assert TAKES * 2**27 == 2**53


def test_call_numbers_start_at_random_and_fit_in_a_double() -> None:
    before = next(script_call.numbers)
    script_call._begin_numbers()
    after = next(script_call.numbers)
    assert before != after
    assert all(10**15 <= number < 2**53 - 10**14 for number in (before, after))


def test_session_with_thousands_of_calls_leaves_no_fields(url: str, valkey: tubes.testing.LocalServer) -> None:
    client = valkey.client()

    async def burst() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.tube("t")
            await asyncio.gather(*(tube.put(number, key=str(number)) for number in range(3000)))
            assert len(fields(tube, client)) > 3000

    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put("first")
        before = fields(tube, client)
        asyncio.run(burst())
        assert fields(tube, client) == before


def test_expired_session_with_many_replies_leaves_no_fields(
    url: str, valkey: tubes.testing.LocalServer, clock: tubes.testing.ManualClock
) -> None:
    client = valkey.client()
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t")
        tube.put("first")
        before = fields(tube, client)

        async def burst() -> None:
            lost = tubes.aio.connect(url, clock=clock, session_ttl=30)
            there = await lost.tube("t")
            await asyncio.gather(*(there.put(number, key=str(number)) for number in range(2500)))
            await lost.admin.detach()

        asyncio.run(burst())
        clock.advance(31)
        assert tube.statistics().tasks["ready"] == 2501
        assert fields(tube, client) == before
