"""Connections with wrong or garbled replies: each request is still executed once."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.proxy import Proxy
from tests.support.servers import SocketServer, unix_listener
from tests.support.taking import take_task
from tubes import ConnectionLost, Task
from tubes.redis.transport import attempt, server, wire
from tubes.redis.transport.wire import hiredis
from tubes.spark.server.bulk_read import BulkReader

if TYPE_CHECKING:
    from tubes.testing import LocalServer

#: Replacements of a reply, as long as several replies, so that a client that reads on cannot recover by accident.
FAKES: dict[str, Callable[[bytes], bytes]] = {
    "a balancer": lambda reply: b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
    "no length": lambda reply: b"$abc\r\n" + reply,
    "no number": lambda reply: b":abc\r\n" + reply,
    "too deep": lambda reply: b"*1\r\n" * 5000 + reply,
    "bytes": lambda reply: b"\x00\xff\xfe\r\n" + reply,
    "one too many": lambda reply: reply + b":7\r\n",
    "one before": lambda reply: b"*1\r\n:7\r\n" + reply,
    "longer than it says": lambda reply: b"$3\r\nabcdef\r\n",
}
if hiredis is not None:  # redis-py's own parser would wait for the missing rest.
    FAKES["too many"] = lambda reply: b"*4000000000\r\n" + reply


class ReplyFaker:
    """Replace the next reply to a request that contains some bytes."""

    def __init__(self, proxy: Proxy, fake: Callable[[bytes], bytes]) -> None:
        self._fake = fake
        self._pattern: bytes | None = None
        self.used = 0
        proxy.lies = self._choose

    def _choose(self, request: bytes) -> Callable[[bytes], bytes] | None:
        if self._pattern is None or self._pattern not in request:
            return None
        self._pattern = None
        self.used += 1
        return self._fake

    def next(self, having: bytes = b"FCALL") -> None:
        """Replace the reply to the next such request."""
        assert self._pattern is None, "the last replacement was not used"
        self._pattern = having


@pytest.fixture(params=FAKES)
def faker(proxy: Proxy, request: pytest.FixtureRequest) -> ReplyFaker:
    return ReplyFaker(proxy, FAKES[request.param])


@pytest.mark.sample(4)
def test_call_with_garbled_reply_returns_its_result(proxied_url: str, faker: ReplyFaker) -> None:
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load", "fifottl", ttr=60)
        ids = []
        for name in "abcd":
            faker.next()
            ids.append(tube.put(name).id)
        assert ids == [0, 1, 2, 3]
        faker.next()
        task = take_task(tube)
        assert (task.id, task.attempts) == (0, 1)
        faker.next()
        assert task.touch(5).ttr == 65
        faker.next()
        following: Any = tube._port.next(task)
        assert following is not None
        assert following.id == 1
        faker.next()
        assert following.ack().state == "done"
        faker.next()
        assert [task.id for task in tube.put_many(["e", "f"])] == [4, 5]
        faker.next()
        assert [task.id for task in tube.take_many(2)] == [2, 3]
        faker.next()
        assert tube.ack_many([2, 3]) == {2: True, 3: True}
        faker.next()
        assert tube.bury(4).state == "buried"
        faker.next()
        assert tube.select("buried", limit=5).kick() == 1
        faker.next()
        counts = tube.statistics().calls
        assert {name: count for name, count in counts.items() if count} == {
            "put": 6, "take": 4, "touch": 1, "ack": 4, "bury": 1, "kick": 1,
        }  # fmt: skip
    assert faker.used == 14


@pytest.mark.full
def test_event_loop_with_garbled_replies_does_everything_once(proxied_url: str, faker: ReplyFaker) -> None:
    async def main() -> None:
        async with tubes.aio.connect(proxied_url) as queue:
            tube = await queue.create_tube("load")
            faker.next()
            assert (await tube.put("alone")).id == 0
            faker.next()
            putting = asyncio.gather(*(tube.put(number) for number in range(20)))
            looking = asyncio.create_task(tube.statistics())
            assert sorted(task.id for task in await putting) == list(range(1, 21))
            await looking
            faker.next()
            task = await tube.take(timeout=0)
            assert task is not None
            faker.next()
            await task.ack()
            faker.next()
            assert len(await tube.take_many(30)) == 20
            counts = (await tube.statistics()).calls
            assert (counts["put"], counts["take"], counts["ack"]) == (21, 21, 1)

    asyncio.run(main())
    assert faker.used == 5


def test_waiter_gets_its_task_despite_a_garbled_reply(proxied_url: str, valkey: LocalServer, faker: ReplyFaker) -> None:
    taken: list[Task | None] = []
    with (
        tubes.connect(proxied_url) as queue,
        tubes.connect(proxied_url.replace(proxied_url.partition("?")[0], valkey.url)) as other,
    ):
        tube, others = queue.create_tube("load"), other.tube("load")
        faker.next(b"BZPOPMIN")
        thread = threading.Thread(target=lambda: taken.append(tube.take(timeout=20)))
        thread.start()
        assert eventually(lambda: others.statistics().waiting == 1)
        others.put("job")
        thread.join()
        assert taken[0] is not None
        assert taken[0].ack().state == "done"
        assert faker.used == 1
        assert others.statistics().calls["take"] == others.statistics().calls["ack"] == 1


def test_connection_with_garbled_handshake_is_reopened(proxied_url: str, faker: ReplyFaker) -> None:
    faker.next(b"TIME")
    with tubes.connect(proxied_url) as queue:
        faker.next(b"fifo")
        tube = queue.create_tube("load")
        faker.next(b"SUBSCRIBE")
        events: list[int] = []
        with suppress(ConnectionLost):
            tube.on_task_change(lambda task, event: events.append(task.id))
        tube.on_task_change(lambda task, event: events.append(task.id))
        tube.put("job")
        assert eventually(lambda: events == [0]), events


def test_read_with_garbled_reply_is_repeated(proxied_url: str, faker: ReplyFaker) -> None:
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load")
        tube.put_many(["a", "b"])
        faker.next(b"HMGET")
        (part,) = BulkReader(tube).read_range(0, 2)
        assert [row.data for row in part.rows()] == [b'"a"', b'"b"']
    assert faker.used == 1


def test_listener_survives_garbled_and_foreign_messages(proxied_url: str, proxy: Proxy, valkey: LocalServer) -> None:
    events: list[int] = []
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load")
        tube.on_task_change(lambda task, event: events.append(task.id))
        channel = f"{port_of(tube).shared.key}:events"
        with valkey.client() as client:
            for foreign in ("", "hello", "put x y z 1 2", "put 1 r 1 -1 short", b"\xff" * 9):
                assert client.publish(channel, foreign) == 1
        tube.put("job")
        assert eventually(lambda: events == [0]), events
        # Simulate a lost connection: the next message is invalid.
        proxy.lies = lambda request: (lambda reply: b"nonsense\r\n") if b"PING" in request else None
        port: Any = tube._port
        port.shared.subscription._wire.send(wire.pack("PING"))
        before = port.shared.subscription._wire
        assert eventually(lambda: port.shared.subscription._wire not in (None, before))
        tube.put("job")
        assert eventually(lambda: events == [0, 1]), events


class Balancer(SocketServer):
    """A server that replies to all requests with an HTML page."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix://{folder / 's'}"
        super().__init__(unix_listener(str(folder / "s")))

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(65536)
            client.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n<html>no server is left</html>")


@pytest.fixture
def balancer(valkey: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Balancer]:
    monkeypatch.setattr(attempt, "PATIENCE", 0.5)
    folder = Path(valkey.folder) / "balancer"
    folder.mkdir(exist_ok=True)
    with Balancer(folder) as made:
        yield made
    (folder / "s").unlink()


def test_connecting_to_another_kind_of_server_raises_connection_lost(balancer: Balancer) -> None:
    with pytest.raises(ConnectionLost):
        tubes.connect(balancer.url)

    async def main() -> None:
        with pytest.raises(ConnectionLost):
            await tubes.aio.connect(balancer.url)
        with pytest.raises(ConnectionLost):
            await tubes.aio.connect(balancer.url).create_tube("load")

    asyncio.run(main())


@pytest.mark.full
def test_frozen_server_raises_connection_lost_and_runs_calls_once(
    own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "REPLY_TIMEOUT", 0.5)
    for setting in ("socket_connect_timeout", "socket_timeout"):
        monkeypatch.setitem(server._SETTINGS, setting, 0.5)
    monkeypatch.setattr(attempt, "PATIENCE", 0.5)
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        tube.put("held")
        task = take_task(tube)
        own_server.signal(SIGSTOP)
        try:
            for call in (lambda: tube.put("job"), task.ack, lambda: tube.put_many(["a", "b"]), lambda: tube.take(20)):
                with pytest.raises(ConnectionLost):
                    call()
        finally:
            own_server.signal(SIGCONT)
        tube.put("last")
        # Requests that reached the server are executed once when it continues.
        counts = tube.statistics()
        assert counts.calls["put"] in (3, 5)
        assert counts.calls["ack"] <= 1
        assert counts.tasks["total"] == counts.calls["put"] - counts.calls["ack"]


def test_patched_socket_is_recognized_as_nonblocking() -> None:
    """gevent's socket looks like a normal one."""

    class Patched(socket.socket):
        def settimeout(self, value: float | None) -> None:
            super().settimeout(0.0)

    ours, theirs = socket.socketpair()
    patched = Patched(fileno=ours.detach())
    with patched, theirs:
        assert not wire._blocks(patched)
        assert wire._blocks(theirs)


@pytest.mark.full
def test_garbled_replies_are_handled_without_hiredis(request: pytest.FixtureRequest) -> None:
    if hiredis is None:
        return
    blocked = "import sys, pytest; sys.modules['hiredis'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    words = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", str(Path(__file__))]
    run = subprocess.run(
        [sys.executable, "-c", blocked, *words],
        cwd=request.config.rootpath, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-5000:]
