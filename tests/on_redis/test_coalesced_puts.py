"""Puts of many asyncio tasks in one turn of the loop: one request to the server, with a result for each caller."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

import tubes
import tubes.aio
from tests.support.internals import port_of
from tests.support.proxy import Proxy
from tubes import (
    AsyncTask,
    CodecError,
    ConnectionLost,
    OptionNotSupported,
    QueueClosed,
    QueueForked,
    ServerRefused,
    TubeNotFound,
)
from tubes.drivers import Driver, Ranked
from tubes.redis.port import coalesced_puts
from tubes.redis.transport import attempt

if TYPE_CHECKING:
    from tubes.testing import LocalServer

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "fifo": [{}, {"max_attempts": 3}, {"context": {"a": "b"}}, {}],
    "fifottl": [{}, {"ttl": 900}, {}, {"ttr": 60, "pri": 7}, {"delay": 900}, {"ttl": 900, "ttr": 60, "pri": 1}],
    "utube": [{}, {"utube": "ä" * 300}, {"utube": "b"}, {"utube": "b"}],
    "utubettl": [{"utube": "a"}, {"utube": "a", "pri": 1, "ttl": 900, "ttr": 60}, {}, {"delay": 900, "utube": "c"}],
}


def strip_times(task: Any) -> tuple[Any, ...]:
    """Return a task without its times."""
    facts = (task.id, task.state.letter, task.data, task.utube, task.pri, task.attempts, task.ttl, task.ttr)
    return *facts, task.max_attempts, task.context, task.created_now


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of tasks of each request."""
    sizes: list[int] = []
    pack = coalesced_puts.CoalescedPuts.pack

    def pack_and_count(self: coalesced_puts.CoalescedPuts, server: Any, **how: bool) -> bytes:
        if not self.args:
            sizes.append(len(self._futures))
        return pack(self, server, **how)

    monkeypatch.setattr(coalesced_puts.CoalescedPuts, "pack", pack_and_count)
    return sizes


def run(url: str, act: Callable[[tubes.aio.AsyncQueue, tubes.aio.AsyncTube], Awaitable[Any]], **tube: Any) -> Any:
    """Run a function with a new tube whose session is open."""

    async def main() -> Any:
        async with tubes.aio.connect(url) as queue:
            made = await queue.create_tube("t", **tube)
            assert await made.take(0) is None
            return await act(queue, made)

    return asyncio.run(main())


@pytest.mark.parametrize("driver", OPTIONS)
def test_coalesced_puts_make_the_same_tasks_as_single_puts(url: str, driver: str, sizes: list[int]) -> None:
    async def act(_: Any, tube: tubes.aio.AsyncTube) -> list[Any]:
        count = len(OPTIONS[driver])
        alone = [await tube.put(number, **options) for number, options in enumerate(OPTIONS[driver])]
        assert sizes == [1] * count
        together = await asyncio.gather(*(tube.put(n, **options) for n, options in enumerate(OPTIONS[driver])))
        assert sizes[count:] == [count]
        for one, other in zip(alone, together, strict=True):
            assert one is not None
            assert other is not None
            assert strip_times(one)[1:] == strip_times(other)[1:]
            assert other == await tube.peek(other)
        assert [task.id for task in (*alone, *together) if task is not None] == list(range(2 * count))
        assert (await tube.statistics()).calls["put"] == 2 * count
        return together

    run(url, act, driver=driver)


def test_coalesced_calls_have_bounded_size(url: str, sizes: list[int]) -> None:
    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        tasks = await asyncio.gather(*(tube.put(number) for number in range(coalesced_puts.MOST * 2 + 5)))
        assert [task.data for task in tasks if task is not None] == list(range(coalesced_puts.MOST * 2 + 5))
        assert sizes == [coalesced_puts.MOST, coalesced_puts.MOST, 5]
        sizes.clear()
        large = "x" * (coalesced_puts.BYTES // 2)
        await asyncio.gather(*(tube.put(large) for _ in range(5)))
        assert sizes == [2, 2, 1]

    run(url, act)


def test_refused_put_does_not_affect_coalesced_puts(url: str) -> None:
    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        results = await asyncio.gather(
            tube.put("a"), tube.put(object()), tube.put("b", utube="x"), tube.put("c"), return_exceptions=True
        )
        assert [type(result) for result in results[1:3]] == [CodecError, OptionNotSupported]
        assert [task.data async for task in tube.select()] == ["a", "c"]

    run(url, act)


def test_failing_rank_refuses_only_its_own_put(url: str) -> None:
    def picky(task: Ranked) -> float:
        return task.pri

    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        puts = (tube.put(number, pri=pri) for number, pri in enumerate([1, 9, 2, 9]))
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert [isinstance(result, ServerRefused) for result in results] == [False, True, False, True]
        assert [task.data async for task in tube.select()] == [0, 2]

    run(url, act, driver=Driver("picky", options={"pri"}, rank=picky, rank_lua="pri <= 3 and 1 or nil"))


def test_puts_with_key_or_capacity_are_not_coalesced(url: str, sizes: list[int]) -> None:
    async def put_keyed(_: Any, tube: tubes.aio.AsyncTube) -> None:
        tasks = await asyncio.gather(*(tube.put(number, key="k") for number in range(3)))
        assert [task.id for task in tasks if task is not None] == [0, 0, 0]

    async def put_full(_: Any, tube: tubes.aio.AsyncTube) -> None:
        results = await asyncio.gather(*(tube.put(number, timeout=0) for number in range(5)))
        assert [result is None for result in results] == [False, False, False, True, True]

    run(url, put_keyed)
    with tubes.connect(url) as queue:
        queue.tube("t").drop()
    run(url, put_full, capacity=3)
    assert sizes == []


def test_coalesced_puts_reopen_an_ended_session_and_put_once(url: str) -> None:
    async def act(queue: tubes.aio.AsyncQueue, tube: tubes.aio.AsyncTube) -> None:
        for turn in range(3):
            port: Any = tube._port
            # Simulate a session that the server has ended.
            port.session = port.session._replace(token=port.session.token[::-1])
            tasks = await asyncio.gather(*(tube.put((turn, each)) for each in range(7)))
            assert [task.data for task in tasks if task is not None] == [[turn, each] for each in range(7)]
        assert (await tube.statistics()).calls["put"] == 21

    run(url, act)


def test_coalesced_puts_into_a_dropped_tube_raise_tube_not_found(url: str) -> None:
    async def act(queue: tubes.aio.AsyncQueue, tube: tubes.aio.AsyncTube) -> None:
        with tubes.connect(url) as other:
            other.tube("t").drop()
            other.create_tube("t")
        results = await asyncio.gather(*(tube.put(number) for number in range(4)), return_exceptions=True)
        assert [type(result) for result in results] == [TubeNotFound] * 4
        new = await queue.tube("t")
        assert (await new.statistics()).tasks["total"] == 0

    run(url, act)


def test_puts_pending_at_close_are_done_or_raise(url: str) -> None:
    async def act(queue: tubes.aio.AsyncQueue, tube: tubes.aio.AsyncTube) -> list[Any]:
        puts = [asyncio.ensure_future(tube.put(number)) for number in range(6)]
        await queue.close()
        results = await asyncio.gather(*puts, tube.put("late"), return_exceptions=True)
        for result in results:
            assert isinstance(result, AsyncTask | QueueClosed | ConnectionLost)
        return results

    results = run(url, act)
    with tubes.connect(url) as queue:
        there = [task.data for task in queue.tube("t").select()]
    assert there == [result.data for result in results if isinstance(result, AsyncTask)]


def test_cancelled_put_does_not_cancel_coalesced_puts(url: str) -> None:
    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        for turns in range(6):
            puts = [asyncio.ensure_future(tube.put(number)) for number in range(5)]
            for _ in range(turns):
                await asyncio.sleep(0)
            puts[0].cancel()
            puts[3].cancel()
            results: list[Any] = await asyncio.gather(*puts, return_exceptions=True)
            assert [results[number].data for number in (1, 2, 4)] == [1, 2, 4]
            there = [task.data async for task in tube.select()]
            assert [number for number in there if number not in (0, 3)] == [1, 2, 4]
            await tube.truncate()
        # Cancel all of them: later puts must still be sent.
        puts = [asyncio.ensure_future(tube.put(number)) for number in range(5)]
        await asyncio.sleep(0)
        for put in puts:
            put.cancel()
        await asyncio.gather(*puts, return_exceptions=True)
        task = await tube.put("after")
        assert task is not None
        assert task.data == "after"

    run(url, act)


def test_puts_of_different_loops_and_tubes_are_not_coalesced(url: str, sizes: list[int]) -> None:
    numbers = itertools.count()

    async def put(both: list[tubes.aio.AsyncTube]) -> None:
        for _ in range(20):
            await asyncio.gather(*(tube.put(next(numbers)) for tube in both * 5))

    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            both = [await queue.create_tube(name) for name in "ab"]
            there = asyncio.run_coroutine_threadsafe(put(both), other)
            await asyncio.gather(put(both), asyncio.wrap_future(there))

    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    asyncio.run(main())
    other.call_soon_threadsafe(other.call_later, 0.1, other.stop)
    thread.join()
    other.close()
    with tubes.connect(url) as seen:
        there = [task.data for name in "ab" for task in seen.tube(name).select()]
    assert sorted(there) == list(range(400))
    assert max(sizes) == 5


def test_awaited_puts_keep_their_order(url: str) -> None:
    """A caller that awaits each put before the next one gets its tasks in this order, even with other callers."""

    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        async def put(name: int) -> None:
            for number in range(30):
                await tube.put([name, number])

        await asyncio.gather(*(put(name) for name in range(20)))
        there = [task.data async for task in tube.select()]
        for name in range(20):
            assert [number for other, number in there if other == name] == list(range(30))

    run(url, act)


ORDERS: dict[str, tuple[Callable[[tubes.aio.AsyncTube], Awaitable[Any]], list[str]]] = {
    "a put with a key": (lambda tube: tube.put("b", key="k"), ["a", "b", "c"]),
    "a batch": (lambda tube: tube.put_many(["b"]), ["a", "b", "c"]),
    "truncate": (lambda tube: tube.truncate(), ["c"]),
    "kick": (lambda tube: tube.select("buried", limit=3).kick(), ["a", "c"]),
}


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("cut", [False, True], ids=["connected", "connecting"])
def test_coalesced_put_does_not_overtake_earlier_calls(url: str, method: str, cut: bool) -> None:
    between, there = ORDERS[method]

    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        # The first call may have to load the library, and then runs after later ones.
        await tube.put("warm")
        await between(tube)
        await tube.truncate()
        if cut:
            (line,) = port_of(tube).connection.channels.values()
            for pipe in line._pipes.values():
                pipe.close()
            await asyncio.sleep(0)
        await asyncio.gather(tube.put("a"), between(tube), tube.put("c"))
        assert [task.data async for task in tube.select()] == there

    run(url, act)


def test_coalesced_puts_keep_their_order_while_the_script_is_loaded(valkey: LocalServer, url: str) -> None:
    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        with valkey.client() as client:
            client.script_flush()
        await tube.put("first")
        await tube.truncate()
        await asyncio.gather(tube.put("a"), tube.put("b"), tube.truncate())
        assert [task async for task in tube.select()] == []

    run(url, act)


def test_cancelled_puts_during_an_outage_do_not_block_later_ones(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.2)

    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        (line,) = port_of(tube).connection.channels.values()
        server, connect = port_of(tube).connection.store.server, port_of(tube).connection.store.server.connect

        def refuse(*_: object) -> None:
            raise ConnectionLost(url=url, why="of a test")

        monkeypatch.setattr(server, "connect", refuse)
        for pipe in line._pipes.values():
            pipe.close()
        await asyncio.sleep(0)
        puts = [asyncio.ensure_future(tube.put(number)) for number in range(3)]
        await asyncio.sleep(0.05)
        for put in puts:
            put.cancel()
        await asyncio.gather(*line._connecting.values())
        with pytest.raises(ConnectionLost):
            await tube.put("too soon")
        monkeypatch.setattr(server, "connect", connect)
        task = await asyncio.wait_for(tube.put("later"), 5)
        assert task is not None
        assert [each.data async for each in tube.select()] == ["later"]

    run(url, act)


def test_refused_put_after_a_cut_connection_does_not_affect_others(valkey: LocalServer, url: str) -> None:
    def picky(task: Ranked) -> float:
        return task.pri

    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        await tube.put("first", pri=0)
        left = [b"FCALL"]

        def cut(request: bytes) -> bool:
            return bool(left) and left[0] in request and bool(left.pop())

        proxy.cuts = cut
        puts = (tube.put(number, pri=pri) for number, pri in enumerate([1, 9, 2]))
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert not left
        assert [isinstance(result, ServerRefused) for result in results] == [False, True, False]
        assert sorted([str(task.data) async for task in tube.select()]) == ["0", "2", "first"]

    with Proxy(valkey) as proxy:
        driver = Driver("picky", options={"pri"}, rank=picky, rank_lua="pri <= 3 and 1 or nil")
        run(proxy.url + url[url.index("?") :], act, driver=driver)


def test_put_in_a_forked_child_raises_queue_forked(url: str) -> None:
    async def act(_: Any, tube: tubes.aio.AsyncTube) -> None:
        put = tube.put("child's")
        child = os.fork()
        if not child:
            try:
                put.send(None)
            except QueueForked:
                os._exit(7)
            finally:
                os._exit(1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        put.close()

    run(url, act)
