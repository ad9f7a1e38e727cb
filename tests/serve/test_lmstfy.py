"""lmstfy's API for clients."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.contract.bench import eventually
from tests.support.served import Served


@pytest.fixture
def api(served: Served) -> Iterator[httpx.Client]:
    """A client of a namespace of its own."""
    with httpx.Client(base_url=f"{served.url}/api/{uuid4().hex}", timeout=30) as client:
        yield client


def publish(api: httpx.Client, body: bytes = b"hello", queue: str = "q", **options: Any) -> str:
    reply = api.put(f"/{queue}", content=body, params=options)
    assert (reply.status_code, reply.json()["msg"]) == (201, "published"), reply.text
    return str(reply.json()["job_id"])


def consume(api: httpx.Client, queue: str = "q", **options: Any) -> Any:
    reply = api.get(f"/{queue}", params={"freeze_tries": "false", **options})
    if reply.status_code == 404:
        assert reply.json() == {"msg": "no job available"}
        return None
    assert reply.status_code == 200, reply.text
    return reply.json()


def data(job: Any) -> bytes:
    return base64.b64decode(job["data"])


def dead_letter(api: httpx.Client, body: bytes = b"hello", queue: str = "q", **options: Any) -> str:
    """Publish a job and consume it without an ack, so that it becomes a dead letter after a second."""
    job = publish(api, body, queue, **options)
    assert consume(api, queue, ttr=1)["job_id"] == job
    return job


@pytest.mark.sample(1)
def test_a_job_is_published_consumed_and_acked(api: httpx.Client) -> None:
    before = time.time()
    job_id = publish(api, b"\0\xff", ttl=10, tries=3, delay=0)
    reply = api.get("/q?ttr=60&timeout=0&freeze_tries=false")
    assert reply.headers["x-request-id"]
    job = reply.json()
    assert 0 <= job.pop("elapsed_ms") <= (time.time() - before) * 1000 + 1000
    assert job == {
        "msg": "new job",
        "namespace": str(api.base_url).rstrip("/").rpartition("/")[2],
        "queue": "q",
        "job_id": job_id,
        "data": base64.b64encode(b"\0\xff").decode(),
        "ttl": 10,
        "remain_tries": 2,
        "attributes": None,
    }
    assert consume(api) is None
    assert api.get(f"/q/job/{job_id}").status_code == 200
    for _ in range(2):
        assert api.delete(f"/q/job/{job_id}").status_code == 204
    assert api.get(f"/q/job/{job_id}").json() == {"error": "job not found"}


def test_acked_job_is_not_found_even_if_done_tasks_are_kept(served: Served, api: httpx.Client) -> None:
    first = publish(api)
    queue = f"/v1/{api.base_url.path.strip('/').split('/')[1]}/tubes/q"
    assert served.client.patch(queue, json={"options": {"keep_done": 60}}).status_code == 200
    job = publish(api)
    for each in (first, job):
        assert api.delete(f"/q/job/{each}").status_code == 204
        assert api.get(f"/q/job/{each}").status_code == 404
    assert served.client.get(queue).json()["kept"] == 1


def test_invalid_job_id_is_not_found(api: httpx.Client) -> None:
    job = publish(api)[:16] + "f" * 14
    assert api.get(f"/q/job/{job}").status_code == 404
    assert api.delete(f"/q/job/{job}").status_code == 204


def test_an_ack_in_another_queue_deletes_nothing(api: httpx.Client) -> None:
    mine, other = publish(api), publish(api, queue="other")
    assert mine != other
    none = ("nix", "0", "0" * 30, mine[:16] + "f" * 14)
    for path in (f"/other/job/{mine}", f"/missing/job/{mine}", *(f"/q/job/{id}" for id in none)):
        assert api.delete(path).status_code == 204
    assert (api.get("/q/size").json()["size"], api.get("/other/size").json()["size"]) == (1, 1)
    assert api.get(f"/other/job/{mine}").status_code == 404


def test_omitted_parameters_have_defaults(api: httpx.Client) -> None:
    publish(api)
    job = consume(api)
    assert (job["ttl"], job["remain_tries"]) == (86_400, 0)
    publish(api, ttl=0, tries=65535)
    job = consume(api)
    assert (job["ttl"], job["remain_tries"]) == (0, 65534)
    publish(api, ttl=2**32 - 1)
    assert consume(api, ttr=2**32 - 1)["job_id"]


def test_delayed_job_is_consumed_when_due(api: httpx.Client) -> None:
    job = publish(api, delay=1, ttl=60)
    assert consume(api) is None
    assert api.get("/q/size").json()["size"] == 0
    taken = consume(api, timeout=10)
    assert (taken["job_id"], taken["ttl"]) == (job, 59)
    assert taken["elapsed_ms"] >= 1000


def test_a_poll_waits_for_a_job(api: httpx.Client) -> None:
    with ThreadPoolExecutor(2) as threads:
        # Also for queues that do not exist yet.
        found = [threads.submit(consume, api, words, timeout=20) for words in ("q", "a,b")]
        ns = str(api.base_url).rstrip("/").rpartition("/")[2]
        root = str(api.base_url).partition("/api/")[0]
        assert eventually(lambda: sorted(httpx.get(f"{root}/v1/{ns}/tubes").json()["tubes"]) == ["a", "b", "q"])
        ids = {publish(api, queue="q"), publish(api, queue="b")}
        assert {job.result()["job_id"] for job in found} == ids


def test_consume_prefers_first_of_several_queues(api: httpx.Client) -> None:
    publish(api, b"1", "one")
    publish(api, b"2", "two")
    job = consume(api, "two,one", timeout=1)
    assert (job["queue"], data(job)) == ("two", b"2")
    assert [data(job) for job in consume(api, "two,,one,missing", count=9)] == [b"1"]


def test_a_batch_is_consumed_up_to_its_count(api: httpx.Client) -> None:
    ids = [publish(api) for _ in range(4)]
    assert [job["job_id"] for job in consume(api, count=3, ttr=3)] == ids[:3]
    assert [job["job_id"] for job in consume(api, count=3, ttr=3, timeout=3)] == ids[3:]
    assert consume(api, count=3, ttr=3) is None


def test_a_bulk_keeps_the_text_of_each_element(api: httpx.Client) -> None:
    texts = ['"hello msg"', "123456", '{"msg": "success" }', '["foo","bar"]', "true", "1" * 5000, "1e999", '"\\ud800"']
    texts.append(b'"\xff"'.decode(errors="surrogateescape"))
    content = f" [ {' , '.join(texts)} ]\n".encode(errors="surrogateescape")
    reply = api.put("/q/bulk?ttl=10", content=content)
    assert reply.status_code == 201
    jobs = consume(api, count=10)
    assert [job["job_id"] for job in jobs] == reply.json()["job_ids"]
    assert [data(job).decode(errors="surrogateescape") for job in jobs] == texts
    for body in (b"", b"{}", b"[1", b"[1,]", b"[1 2]", b"[1]]", b"\xff", b"[NaN]", b"[" * 99_999, b"[,]"):
        reply = api.put("/q/bulk", content=body)
        assert reply.status_code == 400
        assert reply.json() == {"error": "request body should be an array of objects"}, body
    many = json.dumps([1] * 65).encode()
    for body, message in ((b"[]", "no jobs"), (b" null\n", "no jobs"), (many, "too many jobs")):
        assert api.put("/q/bulk", content=body).json() == {"error": message}
    large = json.dumps(["x" * 2**20]).encode()
    assert api.put("/q/bulk", content=large).json() == {"error": "job too large"}
    assert len(api.put("/q/bulk", content=json.dumps(["x" * 2**19] * 3)).json()["job_ids"]) == 3


def test_a_body_is_at_most_one_mebibyte(api: httpx.Client) -> None:
    publish(api, b"x" * 2**20)
    assert len(data(consume(api))) == 2**20
    reply = api.put("/q", content=b"x" * (2**20 + 1))
    assert (reply.status_code, reply.json()) == (413, {"error": "body too large"})
    assert publish(api, b"")
    assert data(consume(api)) == b""


def test_attributes_are_returned_in_lower_case_and_cut(api: httpx.Client) -> None:
    attributes = {"Job-Attr-COLOR": "red", f"job-attr-My-{'k' * 40}": "x" * 300, "Job-Attr-None": ""}
    publish(api)
    api.put("/q", content=b"x", headers={"Enable-Job-Version": "yes", **attributes})
    api.put("/q", content=b"x", headers=attributes)
    found = [consume(api)["attributes"] for _ in range(3)]
    assert found == [None, {"color": "red", "my-" + "k" * 29: "x" * 128}, None]
    for value in ("café".encode() + b"\xff", ("é" * 65).encode()[1:]):
        api.put("/q", content=b"x", headers={b"Enable-Job-Version": b"YES", b"Job-Attr-U": value})
    assert [consume(api)["attributes"]["u"] for _ in range(2)] == ["café\ufffd", "\ufffd" + "é" * 63 + "\ufffd"]
    many = {"Enable-Job-Version": "YES", **{f"Job-Attr-{n}": "x" for n in range(17)}}
    for path in ("/q", "/q/bulk"):
        assert api.put(path, content=b"[1]", headers=many).json() == {"error": "too many attributes, cannot exceed 16"}


def test_republish_replaces_job(api: httpx.Client) -> None:
    old = publish(api)
    assert consume(api)["job_id"] == old
    # An invalid republish does not change the job.
    assert api.put(f"/q/job/{old}?tries=0").status_code == 400
    reply = api.put(f"/q/job/{old}?ttl=10", content=b"again")
    assert reply.status_code == 201
    assert api.get(f"/q/job/{old}").status_code == 404
    job = consume(api)
    assert (job["job_id"], data(job), job["ttl"]) == (reply.json()["job_id"], b"again", 10)
    assert job["job_id"] != old
    assert api.put("/q/job/nix", content=b"x").status_code == 201


def test_peek_shows_first_job_and_any_job_by_id(api: httpx.Client) -> None:
    assert api.get("/q/peek").json() == {"error": "the queue is empty"}
    first, second = publish(api, tries=5), publish(api, b"2", tries=5)
    job = api.get("/q/peek").json()
    assert (job["job_id"], job["remain_tries"], data(job), "msg" in job) == (first, 5, b"hello", False)
    job = api.get(f"/q/job/{second}").json()
    assert (job["job_id"], job["remain_tries"], data(job), "msg" in job) == (second, 0, b"2", False)
    assert api.get("/q/size").json()["size"] == 2


def test_destroying_queue_removes_only_ready_jobs(api: httpx.Client) -> None:
    assert api.delete("/q").status_code == 204
    publish(api)
    taken = consume(api)["job_id"]
    publish(api)
    later = publish(api, delay=60)
    assert api.delete("/q").status_code == 204
    assert api.get("/q/size").json()["size"] == 0
    for job in (taken, later):
        assert api.get(f"/q/job/{job}").status_code == 200


@pytest.mark.sample(1)
def test_dead_letters_are_respawned_and_deleted(api: httpx.Client) -> None:
    ns = str(api.base_url).rstrip("/").rpartition("/")[2]
    empty = {"namespace": ns, "queue": "q", "deadletter_size": 0, "deadletter_head": ""}
    assert api.get("/q/deadletter").json() == empty
    assert api.put("/q/deadletter").json() == {"msg": "respawned", "count": 0}
    assert api.delete("/q/deadletter").status_code == 204
    # A dead letter outlives its ttl.
    ids = [dead_letter(api, ttl=2), *(dead_letter(api) for _ in range(2))]
    assert eventually(lambda: api.get("/q/deadletter/size").json()["size"] == 3)
    assert api.get("/q/deadletter").json() == {**empty, "deadletter_size": 3, "deadletter_head": ids[0]}
    assert data(api.get(f"/q/job/{ids[0]}").json()) == b"hello"
    time.sleep(1.2)  # Until the ttl of the first dead letter has passed.
    assert api.get("/q/deadletter/size").json() == {"namespace": ns, "queue": "q", "size": 3}
    assert api.put("/q/deadletter").json() == {"msg": "respawned", "count": 1}
    job = consume(api)
    assert (job["job_id"], job["ttl"], job["remain_tries"]) == (ids[0], 86_400, 0)
    assert api.put("/q/deadletter?limit=1&ttl=0").json()["count"] == 1
    job = consume(api)
    assert (job["job_id"], job["ttl"]) == (ids[1], 0)
    assert api.delete("/q/deadletter?limit=9").status_code == 204
    assert api.get("/q/deadletter").json() == empty
    assert api.get(f"/q/job/{ids[2]}").status_code == 404


@pytest.mark.sample(1)
def test_job_is_consumed_up_to_its_tries_then_buried(api: httpx.Client) -> None:
    job = publish(api, tries=2)
    assert consume(api, ttr=1)["remain_tries"] == 1
    again = consume(api, ttr=1, timeout=10)
    assert (again["job_id"], again["remain_tries"]) == (job, 0)
    assert eventually(lambda: api.get("/q/deadletter").json()["deadletter_head"] == job)


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("PUT", "/q?delay=-1", 400, "invalid delay"),
        ("PUT", "/q?delay=x", 400, "invalid delay"),
        ("PUT", f"/q?delay={2**32}", 400, "invalid delay"),
        ("PUT", "/q?ttl=1.5", 400, "invalid ttl"),
        ("PUT", "/q?ttl=", 400, "invalid ttl"),
        ("PUT", "/q?ttl=1&delay=2", 400, "ttl is shorter than delay"),
        ("PUT", "/q?tries=65536", 400, "invalid tries"),
        ("PUT", "/q?tries=0", 400, "tries shouldn't be zero"),
        ("PUT", "/q/bulk?tries=٣", 400, "invalid tries"),
        ("GET", "/q?ttr=x", 400, "invalid ttr"),
        ("GET", f"/q?timeout={2**32}", 400, "invalid timeout"),
        ("GET", "/q?count=0", 400, "invalid count"),
        ("GET", "/q?count=101", 400, "invalid count"),
        ("GET", "/,", 400, "invalid queue name(s)"),
        ("PUT", "/q/deadletter?limit=0", 400, "invalid limit"),
        ("PUT", f"/q/deadletter?limit={2**63}", 400, "invalid limit"),
        ("PUT", "/q/deadletter?ttl=-1", 400, "invalid ttl"),
        ("DELETE", "/q/deadletter?limit=x", 400, "invalid limit"),
        ("PUT", f"/{'q' * 256}", 400, "namespace or queue name too long"),
        ("GET", f"/{'q' * 256}", 400, "namespace or queue name too long"),
        ("PUT", "/_q", 400, "queue name contains forbidden characters"),
        ("PUT", "/q.q", 400, "queue name contains forbidden characters"),
        ("PUT", "/a,b", 400, "queue name contains forbidden characters"),
        ("GET", "/q%2Fq", 400, "queue name contains forbidden characters"),
        ("GET", "/q%0A", 400, "queue name contains forbidden characters"),
        ("POST", "/q", 404, "api not found"),
        ("GET", "/q/nix", 404, "api not found"),
        ("GET", "", 404, "api not found"),
        ("PUT", "/q?token=other:x", 404, "pool not found"),
    ],
)
def test_bad_requests_get_lmstfy_error_messages(
    api: httpx.Client, method: str, path: str, status: int, message: str
) -> None:
    root = str(api.base_url).rstrip("/")
    reply = api.request(method, root + path, content=b"[1]" if method == "PUT" else b"")
    assert (reply.status_code, reply.json()) == (status, {"error": message})
    if "q" * 256 not in path:
        assert api.get("/q/size").json()["size"] == 0


def test_malformed_parameters_are_ignored(api: httpx.Client) -> None:
    root = str(api.base_url).rstrip("/")
    for query in ("ttl=1;tries=2", "ttl=%zz&tries=%", "tries=1&tries=x&;"):
        assert api.put(f"{root}/q?{query}", content=b"x").status_code == 201
        job = consume(api)
        assert (job["ttl"], job["remain_tries"]) == (86_400, 0)


def test_longest_allowed_names_are_accepted(api: httpx.Client) -> None:
    root = str(api.base_url).partition("/api/")[0]
    for namespace in (uuid4().hex, "n" * 223 + uuid4().hex):
        path = f"{root}/api/{namespace}/{'q' * 255}"
        assert api.put(path, content=b"x").status_code == 201
        assert api.get(path).json()["queue"] == "q" * 255
    reply = api.put(f"{root}/api/{'n' * 256}/q", content=b"x")
    assert reply.json() == {"error": "namespace or queue name too long"}
    reply = api.put(f"{root}/api/n.n/q", content=b"x")
    assert reply.json() == {"error": "namespace name contains forbidden characters"}


def test_the_native_api_sees_the_same_tasks(served: Served, api: httpx.Client) -> None:
    ns = str(api.base_url).rstrip("/").rpartition("/")[2]
    publish(api, b'{"n":1}')
    task = served.client.post(f"/v1/{ns}/tubes/q/take", json={}).json()["tasks"][0]
    assert task["data"] == {"n": 1}
    assert served.client.delete(f"/v1/{ns}/leases/{task['lease']}").status_code == 204
    served.client.post(f"/v1/{ns}/tubes/q/tasks", json={"data": [1]})
    job = consume(api)
    assert (data(job), job["remain_tries"], job["ttl"]) == (b"[1]", 0, 0)


@pytest.mark.sample(1)
def test_concurrent_hostile_requests_cause_no_server_error(served: Served, api: httpx.Client) -> None:
    names = [*["q"] * 12, "a,b", "%00", "%ff", "..", "%F0%9F%92%A5", "_x", "x" * 300, "*", ",", "%7Bjob%7D", "q%2Fq"]
    ends = ["", "/bulk", "/peek", "/size", "/deadletter", "/deadletter/size", "/job/x", "/job/%ff", "/nix", "/"]
    queries = [
        *[""] * 8,
        "ttl=1&ttl=x",
        "delay=💥",
        "limit=9&tries=" + "9" * 5000,
        "token=%ff",
        "&&=&",
        "count=3",
        "ttl=%00",
    ]
    bodies = [b"", b"[", b"[1]", b"\xff", b"[" * 9999, b"[" + b"1," * 5000 + b"1]", b'["\\ud800"]', b"{}"]
    headers: list[dict[str, bytes]] = [
        {},
        {"x-token": b"\xff:"},
        {"enable-job-version": b"YES", "job-attr-": b"x", "job-attr-tubes.x": b"\xff"},
    ]

    def attack(seed: int) -> set[int]:
        random = Random(seed)
        statuses: set[int] = set()
        with httpx.Client(base_url=api.base_url, timeout=60) as client:
            for _ in range(60):
                path = f"/{random.choice(names)}{random.choice(ends)}?{random.choice(queries)}"
                method = random.choice(["PUT", "GET", "DELETE", "POST", "PATCH"])
                sent: Any = {"content": random.choice(bodies), "headers": random.choice(headers)}
                statuses.add(client.request(method, path, **sent).status_code)
        return statuses

    with ThreadPoolExecutor(4) as pool:
        statuses = set[int]().union(*pool.map(attack, range(4)))
    assert {200, 201, 204, 400, 404} <= statuses
    assert max(statuses) < 500, statuses
    assert publish(api)
