"""`tubes serve` as a process: addresses, options, limits and shutdown."""

from __future__ import annotations

import asyncio
import http.client
import json
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from packaging.requirements import Requirement
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from typer.testing import CliRunner

import tubes
from tests.faults.test_tls import CERTIFICATE
from tests.support.served import Served
from tubes.cli.app import app
from tubes.errors import InvalidOption
from tubes.serve import Limits, create_app
from tubes.serve.namespaces import SESSION, Namespaces
from tubes.serve.server import Listen
from tubes.testing import ManualClock

#: Versions of uvicorn with which all tests of this folder pass. The service overrides parts of uvicorn's protocol and
#: server that have no stable interface: before 0.53 the shutdown resets kept connections.
TRIED = ("0.53.0", "0.54.0")


def test_only_tried_versions_of_uvicorn_are_allowed() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    needed = next(one for one in map(Requirement, project["optional-dependencies"]["http"]) if one.name == "uvicorn")
    assert all(needed.specifier.contains(version) for version in TRIED)
    major, minor, _ = map(int, TRIED[-1].split("."))
    assert not needed.specifier.contains("0.52.4")
    assert not needed.specifier.contains(f"{major}.{minor + 1}.0")


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("127.0.0.1:1", None),
        ("127.9.9.9:1", None),
        ("[::1]:1", None),
        ("localhost:1", None),
        ("0.0.0.0:1", "--tls-cert"),
        ("[::]:1", "--tls-cert"),
        ("10.0.0.1:1", "--tls-cert"),
        ("example.com:1", "--tls-cert"),
        ("localhost.example.com:1", "--tls-cert"),
        ("127.0.0.1:x", "HOST:PORT"),
        ("127.0.0.1:65536", "HOST:PORT"),
        ("7777", "HOST:PORT"),
    ],
)
def test_public_address_requires_tls_and_tokens(place: str, refused: str | None) -> None:
    if refused is None:
        Listen.read(place).check(has_tokens=False, insecure=False)
        return
    with pytest.raises(InvalidOption, match=refused):
        Listen.read(place).check(has_tokens=True, insecure=False)
    if refused == "--tls-cert":
        Listen.read(place).check(has_tokens=False, insecure=True)
        with pytest.raises(InvalidOption, match="--tokens"):
            Listen.read(place, cert="c", key="k").check(has_tokens=False, insecure=False)
        Listen.read(place, cert="c", key="k").check(has_tokens=True, insecure=False)


@pytest.mark.parametrize(
    "words",
    [("--http", "0.0.0.0:0"), ("--tokens", "nix.json"), ("--tls-cert", "c.pem"), ("--config", "nix.toml")],
    ids=lambda words: words[0],
)
def test_serve_refuses_invalid_options(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", *words])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr


@pytest.mark.parametrize(("certificate", "key"), [("nix.pem", CERTIFICATE), (CERTIFICATE, __file__)])
def test_unusable_certificate_is_named(certificate: object, key: object) -> None:
    words = [
        "serve",
        "--url",
        "memory://",
        "--http",
        "127.0.0.1:0",
        "--tls-cert",
        str(certificate),
        "--tls-key",
        str(key),
    ]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"tls_cert={str(certificate)!r}: must be a certificate" in done.stderr


@pytest.mark.full
def test_existing_folder_is_served_and_keeps_its_tasks(tmp_path: Path) -> None:
    (tmp_path / "tubes-data").mkdir()
    (tmp_path / "tubes.toml").write_text("[serve]\nadmin = '127.0.0.1:0'\naccess-log = false\n")
    for status in (201, 200):
        with Served("--config", "tubes.toml", cwd=tmp_path, env={"TUBES_URL": ""}) as served:
            assert "serving file:tubes-data (it is in this folder" in served.stderr_lines[0]
            assert served.client.put("/v1/_/tubes/mail").status_code == status
            served.client.post("/v1/_/tubes/mail/tasks", json={"data": 1})
            assert served.admin_url != served.url
            assert httpx.get(f"{served.admin_url}/health/ready").status_code == 200
            assert served.stop() == 0
            served.log.seek(0)
            assert served.log.read() == ""
    with tubes.connect(f"file:{tmp_path}/tubes-data") as queue:
        assert queue.tube("mail").statistics().tasks["ready"] == 2


def test_service_without_tokens_refuses_cross_site_requests(memory_service: Served) -> None:
    browser_headers = [("origin", "https://evil.example"), ("host", "evil.example:7777")]
    browser_headers += [("host", host) for host in ("", "[::1].evil.example", "[::1]:80.evil.example", "x[::1]")]
    # Requests for images have no origin.
    browser_headers += [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("referer", "https://evil.example/"),
    ]
    for name, value in browser_headers:
        reply = memory_service.client.get("/v1/_/tubes", headers={name: value})
        assert (reply.status_code, reply.json()["title"]) == (403, "forbidden")
    for host in ("localhost", "[::1]:7777", "127.0.0.1"):
        assert memory_service.client.get("/v1/_/tubes", headers={"host": host}).status_code == 200


def test_blanks_around_header_values_are_ignored(memory_service: Served) -> None:
    client = http.client.HTTPConnection("127.0.0.1", memory_service.port, timeout=30)

    def request(method: str, path: str, body: str = "", **headers: str) -> tuple[int, Any]:
        client.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = client.getresponse()
        return reply.status, json.loads(reply.read())

    tube = f"/v1/{uuid4().hex}/tubes/mail"
    assert request("PUT", tube)[0] == 201
    puts = [request("POST", f"{tube}/tasks", '{"data":1}', Idempotency_Key=key) for key in ("abc", "abc ", " abc \t")]
    assert [status for status, _ in puts] == [201, 200, 200]
    queue = f"/api/{uuid4().hex}/q"
    request("PUT", queue, "x", Enable_Job_Version="YES ", Job_Attr_U="a\t ")
    assert request("GET", queue)[1]["attributes"] == {"u": "a"}
    client.close()


def test_wrong_method_is_a_problem_on_every_path(memory_service: Served) -> None:
    for path in ("/", "/ui", "/ui/", "/ui/app.js", "/health/live", "/version", "/openapi.json", "/metrics", "/v1"):
        reply = memory_service.client.post(path)
        assert (reply.status_code, reply.headers["content-type"]) == (405, "application/problem+json"), path
        assert reply.json()["type"] == "/problems/method-not-allowed"
        assert "GET" in reply.headers["allow"], path


def test_a_queue_without_a_codec_is_refused() -> None:
    with pytest.raises(InvalidOption, match="codec='json'"):
        create_app(tubes.aio.connect("memory://"))


def test_service_can_be_mounted_in_another_application() -> None:
    lines: list[str] = []

    async def main() -> None:
        service = create_app(tubes.aio.connect("memory://", codec="json"), access_log=lines.append)
        transport = httpx.ASGITransport(Starlette(routes=[Mount("/queue", service)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.put("/queue/v1/shop/tubes/a%2Fb")).status_code == 201
            reply = await client.post("/queue/v1/shop/tubes/a%2Fb/tasks", json={"data": 1})
            assert reply.headers["location"] == "/queue/v1/shop/tubes/a%2Fb/tasks/0"
            assert (await client.get(reply.headers["location"])).json()["data"] == 1

    asyncio.run(main())
    assert json.loads(lines[0])["path"] == "/queue/v1/shop/tubes/a%2Fb"


def test_requests_that_wait_are_limited_exactly() -> None:
    async def main() -> None:
        app = create_app(tubes.aio.connect("memory://", codec="json"), limits=Limits(polls=2))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            tube = "/v1/_/tubes/mail"
            await client.put(tube, json={"options": {"capacity": 1}})
            requests = [
                *[client.post(f"{tube}/take", json={"wait": 30}) for _ in range(5)],
                client.post("/v1/_/take", json={"tubes": ["mail"], "wait": 30}),
                client.post(f"{tube}/call", json={"data": 1, "timeout": 30}),
                client.post(f"{tube}/tasks", json={"data": 1, "timeout": 30}),
                client.get("/api/_/mail?timeout=30"),
                client.get("/v1/_/events?tubes=mail"),
            ]
            waiting = [asyncio.create_task(request) for request in requests]
            done = set[asyncio.Task[httpx.Response]]()
            async with asyncio.timeout(20):
                while len(done) < 8:
                    some, _ = await asyncio.wait(set(waiting) - done, return_when=asyncio.FIRST_COMPLETED)
                    done |= some
            assert {task.result().status_code for task in done} == {503}
            assert (await client.post(f"{tube}/take")).status_code == 204
            app.service.close()
            assert [(await task).status_code for task in waiting if task not in done] == [204, 204]

    asyncio.run(main())


def test_open_namespaces_are_limited() -> None:
    async def main() -> None:
        namespaces = Namespaces(tubes.aio.connect("memory://", codec="json"), 2)
        for name in "abc":
            space = await namespaces.get(name)
            await space.queue.create_tube("mail")
            assert await namespaces.get(name) is space
        for name in "ab":  # Closed namespaces are opened again.
            assert (await (await namespaces.get(name)).tube("mail")).name == "mail"
        first, second = await namespaces.get("a"), await namespaces.get("b")
        with first.hold(), second.hold(), pytest.raises(HTTPException, match="2 namespaces are in use"):
            await namespaces.get("c")
        assert await namespaces.root.admin.namespaces() == ["a", "b", "c"]
        await namespaces.close()

    asyncio.run(main())


def test_namespace_stays_open_while_request_body_arrives() -> None:
    async def main() -> None:
        started, resume = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncGenerator[bytes]:
            yield b"a"
            started.set()
            await resume.wait()
            yield b"b"

        app = create_app(tubes.aio.connect("memory://", codec="json"), limits=Limits(namespaces=1))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            for path in ("/api/a/mail", "/v1/a/tubes/mail/tasks/raw"):
                started.clear()
                resume.clear()
                put = asyncio.create_task(client.request("PUT" if "api" in path else "POST", path, content=body()))
                await started.wait()
                assert (await client.get("/v1/b/tubes")).status_code == 503
                resume.set()
                assert (await put).status_code == 201

    asyncio.run(main())


def test_leases_of_idle_namespace_survive_process_exit() -> None:
    async def main() -> None:
        clock = ManualClock()
        queue = tubes.aio.connect("memory://takes", codec="json", clock=clock, session_ttl=600)
        namespaces = Namespaces(queue, 2)
        # The session of another process, which has ended.
        ended = await queue.namespace("gone")
        await ended.admin.identify(SESSION, create=True)
        await (await ended.create_tube("mail", "fifottl", ttr=3600)).put(1)
        await (await ended.tube("mail")).take()
        await ended.admin.detach()
        await namespaces.open_used()
        space = await namespaces.get("a")
        await (await space.queue.create_tube("mail", "fifottl", ttr=3600)).put(1)
        await (await space.tube("mail")).take()
        with pytest.raises(HTTPException, match="2 namespaces are in use"):
            await namespaces.get("b")
        clock.advance(700)
        for name in ("gone", "a"):
            tube = await (await namespaces.get(name)).tube("mail")
            await tube.ack(0)  # The task is still taken in this session.
        assert await namespaces.get("b")
        await namespaces.close()

    asyncio.run(main())
