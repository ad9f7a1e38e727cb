"""The native API over HTTP."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.served import Served, add_stray_key
from tests.support.taking import take_task
from tubes.testing import LocalServer
from tubes.worker import Worker


@pytest.fixture
def http(served: Served, base: str) -> Iterator[httpx.Client]:
    """A client of a namespace of its own, with the tube `mail`."""
    with httpx.Client(base_url=served.url + base, timeout=30) as client:
        assert client.put("/tubes/mail").status_code == 201
        yield client


def put(http: httpx.Client, data: Any = None, tube: str = "mail", **options: Any) -> int:
    reply = http.post(f"/tubes/{tube}/tasks", json={"data": data, **options})
    assert reply.status_code == 201, reply.text
    id: int = reply.json()["id"]
    return id


def take(http: httpx.Client, tube: str = "mail", **options: Any) -> list[dict[str, Any]]:
    reply = http.post(f"/tubes/{tube}/take", json=options)
    assert reply.status_code in (200, 204), reply.text
    tasks: list[dict[str, Any]] = reply.json()["tasks"] if reply.status_code == 200 else []
    return tasks


def select(http: httpx.Client, action: str, arguments: dict[str, Any] | None = None, **filters: Any) -> int:
    reply = http.post("/tubes/mail/select", json={"action": action, "with": arguments or {}, **filters})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-ndjson"), reply.text
    *parts, last = [json.loads(line) for line in reply.text.splitlines()]
    assert last.keys() == {"done", "finished"}, reply.text
    assert [part["done"] for part in parts] == sorted(part["done"] for part in parts)
    done: int = last["done"]
    return done


def problem(reply: httpx.Response) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    body = reply.json()
    assert body["status"] == reply.status_code
    return reply.status_code, body["type"].removeprefix("/problems/")


@pytest.mark.sample(1)
def test_a_task_is_put_taken_and_acked_by_its_lease(http: httpx.Client) -> None:
    reply = http.post("/tubes/mail/tasks", json={"data": {"to": "ann"}, "pri": 3, "context": {"a": "b"}})
    assert reply.status_code == 201
    assert http.get(str(http.base_url.join(reply.headers["location"]))).json()["state"] == "ready"
    (task,) = take(http, ttr=60)
    assert {name: task[name] for name in ("data", "pri", "attempts", "context", "state", "tube")} == {
        "data": {"to": "ann"},
        "pri": 3,
        "attempts": 1,
        "context": {"a": "b"},
        "state": "taken",
        "tube": "mail",
    }
    assert 50 < task["due"] - time.time() < 70
    assert http.delete(f"/leases/{task['lease']}").status_code == 204
    assert problem(http.delete(f"/leases/{task['lease']}")) == (409, "task-not-taken")
    assert problem(http.get(f"/tubes/mail/tasks/{task['id']}")) == (404, "task-not-found")


def test_data_comes_out_as_it_was_put(http: httpx.Client) -> None:
    for data in (None, 0, 1.5, "ä\u2028", [1, {"b": []}], 2**70):
        put(http, data)
        assert take(http)[0]["data"] == data
    for raw in (b"", b"\xff\0", b"NaN", b"[" * 9999):
        assert http.post("/tubes/mail/tasks/raw?pri=1&ttl=60", content=raw).status_code == 201
        (task,) = take(http)
        assert (base64.b64decode(task["data_base64"]), task["pri"], "data" in task) == (raw, 1, False)
    http.post("/tubes/mail/tasks/raw", content=b'{ "n": 1.0 }')
    assert b'"data":{ "n": 1.0 }' in http.post("/tubes/mail/take", json={}).content
    http.post("/tubes/mail/tasks", json={"data_base64": "AAE="})
    assert take(http)[0]["data_base64"] == "AAE="


def test_python_programs_share_the_tubes(served: Served, base: str, http: httpx.Client) -> None:
    url = str(served.options[1])
    if url == "memory://":
        pytest.skip("memory is that of the service alone")
    with tubes.connect(f"{url}&namespace={base.removeprefix('/v1/')}") as queue:
        mail = queue.tube("mail")
        mail.put({"from": "python"}, key="k")
        (task,) = take(http)
        assert (task["data"], task["key"]) == ({"from": "python"}, "k")
        assert mail.ack(tubes.Lease(task["lease"])).id == task["id"]
        put(http, ["from", "http"])
        assert take_task(mail).data == ["from", "http"]


def test_tube_name_in_path_may_be_percent_encoded(http: httpx.Client) -> None:
    name = "a/b:c+d;$(e)"
    path = f"/tubes/{quote(name, safe='')}"
    assert http.put(path, json={"driver": "utubettl", "options": {"ttl": 60, "backoff": [1, 5]}}).status_code == 201
    reply = http.post(f"{path}/tasks", json={"data": 1, "utube": "x"})
    assert reply.headers["location"].endswith(f"{path}/tasks/0")
    assert take(http, tube=quote(name, safe=""))[0]["tube"] == name
    assert http.get("/tubes").json()["tubes"][name]["options"]["backoff"] == [1, 5]


def test_a_tube_is_made_altered_and_dropped(http: httpx.Client) -> None:
    assert http.get("/tubes/mail").json()["options"] == {"ttr": 120}
    reply = http.put("/tubes/mail", json={"options": {"ttr": 5, "buried_ttl": "inf"}})
    assert (reply.status_code, reply.json()["options"]) == (200, {"ttr": 5, "buried_ttl": "inf"})
    assert http.patch("/tubes/mail", json={"options": {"buried_ttl": None}}).json()["options"] == {"ttr": 5}
    assert problem(http.put("/tubes/mail", json={"driver": "fifo"})) == (409, "tube-exists")
    assert problem(http.put("/tubes/other", json={"driver": "nix"})) == (400, "driver-not-found")
    assert problem(http.put("/tubes/other", json={"options": {"nix": 1}})) == (400, "invalid-option")
    assert problem(http.put("/tubes/other", json={"options": {"jitter": 1}})) == (400, "option-not-supported")
    put(http)
    assert len(take(http)) == 1
    assert problem(http.delete("/tubes/mail")) == (409, "tube-busy")
    assert http.delete("/tubes/mail?force=1").status_code == 204
    assert problem(http.post("/tubes/mail/tasks", json={"data": 1})) == (404, "tube-not-found")
    # The tube is found again after it was dropped and created.
    assert http.put("/tubes/mail").status_code == 201
    assert put(http) == 0


def test_tube_with_partitions_is_shown_with_all_its_tasks(http: httpx.Client) -> None:
    assert http.put("/tubes/crawl", json={"options": {"partitions": 3}}).status_code == 201
    for number in range(6):
        put(http, number, "crawl")
    shown = http.get("/tubes/crawl?ages=1").json()
    listed = http.get("/tubes?ages=1").json()["tubes"]["crawl"]
    (found,) = http.get("/tubes?contains=crawl").json()["tubes"].values()
    assert shown["tasks"]["ready"] == listed["tasks"]["ready"] == found["tasks"]["ready"] == 6
    assert None not in (shown["oldest_ready_age"], listed["oldest_ready_age"])


def test_tasks_are_listed_changed_buried_kicked_and_deleted(http: httpx.Client) -> None:
    ids = [put(http, number, pri=number) for number in range(3)]
    assert [task["id"] for task in http.get("/tubes/mail/tasks?limit=2").json()["tasks"]] == ids[:2]
    assert [task["id"] for task in http.get(f"/tubes/mail/tasks?after={ids[1]}").json()["tasks"]] == ids[2:]
    assert http.patch("/tubes/mail/tasks/2", json={"pri": 0, "data": "new"}).json()["data"] == "new"
    assert http.post("/tubes/mail/tasks/1/bury", json={"reason": "bad"}).json()["reason"] == "bad"
    assert [task["id"] for task in http.get("/tubes/mail/tasks?state=buried").json()["tasks"]] == [1]
    assert http.post("/tubes/mail/tasks/1/kick").json()["state"] == "ready"
    http.post("/tubes/mail/tasks/1/bury")
    assert select(http, "kick", state="buried", limit=9) == 1
    assert problem(http.delete("/tubes/mail/tasks/1?state=buried,taken")) == (409, "conflict")
    assert http.delete("/tubes/mail/tasks/1").status_code == 204
    assert http.post("/tubes/mail/pause", json={"seconds": 60}).status_code == 204
    assert take(http) == []
    assert http.get("/tubes/mail").json()["paused"] is True
    assert http.post("/tubes/mail/resume").status_code == 204
    assert len(take(http, limit=9)) == 2
    assert http.post("/tubes/mail/release-all").status_code == 204
    assert http.post("/tubes/mail/truncate").status_code == 204
    assert http.get("/tubes/mail").json()["tasks"]["total"] == 0


def test_damaged_tube_is_checked_and_repaired(valkey_service: Served, valkey: LocalServer) -> None:
    namespace = uuid4().hex
    with httpx.Client(base_url=f"{valkey_service.url}/v1/{namespace}", timeout=30) as http:
        assert http.put("/tubes/mail").status_code == 201
        put(http)
        assert http.get("/tubes/mail/problems").json() == {"problems": []}
        add_stray_key(valkey, namespace)
        found = {
            "kind": "key",
            "what": "unique keys that do not refer to their tasks: nobody",
            "remedy": "corrects them; if two tasks have one key, one keeps it",
            "count": 1,
            "examples": ["nobody"],
            "repaired": False,
        }
        assert http.get("/tubes/mail/problems").json() == {"problems": [found]}
        remedy = "corrected them; if two tasks had one key, one keeps it"
        repaired = {**found, "remedy": remedy, "repaired": True}
        assert http.post("/tubes/mail/repair").json() == {"problems": [repaired]}
        assert http.get("/tubes/mail/problems").json() == {"problems": []}
        assert problem(http.post("/tubes/other/repair")) == (404, "tube-not-found")


def test_batch_put_is_atomic(http: httpx.Client) -> None:
    reply = http.post("/tubes/mail/tasks/batch", json={"items": [{"data": 1}, {"data": 2, "pri": 1}]})
    assert (reply.status_code, reply.json()) == (201, {"ids": [0, 1]})
    reply = http.post("/tubes/mail/tasks/batch", json={"items": [{"data": 1}, {"data": 2, "pri": -1}]})
    assert problem(reply) == (400, "invalid-option")
    assert (reply.json()["item"], reply.json()["option"]) == (1, "pri")
    assert http.get("/tubes/mail").json()["tasks"]["ready"] == 2


def test_failures_of_a_task_are_shown(http: httpx.Client) -> None:
    put(http, 1, max_attempts=2)
    (task,) = take(http)
    assert "failures" not in task
    end = {"leases": [task["lease"]], "reason": "timeout", "worker": "web1:4711"}
    assert http.post("/leases/release", json=end).json() == {"done": [True]}
    (task,) = take(http)
    end = {"leases": [task["lease"]], "reason": "KeyError: 1", "traceback": "File\nKeyError: 1"}
    assert http.post("/leases/bury", json=end).json() == {"done": [True]}
    dead = http.get("/tubes/mail/tasks/0").json()
    assert [(one["attempt"], one["worker"], one["error"]) for one in dead["failures"]] == [
        (1, "web1:4711", "timeout"),
        (2, None, "KeyError: 1"),
    ]
    assert (dead["traceback"], dead["buried_at"]) == ("File\nKeyError: 1", dead["failures"][1]["time"])
    assert http.get("/tubes/mail/tasks?state=buried").json()["tasks"] == [dead]


def test_many_leases_end_in_one_request(http: httpx.Client) -> None:
    for number in range(5):
        put(http, number)
    leases = [task["lease"] for task in take(http, limit=5)]
    assert http.post("/leases/ack", json={"leases": [*leases[:2], leases[0]]}).json() == {"done": [True, True, False]}
    assert http.post("/leases/release", json={"leases": leases[2:3], "delay": 60}).json() == {"done": [True]}
    assert http.post("/leases/bury", json={"leases": leases[3:4], "reason": "bad"}).json() == {"done": [True]}
    assert http.post("/leases/renew", json={"leases": leases[3:], "seconds": 500}).json() == {"done": [False, True]}
    assert http.post("/leases/touch", json={"leases": leases[4:], "seconds": 500}).json() == {"done": [True]}
    assert http.patch(f"/leases/{leases[4]}", json={"data": "half"}).json()["data"] == "half"
    assert 900 < http.get("/tubes/mail/tasks/4").json()["due"] - time.time() < 1001
    counts = http.get("/tubes/mail").json()["tasks"]
    assert (counts["delayed"], counts["buried"], counts["taken"], counts["done"]) == (1, 1, 1, 2)
    assert http.post("/tubes/mail/take", json={"ack": leases[4:]}).json() == {"tasks": [], "acked": [True]}
    bad = http.post("/leases/ack", json={"leases": [leases[0], "nix"]})
    assert (problem(bad), bad.json()["item"]) == ((400, "invalid-option"), 1)


@pytest.mark.full
def test_a_done_task_is_kept_with_its_result_and_put_again(http: httpx.Client) -> None:
    first, second, third = (put(http, number, keep_done=60) for number in range(3))
    where = f"/tubes/mail/tasks/{first}"
    assert http.get(f"{where}/result").status_code == 204
    leases = [task["lease"] for task in take(http, limit=3)]
    found: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: found.append(http.get(f"{where}/result?wait=20")))
    waiting.start()
    results = {"leases": [*leases[:2], leases[0]], "results": [{"n": 1.5}, None, 3]}
    assert http.post("/leases/ack", json=results).json() == {"done": [True, True, False]}
    waiting.join()
    assert (found[0].status_code, found[0].json()) == (200, {"result": {"n": 1.5}})
    done = http.get(where).json()
    assert (done["state"], done["why"], done["result"]) == ("done", "ack", {"n": 1.5})
    assert 0 <= time.time() - done["ended"] < 60
    assert http.get(f"/tubes/mail/tasks/{second}/result").json() == {"result": None}
    assert {task["id"] for task in http.get("/tubes/mail/tasks?state=done").json()["tasks"]} == {first, second}
    again = http.post(f"{where}/kick")
    assert (again.status_code, again.json()["state"]) == (200, "ready")
    assert http.get(f"/tubes/mail/tasks/{again.json()['id']}").json()["data"] == 0
    assert problem(http.get(f"{where}/result")) == (404, "task-not-found")
    http.post("/leases/bury", json={"leases": leases[2:], "reason": "bad"})
    assert problem(http.get(f"/tubes/mail/tasks/{third}/result?wait=20")) == (502, "call-failed")
    for bad in ({"leases": leases[:1], "results": []}, {"leases": leases[:1], "results": {}}):
        assert problem(http.post("/leases/ack", json=bad)) == (400, "invalid-option")
    assert problem(http.get(f"/tubes/mail/tasks/{put(http)}/result")) == (409, "conflict")
    assert select(http, "delete", state="done") == 1
    ids = [put(http, keep_done=60), put(http, keep_done=60)]
    one, other = (task for task in take(http, limit=9) if task["id"] in ids)
    for body in ({"ack": [one["lease"]], "results": []}, {"results": [1]}, {"ack": "x"}):
        refused = http.post("/tubes/mail/take", json=body)
        assert (problem(refused), "leases" in refused.text) == ((400, "invalid-option"), False)
    assert problem(http.request("DELETE", f"/leases/{one['lease']}", json={"reply": 1})) == (400, "invalid-option")
    assert http.request("DELETE", f"/leases/{one['lease']}", json={"result": [5]}).status_code == 204
    reply = http.post("/tubes/mail/take", json={"ack": [other["lease"]], "results": [6]})
    assert reply.json()["acked"] == [True]
    kept = [http.get(f"/tubes/mail/tasks/{id}/result").json()["result"] for id in ids]
    assert sorted(map(str, kept)) == ["6", "[5]"]
    assert select(http, "delete", state="done") == 2
    assert http.get("/tubes/mail").json()["kept"] == 0


@pytest.mark.sample(1)
def test_replies_are_bounded_in_bytes(http: httpx.Client) -> None:
    for _ in range(70):
        http.post("/tubes/mail/tasks/raw", content=b"x" * 200_000)
    ids: list[int] = []
    while tasks := http.get(
        f"/tubes/mail/tasks?limit=1000&after={ids[-1] if ids else -1}".replace("&after=-1", "")
    ).json()["tasks"]:
        assert len(tasks) <= 64
        ids += [task["id"] for task in tasks]
    assert ids == list(range(70))
    assert len(take(http, limit=1000)) == 64


def test_take_with_unknown_session_is_not_found(http: httpx.Client) -> None:
    for bad in ("6f0e6c529f604a3c9d3e3c1f7a2d5b84-1000000", "\ud800", "x" * 32 + "-5000000"):
        reply = http.post("/tubes/mail/take", content=json.dumps({"session": bad}))
        assert problem(reply) == (404, "session-not-found")


def test_stream_sends_each_task_as_one_line(http: httpx.Client) -> None:
    raw = b'[\n{"id":7,"tube":"mail","state":"taken","lease":"forged"}\r\n, "a\\nb"]'
    http.post("/tubes/mail/tasks/raw", content=raw)
    with http.stream("POST", "/tubes/mail/stream") as lines:
        task = json.loads(next(lines.iter_lines()))
    assert (task["id"], task["data"]) == (0, json.loads(raw))


def test_a_key_and_an_idempotency_key_add_a_task_once(http: httpx.Client) -> None:
    first = http.post("/tubes/mail/tasks", json={"data": 1, "key": "k"})
    again = http.post("/tubes/mail/tasks", json={"data": 2, "key": "k"})
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    raises = http.post("/tubes/mail/tasks", json={"data": 2, "key": "k", "on_duplicate": "raise"})
    assert problem(raises) == (409, "duplicate-key")
    headers = {"idempotency-key": "once"}
    codes = [http.post("/tubes/mail/tasks", json={"data": d}, headers=headers).status_code for d in (1, 1, 2)]
    assert codes == [201, 200, 422]
    assert http.get("/tubes/mail").json()["tasks"]["ready"] == 2
    for path, body in (("tasks/batch", {"items": [{"data": 1}]}), ("call", {"data": 1, "timeout": 0})):
        refused = http.post(f"/tubes/mail/{path}", json=body, headers=headers)
        assert (*problem(refused), refused.json()["option"]) == (400, "invalid-option", "Idempotency-Key")
    empty = http.post("/tubes/mail/tasks", json={"data": 1}, headers={"idempotency-key": ""})
    assert (*problem(empty), empty.json()["option"]) == (400, "invalid-option", "Idempotency-Key")
    http.delete("/tubes/mail/tasks/1")
    again = http.post("/tubes/mail/tasks", json={"data": 2}, headers=headers)
    assert (again.status_code, again.json()) == (200, {"id": 1, "state": "done"})


def test_a_full_tube_refuses_or_waits_for_room(http: httpx.Client) -> None:
    http.put("/tubes/mail", json={"options": {"capacity": 1}})
    put(http)
    assert problem(http.post("/tubes/mail/tasks", json={"data": 1})) == (409, "tube-full")
    assert problem(http.post("/tubes/mail/tasks", json={"data": 1, "timeout": 0.01}))[0] == 409
    waiting = threading.Thread(target=put, args=(http, 1), kwargs={"timeout": 20})
    waiting.start()
    assert eventually(lambda: http.get("/tubes/mail").json()["waiting"] == 1)
    http.delete(f"/leases/{take(http)[0]['lease']}")
    waiting.join()
    assert http.get("/tubes/mail").json()["tasks"]["ready"] == 1


def test_a_poll_gets_the_first_task_of_several_tubes(http: httpx.Client) -> None:
    http.put("/tubes/other")
    found: list[Any] = []

    def poll() -> None:
        found.append(http.post("/take", json={"tubes": ["other", "mail"], "wait": 20}).json()["tasks"][0]["data"])

    polling = threading.Thread(target=poll)
    polling.start()
    assert eventually(lambda: http.get("/tubes/mail").json()["waiting"] == 1)
    put(http, "woken")
    polling.join()
    assert found == ["woken"]


def test_a_take_from_several_tubes_may_go_by_priority(http: httpx.Client) -> None:
    http.put("/tubes/other")
    put(http, "late", pri=5)
    put(http, "soon", tube="other", pri=1)
    assert http.post("/take", json={"tubes": ["mail", "other"], "order": "pri"}).json()["tasks"][0]["data"] == "soon"


def test_disconnect_during_poll_loses_no_task_and_uses_no_attempt(http: httpx.Client) -> None:
    for round in range(20):
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                http.post("/tubes/mail/take", json={"wait": 20}, timeout=0.02 if round % 2 else 0.001)
        put(http, round)
        (task,) = take(http, wait=20)
        assert (task["data"], task["attempts"]) == (round, 1)
        http.delete(f"/leases/{task['lease']}")
    assert eventually(lambda: http.get("/tubes/mail").json()["waiting"] == 0)


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/tubes/mail/tasks", b"{", 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": 1e999}', 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": "\\ud800"}', 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b"{}", 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": 1, "pri": "5"}', 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": 1, "timeout": []}', 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": 1, "at": "soon"}', 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": 1, "nix": 1}', 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks", b'{"data": 1, "utube": "a"}', 400, "option-not-supported"),
        ("POST", "/tubes/mail/tasks", b'{"data": "' + b"x" * 2**20 + b'"}', 413, None),
        ("POST", "/tubes/mail/tasks/raw?delay=nan", b"", 400, "invalid-option"),
        ("POST", "/tubes/mail/tasks/batch", b'{"items": [1]}', 400, "invalid-option"),
        ("POST", "/tubes/mail/take", b'{"limit": 0}', 400, "invalid-option"),
        ("POST", "/tubes/mail/take", b'{"limit": 1001}', 400, "invalid-option"),
        ("POST", "/tubes/mail/take", b'{"wait": 601}', 400, "invalid-option"),
        ("POST", "/tubes/mail/take", b'{"wait": {}}', 400, "invalid-option"),
        ("POST", "/tubes/plain/take", b"{}", 400, "option-not-supported"),
        ("POST", "/take", b'{"tubes": []}', 400, "invalid-option"),
        ("POST", "/take", b'{"tubes": ["mail", "mail"], "order": []}', 400, "invalid-option"),
        ("POST", "/leases/ack", b'{"leases": 1}', 400, "invalid-option"),
        ("GET", "/tubes/mail/tasks?limit=-1", b"", 400, "invalid-option"),
        ("GET", "/tubes/mail/tasks?limit=1&limit=2", b"", 400, "invalid-option"),
        ("GET", "/tubes/mail/tasks?state=nix", b"", 400, "invalid-option"),
        ("GET", "/tubes/mail/tasks/x", b"", 400, "invalid-option"),
        ("GET", "/tubes/tubes.x", b"", 400, "invalid-option"),
        ("GET", "/tubes/%FF", b"", 400, "invalid-option"),
        ("PUT", "/tubes/t", b'{"driver": 5}', 400, "invalid-option"),
        ("PUT", "/tubes/t", b'{"options": {"backoff": {"nix": 1}}}', 400, "invalid-option"),
        ("DELETE", "/tubes/mail/take", b"", 405, "method-not-allowed"),
        ("GET", "/tubes/mail/nix", b"", 404, "not-found"),
    ],
)
def test_bad_input_gets_a_problem_and_changes_nothing(
    http: httpx.Client, method: str, path: str, body: bytes, status: int, kind: str | None
) -> None:
    http.put("/tubes/plain", json={"driver": "fifo"})
    put(http)
    before = http.get("/tubes").json()
    found = problem(http.request(method, path, content=body))
    assert found[0] == status
    assert kind is None or found[1] == kind
    assert http.get("/tubes").json() == before


def test_error_details_use_http_and_json_terms(http: httpx.Client) -> None:
    assert http.get("/tubes/nix").json()["detail"] == "there is no tube nix: PUT creates it"
    for body, detail in (
        (b'{"data": 1, "pri": "5"}', "pri: 5: must be"),
        (b'{"data": 1, "pri": {"a": null}}', 'pri: {"a":null}: must be'),
        (b"{}", "data: is required"),
        (b"{", "body: {: must be JSON"),
    ):
        assert http.post("/tubes/mail/tasks", content=body).json()["detail"].startswith(detail)


@pytest.mark.sample(17)
@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("PUT", "/tubes/t", {"driver": False}, "driver: false: must be a string"),
        ("PUT", "/tubes/t", {"driver": ""}, 'driver: "": must be 1 to 32 characters'),
        ("PUT", "/tubes/t", {"temporary": {}}, "temporary: {}: must be true or false"),
        ("PUT", "/tubes/t", {"options": None}, "options: null: must be an object"),
        ("PATCH", "/tubes/mail", {"options": []}, "options: []: must be an object"),
        ("PATCH", "/tubes/mail", {"options": {"ttr": True}}, "ttr: true: must be a number or null"),
        ("POST", "/tubes/mail/tasks", {"data": 1, "ttl": None}, "ttl: null: must be a number"),
        ("POST", "/tubes/mail/tasks", {"data": 1, "pri": 2**32}, "pri: 4294967296: must be from 0 to 4294967295"),
        ("POST", "/tubes/mail/tasks", {"data": 1, "data_base64": ""}, 'data_base64: "": must be left out with data'),
        ("POST", "/tubes/mail/tasks", {"data": 1, "key_ttl": 1}, "key_ttl: 1: requires key"),
        ("POST", "/tubes/mail/tasks/batch", {"items": [{"data": 1}, {"data": 1, "pri": -1}]}, "item 1: pri: -1: must"),
        ("POST", "/tubes/mail/select", {}, "action: is required"),
        ("POST", "/tubes/mail/select", {"action": "move"}, "to: is required"),
        ("POST", "/tubes/mail/select", {"action": "move", "with": {"to": "mail"}}, "to: mail: must be another tube"),
        ("POST", "/tubes/mail/select", {"action": "count", "state": ""}, 'state: "": must be one of ready, taken'),
        ("POST", "/tubes/mail/select", {"action": "count", "contains": ""}, 'contains: "": must not be empty'),
        ("POST", "/tubes/mail/select", {"action": "count", "contains": "a" * 257}, "contains: "),
        ("POST", "/tubes/mail/select", {"action": "count", "lane": "a"}, ""),
        ("POST", "/tubes/mail/select", {"action": "count", "state": "ready", "reason": "x"}, "reason: x: must be left"),
        (
            "POST",
            "/tubes/mail/select",
            {"action": "delete", "with": {"reason": "x"}},
            "reason: x: must be left out with",
        ),
        ("POST", "/tubes/mail/truncate", {"state": "done"}, "state: done: is unknown: nothing can be given here"),
        ("POST", "/leases/checkpoint", {"saved": 1}, "lease: is required"),
        ("POST", "/leases/checkpoint", {"lease": "short"}, "lease: short: must be a lease"),
        ("POST", "/leases/checkpoint", {"lease": "1" * 60, "progress": 2}, "progress: 2: must be from 0 to 1"),
        ("DELETE", "/leases/short", None, "lease: short: must be a lease: at least 40"),
        ("PATCH", "/leases/short", {"data": 1}, "lease: short: must be a lease: at least 40"),
        ("DELETE", f"/leases/{'1' * 60}", None, f"lease: {'1' * 60}: is not a lease of this namespace, or was cut"),
        ("POST", "/leases/ack", {"leases": ["short"]}, "item 0: leases: short: must be a lease: at least 40"),
        ("POST", "/tubes/mail/take", {"ack": ["short"]}, "item 0: ack: short: must be a lease: at least 40"),
        ("POST", "/tubes/mail/take", {"results": []}, "results: []: requires ack"),
        ("POST", "/tubes/mail/tasks/raw?pri=4294967296", None, "pri: 4294967296: must be from 0 to 4294967295"),
        ("POST", "/tubes/mail/tasks/raw?pri=99999999999999999999", None, "pri: 99999999999999999999: must be from 0"),
        ("POST", "/tubes/mail/tasks/raw?ttl=1_0", None, "ttl: 1_0: must be a number"),
        ("GET", "/tubes/nope/tasks?limit=0", None, "limit: 0: must be from 1 to 1000"),
        ("GET", "/tubes/mail/tasks?limit=1001", None, "limit: 1001: must be from 1 to 1000"),
        ("POST", "/tubes/mail/stream", {"window": 1001}, "window: 1001: must be from 1 to 1000"),
        ("GET", "/tubes/mail/due?edges=" + "1," * 100 + "1", None, "edges: "),
    ],
)
def test_refused_value_is_named_with_its_rule(
    http: httpx.Client, method: str, path: str, body: object, detail: str
) -> None:
    reply = http.request(method, path, json=body)
    assert (reply.status_code, reply.json()["detail"][: len(detail)]) == (400, detail)
    assert http.get("/tubes/t").status_code == 404


def test_list_of_missing_tube_is_not_found(http: httpx.Client) -> None:
    assert problem(http.get("/tubes/nope/tasks?limit=1")) == (404, "tube-not-found")


def test_request_not_allowed_in_current_state_is_a_conflict(http: httpx.Client) -> None:
    id = put(http, 5)
    take(http)
    http.put("/tubes/lanes", json={"driver": "utubettl"})
    task = f"/tubes/mail/tasks/{id}"
    refused = {
        "taken": [http.patch(task, json={"delay": 1}), http.patch(task, json={"ttl": 1})],
        "fifo": [http.patch("/tubes/lanes", json={"options": {"order": "round_robin"}})],
    }
    wrong_state = http.delete(f"{task}?state=ready,buried")
    assert (problem(wrong_state), wrong_state.json()["id"]) == ((409, "conflict"), id)
    for current, replies in refused.items():
        for reply in replies:
            assert problem(reply) == (409, "conflict")
            assert reply.json()["current"] == current


def test_integral_float_is_accepted_as_integer(http: httpx.Client) -> None:
    put(http, 1, pri=5.0)
    assert take(http, limit=1.0)[0]["pri"] == 5


def test_every_request_has_an_id_and_a_line_in_the_log(served: Served, http: httpx.Client) -> None:
    reply = http.get("/tubes/mail?x=secret", headers={"x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    assert len(http.get("/tubes/mail", headers={"x-request-id": "bad id"}).headers["x-request-id"]) == 16
    (line,) = [line for line in served.lines() if line["request_id"] == "mine-1"]
    assert (line["method"], line["status"], line["client"]) == ("GET", 400, "127.0.0.1")
    assert line["bytes"] == len(reply.content)
    assert "secret" not in json.dumps(line)


def test_health_endpoints_report_live_and_ready(served: Served) -> None:
    assert served.client.get("/health/live").json()["status"] == "live"
    assert served.client.get("/health/ready").json() == {"status": "ready"}
    assert served.client.get("/version").json() == {"version": tubes.__version__}


def test_a_session_holds_tasks_until_it_ends(http: httpx.Client) -> None:
    http.put("/tubes/plain", json={"driver": "fifo"})
    session = http.post("/sessions", json={"ttl": 1}).json()["session"]
    for number in range(3):
        put(http, number, tube="plain")
        put(http, number)
    (first,) = take(http, tube="plain", session=session)
    assert http.delete(f"/leases/{first['lease']}").status_code == 204
    take(http, tube="plain", session=session, limit=9)
    take(http, session=session)
    assert http.post(f"/sessions/{session}/beat").status_code == 204
    assert http.delete(f"/sessions/{session}").status_code == 204
    assert http.get("/tubes/plain").json()["tasks"]["ready"] == 2
    assert http.get("/tubes/mail").json()["tasks"]["ready"] == 3
    for path in (session, "nix", f"{'0' * 32}-1000000"):
        assert problem(http.post(f"/sessions/{path}/beat")) == (404, "session-not-found")
    assert problem(http.post("/tubes/mail/take", json={"session": session})) == (404, "session-not-found")
    assert problem(http.post("/sessions", json={"ttl": 0.5})) == (400, "invalid-option")
    # A session that is not renewed ends after its ttl.
    session = http.post("/sessions", json={"ttl": 1}).json()["session"]
    assert len(take(http, tube="plain", session=session)) == 1
    assert eventually(lambda: http.get("/tubes/plain").json()["tasks"]["ready"] == 2)


def test_lone_surrogates_in_names_and_reasons_are_escaped(http: httpx.Client) -> None:
    http.put("/tubes/crawl", json={"driver": "utubettl"})
    text = "\ud800"
    body = json.dumps({"data": 1, "utube": text, "key": text, "context": {"a": text}})
    id = http.post("/tubes/crawl/tasks", content=body).json()["id"]
    http.post(f"/tubes/crawl/tasks/{id}/bury", content=json.dumps({"reason": text}))
    (task,) = http.get("/tubes/crawl/tasks").json()["tasks"]
    assert (task["utube"], task["key"], task["reason"], task["context"]) == (text, text, text, {"a": text})
    assert http.get("/tubes/crawl/reasons").status_code == http.get("/tubes/crawl/lanes").status_code == 200
    http.post("/tubes/crawl/lanes/a/block", content=json.dumps({"seconds": 60, "reason": text}))
    assert http.get("/tubes/crawl/lanes/a").json()["blocked_reason"] == text


def test_lanes_are_listed_configured_and_blocked(http: httpx.Client) -> None:
    http.put("/tubes/crawl", json={"driver": "utubettl"})
    put(http, 1, tube="crawl", utube="a/b")
    assert http.post("/tubes/crawl/lanes/a%2Fb/block", json={"seconds": 60, "reason": "429"}).status_code == 204
    shorter = {"seconds": 5, "extend": True}
    assert http.post("/tubes/crawl/lanes/a%2Fb/block", json=shorter).status_code == 204
    assert (
        http.patch(
            "/tubes/crawl/lanes/a%2Fb", json={"max_in_flight": 5, "interval": None, "interval_from": "ack"}
        ).status_code
        == 204
    )
    assert http.patch("/tubes/crawl/lanes/b", json={"rate": "10/s", "burst": 4}).status_code == 204
    limits = http.get("/tubes/crawl/lanes/b").json()
    assert (limits["interval"], limits["burst"]) == (0.1, 4)
    http.patch("/tubes/crawl/lanes/b", json={"rate": None, "burst": None})
    (lane,) = http.get("/tubes/crawl/lanes").json()["lanes"]
    assert (lane["name"], lane["ready"], lane["max_in_flight"]) == ("a/b", 1, 5)
    assert 50 < lane["next_start"] - time.time() < 70
    assert (lane["blocked_until"], lane["blocked_reason"]) == (lane["next_start"], "429")
    assert http.get("/tubes/crawl/lanes/a%2Fb").json() == lane
    assert http.get("/tubes/crawl/lanes/other").json()["blocked_until"] is None
    assert problem(http.get("/tubes/mail/lanes/a")) == (400, "option-not-supported")
    assert take(http, tube="crawl") == []
    assert problem(http.get("/tubes/mail/lanes")) == (400, "option-not-supported")


def test_lanes_are_sorted_and_searched(http: httpx.Client) -> None:
    http.put("/tubes/crawl", json={"driver": "utubettl", "options": {"max_in_flight": 2}})
    for lane in ("a.org", "b.com", "B.org", "b.com", "b.com"):
        put(http, lane, tube="crawl", utube=lane)
    take(http, tube="crawl", limit=1)
    http.post("/tubes/crawl/lanes/c/block", json={"seconds": 60})
    http.post("/tubes/crawl/lanes/b.com/block", json={"seconds": 30})

    def names(**query: Any) -> list[str]:
        return [lane["name"] for lane in http.get("/tubes/crawl/lanes", params=query).json()["lanes"]]

    assert names() == names(sort="name") == ["B.org", "a.org", "b.com", "c"]
    assert names(sort="ready") == ["b.com", "B.org", "a.org", "c"]
    assert names(sort="taken") == ["a.org", "B.org", "b.com", "c"]
    assert names(sort="waiting_since") == ["b.com", "B.org", "a.org", "c"]
    assert names(sort="next_start") == ["b.com", "c", "B.org", "a.org"]
    assert names(sort="blocked") == ["c", "b.com", "B.org", "a.org"]
    reply = http.get("/tubes/crawl/lanes?contains=b.&sort=ready&offset=1&limit=1").json()
    assert ([lane["name"] for lane in reply.pop("lanes")], reply) == (["B.org"], {"total": 2, "complete": True})
    assert http.get("/tubes/crawl/lanes?limit=1").json().keys() == {"lanes", "complete"}
    assert names(offset=4) == []
    for _ in range(2):
        assert http.delete("/tubes/crawl/lanes/c/block").status_code == 204
    assert names(sort="blocked") == ["b.com", "B.org", "a.org"]
    assert problem(http.get("/tubes/crawl/lanes?sort=age")) == (400, "invalid-option")


def test_reasons_have_samples(http: httpx.Client) -> None:
    assert http.get("/tubes/mail/reasons?samples=1").json() == {"reasons": {}, "samples": {}}
    created: list[float] = []
    for number in range(4):
        id = put(http, {"task": ("mail", "send", "mail")[number]} if number < 3 else "text")
        reason = {"reason": "one" if number == 3 else f"bad: {number}"}
        created.append(http.post(f"/tubes/mail/tasks/{id}/bury", json=reason).json()["created"])
    reply = http.get("/tubes/mail/reasons?samples=1").json()
    assert reply["reasons"] == {"bad": 3, "one": 1}
    assert reply["samples"] == {
        "bad": {"first": created[0], "last": created[2], "id": 2, "functions": ["mail", "send"]},
        "one": {"first": created[3], "last": created[3], "id": 3, "functions": []},
    }
    http.post("/tubes/mail/select", json={"action": "delete", "reason": "one", "state": "buried"})
    assert http.get("/tubes/mail/reasons?samples=1").json()["samples"].keys() == {"bad"}


def test_dead_letters_are_counted_and_moved(http: httpx.Client) -> None:
    http.put("/tubes/dead")
    for number in range(3):
        put(http, number, delay=60 * number)
        http.post(f"/tubes/mail/tasks/{number}/bury", json={"reason": f"bad: {number}"})
    put(http, 3, delay=100)
    assert http.get("/tubes/mail/reasons").json() == {"reasons": {"bad": 3}}
    assert http.get("/tubes/mail/due?edges=1,200").json() == {"counts": [0, 1, 0]}
    assert select(http, "move", {"to": "dead"}, state="buried", limit=2) == 2
    assert http.get("/tubes/dead").json()["tasks"]["ready"] == 2
    for to in ("mail", ["dead"], "a b"):
        refused = http.post("/tubes/mail/select", json={"action": "move", "with": {"to": to}})
        assert problem(refused) == (400, "invalid-option")


def test_selection_of_ids_changes_only_these_tasks(http: httpx.Client) -> None:
    ids = [put(http, number) for number in range(6)]
    assert http.put("/tubes/dead").status_code == 201
    assert select(http, "count", ids=[*ids, 999]) == 6
    assert select(http, "bury", {"reason": "bad"}, ids=[ids[0], ids[0], ids[1], 999]) == 2
    assert select(http, "kick", ids=ids[1:]) == 1
    assert select(http, "move", {"to": "dead"}, ids=[ids[0], ids[2]]) == 2
    assert select(http, "cancel", ids=[ids[3]]) == select(http, "delete", ids=[ids[4]]) == 1
    assert [task["id"] for task in http.get("/tubes/mail/tasks").json()["tasks"]] == [ids[1], ids[5]]
    reply = http.post("/tubes/mail/select", json={"action": "kick", "ids": ids, "state": "buried"})
    assert problem(reply) == (400, "invalid-option")


def test_preview_shows_the_start_of_the_data(http: httpx.Client) -> None:
    text = json.dumps("Gr\u00fc\u00dfe " * 1000, ensure_ascii=False)
    id = put(http, json.loads(text))
    stored = len(text.encode())
    [task] = http.get("/tubes/mail/tasks", params={"preview": 4}).json()["tasks"]
    assert "data" not in task
    assert (task["preview"], task["size"]) == ('"Gr', stored)
    task = http.get(f"/tubes/mail/tasks/{id}", params={"preview": 10**6}).json()
    assert (task["preview"], task["size"]) == (text, stored)
    raw = http.post("/tubes/mail/tasks/raw", content=b"\xff\x00rest").json()["id"]
    task = http.get(f"/tubes/mail/tasks/{raw}", params={"preview": 2}).json()
    assert (base64.b64decode(task["preview_base64"]), task["size"]) == (b"\xff\x00", 6)


def test_each_moment_of_the_calendar_is_accepted(http: httpx.Client) -> None:
    far = ("9674-01-31t12:00:00.5z", "9999-12-31T23:59:59-14:00")
    tasks = [http.post("/tubes/mail/tasks", json={"data": 1, "at": at}) for at in (*far, "0001-01-01T00:00:00+14:00")]
    assert [task.json().get("state") for task in tasks] == ["delayed", "delayed", "ready"]
    due = http.get("/tubes/mail/tasks/0").json()["due"] - time.time()
    assert 36_498 * 86_400 < due < 36_500 * 86_400
    assert http.patch("/tubes/mail/tasks/1", json={"at": far[0]}).status_code == 200
    assert problem(http.post("/tubes/mail/tasks", json={"data": 1, "at": "2030-01-31T12:00:00"}))[0] == 400


def test_previews_of_results_and_saved_values_are_their_texts(http: httpx.Client) -> None:
    value = '{"id":12345678901234567890,"part":1.0}'
    put(http, 1, keep_done=60)
    saved = put(http, 2)
    first, second = take(http, limit=2)
    http.post("/leases/ack", content=f'{{"leases":["{first["lease"]}"],"results":[{value}]}}')
    http.post("/leases/checkpoint", content=f'{{"lease":"{second["lease"]}","saved":{value},"note":"n"}}')
    for id, kind in ((0, "result"), (saved, "saved")):
        task = http.get(f"/tubes/mail/tasks/{id}", params={"preview": 9}).json()
        assert kind not in task
        assert (task[f"{kind}_preview"], task[f"{kind}_size"], task["preview"]) == (value[:9], len(value), str(id + 1))
        assert f'"{kind}":{value}' in http.get(f"/tubes/mail/tasks/{id}").text


def test_selections_count_and_change_tasks(http: httpx.Client) -> None:
    for _ in range(3):
        http.post("/tubes/mail/tasks/batch", json={"items": [{"data": {"to": "ann"}}] * 400})
    put(http, {"to": "bob"}, key="b")
    assert select(http, "count") == select(http, "count", older_than=0, newest_first=True) == 1201
    assert select(http, "bury", {"reason": "ValueError: bad"}, contains='"bob"') == 1
    filters: list[dict[str, Any]] = [{"reason": "ValueError"}, {"key": "b"}, {"attempts": 1}]
    assert [select(http, "count", **one) for one in filters] == [1, 1, 0]
    assert select(http, "cancel", {"reason": "left"}, state="ready", limit=300) == 300
    assert select(http, "kick", {"attempts": 3, "ttl": 60}, state="buried") == 1
    take(http, limit=5)
    assert (select(http, "release"), select(http, "bury", state="delayed")) == (5, 0)
    assert select(http, "delete") == 901
    assert http.get("/tubes/mail").json()["tasks"]["total"] == 0


@pytest.mark.parametrize("driver", ["fifottl", "utubettl", "limfifottl"])
def test_filtered_list_is_paged_in_its_order(http: httpx.Client, driver: str) -> None:
    http.put("/tubes/many", json={"driver": driver, "options": {"keep_done": 60, "ttr": 60}})

    def put_one(number: int, **options: Any) -> int:
        lane = {"utube": f"lane {number}"} if driver == "utubettl" else {}
        return put(http, {"odd": number % 2}, "many", pri=number % 3, **lane, **options)

    for number in range(24):
        put_one(number)
    for task in take(http, "many", limit=24)[::2]:
        assert http.delete(f"/leases/{task['lease']}").status_code == 204
    for number in range(12):
        reason = {"reason": f"bad: {number % 2}"}
        assert http.post(f"/tubes/many/tasks/{put_one(number)}/bury", json=reason).status_code == 200
        put_one(number, delay=60 + number * 7 % 10)
    for number in range(12):
        put_one(number)
    searches: tuple[dict[str, Any], ...] = (
        {},
        {"contains": '"odd":1'},
        {"newest_first": "true"},
        {"older_than": 0, "newest_first": "true"},
    )
    for state in ("ready", "taken", "buried", "delayed", "done", None):
        for filters in searches:
            query: dict[str, Any] = {**filters, **({"state": state} if state else {})}
            whole = [task["id"] for task in http.get("/tubes/many/tasks", params=query).json()["tasks"]]
            paged: list[int] = []
            while True:
                after = {"after": paged[-1]} if paged else {}
                page = http.get("/tubes/many/tasks", params={**query, **after, "limit": 5}).json()["tasks"]
                if not page:
                    break
                paged += [task["id"] for task in page]
            assert (paged, len(paged) > 2) == (whole, True), query
            if state in ("ready", "buried", "delayed"):
                assert len(whole) == (6 if "contains" in filters else 12)
    assert len(http.get("/tubes/many/tasks?state=buried&reason=bad: 1").json()["tasks"]) == 6
    assert problem(http.get("/tubes/many/tasks?state=buried&after=999")) == (404, "task-not-found")


def test_tasks_are_selected_by_function(http: httpx.Client) -> None:
    for data in ({"task": "resize", "args": [1]}, {"task": "mail", "args": ["resize"]}, "resize"):
        put(http, data)
    found = http.get("/tubes/mail/tasks?function=resize").json()["tasks"]
    assert [task["data"] for task in found] == [{"task": "resize", "args": [1]}]
    assert select(http, "bury", function="resize") == select(http, "count", state="buried") == 1
    assert problem(http.get(f"/tubes/mail/tasks?function={'a' * 257}"))[0] == 400


def test_selection_of_missing_tube_is_not_found(http: httpx.Client) -> None:
    for path, body in (("nope", {}), ("mail", {"with": {"to": "nope"}})):
        reply = http.post(f"/tubes/{path}/select", json={"action": "move", "with": {"to": "mail"}} | body)
        assert problem(reply) == (404, "tube-not-found")
    http.put("/tubes/plain", json={"driver": "fifo"})
    reply = http.post("/tubes/plain/select", json={"action": "kick", "with": {"ttl": 1}})
    assert problem(reply) == (400, "option-not-supported")


def test_selection_reports_error_in_its_last_line(http: httpx.Client) -> None:
    http.put("/tubes/small", json={"options": {"capacity": 1}})
    put(http, 1)
    put(http, 2)
    reply = http.post("/tubes/mail/select", json={"action": "move", "with": {"to": "small"}})
    last = json.loads(reply.text.splitlines()[-1])
    assert (reply.status_code, last["type"], last["status"]) == (200, "/problems/tube-full", 409)
    assert http.get("/tubes/small").json()["tasks"]["ready"] == 1


@pytest.mark.full
def test_selection_stops_if_client_leaves(http: httpx.Client) -> None:
    for _ in range(40):
        http.post("/tubes/mail/tasks/batch", json={"items": [{"data": 1}] * 1000})

    def total() -> int:
        tasks: dict[str, int] = http.get("/tubes/mail").json()["tasks"]
        return tasks["total"]

    with http.stream("POST", "/tubes/mail/select", json={"action": "delete"}) as reply:
        assert json.loads(next(reply.iter_lines()))["done"] >= 100
    assert eventually(lambda: total() == total())
    assert 0 < total() < 40_000


def test_checkpoint_saves_progress_for_the_next_attempt(http: httpx.Client) -> None:
    put(http, "film", ttr=60)
    (task,) = take(http)
    assert {"saved", "progress", "note", "cancelled"}.isdisjoint(task)
    lease = task["lease"]
    seen = http.post("/leases/checkpoint", json={"lease": lease, "saved": {"at": [7, None]}, "progress": 0.5}).json()
    assert (seen["saved"], seen["progress"], seen["state"], "note" in seen) == ({"at": [7, None]}, 0.5, "taken", False)
    http.post("/leases/checkpoint", content=json.dumps({"lease": lease, "note": "\ud800 half"}))
    assert http.get("/tubes/mail/tasks/0").json()["note"] == "\ud800 half"
    for bad in ({"saved": "x" * 65_536}, {"note": "x" * 1001}, {"note": 5}, {"progress": True}, {"progress": None}):
        assert problem(http.post("/leases/checkpoint", json={"lease": lease, **bad})) == (400, "invalid-option")
    assert http.post("/leases/release", json={"leases": [lease]}).json() == {"done": [True]}
    assert problem(http.post("/leases/checkpoint", json={"lease": lease})) == (409, "task-not-taken")
    (again,) = take(http)
    assert (again["saved"], again["progress"], again["context"]) == ({"at": [7, None]}, 0.5, {})


def test_cancelled_task_is_reported_to_its_holder(http: httpx.Client) -> None:
    put(http, "film")
    (task,) = take(http)
    with http.stream("GET", "/events?tubes=mail") as events:
        lines = events.iter_lines()
        assert next(lines) == ": listening"
        http.post("/leases/checkpoint", json={"lease": task["lease"], "progress": 1, "note": "half"})
        ended = http.post("/tubes/mail/tasks/0/cancel", json={"reason": "wrong film"})
        assert (ended.status_code, ended.json()["state"], ended.json()["why"]) == (200, "done", "cancelled")
        assert (ended.json()["reason"], ended.json()["cancelled"]) == ("wrong film", True)
        heard = [next(lines) for _ in range(6)]
        assert [line for line in heard if line.startswith("event")] == ["event: touch", "event: cancel"]
        touch, cancel = (json.loads(line[6:]) for line in heard if line.startswith("data: "))
        assert (touch["progress"], touch["note"], "cancelled" in touch) == (1, "half", False)
        assert (cancel["cancelled"], cancel["reason"]) == (True, "wrong film")
    refused = http.post("/leases/checkpoint", json={"lease": task["lease"], "saved": 1})
    assert (problem(refused), refused.json()["reason"]) == ((409, "task-cancelled"), "wrong film")
    assert problem(http.delete(f"/leases/{task['lease']}")) == (409, "task-not-taken")
    assert problem(http.post("/tubes/mail/tasks/0/cancel")) == (404, "task-not-found")
    assert http.post("/tubes/mail/tasks/0/cancel", json={"reason": ""}).status_code == 400


def test_call_returns_result_of_python_worker(served: Served, base: str, http: httpx.Client) -> None:
    assert problem(http.post("/tubes/mail/call", json={"data": 1, "timeout": 0.01})) == (504, "call-timeout")
    url = str(served.options[1])
    if url == "memory://":
        return
    http.post("/tubes/mail/truncate")
    with tubes.connect(f"{url}&namespace={base.removeprefix('/v1/')}") as queue:
        worker = Worker(queue)

        @worker.on("mail")
        def double(task: tubes.Task) -> object:
            if task.data == "bad":
                raise ValueError("no")
            return {"twice": task.data * 2}

        running = threading.Thread(target=worker.run)
        running.start()
        reply = http.post("/tubes/mail/call", json={"data": 21, "timeout": 20})
        assert (reply.status_code, reply.json()) == (200, {"result": {"twice": 42}})
        failed = http.post("/tubes/mail/call", json={"data": "bad", "timeout": 20, "max_attempts": 1})
        assert problem(failed) == (502, "call-failed")
        worker.stop()
        running.join()


@pytest.mark.parametrize(
    "body", ['{"action": "count", "action": "delete"}', '{"action": "count", "with": {"a": 1, "a": 1}}']
)
def test_equal_members_are_refused(http: httpx.Client, body: str) -> None:
    put(http, 1)
    reply = http.post("/tubes/mail/select", content=body)
    assert problem(reply) == (400, "invalid-option")
    assert "an object has the member" in reply.json()["detail"]
    assert http.post("/tubes/mail/tasks", content='{"data": [{"a": 1, "a": 2}]}').status_code == 400
    assert http.get("/tubes/mail").json()["tasks"]["ready"] == 1


def test_stream_limits_window_and_releases_tasks_on_disconnect(http: httpx.Client) -> None:
    for number in range(5):
        put(http, number)
    with http.stream("POST", "/tubes/mail/stream", json={"window": 2}) as reply:
        assert reply.headers["content-type"].startswith("application/x-ndjson")
        lines = reply.iter_lines()
        pushed = [json.loads(next(lines)) for _ in range(2)]
        assert http.get("/tubes/mail").json()["tasks"]["taken"] == 2
        for _ in range(2):
            assert http.delete(f"/leases/{pushed.pop(0)['lease']}").status_code == 204
            pushed.append(json.loads(next(lines)))
        assert [task["data"] for task in pushed] == [2, 3]
        http.post("/tubes/mail/release-all")  # The stream notices that its takes have ended.
        pushed = [json.loads(next(lines)) for _ in range(2)]
        assert [(task["data"], task["attempts"]) for task in pushed] == [(2, 2), (3, 2)]
    assert eventually(lambda: http.get("/tubes/mail").json()["tasks"]["ready"] == 3)


def test_stream_continues_after_cancel_of_its_task(http: httpx.Client) -> None:
    put(http, 1)
    put(http, 2)
    with http.stream("POST", "/tubes/mail/stream", json={"window": 1}) as reply:
        lines = reply.iter_lines()
        (first, started) = json.loads(next(lines)), time.monotonic()
        assert http.post(f"/tubes/mail/tasks/{first['id']}/cancel").status_code == 200
        assert json.loads(next(lines))["data"] == 2
        assert time.monotonic() - started < 10


def test_events_reach_all_listeners(http: httpx.Client) -> None:
    with http.stream("GET", "/events?tubes=mail") as one, http.stream("GET", "/events?tubes=mail") as other:
        streams = [one.iter_lines(), other.iter_lines()]
        assert [next(lines) for lines in streams] == [": listening"] * 2
        put(http, "secret")
        http.delete(f"/leases/{take(http)[0]['lease']}")
        for lines in streams:
            received = [next(lines) for _ in range(10)]
            assert [line for line in received if line.startswith("event")] == [
                "event: put",
                "event: take",
                "event: delete",
            ]
            assert "secret" not in "".join(received)
        # Events continue after the tube was dropped and created again.
        assert http.delete("/tubes/mail").status_code == 204
        assert http.put("/tubes/mail").status_code == 201
        put(http)
        for lines in streams:
            assert "event: put" in [next(lines) for _ in range(3)]
    assert problem(http.get("/events?tubes=nix")) == (404, "tube-not-found")
    assert problem(http.get("/events")) == (400, "invalid-option")


def test_events_continue_after_another_program_recreates_tube(served: Served, base: str, http: httpx.Client) -> None:
    url = str(served.options[1])
    if url == "memory://":
        pytest.skip("memory is that of the service alone")
    with (
        tubes.connect(f"{url}&namespace={base.removeprefix('/v1/')}") as queue,
        http.stream("GET", "/events?tubes=mail") as reply,
    ):
        lines = reply.iter_lines()
        assert next(lines) == ": listening"
        queue.tube("mail").drop()
        anew = queue.create_tube("mail")
        hearing = threading.Thread(target=lambda: next(line for line in lines if line == "event: put"))
        hearing.start()
        assert eventually(lambda: bool(anew.put(1)) and not hearing.is_alive())


def test_take_returns_trace_context_of_put(http: httpx.Client) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    for headers in ({"traceparent": parent, "tracestate": "x=1"}, {"traceparent": "nix", "tracestate": "x=1"}):
        http.post("/tubes/mail/tasks", json={"data": 1, "context": {"mine": "1"}}, headers=headers)
        http.post("/tubes/mail/tasks/raw", content=b"1", headers=headers)
        http.post("/tubes/mail/tasks/batch", json={"items": [{"data": 1}]}, headers=headers)
    contexts = [task["context"] for task in take(http, limit=9)]
    traced = {"traceparent": parent, "tracestate": "x=1"}
    assert contexts == [{**traced, "mine": "1"}, traced, traced, {"mine": "1"}, {}, {}]
