"""lmstfy's API for administrators: tokens, limits, queues and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.bench import eventually
from tests.support.served import Served
from tubes.serve.lmstfy import metrics
from tubes.serve.tokens import Grant, Tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def guarded(tokens: Tokens) -> Iterator[Served]:
    """A service whose tokens are created over HTTP."""
    with Served("--url", "memory://", "--tokens", tokens.path, "--admin", "127.0.0.1:0") as served:
        yield served


@pytest.fixture
def admin(guarded: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.admin_url, timeout=30) as client:
        yield client


def create_token(admin: httpx.Client, namespace: str = "shop", **parameters: str) -> str:
    reply = admin.post(f"/token/{namespace}", params={"description": "a client", **parameters})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["token"])


def put(guarded: Served, token: str, namespace: str = "shop", **options: Any) -> httpx.Response:
    return guarded.client.put(f"/api/{namespace}/q", content=b"x", headers={"x-token": token}, **options)


def status_and_body(reply: httpx.Response) -> tuple[int, Any]:
    return reply.status_code, reply.json()


def test_a_token_is_good_in_its_namespace_until_it_is_revoked(
    guarded: Served, admin: httpx.Client, tokens: Tokens
) -> None:
    token = create_token(admin)
    ids = [each.id for each in tokens.all()]
    assert put(guarded, token).status_code == 201
    assert put(guarded, f"default:{token}").status_code == 201
    assert guarded.client.get(f"/api/shop/q/size?token={token}").json()["size"] == 2
    assert status_and_body(put(guarded, token, "other")) == (401, {"error": "invalid token"})
    assert status_and_body(put(guarded, "x" * 30)) == (401, {"error": "invalid token"})
    assert status_and_body(put(guarded, "")) == (401, {"error": "token not found"})
    assert status_and_body(put(guarded, f"other:{token}")) == (404, {"error": "pool not found"})
    for path in ("size", "deadletter/size"):
        assert status_and_body(guarded.client.get(f"/api/shop/q/{path}")) == (401, {"error": "token not found"})
    assert admin.get("/token/shop").json() == {"tokens": {ids[0]: "a client"}}
    assert admin.get("/token/other").json() == {"tokens": {}}
    assert admin.delete(f"/token/other/{token}").status_code == 204
    assert put(guarded, token).status_code == 201
    assert admin.delete(f"/token/shop/{token}").status_code == 204
    assert status_and_body(put(guarded, token)) == (401, {"error": "invalid token"})
    # A token can also be revoked by its id.
    other = create_token(admin)
    assert admin.delete(f"/token/shop/{tokens.all()[-1].id}").status_code == 204
    assert put(guarded, other).status_code == 401
    assert eventually(lambda: any(ids[0] in line["path"] for line in guarded.lines()))
    assert token.split("_", 2)[2] not in f"{guarded.lines()}{guarded.stderr_lines}"


def test_administrator_may_choose_token_text(guarded: Served, admin: httpx.Client) -> None:
    mine = "01HZX3PA0QB1N5M8Y7V6T5S4R3"
    reply = admin.post("/token/shop", data={"description": "mine", "token": f"default:{mine}"})
    assert status_and_body(reply) == (201, {"token": mine})
    assert put(guarded, mine).status_code == 201
    for path, error in (
        (f"/token/shop?description=x&token={mine}", None),
        ("/token/shop", "invalid description"),
        ("/token/shop?description=%1b[31m", None),
        (f"/token/shop?description={'d' * 201}", None),
        ("/token/shop?description=x&token=short", "the user token was too short"),
        (f"/token/shop?description=x&token=default:{'x' * 15}", None),
        (f"/token/{'n' * 256}?description=x", "the namespace name was too long"),
        ("/token/a.b?description=x", "namespace name contains forbidden characters"),
        ("/token/shop?description=x&pool=other", "pool not found"),
    ):
        reply = admin.post(path)
        assert reply.status_code == 400, path
        assert error is None or reply.json() == {"error": error}


def test_limit_counts_published_and_consumed_jobs(guarded: Served, admin: httpx.Client) -> None:
    token = create_token(admin, "limited")
    path = f"/token/limited/{token}/limit"
    assert status_and_body(admin.get(path)) == (404, None)
    limit = {"read": 2, "write": 3, "interval": 100}
    assert status_and_body(admin.post(path, json=limit)) == (201, {"limiter": limit})
    assert admin.post(path, json=limit).status_code == 500
    assert status_and_body(admin.get(path)) == (200, limit)
    limits = admin.get("/limits?force_update=true").json()
    assert [(one["namespace"], one["limiter"]) for one in limits] == [("limited", limit)]
    # Requests with another status than 201 (publish) or 200 (consume) are not counted.
    for _ in range(5):
        assert put(guarded, token, "limited", params={"tries": 0}).status_code == 400
        assert guarded.client.get("/api/limited/none", headers={"x-token": token}).status_code == 404
    statuses = [put(guarded, token, "limited").status_code for _ in range(5)]
    assert statuses == [201, 201, 201, 429, 429]
    refused = put(guarded, token, "limited")
    assert list(refused.json()) == ["msg"]
    assert (int(refused.headers["retry-after"]) <= 100, token in refused.text) == (True, False)
    consumed = [guarded.client.get("/api/limited/q", headers={"x-token": token}) for _ in range(4)]
    assert [reply.status_code for reply in consumed] == [200, 200, 429, 429]
    # A republish and a peek are not counted.
    job = consumed[0].json()["job_id"]
    reply = guarded.client.put(f"/api/limited/q/job/{job}", content=b"x", headers={"x-token": token})
    assert reply.status_code == 201
    limit = {"read": 0, "write": 9, "interval": 1}
    assert status_and_body(admin.put(path, json=limit)) == (200, {"limiter": limit})
    assert status_and_body(admin.get(path)) == (200, limit)
    assert status_and_body(admin.delete(path)) == (200, {"msg": "success"})
    assert admin.get(path).status_code == 404
    assert guarded.client.get("/api/limited/q", headers={"x-token": token}).status_code == 200


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"read":-1,"interval":1}', None),
        (b'{"read":1e3,"interval":1}', None),
        (b'{"read":9999999999,"interval":1}', None),
        (b'{"interval":1}', {"limiter": {"read": 0, "write": 0, "interval": 1}}),
        (b'{"read":1}', {"error": "interval should be > 0"}),
    ],
)
def test_invalid_limit_is_refused(admin: httpx.Client, body: bytes, reply: Any) -> None:
    token = create_token(admin)
    for method in ("POST", "PUT"):
        refused = admin.request(method, f"/token/shop/{token}/limit", content=body)
        assert refused.status_code == 400
        assert reply is None or refused.json() == reply
    assert admin.get(f"/token/shop/{token}/limit").status_code == 404


def test_limit_for_unknown_token_is_not_found(admin: httpx.Client) -> None:
    limit = {"read": 1, "write": 1, "interval": 1}
    assert status_and_body(admin.post("/token/shop/nix/limit", json=limit)) == (404, {"error": "token not found"})
    assert admin.delete("/token/shop/nix").status_code == 204
    assert status_and_body(admin.patch("/token/shop")) == (404, {"error": "api not found"})


def test_admin_api_shows_queues_pools_version_and_health(guarded: Served, admin: httpx.Client) -> None:
    put(guarded, create_token(admin, "told"), "told")
    assert admin.get("/info?pool=").json()["told"] == ["q"]
    assert admin.get("/pools").json() == ["default"]
    assert sorted(admin.get("/version").json()) == ["build_commit", "build_date", "version"]
    assert admin.get("/health/ready").status_code == 200


def test_metrics_use_lmstfy_names(guarded: Served, admin: httpx.Client) -> None:
    token = create_token(admin, "measured")
    headers = {"x-token": token}
    for body in (b"1", b"2"):
        guarded.client.put("/api/measured/a_total", content=body, headers=headers)
    job = guarded.client.get("/api/measured/a_total", headers=headers).json()["job_id"]
    guarded.client.delete(f"/api/measured/a_total/job/{job}", headers=headers)
    guarded.client.put("/api/measured/a_total?tries=0", headers=headers)
    guarded.client.put("/api/unknown/q", headers={"x-token": "nix"})
    text = admin.get("/metrics").text
    queue = '{namespace="measured",pool="default",queue="a_total"}'
    put = 'api="/api/:namespace/:queue",code="%s",method="PUT",namespace="%s",pool="default"'
    for line in (
        f"infra_lmstfy_redis_publish_queue_jobs{queue} 2.0",
        f"infra_lmstfy_redis_consume_queue_jobs{queue} 1.0",
        f"infra_lmstfy_redis_job_elapsed_ms_count{queue} 1.0",
        f"infra_lmstfy_redis_job_ack_elapsed_ms_count{queue} 1.0",
        f"infra_lmstfy_redis_queue_sizes{queue} 1.0",
        f"infra_lmstfy_redis_deadletter_sizes{queue} 0.0",
        "# TYPE infra_lmstfy_redis_publish_jobs counter",
        f"infra_lmstfy_http_http_codes{{{put % (201, 'measured')}}} 2.0",
        f"infra_lmstfy_http_http_codes{{{put % (400, 'measured')}}} 1.0",
        'tubes_tasks{namespace="measured",state="ready",tube="a_total"} 1.0',
        'tubes_http_requests_total{method="DELETE",route="/api/{namespace}/{queue}/job/{job}",status="2xx"} 1.0',
    ):
        assert f"{line}\n" in text, line
    assert "_created" not in text
    # Requests without a valid token add no labels.
    assert 'namespace="unknown"' not in text


def test_metrics_limit_number_of_label_values_chosen_by_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MAX_LABELS", 3)
    measured = metrics.Metrics()
    for name in ("a", "b", "c", "d", "a"):
        measured.record_reply(name, "/api", "GET", 404, 0)
        measured.record_consumed("a", name, 0, is_multi=False)
    text = measured.text({}).decode()
    assert set(re.findall(r'namespace="(\w*)"', text)) == {"a", "b", ""}
    assert 'consume_queue_jobs{namespace="",pool="default",queue=""} 3.0' in text


def test_the_access_log_is_switched(guarded: Served, admin: httpx.Client) -> None:
    assert admin.get("/accesslog").json() == {"status": "enabled"}
    assert admin.post("/accesslog?status=disable").json() == {"status": "disabled"}
    guarded.client.get("/api/silent/q")
    assert admin.post("/accesslog?status=enable").json() == {"status": "enabled"}
    assert status_and_body(admin.post("/accesslog?status=x")) == (400, {"error": "invalid status"})
    guarded.client.get("/api/heard/q")
    assert eventually(lambda: any(line["path"] == "/api/heard/q" for line in guarded.lines()))
    assert not any(line["path"] == "/api/silent/q" for line in guarded.lines())


@pytest.mark.full
def test_admin_api_requires_admin_grant(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "t.json")
    with (
        Served("--url", "memory://", "--tokens", tokens.path, "--admin", "127.0.0.1:0") as served,
        httpx.Client(base_url=served.admin_url) as admin,
    ):
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            assert admin.post("/token/shop?description=x", headers=headers).status_code == 403
        _, boss = tokens.create([Grant.read("admin")])
        _, part = tokens.create([Grant.read("admin shop"), Grant.read("admin ?")])
        _, worker = tokens.create([Grant.read("put,take,look,manage")])
        for path in ("/token/shop", "/limits"):
            assert admin.get(path).headers["www-authenticate"] == "Basic"
            for auth in (("x", "nix"), (boss, "")):
                assert admin.get(path, auth=auth).status_code == 401
            assert admin.get(path, auth=("x", worker)).status_code == 403
            assert admin.get(path, auth=("x", boss)).status_code == 200
        assert admin.post("/accesslog?status=disable").status_code == 401
        assert admin.post("/token/shop?description=x", auth=("x", part)).status_code == 201
        for reply, rule in (
            (admin.post("/token/other?description=x", auth=("x", part)), "admin in namespace 'other'"),
            (
                admin.get("/limits", headers={"authorization": f"Bearer {part}"}),
                "admin for all tubes of all namespaces",
            ),
        ):
            assert (reply.status_code, reply.json()["error"]) == (403, f"the token must have the right {rule}")


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[tuple[Tokens, httpx.Client, httpx.Client]]:
    """The tokens of a service with two queues in each of two namespaces, and clients of its two listeners."""
    tokens = Tokens(tmp_path / "t.json")
    _, boss = tokens.create([Grant.read("admin"), Grant.read("put")])
    with Served("--url", "memory://", "--tokens", tokens.path, "--admin", "127.0.0.1:0") as served:
        for path in ("shop/mail", "shop/secret", "bank/mail", "bank/secret"):
            assert served.client.put(f"/api/{path}", content=b"x", headers={"x-token": boss}).status_code == 201
        with httpx.Client(base_url=served.admin_url) as admin:
            yield tokens, served.client, admin


@pytest.mark.full
def test_administrator_of_some_tubes_creates_tokens_for_these_tubes_only(
    owned: tuple[Tokens, httpx.Client, httpx.Client],
) -> None:
    tokens, client, admin = owned
    _, part = tokens.create([Grant.read("admin shop mail*")])
    reply = admin.post("/token/shop?description=x", auth=("x", part))
    headers = {"x-token": reply.json()["token"]}
    assert client.get("/api/shop/mail/size", headers=headers).json()["size"] == 1
    assert client.get("/api/shop/secret/size", headers=headers).status_code == 403
    assert tokens.all()[-1].grants[0].tube == "mail*"


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("grant", ["look shop", "look shop mail?", "admin shop *", "look shop [*]", "look * mail1"])
def test_administrator_of_some_tubes_cannot_touch_wider_tokens(
    owned: tuple[Tokens, httpx.Client, httpx.Client], grant: str
) -> None:
    tokens, _, admin = owned
    _, part = tokens.create([Grant.read("admin shop mail*"), Grant.read("admin shop ?")])
    wide, _ = tokens.create([Grant.read(grant), Grant.read("look shop mail1")], "wide")
    narrow, _ = tokens.create([Grant.read("look shop mail1"), Grant.read("put shop mail*")], "narrow")
    auth = ("x", part)
    limit = {"read": 1, "write": 1, "interval": 1}
    listed = admin.get("/token/shop", auth=auth).json()["tokens"]
    assert (wide.id in listed, narrow.id in listed) == (False, True)
    assert admin.post(f"/token/shop/{wide.id}/limit", json=limit, auth=auth).status_code == 404
    assert admin.post(f"/token/shop/{narrow.id}/limit", json=limit, auth=auth).status_code == 201
    for one in (wide, narrow):
        assert admin.delete(f"/token/shop/{one.id}", auth=auth).status_code == 204
    left = {token.id for token in tokens.all()}
    assert (wide.id in left, narrow.id in left) == (True, False)
    for path in ("/limits", "/accesslog?status=disable"):
        method = "GET" if path == "/limits" else "POST"
        assert admin.request(method, path, auth=auth).status_code == 403


@pytest.mark.full
def test_administrator_of_some_tubes_of_all_namespaces_sees_no_limits(
    owned: tuple[Tokens, httpx.Client, httpx.Client],
) -> None:
    tokens, _, admin = owned
    _, part = tokens.create([Grant.read("admin * mail*")])
    assert admin.get("/limits", auth=("x", part)).status_code == 403


@pytest.mark.full
def test_names_are_shown_to_tokens_that_may_see_them_only(owned: tuple[Tokens, httpx.Client, httpx.Client]) -> None:
    tokens, _, admin = owned
    texts = {text: tokens.create([Grant.read(text)])[1] for text in ("look", "look shop m*", "admin bank", "put,take")}
    for path in ("/info", "/metrics"):
        for auth, status in ((None, 401), (("x", "nix"), 401), (("x", texts["put,take"]), 403)):
            refused = admin.get(path, auth=auth)
            assert (refused.status_code, "secret" in refused.text) == (status, False)
    visible = {text: admin.get("/info", auth=("x", token)).json() for text, token in texts.items()}
    both = ["mail", "secret"]
    del visible["put,take"]
    assert visible == {
        "look": {"bank": both, "shop": both},
        "look shop m*": {"shop": ["mail"]},
        "admin bank": {"bank": both},
    }
    scraped = {text: admin.get("/metrics", auth=("x", token)).status_code for text, token in texts.items()}
    assert scraped == {"look": 200, "look shop m*": 403, "admin bank": 403, "put,take": 403}
