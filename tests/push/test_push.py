"""Webhooks: the requests, the effect of replies on tasks, and the addresses that are refused."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

import tubes
from tests.support.receiver import Receiver, Reply, Request, reply
from tubes.errors import InvalidOption
from tubes.push import Places, Sender, SendFailed, Signer, Webhook
from tubes.push.sender import MAX_REPLY
from tubes.testing import ManualClock
from tubes.worker import Summary, Worker

LOCAL = ["127.0.0.1"]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "QUFB" * 8


@pytest.fixture(params=["memory", "server"])
def place(request: pytest.FixtureRequest) -> str:
    found: str = "memory://" if request.param == "memory" else request.getfixturevalue("url")
    return found


async def push_all(queue: tubes.aio.AsyncQueue, url: str, **settings: Any) -> Summary:
    """Post all tasks that can be taken from the tube `orders`."""
    sender = Sender([url.partition("?")[0]], networks=LOCAL, timeout=5)
    worker = Worker(queue)
    worker.lifespan(sender.running)
    worker.on("orders", Webhook(url, sender=sender, **settings), concurrency=2)
    return await worker.run_async(burst=True)


def always_reply(status: int, *headers: str) -> Callable[[Request], Reply]:
    return lambda _: reply(status, b"", *headers)


@pytest.mark.anyio
async def test_a_task_is_posted_signed_and_done(place: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with tubes.aio.connect(place) as queue, Receiver(always_reply(204)) as receiver:
        tube = await queue.create_tube("orders", "fifottl")
        await tube.put({"n": 1, "who": "ä"}, context={"traceparent": trace, "tracestate": "a\r\nhost: b"})
        assert await push_all(queue, f"{receiver.url}/hook?a=1", secrets=[SECRET, OTHER]) == Summary(acked=1)
    (callback,) = receiver.requests
    assert callback.line == "POST /hook?a=1 HTTP/1.1"
    assert (callback.headers["host"], callback.headers["content-type"]) == (
        f"127.0.0.1:{receiver.port}",
        "application/json",
    )
    assert (callback.headers["traceparent"], callback.headers.get("tracestate")) == (trace, None)
    assert json.loads(callback.body) == {"n": 1, "who": "ä"}
    assert [each[:3] for each in callback.headers["webhook-signature"].split()] == ["v1,", "v1,"]


def test_standard_library_verifies_signatures() -> None:
    webhooks = pytest.importorskip("standardwebhooks")
    body = b'{"n": 1}'
    headers = Signer([SECRET, OTHER]).headers("msg_1", body)
    for secret in (SECRET, OTHER):
        assert webhooks.Webhook(secret).verify(body, headers) == {"n": 1}
    with pytest.raises(webhooks.WebhookVerificationError):
        webhooks.Webhook(SECRET).verify(body + b" ", headers)


@pytest.mark.anyio
async def test_reply_status_decides_outcome_of_task(place: str, clock: ManualClock) -> None:
    replies: list[bytes] = []
    async with (
        tubes.aio.connect(place, clock=clock, codec="raw") as queue,
        Receiver(lambda _: replies.pop(0)) as receiver,
    ):
        tube = await queue.create_tube("orders", "fifottl", max_attempts=2)

        async def outcome(*parts: Any) -> tuple[Summary, str, int, float | None]:
            replies.append(reply(*parts))
            summary = await push_all(queue, receiver.url)
            (task,) = [task async for task in tube.select()]
            wait = None if task.state != "delayed" or task.due is None else round(task.due - clock.now(), 2)
            return summary, task.state.name, task.attempts, wait

        await tube.put(b"raw")
        assert await outcome(503) == (Summary(released=1), "DELAYED", 0, 10)
        clock.advance(10)
        assert await outcome(429, b"", "retry-after: 77") == (Summary(released=1), "DELAYED", 0, 77)
        clock.advance(77)
        for header in ("9999999999", "Fri, 31 Dec 9999 23:59:59 GMT"):
            assert await outcome(429, b"", f"retry-after: {header}") == (Summary(released=1), "DELAYED", 0, 3600)
            clock.advance(3600)
        *most, wait = await outcome(302, b"", f"location: {receiver.url}/other")
        assert most == [Summary(released=1), "DELAYED", 1]
        assert wait is not None
        assert 4 <= wait <= 5
        clock.advance(5)
        assert await outcome(500) == (Summary(buried=1), "BURIED", 2, None)
        assert (await tube.peek(0)).reason == "Retry: the reply was 500"
        assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
        assert receiver.requests[0].body == b"raw"
        assert "webhook-signature" not in receiver.requests[0].headers
        await tube.select("buried", limit=1).kick()
        assert await outcome(410) == (Summary(buried=1), "BURIED", 3, None)


@pytest.mark.anyio
async def test_equal_tasks_of_two_namespaces_have_different_webhook_ids(place: str, clock: ManualClock) -> None:
    async with tubes.aio.connect(place, clock=clock) as queue, Receiver(always_reply(204)) as receiver:
        for namespace in ("a", "b"):
            async with await queue.namespace(namespace) as part:
                await (await part.create_tube("orders", "fifottl")).put(1)
                assert await push_all(part, receiver.url) == Summary(acked=1)
    first, second = (request.headers["webhook-id"] for request in receiver.requests)
    assert first != second


@pytest.mark.anyio
async def test_tube_backoff_overrides_push_backoff(clock: ManualClock) -> None:
    async with tubes.aio.connect(clock=clock) as queue, Receiver(always_reply(500)) as receiver:
        tube = await queue.create_tube("orders", "fifottl", backoff=[100])
        await tube.put(1)
        await push_all(queue, receiver.url)
        assert (await tube.peek(0)).due == clock.now() + 100


def opened(**settings: Any) -> Sender:
    options: Any = {"networks": LOCAL, "timeout": 5, **settings}
    return Sender(["http://"], **options)


@pytest.mark.anyio
async def test_requests_in_flight_per_host_are_limited() -> None:
    async def reply_late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        writer.write(reply(200))

    async with Receiver(lambda _: reply_late) as receiver, opened(per_host=3).running() as sender:
        await asyncio.gather(*(sender.post(receiver.url, b"", {}) for _ in range(20)))
        assert (len(receiver.requests), receiver.most) == (20, 3)


@pytest.mark.anyio
async def test_huge_and_slow_replies_are_cut_off() -> None:
    async def send_endlessly(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()

    async def send_slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)

    async def send_nothing(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    responses = {"/endless": send_endlessly, "/drops": send_slowly, "/silent": send_nothing}
    async with Receiver(lambda request: responses[request.line.split()[1]]) as receiver:
        async with opened(timeout=5).running() as sender:
            found = await sender.post(f"{receiver.url}/endless", b"", {})
            assert (len(found.body), found.is_cut) == (MAX_REPLY, True)
        async with opened(timeout=0.2).running() as sender:
            for path in ("/drops", "/silent"):
                with pytest.raises(SendFailed, match=r"no reply from 127.0.0.1 within 0.2 s"):
                    await sender.post(receiver.url + path, b"", {})


@pytest.mark.anyio
async def test_redirects_proxies_and_compression_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def respond(request: Request) -> Reply:
        if request.line.startswith("POST /packed"):
            return reply(200, b"\x1f\x8b", "content-encoding: gzip", "set-cookie: a=b")
        return reply(307, b"", f"location: {receiver.url}/packed")

    async with Receiver(respond) as receiver, Receiver(always_reply(200)) as proxy, opened().running() as sender:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert (await sender.post(f"{receiver.url}/moved", b"", {})).status == 307
        for _ in range(2):
            assert (await sender.post(f"{receiver.url}/packed", b"", {})).body == b"\x1f\x8b"
        assert [request.line.split()[1] for request in receiver.requests] == ["/moved", "/packed", "/packed"]
        assert "cookie" not in receiver.requests[-1].headers
        assert proxy.requests == []


@pytest.mark.parametrize("arrival", ["with the reply", "unread", "read"])
@pytest.mark.anyio
async def test_unrequested_reply_is_not_the_reply_to_the_next_request(arrival: str) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def reply_twice(writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(reply(200, b"first") + (reply(200, b"extra") if arrival == "with the reply" else b""))

    async with (
        Receiver(lambda request: reply(500) if writers else reply_twice) as receiver,
        opened().running() as sender,
    ):
        assert (await sender.post(receiver.url, b"", {})).body == b"first"
        if arrival != "with the reply":
            writers[0].write(reply(200, b"extra"))
        for _ in range(10 if arrival == "read" else 0):
            await asyncio.sleep(0)  # Let the event loop read from the socket.
        assert (await sender.post(receiver.url, b"", {})).status == 500


@pytest.mark.anyio
async def test_connections_are_used_again() -> None:
    writers: set[asyncio.StreamWriter] = set()

    async def respond(writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        writer.write(reply(200))

    async with Receiver(lambda _: respond) as receiver, opened().running() as sender:
        for _ in range(5):
            assert (await sender.post(receiver.url, b"", {})).status == 200
    assert len(writers) == 1


class Resolver(AbstractResolver):
    """A resolver that returns other addresses for a name at each lookup."""

    def __init__(self, *addresses: list[str]) -> None:
        self.addresses = list(addresses)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=_family(address), proto=0, flags=0)
            for address in self.addresses.pop(0)
        ]

    async def close(self) -> None:
        assert not self.addresses


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@pytest.mark.anyio
async def test_dns_rebinding_to_private_address_is_refused() -> None:
    resolver = Resolver(["127.0.0.1"], ["127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["::ffff:127.0.0.2"])
    async with Receiver(always_reply(200, "connection: close"), "0.0.0.0") as receiver:
        url = f"http://hooks.example:{receiver.port}/"
        async with opened(resolver=resolver).running() as sender:
            assert (await sender.post(url, b"", {})).status == 200
            with pytest.raises(SendFailed, match=r"hooks.example: 127.0.0.2 is not a public address"):
                await sender.post(url, b"", {})
            # The sender tries the next address of the name.
            assert (await sender.post(url, b"", {})).status == 200
            with pytest.raises(SendFailed, match=r"::ffff:127.0.0.2 is not a public address"):
                await sender.post(url, b"", {})
        assert [request.headers["host"] for request in receiver.requests] == [f"hooks.example:{receiver.port}"] * 2


@pytest.mark.anyio
async def test_silent_name_server_does_not_delay_other_hosts() -> None:
    # The default resolver does lookups without threads, so slow ones cannot use up a thread pool.
    assert aiohttp.resolver.DefaultResolver is aiohttp.AsyncResolver
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as send_nothing:
        send_nothing.bind(("127.0.0.1", 0))
        resolver = aiohttp.AsyncResolver(nameservers=["127.0.0.1"], udp_port=send_nothing.getsockname()[1])
        async with Receiver(always_reply(200)) as receiver, opened(resolver=resolver).running() as sender:
            slow = [asyncio.create_task(sender.post(f"http://slow{n}.example/", b"", {})) for n in range(100)]
            await asyncio.sleep(0.05)
            assert (await sender.post(f"http://localhost:{receiver.port}/", b"", {})).status == 200
            assert not any(request.done() for request in slow)
            for request in slow:
                request.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
        await resolver.close()


@pytest.mark.anyio
async def test_literal_private_addresses_in_urls_are_refused() -> None:
    async with Receiver(always_reply(200), "0.0.0.0") as receiver, opened(networks=()).running() as sender:
        for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "127.1", "0x7f000001", "2130706433", "localhost", "0"):
            with pytest.raises((SendFailed, InvalidOption)):
                await sender.post(f"http://{host}:{receiver.port}/", b"", {})
        assert receiver.requests == []


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("64:ff9b::5db8:d822", True),  # NAT64 of a public address
        ("10.1.2.3", True),  # in an allowed network
        ("::ffff:10.1.2.3", True),
        ("10.2.0.1", False),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("192.0.0.192", False),  # a metadata service
        ("192.0.0.8", False),
        ("168.63.129.16", False),  # a metadata service
        ("192.88.99.1", False),
        ("::ffff:192.0.0.192", False),
        ("64:ff9b::c000:c0", False),
        ("2002:c000:c0::1", False),
        ("2002:5db8:d822::1", True),  # 6to4 of a public address
        ("2001:1::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
        ("::1", False),
        ("::", False),
        ("::127.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::1", False),
        ("2002:7f00:1::1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
    ],
)
def test_only_public_addresses_are_reached(address: str, allowed: bool) -> None:
    assert Places(["https://"], ["10.1.0.0/16"]).allows_address(address) is allowed


def test_only_urls_with_allowed_prefix_are_accepted() -> None:
    places = Places(["https://a.example/hooks", "http://b.example:8080"])
    for good in ("https://a.example/hooks", "https://A.example:443/hooks/x%20?y=%0A", "http://b.example:8080/x"):
        assert places.check(good).host in ("a.example", "b.example")
    bad = (
        *("https://a.example", "https://a.example/hooks2", "http://a.example/hooks", "https://a.example:444/hooks"),
        *("https://a.example.evil.net/hooks", "https://a.example@evil.net/hooks", "https://u:p@a.example/hooks"),
        *("https://a.example/hooks/../admin", "https://a.example/hooks/%2e%2e/admin", "//a.example/hooks", "/hooks"),
        *("https://a.example/hooks/..;/admin", "https://a.example/hooks/..%5cadmin"),
        *("https://a.example/hooks/x%00", "https://a.example/hooks/x%0d%0a", "https://a.example/hooks/%1f"),
        "https://a.example/hooks/%7F",
        *("https://a.example\\@evil.net/hooks", "http://b.example/x", "ftp://a.example/hooks", "file:///etc/passwd"),
        *("https:///hooks", "https://a.example:99999/hooks"),
    )
    for text in (*bad, "", None, 7, "https://a.example/hooks\n", "https://a.example/hooks/" + "x" * 2048):
        with pytest.raises(InvalidOption) as caught:
            places.check(text)
        assert "p@" not in str(caught.value)
    with pytest.raises(InvalidOption, match="must begin with an allowed prefix"):
        Places([]).check("https://a.example/")
    assert Places(["https://"]).check("https://any.example/x").host == "any.example"


@pytest.mark.parametrize("secret", ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_ä"])
def test_a_bad_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Signer([secret])
    assert len(secret) < 8 or secret[6:] not in str(caught.value)


@pytest.mark.parametrize("settings", [{"allow": ["https://x/?a"]}, {"networks": ["10.0.0.1/8"]}, {"per_host": 0}])
def test_sender_refuses_invalid_options(settings: dict[str, Any]) -> None:
    options: Any = {"allow": ["https://"], **settings}
    with pytest.raises(InvalidOption, match=next(iter(settings))):
        Sender(**options)
