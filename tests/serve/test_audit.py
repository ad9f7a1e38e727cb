"""The audit: the changes made through a service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import tubes
from tubes.aio import AsyncTube
from tubes.aio.selection import AsyncSelection
from tubes.errors import ConnectionLost
from tubes.serve import Grant, Tokens, audit, create_app
from tubes.serve.later import Callbacks
from tubes.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


@pytest.fixture(params=["memory", "folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store."""
    if request.param == "server":
        return str(request.getfixturevalue("url"))
    return "memory://" if request.param == "memory" else f"file:{tmp_path / 'store'}"


class Client(httpx.AsyncClient):
    """A client of the namespace `shop` of a service in this process."""

    async def changes(self, **query: Any) -> list[dict[str, Any]]:
        reply = await self.get("/v1/shop/audit", params=query)
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["changes"]
        return found

    async def change(self, method: str, path: str, **body: Any) -> httpx.Response:
        reply = await self.request(method, f"/v1/shop/tubes/{path}", json=body)
        assert reply.status_code < 300, reply.text
        return reply


@asynccontextmanager
async def service(
    place: str = "memory://", tokens: Tokens | None = None, grant: str = "put,take,look,manage", **options: Any
) -> AsyncGenerator[Client]:
    """Run a service, whose client has a token with this grant."""
    headers: dict[str, str] = {}
    if tokens is not None:
        _, text = tokens.create([Grant.read(grant)], "ann's laptop")
        headers = {"authorization": f"Bearer {text}", "x-token": text}
    app = create_app(
        tubes.aio.connect(place, codec="json", **options), tokens=tokens, callbacks=Callbacks(("https://",))
    )
    async with (
        app.service.run(),
        Client(transport=httpx.ASGITransport(app), base_url="http://a", headers=headers) as http,
    ):
        yield http


def summary(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["action"], one["tube"], one["task"], one["lane"], one["arguments"], one["count"]) for one in changes]


async def test_each_change_is_recorded_without_data_and_shown_newest_first(place: str, tokens: Tokens) -> None:
    async with service(place, tokens) as http:
        await http.change("PUT", "mail", driver="utubettl")
        for data in ("secret one", "secret two", "secret three"):
            await http.change("POST", "mail/tasks", data={"task": "f", "args": [data]}, utube="a")
        await http.change("PATCH", "mail/tasks/0", data="secret new", pri=3)
        await http.change("POST", "mail/lanes/a/block", seconds=9, reason="429")
        await http.change("POST", "mail/select", action="count", contains="secret")
        why = {"reason": "x" * 900}
        await http.change("POST", "mail/select", action="bury", contains="secret t", function="f", **{"with": why})
        await http.change("DELETE", "mail/tasks/0?state=ready")
        assert (await http.delete("/v1/shop/tubes/mail/tasks/77")).status_code == 404
        assert (await http.post("/v1/shop/tubes/mail/tasks/1/kick", json={"nix": 1})).status_code == 400
        await http.change("DELETE", "mail?force=1")
        changes = await http.changes()
        long = '{"reason": "' + "x" * 488 + "..."
        bury = {"contains": "...", "function": "f", "action": "bury", "with": long}
        assert summary(changes) == [
            ("drop_tube", "mail", None, None, {"force": "1"}, 2),
            ("delete_task", "mail", 0, None, {"state": "ready"}, None),
            ("select", "mail", None, None, bury, 2),
            ("block_lane", "mail", None, "a", {"seconds": 9, "reason": "429"}, None),
            ("update_task", "mail", 0, None, {"data": "...", "pri": 3}, None),
            ("put_tube", "mail", None, None, {"driver": "utubettl"}, None),
        ]
        assert "secret" not in json.dumps(changes)
        token = tokens.all()[0]
        assert {(one["token"], one["description"]) for one in changes} == {(token.id, "ann's laptop")}
        assert [one["id"] for one in changes] == [5, 4, 3, 2, 1, 0]
        assert await http.changes(limit=2) == changes[:2]
        assert await http.changes(limit=2, before=4) == changes[2:4]
        assert await http.changes(before=0) == []
        # The audit is not a tube for clients.
        assert (await http.get("/v1/shop/tubes")).json()["tubes"] == {}
        assert (await http.get("/v1/shop/tubes/tubes.audit")).status_code == 400


async def test_audit_survives_a_restart(place: str, tokens: Tokens) -> None:
    if place == "memory://":
        pytest.skip("memory is that of one process")
    for count in (1, 2):
        async with service(place, tokens) as http:
            await http.change("PUT", "mail")
            assert len(await http.changes()) == count
    with tubes.connect(place, codec="json") as queue:
        assert queue.admin.namespaces() == ["shop"]
        assert queue.namespace("shop").tubes() == ["mail"]


async def test_only_changes_of_visible_tubes_are_shown(tokens: Tokens) -> None:
    async with service(tokens=tokens) as http:
        for name in ("mail", "other"):
            await http.change("PUT", name)
        _, text = tokens.create([Grant.read("look shop mail*")])
        http.headers["authorization"] = f"Bearer {text}"
        assert [one["tube"] for one in await http.changes()] == ["mail"]
        assert (await http.get("/v1/_/audit")).status_code == 403


async def test_old_changes_are_removed(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(audit, "MAX_CHANGES", 4)
    monkeypatch.setattr(audit, "_STEP", 1)
    async with service(clock=clock) as http:
        for _ in range(5):
            await http.change("PUT", "mail")
        assert [(one["id"], one["token"]) for one in await http.changes()] == [(4, None), (3, None), (2, None)]
        clock.advance(audit.KEPT - 1)
        assert len(await http.changes(limit=9)) == 3
        clock.advance(1)
        assert await http.changes(limit=8) == []


async def test_one_token_does_not_remove_the_changes_of_all_others(
    monkeypatch: pytest.MonkeyPatch, place: str, tokens: Tokens
) -> None:
    monkeypatch.setattr(audit, "MAX_CHANGES", 10)
    monkeypatch.setattr(audit, "MAX_OF_TOKEN", 6)
    monkeypatch.setattr(audit, "_STEP", 2)
    async with service(place, tokens) as http:
        for _ in range(3):
            await http.change("PUT", "mail")
        _, text = tokens.create([Grant.read("look,manage")], "bob")
        http.headers["authorization"] = f"Bearer {text}"
        changes: list[dict[str, Any]] = []
        for number in range(30):
            await http.change("POST", "mail/resume")
            changes = await http.changes(limit=50 + number)
            assert len([one for one in changes if one["description"] == "bob"]) <= 6
        assert [one["id"] for one in changes if one["description"] != "bob"] == [2, 1, 0]


async def test_changes_record_their_tasks_and_both_tubes_of_a_move(place: str, tokens: Tokens) -> None:
    async with service(place, tokens) as http:
        for name in ("mail", "other"):
            await http.change("PUT", name)
            await http.change("POST", f"{name}/tasks", data="secret")
        move: dict[str, Any] = {"action": "move", "contains": "secret", "with": {"to": "other"}}
        await http.change("POST", "mail/select", **move)
        await http.change("POST", "other/tasks", data="done", keep_done=60)
        await http.change("DELETE", "other/tasks/2")
        await http.change("POST", "other/truncate")
        moves = [
            ("select", "other", None, None, {"action": "move", "from": "mail"}, 1),
            ("select", "mail", None, None, {"action": "move", "contains": "...", "to": "other"}, 1),
        ]
        assert summary(await http.changes())[0] == ("truncate", "other", None, None, {}, 3)
        assert summary(await http.changes())[2:4] == moves
        for name, arguments in (("other", {"from": "..."}), ("mail", {"contains": "...", "to": "..."})):
            _, text = tokens.create([Grant.read(f"look shop {name}")])
            http.headers["authorization"] = f"Bearer {text}"
            (found,) = [one for one in await http.changes() if one["action"] == "select"]
            assert (found["tube"], found["arguments"]) == (name, {"action": "move", **arguments})


async def test_a_change_without_a_reply_of_the_backend_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(*arguments: object, **options: object) -> None:
        raise ConnectionLost(url="redis://a", why="no reply within 3 s")

    async with service() as http:
        await http.change("PUT", "mail")
        await http.change("POST", "mail/tasks", data=1)
        monkeypatch.setattr(AsyncTube, "pause", lose)
        monkeypatch.setattr(AsyncSelection, "_part", lose)
        assert (await http.post("/v1/shop/tubes/mail/resume")).status_code == 503
        assert "connection lost" in (await http.post("/v1/shop/tubes/mail/select", json={"action": "bury"})).text
        monkeypatch.undo()
        changes = await http.changes()
        assert [(one["action"], one.get("outcome"), one["count"]) for one in changes] == [
            ("select", "unknown", 0),
            ("resume", "unknown", None),
            ("put_tube", None, None),
        ]


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 8, 16])
async def test_a_selection_whose_client_leaves_is_recorded_with_its_count(steps: int) -> None:
    requests = iter([b'{"action": "bury"}'])
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if body := next(requests, b""):
            return {"type": "http.request", "body": body}
        is_first = not left.is_set()
        await left.wait()
        for _ in range(steps if is_first else 0):  # It may be seen at the write first, or by the wait first.
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        left.set()

    async with service() as http:
        await http.change("PUT", "mail")
        for _ in range(3):
            await http.change("POST", "mail/tasks/batch", items=[{"data": 1}] * 1000)
        transport: Any = http._transport
        scope = {"type": "http", "method": "POST", "headers": [], "query_string": b""}
        await transport.app(scope | {"path": "/v1/shop/tubes/mail/select"}, receive, send)
        buried = (await http.get("/v1/shop/tubes/mail")).json()["tasks"]["buried"]
        assert 0 < buried < 3000
        (change,) = (await http.changes())[:-1]
        assert (change["count"], "outcome" in change) == (buried, False)


async def test_a_request_that_did_not_arrive_is_not_recorded() -> None:
    first = {"type": "http.request", "body": b"{", "more_body": True}
    parts = iter([first, dict[str, Any](type="http.disconnect")])

    async def receive() -> dict[str, Any]:
        return next(parts)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async with service() as http:
        await http.change("PUT", "mail")
        transport: Any = http._transport
        scope = {"type": "http", "method": "POST", "headers": [], "query_string": b""}
        await transport.app(scope | {"path": "/v1/shop/tubes/mail/truncate"}, receive, send)
        assert [one["action"] for one in await http.changes()] == ["put_tube"]


async def test_audit_neither_fails_a_request_nor_concerns_puts_and_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*arguments: object) -> None:
        raise OSError("no audit today")

    monkeypatch.setattr(audit, "_put", fail)
    async with service() as http:
        await http.change("PUT", "mail")
        assert caplog.text.count("no audit today") == 1
        await http.change("POST", "mail/tasks", data=1)
        (task,) = (await http.change("POST", "mail/take")).json()["tasks"]
        assert (await http.delete(f"/v1/shop/leases/{task['lease']}")).status_code == 204
        assert caplog.text.count("no audit today") == 1


async def test_only_changes_forget_recent_results(tokens: Tokens) -> None:
    async with service(tokens=tokens) as http:
        await http.change("PUT", "mail")
        await http.change("POST", "mail/tasks", data=1)
        transport: Any = http._transport
        recent = transport.app.service.recent
        _, text = tokens.create([Grant.read("look shop")])
        look, select = {"authorization": f"Bearer {text}"}, "/v1/shop/tubes/mail/select"

        async def are_kept(status: int, method: str, path: str, **options: Any) -> bool:
            await http.get("/v1/shop/tubes?limit=9")
            before = dict(recent._results)
            assert (await http.request(method, path, **options)).status_code == status
            return bool(before) and recent._results == before

        assert await are_kept(200, "POST", select, json={"action": "count"}, headers=look)
        assert await are_kept(403, "POST", select, json={"action": "delete"}, headers=look)
        assert await are_kept(403, "DELETE", "/v1/shop/tubes/mail", headers=look)
        assert await are_kept(200, "POST", select, json={"action": "count"})
        assert await are_kept(400, "POST", select, json={"action": "kick", "with": {"reason": "x"}})
        assert not await are_kept(200, "POST", select, json={"action": "bury"})
        assert not await are_kept(204, "POST", "/v1/shop/tubes/mail/truncate")
        assert not await are_kept(204, "DELETE", "/api/shop/mail", headers={"x-token": http.headers["x-token"]})


async def test_changes_by_other_apis_are_recorded(tokens: Tokens) -> None:
    async with service(tokens=tokens) as http:
        assert (await http.put("/api/shop/mail?token=x", content=b"1")).status_code == 201
        assert (await http.put("/api/shop/mail/deadletter", params={"limit": 5, "token": "x"})).status_code == 200
        assert (await http.delete("/api/shop/mail/deadletter")).status_code == 204
        assert (await http.delete("/api/shop/mail")).status_code == 204
        assert summary(await http.changes()) == [
            ("lmstfy.destroy", "mail", None, None, {}, None),
            ("lmstfy.delete", "mail", None, None, {}, None),
            ("lmstfy.respawn", "mail", None, None, {"limit": "5"}, None),
        ]
        id = (await http.post("/create", json={"callback": "https://a.example/"})).json()["id"]
        assert (await http.post("/delete", json={"id": id})).status_code == 200
        (change,) = (await http.get("/v1/_/audit")).json()["changes"]
        assert summary([change]) == [("later.delete", "later", None, None, {"id": id}, None)]


async def test_changes_of_tokens_are_shown_to_administrators(tokens: Tokens) -> None:
    async with service(tokens=tokens, grant="look,admin shop") as http:
        app: Any = http._transport
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app.app.admin), base_url="http://b", headers=http.headers
        ) as admin:
            assert (await admin.post("/token/shop?description=bob")).status_code == 201
            (bob,) = [token for token in tokens.all() if token.description == "bob"]
            assert (await admin.get("/token/shop")).status_code == 200
            assert (await admin.delete(f"/token/shop/{bob.id}")).status_code == 204
        assert summary(await http.changes()) == [
            ("lmstfy.token_revoke", None, None, None, {"token": bob.id}, None),
            ("lmstfy.token_create", None, None, None, {"token": bob.id, "description": "bob"}, None),
        ]
        _, text = tokens.create([Grant.read("look shop")])
        http.headers["authorization"] = f"Bearer {text}"
        assert await http.changes() == []
