"""Addresses of a server: URLs, clients and invalid settings."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis

import tubes
from tests.support.taking import take_task
from tubes import ConnectionLost, DriverNotFound, InvalidOption, ServerRefused
from tubes.drivers import Ranked
from tubes.redis.transport import attempt
from tubes.redis.transport.server import locate
from tubes.testing import LocalServer


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Start a server on a port of loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    with LocalServer(port=number):
        yield number


def test_redis_client_over_tcp_can_be_used_to_connect(port: int) -> None:
    with redis.Redis(host="127.0.0.1", port=port) as client, tubes.connect(client) as queue:
        tube = queue.create_tube(uuid4().hex)
        tube.put({"a": 1})
        assert take_task(tube).data == {"a": 1}


@pytest.mark.parametrize(
    "url", ["redis://:wrong@127.0.0.1:{port}", "redis://127.0.0.1:{port}/9999", "redis://who:ever@127.0.0.1:{port}"]
)
def test_connect_raises_at_once_when_the_server_refuses(port: int, url: str) -> None:
    with pytest.raises(ServerRefused):
        tubes.connect(url.format(port=port))

    async def first_call() -> None:
        async with tubes.aio.connect(url.format(port=port)) as queue:
            await queue.tubes()

    with pytest.raises(ServerRefused):
        asyncio.run(first_call())


def test_error_of_a_signal_handler_passes_through_connect(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alarm(Exception):
        pass

    def interrupt(self: Any) -> None:
        raise Alarm

    monkeypatch.setattr(redis.Connection, "connect", interrupt)
    with pytest.raises(Alarm):
        tubes.connect(f"redis://127.0.0.1:{port}")


def test_unknown_url_setting_is_refused(port: int) -> None:
    for kind in ("redis://127.0.0.1:{}", "redis+cluster://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/service"):
        with pytest.raises(InvalidOption) as refused:
            tubes.connect(f"{kind.format(port)}?foo=1")
        assert "an unknown setting 'foo': known settings are client_name, codec, connect_timeout, db," in str(
            refused.value
        )
        assert refused.value.__cause__ is refused.value.__context__ is None


def test_a_url_may_give_the_arguments_of_connect(url: str) -> None:
    with tubes.connect(f"{url}&codec=raw&session_ttl=5&connect_timeout=2") as queue:
        tube = queue.create_tube("t")
        assert tube.put(b"\0").data == b"\0"
        assert queue._connection.store.lease == 5  # type: ignore[attr-defined]
    with (
        tubes.connect(f"{url}&codec=raw&session_ttl=5", codec="json", session_ttl=timedelta(seconds=6)) as queue,
        tubes.connect(url, session_ttl=6) as other,
    ):
        assert queue.tube("t").put("text").data == "text"
        assert queue._connection.store is other._connection.store  # type: ignore[attr-defined]
    for setting, rule in (
        ("session_ttl=0.01", "session_ttl=0.01: must be at least 0.1 seconds"),
        ("session_ttl=soon", "session_ttl='soon': must be a number of seconds"),
        ("connect_timeout=0", "connect_timeout=0.0: must be more than 0 seconds"),
        ("connect_timeout=nan", "connect_timeout=nan: must be from 0"),
        ("codec=pickle", "codec='pickle': must be"),
    ):
        with pytest.raises(InvalidOption, match=re.escape(rule)):
            tubes.connect(f"{url}&{setting}")


@pytest.mark.parametrize("connect", [tubes.connect, lambda url: asyncio.run(connect_async(url))], ids=["sync", "aio"])
@pytest.mark.parametrize("kind", ["redis://{}", "redis+cluster://{}", "redis+sentinel://{}/service"])
def test_connect_timeout_limits_the_first_connection(kind: str, connect: Callable[[str], object]) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionLost):
        connect(f"{kind.format('127.0.0.1:1')}?connect_timeout=0.2")
    assert time.monotonic() - began < 5


def test_connect_timeout_limits_the_discovery_of_a_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts connections, and never replies.
        began = time.monotonic()
        with pytest.raises(ConnectionLost):
            tubes.connect(f"redis+cluster://127.0.0.1:{silent.getsockname()[1]}?connect_timeout=0.2")
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("connect", [tubes.connect, lambda url: asyncio.run(connect_async(url))], ids=["sync", "aio"])
@pytest.mark.parametrize("timeout", [0.3, 0.05])
def test_connect_logs_that_a_server_does_not_reply(
    connect: Callable[[str], object], timeout: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tubes.redis.sessions.store.SILENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts connections, and never replies.
        place = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionLost):
            connect(f"{place}?connect_timeout={timeout}")
    messages = [record.getMessage() for record in caplog.records if "has not replied" in record.getMessage()]
    expected = f"{place} has not replied for 0.1 s; connect gives up after 0.3 s (connect_timeout)"
    assert messages == ([expected] if timeout == 0.3 else [])


def test_connect_logs_nothing_if_the_server_replies(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tubes.redis.sessions.store.SILENCE", 0.3)
    tubes.connect(url).close()
    time.sleep(0.4)
    assert not caplog.records


async def connect_async(url: str) -> object:
    return await tubes.aio.connect(url)


def test_awaiting_connect_raises_if_the_server_refuses(port: int, url: str) -> None:
    async def main() -> None:
        queue = await tubes.aio.connect(url)
        try:
            assert not queue.closed
            assert await queue is queue
            assert await queue.session() is not queue
        finally:
            await queue.close()
        refused = tubes.aio.connect(f"redis://:wrong@127.0.0.1:{port}")
        with pytest.raises(ServerRefused):
            await refused
        assert refused.closed

    asyncio.run(main())


def test_url_sets_the_timeout_of_one_connection_attempt() -> None:
    server, _ = locate("redis://localhost?socket_connect_timeout=0.5")
    made: list[dict[str, Any]] = []

    class Made:
        def __init__(self, **settings: Any) -> None:
            made.append(settings)

        def connect(self) -> None: ...

    pool: Any = server._pool  # type: ignore[attr-defined]
    pool.connection_class = Made
    server.connect("key")
    server.connect("key", 0.2)
    assert [settings["socket_connect_timeout"] for settings in made] == [0.5, 0.2]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@localhost:99999999", "redis://who:secret@localhost/x", "redis+cluster://:secret@localhost:bad",
        "redis+sentinel://who:secret@localhost", "rediss://:secret@[::1", "redis://:secret @localhost",
        "redis://:secret/@localhost", "nobody://:secret@localhost", "memory://:secret@localhost/x",
        "redis://127.0.0.1:0?password=secret", "redis://:secret@127.0.0.1:0",
    ],
)  # fmt: skip
def test_error_about_an_invalid_url_hides_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.0)
    with pytest.raises(ConnectionLost if "127.0.0.1:0" in url else InvalidOption) as refused:
        tubes.connect(url)
    assert "secret" not in str(refused.value)
    assert "***" in str(refused.value)


@pytest.mark.parametrize("rank_lua", ["pri +", "foo", "nil"])
def test_create_tube_refuses_invalid_rank_lua(url: str, rank_lua: str) -> None:
    driver = tubes.Driver("broken", options={"pri"}, rank=lambda task: task.pri, rank_lua=rank_lua)
    with tubes.connect(url) as queue:
        with pytest.raises(InvalidOption):
            queue.create_tube("t", driver)
        assert queue.tubes() == []


def test_tube_with_an_unregistered_order_is_refused(url: str) -> None:
    ranked = tubes.Driver("mine", options={"pri"}, rank=lambda task: -task.pri, rank_lua="-pri")
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31) as other:
        queue.create_tube("t", ranked)
        with pytest.raises(DriverNotFound, match="the driver 'mine' of this tube is not registered"):
            other.tube("t")
        other.admin.register_driver(tubes.Driver("mine", options={"pri"}, order="-id"))
        with pytest.raises(DriverNotFound, match="differs from the registered one"):
            other.tube("t")


def test_a_utube_may_have_an_empty_name(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "utube")
        for utube in ("", "", None, None):
            tube.put(utube, utube=utube)
        taken = [task.data for task in iter(lambda: tube.take(0), None)]
        assert taken == ["", None]
        tube.admin.release_all()
        for _ in range(4):
            task = take_task(tube)
            task.ack()


def test_many_asyncio_workers_share_one_tube(url: str) -> None:
    async def main() -> int:
        done = 0
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t")

            async def work() -> None:
                nonlocal done
                async for _ in tube:
                    done += 1
                    if done == 400:
                        await queue.close()

            workers = [asyncio.create_task(work()) for _ in range(100)]
            await asyncio.gather(*(tube.put(number) for number in range(400)))
            await asyncio.wait_for(asyncio.gather(*workers), 30)
        return done

    assert asyncio.run(main()) >= 400


def test_put_whose_rank_fails_is_refused_completely(url: str) -> None:
    def picky(task: Ranked) -> float:
        return task.pri

    driver = tubes.Driver("picky", options={"pri"}, rank=picky, rank_lua="pri <= 3 and 1 or nil")
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        tube.put("good", pri=1)
        with pytest.raises(ServerRefused):
            tube.put("bad", pri=9)
        assert tube.statistics().tasks["total"] == 1
        assert tube.put("good too", pri=1).id == 1


def test_cancelled_take_whose_reply_arrived_loses_no_task(url: str) -> None:
    async def main() -> tuple[int, int]:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t")
            for number in range(300):
                await tube.put(number)
            acked = 0

            async def work(number: int) -> None:
                nonlocal acked
                while True:
                    call = asyncio.ensure_future(tube.take(0))
                    for _ in range(number % 7):
                        await asyncio.sleep(0)
                    call.cancel()
                    try:
                        task = await call
                    except asyncio.CancelledError:
                        await asyncio.sleep(0.001)
                        task = await tube.take(0.2)
                    if task is None:
                        return
                    await task.ack()
                    acked += 1

            await asyncio.gather(*(work(number) for number in range(20)))
            await asyncio.sleep(0.1)
            return acked, (await tube.statistics()).tasks["taken"]

    acked, taken = asyncio.run(main())
    assert taken == 0
    assert acked > 200


def test_move_to_the_same_tube_is_refused(port: int) -> None:
    """The same tube may be reached by another URL."""
    with tubes.connect(f"redis://127.0.0.1:{port}") as queue, tubes.connect(f"redis://localhost:{port}/0") as other:
        tube = queue.create_tube("moved")
        tube.put(1)
        with pytest.raises(InvalidOption, match="must be another tube"):
            other.tube("moved").select("ready").move_to(tube)
        assert tube.statistics().calls["put"] == 1
