"""Servers that are killed, paused, full, or lose all data."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.lasting import OUTLIVES_KILLS
from tests.support.ledger import Ledger, Witness
from tests.support.taking import take_task
from tubes import ConnectionLost, ServerFull, Task, TubeNotFound
from tubes.redis.transport import attempt
from tubes.redis.waiting import wait_loop
from tubes.testing import LocalServer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tubes import Tube


@contextmanager
def load(tube: Tube, ledger: Ledger, *, url: str = "") -> Generator[Callable[[], int]]:
    """Run threads with separate sessions that put, take and ack; yield a function that returns the number of puts."""
    stop = threading.Event()
    errors: list[BaseException] = []
    place: Any = url or tube._port.url

    def guard(act: Callable[[tubes.Tube, int], None], number: int) -> None:
        try:
            with tubes.connect(place) as queue:
                act(queue.tube(tube.name), number)
        except ConnectionLost:
            if not stop.is_set():
                raise
        except BaseException as error:
            errors.append(error)

    def put(tube: Tube, number: int) -> None:
        count = 0
        while not stop.is_set():
            ledger.put(tube, f"{number}.{count}")
            count += 1

    def take(tube: Tube, number: int) -> None:
        while not stop.is_set():
            try:
                task = tube.take(timeout=0.05)
            except ConnectionLost:
                continue
            if task is not None:
                ledger.work(task)

    threads = [threading.Thread(target=guard, args=(put, number)) for number in range(2)]
    threads += [threading.Thread(target=guard, args=(take, number)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: len(ledger.puts)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


def commands(client: Any) -> int:
    """Return the number of commands that a server has run."""
    return int(client.info("stats")["total_commands_processed"])


def test_killed_server_with_fsync_always_loses_no_task(ledger: Ledger, factor: int) -> None:
    with (
        LocalServer(appendonly="yes", appendfsync="always") as server,
        tubes.connect(server.url, session_ttl=31.0) as queue,
    ):
        tube = queue.create_tube("load", "fifottl")
        with load(tube, ledger) as count:
            for _ in range(3 * factor):
                before = count()
                server.kill()
                server.start()
                assert eventually(lambda before=before: count() > before + 100)  # type: ignore[misc]
        assert not ledger.unknown
        ledger.check(tube)


def test_waiting_take_continues_after_a_restart(own_server: LocalServer) -> None:
    taken: list[Task | None] = []
    with LocalServer(**OUTLIVES_KILLS) as server, tubes.connect(server.url) as queue:
        tube = queue.create_tube("load")
        waiter = threading.Thread(target=lambda: taken.append(tube.take(timeout=20)))
        waiter.start()
        assert eventually(lambda: tube.statistics().waiting == 1)
        server.kill()
        server.start()
        with tubes.connect(server.url, session_ttl=31.0) as another:
            task = another.tube("load").put("job")
            waiter.join()
        assert taken[0] is not None
        assert taken[0].id == task.id


def test_calls_wait_until_a_server_has_loaded_its_data() -> None:
    # The server sleeps 10 ms per loaded key, and replies "LOADING" after each kilobyte.
    slowly: dict[str, Any] = {
        "key_load_delay": 10_000,
        "loading_process_events_interval_bytes": 1024,
        "rdbcompression": "no",
    }
    with (
        LocalServer(**slowly) as server,
        tubes.connect(server.url) as queue,
        server.client() as client,
        ThreadPoolExecutor() as threads,
    ):
        tube = queue.create_tube("t")
        client.mset({str(number): "x" * 2000 for number in range(40)})
        client.save()
        server.kill()
        restart = threads.submit(server.start)
        tube.put("job")
        restart.result()
        assert tube.statistics().tasks["ready"] == 1


@pytest.mark.full
def test_leases_are_renewed_again_after_a_long_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.1)
    with (
        LocalServer(**OUTLIVES_KILLS) as server,
        tubes.connect(server.url, session_ttl=3) as queue,
        tubes.connect(server.url) as another,
    ):
        tube = queue.create_tube("load")
        server.kill()
        time.sleep(3.5)
        server.start()
        with suppress(ConnectionLost):  # The session may have ended meanwhile.
            tube.statistics()
        tube.put("job")
        mine = take_task(tube)
        assert another.tube("load").take(timeout=4) is None
        assert mine.ack().state == "done"


@pytest.mark.full
def test_connections_that_are_killed_lose_nothing(own_server: LocalServer, ledger: Ledger, factor: int) -> None:
    with tubes.connect(own_server.url, session_ttl=31.0) as queue, own_server.client() as client:
        tube = queue.create_tube("load", "utube")
        with load(tube, ledger) as count:
            for _ in range(150 * factor):
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                time.sleep(0.004)
            before = count()
            assert eventually(lambda: count() > before + 10)
        assert not ledger.unknown
        ledger.check(tube)


def test_killed_subscription_is_reopened(own_server: LocalServer) -> None:
    events: list[str] = []
    with tubes.connect(own_server.url) as queue, own_server.client() as client:
        tube = queue.create_tube("load")
        tube.on_task_change(lambda task, event: events.append(event))
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

        def has_event() -> bool:
            tube.put("job")
            return bool(events)

        assert eventually(has_event)


def test_scripts_that_are_flushed_are_loaded_again(own_server: LocalServer, ledger: Ledger, factor: int) -> None:
    with tubes.connect(own_server.url, session_ttl=31.0) as queue, own_server.client() as client:
        tube = queue.create_tube("load", "utubettl")
        witness = Witness(tube)
        with load(tube, ledger):
            for _ in range(200 * factor):
                client.script_flush()
        assert not ledger.unknown
        witness.check()
        ledger.check(tube)


def test_paused_server_delays_calls_but_loses_no_task(own_server: LocalServer, ledger: Ledger, factor: int) -> None:
    with tubes.connect(own_server.url, session_ttl=31.0) as queue, own_server.client() as client:
        tube = queue.create_tube("load")
        with load(tube, ledger):
            for _ in range(5 * factor):
                client.execute_command("CLIENT", "PAUSE", 100, "ALL")
                time.sleep(0.12)
        assert not ledger.unknown
        ledger.check(tube)


@pytest.mark.parametrize("driver", ["fifo", "fifottl", "limfifottl", "utube", "utubettl"])
def test_on_a_full_server_only_puts_are_refused(driver: str) -> None:
    with LocalServer() as server, tubes.connect(server.url) as queue, server.client() as client:
        lanes = "utube" in driver
        options: dict[str, Any] = {"ttl": 1000} if "ttl" in driver else {}
        tube = queue.create_tube("load", driver, **options)
        items = (tubes.Item("x" * 500, utube=str(n % 7)) if lanes else tubes.Item("x" * 500) for n in range(50))
        ids = [task.id for task in tube.put_many(items)]
        buried = tube.bury(ids[-1])
        client.config_set("maxmemory", 1)
        before = tube.statistics()
        with pytest.raises(ServerFull):
            tube.put("one more")
        with pytest.raises(ServerFull):
            tube.put("one more", **({"utube": "new"} if lanes else {"pri": 3} if "ttl" in driver else {}))
        after = tube.statistics()
        assert after == before
        assert take_task(tube).release().state == "ready"
        assert take_task(tube).ack().state == "done"
        assert tube.select("buried", limit=1).kick() == 1
        assert tube.delete(buried.id).state == "done"
        assert tube.peek(5).id == 5
        with tubes.connect(server.url, session_ttl=31.0) as another:
            others = another.tube("load")
            third = take_task(others)
            if "ttl" in driver:
                third.touch(5)
                assert third.release(delay=100).state == "delayed"
            else:
                third.bury()
        tube.admin.release_all()
        while (task := tube.take(timeout=0)) is not None:
            task.ack()
        assert tube.take(timeout=0.01) is None
        tube.truncate()
        client.config_set("maxmemory", 0)
        assert tube.put("room again").state == "ready"


def test_waiters_of_a_flushed_server_raise_without_busy_looping(
    own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_loop, "LONGEST_SLEEP", 0.5)
    raised: list[BaseException] = []

    def take(tube: Tube) -> None:
        try:
            tube.take()
        except TubeNotFound as error:
            raised.append(error)

    with tubes.connect(own_server.url) as queue, own_server.client() as client:
        tube = queue.create_tube("load")
        waiters = [threading.Thread(target=take, args=(tube,)) for _ in range(20)]
        for waiter in waiters:
            waiter.start()
        assert eventually(lambda: tube.statistics().waiting == 20)
        client.flushall()
        before = commands(client)
        for waiter in waiters:
            waiter.join()
        assert len(raised) == 20
        assert commands(client) - before < 30
        with pytest.raises(TubeNotFound):
            tube.put("lost")
        assert queue.tubes() == []
        assert queue.create_tube("load").put("new").id == 0


def test_call_gives_up_on_a_server_that_does_not_respond(
    own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.2)
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        own_server.kill()
        with pytest.raises(ConnectionLost):
            tube.put("lost")
        own_server.start()
        with pytest.raises(TubeNotFound):
            tube.put("lost")


def test_call_waits_for_a_stopped_server(own_server: LocalServer) -> None:
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        own_server.signal(signal.SIGSTOP)
        threading.Timer(0.3, own_server.signal, (signal.SIGCONT,)).start()
        assert tube.put("job").id == 0
