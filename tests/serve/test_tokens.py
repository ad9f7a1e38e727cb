"""Tokens: their file, their grants and their limits at a running service."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import ssl
import stat
import threading
import time
import tracemalloc
from collections.abc import AsyncGenerator, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import tubes
from tests.contract.bench import eventually
from tests.faults.test_tls import CERTIFICATE
from tests.support.served import Served
from tubes.cli.app import app
from tubes.cli.exits import Exit
from tubes.errors import InvalidOption
from tubes.memory.shared_tube import MemoryTube
from tubes.memory.store import MemoryStore
from tubes.redis import all_tubes
from tubes.redis.connection import RedisConnection
from tubes.serve import Limits, create_app
from tubes.serve.rates import Rate, Rates
from tubes.serve.tokens import Grant, Token, Tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def guarded(tokens: Tokens) -> Iterator[Served]:
    """A service with tokens and TLS, in memory."""
    tokens.create([Grant.read("look")])
    tls = ("--tls-cert", CERTIFICATE, "--tls-key", CERTIFICATE)
    with Served("--url", "memory://", "--tokens", tokens.path, *tls, verify=str(CERTIFICATE)) as served:
        yield served


def client(served: Served, tokens: Tokens, *grants: str) -> httpx.Client:
    _, text = tokens.create(map(Grant.read, grants))
    headers = {"authorization": f"Bearer {text}"}
    context = ssl.create_default_context(cafile=CERTIFICATE)
    return httpx.Client(base_url=served.url, headers=headers, timeout=30, verify=context)


@pytest.mark.full
def test_token_allows_only_granted_requests(guarded: Served, tokens: Tokens) -> None:
    with (
        client(guarded, tokens, "manage shop") as boss,
        client(guarded, tokens, "put shop mail*", "look shop mail.a") as maker,
        client(guarded, tokens, "take shop *.a", "take other") as worker,
    ):
        for tube in ("mail.a", "mail.b", "other"):
            assert boss.put(f"/v1/shop/tubes/{tube}").status_code == 201
        assert boss.put("/v1/other/tubes/mail.a").status_code == 403
        for path, code in (("shop/tubes/mail.a", 201), ("shop/tubes/mail.b", 201), ("shop/tubes/other", 403)):
            assert maker.post(f"/v1/{path}/tasks", json={"data": 1}).status_code == code
        assert maker.post("/v1/_/tubes/mail.a/tasks", json={"data": 1}).status_code == 403
        assert maker.post("/v1/shop/tubes/mail.a/take", json={}).status_code == 403
        assert maker.delete("/v1/shop/tubes/mail.a").status_code == 403
        assert list(maker.get("/v1/shop/tubes").json()["tubes"]) == ["mail.a"]
        assert worker.post("/v1/shop/take", json={"tubes": ["mail.a", "mail.b"]}).status_code == 403
        lease = worker.post("/v1/shop/tubes/mail.a/take", json={}).json()["tasks"][0]["lease"]
        assert maker.delete(f"/v1/shop/leases/{lease}").status_code == 403
        # A lease is valid only in its namespace, and only with its signature.
        assert worker.delete(f"/v1/other/leases/{lease}").status_code == 400
        assert worker.delete(f"/v1/shop/leases/{lease.partition('.')[0]}").status_code == 400
        assert worker.delete(f"/v1/shop/leases/{lease}").status_code == 204
        # A token without the right to look sees no data, even if it may manage.
        task = "/v1/shop/tubes/mail.a/tasks"
        id = maker.post(task, json={"data": "secret"}).json()["id"]
        for reply in (boss.patch(f"{task}/{id}", json={"pri": 1}), boss.post(f"{task}/{id}/bury")):
            assert (reply.status_code, "secret" in reply.text) == (200, False)
        assert maker.get(f"{task}/{id}").json()["data"] == "secret"
        # A selection requires the right of its action, and a search in data the right to look.
        select = "/v1/shop/tubes/mail.a/select"
        count, bury = {"action": "count"}, {"action": "bury"}
        move = {"action": "move", "with": {"to": "other"}}
        for one, body, code in (
            *((boss, bury | {"state": "ready"}, 200), (boss, move, 200), (boss, bury | {"contains": "secret"}, 403)),
            *((boss, count, 403), (maker, count | {"contains": "secret"}, 200), (maker, bury, 403)),
            *((boss, bury | {"function": "f"}, 403), (maker, count | {"function": "f"}, 200)),
            *((worker, count, 403), (worker, bury, 403)),
        ):
            assert one.post(select, json=body).status_code == code, (body, code)
        with client(guarded, tokens, "manage shop mail.a") as clerk:
            assert clerk.post(select, json=move).status_code == 403
            id = maker.post(task, json={"data": "secret"}).json()["id"]
            lease = worker.post("/v1/shop/tubes/mail.a/take", json={}).json()["tasks"][0]["lease"]
            assert clerk.post("/v1/shop/leases/checkpoint", json={"lease": lease}).status_code == 403
            assert worker.post("/v1/shop/leases/checkpoint", json={"lease": lease, "note": "n"}).json()["note"] == "n"
            assert worker.post(f"{task}/{id}/cancel").status_code == 403
            ended = clerk.post(f"{task}/{id}/cancel")
            assert (ended.json()["cancelled"], "secret" in ended.text) == (True, False)
        # The log contains the id of the token, but neither leases nor tokens.
        text = maker.headers["authorization"].removeprefix("Bearer ")
        for part in (text, text.split("_", 2)[2]):
            assert maker.get(f"/token/shop/{part}/limits").status_code == 404
        lines = guarded.lines()
        assert {line["token"] for line in lines if "/leases/" in line["path"]} <= {token.id for token in tokens.all()}
        log = json.dumps(lines)
        assert lease not in log
        assert text.split("_", 2)[2] not in log


def test_grant_allows_its_rights_on_its_tubes_only() -> None:
    token = Token("id", tuple(map(Grant.read, ("put shop mail*", "take shop mail.a"))))
    assert token.may("put", "shop", "mail.b")
    assert token.may("take", "shop", "mail.a")
    for right, namespace, tube in (
        ("look", "shop", "mail.a"),
        ("take", "shop", "mail.b"),
        ("put", "shop", "other"),
        ("put", "other", "mail.a"),
    ):
        assert not token.may(right, namespace, tube)


def test_token_cannot_open_namespace_without_grant(guarded: Served, tokens: Tokens) -> None:
    with client(guarded, tokens, "look,take shop") as one:
        for reply in (one.get("/v1/other/tubes"), one.post("/v1/other/leases/ack", json={"leases": []})):
            assert reply.status_code == 403
        assert one.get("/v1/shop/tubes").status_code == 200


def test_half_written_token_file_is_ignored(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t.json")
    token, text = tokens.create([Grant.read("look")])
    whole = tokens.path.read_text()
    for broken in (whole[:50], "{}"):
        tokens.path.write_text(broken)
        tokens._checked_at = -10.0
        assert (tokens.find(text), tokens.find("tubes_x_y")) == (token, None)


def test_request_without_valid_token_is_unauthorized(guarded: Served, tokens: Tokens) -> None:
    _, good = tokens.create([Grant.read("look")])
    prefix, id, secret = good.split("_", 2)
    bad = (
        None,
        "",
        "Bearer",
        f"Basic {good}",
        f"Bearer {prefix}_{id}_{secret.swapcase()}",
        "Bearer tubes_x_y",
        "Bearer \xff",
    )
    for value in bad:
        headers = {} if value is None else {"authorization": value.encode("latin-1")}
        reply = guarded.client.get("/v1/_/tubes", headers=headers)  # type: ignore[arg-type]
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer"), value
    assert guarded.url.startswith("https://")
    assert guarded.client.get("/health/ready").status_code == 200
    log = "".join(guarded.stderr_lines) + json.dumps(guarded.lines())
    assert secret not in log


def test_new_token_is_valid_at_once(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    assert tokens.find("tubes_of_nobody") is None
    token, text = Tokens(tokens.path).create([Grant.read("look")])
    assert tokens.find(text) == token


def test_unknown_tokens_read_a_broken_file_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.create([Grant.read("look")])
    tokens.path.write_text("{")
    for number in range(20):
        assert tokens.find(f"tubes_{number}") is None
    assert len(caplog.records) <= 2


def test_a_token_is_revoked_and_expires(guarded: Served, tokens: Tokens) -> None:
    with client(guarded, tokens, "look") as one:
        revoked = max(tokens.all(), key=lambda token: token.created)
        assert tokens.revoke(revoked.id)
        assert not tokens.revoke(revoked.id)
        assert eventually(lambda: one.get("/v1/_/tubes").status_code == 401)
    now = time.time()
    later = Tokens(tokens.path, now=lambda: now)
    token, text = later.create([Grant.read("look")], "for an hour", ttl=3600)
    assert later.find(text) == token
    now += 3600
    assert later.find(text) is None


@pytest.mark.full
@pytest.mark.parametrize("on", ["memory", "valkey"])
def test_waits_streams_and_sessions_of_a_revoked_token_end(
    on: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = "memory://" if on == "memory" else request.getfixturevalue("url")
    tokens = Tokens(tmp_path / "tokens.json")
    (_, kept), (revoked, text) = [tokens.create([Grant.read("put,take,look,manage")]) for _ in range(2)]
    of_kept, of_revoked = [{"authorization": f"Bearer {each}"} for each in (kept, text)]
    root = "/v1/_"
    with Served("--url", place, "--tokens", tokens.path) as served, ThreadPoolExecutor(5) as pool:
        http = served.client
        http.headers.update(of_kept)
        http.put(f"{root}/tubes/mail", json={"options": {"max_attempts": 1}})
        for name in ("held", "full"):
            http.put(f"{root}/tubes/{name}", json={"options": {"capacity": 1}})
            http.post(f"{root}/tubes/{name}/tasks", json={"data": 1, "keep_done": 60})
        session = http.post(f"{root}/sessions", json={"ttl": 600}, headers=of_revoked).json()["session"]
        http.post(f"{root}/tubes/held/take", json={"session": session, "ttr": 600}, headers=of_revoked)
        waits: list[tuple[str, str, object]] = [
            ("POST", "tubes/mail/take", {"wait": 60}),
            ("POST", "tubes/mail/stream", {}),
            ("GET", "events?tubes=mail", None),
            ("GET", "tubes/held/tasks/0/result?wait=60", None),
            ("POST", "tubes/full/tasks", {"data": 2, "timeout": 60}),
        ]
        replies = [
            pool.submit(http.request, method, f"{root}/{path}", json=body, headers=of_revoked)
            for method, path, body in waits
        ]
        assert eventually(lambda: http.get(f"{root}/tubes/mail").json()["waiting"] == 2)
        assert not any(reply.done() for reply in replies)
        tokens.revoke(revoked.id)
        began = time.monotonic()
        assert [reply.result().status_code for reply in replies] == [401, 200, 200, 401, 401]
        assert time.monotonic() - began < 5
        assert eventually(lambda: http.get(f"{root}/tubes/held").json()["tasks"]["ready"] == 1)
        http.post(f"{root}/tubes/mail/tasks", json={"data": "for others"})
        seen = http.get(f"{root}/tubes/mail/tasks").json()["tasks"][0]
        assert (seen["state"], seen["attempts"]) == ("ready", 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("on", ["memory://", "valkey"])
@pytest.mark.parametrize(
    ("grants", "read"),
    [(["look _ mail.a", "look _ gone"], ["mail.a"]), (["look _ mail*"], ["mail.a", "mail.b"]), (["look other"], None)],
)
def test_list_reads_only_granted_tubes_and_readiness_reads_no_tubes(
    on: str,
    grants: list[str],
    read: list[str] | None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[object] = []
    listed: list[object] = []
    spied: list[tuple[Any, str, list[object]]] = [(MemoryTube, "overview", reads), (all_tubes, "_seen", reads)]
    for owner, name, calls in (*spied, (MemoryStore, "names", listed), (RedisConnection, "_all_in", listed)):
        look: Any = getattr(owner, name)
        spy = lambda *a, look=look, calls=calls, **k: (calls.append(a), look(*a, **k))[1]  # noqa: E731
        monkeypatch.setattr(owner, name, spy)

    async def main() -> None:
        tokens = Tokens(tmp_path / "tokens.json")
        (_, all_), (_, some) = tokens.create([Grant.read("manage")]), tokens.create(map(Grant.read, grants))
        place = request.getfixturevalue("url") if on == "valkey" else on
        queue = tubes.aio.connect(place, codec="json")
        app = create_app(queue, tokens=tokens)
        transport = httpx.ASGITransport(app)
        async with app.service.run(), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for name in ("mail.a", "mail.b", "other"):
                path = f"/v1/_/tubes/{name}"
                assert (await client.put(path, headers={"authorization": f"Bearer {all_}"})).status_code == 201
            reads.clear()
            reply = await client.get("/v1/_/tubes", headers={"authorization": f"Bearer {some}"})
            assert list(reply.json().get("tubes", ())) == (read or [])
            assert reply.status_code == (403 if read is None else 200)
            assert len(reads) == len(read or ())
            listed.clear()
            assert (await client.get("/health/ready")).status_code == 200
            assert not listed
            again = await client.get("/v1/_/tubes", headers={"authorization": f"Bearer {some}"})
            assert again.content == reply.content
            assert not listed  # The matching names are a recent result.

    asyncio.run(main())


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", ["expired", "narrowed"])
def test_waits_and_sessions_end_if_token_expires_or_loses_grants(change: str, tmp_path: Path) -> None:
    now = time.time()

    async def main() -> None:
        nonlocal now
        tokens = Tokens(tmp_path / "tokens.json", now=lambda: now)
        token, text = tokens.create([Grant.read("take,manage")], ttl=3600)
        service = (app := create_app(tubes.aio.connect("memory://", codec="json"), tokens=tokens)).service
        headers = {"authorization": f"Bearer {text}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
            await client.put("/v1/_/tubes/mail")
            session = (await client.post("/v1/_/sessions", json={"ttl": 600})).headers["location"]
            poll = asyncio.create_task(client.post("/v1/_/tubes/mail/take", json={"wait": 60}))
            while not len(service.polls):  # noqa: ASYNC110
                await asyncio.sleep(0)
            service.end_invalid(tokens)
            assert (await client.post(f"{session}/beat", json={})).status_code == 204
            if change == "expired":
                now += 3600
            else:
                with tokens._edit() as changed:  # pyright: ignore[reportPrivateUsage]
                    changed[token.id] = replace(token, grants=(Grant.read("look,take _ other"),))
            service.end_invalid(tokens)
            assert (await poll).status_code == 401
            assert not service.sessions._sessions  # pyright: ignore[reportPrivateUsage]

    asyncio.run(main())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("method", "path", "begin"),
    [("POST", "tubes/mail/stream", b"{"), ("GET", "events?tubes=mail", b"event: problem\ndata: {")],
)
def test_stream_reports_that_its_token_became_invalid(method: str, path: str, begin: bytes, tmp_path: Path) -> None:
    async def main() -> bytes:
        tokens = Tokens(tmp_path / "tokens.json")
        token, text = tokens.create([Grant.read("take,look,manage")])
        service = (app := create_app(tubes.aio.connect("memory://", codec="json"), tokens=tokens)).service
        headers = {"authorization": f"Bearer {text}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
            await client.put("/v1/_/tubes/mail")
            stream = asyncio.create_task(client.request(method, f"/v1/_/{path}"))
            while not len(service.polls):  # noqa: ASYNC110
                await asyncio.sleep(0)
            tokens.revoke(token.id)
            service.end_invalid(tokens)
            return (await stream).content

    last = asyncio.run(main()).removeprefix(b": listening\n\n")
    assert last.startswith(begin)
    assert json.loads(last.partition(b"data: ")[2] or last)["status"] == 401


def test_put_that_finished_as_its_token_became_invalid_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        tokens = Tokens(tmp_path / "tokens.json")
        token, text = tokens.create([Grant.read("put,manage")])
        queue = tubes.aio.connect("memory://", codec="json")
        service = (app := create_app(queue, tokens=tokens)).service
        headers = {"authorization": f"Bearer {text}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
            await client.put("/v1/_/tubes/mail", json={"options": {"capacity": 1}})
            tube = await queue.tube("mail")
            await tube.put("first")
            waiting = asyncio.create_task(client.post("/v1/_/tubes/mail/tasks", json={"data": "next", "timeout": 60}))
            while not len(service.polls):  # noqa: ASYNC110
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            tokens.revoke(token.id)
            tube._port.truncate()  # The put completes now, before its request continues.
            service.end_invalid(tokens)
            assert (await waiting).status_code == 201
            assert (await tube.statistics()).tasks["ready"] == 1

    asyncio.run(main())


def test_token_file_is_private_and_contains_no_secret(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t.json")
    _, text = tokens.create([Grant.read("put,take shop mail*")])
    assert stat.S_IMODE(os.stat(tokens.path).st_mode) == 0o600
    assert text.split("_", 2)[2] not in tokens.path.read_text()
    assert Tokens(tokens.path).find(text) == tokens.all()[0]
    with ThreadPoolExecutor(8) as threads:
        for end in [threads.submit(Tokens(tokens.path).create, [Grant.read("look")]) for _ in range(8)]:
            end.result()
    assert len(tokens.all()) == 9
    tokens.path.write_text("{")
    with pytest.raises(InvalidOption, match="is not a token file"):
        Tokens(tokens.path).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", ["", "nix", "put,nix", "put a b c", "put,"])
def test_malformed_grant_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="must be RIGHTS"):
        Grant.read(text)


def test_token_command_creates_lists_and_revokes(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["token", *words, "--tokens", str(tmp_path / "t.json")])
        return done.exit_code, done.stdout

    code, text = run(
        "create",
        "--grant",
        "put,take shop mail*",
        "--grant",
        "look",
        "--description",
        "the shop",
        "--rate",
        "put=5/1",
        "--limit",
        "body=10",
    )
    token = Tokens(tmp_path / "t.json").find(text.strip())
    assert code == Exit.DONE
    assert token is not None
    head, row = run("list")[1].splitlines()
    assert head.split() == ["TOKEN", "EXPIRES", "GRANTS", "LIMITS", "DESCRIPTION"]
    assert " ".join(row.split()) == f"{token.id} never put,take shop mail*; look * * put=5/1 body=10 the shop"
    assert (token.rates, token.limits) == ({"put": Rate(5, 1)}, {"body": 10})
    assert json.loads(run("list", "--json")[1])["grants"] == ["put,take shop mail*", "look * *"]
    assert run("revoke", token.id) == (Exit.DONE, "")
    assert run("revoke", token.id)[0] == Exit.NOT_FOUND
    for bad in (("--grant", "nix"), ("--grant", "put", "--limit", "nix=1"), ("--grant", "put", "--limit", "body=x")):
        assert run("create", *bad)[0] == Exit.USAGE
    refused = CliRunner().invoke(
        app, ["token", "create", "--grant", "put", "--limit", "tasks=-1", "--tokens", str(tmp_path / "t.json")]
    )
    assert "--limit tasks=-1: must be a whole number, at least 0" in refused.stderr


def test_token_limits_are_enforced(guarded: Served, tokens: Tokens) -> None:
    limits = {"body": 100, "tasks": 3, "requests": 2, "sessions": 1}
    _, text = tokens.create([Grant.read("put,take,manage,look")], rates={"bytes": Rate(50, 1000)}, limits=limits)
    headers = {"authorization": f"Bearer {text}"}
    tube = "/v1/limits/tubes/mail"
    http = guarded.client
    assert http.put(tube, headers=headers).status_code == 201

    def put(body: bytes, path: str = f"{tube}/tasks/raw") -> int:
        return http.request("PUT" if "api" in path else "POST", path, content=body, headers=headers).status_code

    assert put(b"x" * 101) == 413
    assert [put(b"x" * 40), put(b"x" * 40), put(b"x"), put(b"")] == [201, 429, 201, 201]
    assert (put(b""), put(b'{"items": [{"data": 1}]}', f"{tube}/tasks/batch")) == (409, 409)
    assert put(b"x", f"/api/limits/mail?token={text}") == 409
    sessions = [http.post("/v1/limits/sessions", headers=headers) for _ in range(2)]
    assert [reply.status_code for reply in sessions] == [201, 429]
    rule = "the token may have 1 sessions and streams at the same time (its limit `sessions`)"
    assert sessions[1].json()["detail"] == rule
    assert http.post(f"{tube}/stream", headers=headers).status_code == 429
    assert http.delete(sessions[0].headers["location"], headers=headers).status_code == 204
    polls = [
        threading.Thread(target=http.post, args=("/v1/limits/tubes/empty/take",), kwargs=of)
        for of in 2 * [{"json": {"wait": 20}, "headers": headers}]
    ]
    http.put("/v1/limits/tubes/empty", headers=headers)
    for poll in polls:
        poll.start()
    _, other = tokens.create([Grant.read("put,look")])
    others = {"authorization": f"Bearer {other}"}
    assert eventually(lambda: http.get("/v1/limits/tubes/empty", headers=others).json().get("waiting") == 2)
    rule = "the token may have 2 requests at the same time (its limit `requests`)"
    refused = http.get(tube, headers=headers)
    assert (refused.status_code, refused.json()["detail"]) == (429, rule)
    items = {"items": [{"data": 1}] * 2}
    assert http.post("/v1/limits/tubes/empty/tasks/batch", json=items, headers=others).status_code == 201
    for poll in polls:
        poll.join()
    assert http.get(tube, headers=headers).status_code == 200


def test_request_beyond_whole_limit_gets_413(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t.json")
    rates, limits = {"bytes": Rate(100, 3600)}, {"tasks": 3}
    _, text = tokens.create([Grant.read("put,take,manage")], rates=rates, limits=limits)
    app = create_app(tubes.aio.connect("memory://", codec="json"), tokens=tokens)
    headers = {"authorization": f"Bearer {text}", "x-token": text}
    long = "x" * 5000

    async def main() -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://shop", headers=headers
        ) as client:
            await client.put("/v1/shop/tubes/mail")
            tasks = "/v1/shop/tubes/mail/tasks"
            context = {"data": 1, "context": {"a": long}}
            for reply in (
                await client.post(f"{tasks}/raw", content=b"x" * 101),
                await client.post(tasks, json=context),
                await client.post(f"{tasks}/batch", json={"items": [{"data": "x" * 60}] * 2}),
                await client.post(f"{tasks}/batch", json={"items": [context]}),
                await client.post(f"{tasks}/batch", json={"items": [{"data": 1}] * 4}),
                await client.post("/v1/shop/tubes/mail/call", json={**context, "timeout": 1}),
                await client.put("/api/shop/mail", content=b"x" * 101),
                await client.put(
                    "/api/shop/mail", content=b"x", headers={"enable-job-version": "YES", "job-attr-a": long}
                ),
            ):
                assert (reply.status_code, "retry-after" in reply.headers) == (413, False), reply.text
            reply = await client.post(f"{tasks}/raw", content=b"x" * 101)
            assert reply.json()["detail"] == "the token may put 100 bytes in 3600 s, and this request has 101"
            assert (await client.post(f"{tasks}/raw", content=b"x" * 100)).status_code == 201
            reply = await client.post(f"{tasks}/raw", content=b"x")
            assert reply.status_code == 429
            assert reply.json()["detail"].startswith("the token may put 100 bytes in 3600 s: ")

    asyncio.run(main())


async def _put_in_parallel(processes: list[Served], text: str) -> list[int]:
    """Send 200 simultaneous puts of one task each, over all kinds of paths; return the statuses."""
    tube = "/v1/limits/tubes/mail"
    puts: list[tuple[str, str, Any]] = [
        ("POST", f"{tube}/tasks", {"data": 1}),
        ("POST", f"{tube}/tasks", {"data": 1, "delay": 600, "timeout": 5}),
        ("POST", f"{tube}/tasks/batch", {"items": [{"data": 1}]}),
        ("PUT", f"/api/limits/mail?token={text}", 1),
        ("PUT", f"/api/limits/mail/bulk?token={text}", [1]),
    ]
    headers = {"authorization": f"Bearer {text}"}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=each.url, headers=headers, timeout=60))
            for each in processes
        ]

        async def put(number: int) -> int:
            method, path, body = puts[number % len(puts)]
            return (await clients[number % len(clients)].request(method, path, json=body)).status_code

        return await asyncio.gather(*map(put, range(200)))


@pytest.mark.full
@pytest.mark.parametrize(("on", "processes"), [("memory", 1), ("folder", 1), ("valkey", 2)])
def test_parallel_puts_keep_the_limit_of_tasks(
    on: str, processes: int, request: pytest.FixtureRequest, tokens: Tokens, tmp_path: Path
) -> None:
    where = {"memory": "memory://", "folder": f"file://{tmp_path}"}
    _, text = tokens.create([Grant.read("put,manage,look,take")], limits={"tasks": 10})
    headers = {"authorization": f"Bearer {text}"}
    tube = "/v1/limits/tubes/mail"
    options = ("--url", where.get(on) or request.getfixturevalue("url"), "--tokens", tokens.path)
    with ExitStack() as stack:
        served = [stack.enter_context(Served(*options)) for _ in range(processes)]
        http = served[0].client
        assert http.put(tube, json={"driver": "fifottl"}, headers=headers).status_code == 201
        statuses = asyncio.run(_put_in_parallel(served, text))
        assert (statuses.count(201), statuses.count(409)) == (10, 190)
        counts = http.get(tube, headers=headers).json()["tasks"]
        assert counts["ready"] + counts["delayed"] == 10
        call = {"data": 1, "timeout": 5}
        assert http.post(f"{tube}/call", json=call, headers=headers).status_code == 409


@pytest.mark.full
def test_a_rate_holds_over_all_processes(url: str, tokens: Tokens) -> None:
    _, text = tokens.create([Grant.read("manage,put,look")], rates={"put": Rate(5, 1000), "look": Rate(3, 1000)})
    headers = {"authorization": f"Bearer {text}"}
    with Served("--url", url, "--tokens", tokens.path) as one, Served("--url", url, "--tokens", tokens.path) as other:
        one.client.put("/v1/_/tubes/mail", headers=headers)
        path = "/v1/_/tubes/mail/tasks"
        replies = [each.client.post(path, json={"data": 1}, headers=headers) for each in (one, other) * 4]
        assert sorted(reply.status_code for reply in replies) == [201] * 5 + [429] * 3
        assert 190 <= int(replies[-1].headers["retry-after"]) <= 200
        assert one.client.get("/v1/_/tubes/mail", headers=headers).json()["tasks"]["ready"] == 5
        looks = [each.client.get("/v1/_/tubes", headers=headers).status_code for each in (one, other, one)]
        assert looks == [200, 200, 429]


@pytest.mark.parametrize("on", ["memory://", "valkey"])
def test_returned_call_does_not_count_toward_rate(on: str, request: pytest.FixtureRequest) -> None:
    async def main() -> None:
        async with tubes.aio.connect(request.getfixturevalue("url") if on == "valkey" else on) as queue:
            rates, rate = Rates(queue), Rate(2, 1000)
            assert [await rates.wait("x", rate) for _ in range(2)] == [0, 0]
            assert 499 < await rates.wait("x", rate) <= 500
            assert await rates.wait("y", rate) == 0
            await rates.give_back("x", rate)
            assert await rates.wait("x", rate) == 0
            for _ in range(5):  # Unused calls do not accumulate.
                await rates.give_back("x", rate)
            assert [await rates.wait("x", rate) > 0 for _ in range(3)] == [False, False, True]

    asyncio.run(main())


def test_rate_refills_as_time_passes() -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        rates, rate = Rates(tubes.aio.connect("memory://"), lambda: now), Rate(3, 3)
        assert [await rates.wait("x", rate) for _ in range(4)] == [0, 0, 0, 1]
        for _ in range(5):
            now += 1
            assert [await rates.wait("x", rate) for _ in range(2)] == [0, 1]

    asyncio.run(main())


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", ["", "5", "0/1", "5/0", "5/x", "-5/1", "1e9/1"])
def test_malformed_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="CALLS/SECONDS"):
        Rate.read(text)


def test_bodies_in_work_are_bounded_per_token_and_in_all(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t.json")
    texts = [tokens.create([Grant.read("put,manage")])[1] for _ in range(3)]
    limits = Limits(body=100, bodies=250, bodies_of_token=120)
    app = create_app(tubes.aio.connect("memory://", codec="json"), tokens=tokens, limits=limits)

    async def main() -> None:
        rest = asyncio.Event()

        async def slow(begun: asyncio.Event) -> AsyncGenerator[bytes]:
            yield b"x" * 90
            begun.set()
            await rest.wait()
            yield b"x"

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:

            async def put(text: str, content: bytes | AsyncGenerator[bytes]) -> int:
                headers = {"authorization": f"Bearer {text}"}
                reply = await client.post("/v1/_/tubes/mail/tasks/raw", content=content, headers=headers)
                return reply.status_code

            await client.put("/v1/_/tubes/mail", headers={"authorization": f"Bearer {texts[0]}"})
            arriving: list[asyncio.Task[int]] = []
            for text in texts[:2]:
                begun = asyncio.Event()
                arriving.append(asyncio.create_task(put(text, slow(begun))))
                await begun.wait()
            assert [await put(texts[0], b"x" * 40), await put(texts[0], b"x" * 20)] == [429, 201]
            assert [await put(texts[2], b"x" * 80), await put(texts[2], b"x" * 60)] == [503, 201]
            rest.set()
            assert await asyncio.gather(*arriving) == [201, 201]
            assert await put(texts[2], b"x" * 100) == 201

    asyncio.run(main())


@pytest.mark.full
def test_refused_long_names_use_no_memory(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t.json")
    _, text = tokens.create([Grant.read("look shop"), Grant.read("take shop")])
    app = create_app(tubes.aio.connect("memory://", codec="json"), tokens=tokens)
    # httpx is not used here, since it caches the URLs of its requests.
    scope = {"type": "http", "query_string": b"", "headers": [(b"authorization", f"Bearer {text}".encode())]}

    async def ask(method: str, path: str, body: bytes = b"") -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            assert message.get("status", 400) == 400

        await app({**scope, "method": method, "path": path, "raw_path": path.encode()}, receive, send)

    async def ask_all(number: int) -> None:
        name = f"{number:060000}"
        await ask("POST", f"/v1/shop/tubes/{name}/tasks")
        await ask("GET", f"/v1/{name}/tubes")
        await ask("POST", "/v1/shop/take", b'{"tubes": ["%b"]}' % name.encode())

    async def main() -> int:
        await ask_all(0)
        tracemalloc.start()
        for number in range(50):
            await ask_all(number)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used

    assert asyncio.run(main()) < 2**20
