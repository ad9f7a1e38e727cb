"""Calls: put a task and wait for the result of its handler; in memory and on a server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.contract.faces import Face
from tubes import CallFailed, CallTimeout, ConnectionLost, InvalidOption, QueueClosed, ServerFull, TubeFull
from tubes.calls import send_reply_async
from tubes.drivers.options import InternalContext
from tubes.testing import LocalServer
from tubes.worker import Bury, Retry, Worker, finishing


@pytest.fixture(params=["memory", "server"])
def queue(request: pytest.FixtureRequest) -> Iterator[tubes.Queue]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("url")
    with tubes.connect(url, session_ttl=2) as queue:
        yield queue


def act(task: Any) -> Any:
    data = task.data
    if data == "bury":
        raise Bury("no such address")
    if data == "fail" or (data == "once" and task.attempts == 1):
        raise ValueError("no such address")
    if data == "retry" and task.attempts == 1:
        raise Retry(delay=0)
    if data == "slow":
        time.sleep(1)
    if data == "unspeakable":
        return {1, 2}
    return [data, task.context.get("trace")]


@pytest.fixture
def tube(queue: tubes.Queue) -> Iterator[tubes.Tube]:
    """Create a tube, and run a worker in a separate thread."""
    tube = queue.create_tube("squares", "fifottl", max_attempts=2)
    worker = Worker(queue, concurrency=4)
    worker.on(tube, act)
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield tube
    worker.stop()
    thread.join(20)


@pytest.fixture
def face_tube(queue: tubes.Queue, tube: tubes.Tube, face: Face) -> Iterator[Any]:
    """Return the tube for both faces."""
    connection = face.connect(queue)
    yield connection.tube("squares")
    connection.close()


def test_call_returns_the_result_of_the_handler(face_tube: Any) -> None:
    assert face_tube.call("ann", 20) == ["ann", None]
    assert face_tube.call("bob", timeout=20, context={"trace": "1"}, pri=1) == ["bob", "1"]
    assert face_tube.call(None) == [None, None]


def test_call_raises_the_error_of_the_last_attempt(face_tube: Any) -> None:
    with pytest.raises(CallFailed, match="'squares' failed: ValueError: no such address"):
        face_tube.call("fail", timeout=20)
    with pytest.raises(CallFailed, match="failed: no such address"):
        face_tube.call("bury", timeout=20)
    assert face_tube.call("once", timeout=20) == ["once", None]
    assert face_tube.call("retry", timeout=20) == ["retry", None]
    with pytest.raises(CallFailed, match="ValueError"):
        face_tube.call("once", timeout=20, max_attempts=1)


def test_timed_out_call_leaves_its_task_in_the_tube(queue: tubes.Queue, face_tube: Any) -> None:
    with pytest.raises(CallTimeout, match=r"no reply to task 0 of tube 'squares' within 0\.2 s"):
        face_tube.call("slow", timeout=0.2)
    # The late reply is dropped.
    assert face_tube.call("ann", timeout=20) == ["ann", None]
    assert eventually(lambda: queue.tube("squares").statistics().tasks["total"] == 0)


def test_calls_of_many_threads_get_their_own_replies(tube: tubes.Tube) -> None:
    with ThreadPoolExecutor(20) as threads:
        results = threads.map(lambda number: tube.call(number, timeout=20)[0], range(20))
    assert list(results) == list(range(20))


def test_asyncio_calls_get_their_own_replies_and_can_be_cancelled(queue: tubes.Queue, tube: tubes.Tube) -> None:
    async def main() -> None:
        async with tubes.aio.connect(queue) as connection:
            face_tube = await connection.tube("squares")
            slow = asyncio.create_task(face_tube.call("slow", timeout=20))
            replies = await asyncio.gather(*(face_tube.call(number, timeout=20) for number in range(20)))
            assert [reply[0] for reply in replies] == list(range(20))
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow

    asyncio.run(main())


def test_closing_a_queue_ends_its_calls(queue: tubes.Queue, face: Face) -> None:
    queue.create_tube("nobody")
    connection = face.connect(queue)
    call = face.begin(connection.tube("nobody"), "put", 0)  # The tube exists.
    call.result(20)
    thread = threading.Timer(0.3, connection.close)
    thread.start()
    with pytest.raises(QueueClosed):
        connection.tube("nobody").call("ann", timeout=20)
    thread.join()
    with pytest.raises(QueueClosed):
        connection.tube("nobody")


def allow_reserved_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow access to the library's own tubes."""
    monkeypatch.setattr("tubes.drivers.driver.RESERVED", re.compile("(?!)"))


def test_reply_tube_is_hidden_and_removed_with_its_queue(
    queue: tubes.Queue, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tubes.connect(queue) as other:
        other.tube("squares").call("ann", timeout=20)
        assert queue.tubes() == ["squares"]
        assert list(queue.statistics()) == ["squares"]
        replies: Any = other._connection.replies
        with pytest.raises(InvalidOption, match="is reserved"):
            queue.tube(replies.name)
        allow_reserved_names(monkeypatch)
        assert eventually(lambda: queue.tube(replies.name).statistics().tasks["total"] == 0)
    with pytest.raises(tubes.TubeNotFound):
        queue.tube(replies.name)


def test_idle_reply_tube_is_removed(queue: tubes.Queue, tube: tubes.Tube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubes.calls._LINGER", 0.1)
    allow_reserved_names(monkeypatch)
    assert tube.call("ann", timeout=20) == ["ann", None]
    name = queue._connection.replies.name

    def is_there() -> bool:
        try:
            queue.tube(name)
        except tubes.TubeNotFound:
            return False
        return True

    assert eventually(lambda: not is_there())
    assert tube.call("bob", timeout=20) == ["bob", None]


def test_handler_timeout_fails_the_call(queue: tubes.Queue) -> None:
    tube = queue.create_tube("slow", max_attempts=1)
    worker = Worker(queue)
    go = threading.Event()
    worker.on(tube, lambda task: go.wait(20), timeout=0.1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    with pytest.raises(CallFailed, match=r"TimeoutError: the handler took longer than 0\.1 s"):
        tube.call("ann", timeout=20)
    go.set()
    worker.stop()
    thread.join(20)


def test_a_result_that_cannot_be_encoded_fails_the_call(url: str) -> None:
    for codec, returned, good in (("json", {1, 2}, False), ("raw", None, True), ("raw", "text", False)):
        with tubes.connect(url, codec=codec) as queue:
            tube = queue.create_tube(f"tube-{codec}", if_not_exists=True)
            worker = Worker(queue)
            worker.on(tube, lambda task: returned)  # noqa: B023
            thread = threading.Thread(target=worker.run)
            thread.start()
            data = b"ann" if codec == "raw" else "ann"
            try:
                if good:
                    assert tube.call(data, timeout=20) == b""
                else:
                    with pytest.raises(CallFailed, match="CodecError"):
                        tube.call(data, timeout=20)
            finally:
                worker.stop()
                thread.join(20)


def test_call_with_bad_input_puts_nothing(face_tube: Any, queue: tubes.Queue) -> None:
    for options in ({"key": "k"}, {"timeout": -1}, {"context": "trace"}, {"context": {"trace": 1}}, {"ttl": -1}):
        with pytest.raises(InvalidOption):
            face_tube.call("ann", **options)
    assert queue.tube("squares").statistics().calls["put"] == 0


def test_a_call_waits_for_room(queue: tubes.Queue) -> None:
    tube = queue.create_tube("few", capacity=1)
    tube.put("first")
    with pytest.raises(TubeFull):
        tube.call("second", timeout=0.1)
    worker = Worker(queue)
    worker.on(tube, lambda task: task.data)
    thread = threading.Timer(0.2, worker.run)
    thread.start()
    assert tube.call("second", timeout=20) == "second"
    worker.stop()
    thread.join(20)


def test_context_that_is_passed_on_makes_no_second_call(queue: tubes.Queue) -> None:
    questions, parts = queue.create_tube("asked"), queue.create_tube("parts")
    worker = Worker(queue, concurrency=2)
    done = threading.Event()

    @worker.on(questions)
    def ask(task: tubes.Task) -> str:
        assert task.context == {"trace": "4bf9"}
        parts.put("part", context=task.context)
        assert done.wait(20)
        return "whole"

    @worker.on(parts)
    def part(task: tubes.Task) -> str:
        done.set()
        return task.context["trace"]

    thread = threading.Thread(target=worker.run)
    thread.start()
    assert questions.call("all", timeout=20, context={"trace": "4bf9"}) == "whole"
    worker.stop()
    thread.join(20)


def test_reserved_context_names_are_refused(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    for name in ("tubes.reply-to", "tubes.call", "tubes.anything"):
        for put in (tube.put, tube.call):
            with pytest.raises(InvalidOption, match="which are reserved"):
                put("x", context={name: "reply.mail"})
    assert tube.statistics().tasks["total"] == 0


def test_reply_is_sent_again_after_backend_errors(queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors are a temporary one, and a server that is full until the task has ended."""
    tube = queue.create_tube("mail")
    tries: list[str] = []
    send_reply = send_reply_async

    async def refused(queue: Any, task: Any, *about: Any) -> None:
        tries.append(str(task.data))
        if tries.count(str(task.data)) == 1:
            raise ServerFull(url="a server") if task.data == "full" else ConnectionLost(url="a server", why="a test")
        if task.data == "full":
            assert tube.statistics().tasks["taken"] == 0
        await send_reply(queue, task, *about)

    monkeypatch.setattr(finishing, "send_reply_async", refused)
    worker = Worker(queue)
    worker.on(tube, lambda task: task.data)
    thread = threading.Thread(target=worker.run)
    thread.start()
    for data in ("lost", "full"):
        assert tube.call(data, timeout=20) == data
    worker.stop()
    thread.join(20)
    assert tries == ["lost", "lost", "full", "full"]


def test_killed_caller_leaves_nothing_on_the_server() -> None:
    """Neither the waiting caller nor its late reply leaves keys."""
    with LocalServer() as server, tubes.connect(server.url, session_ttl=1) as queue:
        tube = queue.create_tube("squares")
        client: Any = server.client()
        program = f"""
            import tubes
            queue = tubes.connect({server.url!r}, session_ttl=1)
            queue.tube("squares").call("ann")
        """
        caller = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
        task = tube.take(timeout=20)
        assert task is not None
        caller.kill()
        caller.wait()
        task.release()
        assert len(client.keys("*reply*")) >= 2
        worker = Worker(queue)
        worker.on(tube, lambda task: task.data)
        assert worker.run(burst=True).acked == 1
        # Each key of the reply expires soon.
        left = {key: client.pttl(key) for key in client.keys("*reply*")}
        assert left
        assert all(0 < span <= 12_000 for span in left.values()), left
        for key in left:
            client.pexpire(key, 1)
        assert eventually(lambda: not client.keys("*reply*"))
        others = [key for key in client.keys("*") if b"{squares}" not in key]
        assert others == [b"tubes:names"]


class Fatal:
    """A codec that raises SystemExit."""

    def encode(self, data: Any) -> bytes:
        return bytes(data)

    def decode(self, raw: bytes) -> Any:
        if raw == b"fatal":
            raise SystemExit
        return raw


def test_codec_exit_while_reading_a_reply_fails_only_its_call(queue: tubes.Queue) -> None:
    with tubes.connect(codec=Fatal()) as queue:
        tube = queue.create_tube("mail")
        worker = Worker(queue)
        worker.on(tube, lambda task: b"fatal" if task.data == b"one" else task.data)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            with pytest.raises(CallFailed, match="SystemExit"):
                tube.call(b"one", timeout=20)
            assert tube.call(b"two", timeout=20) == b"two"
        finally:
            worker.stop()
            thread.join(20)


@pytest.mark.parametrize("error", [KeyError("a mistake"), tubes.ServerRefused(url="redis://here", why="no rights")])
def test_reply_reader_pauses_after_each_error_and_continues(
    queue: tubes.Queue, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes errors of a lost tube that cannot be created again."""
    tries: list[str] = []
    monkeypatch.setattr("tubes.calls.time", Clock(tries))
    tube = queue.create_tube("mail")
    worker = Worker(queue)
    worker.on(tube, lambda task: task.data)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert tube.call("ann", timeout=20) == "ann"
        replies: Any = queue._connection.replies
        right, reopen = replies._tube, replies._open

        class Wrong:
            def take(self, timeout: float) -> Any:
                tries.append("take")
                raise error if len(tries) < 6 else tubes.TubeNotFound(name="reply")

        def refused() -> Any:
            tries.append("open")
            if len(tries) < 12:
                raise error
            return right if reopen else None

        monkeypatch.setattr(replies, "_open", refused)
        monkeypatch.setattr(replies, "_tube", Wrong())
        # The caller waits for a reply through the correct tube until then.
        assert tube.call("bob", timeout=20) == "bob"
        assert tube.call("cid", timeout=20) == "cid"
        assert tries[:7] == ["take", "rest", "take", "rest", "take", "rest", "take"]
        assert tries[7:] == ["open", "rest", "take", "open", "rest", "take", "open"]
    finally:
        worker.stop()
        thread.join(20)


class Clock:
    """A `time` module that records all sleeps and shortens them."""

    def __init__(self, tries: list[str]) -> None:
        self._tries = tries
        self.monotonic = time.monotonic

    def sleep(self, span: float) -> None:
        assert span >= 0.1
        self._tries.append("rest")


def test_unsendable_reply_does_not_keep_the_handler_from_the_next_task(queue: tubes.Queue) -> None:
    """The context names an invalid tube."""
    tube = queue.create_tube("mail")
    face_tube = {"tubes.reply-to": "reply." + "x" * 5000, "tubes.call": "1"}
    tube.put("ann", context=InternalContext(face_tube))
    tube.put("bob")
    worker = Worker(queue)
    worker.on(tube, lambda task: worker.stop() if task.data == "bob" else None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert eventually(lambda: tube.statistics().tasks["total"] == 0)
    worker.stop()
    thread.join(20)


def test_worker_without_rights_to_reply_acks_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    with LocalServer() as server, tubes.connect(server.url) as queue, server.client() as client:
        tube = queue.create_tube("mail")
        client.execute_command(
            "ACL", "SETUSER", "worker", "on", ">pw", "~tubes:{mail}*", "~tubes:[a-z]*", "&*", "+@all"
        )
        with tubes.connect(server.url.replace("://", "://worker:pw@")) as theirs:
            worker = Worker(theirs)
            worker.on("mail", lambda task: None)
            thread = threading.Thread(target=worker.run)
            thread.start()
            try:
                with pytest.raises(CallTimeout):
                    tube.call("ann", timeout=1)
                assert tube.put("bob")
                assert eventually(lambda: tube.statistics().tasks["total"] == 0)
            finally:
                worker.stop(now=True)
                thread.join(20)
        assert "is lost" in caplog.text


@pytest.mark.parametrize("is_taken", [False, True])
def test_caller_learns_that_its_task_was_cancelled(queue: tubes.Queue, is_taken: bool) -> None:
    tube = queue.create_tube("squares", "fifottl")
    failed: list[CallFailed] = []

    def call() -> None:
        try:
            tube.call("data", timeout=20)
        except CallFailed as error:
            failed.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert eventually(lambda: tube.statistics().tasks["total"] == 1)
    if is_taken:
        tube.take(0)
    tube.cancel(0, "not needed")
    caller.join(20)
    assert [error.facts["why"] for error in failed] == ["cancelled: not needed"]
