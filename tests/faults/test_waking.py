"""Takes that are sent before their tasks exist, when waiters, sessions or connections end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.ledger import Ledger
from tests.support.proxy import Proxy
from tests.support.taking import take_task
from tubes import TubeNotFound
from tubes.redis.transport import attempt
from tubes.redis.transport.script_call import AHEAD, ScriptCall
from tubes.testing import LocalServer, server_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tubes import Tube


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    if server_program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with LocalServer(request.param) as server:
        yield server


def are_blocked(server: LocalServer, count: int = 1) -> bool:
    """Return True if `count` threads are blocked on markers."""
    with server.client() as client:
        return eventually(lambda: client.info("clients")["blocked_clients"] == count)


def calls(client: Any, command: str) -> int:
    """Return the number of calls of a command, also inside of scripts."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


class Waiting:
    """A thread with a waiting take."""

    def __init__(self, tube: Tube, timeout: float | None = 20) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._take, args=(tube, timeout))
        before = port_of(tube).shared.queue.count()
        self._thread.start()
        assert eventually(lambda: port_of(tube).shared.queue.count() > before)

    def _take(self, tube: Tube, timeout: float | None) -> None:
        try:
            self.result = tube.take(timeout)
        except tubes.TubesError as error:
            self.result = error

    def wait(self) -> Any:
        """Wait for the end of the take and return its result."""
        self._thread.join()
        return self.result


def test_server_runs_the_take_of_a_blocked_process(server: LocalServer) -> None:
    """The marker triggers the take without another request, so a paused process gets the task."""
    with tubes.connect(server.url) as queue, tubes.connect(server.url, session_ttl=31.0) as other:
        tube = queue.create_tube("load")
        waiting = Waiting(tube)
        assert are_blocked(server)
        with port_of(tube).shared.queue.lock:  # The process needs this lock to hand the task to the waiter.
            others = other.tube("load")
            others.put("job")
            assert others.statistics().tasks["taken"] == 1
        task = waiting.wait()
        assert task.data == "job"
        assert task.ack().state == "done"


def test_each_wait_for_a_batch_costs_one_script(server: LocalServer) -> None:
    with (
        tubes.connect(server.url) as queue,
        tubes.connect(server.url, session_ttl=31.0) as other,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        tube = queue.create_tube("load")
        assert tube.take_many(9, timeout=0.01) == []
        others, before = other.tube("load"), calls(client, "fcall")
        for number in range(10):
            batch = pool.submit(tube.take_many, 9, 20)
            assert are_blocked(server)
            others.put(number)
            assert [task.data for task in batch.result()] == [number]
        # A put and a take for each, and a look if this process was unregistered meanwhile.
        assert calls(client, "fcall") - before <= 25
        # The process knows that there are more.
        batch = pool.submit(tube.take_many, 9, 20)
        assert are_blocked(server)
        others.put_many([*range(5)])
        assert len(batch.result()) == 5


def test_waiters_of_one_process_are_served_in_order(server: LocalServer) -> None:
    """This includes waiters that put tasks themselves and waiters of other sessions."""
    with tubes.connect(server.url) as queue:
        tube = queue.create_tube("load")
        for _ in range(20):
            others = [queue.session() for _ in range(3)]
            waiting = [Waiting(one.tube("load")) for one in (queue, *others, queue)]
            assert are_blocked(server)
            for number in range(6):
                tube.put(number)
            assert [one.wait().data for one in waiting] == list(range(5))
            assert take_task(tube, 5).data == 5
            for session in others:
                session.close()
            tube.admin.release_all()
            tube.truncate()


def test_putter_does_not_take_the_task_of_a_waiter(server: LocalServer) -> None:
    with tubes.connect(server.url) as queue:
        tube = queue.create_tube("load")
        for number in range(30):
            waiting = Waiting(tube)
            assert are_blocked(server)
            tube.put(number)
            assert tube.take(timeout=0) is None
            assert waiting.wait().ack().data == number


def test_task_taken_for_a_cancelled_waiter_is_given_back(server: LocalServer) -> None:
    async def give_up(url: str) -> None:
        async with tubes.aio.connect(url) as queue:
            waiter = asyncio.create_task((await queue.tube("load")).take())
            assert await asyncio.to_thread(are_blocked, server)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            other.put("job")
            assert await asyncio.to_thread(eventually, lambda: other.statistics().tasks["ready"] == 1)

    with tubes.connect(server.url, session_ttl=31.0) as another:
        other = another.create_tube("load")
        asyncio.run(give_up(server.url))
        task = take_task(other)
        assert (task.data, task.attempts) == ("job", 1)
        assert other.statistics().calls["take"] == 1


def test_next_waiter_gets_the_task_of_a_cancelled_waiter(server: LocalServer) -> None:
    """The next waiter has the same session, or another one: then the task is first returned to the tube."""

    async def main() -> None:
        async with tubes.aio.connect(server.url) as queue, await queue.session() as session:
            tube, others = await queue.create_tube("load"), await session.tube("load")
            for second in (tube, others):
                leaver = asyncio.create_task(tube.take())
                assert await asyncio.to_thread(are_blocked, server)
                stayer = asyncio.create_task(second.take())
                await asyncio.sleep(0.01)
                leaver.cancel()
                await tube.put("job")
                task = await asyncio.wait_for(stayer, 5)
                assert task is not None
                assert task.attempts == 1
                assert (await task.ack()).state == "done"

    asyncio.run(main())


def test_session_changed_while_waiting_owns_its_task(server: LocalServer) -> None:
    """The old session continues with other users: tasks taken for it return to the tube."""
    with tubes.connect(server.url) as queue, queue.session() as shared, queue.session() as third:
        tube = queue.create_tube("load")
        name, another = shared.admin.identify(), third.admin.identify()
        queue.admin.identify(name)
        waiting = Waiting(tube)
        assert are_blocked(server)
        queue.admin.identify(another)
        with tubes.connect(server.url, session_ttl=31.0) as other:
            other.tube("load").put("job")
            task = waiting.wait()
            assert (task.attempts, task.ack().state) == (1, "-")


def test_scripts_flushed_during_a_wait_are_loaded_again(server: LocalServer) -> None:
    with tubes.connect(server.url) as queue, server.client() as client:
        tube = queue.create_tube("load")
        waiting = Waiting(tube)
        assert are_blocked(server)
        client.script_flush()
        tube.put("job")
        assert waiting.wait().data == "job"


def test_a_waiter_whose_session_has_ended_gets_a_new_one(server: LocalServer) -> None:
    with tubes.connect(server.url) as queue, server.client() as client:
        tube = queue.create_tube("load")
        waiting = Waiting(tube)
        assert are_blocked(server)
        port: Any = tube._port
        client.hdel(port.shared.key, port.session[1], f"u{port.connection.session.uuid}")
        with tubes.connect(server.url, session_ttl=31.0) as other:
            other.tube("load").put("job")
        assert waiting.wait().ack().state == "done"


def test_waiter_of_a_dropped_tube_raises_tube_not_found(server: LocalServer) -> None:
    with tubes.connect(server.url) as queue, tubes.connect(server.url, session_ttl=31.0) as other:
        waiting = Waiting(queue.create_tube("load"))
        assert are_blocked(server)
        others = other.tube("load")
        others.drop(force=True)
        others = other.create_tube("load")
        others.put("not for it")
        assert isinstance(waiting.wait(), TubeNotFound)
        assert others.statistics().tasks["ready"] == 1


def test_waiter_on_a_full_server_gets_a_ready_task(server: LocalServer) -> None:
    with tubes.connect(server.url) as queue, server.client() as client:
        tube = queue.create_tube("load")
        tube.put("job")
        first = take_task(tube)
        waiting = Waiting(tube)
        assert are_blocked(server)
        client.config_set("maxmemory", 1)
        first.release()
        task = waiting.wait()
        client.config_set("maxmemory", 0)
        assert task.attempts == 2


def test_connections_killed_during_a_wait_lose_no_task(server: LocalServer, ledger: Ledger, factor: int) -> None:
    with (
        tubes.connect(server.url) as queue,
        tubes.connect(server.url, session_ttl=31.0) as other,
        server.client() as client,
    ):
        tube, others = queue.create_tube("load"), other.tube("load")
        for number in range(50 * factor):
            waiting = Waiting(tube)
            putter = threading.Thread(target=ledger.put, args=(others, str(number)))
            putter.start()
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            putter.join()
            task = waiting.wait()
            assert task is not None
            ledger.work(task)
        assert len(ledger.done) == 50 * factor
        assert eventually(lambda: tube.statistics().tasks["taken"] == 0)
        ledger.check(tube)


def test_take_whose_reply_was_lost_is_queried_until_resolved(
    valkey: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes an outage longer than the retries of a call, after which no caller waits."""
    monkeypatch.setattr(attempt, "PATIENCE", 0.1)
    prefix = f"?prefix={uuid4().hex}"
    with (
        Proxy(valkey) as proxy,
        tubes.connect(valkey.url + prefix, session_ttl=31.0) as other,
        tubes.connect(proxy.url + prefix) as queue,
    ):
        tube, others = queue.create_tube("load"), other.tube("load")
        for _ in range(3):
            waiting = Waiting(tube, timeout=0.6)
            assert are_blocked(valkey)
            proxy.mute = True
            others.put("job")
            assert waiting.wait() is None
            proxy.mute = False
            assert eventually(lambda: others.statistics().tasks["ready"] == 1)
            assert take_task(others).ack().attempts == 1


def test_stale_take_request_takes_nothing(valkey: LocalServer) -> None:
    """It may arrive from an abandoned connection, after its task is done or before one exists."""
    with tubes.connect(f"{valkey.url}?prefix={uuid4().hex}") as queue:
        tube = queue.create_tube("load")
        port: Any = tube._port
        channel: Any = port.connection.channel

        def sent(call: ScriptCall) -> ScriptCall:
            return ScriptCall(call.function, call.key, call.args, call.session, slot=AHEAD, sent=(AHEAD, call.number))

        none = port.take_ahead(1)
        assert isinstance(channel.call(none), int)
        tube.put("job")
        assert isinstance(channel.call(sent(none)), int)
        found = port.take_ahead(1)
        taken = channel.call(found)
        assert channel.call(sent(found)) == taken
        tube.put("another")
        tube.ack(taken[0])
        assert isinstance(channel.call(sent(found)), int)
        assert channel.call(sent(none)).code == "LATE"
        assert tube.statistics().tasks["ready"] == 1


def test_task_taken_ahead_for_another_ttr_goes_back_to_its_tube(server: LocalServer) -> None:
    """The caller for which it was taken has left; the next one wants another ttr."""
    with tubes.connect(server.url) as queue, tubes.connect(server.url, session_ttl=31.0) as other:
        tube = queue.create_tube("load", "fifottl", ttr=60)
        pool = ThreadPoolExecutor()
        first = pool.submit(tube.take, 1, ttr=2)
        assert are_blocked(server)
        second = pool.submit(tube.take, 20, ttr=500)
        assert first.result() is None
        other.tube("load").put("job")
        task = second.result()
        assert task is not None
        assert task.due is not None
        assert task.due - task.created > 400
        assert (task.attempts, task.ttr) == (1, 60)


@pytest.mark.parametrize("takes", ["take", "take_many", "take_for", "next", "by priority"])
def test_take_finds_a_task_put_after_a_take_any_on_the_tube_ended(valkey: LocalServer, takes: str) -> None:
    """The server still holds a take of a `take_any` that got a task of another tube: this take gets nothing."""
    with tubes.connect(f"{valkey.url}?prefix={uuid4().hex}", session_ttl=30 + len(takes)) as queue:
        one, other = queue.create_tube("one", "fifottl"), queue.create_tube("other", "fifottl")
        ways: dict[str, Any] = {
            "take": lambda: other.take(timeout=0),
            "take_many": lambda: other.take_many(2, timeout=0)[0],
            "take_for": lambda: other.take(timeout=0, ttr=5),
            "next": lambda: other._port.next(held),
            "by priority": lambda: queue.take_any([one, other], 0, order="pri"),
        }
        for number in range(3):
            with ThreadPoolExecutor() as pool:
                other.put("held")
                held: Any = other.take(timeout=0)
                found = pool.submit(queue.take_any, [other, one], 20)
                assert are_blocked(valkey, 2)
                one.put("first")
                first: Any = found.result()
                first.ack()
                other.put(number)
                task = ways[takes]()
                assert task is not None
                assert (task.data, task.attempts, task.state) == (number, 1, "t")
                assert other.statistics().calls["take"] == 2 * (number + 1)
                task.ack()
                if takes != "next":
                    held.ack()


def test_take_finds_a_task_put_after_a_cancelled_wait(valkey: LocalServer) -> None:
    async def main() -> None:
        async with tubes.aio.connect(f"{valkey.url}?prefix={uuid4().hex}") as queue:
            tube = await queue.create_tube("load")
            for number in range(3):
                waiting = asyncio.create_task(tube.take(20))
                assert await asyncio.to_thread(are_blocked, valkey)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await tube.put(number)
                task = await tube.take(0)
                assert task is not None
                assert (task.data, (await task.ack()).attempts) == (number, 1)

    asyncio.run(main())


def test_waiting_takes_and_puts_wake_each_other(server: LocalServer, ledger: Ledger, factor: int) -> None:
    count = 150 * factor
    with tubes.connect(server.url) as queue, tubes.connect(server.url, session_ttl=31.0) as other:
        tube = queue.create_tube("load", "limfifottl", capacity=1)

        def put(tube: Tube, name: str) -> None:
            for number in range(count):
                ledger.put(tube, f"{name}.{number}", timeout=20)

        def take(tube: Tube) -> None:
            for _ in range(count):
                ledger.work(take_task(tube, 20))

        with ThreadPoolExecutor(4) as threads:
            places = ("a", tube), ("b", other.tube("load"))
            ends = [
                end for name, place in places for end in (threads.submit(put, place, name), threads.submit(take, place))
            ]
        for end in ends:
            end.result()
        assert len(ledger.done) == 2 * count
        ledger.check(tube)


INTERRUPTED = """
import sys
import tubes
with tubes.connect(sys.argv[1]) as queue:
    tube = queue.tube("load")
    for line in sys.stdin:
        try:
            task = tube.take()
            task.release()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""


@pytest.mark.full
@pytest.mark.sample(1)
def test_an_interrupted_wait_leaves_nothing_taken(server: LocalServer, factor: int) -> None:
    with tubes.connect(server.url) as queue:
        tube = queue.create_tube("load")
        command = [sys.executable, "-c", INTERRUPTED, server.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            for number in range(30 * factor):
                program.stdin.write("go\n")
                assert are_blocked(server)
                program.send_signal(signal.SIGINT)
                tube.put(number)
                assert program.stdout.readline() == "interrupted\n"
                assert eventually(lambda: tube.statistics().tasks["ready"] == 1)
                assert take_task(tube).ack().data == number
            program.stdin.close()
