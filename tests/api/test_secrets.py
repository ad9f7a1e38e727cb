"""No part of a password appears in an error, its causes, a repr, a log, a metric, or the output of the command."""

from __future__ import annotations

import asyncio
import logging
import socketserver
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from redis.asyncio import Redis as AsyncRedis
from typer.testing import CliRunner

import tubes
from tubes import InvalidOption, TubesError
from tubes.backend.url import redact_url
from tubes.cli.app import app
from tubes.metrics.prometheus import Collector
from tubes.redis.transport import attempt
from tubes.spark.settings import read_settings
from tubes.testing import LocalServer

#: Parts of passwords, which must not appear.
PARTS = ("hunter", "swordfish", "4711")
#: An address without a server.
AT = "127.0.0.1:1"

URLS = [
    # Valid URLs.
    f"redis://:hunter@{AT}",
    f"redis://who:hunter@{AT}/0",
    f"rediss://who:hunter@{AT}",
    f"redis://who:hunter%2Fswordfish@{AT}",
    f"redis://who:hunter%40swordfish@{AT}/1?prefix=a",
    f"redis://who:hunter%253Fswordfish@{AT}",
    f"redis://who:hunter%2525swordfish@{AT}",
    f"redis://hunter@{AT}",
    "redis://who:hunter@[::1]:1",
    "redis://who:hunter@[::1%25lo]:1",
    f"REDIS://who:hunter@{AT}",
    f"redis://{AT}?password=hunter",
    f"redis://{AT}/0?db=0&password=hunter&prefix=a",
    f"redis://{AT}?username=who&password=hunter%26swordfish",
    f"redis://{AT}?prefix=a%26password%3Dhunter",
    f"redis://{AT}?%70assword=hunter",
    f"rediss://{AT}?ssl_password=hunter",
    f"rediss://who:hunter@{AT}?ssl_password=swordfish",
    "unix://who:hunter@/nowhere/socket",
    "unix:///nowhere/socket?password=hunter",
    f"redis+sentinel://who:hunter@{AT}/service",
    f"redis+sentinel://{AT}/service?password=hunter",
    f"redis+sentinel://{AT}/service?sentinel_password=hunter",
    f"redis+cluster://who:hunter@{AT}",
    f"redis+cluster://{AT},127.0.0.1:2?password=hunter",
    # Two @, and characters that must be percent-encoded.
    f"redis://who:hunter@swordfish@{AT}",
    f"redis://who:@hunter@@{AT}",
    f"redis://who:hunter/swordfish@{AT}",
    f"redis://who:hunter/@{AT}",
    f"redis://who:4711/swordfish@{AT}",
    f"redis://who:hunter?swordfish@{AT}",
    f"redis://who:4711?swordfish@{AT}",
    f"redis://who:4711?db=swordfish@{AT}",
    f"redis://who:4711?password=swordfish@{AT}",
    f"redis://who:hunter#swordfish@{AT}",
    f"redis://who:4711#swordfish@{AT}",
    f"redis://who:hunter#@{AT}",
    f"redis://who:hunter:swordfish@{AT}",
    f"redis://who:hunter%zzswordfish@{AT}",
    f"redis://who:hunter&swordfish@{AT}?x=1",
    f"redis://who:hunter@swordfish/@{AT}",
    f"redis://who:[hunter@{AT}",
    f"redis://who:hunter]@{AT}",
    f"redis://who:hunter\\swordfish@{AT}",
    f"redis://who:hunter\u2100@{AT}",
    "unix://who:hunter/swordfish@/nowhere/socket",
    "unix://who:hunter@swordfish/@/nowhere/socket",
    "unix:///who:hunter@/nowhere/socket",
    f"redis+sentinel://who:hunter/swordfish@{AT}/service",
    f"redis+sentinel://who:hunter?swordfish@{AT}/service",
    f"redis+cluster://who:hunter?swordfish@{AT}",
    # Unknown settings, and settings in another case.
    f"redis://{AT}?PASSWORD=hunter",
    f"redis://{AT}?Password=hunter&x=1",
    f"redis://{AT}?pasword=hunter",
    f"rediss://{AT}?SSL_Password=hunter",
    f"redis://{AT}?auth=hunter",
    f"redis://{AT}?x=1;password=hunter",
    f"redis://{AT}?hunter",
    f"redis://{AT}?hunter:swordfish=1",
    f"redis://{AT}?socket_timeout=hunter",
    f"redis://{AT}?connection_class=hunter",
    f"redis://{AT}?credential_provider=hunter",
    f"redis://{AT}?password=hunter@swordfish",
    # Text that is not a URL, and URLs of other schemes.
    f"redis:who:hunter@{AT}",
    f"redis:/who:hunter@{AT}",
    f"redis:///who:hunter@{AT}",
    f"redis//who:hunter@{AT}",
    f"//who:hunter@{AT}",
    f"who:hunter@{AT}",
    "hunter",
    "hunter://swordfish",
    f"http://who:hunter@{AT}",
    "redis://who:hunter",
    "redis://:hunter@",
    "redis://who:hunter@127.0.0.1:port",
    "redis://who:hunter@127.0.0.1:99999",
    "redis://who%3Ahunter%40127.0.0.1:1",
    "redis://who:hunter@127.0.0.1:1/swordfish",
    "redis://who:hunter@[::1",
    "redis+sentinel://who:hunter@127.0.0.1:1",
    "redis+sentinel://who:hunter@127.0.0.1:1/service/swordfish",
    "redis+cluster://who:hunter@/",
    f"redis://who:hunter swordfish@{AT}",
    f"redis://who:hunter\tswordfish@{AT}",
    f"redis://who:hunter\nswordfish@{AT}",
    f"redis://who:hunter\x00swordfish@{AT}",
    f" redis://who:hunter@{AT}",
    "memory://who:hunter@name",
    "memory://who:hunter",
    "memory://name?password=hunter",
    "memory:who:hunter@name",
]  # fmt: skip


class Seen:
    """All output that a user might see."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def add(self, *things: object) -> None:
        self.words += [str(thing) + repr(thing) for thing in things]

    def run(self, act: Callable[[], object]) -> None:
        """Run a call and record its error with all causes."""
        try:
            self.add(act())
        except TubesError as error:
            self.add_error(error)

    def add_error(self, error: BaseException) -> None:
        self.add(*traceback.format_exception(error))
        chain: list[BaseException] = [error]
        for one in chain:
            self.add(one, one.args, vars(one))
            chain += [other for other in (one.__cause__, one.__context__) if other is not None and other not in chain]

    def check(self) -> None:
        assert self.words
        for words in self.words:
            assert not [part for part in PARTS if part in words]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Seen]:
    """Record logs and warnings too."""
    monkeypatch.setattr(attempt, "PATIENCE", 0.0)
    for command in ("common", "bench"):
        monkeypatch.setattr(f"tubes.cli.{command}.CONNECT_TIMEOUT", 0.01)
    monkeypatch.delenv("TUBES_URL", raising=False)
    monkeypatch.delenv("TUBES_DEBUG", raising=False)
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made = Seen()
        yield made
        made.add(*(warning.message for warning in warned), caplog.text)
    made.check()


def connect_and_close(url: Any) -> object:
    with tubes.connect(url) as queue:
        return repr(queue), queue.tubes()


def connect_async(url: Any) -> object:
    async def main() -> object:
        async with tubes.aio.connect(url) as queue:
            return repr(queue), await queue.tubes()

    return asyncio.run(main())


@pytest.fixture(params=range(10), ids=lambda part: f"part {part}")
def some_urls(request: pytest.FixtureRequest) -> list[str]:
    """Return a tenth of the URLs."""
    return URLS[request.param :: 10]


@pytest.mark.sample(8)
def test_no_error_shows_a_part_of_the_password(seen: Seen, some_urls: list[str]) -> None:
    for url in some_urls:
        acts: list[Callable[[], object]] = [
            lambda url=url: connect_and_close(url),  # type: ignore[misc]
            lambda url=url: connect_async(url),  # type: ignore[misc]
            lambda url=url: Collector(url).close(),  # type: ignore[misc]
            lambda url=url: read_settings({"url": url, "tube": "mail"}),  # type: ignore[misc]
            lambda url=url: read_settings({"url": url, "tube": "mail"}).connect().close(),  # type: ignore[misc]
            lambda url=url: read_settings({"URI": url, "tube": "mail"}),  # type: ignore[misc]
        ]
        seen.add(redact_url(url))
        for act in acts:
            seen.run(act)


@pytest.mark.sample(7)
def test_the_command_shows_no_part_of_the_password(seen: Seen, some_urls: list[str]) -> None:
    for url in some_urls:
        commands = [["tubes", "--url", url], ["top", "--count", "1", "--url", url], ["bench", "--url", url]]
        if "@" in url or "redis:" in url:  # A URL as another argument.
            commands += [["stats", url], ["stats", "mail", url], [url]]
        for words in commands:
            result = CliRunner().invoke(app, words)
            assert result.exit_code != 0
            seen.add(result.output, result.stderr)


@pytest.mark.parametrize("words", [["--help"], ["stats", "--help"], ["bench", "--help"], ["worker", "--help"]])
def test_help_does_not_show_the_url_of_the_environment(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("TUBES_URL", f"redis://who:hunter@{AT}")
    seen.add(CliRunner().invoke(app, words).output)


class Odd(str):
    """A URL of a subclass of str."""


class Url:
    """A URL object like those of other libraries."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url

    __repr__ = __str__


@pytest.mark.parametrize(
    "place",
    [
        f"redis://:hunter@{AT}".encode(), Url(f"redis://:hunter@{AT}"), Path(f"redis://:hunter@{AT}"),
        [f"redis://:hunter@{AT}"], redis.Redis(host="who:hunter@127.0.0.1", port=1),
        redis.Redis(host="127.0.0.1", port=1, password="hunter"),
        redis.Redis(port=1, credential_provider=redis.UsernamePasswordCredentialProvider("who", "hunter")),
        AsyncRedis(host="127.0.0.1", port=1, password="hunter"),
    ],
    ids=lambda place: type(place).__name__,
)  # fmt: skip
def test_url_that_is_not_a_string_is_shown_by_its_type(seen: Seen, place: Any) -> None:
    with pytest.raises(TubesError) as refused:
        connect_and_close(place)
    seen.add_error(refused.value)


@pytest.fixture
def guarded() -> Iterator[LocalServer]:
    """Start a server that requires a password."""
    with LocalServer(requirepass="hunter/swordfish") as server:
        yield server


def test_connected_client_shows_no_part_of_the_password(seen: Seen, guarded: LocalServer, url: str) -> None:
    place = f"unix://:hunter%2Fswordfish@{guarded.socket}?prefix=a"
    with tubes.connect(place) as queue:
        tube = queue.create_tube("mail")
        task = tube.put(1)
        seen.add(queue, tube, task, vars(queue), vars(tube))
        assert repr(queue) == f"<Queue unix://***@{guarded.socket}?prefix=a>"
        seen.run(lambda: queue.tube("nobody"))
        registry = CollectorRegistry()
        registry.register(Collector(queue))
        seen.add(generate_latest(registry))
        client: Any = redis.Redis(unix_socket_path=str(guarded.socket), password="hunter/swordfish")
        with client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.warns(RuntimeWarning, match="maxmemory-policy") as warned:
            tubes.connect(place, session_ttl=31).close()
        seen.add(*(warning.message for warning in warned))
    for words in (
        ["top", "--count", "1", "--url", place],
        ["bench", "-u", place, "-n", "5"],
        ["stats", "mail", "-u", place],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0
        seen.add(result.output, result.stderr)


def test_refused_client_shows_no_part_of_the_password(seen: Seen, guarded: LocalServer) -> None:
    for place in (f"unix://:hunter@{guarded.socket}", f"unix://{guarded.socket}?username=who&password=swordfish"):
        for act in (connect_and_close, connect_async):
            with pytest.raises(tubes.ServerRefused) as refused:
                act(place)
            seen.add_error(refused.value)


class Echo(socketserver.StreamRequestHandler):
    """A server that knows no command and quotes unknown ones, as real servers do."""

    def handle(self) -> None:
        for line in self.rfile:
            if line[:1] not in b"*$":
                self.wfile.write(b"-ERR unknown command, with args beginning with: '%b'\r\n" % line.strip())


@pytest.fixture
def echo() -> Iterator[int]:
    """Start such a server and yield its port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(
    "url",
    [
        "redis://who:hunter@127.0.0.1:{port}", f"redis://:hunter{'x' * 200}@127.0.0.1:{{port}}",
        "redis+cluster://:hunter@127.0.0.1:{port}", "redis://127.0.0.1:{port}?password=hunter",
    ],
)  # fmt: skip
def test_server_error_that_contains_the_password_is_hidden(seen: Seen, echo: int, url: str) -> None:
    with pytest.raises((tubes.ServerRefused, tubes.ConnectionLost)) as refused:
        connect_and_close(url.format(port=echo))
    assert "left out" in str(refused.value)
    seen.add_error(refused.value)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("redis://who:4711?swordfish@localhost", "%3F"),
        ("redis://who:4711/swordfish@localhost", "%2F"),
        ("redis://who:4711#swordfish@localhost", "%23"),
        ("unix:///who:hunter@/socket", "%40"),
        ("redis:who:hunter@localhost", "two slashes after 'redis:': redis://"),
        ("rediss:/who:hunter@localhost", "two slashes after 'rediss:': rediss://"),
        ("redis://localhost?pasword=hunter", "pasword"),
        ("redis://localhost?socket_timeout=hunter", "socket_timeout"),
        ("rediss://localhost?ssl_cert_reqs=hunter", "redis-py cannot use"),
        ("redis://who:hunter@localhost/hunter", "a database number"),
        ("redis://who:hunter @localhost", "without spaces"),
        ("memory://who:hunter@name", "takes a name"),
    ],
)
def test_error_names_the_rule_that_the_url_breaks(seen: Seen, url: str, rule: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        tubes.connect(url)
    assert rule in str(refused.value)
    seen.add_error(refused.value)
    said = CliRunner().invoke(app, ["bench", "--url", url]).stderr
    assert rule in said  # Hiding passwords must not hide the rule.
    seen.add(said)


@pytest.mark.parametrize(
    ("url", "looks"),
    [
        ("redis://who:pw@host:6379/2?prefix=a", "redis://***@host:6379/2?prefix=a"),
        ("redis://who:p@w@host", "redis://***@host"),
        ("redis://[::1]:7000?db=1&password=x", "redis://[::1]:7000?db=1&password=***"),
        ("redis+sentinel://a:1,b:2/service/3", "redis+sentinel://a:1,b:2/service/3"),
        ("unix:///tmp/s?prefix=a%26b", "unix:///tmp/s?prefix=***"),
        ("redis://who:pw", "redis://***"),
        ("what:ever", "***"),
        ("who:pw@host", "***"),
        ("amqp://who:pw@host", "amqp://***"),
        ("reddis://who:pw@host", "reddis://***"),
        ("memroy", "memroy"),
        ("localhost:6379", "localhost:6379"),
        ("memory://name", "memory://name"),
    ],
)
def test_redact_url_hides_credentials(url: str, looks: str) -> None:
    assert redact_url(url) == looks
