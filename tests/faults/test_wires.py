"""Connections that are cut after the request and before the reply: each request is executed once."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.contract.faces import AioFace, SyncFace
from tests.support.internals import port_of
from tests.support.ledger import Ledger
from tests.support.proxy import Proxy
from tests.support.taking import take_task
from tubes import CallTimeout, ConnectionLost, Task, TubesError
from tubes.backend.flow import run
from tubes.redis import task_codec
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.port import batch
from tubes.redis.port import tube as tube_calls
from tubes.redis.transport import attempt, subscription
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import ScriptCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.contract.faces import Face
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
            ledger.work(take_task(tube))
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
        task = take_task(tube)
        assert (task.id, task.attempts) == (0, 1)
        cut.next()
        assert task.touch(5).ttr == 65
        cut.next()
        assert task.release(delay=0).state == "ready"
        task = take_task(tube)
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
            task = take_task(tube)
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
            take_task(tube, 3).ack()


def test_task_taken_again_is_not_given_back_twice(proxied_url: str, proxy: Proxy, other_queue: tubes.Queue) -> None:
    """The second take has the same number of attempts as the first."""
    with tubes.connect(proxied_url) as queue:
        tube = queue.tube("load")
        other_queue.tube("load").put("job")
        first = take_task(tube)
        port: Any = tube._port
        again: list[Any] = []

        def take() -> None:
            call = ScriptCall(FUNCTIONS["take"], port.shared.key, ("", ""), port.session)
            again.append(task_codec.parse(port.connection.store._channel.call(call)))

        Between(proxy, take)
        channel = ThreadChannel(port.connection.store.server)
        run(port.undo("undo_take", first.id, first._take), channel.call)
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


class Mortal(Proxy):
    """The connections of a process that dies after some round trips: all of them end, and what it sends is lost."""

    def __init__(self, server: LocalServer) -> None:
        super().__init__(server, self._count)
        self.is_dead = False
        #: The remaining round trips; None: any number.
        self.left: int | None = None
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    def _count(self, request: bytes) -> bool:
        with self._lock:
            if self.left is not None:
                self.left -= 1
                self.is_dead = self.is_dead or self.left < 0
        if self.is_dead:
            raise ConnectionResetError
        return False

    def _serve(self, client: socket.socket) -> None:
        self._open.append(client)
        try:
            super()._serve(client)
        finally:
            self._open.remove(client)

    def die(self) -> None:
        """End all connections."""
        self.is_dead = True
        for client in [*self._open]:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: not self._open)


class Mine(NamedTuple):
    """What a process that dies uses: its queue, its tube, and the tasks that it has taken."""

    face: Face
    queue: Any
    tube: Any
    held: list[Any]

    def run(self, method: str, *args: Any) -> None:
        """Call a method of the port with each of these lists of arguments, on an event loop at the same time."""
        if isinstance(self.face, SyncFace):
            for each in args:
                getattr(port_of(self.tube), method)(*each)
            return

        async def calls() -> None:
            call = getattr(port_of(self.tube.inner), method)
            await asyncio.gather(*(call(*[getattr(one, "inner", one) for one in each]) for each in args))

        cast("AioFace", self.face).run(calls())


class Act(NamedTuple):
    """A call of a process that dies."""

    call: Callable[[Mine], object]
    driver: str = "fifottl"
    options: Mapping[str, Any] = MappingProxyType({})
    #: Puts tasks and prepares the tube, as another process.
    before: Callable[[tubes.Tube], object] = lambda tube: tube.put_many(range(5))
    #: The number of tasks that the process has taken.
    held: int = 0
    #: Acts as another process while the call waits.
    during: Callable[[tubes.Tube], object] | None = None
    #: False if each task changes in a step of its own.
    at_once: bool = True


def put_one(tube: tubes.Tube) -> None:
    tube.put("late")


FULL: dict[str, Any] = {"options": {"capacity": 5}, "during": lambda tube: tube.delete_many([0, 1, 2])}
LANED = [tubes.Item(number, utube="ab"[number % 2]) for number in range(5)]
KEYED = [tubes.Item(number, key=str(number), key_ttl=60) for number in range(3)]
LANES: dict[str, Any] = {"driver": "utubettl", "before": lambda tube: tube.put_many(LANED)}
KEYS: dict[str, Any] = {"before": lambda tube: tube.put_many(KEYED)}
ENDED: dict[str, Any] = {"before": lambda tube: (tube.put_many(KEYED), tube.delete(1))}
BURIED: dict[str, Any] = {"before": lambda tube: [tube.put(number).bury("bad") for number in range(5)]}
DONE: dict[str, Any] = {
    "options": {"keep_done": 60},
    "before": lambda tube: (tube.put_many(range(5)), tube.ack_many(tube.take_many(5, 0))),
}
KEEPS: dict[str, Any] = {"options": {"keep_done": 60}}
WAITS: dict[str, Any] = {"options": {"ttr": 60}, "before": lambda tube: None, "during": put_one}

#: Calls by name.
ACTS: dict[str, Act] = {
    "put": Act(lambda my: my.tube.put(5, pri=1, ttl=60, delay=50, ttr=3)),
    "put into a lane": Act(lambda my: my.tube.put(5, utube="a"), **LANES),
    "put with a key": Act(lambda my: my.tube.put(5, key="a", on_duplicate="raise")),
    "put an update": Act(lambda my: my.tube.put(5, key="1", on_duplicate="update"), **KEYS),
    "put a replacement": Act(lambda my: my.tube.put(5, key="1", on_duplicate="replace"), **KEYS),
    "put, kept": Act(lambda my: my.tube.put(5, keep_done=60)),
    "put, full": Act(lambda my: my.tube.put(5, timeout=30), **FULL),
    "put with a key, full": Act(lambda my: my.tube.put(5, timeout=30, key="a"), **FULL),
    "put_many, full": Act(lambda my: my.tube.put_many([5, 6, 7], timeout=30), **FULL),
    "put_many": Act(lambda my: my.tube.put_many([5, 6, 7, 8, 9])),
    "put_many with keys": Act(lambda my: my.tube.put_many([tubes.Item(n, key=str(n)) for n in range(5, 9)])),
    "put_many, kept": Act(lambda my: my.tube.put_many([5, 6, 7], keep_done=60, delay=50)),
    "put together": Act(lambda my: my.run("put", (5, {}), (6, {}), (7, {})), at_once=False),
    "call": Act(lambda my: my.tube.call(5, 0.05)),
    "enqueue": Act(lambda my: my.queue.enqueue("send", 1), at_once=False),  # It creates a tube.
    "take": Act(lambda my: my.tube.take(0)),
    "take with a ttr": Act(lambda my: my.tube.take(0, ttr=3)),
    "take, waiting": Act(lambda my: my.tube.take(30), **WAITS),
    "take with a ttr, waiting": Act(lambda my: my.tube.take(30, ttr=3), **WAITS),
    "take from a lane": Act(lambda my: my.tube.take(0), **LANES),
    "take_many": Act(lambda my: my.tube.take_many(5, 0), at_once=False),
    "take_many with a ttr": Act(lambda my: my.tube.take_many(5, 0, ttr=3), at_once=False),
    "take_many with a ttr, waiting": Act(lambda my: my.tube.take_many(3, 30, ttr=3), **WAITS),
    "take_any": Act(lambda my: my.queue.take_any(["other", "load"], 0, ttr=3)),
    "take_any, waiting": Act(lambda my: my.queue.take_any(["other", my.tube], 30, ttr=3), **WAITS),
    "take_any by priority": Act(lambda my: my.queue.take_any(["other", my.tube], 0, ttr=3, order="pri")),
    "take_any by pri, waiting": Act(lambda my: my.queue.take_any([my.tube], 30, ttr=3, order="pri"), **WAITS),
    "take_many of tubes": Act(lambda my: my.queue.take_many(["other", "load"], 3, 0, ttr=3), at_once=False),
    "take_many of tubes, waiting": Act(lambda my: my.queue.take_many([my.tube], 3, 30, ttr=3), **WAITS),
    "take this task": Act(lambda my: my.tube.peek(3).take(ttr=3)),
    "next": Act(lambda my: my.run("next", my.held), held=1),
    "next in lanes": Act(lambda my: my.run("next", my.held), held=1, **LANES),
    "ack": Act(lambda my: my.held[0].ack(), held=2),
    "ack in lanes": Act(lambda my: my.held[0].ack(), held=2, **LANES),
    "ack with a result": Act(lambda my: my.held[0].ack("fine"), held=2, **KEEPS),
    "ack_many": Act(lambda my: my.tube.ack_many(my.held), held=5, at_once=False),
    "ack_many, kept": Act(lambda my: my.tube.ack_many(my.held), held=5, at_once=False, **KEEPS),
    "release": Act(lambda my: my.held[0].release(), held=2, options={"max_attempts": 1}),
    "release with a delay": Act(lambda my: my.held[0].release(50, reason="busy", pri=1), held=2),
    "release with data": Act(lambda my: my.tube.release(my.held[0], data="half"), held=2),
    "release_many": Act(lambda my: my.tube.release_many(my.held, 50), held=5, at_once=False),
    "touch": Act(lambda my: my.held[0].touch(60), held=2, options={"ttr": 20}),
    "touch with a ttr": Act(lambda my: my.held[0].touch(ttr=20), held=2),
    "touch_many": Act(lambda my: my.tube.touch_many(my.held, 20), held=5, at_once=False),
    "checkpoint": Act(lambda my: my.held[0].checkpoint("half", progress=0.5), held=2, options={"ttr": 20}),
    "decline": Act(lambda my: my.tube._decline(my.held[0], 50), held=2),
    "bury": Act(lambda my: my.held[0].bury("bad", pri=1), held=2),
    "bury a ready task": Act(lambda my: my.tube.bury(4, "bad"), **LANES),
    "kick": Act(lambda my: my.tube.kick(3), at_once=False, **BURIED),
    "kick a task": Act(lambda my: my.tube.kick(task=3, attempts=2), **BURIED),
    "kick a done task": Act(lambda my: my.tube.kick(task=3), **DONE),
    "update": Act(lambda my: my.tube.update(3, data="new", pri=1, delay=50, ttl=60)),
    "replace": Act(lambda my: my.tube._put_again(my.tube.peek(3), (5, {"utube": "a"})), **LANES),
    "replace a taken task": Act(lambda my: my.tube._put_again(my.tube.peek(0), (5, {"pri": 1})), held=2),
    "peek": Act(lambda my: my.tube.peek(3)),
    "delete": Act(lambda my: my.tube.delete(3), **LANES),
    "delete, kept": Act(lambda my: my.tube.delete(3), **KEEPS),
    "delete_many": Act(lambda my: my.tube.delete_many(range(5), state="ready"), at_once=False),
    "cancel": Act(lambda my: my.tube.cancel(3, "no")),
    "cancel a taken task": Act(lambda my: my.held[0].cancel("no"), held=2, **KEEPS),
    "select and kick": Act(lambda my: my.tube.select("buried").kick(ttl=60), at_once=False, **BURIED),
    "select and bury": Act(lambda my: my.tube.select("ready").bury("bad"), at_once=False, **LANES),
    "select and release": Act(lambda my: my.tube.select("taken").release(), held=5, at_once=False),
    "select and delete": Act(lambda my: my.tube.select("ready").delete(), at_once=False),
    "select and cancel": Act(lambda my: my.tube.select().cancel("no"), held=2, at_once=False),
    "move": Act(lambda my: my.tube.select("ready").move_to(my.queue.tube("other")), at_once=False, **KEYS),
    "move lanes": Act(lambda my: my.tube.select("ready").move_to(my.queue.tube("other")), at_once=False, **LANES),
    "truncate": Act(lambda my: my.tube.truncate(), held=2),
    "alter": Act(lambda my: my.tube.alter(capacity=7, ttl=60)),
    "alter, kept": Act(lambda my: my.tube.alter(keep_done_max=1), at_once=False, **DONE),
    "alter lanes": Act(lambda my: my.tube.alter(lane_capacity=7, max_in_flight=2), **LANES),
    "pause": Act(lambda my: my.tube.pause(50)),
    "resume": Act(lambda my: my.tube.pause(0), before=lambda tube: tube.pause()),
    "drop": Act(lambda my: my.tube.drop()),
    "drop with force": Act(lambda my: my.tube.drop(force=True), held=2),
    "block a lane": Act(lambda my: my.tube.lane("a").block(50, reason="busy"), **LANES),
    "unblock": Act(lambda my: my.tube.lane("a").unblock(), "utube", {}, lambda tube: tube.lane("a").block(50)),
    "configure a lane": Act(lambda my: my.tube.lane("a").configure(interval=5, capacity=9), **LANES),
    "forget a key": Act(lambda my: my.tube.admin.forget_key("1"), **ENDED),
    "release all": Act(lambda my: my.tube.admin.release_all(), held=5),
    "create a tube": Act(lambda my: my.queue.create_tube("new", "fifottl", ttr=5)),
    "update a tube": Act(lambda my: my.queue.create_tube("load", "fifottl", if_exists="update", ttr=5)),
    "join a session": Act(lambda my: my.queue.admin.identify(uuid4().hex, create=True), held=2),
}


class State(NamedTuple):
    """The state that a process leaves."""

    #: For each tube its name, options, calls, pause, lanes and the data of the tasks that can be taken now.
    tubes: list[tuple[object, ...]]
    #: The tasks by their data.
    tasks: dict[object, tuple[object, ...]]


def state_of(queue: tubes.Queue) -> State:
    found = State([], {})
    for name in sorted(queue.tubes()):
        tube = queue.tube(name)
        counts, tasks = tube.statistics(), [*tube.select()]
        done = [*tube.select("done")]
        by_state = Counter(str(task.state) for task in tasks)
        assert by_state == {
            state: count for state, count in counts.tasks.items() if count and state not in ("total", "done")
        }
        assert counts.kept == len(done)
        assert queue.admin.check(name) == []
        for task in [*tasks, *done]:
            moments = (moment and moment - task.created for moment in (task.due, task.expires))
            times = (span and round(span, -1) for span in (*moments, task.ttl, task.ttr))
            about = task.pri, task.utube, task.key, task.reason, task.context, task.max_attempts
            assert repr(task.data) not in found.tasks
            found.tasks[repr(task.data)] = name, str(task.state), task.attempts, *times, *about
        lanes = [
            (
                lane.name,
                lane.ready,
                lane.taken,
                lane.next_start and 1,
                lane.interval,
                lane.capacity,
                lane.blocked_reason,
            )
            for lane in (tube.lanes() if tube.driver.lane is not None else ())
        ]
        options = {option: value for option, value in tube.options.items() if value}
        available = []
        while (taken := tube.take(0)) is not None:
            available.append(taken.ack().data)
        found.tubes.append((name, options, counts.calls, counts.paused, lanes, available))
    return found


def in_time(call: Callable[[], object]) -> Future[Any]:
    """Run a call in a thread that no end of a test waits for."""
    future = Future[Any]()

    def run_it() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run_it, daemon=True).start()
    return future


def live(valkey: LocalServer, face: Face, act: Act, trips: int, *, survives: bool) -> tuple[bool, State]:
    """Make a call in a process that dies after these round trips, or after the call.

    Return True if the call has returned, and the state of the tubes after the end of its session, or if the session
    `survives` in another process, after the death.
    """
    prefix = f"?prefix={uuid4().hex}"
    with (
        tubes.connect(valkey.url + prefix, session_ttl=40.0) as service,
        Mortal(valkey) as process,
        valkey.client() as client,
    ):
        tube = service.create_tube("load", act.driver, **act.options)
        service.create_tube("other", act.driver)
        act.before(tube)
        queue: Any = face.connect(process.url + prefix, session_ttl=41.0)
        if survives:
            queue.admin.identify(service.admin.identify())
        its_tube = queue.tube("load")
        mine = Mine(face, queue, its_tube, its_tube.take_many(act.held, 0) if act.held else [])
        process.left = trips
        call = in_time(lambda: act.call(mine))
        if act.during is not None:
            assert eventually(lambda: process.is_dead or bool(client.info("clients")["blocked_clients"]))
            act.during(tube)
        assert eventually(lambda: process.is_dead or call.done())
        has_returned = not process.is_dead
        process.die()
        if has_returned:
            with suppress(CallTimeout):
                call.result()
        with suppress(TubesError), pytest.MonkeyPatch.context() as patch:
            patch.setattr(attempt, "PATIENCE", 0.01)
            in_time(queue.close).result(10)
        if not survives:
            key = port_of(tube).shared.key
            tokens: Any = client.zrange(f"{key}:leases", 0, -1)
            for token in tokens:
                if token.decode() != port_of(tube).session.token:
                    client.zadd(f"{key}:leases", {token: 1})
            client.hset(key, "soonest", 1)
        return has_returned, state_of(service)


def cases() -> Iterator[Any]:
    """Yield the calls of threads whose session ends, of event loops whose session survives, and both of waiting calls.

    The short suite runs the waiting takes that have a ttr.
    """
    for name, act in ACTS.items():
        for api, survives in product(("sync", "aio"), (False, True)):
            if act.during is not None or survives == (api == "aio"):
                marks = () if survives and act.during is put_one and name != "take, waiting" else pytest.mark.full
                ends = "survives" if survives else "ends"
                yield pytest.param(api, name, survives, marks=marks, id=f"{api}-{name}-{ends}")


@pytest.mark.parametrize(("api", "name", "survives"), [*cases()])
def test_call_of_a_dying_process_has_its_whole_effect_or_none(
    valkey: LocalServer, monkeypatch: pytest.MonkeyPatch, api: str, name: str, survives: bool
) -> None:
    """The process dies after each of its round trips."""
    monkeypatch.setattr(attempt, "PATIENCE", 0.1)
    monkeypatch.setattr(tube_calls, "_TRIMS_PER_CALL", 1)
    for limit in ("PUTS", "TAKES", "IDS", "IDS_ALONE", "IDS_WITH_LANES", "CHANGES", "RELAYED"):
        monkeypatch.setattr(batch, limit, 2)
    act, lives = ACTS[name], list[tuple[bool, State]]()
    face: Face = SyncFace() if api == "sync" else AioFace()
    while not lives or not lives[-1][0]:
        lives.append(live(valkey, face, act, len(lives), survives=survives))
        assert len(lives) < 30
    face.close()
    (_, before), *between, (_, after) = lives
    for _, state in between:
        if act.at_once:
            assert state in (before, after)
        for data in {*state.tasks, *before.tasks, *after.tasks}:
            assert state.tasks.get(data) in (before.tasks.get(data), after.tasks.get(data))
