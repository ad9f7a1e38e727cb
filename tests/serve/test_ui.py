"""The dashboard: its files, where it is served, who may use it, and the application to mount."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import django.conf
import httpx
import pytest
from django.core.asgi import get_asgi_application
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp
from typer.testing import CliRunner

import tubes
from tests.support.processes import python
from tests.support.served import Served
from tubes.cli.app import app as cli
from tubes.serve import Grant, Tokens, access, create_app, dashboard
from tubes.serve.later import Callbacks
from tubes.serve.native import OPERATIONS, streams
from tubes.serve.native import tubes as native_tubes
from tubes.testing import ManualClock

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
FOLDER = files("tubes.serve.ui")


def visit(
    app: ASGIApp, use: Callable[[httpx.AsyncClient], Awaitable[object]], headers: dict[str, str] | None = None
) -> None:
    async def main() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
            await use(client)

    asyncio.run(main())


def test_files_have_strict_headers_and_are_compressed() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for path, name in (("", "index.html"), ("app.js",) * 2, ("app.css",) * 2, ("preact.js",) * 2):
            content = FOLDER.joinpath(name).read_bytes()
            if name.endswith(".js"):  # Scripts are served without their comments.
                lines = content.split(b"\n")
                content = b"\n".join(b"" if line.lstrip(b" ").startswith(b"//") else line for line in lines)
            async with client.stream("GET", f"/ui/{path}") as reply:
                raw = b"".join([part async for part in reply.aiter_raw()])
            assert gzip.decompress(raw) == content
            headers = reply.headers
            assert headers["content-security-policy"] == POLICY
            assert headers["cache-control"] == "no-cache"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-frame-options"] == "DENY"
            plain = await client.get(f"/ui/{path}", headers={"accept-encoding": "identity"})
            assert (plain.content, "content-encoding" in plain.headers) == (content, False)
            again = await client.get(f"/ui/{path}", headers={"if-none-match": headers["etag"]})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", headers["etag"])
        for path in ("/ui/__init__.py", "/ui/nix.js", "/ui/%2e%2e/app.py"):
            assert (await client.get(path)).status_code == 404

    visit(create_app(tubes.aio.connect("memory://", codec="json")), use)


def test_licence_of_the_library_is_served() -> None:
    assert "Copyright (c) 2015-present Jason Miller" in FOLDER.joinpath("preact.LICENSE").read_text()
    assert "Apache License" in FOLDER.joinpath("preact.LICENSE").read_text()


@pytest.mark.parametrize("prefix", ["", "/queue", "/a/b"])
def test_root_redirects_to_page_under_any_prefix(prefix: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for path in ("/", "/ui"):
            reply = await client.get(prefix + path)
            assert (reply.status_code, reply.headers["location"]) == (307, "ui/")
            assert str(reply.url.join("ui/")) == f"http://shop{prefix}/ui/"
            assert (await client.get(prefix + path, follow_redirects=True)).status_code == 200
        assert (await client.get(f"{prefix}/ui/../v1")).json()["namespaces"] == ["_"]

    app = create_app(tubes.aio.connect("memory://", codec="json"))
    visit(Starlette(routes=[Mount(prefix, app)]), use)


def test_service_without_page() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        assert {(await client.get(path)).status_code for path in ("/", "/ui", "/ui/", "/ui/app.js")} == {404}

    visit(create_app(tubes.aio.connect("memory://", codec="json"), ui=False), use)


def test_service_without_tokens_accepts_its_own_page_only(memory_service: Served) -> None:
    url, get = memory_service.url, memory_service.client.get
    own = [{"origin": url}, {"referer": f"{url}/ui/"}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}]
    other_port = "http://127.0.0.1:1"
    others = [
        *({"origin": origin} for origin in (other_port, f"{url}0", url.replace("http", "https"), "null")),
        *({"referer": f"{start}/ui/"} for start in (other_port, f"{url}0")),
        {"origin": "http://localhost:7777", "host": "127.0.0.1:7777"},
        {"origin": "http://evil.example", "host": "evil.example"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": url},
    ]
    link = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}
    assert [get(path, headers=link).status_code for path in ("/ui/", "/v1")] == [200, 403]
    for path in ("/ui/", "/v1", "/v1/_/tubes"):
        assert [get(path, headers=headers).status_code for headers in own] == [200] * 4
        assert {get(path, headers=headers).status_code for headers in others} == {403}
    for page, host in (
        ("http://localhost:7777", "localhost:7777"),
        ("http://LocalHost:7777/ui/", "localhost:7777"),
        ("http://localhost", "Localhost:80"),
        ("http://[::1]:80", "[::1]"),
    ):
        for name in ("origin", "referer"):
            assert get("/v1", headers={name: page, "host": host}).status_code == 200, (name, page, host)
    for page, host in (("http://localhost:443", "localhost"), ("http://localhost:80", "localhost:443")):
        assert get("/v1", headers={"origin": page, "host": host}).status_code == 403, (page, host)


def test_service_shows_namespaces_that_the_token_may_look_at(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    grants = ["look shop", "look,put new mail", "put secret", "look a*"]
    token, text = tokens.create(map(Grant.read, grants), "of ann")
    _, poor = tokens.create([Grant.read("put")])

    async def use(client: httpx.AsyncClient) -> None:
        for name in ("shop", "secret", "abc", "bcd"):
            async with await queue.namespace(name) as space:
                await space.create_tube("mail")
        assert (await client.get("/v1")).status_code == 401
        reply = (await client.get("/v1", headers={"authorization": f"Bearer {text}"})).json()
        assert reply["namespaces"] == ["abc", "new", "shop"]
        assert reply["rights"] == {"abc": ["look"], "new": ["put", "look"], "shop": ["look"]}
        stored = [str(grant) for grant in token.grants]
        assert reply["token"] == {"id": token.id, "description": "of ann", "grants": stored}
        assert re.fullmatch(r"[\d.]+\w*", reply["version"])
        reply = (await client.get("/v1", headers={"authorization": f"Bearer {poor}"})).json()
        assert reply["namespaces"] == []
        assert (await client.post("/v1", headers={"authorization": f"Bearer {text}"})).status_code == 405

    queue = tubes.aio.connect("memory://", codec="json")
    visit(create_app(queue, tokens=tokens), use)


def test_service_without_tokens_shows_all_namespaces(memory_service: Served) -> None:
    memory_service.client.put("/v1/shown/tubes/mail")
    reply = memory_service.client.get("/v1").json()
    assert reply["namespaces"][0] == "_"  # The page opens the first one.
    assert "shown" in reply["namespaces"]
    assert reply["rights"]["shown"] == ["put", "take", "look", "manage"]
    assert reply["token"] is None


def mount_in_fastapi(app: ASGIApp) -> ASGIApp:
    outer = FastAPI()
    outer.mount("/admin/queue", app)
    return outer


def mount_in_starlette(app: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount("/admin", Starlette(routes=[Mount("/queue", app)]))])


def mount_in_django(app: ASGIApp) -> ASGIApp:
    # The object of the settings itself must not be a name of this module: pytest asks it for its marks.
    if not django.conf.settings.configured:
        django.conf.settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=())
    return Starlette(routes=[Mount("/admin/queue", app), Mount("/", get_asgi_application())])


@pytest.mark.parametrize("mount", [mount_in_fastapi, mount_in_starlette, mount_in_django])
def test_dashboard_is_mounted_under_a_prefix(mount: Callable[[ASGIApp], ASGIApp]) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        reply = await client.get("/admin/queue/", follow_redirects=True)
        assert (reply.status_code, str(reply.url)) == (200, "http://shop/admin/queue/ui/")
        assert reply.text == FOLDER.joinpath("index.html").read_text()
        api = "/admin/queue/v1/_/tubes/mail"
        assert (await client.get(f"{api}/tasks/0")).json()["data"] == {"to": "ann"}
        put = await client.post(f"{api}/tasks", json={"data": 1})
        assert put.headers["location"].startswith(f"{api}/tasks/")
        assert {(await client.get(f"/admin/queue/{path}")).status_code for path in ("api/_/mail", "nix")} == {404}
        assert (await client.get("/nix")).status_code == 404

    with tubes.connect(codec="json") as queue:
        queue.create_tube("mail").put({"to": "ann"})
        app = mount(dashboard(queue))
        for _ in range(2):  # Each visit has an event loop of its own.
            visit(app, use)
        assert queue.tube("mail").statistics().tasks["ready"] == 3


@pytest.mark.parametrize(
    ("mount", "prefix"), [("/wä ch", "/w%C3%A4%20ch"), ("/{id}/x", "/a%20b/x"), ("/100%", "/100%25"), ("/a", "/%61")]
)
def test_dashboard_is_mounted_under_a_prefix_with_escapes(mount: str, prefix: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.get(f"{prefix}/ui/")).status_code == 200
        put = await client.post(f"{prefix}/v1/_/tubes/a%2Fb/tasks", json={"data": 1})
        assert put.headers["location"] == f"{prefix}/v1/_/tubes/a%2Fb/tasks/0"
        assert (await client.get(put.headers["location"])).json()["data"] == 1
        assert (await client.post(f"{prefix}/v1/_/tubes/a%2Fb/truncate")).status_code == 204

    with tubes.connect(codec="json") as queue:
        queue.create_tube("a/b")
        visit(Starlette(routes=[Mount(mount, dashboard(queue))]), use)


def test_path_before_the_prefix_is_found_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[str]()

    def decode(text: str) -> str:
        decoded.append(text)
        return unquote(text)

    monkeypatch.setattr(access, "unquote", decode)
    path = "/admin/queue%2F" + "/%41" * 8000

    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.get(path)).status_code == 404

    with tubes.connect(codec="json") as queue:
        visit(Starlette(routes=[Mount("/admin/queue", dashboard(queue))]), use)
    assert sum(map(len, decoded)) <= 2 * len(path)


@pytest.mark.parametrize("window", [1, 4])
def test_stream_ends_when_its_client_lets_tasks_run_out_of_time(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(streams, "_CHECK_INTERVAL", 0.01)
    clock, received = ManualClock(), list[Any]()
    unread = [{"type": "http.request", "body": json.dumps({"window": window}).encode()}]

    async def receive() -> Any:  # The network of the client is gone: it never disconnects.
        return unread.pop() if unread else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        received.extend(json.loads(line) for line in message.get("body", b"").splitlines() if line)

    path = "/q/v1/_/tubes/jobs/stream"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"headers": [(b"host", b"a"), (b"content-type", b"application/json")], "query_string": b""}

    async def use() -> bool:
        app = dashboard(queue)
        streaming = asyncio.create_task(Starlette(routes=[Mount("/q", app)])(scope, receive, send))
        for _ in range(400):
            await asyncio.sleep(0.01)
            clock.advance(0.2)
        is_over = streaming.done()
        await app.close()
        await streaming
        return is_over

    with tubes.connect(codec="json", clock=clock) as queue:
        jobs = queue.create_tube("jobs", "fifottl", ttr=8, max_attempts=2)
        jobs.put_many(range(4))
        assert (asyncio.run(use()), received[-1].get("status")) == (True, 408)
        assert [task.attempts for task in jobs.select("ready")] == [1] * window + [0] * (4 - window)


def make_service(queue: tubes.Queue) -> ASGIApp:
    return create_app(tubes.aio.connect(queue), callbacks=Callbacks(("https://a.example/",)))


@pytest.mark.parametrize("make", [make_service, dashboard])
def test_no_route_changes_anything_for_another_page(make: Callable[[tubes.Queue], ASGIApp]) -> None:
    """Without headers that a page can suppress, and with those of a form: on all routes, with all methods."""
    image = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/150.0"}
    form = {**image, "origin": "https://evil.example", "content-type": "text/plain"}
    values = {"namespace": "_", "tube": "mail", "id": "0", "lease": "1" * 40, "lane": "a", "session": "1" * 32}
    lmstfy = ["", "/job/x", "/bulk", "/peek", "/size", "/deadletter", "/deadletter/size"]
    paths = {operation.path.format(**values) for operation in OPERATIONS} | {f"/api/_/mail{path}" for path in lmstfy}
    paths |= {"/create", "/delete", "/query", "/metrics", "/openapi.json", "/ui/", "/ui", "/", "/version"}

    async def use(client: httpx.AsyncClient) -> None:
        for path in sorted(paths - {f"/v1/_/{name}" for name in ("events", "samples")}):
            for method in ("GET", "HEAD"):
                reply = await client.request(method, f"/queue{path}", headers=image)
                assert reply.status_code < 500, path
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                assert (await client.request(method, f"/queue{path}", headers=form)).status_code == 403, path

    with tubes.connect(codec="json") as queue:
        mail = queue.create_tube("mail", "fifottl")
        mail.put_many([1, 2])
        before = mail.statistics()
        visit(Starlette(routes=[Mount("/queue", make(queue))]), use)
        assert mail.statistics() == before
        assert queue.tubes() == ["mail"]


@pytest.mark.parametrize("name", ["origin", "referer", "sec-fetch-site", "host"])
def test_repeated_headers_about_the_page_are_refused(name: str, memory_service: Served) -> None:
    own = {"origin": "http://shop", "referer": "http://shop/", "sec-fetch-site": "same-origin", "host": "shop"}[name]
    for first, second in (("cross-site", own), (own, own)):
        headers = [(name, first), (name, second)]

        async def use(client: httpx.AsyncClient, headers: list[tuple[str, str]] = headers) -> None:
            assert (await client.post("/v1/_/tubes/mail/pause", headers=headers)).status_code == 400

        with tubes.connect(codec="json") as queue:
            queue.create_tube("mail")
            visit(dashboard(queue), use)
        if name != "host":  # httpx refuses to send two of them.
            assert memory_service.client.get("/v1", headers=headers).status_code == 400


def test_address_with_a_zone_is_not_local(memory_service: Served) -> None:
    assert memory_service.client.get("/v1", headers={"host": "[::1%25x]"}).status_code == 403
    assert memory_service.client.get("/v1", headers={"host": "[::1]:7777"}).status_code == 200


def test_dashboard_works_behind_a_middleware_that_wraps_receive() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        take = await client.post("/v1/_/tubes/mail/take")
        assert [task["id"] for task in take.json()["tasks"]] == [0]
        assert len((await client.get("/v1/_/tubes/mail/tasks")).json()["tasks"]) == 2
        select = await client.post("/v1/_/tubes/mail/select", json={"action": "bury", "state": "ready"})
        assert select.text.endswith('{"done":1,"finished":true}\n')
        await client.post("/v1/_/tubes/mail/select", json={"action": "kick"})

        received = asyncio.Queue[Any]()
        received.put_nowait({"type": "http.request"})
        received.put_nowait({"type": "http.disconnect"})
        url = client.build_request("POST", "/v1/_/tubes/mail/take").url
        scope = {"type": "http", "method": "POST", "path": url.path, "headers": [], "query_string": b""}
        sent = list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        with pytest.raises(RuntimeError, match="No response returned"):
            await app(scope, received.get, send)
        assert (await client.get("/v1/_/tubes/mail")).json()["tasks"]["ready"] == 1  # It was given back.

    async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    with tubes.connect(codec="json") as queue:
        queue.create_tube("mail", "fifottl").put_many([1, 2])
        app: ASGIApp = dashboard(queue)
        for _ in range(3):
            app = BaseHTTPMiddleware(app, pass_on)
        visit(app, use)


def test_dashboard_ends_its_session_with_the_event_loop(url: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        await client.post("/v1/_/tubes/mail/tasks", json={"data": 1})
        assert (await client.get("/v1/_/tubes/mail")).json()["tasks"]["ready"] == 1

    with tubes.connect(url) as queue:
        queue.create_tube("mail")
        visit(dashboard(url), use)
        assert queue.tube("mail").take(timeout=0) is not None


def test_dashboard_obeys_the_lifespan_of_a_server() -> None:
    async def main() -> None:
        async with tubes.aio.connect("memory://", codec="json") as queue:
            app = dashboard(queue)
            received, sent = asyncio.Queue[Any](), asyncio.Queue[Any]()
            lifespan = asyncio.create_task(app({"type": "lifespan"}, received.get, sent.put))
            received.put_nowait({"type": "lifespan.startup"})
            assert (await sent.get())["type"] == "lifespan.startup.complete"
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
                assert (await client.put("/v1/_/tubes/mail")).status_code == 201
                take = asyncio.create_task(client.post("/v1/_/tubes/mail/take", json={"wait": 30}))
                mail = await queue.tube("mail")
                while not (await mail.statistics()).waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                received.put_nowait({"type": "lifespan.shutdown"})
                assert (await take).status_code == 204
            await lifespan
            assert sent.get_nowait()["type"] == "lifespan.shutdown.complete"
            assert await queue.tubes() == ["mail"]

    asyncio.run(main())


def test_mounted_dashboard_is_changed_by_its_own_pages_only() -> None:
    own: list[dict[str, str]] = [
        {},
        {"origin": "http://shop"},
        {"referer": "http://shop/ui/"},
        {"sec-fetch-site": "none"},
        # Behind a proxy with TLS, and behind one that changes the header `Host`.
        {"origin": "https://shop"},
        {"origin": "https://public", "sec-fetch-site": "same-origin"},
        # Addresses in other cases, and with the default port.
        {"origin": "http://Shop"},
        {"origin": "http://SHOP:80"},
        {"referer": "HTTPS://shop:443/ui/"},
        {"origin": "http://shop", "host": "Shop:80"},
        {"origin": "https://shop:8443", "host": "shop:8443"},
    ]
    others: list[dict[str, str]] = [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://shop.evil.example"},
        {"referer": "http://evil.example/shop"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://shop", "sec-fetch-site": "same-site"},
        {"origin": "http://shop:443"},
        {"origin": "https://shop:80"},
        {"origin": "http://shop:8080"},
        {"origin": "http://shop", "host": "shop:443"},
        {"referer": "http://shop@evil.example/"},
        {"origin": "null", "host": ""},
        {"origin": "http://:80", "host": ":80"},
    ]
    truncate = "/v1/_/tubes/mail/truncate"

    async def use(client: httpx.AsyncClient) -> None:
        for headers in others:
            for media_type in ("text/plain", "application/json"):
                refused = await client.post(truncate, content=b"{}", headers={"content-type": media_type, **headers})
                assert (refused.status_code, refused.json()["title"]) == (403, "forbidden")
            assert (await client.delete("/v1/_/tubes/mail?force=1", headers=headers)).status_code == 403
            assert (await client.get("/v1/_/tubes/mail", headers=headers)).status_code == 200
        for media_type in ("text/plain", "multipart/form-data", ""):
            headers = {"origin": "http://shop", "content-type": media_type}
            assert (await client.post(truncate, content=b"{}", headers=headers)).status_code == 415
        assert (await client.get("/v1/_/tubes/mail")).json()["tasks"]["ready"] == 1
        for headers in own:
            assert (await client.post("/v1/_/tubes/mail/pause", json={}, headers=headers)).status_code == 204
            assert (await client.post("/v1/_/tubes/mail/resume", headers=headers)).status_code == 204
        assert (await client.post(truncate, content=b"{}")).status_code == 204  # A program.

    with tubes.connect(codec="json") as queue:
        queue.create_tube("mail").put(1)
        visit(dashboard(queue), use)


def test_mounted_dashboard_has_one_service_per_event_loop(tmp_path: Path) -> None:
    app = dashboard(f"file:{tmp_path}/jobs")
    meet = threading.Barrier(3)

    async def use() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for _ in range(10):  # Requests of all loops take turns.
                await asyncio.to_thread(meet.wait, 30)
                assert (await client.get("/v1/_/tubes")).status_code == 200
        assert len(app._running) == 3
        await asyncio.to_thread(meet.wait, 30)

    with ThreadPoolExecutor(3) as threads:
        for end in [threads.submit(lambda: asyncio.run(use())) for _ in range(3)]:
            end.result()
    assert all(running.task.done() for running in app._running.values())
    asyncio.run(visit_once(app))
    assert len(app._running) == 1


async def visit_once(app: ASGIApp) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        assert (await client.get("/v1/_/tubes")).status_code == 200


class Page:
    """Data that JSON does not have."""

    def __repr__(self) -> str:
        return "<Page \ud800>"


def test_objects_of_a_queue_in_memory_are_shown_and_not_changed(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    _, text = tokens.create([Grant.read("put,take,look,manage")])

    async def use(client: httpx.AsyncClient) -> None:
        tube = "/v1/_/tubes/mail"
        listed = (await client.get(f"{tube}/tasks")).json()["tasks"]
        assert [task.get("data") for task in listed[:3]] == [{"to": ["ann"]}, "<Page \ud800>", {"1": 2}]
        assert listed[3]["data_base64"] == "/w=="
        found = await client.get(f"{tube}/tasks", params={"contains": "Page"})
        assert [task["id"] for task in found.json()["tasks"]] == [1]
        assert (await client.post(f"{tube}/tasks", json={"data": 1})).status_code == 403
        assert (await client.post(f"{tube}/take")).status_code == 403
        refused = await client.patch(f"{tube}/tasks/0", json={"data": 1})
        assert (refused.status_code, refused.json()["option"]) == (400, "data")
        assert (await client.patch(f"{tube}/tasks/0", json={"ttl": 600})).status_code == 200
        assert (await client.post(f"{tube}/tasks/0/bury")).json()["state"] == "buried"

    page = Page()
    with tubes.connect() as queue:
        tube = queue.create_tube("mail", "fifottl")
        for data in ({"to": ("ann",)}, page, {1: 2}, b"\xff"):
            tube.put(data)
        visit(dashboard(queue, tokens=tokens), use, {"authorization": f"Bearer {text}"})
        assert tube.peek(1).data is page


@pytest.mark.parametrize("backend", ["memory", "server"])
def test_lists_of_many_lanes_are_bounded(
    backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_tubes, "_LANES_WITHIN", 60.0)

    async def use(client: httpx.AsyncClient) -> None:
        async def read(query: str) -> tuple[list[str], int | None, bool]:
            reply = (await client.get(f"/v1/_/tubes/mail/lanes?{query}")).json()
            return [lane["name"] for lane in reply["lanes"]], reply.get("total"), reply["complete"]

        names = [f"{number:04}" for number in range(2500)]
        assert await read("limit=2&offset=1") == (names[1:3], None, True)
        assert await read("offset=2000") == (names[2000:], 2500, True)
        assert await read("sort=ready&limit=1") == (names[:1], 2500, True)
        monkeypatch.setattr(native_tubes, "_MAX_LANES", 1000)
        assert await read("sort=ready&limit=2") == (names[:2], 1000, False)
        assert await read("limit=2") == (names[:2], None, True)
        if backend == "memory":  # There all lanes are read at once.
            return
        monkeypatch.setattr(native_tubes, "_LANES_WITHIN", 0.0)
        await client.post("/v1/_/tubes/mail/resume")  # It forgets the read lanes.
        for query in ("limit=3", "sort=name&contains=24"):
            found, _, is_complete = await read(query)
            assert 0 < len(found) <= 100, found
            assert not is_complete

    place = "memory://" if backend == "memory" else request.getfixturevalue("url")
    with tubes.connect(place, codec="json") as queue:
        queue.create_tube("mail", "utube").put_many([tubes.Item(1, utube=f"{number:04}") for number in range(2500)])
        visit(dashboard(queue), use)


class Broken:
    """Data that cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError("no text")


def test_objects_are_previewed_sampled_and_searched() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        tube = "/v1/_/tubes/mail"
        listed = (await client.get(f"{tube}/tasks?preview=4")).json()["tasks"]
        assert [(task["preview"], task["size"]) for task in listed] == [('{"to', 12), ('"<Br', 10), ("7", 1)]
        assert (await client.get(f"{tube}/tasks/1?preview=99")).json()["preview"] == '"<Broken>"'
        assert (await client.get(f"{tube}/tasks/1")).json()["data"] == "<Broken>"
        found = (await client.get(f"{tube}/tasks?contains=Broken")).json()["tasks"]
        assert [task["id"] for task in found] == [1]
        samples = (await client.get(f"{tube}/reasons?samples=1")).json()["samples"]
        assert samples["bad"]["id"] == 2
        for path in ("tasks", "stream"):
            refused = await client.post(f"{tube}/{path}", json={"data": 1})
            assert refused.status_code == 403
            assert refused.json()["detail"].startswith("clients have no right to ")
            assert refused.json()["detail"].endswith("in tube 'mail' of '_': connect the queue with codec='json'")

    with tubes.connect() as queue:
        tube = queue.create_tube("mail")
        for data in ({"to": "ann"}, Broken(), 7):
            tube.bury(task=tube.put(data), reason="bad")
        visit(dashboard(queue), use)


@pytest.mark.parametrize(("action", "held"), [("count", 1), ("bury", 1), ("cancel", 2), ("move", 2)])
def test_selection_by_id_holds_the_data_of_few_tasks(
    action: str, held: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(streams, "_MAX_PART", 1_500_000)
    size = 1_000_000

    async def use(client: httpx.AsyncClient) -> None:
        arguments = {"with": {"to": "other"}} if action == "move" else {}
        body = {"action": action, "ids": [*range(12), 0, 99], **arguments}
        await client.post("/v1/_/tubes/mail/select", json={"action": "count", "ids": [0]})
        tracemalloc.start()
        reply = await client.post("/v1/_/tubes/mail/select", json=body)
        assert reply.text.splitlines()[-1] == '{"done":12,"finished":true}'
        # Besides the tasks of a part, the store holds a few while it reads and writes.
        assert tracemalloc.get_traced_memory()[1] < (held + 6) * size
        tracemalloc.stop()

    with tubes.connect(f"file:{tmp_path}/jobs", codec="raw") as queue:
        queue.create_tube("other")
        tube = queue.create_tube("mail")
        for _ in range(12):
            tube.put(bytes(size))
        visit(create_app(tubes.aio.connect(queue)), use)


@pytest.mark.parametrize("with_tokens", [True, False])
def test_read_only_dashboard_refuses_every_change(with_tokens: bool, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    _, text = tokens.create([Grant.read("put,take,look,manage,admin"), Grant.read("put")])

    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/_/tubes/mail")).status_code == 200
        for operation in OPERATIONS:
            if operation.right not in ("", "look"):
                path = re.sub(r"{\w+}", "1", operation.path)
                reply = await client.request(operation.method, path, json={})
                # The handler checks the right that the body requires.
                assert reply.status_code in ((400, 403, 404) if "|" in operation.right else (403,)), operation.name
        for action in ("kick", "delete"):
            body = {"action": action}
            assert (await client.post("/v1/_/tubes/mail/select", json=body)).status_code == 403

    with tubes.connect(codec="json") as queue:
        queue.create_tube("mail").put(1)
        app = dashboard(queue, tokens=tokens if with_tokens else None, read_only=True)
        visit(app, use, {"authorization": f"Bearer {text}"})
        assert queue.tube("mail").statistics().tasks["ready"] == 1
    token = tokens.find(text)
    assert token is not None
    assert token.may("admin", "_", "mail")


def test_dashboard_of_a_read_only_folder_refuses_every_change(tmp_path: Path) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1")).json()["rights"] == {"_": ["look"]}
        assert (await client.get("/v1/_/tubes/mail")).json()["tasks"]["ready"] == 1
        paused = await client.post("/v1/_/tubes/mail/pause")
        assert paused.status_code == 403
        assert paused.json()["detail"] == "clients have no right to manage in tube 'mail' of '_'"
        for name in ("workers", "schedules", "audit"):
            reply = await client.get(f"/v1/_/{name}")
            assert (reply.status_code, reply.json()["title"]) == (403, "store read only")
            assert "without workers" in reply.json()["detail"]
            assert str(tmp_path) not in reply.text

    with tubes.connect(f"file:{tmp_path}/jobs") as queue:
        queue.create_tube("mail").put(1)
        visit(dashboard(f"file:{tmp_path}/jobs?mode=read"), use)


def test_token_of_a_read_only_dashboard_can_be_revoked(tmp_path: Path) -> None:
    restricted = Tokens(tmp_path / "tokens.json").restrict(frozenset({"look"}))
    token, text = restricted.create([Grant.read("put,look")])
    found = restricted.find(text)
    assert found is not None
    assert [str(grant) for grant in found.grants] == ["look * *"]
    assert restricted.is_valid(found)
    assert not restricted.is_valid(token)
    restricted.revoke(token.id)
    assert not restricted.is_valid(found)


@pytest.mark.parametrize(("words", "status"), [((), 201), (("--read-only",), 403)])
def test_command_serves_a_folder_with_a_token_of_its_own(words: tuple[str, ...], status: int, tmp_path: Path) -> None:
    with tubes.connect(f"file:{tmp_path}/jobs") as queue:
        queue.create_tube("mail").put(1)
    place = ("--url", f"file:{tmp_path}/jobs")
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with python("-m", "tubes", "dashboard", *place, "--no-browser", *words, **pipes) as process:
        assert process.stdout is not None
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/ui/#token=(\S+)\n", process.stdout.readline())
        assert found is not None, process.communicate()
        with httpx.Client(base_url=found[1]) as client:
            assert client.get("/ui/").status_code == 200
            assert client.get("/ui/", headers={"host": "evil.example"}).status_code == 403
            assert client.get("/v1/_/tubes").status_code == 401
            client.headers["authorization"] = f"Bearer {found[2]}"
            assert client.get("/v1/_/tubes/mail/tasks/0").json()["data"] == 1
            assert client.put("/v1/_/tubes/new").status_code == status
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.communicate() == ("", "")


@pytest.mark.parametrize("words", [("--http", "0.0.0.0:0"), ("--http", "x"), ("--url", "memory://")])
def test_command_refuses_invalid_options(words: tuple[str, ...], tmp_path: Path) -> None:
    tubes.connect(f"file:{tmp_path}/jobs").close()
    done = CliRunner().invoke(cli, ["dashboard", "--url", f"file:{tmp_path}/jobs", "--no-browser", *words])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr


def test_command_refuses_a_folder_without_a_store(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["dashboard", "--url", f"file:{tmp_path}/jobs", "--no-browser"])
    assert (done.exit_code, "there is no store in this folder" in done.stderr) == (5, True), done.stderr
    assert not (tmp_path / "jobs").exists()


def test_command_opens_a_browser(tmp_path: Path) -> None:
    """A browser is any program: this one reads the page and stops the command. All users may read its arguments."""
    tubes.connect(f"file:{tmp_path}/jobs").close()
    browser = tmp_path / "browser.py"
    browser.write_text(
        "import os, signal, sys, urllib.request as r\npage = r.urlopen(sys.argv[1]).read().decode()\n"
        "print(os.stat(sys.argv[1][7:]).st_mode & 0o7, os.stat(os.path.dirname(sys.argv[1][7:])).st_mode & 0o77)\n"
        "print('token' in sys.argv[1], page)\nos.kill(os.getppid(), signal.SIGTERM)\n"
    )
    env = {"BROWSER": f"{sys.executable} {browser} %s"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with python("-m", "tubes", "dashboard", "--url", f"file:{tmp_path}/jobs", env=env, **pipes) as process:
        address, modes, page = process.communicate(timeout=60)[0].splitlines()
        assert modes.endswith(" 0")
        assert page == f'False <!doctype html><meta http-equiv="refresh" content="0;url={address}">'
