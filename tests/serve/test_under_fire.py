"""The service with hostile clients, broken networks and failing backends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

import tubes
from tests.contract import bench
from tests.contract.bench import eventually
from tests.support.served import Served
from tubes.serve import Limits, connections, create_app
from tubes.serve.app import App
from tubes.serve.native import OPERATIONS, streams
from tubes.serve.rates import Rate
from tubes.serve.server import Listen, _make_server  # pyright: ignore[reportPrivateUsage]
from tubes.serve.tokens import Grant, Tokens
from tubes.testing import LocalServer

HEAD = b"%b %b HTTP/1.1\r\nhost: localhost\r\n"


def request(method: str, path: str, body: bytes = b"") -> bytes:
    return HEAD % (method.encode(), path.encode()) + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def ready(served: Served) -> bool:
    return served.client.get("/health/ready", timeout=30).status_code == 200


@pytest.mark.full
def test_shutdown_replies_to_all_polls() -> None:
    with Served("--url", "memory://", "--no-access-log") as served:
        served.client.put("/v1/_/tubes/mail")
        served.client.put("/v1/_/tubes/full", json={"options": {"capacity": 1}})
        served.client.post("/v1/_/tubes/full/tasks", json={"data": 1})
        take = request("POST", "/v1/_/tubes/mail/take", b'{"wait": 300}')
        put = request("POST", "/v1/_/tubes/full/tasks", b'{"data": 2, "timeout": 300}')

        async def say(text: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(text)
            received = await reader.read()
            writer.close()
            return received.partition(b"\r\n")[0]

        async def main() -> list[bytes]:
            polls = [asyncio.create_task(say(text)) for text in (put, put[:-1], *[take] * 1000)]
            async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
                while (await client.get("/v1/_/tubes/mail")).json()["waiting"] < 1000:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            served.process.terminate()
            return await asyncio.gather(*polls)

        full, half, *polled = asyncio.run(main())
        assert (full, half) == (b"HTTP/1.1 503 Service Unavailable", b"")
        assert set(polled) == {b"HTTP/1.1 204 No Content"}
        assert served.process.wait(30) == 0


@pytest.mark.full
def test_slow_or_oversized_requests_are_cut_off(tmp_path: Path) -> None:
    options = ("--headers-within", 0.3, "--body-within", 0.6, "--max-body", 1000, "--read-within", 0.3)
    with Served(*options, cwd=tmp_path, env={"TUBES_URL": ""}) as served:
        assert "serving memory:// (no --url is given: tasks are lost at the end" in served.stderr_lines[0]
        served.client.put("/v1/_/tubes/mail")
        whole = request("POST", "/v1/_/tubes/mail/tasks", b'{"data": 1}')
        head = whole.partition(b"\r\n\r\n")[0]
        for part in (b"", b"POST", head, head + b"\r\n\r\n", whole[:-1], whole + head):
            with socket.create_connection(("127.0.0.1", served.port), 30) as one:
                one.sendall(part)
                received = b"".join(iter(lambda: one.recv(4096), b""))
                assert received.count(b"HTTP/1.1 201") == part.count(whole)
        # Sending single bytes does not extend the time limit.
        with socket.create_connection(("127.0.0.1", served.port), 30) as one:
            sent = 0
            with suppress(OSError):
                while sent < 1000:
                    one.sendall(b"a")
                    sent += 1
                    time.sleep(0.05)
            assert sent < 1000
        # Endless headers and trailers are refused.
        chunked = HEAD % (b"POST", b"/v1/_/tubes/mail/tasks") + b"transfer-encoding: chunked\r\n\r\n0\r\n"
        for begin in (head + b"\r\n", chunked):
            with socket.create_connection(("127.0.0.1", served.port), 30) as one:
                one.sendall(begin + b"".join(b"x-%d: %060000d\r\n" % (number, 0) for number in range(100)))
                assert one.recv(100).startswith(b"HTTP/1.1 431")
        # The idle connection of the client is still open.
        assert served.client.get("/v1/_/tubes/mail").json()["tasks"]["ready"] == 1
        # A body that is too long is refused while it is read.
        for head in (b"content-length: 9999999999999999\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", served.port), 30) as one:
                one.sendall(HEAD % (b"POST", b"/v1/_/tubes/t/tasks") + head)
                if b"chunked" in head:
                    one.sendall(b"3e8\r\n%b\r\n" % (b" " * 1000) + b"1\r\nx\r\n")
                received = b"".join(iter(lambda: one.recv(4096), b""))
            assert received.startswith(b"HTTP/1.1 413")
        # A client that does not read is disconnected.
        for _ in range(50):
            served.client.post("/v1/_/tubes/mail/tasks/raw", content=b"x" * 990)
        with socket.create_connection(("127.0.0.1", served.port), 30) as one:
            count = 400
            one.sendall(request("GET", "/v1/_/tubes/mail/tasks") * count)
            time.sleep(1)
            replies = 0
            with suppress(OSError):
                while chunk := one.recv(2**16):
                    replies += chunk.count(b"HTTP/1.1 200")
            assert 0 < replies < count
        assert ready(served)


def test_garbage_ends_its_connection_only(served: Served) -> None:
    packed = HEAD % (b"POST", b"/v1/_/tubes/mail/tasks/raw") + b"content-encoding: gzip\r\ncontent-length: 0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), 30) as one:
        one.sendall(packed)
        assert one.recv(100).startswith(b"HTTP/1.1 415")
    for garbage in (b"\0" * 999, b"GET / HTTP/9\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n", b"GET /" + b"a" * 99999):
        with socket.create_connection(("127.0.0.1", served.port), 30) as one:
            one.sendall(garbage + b"\r\nx: y\r\n\r\n")
            one.shutdown(socket.SHUT_WR)
            while one.recv(4096):
                pass
    assert ready(served)


def test_unread_stream_takes_bounded_number_of_tasks(served: Served, base: str) -> None:
    path = f"{base}/tubes/mail"
    served.client.put(path)
    for _ in range(60):
        served.client.post(f"{path}/tasks/raw", content=b"x" * 900_000)
    with socket.create_connection(("127.0.0.1", served.port), 30) as one:
        one.sendall(request("POST", f"{path}/stream", b'{"window": 1000}'))
        one.recv(100)
        time.sleep(0.5)
        assert 0 < served.client.get(path).json()["tasks"]["taken"] < 60
    assert eventually(lambda: served.client.get(path).json()["tasks"]["ready"] == 60)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


#: A client of all endless replies and waits, which says when it has received a task. Arguments: the host and the port.
SILENT_CLIENT = """
import socket, sys, time
address = sys.argv[1], int(sys.argv[2])
def ask(method, path, body=""):
    text = f"{method} /v1/_{path} HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n{body}"
    connected.append(socket.create_connection(address))
    connected[-1].sendall(text.encode())
connected = []
ask("POST", "/tubes/other/take", '{"wait": 600}')
ask("GET", "/events?tubes=mail,other")
ask("GET", "/samples")
ask("POST", "/tubes/empty/stream")
ask("POST", "/tubes/mail/stream")
while b'"lease"' not in connected[-1].recv(4096):
    pass
print("taken", flush=True)
time.sleep(600)
"""


@pytest.mark.full
def test_clients_without_a_network_are_noticed_in_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"tubes{os.getpid()}"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to create network namespaces")
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", "198.18.213.1/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", "198.18.213.2/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        with Served("--http", "198.18.213.1:0", "--insecure", "--url", "memory://") as served:
            http = served.client
            for tube in ("mail", "other", "empty"):
                http.put(f"/v1/_/tubes/{tube}", json={"driver": "fifo"})
            http.post("/v1/_/tubes/mail/tasks", json={"data": 1})
            command = (
                "ip",
                "netns",
                "exec",
                name,
                sys.executable,
                "-c",
                SILENT_CLIENT,
                "198.18.213.1",
                str(served.port),
            )
            client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "taken\n"

                def connected() -> int:
                    return int(re.findall(r"^tubes_http_connections (\d+)", http.get("/metrics").text, re.MULTILINE)[0])

                assert connected() == 6
                http.post("/v1/_/tubes/mail/tasks", json={"data": 2})
                ip("-n", name, "link", "set", "eth0", "down")
                monkeypatch.setattr(bench, "PATIENCE", 30)
                assert eventually(lambda: connected() == 1)
                assert http.get("/v1/_/tubes/other").json()["waiting"] == 0
                tasks = http.get("/v1/_/tubes/mail/tasks").json()["tasks"]
                assert [(task["state"], task["attempts"]) for task in tasks] == [("ready", 1), ("ready", 0)]
            finally:
                client.kill()
                client.communicate()
    finally:
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", name)
        ip("netns", "del", name)


def test_stream_with_a_full_window_sends_empty_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_KEEPALIVE", 0.01)
    monkeypatch.setattr(streams, "_CHECK_INTERVAL", 0.01)

    async def main() -> None:
        app = create_app(tubes.aio.connect("memory://", codec="json"))
        async with (
            app.service.run(),
            serve_in_process(app, Limits()) as (host, port),
            httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client,
        ):
            await client.put("/v1/_/tubes/mail")
            await client.post("/v1/_/tubes/mail/tasks", json={"data": 1})
            async with client.stream("POST", "/v1/_/tubes/mail/stream", json={"window": 1}) as reply:
                lines = reply.aiter_lines()
                while '"lease"' not in await anext(lines):
                    pass
                assert [await anext(lines) for _ in range(3)] == ["", "", ""]

    asyncio.run(main())


def test_connection_of_a_client_that_is_gone_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        app = create_app(tubes.aio.connect("memory://", codec="json"))
        async with app.service.run(), serve_in_process(app, Limits(headers_within=0.1)) as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request("GET", "/v1/_/samples"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            monkeypatch.setattr(connections, "_SILENCE_INTERVAL", 0.0)
            monkeypatch.setattr(connections, "_MAX_SILENCE", -1.0)
            with suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 30)
            writer.close()

    asyncio.run(main())


def test_kernel_watches_accepted_connections() -> None:
    with socket.socket() as listener:
        connections.watch_peers(listener, 30)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            found = [accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
            assert found == [10, 5, 3, 30_000]


@asynccontextmanager
async def serve_in_process(app: App, limits: Limits) -> AsyncGenerator[tuple[str, int]]:
    """Serve in this process; yield the address."""
    listen = Listen("127.0.0.1", 0)
    with listen.open() as listening:
        server = _make_server(app, listen, limits, 1)
        started = asyncio.Event()
        server.on_start = started.set
        running = asyncio.create_task(server.serve([listening]))
        await started.wait()
        yield listening.getsockname()
        server.should_exit = True
        await running


@pytest.mark.parametrize("size", [100, 2**20], ids=["in pieces", "at once"])
def test_long_headers_are_refused_in_one_or_many_packets(served: Served, size: int) -> None:
    def ask(path: bytes, *lines: bytes) -> tuple[int, Any]:
        text = HEAD % (b"GET", path) + b"".join(b"%b\r\n" % line for line in (*lines, b"connection: close", b""))
        with socket.create_connection(("127.0.0.1", served.port), 30) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start in range(0, len(text), size):
                one.sendall(text[start : start + size])
            head, _, body = b"".join(iter(lambda: one.recv(4096), b"")).partition(b"\r\n\r\n")
        assert int(re.findall(rb"content-length: (\d+)", head)[0]) == len(body)
        return int(head[9:12]), json.loads(body)

    path = b"/health/live"
    assert ask(path, b"a: " + b"x" * 65_000)[0] == 200
    assert ask(path, *[b"a: b"] * 190)[0] == 200
    for status, found in (
        ask(path, b"a: " + b"x" * 70_000),
        ask(path, b"a: " + b"x" * 65_530),
        ask(b"/" + b"x" * 70_000),
        ask(path, *[b"a: b"] * 210),
    ):
        assert (status, found["title"]) == (431, "request header fields too large")
        assert found["detail"] == "the headers with the path may have 65536 bytes and 200 lines"
    status, found = ask(path, b"no header")
    assert (status, found["detail"]) == (400, "the request is not valid HTTP/1.1")


def test_unread_replies_beyond_total_limit_are_cut_off() -> None:
    async def main() -> list[bool]:
        app = create_app(tubes.aio.connect("memory://", codec="json"))
        async with serve_in_process(app, Limits(unread=2**23)) as address:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
                await client.put("/v1/_/tubes/mail")
                for _ in range(8):
                    await client.post("/v1/_/tubes/mail/tasks/raw", content=b"\xff" * 1_000_000)
                size = len((await client.get("/v1/_/tubes/mail/tasks")).content)
            lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            for _ in range(3):
                lines.append(await asyncio.open_connection(*address))
                lines[-1][1].write(request("GET", "/v1/_/tubes/mail/tasks") + request("GET", "/version"))
                await asyncio.sleep(0.3)
            whole: list[bool] = []
            for reader, writer in lines:
                size_read = 0
                with suppress(OSError):
                    while size_read < size and (chunk := await reader.read(2**20)):
                        size_read += len(chunk)
                whole.append(size_read >= size)
                writer.close()
        return whole

    assert asyncio.run(main()) == [False, False, True]


def test_disconnected_client_takes_no_task(served: Served, base: str) -> None:
    path = f"{base}/tubes/mail"
    served.client.put(path, json={"options": {"max_attempts": 1}})
    served.client.post(f"{path}/tasks/batch", json={"items": [{"data": number} for number in range(5)]})
    requests = [
        request("POST", f"{path}/take", b'{"wait": 30}'),
        request("POST", f"{path}/take", b'{"wait": 30, "limit": 5}'),
        request("POST", f"{path}/take"),
        request("GET", f"{base.replace('/v1', '/api')}/mail?timeout=30"),
        request("GET", f"{base.replace('/v1', '/api')}/mail"),
        request("POST", f"{path}/stream", b'{"window": 5}'),
    ]
    # The requests arrive together with the disconnects of their clients.
    served.process.send_signal(signal.SIGSTOP)
    for one in requests:
        with socket.create_connection(("127.0.0.1", served.port), 30) as connection:
            connection.sendall(one)
    served.process.send_signal(signal.SIGCONT)
    name = base.rpartition("/")[2]

    def statuses() -> list[int]:
        lines = [line for line in served.lines() if name in line["path"] and "/tasks" not in line["path"]]
        return [line["status"] for line in lines[1:]]

    assert eventually(lambda: len(statuses()) == len(requests))
    assert statuses().count(499) >= 3  # The waiting requests; the others may have found no task.
    assert eventually(lambda: served.client.get(path).json()["tasks"]["taken"] == 0)
    tasks = served.client.get(f"{path}/tasks").json()["tasks"]
    assert [(task["state"], task["attempts"]) for task in tasks] == [("ready", 0)] * 5


def test_disconnect_is_noticed_despite_pipelined_request(served: Served, base: str) -> None:
    path = f"{base}/tubes/mail"
    served.client.put(path)
    with socket.create_connection(("127.0.0.1", served.port), 30) as one:
        one.sendall(request("POST", f"{path}/take", b'{"wait": 600}'))
        assert eventually(lambda: served.client.get(path).json()["waiting"] == 1)
        one.sendall(request("GET", "/version"))
        served.client.get("/version")
    assert eventually(lambda: served.client.get(path).json()["waiting"] == 0)


@pytest.mark.full
def test_service_is_not_ready_while_backend_is_down_and_recovers() -> None:
    with LocalServer(appendonly="yes", appendfsync="always") as valkey, Served("--url", valkey.url) as served:
        served.client.put("/v1/_/tubes/mail")
        assert ready(served)
        valkey.kill()
        assert served.client.get("/health/ready").status_code == 503
        assert served.client.get("/health/live").status_code == 200
        # Much earlier than the timeout of a program that uses the server directly.
        reply = served.client.post("/v1/_/tubes/mail/tasks", json={"data": 1}, timeout=8)
        assert (reply.status_code, reply.json()["title"], reply.headers["retry-after"]) == (503, "connection lost", "1")
        assert str(valkey.folder) not in reply.text
        valkey.start()
        assert eventually(lambda: ready(served))
        assert served.client.post("/v1/_/tubes/mail/tasks", json={"data": 2}).status_code == 201
        # The first task may or may not have been put.
        tasks = served.client.post("/v1/_/tubes/mail/take", json={"limit": 9}).json()["tasks"]
        assert [task["data"] for task in tasks] in ([2], [1, 2])


@pytest.mark.full
def test_lease_outlives_the_process_that_issued_it(url: str) -> None:
    with Served("--url", url) as one, Served("--url", url) as other:
        one.client.put("/v1/_/tubes/mail")
        for number in range(3):
            one.client.post("/v1/_/tubes/mail/tasks", json={"data": number})
        leases = [
            served.client.post("/v1/_/tubes/mail/take", json={}).json()["tasks"][0]["lease"]
            for served in (one, other, one)
        ]
        assert other.client.delete(f"/v1/_/leases/{leases[0]}").status_code == 204
        one.process.kill()
        assert other.client.delete(f"/v1/_/leases/{leases[1]}").status_code == 204
        other.stop()
        with Served("--url", url) as third:
            assert third.client.delete(f"/v1/_/leases/{leases[2]}").status_code == 204


@pytest.mark.sample(1)
def test_concurrent_hostile_requests_cause_no_server_error(served: Served, base: str) -> None:
    served.client.put(f"{base}/tubes/mail")
    names = ["no", "a%2Fb", "%00", "%ff", "..", "%F0%9F%92%A5", "tubes.x", "x" * 300, "%7Ba%7D", "*", "a b"]
    names += ["mail"] * len(names)  # Half of the requests reach a tube.
    values: list[object] = [
        *(None, True, -1, 0, 1, 2**64, 1.5, "", "x", "\0", "💥", [], [[]], {}, {"a": 1}, "1" * 70, ["1" * 70]),
        *("ready", "mail", ["mail"], {"ttr": 1}),
    ]
    bodies = [b"", b"{", b"null", b"[1]", b'"', b"\xff", b'{"data":NaN}', b"[" * 3000, b'{"a":1,"a":2}']

    def attack(seed: int) -> set[int]:
        random = Random(seed)
        statuses: set[int] = set()
        with httpx.Client(base_url=served.url, timeout=60) as client:
            for _ in range(120):
                one = random.choice([one for one in OPERATIONS if one.media_type == "application/json"])
                path = one.path.replace("{namespace}", base.removeprefix("/v1/")).replace(
                    "{id}", random.choice("0127x")
                )
                path = re.sub(r"{\w+}", lambda _: random.choice(names), path)
                fields = {name: random.choice(values) for name in one.body["properties"] if random.random() < 0.5}
                fields.pop("wait", None)
                fields.pop("timeout", None)
                body = random.choice(bodies) if random.random() < 0.3 else json.dumps(fields).encode()
                query = {
                    name: random.choice(["1", "", "-1", "x", "💥", "nan"])
                    for name in one.query
                    if random.random() < 0.5
                }
                headers: Any = {"x-request-id": random.choice([b"a", b"\xff", b"x" * 999])}
                reply = client.request(one.method, path, content=body, params=query, headers=headers)
                statuses.add(reply.status_code)
        return statuses

    with ThreadPoolExecutor(6) as pool:
        statuses = set[int]().union(*pool.map(attack, range(6)))
    assert {200, 201, 204, 400, 404} <= statuses
    assert max(statuses) < 500, statuses
    assert ready(served)


@pytest.mark.full
def test_replacing_process_on_shared_port_refuses_no_connection(url: str) -> None:
    with Served("--url", url, "--reuse-port") as one:
        refused, served, stop = 0, 0, False

        async def knock() -> None:
            nonlocal refused, served
            while not stop:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
                    writer.write(HEAD % (b"GET", b"/health/live") + b"connection: close\r\n\r\n")
                    received = await reader.read()
                    writer.close()
                    served += received.startswith(b"HTTP/1.1 200")
                    refused += not received
                except OSError:
                    refused += 1

        async def main() -> None:
            nonlocal stop
            knocking = [asyncio.create_task(knock()) for _ in range(8)]
            loop = asyncio.get_running_loop()
            with await loop.run_in_executor(
                None, lambda: Served("--url", url, "--reuse-port", "--http", f"127.0.0.1:{one.port}")
            ):
                await loop.run_in_executor(None, one.stop)
                before = served
                while served < before + 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                stop = True
                await asyncio.gather(*knocking)

        asyncio.run(main())
        assert (refused, served > 200) == (0, True)


@pytest.mark.full
def test_sessions_and_streams_of_a_killed_service_end_by_their_own_ttl(url: str) -> None:
    with Served("--url", url) as one, Served("--url", url) as other:
        for name in ("held", "streamed"):
            one.client.put(f"/v1/_/tubes/{name}", json={"driver": "fifo"})
            one.client.post(f"/v1/_/tubes/{name}/tasks", json={"data": 1})
        session = one.client.post("/v1/_/sessions", json={"ttl": 2}).json()["session"]
        assert one.client.post("/v1/_/tubes/held/take", json={"session": session}).status_code == 200
        with socket.create_connection(("127.0.0.1", one.port), 30) as client:
            client.sendall(request("POST", "/v1/_/tubes/streamed/stream"))
            assert eventually(lambda: b'"lease"' in client.recv(4096))
            one.process.kill()
            one.process.wait()
            for name, seconds in (("held", 2), ("streamed", 8)):
                body = {"wait": seconds + 2, "session": _session(other)}
                take = other.client.post(f"/v1/_/tubes/{name}/take", json=body)
                assert take.status_code == 200, name


def _session(served: Served) -> str:
    session: str = served.client.post("/v1/_/sessions", json={"ttl": 60}).json()["session"]
    return session


def resident(served: Served) -> int:
    """Return the resident memory of the process, in bytes."""
    return int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.full
def test_pipelined_requests_wait_as_bytes() -> None:
    with Served("--url", "memory://", "--no-access-log") as served:
        served.client.put("/v1/_/tubes/mail")
        before, connections = resident(served), []
        poll = request("POST", "/v1/_/tubes/mail/take", b'{"wait": 60}')
        for _ in range(20):
            one = socket.create_connection(("127.0.0.1", served.port), 30)
            connections.append(one)
            one.sendall(poll)
            one.setblocking(False)
            for _ in range(50):
                with suppress(BlockingIOError):
                    one.send(b"GET /x HTTP/1.1\r\n\r\n" * 1000)
        began = time.perf_counter()
        assert ready(served)
        assert time.perf_counter() - began < 0.5
        assert eventually(lambda: served.client.get("/v1/_/tubes/mail").json()["waiting"] == 20)
        assert resident(served) - before < 20 * 2**20
        # After the first reply, all requests that were read get their replies in order.
        served.client.post("/v1/_/tubes/mail/tasks/batch", json={"items": [{"data": 1}] * 20})
        with connections[0] as one:
            one.settimeout(30)
            received = b""
            while received.count(b"HTTP/1.1 404") < 1000:
                received += one.recv(2**16)
            assert received.startswith(b"HTTP/1.1 200")
        for one in connections:
            one.close()


@pytest.mark.full
def test_connections_with_most_pipelined_input_are_cut_off() -> None:
    async def main() -> list[bool]:
        app = create_app(tubes.aio.connect("memory://", codec="json"))
        async with serve_in_process(app, Limits(unread=2**20)) as address:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
                await client.put("/v1/_/tubes/mail")
            lines = [await asyncio.open_connection(*address) for _ in range(10)]
            for _, writer in lines:
                writer.write(request("POST", "/v1/_/tubes/mail/take", b'{"wait": 3}'))
                writer.write(b"GET /x HTTP/1.1\r\n\r\n" * 10_000)
                await asyncio.sleep(0.1)
            whole: list[bool] = []
            for reader, writer in lines:
                try:
                    whole.append((await reader.read(100)).startswith(b"HTTP/1.1 204"))
                except OSError:
                    whole.append(False)
                writer.close()
        return whole

    whole = asyncio.run(main())
    assert (whole[0], whole[-1]) == (False, True)


def test_pipelined_requests_may_be_split_anywhere() -> None:
    async def main() -> None:
        app = create_app(tubes.aio.connect("memory://", codec="json"))
        server = _make_server(app, Listen("127.0.0.1", 0), Limits(), 1)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        text = b"\r\n\r\n" + request("GET", "/x") + request("GET", "/version", b"GET /y HTTP/1.1\r\n\r\n")
        text += b"\r\n" + HEAD % (b"GET", b"/health/live") + b"\r\n"
        for number in range(len(text)):
            near, far = socket.socketpair()
            transport, connection = await asyncio.get_running_loop().create_connection(server._protocol, sock=near)
            connection.data_received(text[:number])
            connection.data_received(text[number:])
            reader, writer = await asyncio.open_connection(sock=far)
            received = b""
            while received.count(b"HTTP/1.1") < 3 and (chunk := await asyncio.wait_for(reader.read(2**16), 30)):
                received += chunk
            assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"404", b"200", b"200"], number
            writer.close()
            transport.close()

    asyncio.run(main())


@pytest.mark.parametrize("length", [True, False], ids=["content-length", "chunked"])
@pytest.mark.parametrize("path", ["/v1/_/tubes/mail/tasks/raw", "/api/shop/mail"])
def test_reply_to_large_body_arrives(served: Served, path: str, length: bool) -> None:
    body = b"x" * 5_000_000
    framing = b"content-length: %d\r\n\r\n%b" % (len(body), body)
    if not length:
        framing = b"transfer-encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    method = b"PUT" if "api" in path else b"POST"
    for last in (b"", b"connection: close\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), 30) as one:
            # Like urllib: send the whole body, then read the reply.
            one.sendall(HEAD % (method, path.encode()) + last + framing)
            received = b"".join(iter(lambda: one.recv(4096), b""))
        assert received.startswith(b"HTTP/1.1 413")
        assert received.count(b"HTTP/1.1") == 1


def test_refused_uploads_get_replies(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t.json")
    _, text = tokens.create([Grant.read("put,manage")], rates={"put": Rate(2, 1000)})
    token = b"authorization: Bearer %b\r\n" % text.encode()
    raw, size = "/v1/_/tubes/mail/tasks/raw", 5_000_000

    async def upload(address: tuple[str, int], path: str, headers: bytes) -> tuple[bytes, bytes]:
        """Return the status lines of an upload and of a request after it."""
        reader, writer = await asyncio.open_connection(*address)
        writer.write(HEAD % (b"POST", path.encode()) + headers + b"content-length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)
        await writer.drain()
        writer.write(request("GET", "/health/live") if b"close" not in headers else b"")
        received = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.findall(rb"content-length: (\d+)", received)[0]))
        behind = await reader.readline()
        writer.close()
        return received[9:12], behind[9:12]

    async def main() -> None:
        app = create_app(tubes.aio.connect("memory://", codec="json"), tokens=tokens)
        async with serve_in_process(app, Limits()) as address:
            for status, path, headers in ((b"401", raw, b""), (b"400", f"{raw}?x=1", token), (b"429", raw, token)):
                assert await upload(address, path, headers) == (status, b"200")
                assert await upload(address, path, headers + b"connection: close\r\n") == (status, b"")

    asyncio.run(main())


def test_endless_body_behind_reply_is_cut_off(served: Served) -> None:
    head = HEAD % (b"POST", b"/v1/_/tubes/mail/tasks/raw?x=1")
    with socket.create_connection(("127.0.0.1", served.port), 30) as one:
        one.sendall(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % 2**30)
        assert one.recv(100).startswith(b"HTTP/1.1 400")
        sent = 0
        with suppress(OSError):
            while sent < 100:
                one.sendall(bytes(2**20))
                sent += 1
        assert sent < 100


@pytest.mark.full
@pytest.mark.parametrize("restarts", [2, pytest.param(5, marks=pytest.mark.full)])
def test_replaced_processes_reset_no_kept_connection(url: str, restarts: int) -> None:
    async def use(port: int, counts: Counter[str]) -> None:
        """Send requests on one connection until a reply closes it, then on a new one."""
        while not counts["stop"]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                closes = False
                while not closes and not counts["stop"]:
                    writer.write(request("GET", "/health/live"))
                    head = await reader.readuntil(b"\r\n\r\n")
                    found = re.search(rb"content-length: (\d+)", head)
                    assert found is not None
                    await reader.readexactly(int(found[1]))
                    counts["served"] += 1
                    await asyncio.sleep(0.02)
                    closes = b"connection: close" in head
            except (OSError, asyncio.IncompleteReadError):
                counts["reset"] += 1
            writer.close()

    async def main() -> Counter[str]:
        counts = Counter[str]()
        loop = asyncio.get_running_loop()
        first = await loop.run_in_executor(None, Served, "--url", url, "--reuse-port")
        words = ("--url", url, "--reuse-port", "--http", f"127.0.0.1:{first.port}")
        starting = [loop.run_in_executor(None, Served, *words) for _ in range(restarts)]
        clients = [asyncio.create_task(use(first.port, counts)) for _ in range(12)]
        *replaced, last = first, *await asyncio.gather(*starting)
        for one in replaced:
            await loop.run_in_executor(None, one.__exit__)
        counts["stop"] = 1
        await asyncio.gather(*clients)
        await loop.run_in_executor(None, last.__exit__)
        return counts

    counts = asyncio.run(main())
    assert (counts["reset"], counts["served"] > 200) == (0, True)
