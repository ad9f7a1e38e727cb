"""The dashboard: its files, where it is served, who may use it, and the application to mount."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

import tubes
from tests.support.served import Served
from tubes.serve import Grant, Tokens, create_app

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
FOLDER = files("tubes.serve.ui")


def visit(app: ASGIApp, use: Callable[[httpx.AsyncClient], Awaitable[object]]) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            await use(client)

    asyncio.run(main())


def test_files_have_strict_headers_and_are_compressed() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for path, name in (("", "index.html"), ("app.js",) * 2, ("app.css",) * 2, ("preact.js",) * 2):
            content = FOLDER.joinpath(name).read_bytes()
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
    for path in ("/ui/", "/v1", "/v1/_/tubes"):
        assert [get(path, headers=headers).status_code for headers in own] == [200] * 4
        assert {get(path, headers=headers).status_code for headers in others} == {403}
    own_host = {"origin": "http://localhost:7777", "host": "localhost:7777"}
    assert get("/v1", headers=own_host).status_code == 200


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
    assert {"_", "shown"} <= set(reply["namespaces"])
    assert reply["token"] is None
