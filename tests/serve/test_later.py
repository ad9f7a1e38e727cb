"""The API of later and its callbacks."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.receiver import Receiver, Reply, Request, reply
from tests.support.served import Served
from tubes.errors import InvalidOption
from tubes.serve import Grant, Tokens, create_app
from tubes.serve.later import Callbacks, Delivery
from tubes.serve.later.ids import Ids
from tubes.serve.rates import Rate
from tubes.testing import LocalServer, ManualClock

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OPTIONS = ("--callback", "http://127.0.0.1", "--callback", "http://", "--callback-network", "127.0.0.1")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["memory", "valkey"])
def later(request: pytest.FixtureRequest) -> Iterator[Served]:
    url = "memory://"
    if request.param == "valkey":
        valkey: LocalServer = request.getfixturevalue("valkey")
        url = f"{valkey.url}?prefix={uuid4().hex}"
    with Served("--url", url, *OPTIONS, "--callback-secret", SECRET) as served:
        yield served


def replies(code: object, status: int = 200) -> bytes:
    return reply(status, json.dumps({"code": code}).encode())


async def wait_until(has_state: Callable[[], bool | Awaitable[bool]], seconds: float = 20) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(seconds):
        while True:
            found = has_state()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


async def post(served: Served, path: str, **body: Any) -> httpx.Response:
    return await asyncio.to_thread(served.client.post, path, json=body)


async def is_deleted(served: Served, id: str) -> bool:
    return (await post(served, "/query", id=id)).status_code == 404


async def wait_for_state(served: Served, id: str, state: str) -> dict[str, Any]:
    """Wait until the task is in this state; return it as the native API shows it."""
    task: dict[str, Any] = {}

    async def has_state() -> bool:
        found = await asyncio.to_thread(served.client.get, f"/v1/_/tubes/later/tasks/{Ids(b'').read(id)}")
        task.update(found.json())
        return bool(task["state"] == state)

    await wait_until(has_state)
    return task


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.anyio
async def test_a_callback_is_called_and_signed(later: Served) -> None:
    async with Receiver(lambda _: replies(100)) as receiver:
        created = await post(later, "/create", topic="mail", content="ä", callback=f"{receiver.url}/x", retry=2)
        assert created.status_code == 200
        id = created.json()["id"]
        assert UUID(id).version == 4
        await wait_until(lambda: bool(receiver.requests))
        (received,) = receiver.requests
        assert json.loads(received.body) == {"id": id, "topic": "mail", "content": "ä"}
        assert (received.line.split()[1], received.headers["webhook-id"][:4]) == ("/x", "msg_")
        assert received.headers["webhook-signature"].startswith("v1,")
        await wait_until(lambda: is_deleted(later, id))


@pytest.mark.anyio
async def test_query_shows_task_until_delete_removes_it(later: Served) -> None:
    body = {"topic": "t", "delay": 100, "retry": 3, "callback": "http://127.0.0.1:1/", "content": "c"}
    id = (await post(later, "/create", **body, unknown=1)).json()["id"]
    found = (await post(later, "/query", id=id)).json()
    assert time.time() - 10 < found["creat_time"] <= time.time()
    assert found == {
        "id": id,
        "topic": "t",
        "execute_time": found["creat_time"] + 100,
        "max_retry": 3,
        "has_retry": 0,
        "callback": "http://127.0.0.1:1/",
        "content": "c",
        "creat_time": found["creat_time"],
    }
    for _ in range(2):
        deleted = await post(later, "/delete", id=id)
        assert (deleted.status_code, deleted.content) == (200, b"")
        assert (await post(later, "/query", id=id)).status_code == 404
    for other in (str(uuid4()), "x", id[:-1]):
        assert (await post(later, "/delete", id=other)).status_code == 200
        assert (await post(later, "/query", id=other)).status_code == 404


def test_create_reads_json_like_go(later: Served) -> None:
    start = b'{"callback": "http://127.0.0.1:1/", "delay": 100, '
    text = b'"content": "a\\ud800b\\udc00\xff\\ud83d\\ude00"'
    odd = [text, b'"x": "\\ud800"', b'"\\udc00": 1', b'"x": "\xff"', b'"x": ' + b"1" * 5000, b'"x": 1e999']
    odd += [b'"x": ' + b"[" * 500 + b"]" * 500, b'"content": "b", "Content": "a"']
    created = [later.client.post("/create", content=start + member + b"}") for member in odd]
    assert [reply.status_code for reply in created] == [200] * len(odd)
    contents = [later.client.post("/query", json=created[at].json()).json()["content"] for at in (0, -1)]
    assert contents == ["a\ufffdb\ufffd\ufffd\U0001f600", "a"]
    wrong = [b'"content": ' + b"1" * 30, b'"delay": ' + b"1" * 30, b'"x": NaN', b'"retry": 1.0', b'"x"']
    refused = [later.client.post("/create", content=start + member + b"}").status_code for member in wrong]
    assert refused == [400] * len(wrong)
    assert later.client.post("/create", content=b"\xef\xbb\xbf{}").status_code == 400


async def send_half_reply(writer: asyncio.StreamWriter) -> None:
    """Close the connection in the middle of a reply."""
    writer.write(replies(100)[:-1])
    await writer.drain()
    writer.transport.abort()


async def send_nothing(writer: asyncio.StreamWriter) -> None:
    """Close the connection before a reply."""
    writer.transport.abort()


@pytest.mark.full
@pytest.mark.anyio
async def test_create_keeps_the_limits_of_a_token(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    rates, limits = {"bytes": Rate(9, 1000)}, {"tasks": 3, "body": 200}
    _, text = tokens.create([Grant.read("put _ later")], rates=rates, limits=limits)
    with Served("--url", "memory://", "--tokens", tokens.path, *OPTIONS) as served:
        served.client.headers["authorization"] = f"Bearer {text}"
        task = {"callback": "http://127.0.0.1:1", "delay": 600}
        replies = await asyncio.gather(*(post(served, "/create", **task) for _ in range(40)))
        statuses = [reply.status_code for reply in replies]
        assert (statuses.count(200), statuses.count(409)) == (3, 37)
        full, often = [await post(served, "/create", **task, content="x" * 9) for _ in range(2)]
        assert (full.status_code, often.status_code) == (409, 429)
        assert (await post(served, "/create", **task, content="x" * 200)).status_code == 413


@pytest.mark.parametrize(
    ("reply", "wait"),
    [
        (replies(7), 10),
        (replies(100, 500), 10),
        (reply(200, b"no json"), 10),
        (reply(200, b"[100]"), 10),
        (reply(200, b"[" * 60_000), 10),
        (reply(302, b'{"code": 100}', "location: /"), 10),
        (replies("100"), 10),
        (replies(101), 10),
        (replies(7, 503), 10),
        (reply(429, b"", "retry-after: 55"), 55),
        (reply(429, b"", "retry-after: 5"), 10),
        (reply(503, b"", "retry-after: Fri Dec 31 23:59:59 9999"), 3600),
        (send_half_reply, 10),
        (send_nothing, 10),
        (reply(200, b'{"code": 100}' + b" " * 3_000_000), 10),
    ],
    ids=range(15),
)
@pytest.mark.anyio
async def test_other_replies_are_failed_attempts(later: Served, reply: Reply, wait: float) -> None:
    async with Receiver(lambda _: reply) as receiver:
        id = (await post(later, "/create", retry=2, callback=receiver.url)).json()["id"]
        await wait_until(lambda: bool(receiver.requests))
        task = await wait_for_state(later, id, "delayed")
        assert task["attempts"] == 1
        assert wait - 3 < task["due"] - time.time() <= wait
        assert (await post(later, "/query", id=id)).json()["has_retry"] == 1
        assert (await post(later, "/delete", id=id)).status_code == 200


@pytest.mark.parametrize("reply", [replies(101), replies(7, 503)], ids=["101", "503"])
@pytest.mark.anyio
async def test_calls_to_busy_receiver_are_limited_by_retry(later: Served, reply: bytes) -> None:
    async with Receiver(lambda _: reply) as receiver:
        id = (await post(later, "/create", callback=receiver.url)).json()["id"]
        assert "the reply was" in (await wait_for_state(later, id, "buried"))["reason"]
        assert len(receiver.requests) == 1


@pytest.mark.anyio
async def test_reply_with_invalid_utf_8_succeeds_by_its_code(later: Served) -> None:
    async with Receiver(lambda _: reply(200, b'{"code": 100, "message": "\xff"}')) as receiver:
        id = (await post(later, "/create", retry=1, callback=receiver.url)).json()["id"]
        await wait_until(lambda: is_deleted(later, id), 5)


@pytest.mark.anyio
async def test_names_in_json_may_have_any_case(later: Served) -> None:
    async with Receiver(lambda _: reply(200, b'{"Code": 100}')) as receiver:
        created = await post(later, "/create", Topic="t", DELAY=600, Callback=receiver.url, conTent="c", Retry=1)
        found = (await post(later, "/query", ID=created.json()["id"])).json()
        assert (found["topic"], found["content"], found["max_retry"]) == ("t", "c", 1)
        assert found["execute_time"] == found["creat_time"] + 600
        assert found["callback"] == receiver.url
        id = (await post(later, "/create", Callback=receiver.url)).json()["id"]
        await wait_until(lambda: bool(receiver.requests))
        await wait_until(lambda: is_deleted(later, id))
        assert (await asyncio.to_thread(later.client.get, "/v1/_/tubes/later")).json()["tasks"]["taken"] == 0


@pytest.mark.anyio
async def test_task_of_dead_worker_is_retried_after_ttr_without_backoff() -> None:
    clock = ManualClock()
    async with tubes.aio.connect(codec="json", clock=clock) as queue, await queue.namespace("") as worker:
        delivery = Delivery(queue, Callbacks(("https://",)), b"")
        task = await delivery.apply(lambda tube: tube.put({}, utube="a.example"))
        for attempts in (1, 2, 3):
            assert (await (await worker.tube("later")).take(timeout=0)) is not None
            clock.advance(15)
            found = await (await queue.tube("later")).peek(task.id)
            assert (found.state, found.attempts) == ("ready", attempts)


@pytest.mark.anyio
async def test_finally_failed_task_is_buried_and_hidden_from_clients(later: Served) -> None:
    async with Receiver(lambda _: replies(7)) as receiver:
        ids = [(await post(later, "/create", callback=receiver.url)).json()["id"]]
        await wait_until(lambda: bool(receiver.requests))
    # The second address is not allowed, and has no listener.
    for callback in (receiver.url, "http://127.0.0.2:1/"):
        ids.append((await post(later, "/create", callback=callback)).json()["id"])
    for id in ids:
        assert (await wait_for_state(later, id, "buried"))["reason"]
        assert (await post(later, "/query", id=id)).status_code == 404


def test_bad_requests_get_a_status_and_an_empty_body(later: Served) -> None:
    bad: list[tuple[str, Any]] = [(path, body) for path in ("/create", "/query") for body in (b"", b"{", b"[]", b"7")]
    bad += [("/delete", b'{"id": ""}'), ("/query", b'{"id": null}'), ("/delete", b'{"id": 7}'), ("/query", b"{}")]
    bad += [("/create", json.dumps({name: value})) for name in ("delay", "retry") for value in (1.5, "1", 2**63, True)]
    bad += [("/create", json.dumps({"topic": 7})), ("/create", json.dumps({"delay": 2**62}))]
    bad += [("/create", body) for body in ("{}", "null", '{"unknown": 1}', '{"topic": "t", "callback": ""}')]
    bad += [("/create", json.dumps({"callback": url})) for url in ("https://other.example/", "ftp://x/", "http://u@h/")]
    for path, body in bad:
        found = later.client.post(path, content=body)
        assert (path, body, found.status_code, found.content) == (path, body, 400, b"")
    for path in ("/create", "/delete", "/query"):
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            found = later.client.request(method, path)
            assert (found.status_code, found.content) == (400, b"")
    assert later.client.post("/create", content=b"x" * (2**20 + 1)).status_code == 413


@pytest.mark.anyio
async def test_later_api_requires_token_with_matching_grant(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    texts = {grant: tokens.create([Grant.read(grant)])[1] for grant in ("put _ later", "look _ later", "manage shop")}
    async with tubes.aio.connect(codec="json") as queue:
        app = create_app(queue, tokens=tokens, callbacks=Callbacks(("https://",)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client:

            async def status(path: str, token: str | None, id: str = "x") -> tuple[int, bytes]:
                body = {"id": id, "callback": "https://a.example/"}
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                found = await client.post(path, json=body, headers=headers)
                return found.status_code, found.content[:6]

            assert await status("/create", None) == (401, b"")
            assert await status("/create", "tubes_x_y") == (401, b"")
            assert await status("/create", texts["put _ later"]) == (200, b'{"id":')
            assert await status("/query", texts["put _ later"]) == (403, b"")
            assert await status("/query", texts["look _ later"]) == (404, b"")
            assert await status("/query", texts["look _ later"], str(Ids(b"").encode(0))) == (404, b"")
            assert await status("/query", texts["look _ later"], str(Ids(tokens.secret).encode(0))) == (200, b'{"id":')
            assert await status("/delete", texts["manage shop"]) == (403, b"")


def test_foreign_tasks_in_later_tube_are_buried(later: Served) -> None:
    for data in (1, [1], {"topic": "t"}):
        id = later.client.post("/v1/_/tubes/later/tasks", json={"data": data, "utube": "x"}).json()["id"]
        where = f"/v1/_/tubes/later/tasks/{id}"
        assert eventually(lambda where=where: later.client.get(where).json()["state"] == "buried")  # type: ignore[misc]


@pytest.mark.full
@pytest.mark.anyio
async def test_tasks_of_any_kind_are_pushed_from_any_tube(url: str, tmp_path: Path) -> None:
    async with Receiver(lambda _: reply(204)) as receiver:
        lines = (f"push = ['shop mail={receiver.url}/mail?a=1']", f"push-secret = ['{SECRET}']")
        config = tmp_path / "tubes.toml"
        config.write_text("\n".join(("[serve]", *lines, "push-network = ['127.0.0.1']")))
        with Served("--url", url, "--config", config) as served:
            for path, body in (("", b'{"data": {"to": "ann"}}'), ("/raw", b"\xff")):
                await asyncio.to_thread(served.client.put, "/v1/shop/tubes/mail")
                await asyncio.to_thread(served.client.post, f"/v1/shop/tubes/mail/tasks{path}", content=body)
            await wait_until(lambda: len(receiver.requests) == 2)
            assert {request.body for request in receiver.requests} == {b'{"to":"ann"}', b"\xff"}
            assert {request.line for request in receiver.requests} == {"POST /mail?a=1 HTTP/1.1"}
            assert all(request.headers["webhook-signature"] for request in receiver.requests)
            assert await asyncio.to_thread(served.stop) == 0


def test_later_refuses_queue_with_raw_codec() -> None:
    with pytest.raises(InvalidOption, match="codec='raw'"):
        create_app(tubes.aio.connect(codec="raw"), callbacks=Callbacks(("https://",)))


@pytest.mark.full
def test_ids_are_uuids_bound_to_secret() -> None:
    ids, others = Ids(b"a"), Ids(b"b")
    for id in (0, 1, 2**31, 2**53):
        given = ids.encode(id)
        assert (given.version, given.variant) == (4, UUID(int=0, version=4).variant)
        assert (ids.read(str(given)), ids.read(str(given).upper())) == (id, id)
        assert others.read(str(given)) is None
        flipped = UUID(int=given.int ^ 1)
        assert ids.read(str(flipped)) is None
    assert len({ids.encode(id) for id in range(100)}) == 100


@pytest.mark.full
@pytest.mark.anyio
async def test_killed_instance_loses_no_task(valkey: LocalServer) -> None:
    """Each task is delivered at least once; a kill may repeat a running delivery."""
    url = f"{valkey.url}?prefix={uuid4().hex}&session_ttl=2"
    await deliver_tasks(url, tasks=100, kills=2, instances=2)


async def deliver_tasks(url: str, tasks: int, kills: int, instances: int) -> Counter[str]:
    """Deliver tasks by instances that are killed one after the other; return the number of deliveries by task.

    Half of the tasks are callbacks of later, the others are pushed from a tube.
    """
    ledger: Counter[str] = Counter()
    running_ids: set[str] = set()
    concurrent: list[str] = []

    def reply(request: Request) -> Reply:
        id = json.loads(request.body)["id"]

        async def send_slowly(writer: asyncio.StreamWriter) -> None:
            if id in running_ids:
                concurrent.append(id)
            running_ids.add(id)
            await asyncio.sleep(0.02)
            running_ids.discard(id)
            ledger[id] += 1
            writer.write(replies(100))

        return send_slowly

    async with Receiver(reply) as receiver, tubes.aio.connect(url, codec="json") as queue:
        tube = await queue.create_tube("later", "utubettl", ttr=1)
        orders = await queue.create_tube("orders", "fifottl", ttr=1, backoff=[0.05])
        pushing = ("--push", f"orders={receiver.url}/orders", "--push-network", "127.0.0.1")

        def start() -> Served:
            return Served("--url", url, "--no-access-log", "--callback-per-host", "1", *OPTIONS, *pushing)

        async def is_empty() -> bool:
            return not any([(await each.statistics()).tasks["total"] for each in (tube, orders)])

        running: list[Served] = []
        ids: set[str] = set()
        step = max(1, tasks // (kills + 1))
        try:
            running += [await asyncio.to_thread(start) for _ in range(instances)]
            for number in range(tasks):
                if number % 2:
                    id = f"pushed {number}"
                    await post(running[number % instances], "/v1/_/tubes/orders/tasks", data={"id": id})
                else:
                    created = await post(running[number % instances], "/create", callback=receiver.url)
                    id = created.json()["id"]
                ids.add(id)
                if number % step == step - 1 and number // step < kills:
                    await asyncio.to_thread(end, running.pop(0), signal.SIGKILL)
                    running.append(await asyncio.to_thread(start))
            await wait_until(is_empty, 120 + 3 * kills)
        finally:
            codes = [await asyncio.to_thread(end, one, signal.SIGTERM) for one in running]
        assert set(codes) == {0}
        assert ledger.keys() == ids
        assert concurrent == []
        assert max(ledger.values()) <= 1 + kills
        # Callbacks and pushes each run one at a time.
        for pushed in (True, False):
            some = [times for id, times in ledger.items() if id.startswith("pushed") is pushed]
            assert sum(some) - len(some) <= kills
    return ledger


def end(served: Served, kind: signal.Signals) -> int:
    """End an instance with this signal; return its exit code."""
    code = served.stop(kind)
    served.__exit__()
    return code
