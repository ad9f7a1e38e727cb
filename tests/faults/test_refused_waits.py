"""A server that refuses: rights that are taken away, passwords that are changed, keys that are something else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tubes import ServerRefused, TubesError
from tubes.metrics.prometheus import Collector
from tubes.redis.waiting import wait_loop
from tubes.spark.server.streams import Stream
from tubes.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tubes.testing import LocalServer

#: Commands of a client, outside of scripts, and those that most scripts need.
COMMANDS = ("bzpopmin", "fcall", "ping", "subscribe", "publish", "time", "multi", "hmget", "zadd", "hset")
#: What a program sends for itself.
SENT = ("bzpopmin", "fcall", "ping", "subscribe", "auth", "hello", "multi", "exec", "select", "hdel", "time")


class Guarded:
    """A server with a user of its own, whose rights and password change."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.admin: Any = server.client()
        self.allow()

    def allow(self) -> None:
        """Grant all rights, and set the password of the URL."""
        self.admin.execute_command("ACL", "SETUSER", "app", "reset", "on", ">first", "~*", "&*", "+@all")

    def refuse(self, *rules: str) -> None:
        """Revoke rights."""
        self.admin.execute_command("ACL", "SETUSER", "app", *rules)

    def rotate(self) -> None:
        """Change the password and close all connections."""
        self.refuse("resetpass", ">second")
        self.admin.execute_command("CLIENT", "KILL", "USER", "app")

    @property
    def url(self) -> str:
        """Return the URL with the first password."""
        return f"unix://app:first@{self.server.socket}"

    def count(self) -> int:
        """Return the number of commands and connections, without the commands of scripts."""
        stats: dict[str, Any] = self.admin.info("commandstats")
        calls = [stats.get(f"cmdstat_{name}", {}) for name in SENT]
        connections: int = self.admin.info("stats")["total_connections_received"]
        return connections + sum(int(one.get(kind, 0)) for one in calls for kind in ("calls", "rejected_calls"))


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    from tubes.testing import LocalServer

    with LocalServer() as server:
        yield server


@pytest.fixture
def guarded(server: LocalServer) -> Iterator[Guarded]:
    made = Guarded(server)
    with made.admin:
        made.admin.flushall()
        yield made
        made.allow()


class Waiters:
    """Callers that wait on one tube in different ways, and their results."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ends: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, wait: Callable[[], object]) -> None:
        """Start a waiting caller."""

        def run() -> None:
            try:
                self.ends[name] = wait()
            except BaseException as error:
                self.ends.setdefault(name, error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    async def take_awaited(self) -> Any:
        """Wait in an event loop."""
        async with tubes.aio.connect(self.url, session_ttl=29) as queue:
            tube = await queue.tube("load")
            try:
                return await tube.take(timeout=60)
            except TubesError as error:
                self.ends["awaited"] = error  # Closing may raise a second error.
                raise

    def have_ended(self, make_room: Callable[[], None]) -> bool:
        """Return True if all callers have ended after `make_room`."""
        make_room()
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait until all callers have ended."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def waiting_callers(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[tubes.Queue, Waiters]]:
    """Start five waiting callers: two threads and an event loop wait for a task, a put and a batch wait for room."""
    monkeypatch.setattr(wait_loop, "LONGEST_SLEEP", 0.5)
    # Each has a separate store like a separate process, so that they do not share notifications.
    with tubes.connect(guarded.url) as queue, tubes.connect(guarded.url, session_ttl=28) as putting:
        tube = queue.create_tube("load")
        other = queue.create_tube("other")
        full = putting.create_tube("full", capacity=1)
        full.put("first")
        waiters = Waiters(guarded.url)
        waiters.start("take", lambda: tube.take(timeout=60))
        waiters.start("take_any", lambda: queue.take_any([other, "load"], timeout=60))
        waiters.start("awaited", lambda: asyncio.run(waiters.take_awaited()))
        waiters.start("put", lambda: full.put("second", timeout=60))
        waiters.start("put_many", lambda: full.put_many(["third"], timeout=60))
        assert eventually(lambda: [tube.statistics().waiting for tube in (tube, full)] == [3, 2])
        yield queue, waiters
        guarded.allow()


REFUSALS: dict[str, Callable[[Guarded], object]] = {
    "the command that waits": lambda guarded: guarded.refuse("-bzpopmin"),
    "scripts": lambda guarded: guarded.refuse("-fcall", "-evalsha", "-eval"),
    "all keys": lambda guarded: guarded.refuse("resetkeys"),
    "the password": lambda guarded: guarded.rotate(),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_waiting_calls_report_a_refused_command(
    guarded: Guarded, waiting_callers: tuple[tubes.Queue, Waiters], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    REFUSALS[what](guarded)
    _, waiters = waiting_callers
    waiters.join()
    assert {name: type(end) for name, end in waiters.ends.items()} == dict.fromkeys(
        ("take", "take_any", "awaited", "put", "put_many"), ServerRefused
    ), waiters.ends
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 6, caplog.text


@pytest.mark.parametrize("marker", ["marker", "room"])
def test_waiting_call_reports_a_marker_key_of_the_wrong_type(guarded: Guarded, marker: str) -> None:
    with tubes.connect(guarded.url) as queue:
        tube = queue.create_tube("load", capacity=1)
        key = f"{port_of(tube).shared.key}:{marker}"
        guarded.admin.set(key, "foreign")
        if marker == "room":
            tube.put("first")
        with pytest.raises(ServerRefused, match="WRONGTYPE"):
            tube.take(timeout=60) if marker == "marker" else tube.put("second", timeout=60)
        guarded.admin.delete(key)
        if marker == "marker":
            tube.put("first")
        assert (task := tube.take(timeout=0)) is not None
        assert task.data == "first"


def test_take_gets_a_ready_task_although_waiting_is_refused(guarded: Guarded) -> None:
    with tubes.connect(guarded.url) as queue:
        tube = queue.create_tube("load")
        guarded.refuse("-bzpopmin")
        tube.put("job")
        assert tube.take(timeout=60) is not None
        with pytest.raises(ServerRefused):
            tube.take(timeout=60)
        guarded.allow()
        threading.Timer(0.2, lambda: tube.put("later")).start()
        assert tube.take(timeout=30) is not None


def test_refused_subscription_raises_and_does_no_harm(guarded: Guarded) -> None:
    async def main() -> None:
        async with tubes.aio.connect(guarded.url) as queue:
            tube = await queue.tube("load")
            with pytest.raises(ServerRefused, match="NOPERM"):
                await tube.on_task_change(lambda task, event: None)

    with tubes.connect(guarded.url) as queue:
        tube = queue.create_tube("load")
        guarded.refuse("resetchannels")
        events: list[int] = []
        for _ in range(2):
            with pytest.raises(ServerRefused, match="NOPERM"):
                tube.on_task_change(lambda task, event: events.append(task.id))
        asyncio.run(main())
        guarded.allow()
        tube.on_task_change(lambda task, event: events.append(task.id))
        tube.put("job")
        assert eventually(lambda: events == [0])


def test_listener_recovers_when_the_password_is_valid_again(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []
    with tubes.connect(guarded.url) as queue:
        tube = queue.create_tube("load")
        tube.on_task_change(lambda task, event: events.append(task.data))
        guarded.rotate()
        subscription: Any = port_of(tube).shared.subscription
        assert eventually(lambda: subscription._wire is None)
        guarded.allow()
        assert eventually(lambda: subscription._wire is not None)
        tube.put("job")
        assert eventually(lambda: events == ["job"]), events
        guarded.admin.execute_command("CLIENT", "KILL", "USER", "app")
        assert eventually(lambda: tube.put("again").id > 0 and "again" in events)
    assert len([record for record in caplog.records if "are not received" in record.message]) <= 3, caplog.text


def read_up(collector: Collector) -> float:
    """Return 1 if a scrape can read the tubes."""
    (sample,) = next(metric for metric in collector.collect() if metric.name == "tubes_up").samples
    return float(sample.value)


def spin(guarded: Guarded, seconds: float = 0.7) -> float:
    """Return the number of commands per second."""
    before, began = guarded.count(), time.monotonic()
    time.sleep(seconds)
    return (guarded.count() - before) / (time.monotonic() - began)


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", [*COMMANDS, "the password", "all keys", "channels"])
def test_refused_commands_do_not_cause_busy_loops(
    guarded: Guarded, waiting_callers: tuple[tubes.Queue, Waiters], command: str
) -> None:
    """Besides the waiting callers, run a worker, a listener, a collector, a stream and a caller of a reply."""
    queue, waiters = waiting_callers
    with tubes.connect(guarded.url, session_ttl=27) as busy:
        stream = Stream.open(tubes.connect(guarded.url, session_ttl=26), "other", "nightly")
        collector = Collector(busy, watch=True)
        assert read_up(collector) == 1.0
        worker = Worker(busy)
        worker.on("other", lambda task: None)
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        busy.tube("other").on_task_change(lambda task, event: None)
        waiters.start("call", lambda: busy.tube("full").call("third", timeout=2))
        if command == "the password":
            guarded.rotate()
        else:
            rule = {"all keys": "resetkeys", "channels": "resetchannels"}.get(command, f"-{command}")
            guarded.refuse(rule)
        read_up(collector)
        # Five callers, a worker, two listeners, a reply tube and a stream have noticed the refusal and pause.
        time.sleep(0.8)
        each = spin(guarded)
        guarded.allow()
        assert eventually(lambda: read_up(collector) == 1.0)
        collector.close()
        port_of(stream.tube).connection.close()
        worker.stop()
        # Some callers may continue to wait, because they need no refused command.
        for name in ("load", "other"):
            queue.tube(name).put_many(range(3))
        running.join(30)
        full = queue.tube("full")
        assert eventually(lambda: waiters.have_ended(full.truncate))
        waiters.join()
    # Waiting callers retry twice a second here, and a worker has begun to pause.
    assert each < 150, f"{each:.0f} commands a second"
    for name, end in waiters.ends.items():
        assert not isinstance(end, BaseException) or isinstance(end, TubesError), (name, end)
