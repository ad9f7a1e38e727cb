"""Connections over TLS: to a server with TLS if one is installed, and through a TLS proxy."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.servers import SocketServer, free_port
from tubes import ConnectionLost, ServerRefused
from tubes.redis.transport import attempt
from tubes.testing import LocalServer, server_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.ledger import Ledger

#: A self-signed certificate for localhost, and its key.
CERTIFICATE = Path(__file__).parent / "localhost.pem"


class TlsProxy(SocketServer):
    """A proxy on loopback that accepts TLS and connects to a server without it. `asks`: for a client certificate."""

    def __init__(self, server: LocalServer, *, asks: bool = False) -> None:
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE)
        if asks:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(CERTIFICATE)
        self._clients: set[socket.socket] = set()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        super().__init__(listener)

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, suppress(OSError):
            secured = self._context.wrap_socket(client, server_side=True)
            self._clients.add(secured)
            with secured:
                server.connect(str(self._server.socket))
                while True:
                    # `select` does not see bytes that are already decrypted.
                    readable = [secured] if secured.pending() else select.select([secured, server], [], [])[0]
                    for one, other in ((secured, server), (server, secured)):
                        if one in readable:
                            some = one.recv(65536)
                            if not some:
                                return
                            other.sendall(some)

    def cut(self) -> None:
        """Cut all connections."""
        for client in list(self._clients):
            self._clients.discard(client)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop accepting connections and cut all existing ones."""
        super().close()
        self.cut()


def speaks_tls(program: str | None) -> bool:
    """Return True if this server was built with TLS."""
    if program is None:
        return False
    port = free_port()
    try:
        LocalServer(program, tls_port=port, **keys()).close()
    except ServerRefused:
        return False
    return True


def keys() -> dict[str, Any]:
    """Return the settings of a server with TLS."""
    return {
        "tls_cert_file": CERTIFICATE, "tls_key_file": CERTIFICATE, "tls_ca_cert_file": CERTIFICATE,
        "tls_auth_clients": "no",
    }  # fmt: skip


@pytest.fixture(scope="module", params=["proxy", "valkey", "redis"])
def port(request: pytest.FixtureRequest, valkey: LocalServer) -> Iterator[int]:
    """Start a TLS server or proxy and yield its port on loopback."""
    with ExitStack() as stack:
        if request.param == "proxy":
            yield stack.enter_context(TlsProxy(valkey)).port
            return
        program = server_program(request.param)
        if not speaks_tls(program):
            pytest.skip(f"{request.param} is not installed, or was built without TLS")
        port = free_port()
        stack.enter_context(LocalServer(request.param, tls_port=port, **keys()))
        yield port


@pytest.fixture
def secure(port: int) -> str:
    """Return the URL of an empty, separate key space."""
    return f"rediss://127.0.0.1:{port}?ssl_ca_certs={CERTIFICATE}&prefix={uuid4().hex}"


def test_threads_put_take_and_wait_over_tls(secure: str, ledger: Ledger) -> None:
    events: list[str] = []
    taken: list[Any] = []
    with tubes.connect(secure) as queue, tubes.connect(secure, session_ttl=31.0) as other:
        tube = queue.create_tube("load", "utubettl")
        tube.on_task_change(lambda task, event: events.append(event))
        for number in range(50):
            ledger.put(tube, str(number), utube=str(number % 3))
        while (task := tube.take(timeout=0)) is not None:
            ledger.work(task)
        assert len(ledger.done) == 50
        assert eventually(lambda: events.count("delete") == 50)
        for number in range(5):
            thread = threading.Thread(target=lambda: taken.append(tube.take(timeout=20)))
            thread.start()
            assert eventually(lambda: tube.statistics().waiting == 1)
            other.tube("load").put("x" * 200_000 + str(number))
            thread.join()
            assert taken[-1].data.endswith(f"x{number}")
            taken[-1].ack()
        assert tube.take(timeout=0.01) is None
        ledger.check(tube)


def test_event_loops_put_take_and_wait_over_tls(secure: str, ledger: Ledger) -> None:
    async def main() -> None:
        async with tubes.aio.connect(secure) as queue, tubes.aio.connect(secure, session_ttl=31.0) as another:
            tube, others = await queue.create_tube("load"), await another.tube("load")

            async def take() -> None:
                for _ in range(10):
                    task = await tube.take(timeout=20)
                    assert task is not None
                    ledger.record_take(task.id, task.attempts, task.data)
                    await task.ack()
                    ledger.record_done(task.id, task.attempts)

            takers = [asyncio.create_task(take()) for _ in range(5)]
            for number in range(50):
                ledger.record_put(str(number), (await others.put(str(number))).id)
            await asyncio.gather(*takers)
            gives_up = asyncio.create_task(tube.take())
            await asyncio.sleep(0.05)
            gives_up.cancel()
            ledger.record_put("last", (await others.put("last")).id)

    asyncio.run(main())
    with tubes.connect(secure) as queue:
        assert eventually(lambda: queue.tube("load").statistics().tasks["taken"] == 0)
        ledger.check(queue.tube("load"))


def test_untrusted_certificate_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.1)
    with pytest.raises(ConnectionLost, match="certificate"):
        tubes.connect(f"rediss://127.0.0.1:{port}")


def test_all_connections_use_the_client_certificate(valkey: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with TlsProxy(valkey, asks=True) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={CERTIFICATE}&prefix={uuid4().hex}"
        login = f"{url}&ssl_certfile={CERTIFICATE}&ssl_keyfile={CERTIFICATE}"
        events: list[str] = []
        with tubes.connect(login, session_ttl=0.6) as queue, tubes.connect(login, session_ttl=0.7) as other:
            tube = queue.create_tube("load", "fifottl")
            tube.on_task_change(lambda task, event: events.append(event))
            with ThreadPoolExecutor() as pool:
                taken = pool.submit(tube.take, timeout=20)
                assert eventually(lambda: tube.statistics().waiting == 1)
                other.tube("load").put("job", delay=0.1)
                task = taken.result()
            assert task is not None
            with valkey.client() as client:
                leases = f"{port_of(tube).shared.key}:leases"

                def last_end() -> float:
                    return float(client.zrange(leases, -1, -1, withscores=True)[0][1])

                before = last_end()
                assert eventually(lambda: last_end() > before)  # It is renewed.
            task.ack()
            assert eventually(lambda: events.count("delete") == 1)
        monkeypatch.setattr(attempt, "PATIENCE", 0.1)
        for _ in range(5):  # Either side may notice first that the other one has closed the connection.
            with pytest.raises(ConnectionLost, match="certificate"):
                tubes.connect(url, connect_timeout=0.1)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"ssl_ca_certs": "missing.pem"}, "(ssl_ca_certs): [Errno 2]"),
        ({"ssl_ca_certs": __file__}, "(ssl_ca_certs): [X509"),
        ({"ssl_certfile": "missing.pem"}, "(ssl_certfile, ssl_keyfile, ssl_password): [Errno 2]"),
        ({"ssl_certfile": CERTIFICATE, "ssl_keyfile": __file__}, "(ssl_certfile, ssl_keyfile, ssl_password): [SSL"),
        ({"ssl_keyfile": CERTIFICATE, "ssl_password": "secret"}, "(ssl_certfile, ssl_keyfile, ssl_password)"),
    ],
)
def test_unusable_files_are_refused_at_once(settings: dict[str, object], names: str) -> None:
    with pytest.raises(tubes.InvalidOption, match=re.escape(names)) as caught:
        tubes.connect(f"rediss://127.0.0.1:{free_port()}?{urlencode(settings)}")
    assert "secret" not in str(caught.value)


@pytest.mark.full
def test_cut_tls_connections_lose_no_task(valkey: LocalServer, ledger: Ledger, factor: int) -> None:
    with TlsProxy(valkey) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={CERTIFICATE}&prefix={uuid4().hex}"
        with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as other:
            tube, others = queue.create_tube("load"), other.tube("load")

            def take() -> None:
                while not stop.is_set():
                    task = tube.take(timeout=0.2)
                    if task is not None:
                        ledger.work(task)

            stop = threading.Event()
            thread = threading.Thread(target=take)
            thread.start()
            for number in range(100 * factor):
                ledger.put(others, str(number))
                if number % 10 == 0:
                    proxy.cut()
            assert eventually(lambda: len(ledger.done) == 100 * factor)
            stop.set()
            thread.join()
            assert not ledger.unknown
            ledger.check(tube)
