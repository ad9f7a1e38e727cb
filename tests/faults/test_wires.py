"""Connections that are cut after the request and before the reply: each request is executed once."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest

import tubes
from tests.support.ledger import Ledger
from tests.support.proxy import Proxy
from tubes import ConnectionLost, Task, TubesError
from tubes.backend.flow import run
from tubes.conformance.bench import eventually
from tubes.redis import task_codec
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.transport import attempt, subscription
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import ScriptCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tubes.testing import LocalServer


def with_chance(share: float) -> Any:
    return lambda request: random.random() < share


class Cut:
    """Cut the connection of the next request that contains some bytes."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._lock = threading.Lock()

    def next(self, *, having: bytes = b"FCALL") -> None:
        """Cut the next such request."""
        left = [having]

        def cut(request: bytes) -> bool:
            with self._lock:
                if left and left[0] in request:
                    left.clear()
                    return True
                return False

        self._proxy.cuts = cut


@pytest.fixture
def cut(proxy: Proxy) -> Cut:
    return Cut(proxy)


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_puts_over_cut_connections_are_done_once(
    proxied_url: str, proxy: Proxy, driver: str, ledger: Ledger, factor: int
) -> None:
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load", driver)
        proxy.cuts = with_chance(0.2)
        for number in range(150 * factor):
            ledger.put(tube, str(number))
        assert not ledger.unknown
        assert proxy.count > 10
        for _ in range(75 * factor):
            task = tube.take(timeout=0)
            assert task is not None
            ledger.work(task)
        assert len(ledger.done) == 75 * factor
        assert ledger.late == 0
        proxy.cuts = with_chance(0)
        assert tube.statistics().tasks["taken"] == 0
        ledger.check(tube)


def test_sessions_over_cut_connections_do_everything_once(
    proxied_url: str, proxy: Proxy, ledger: Ledger, factor: int
) -> None:
    """A put also takes tasks for the waiters of its process."""
    with tubes.connect(proxied_url) as queue, ExitStack() as ends:
        tube = queue.create_tube("load")
        sessions = [ends.enter_context(queue.session()) for _ in range(4)]
        errors: list[BaseException] = []
        left = threading.Semaphore(0)

        def put(session: tubes.Queue, name: int) -> None:
            mine = session.tube("load")
            try:
                for number in range(30 * factor):
                    ledger.put(mine, f"{name}.{number}")
                    left.release()
            except BaseException as error:
                errors.append(error)

        def take(session: tubes.Queue) -> None:
            mine = session.tube("load")
            try:
                while not stop.is_set():
                    task = mine.take(timeout=0.05)
                    if task is not None:
                        ledger.work(task)
            except BaseException as error:
                errors.append(error)

        stop = threading.Event()
        proxy.cuts = with_chance(0.15)
        putters = [threading.Thread(target=put, args=(session, n)) for n, session in enumerate(sessions)]
        takers = [threading.Thread(target=take, args=(session,)) for session in sessions]
        for thread in putters + takers:
            thread.start()
        for thread in putters:
            thread.join()
        stop.set()
        for thread in takers:
            thread.join()
        proxy.cuts = with_chance(0)
        assert not errors, errors
        assert not ledger.unknown
        assert ledger.late == 0
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
        ledger.check(tube)


def test_event_loop_over_cut_connections_does_everything_once(
    proxied_url: str, proxy: Proxy, ledger: Ledger, factor: int
) -> None:
    async def main() -> None:
        async with tubes.aio.connect(proxied_url) as queue:
            tube = await queue.create_tube("load")

            async def put(name: int) -> None:
                for number in range(30 * factor):
                    ledger.record_put(f"{name}.{number}", (await tube.put(f"{name}.{number}")).id)

            async def take() -> None:
                while (task := await tube.take(timeout=1)) is not None:
                    ledger.record_take(task.id, task.attempts, task.data)
                    await task.ack()
                    ledger.record_done(task.id, task.attempts)

            proxy.cuts = with_chance(0.1)
            await asyncio.gather(*(put(name) for name in range(10)), *(take() for _ in range(5)))
            proxy.cuts = with_chance(0)

    asyncio.run(main())
    assert len(ledger.done) == 300 * factor
    with tubes.connect(proxied_url) as queue:
        ledger.check(queue.tube("load"))


def test_call_whose_reply_was_cut_returns_its_result(proxied_url: str, cut: Cut) -> None:
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load", "fifottl", ttr=60)
        ids = []
        for name in "abcd":
            cut.next()
            ids.append(tube.put(name).id)
        assert ids == [0, 1, 2, 3]
        cut.next()
        task = tube.take(timeout=0)
        assert task is not None
        assert (task.id, task.attempts) == (0, 1)
        cut.next()
        assert task.touch(5).ttr == 65
        cut.next()
        assert task.release(delay=0).state == "ready"
        task = tube.take(timeout=0)
        assert task is not None
        cut.next()
        assert task.ack().state == "done"
        cut.next()
        assert tube.bury(1).state == "buried"
        cut.next()
        assert tube.select("buried", limit=5).kick() == 1
        cut.next()
        assert tube.delete(1).state == "done"
        counted = tube.statistics().calls
        assert {name: count for name, count in counted.items() if count} == {
            "put": 4, "take": 2, "touch": 1, "release": 1, "ack": 1, "bury": 1, "kick": 1, "delete": 1,
        }  # fmt: skip


def test_create_tube_succeeds_although_its_reply_was_cut(proxied_url: str, cut: Cut) -> None:
    with tubes.connect(proxied_url) as queue:
        cut.next(having=b"fifottl")
        assert queue.create_tube("load", "fifottl").put("job").id == 0


def test_drop_succeeds_although_its_reply_was_cut(proxied_url: str, cut: Cut) -> None:
    with tubes.connect(proxied_url) as queue:
        tube = queue.create_tube("load")
        cut.next()
        tube.drop()
        assert queue.tubes() == []


class Between:
    """Cut a request and run another call before it is sent again."""

    def __init__(self, proxy: Proxy, act: Any) -> None:
        self._left = 2
        self._act = act
        proxy.cuts = self._cut

    def _cut(self, request: bytes) -> bool:
        if b"FCALL" not in request:
            return False
        self._left -= 1
        if self._left == 0:
            self._act()
        return self._left == 1


@pytest.fixture
def other_queue(proxied_url: str, proxy: Proxy, valkey: LocalServer) -> Iterator[tubes.Queue]:
    """Open a queue like that of another process, without cut connections."""
    url = proxied_url.replace(proxy.url, valkey.url)
    with tubes.connect(url) as queue:
        queue.create_tube("load")
        yield queue


def test_repeated_truncate_keeps_tasks_put_in_between(proxied_url: str, proxy: Proxy, other_queue: tubes.Queue) -> None:
    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("load")
        Between(proxy, lambda: other_queue.tube("load").put("new"))
        tube.truncate()
        assert tube.statistics().tasks["total"] == 1


def test_repeated_release_all_keeps_tasks_taken_in_between(
    proxied_url: str, proxy: Proxy, other_queue: tubes.Queue
) -> None:
    others = other_queue.tube("load")
    others.put("job")
    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("load")
        Between(proxy, lambda: others.take(timeout=0))
        tube.admin.release_all()
        assert tube.statistics().tasks["taken"] == 1


@pytest.mark.parametrize("method", ["put", "put_many", "awaited"])
def test_repeated_put_is_done_once_although_a_task_became_due(
    proxied_url: str, proxy: Proxy, other_queue: tubes.Queue, method: str
) -> None:
    others = other_queue.create_tube("timed", "fifottl")

    def let_fall_due() -> None:
        others.put("delayed", delay=0.001)
        time.sleep(0.002)

    async def put() -> None:
        async with tubes.aio.connect(proxied_url) as queue:
            tube = await queue.tube("timed")
            Between(proxy, let_fall_due)
            await tube.put("once")

    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("timed")
        if method == "awaited":
            asyncio.run(put())
        else:
            Between(proxy, let_fall_due)
            tube.put("once") if method == "put" else tube.put_many(["once"])
        assert sorted(task.data for task in tube.select()) == ["delayed", "once"]


@pytest.mark.parametrize("method", ["ack", "ack_many", "awaited"])
def test_repeated_ack_of_an_ended_session_raises_connection_lost(
    proxied_url: str, proxy: Proxy, other_queue: tubes.Queue, valkey: LocalServer, method: str
) -> None:
    others = other_queue.tube("load")
    others.put("job")

    def end(tube: Any) -> None:
        """End the lease of the session and have this noticed."""
        port = tube._port
        with valkey.client() as client:
            client.zadd(f"{port.shared.key}:leases", {port.session[1]: 1})
            client.hset(port.shared.key, "soonest", 1)
        assert others.take(timeout=0) is None

    async def ack() -> None:
        async with tubes.aio.connect(proxied_url) as queue:
            tube = await queue.tube("load")
            task = await tube.take(timeout=0)
            assert task is not None
            Between(proxy, lambda: end(tube))
            await task.ack()

    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("load")
        if method == "awaited":
            with pytest.raises(ConnectionLost):
                asyncio.run(ack())
        else:
            task = tube.take(timeout=0)
            assert task is not None
            Between(proxy, lambda: end(tube))
            with pytest.raises(ConnectionLost):
                task.ack() if method == "ack" else tube.ack_many([task])
        assert tube.statistics().calls["ack"] == 1


def test_shared_session_survives_a_repeated_leave(
    proxied_url: str, proxy: Proxy, other_queue: tubes.Queue, cut: Cut
) -> None:
    others = other_queue.tube("load")
    others.put("job")
    task = others.take(timeout=0)
    uuid = other_queue.admin.identify()
    queue = tubes.connect(proxied_url)
    queue.admin.identify(uuid)
    cut.next(having=b"leave")
    queue.close()
    assert task is not None
    assert task.ack().state == "done"


def test_session_joined_over_a_cut_connection_ends_with_its_last_caller(
    proxied_url: str, cut: Cut, other_queue: tubes.Queue
) -> None:
    others = other_queue.tube("load")
    first = other_queue.session()
    first.tube("load").put("job")
    assert first.tube("load").take(timeout=0) is not None
    uuid = first.admin.identify()
    queue = tubes.connect(proxied_url)
    cut.next(having=b"join")
    queue.admin.identify(uuid)
    queue.close()
    first.close()
    assert others.take(timeout=0) is not None


def test_lost_marker_does_not_delay_a_waiter(proxied_url: str, other_queue: tubes.Queue, cut: Cut) -> None:
    taken: list[Task | None] = []
    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("load")
        cut.next(having=b"BZPOPMIN")
        # The proxy forwards the next request only after the reply, which is the marker.
        waiter = threading.Thread(target=lambda: taken.append(tube.take(timeout=3)))
        waiter.start()
        assert eventually(lambda: other_queue.tube("load").statistics().waiting == 1)
        other_queue.tube("load").put("job")
        waiter.join()
    assert taken[0] is not None


def test_idle_listener_misses_no_event(
    proxied_url: str, other_queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "SILENCE", 0.05)
    events: list[int] = []
    with tubes.connect(proxied_url) as queue:
        queue.tube("load").on_task_change(lambda task, event: events.append(task.id))
        tube = other_queue.tube("load")
        for _ in range(10):
            threading.Event().wait(0.06)
            tube.put("job")
        assert eventually(lambda: len(events) == 10), events


def test_async_put_gives_up_on_a_connection_that_is_always_cut(
    proxied_url: str, proxy: Proxy, other_queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 1.0)

    async def main() -> int:
        async with tubes.aio.connect(proxied_url) as queue:
            tube = await queue.tube("load")
            proxy.cuts, proxy.count = (lambda request: b"FCALL" in request), 0
            with pytest.raises(ConnectionLost):
                await asyncio.wait_for(tube.put("lost"), 5)
            proxy.cuts = with_chance(0)
            count = proxy.count
            assert (await tube.put("job")).id is not None
            return count

    # The loop pauses between retries.
    assert asyncio.run(main()) < 30


def test_session_closed_during_a_wait_does_not_block_other_waiters(proxied_url: str, other_queue: tubes.Queue) -> None:
    """The caller that takes for the waiters of a process finds that some have left."""
    others = other_queue.tube("load")
    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("load")
        for _ in range(30):
            leaver = queue.session()

            def take(mine: tubes.Tube) -> None:
                try:
                    mine.take(timeout=3)
                except TubesError:
                    return

            thread = threading.Thread(target=take, args=(leaver.tube("load"),))
            thread.start()
            assert eventually(lambda: tube.statistics().waiting == 1)
            closer = threading.Thread(target=leaver.close)
            closer.start()
            others.put("job")
            closer.join()
            thread.join()
            task = tube.take(timeout=3)
            assert task is not None
            task.ack()


def test_task_taken_again_is_not_given_back_twice(proxied_url: str, proxy: Proxy, other_queue: tubes.Queue) -> None:
    """The second take has the same number of attempts as the first."""
    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("load")
        other_queue.tube("load").put("job")
        first = tube.take(timeout=0)
        assert first is not None
        port: Any = tube._port
        again: list[Any] = []

        def take() -> None:
            call = ScriptCall(FUNCTIONS["take"], port.shared.key, ("", ""), port.session)
            again.append(task_codec.parse(port.connection.store._channel.call(call)))

        Between(proxy, take)
        channel = ThreadChannel(port.connection.store.server)
        run(port.undo("untake", first.id, first._take), channel.call)
        channel.close()
        assert again[0][2] == first.attempts
        assert tube.statistics().tasks["taken"] == 1


def test_take_for_another_session_does_not_disturb_its_replies(proxied_url: str, proxy: Proxy) -> None:
    """A put of a session is cut; before it is repeated, the connection of another session takes for the first one."""
    with tubes.connect(proxied_url) as queue, queue.session() as other_queue:
        tube = queue.create_tube("load")
        other = other_queue.tube("load")
        other.put("for the waiting take")
        port: Any = tube._port
        others: Any = other._port
        Between(proxy, lambda: others.connection.run(port.take_waiting(1)))
        tube.put("once")
        counted = tube.statistics().calls
        assert (counted["put"], counted["take"]) == (2, 1)


class Dying:
    """A process that dies after some round trips: nothing that it sends later arrives."""

    def __init__(self, proxy: Proxy, trips: int) -> None:
        self.is_dead = False
        self._left = trips
        self._lock = threading.Lock()
        proxy.cuts = self._count

    def _count(self, request: bytes) -> bool:
        with self._lock:
            self._left -= 1
            self.is_dead = self.is_dead or self._left < 0
        if self.is_dead:
            raise ConnectionResetError
        return False


#: Waiting takes for three seconds.
WAITING_TAKES: dict[str, Any] = {
    "take": lambda queue, tube: tube.take(30, ttr=3),
    "take_many": lambda queue, tube: tube.take_many(3, 30, ttr=3),
    "take_any": lambda queue, tube: queue.take_any([tube], 30, ttr=3),
    "by priority": lambda queue, tube: queue.take_any([tube], 30, ttr=3, order="pri"),
    "take_many of tubes": lambda queue, tube: queue.take_many([tube], 3, 30, ttr=3),
}


class Life(NamedTuple):
    """One process that makes a call and may die, as the next process of its service sees it."""

    has_returned: bool
    #: Seconds that the takes last from the put of their tasks.
    leases: list[float]


def live(valkey: LocalServer, api: str, take: Any, trips: int) -> Life:
    """Wait in a process that dies after these round trips, and put a task. The session of the process lives on."""
    prefix, uuid, dying, ends = f"?prefix={uuid4().hex}", uuid4().hex, list[Dying](), list[Any]()
    with (
        tubes.connect(valkey.url + prefix, session_ttl=40.0) as service,
        Proxy(valkey) as proxy,
        ThreadPoolExecutor(1) as pool,
        valkey.client() as client,
    ):
        service.admin.identify(uuid, create=True)
        tube = service.create_tube("load", "fifottl")

        def wait_by_thread() -> None:
            with tubes.connect(proxy.url + prefix, session_ttl=41.0) as queue:
                queue.admin.identify(uuid)
                mine = queue.tube("load")
                ends.append(queue.close)
                dying.append(Dying(proxy, trips))
                take(queue, mine)

        async def wait_by_loop() -> None:
            async with tubes.aio.connect(proxy.url + prefix, session_ttl=41.0) as queue:
                await queue.admin.identify(uuid)
                mine = await queue.tube("load")
                call = asyncio.ensure_future(take(queue, mine))
                ends.append(partial(asyncio.get_running_loop().call_soon_threadsafe, call.cancel))
                dying.append(Dying(proxy, trips))
                await call

        done = pool.submit(wait_by_thread if api == "threads" else lambda: asyncio.run(wait_by_loop()))
        assert eventually(lambda: bool(dying))
        assert eventually(lambda: dying[0].is_dead or bool(client.info("clients")["blocked_clients"]))
        tube.put("job")
        assert eventually(lambda: dying[0].is_dead or done.done())
        leases = [(task.due or 1e18) - task.created for task in tube.select("taken")]
        with suppress(TubesError, RuntimeError):  # An event loop that has ended is closed.
            ends[0]()
        return Life(not dying[0].is_dead and done.exception() is None, leases)


@pytest.mark.parametrize("name", WAITING_TAKES)
@pytest.mark.parametrize("api", ["threads", "asyncio"])
def test_waiting_take_of_a_dying_process_keeps_its_ttr(
    valkey: LocalServer, monkeypatch: pytest.MonkeyPatch, api: str, name: str
) -> None:
    """The process dies after each of its round trips."""
    monkeypatch.setattr(attempt, "PATIENCE", 0.1)
    lives: list[Life] = []
    while not lives or not lives[-1].has_returned:
        lives.append(live(valkey, api, WAITING_TAKES[name], len(lives)))
    leases = [lease for life in lives for lease in life.leases]
    assert len(lives) > 2
    assert leases
    assert max(leases) < 33
