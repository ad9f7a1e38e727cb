"""Servers that restart without their latest writes: only these writes are lost.

Ids, sessions and attempts of the lost window are assigned again. Clients never confuse old ones with new ones.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import tubes
from tests.contract.bench import eventually
from tests.contract.leases import METHODS
from tests.support.rollbacks import keep, roll_back
from tests.support.served import Served
from tests.support.taking import take_task
from tests.support.worker import Worker
from tubes import (
    ConnectionLost,
    SessionNotFound,
    TaskCancelled,
    TaskNotFound,
    TaskNotTaken,
    TubeNotFound,
    calls,
)
from tubes.calls import send_reply
from tubes.errors import StreamFenced, WriteAborted
from tubes.spark.server.bulk_write import Writer
from tubes.spark.server.streams import Stream
from tubes.worker import Worker as Handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.faces import Face
    from tubes.testing import LocalServer

#: Calls that only the holder of a task may make, and calls for any task by id.
OF_HOLDERS: dict[str, Callable[[Any], Any]] = {
    "ack": lambda task: task.ack(),
    "release": lambda task: task.release(),
    "touch": lambda task: task.touch(5),
    "checkpoint": lambda task: task.checkpoint(1),
}
OF_ALL: dict[str, Callable[[Any], Any]] = {
    **OF_HOLDERS,
    "bury": lambda task: task.bury(),
    "delete": lambda task: task.delete(),
    "cancel": lambda task: task.cancel(),
    "peek": lambda task: task.peek(),
    "update": lambda task: task.update(data="changed"),
}
OF_ALL_AND_KICKS: dict[str, Callable[[Any], Any]] = {**OF_ALL, "kick": lambda task: task.kick()}
#: The same calls for many tasks, which return success by id.
OF_MANY = ("ack_many", "release_many", "delete_many")


@pytest.mark.parametrize("keep_done", [0, 60])
def test_lost_cancel_leaves_a_task_that_can_be_cancelled_again(
    face: Face, own_server: LocalServer, keep_done: int
) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url, session_ttl=31) as other:
        tube = queue.create_tube("load", "fifottl", ttr=60, keep_done=keep_done)
        others = other.tube("load")
        tube.put("a long job")
        task = tube.take(timeout=0)
        task.checkpoint(1)
        keep(own_server)
        task.checkpoint(2)
        assert others.cancel(task.id).cancelled
        with pytest.raises(TaskCancelled):
            task.checkpoint(3)
        roll_back(own_server)
        # The cancel and the second checkpoint are lost, and the session holds its task again.
        seen = others.peek(task.id)
        assert (seen.state, seen.saved, seen.cancelled) == ("taken", 1, False)
        assert task.checkpoint(4).saved == 4
        assert others.cancel(task.id, "again").reason == "again"
        with pytest.raises(TaskCancelled, match="again"):
            task.checkpoint(5)
        with pytest.raises(TaskNotFound):
            others.cancel(task.id)
        assert others.peek(task.id).saved == 4
        calls = tube.statistics().calls
        assert (calls["delete"], calls["touch"], tube.statistics().tasks["taken"]) == (1, 2, 0)


@pytest.mark.parametrize("method", OF_ALL)
@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_call_on_a_lost_task_does_not_affect_a_new_task_with_its_id(
    face: Face, own_server: LocalServer, method: str, whose: str
) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as other:
        tube = queue.create_tube("load", "fifottl", ttr=60)
        others = other.tube("load")
        keep(own_server)
        tube.put("lost")
        lost = tube.take(timeout=0)
        roll_back(own_server)
        users_tube = tube if whose == "its own" else others
        users_tube.put("new")
        new = users_tube.take(timeout=0)
        assert (new.id, new.attempts) == (lost.id, lost.attempts)
        with pytest.raises((TaskNotTaken, TaskNotFound)):
            OF_ALL[method](lost)
        assert users_tube.peek(new.id) == new
        assert new.ack().data == "new"


@pytest.mark.parametrize("method", ["bury", "delete", "cancel", "peek", "update", "kick"])
@pytest.mark.parametrize("state", ["ready", "taken", "buried"])
def test_call_on_a_lost_put_does_not_affect_a_new_task_with_its_id(
    face: Face, own_server: LocalServer, method: str, state: str
) -> None:
    with face.connect(own_server.url) as queue:
        tube = queue.create_tube("load", "fifottl")
        keep(own_server)
        lost = tube.put("lost")
        roll_back(own_server)
        new = tube.put("new")
        if state == "taken":
            new = tube.take(timeout=0)
        elif state == "buried":
            new = new.bury()
        assert (new.id, new.state) == (lost.id, state)
        with pytest.raises(TaskNotFound):
            OF_ALL_AND_KICKS[method](lost)
        assert tube.peek(new.id) == new


@pytest.mark.parametrize("method", OF_HOLDERS)
@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_call_on_a_lost_take_does_not_affect_a_later_take(
    face: Face, own_server: LocalServer, method: str, whose: str
) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as other:
        tube = queue.create_tube("load", "fifottl", ttr=60)
        others = other.tube("load")
        tube.put("job")
        keep(own_server)
        lost = tube.take(timeout=0)
        roll_back(own_server)
        users_tube = tube if whose == "its own" else others
        new = users_tube.take(timeout=0)
        assert (new.id, new.attempts) == (lost.id, lost.attempts)
        with pytest.raises(TaskNotTaken):
            OF_HOLDERS[method](lost)
        assert users_tube.peek(new.id) == new
        assert new.ack().data == "job"


@pytest.mark.parametrize("lost", ["its put", "its take"])
@pytest.mark.parametrize("driver", ["fifo", "fifottl"])
def test_lease_of_a_lost_take_is_refused_for_every_holder(
    face: Face, own_server: LocalServer, lost: str, driver: str
) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as other:
        tube, others = queue.create_tube("load", driver), other.tube("load")
        if lost == "its take":
            others.put_many(range(2))
        keep(own_server)
        if lost == "its put":
            others.put_many(range(2))
        stale = [str(task.lease) for task in tube.take_many(2)]
        roll_back(own_server)
        if lost == "its put":
            others.put_many(range(2))
        mine, theirs = tube.take(timeout=0), others.take(timeout=0)
        for lease, caller in zip(stale, (tube, others), strict=True):
            for method in METHODS.values():
                with pytest.raises(TaskNotTaken):
                    method(caller, lease)
            for name in OF_MANY:
                assert list(getattr(caller, name)([lease]).values()) == [False]
        assert (tube.peek(mine.lease), others.peek(theirs.lease)) == (mine, theirs)
        assert (tube.ack(theirs.lease).id, others.ack(mine.lease).id) == (theirs.id, mine.id)


@pytest.mark.full
@pytest.mark.parametrize("lost", ["its put", "its take"])
def test_lost_lease_of_a_service_does_not_affect_another_service(own_server: LocalServer, lost: str) -> None:
    """The two services share a session, so their takes differ only by number."""
    with (
        Served("--url", own_server.url) as one,
        Served("--url", own_server.url) as two,
        httpx.Client(base_url=f"{one.url}/v1/shop", timeout=30) as client,
        httpx.Client(base_url=f"{two.url}/v1/shop", timeout=30) as other,
    ):
        for each in (client, other):
            assert each.put("/tubes/mail").is_success
        if lost == "its take":
            client.post("/tubes/mail/tasks", json={"data": "old"})
        keep(own_server)
        if lost == "its put":
            client.post("/tubes/mail/tasks", json={"data": "old"})
        (old,) = client.post("/tubes/mail/take").json()["tasks"]
        roll_back(own_server)
        if lost == "its put":
            assert other.post("/tubes/mail/tasks", json={"data": "new"}).is_success
        (new,) = other.post("/tubes/mail/take", json={"wait": 5}).json()["tasks"]
        assert new["id"] == old["id"]
        for each in (client, other):
            assert each.delete(f"/leases/{old['lease']}").status_code == 409
            for how, more in (("ack", {}), ("release", {}), ("bury", {}), ("renew", {"seconds": 5})):
                reply = each.post(f"/leases/{how}", json={"leases": [old["lease"]], **more})
                assert reply.json() == {"done": [False]}
        assert client.delete(f"/leases/{new['lease']}").status_code == 204


@pytest.mark.parametrize("method", [*OF_MANY, "touch_many"])
@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
@pytest.mark.parametrize("is_put", [False, True], ids=["a lost take", "a lost put"])
def test_bulk_calls_on_lost_takes_do_not_affect_later_takes(
    face: Face, own_server: LocalServer, method: str, driver: str, is_put: bool
) -> None:
    if method == "delete_many" and not is_put:
        pytest.skip("the call does not depend on the holder")
    if method == "touch_many" and driver == "fifo":
        pytest.skip("the driver has no ttr")
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as other:
        tube, others = queue.create_tube("load", driver), other.tube("load")

        def put() -> None:
            others.put_many(range(3), **({"ttr": 60} if "ttl" in driver else {}))

        if not is_put:
            put()
        keep(own_server)
        if is_put:
            put()
        lost = tube.take_many(3)
        roll_back(own_server)
        if is_put:
            put()
        new = tube.take_many(3)
        assert [(task.id, task.attempts) for task in new] == [(task.id, task.attempts) for task in lost]
        results = getattr(tube, method)(lost, *((60,) if method == "touch_many" else ()))
        assert set(results.values()) == {False}
        assert [tube.peek(task.id) for task in new] == new
        assert set(tube.ack_many(new).values()) == {True}


def test_task_taken_before_the_lost_window_stays_with_its_holder(face: Face, own_server: LocalServer) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as other:
        tube = queue.create_tube("load", "fifottl", ttr=60)
        tube.put_many(range(5))
        tasks = [tube.take(timeout=0) for _ in range(5)]
        keep(own_server)
        tasks[0].ack()
        tube.put("lost")
        roll_back(own_server)
        assert other.tube("load").take(timeout=0) is None
        assert tasks[1].ack().state == "done"
        assert tasks[2].release().state == "ready"
        assert tasks[3].bury().state == "buried"
        assert tasks[4].touch(5).state == "taken"
        # The ack was lost and the session holds the task again: any caller that knows the id can finish it.
        assert tube.peek(0).state == "taken"
        assert tube.ack(0).state == "done"


def test_loop_does_not_finish_a_task_taken_again_after_rollback(
    face: Face, own_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    with face.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        keep(own_server)
        tube.put("lost")
        new: list[Any] = []
        for task in tube:
            if task.data == "the next":
                break
            roll_back(own_server)
            tube.put("new")
            new.append(tube.take(timeout=0))
            assert (new[0].id, new[0].attempts) == (task.id, task.attempts)
            tube.put("the next")
        assert "finished too late" in caplog.text
        assert new[0].ack().data == "new"


def test_with_block_does_not_finish_a_task_taken_again_after_rollback(face: Face, own_server: LocalServer) -> None:
    new: list[Any] = []

    def work(tube: Any) -> None:
        with tube.take(timeout=0):
            roll_back(own_server)
            new.append(tube.take(timeout=0))

    with face.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        tube.put("job")
        keep(own_server)
        with pytest.raises(TaskNotTaken):
            work(tube)
        assert new[0].ack().data == "job"


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_lost_session_is_not_mistaken_for_the_next_session(face: Face, own_server: LocalServer) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as next_one:
        queue.create_tube("load").put_many(range(3))
        keep(own_server)
        lost = face.connect(own_server.url)
        tube = lost.tube("load")
        old = tube.take(timeout=0)
        roll_back(own_server)
        mine = next_one.tube("load").take(timeout=0)
        assert mine.id == old.id
        assert tube.statistics().tasks["taken"] == 1
        with pytest.raises(TaskNotTaken):
            old.ack()
        assert tube.take(timeout=0).id == 1
        lost.close()
        assert next_one.tube("load").peek(mine.id).state == "taken"
        assert mine.ack().state == "done"
        # The client has released the tasks of its lost session.
        assert queue.tube("load").take(timeout=0).id == 1


def test_lost_session_closes_quietly_and_releases_no_other_task(face: Face, own_server: LocalServer) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as next_one:
        queue.create_tube("load").put("job")
        keep(own_server)
        lost = face.connect(own_server.url)
        lost.tube("load").statistics()
        roll_back(own_server)
        mine = next_one.tube("load").take(timeout=0)
        lost.close()
        assert queue.tube("load").take(timeout=0) is None
        assert mine.ack().state == "done"


def test_lost_session_does_not_renew_another_sessions_lease(own_server: LocalServer) -> None:
    """A process with a lost session keeps renewing leases, but not that of a later session with the same number."""
    with tubes.connect(own_server.url) as queue:
        queue.create_tube("load").put("job")
        keep(own_server)
        with tubes.connect(own_server.url, session_ttl=1.0) as lost:
            lost.tube("load").statistics()
            roll_back(own_server)
            worker = Worker(own_server.url, "puppet")
            try:
                assert worker.read_line() == "ready"
                assert worker.send("take") == "took 0 1"
            finally:
                worker.kill()
            assert take_task(queue.tube("load"), 10).attempts == 2


@pytest.mark.full
def test_process_with_a_lost_session_gets_only_its_own_replies(own_server: LocalServer) -> None:
    """Each process is the third one to open the tube, and has made the same number of calls."""
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        keep(own_server)
        first = Worker(own_server.url, "puppet")
        try:
            assert first.read_line() == "ready"
            assert [first.send(f"put lost.{number}") for number in range(3)] == ["put 0", "put 1", "put 2"]
            roll_back(own_server)
            second = Worker(own_server.url, "puppet")
            try:
                assert second.read_line() == "ready"
                assert first.send("look") == "0 tasks"
                ids = [
                    worker.send(f"put {name}.{number}")
                    for number in range(10)
                    for name, worker in (("second", second), ("first", first))
                ]
                assert ids == [f"put {id}" for id in range(20)]
                assert second.send("take") == "took 0 1"
                assert first.send("take") == "took 1 1"
                assert second.send("ack") == "acked 0 1"
            finally:
                second.kill()
        finally:
            first.kill()
        stored = {task.data for task in tube.select()}
        assert stored == {f"{name}.{number}" for name in ("first", "second") for number in range(10)} - {"second.0"}


def test_put_whose_reply_was_lost_in_a_rollback_is_done_once(face: Face, own_server: LocalServer) -> None:
    with face.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        keep(own_server)
        tube.put("lost")
        own_server.signal(signal.SIGSTOP)
        created: list[Any] = []
        putting = threading.Thread(target=lambda: created.append(tube.put("job")))
        putting.start()
        putting.join(0.05)
        roll_back(own_server)
        putting.join(20)
        assert [(task.id, task.data) for task in tube.select()] == [(created[0].id, "job")]


def test_waiting_take_continues_after_a_rollback(face: Face, own_server: LocalServer) -> None:
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as other:
        keep_for = queue.create_tube("load")
        keep(own_server)
        waiting = face.connect(own_server.url)
        taking = face.begin(waiting.tube("load"), "take", timeout=20)
        roll_back(own_server)
        others = other.tube("load")
        others.put("job")
        task = taking.result(20)
        assert (task.id, task.data) == (0, "job")
        assert others.take(timeout=0) is None
        assert task.ack().state == "done"
        waiting.close()
        assert keep_for.statistics().tasks["total"] == 0


def test_tube_created_in_the_lost_window_is_not_the_next_of_its_name(face: Face, own_server: LocalServer) -> None:
    keep(own_server)
    with face.connect(own_server.url) as queue, face.connect(own_server.url) as other:
        tube = queue.create_tube("load")
        tube.put("lost")
        lost = tube.take(timeout=0)
        roll_back(own_server)
        others = other.create_tube("load")
        others.put("new")
        new = others.take(timeout=0)
        for call in (tube.statistics, lost.ack, lost.delete, lambda: tube.put("lost too")):
            with pytest.raises(TubeNotFound):
                call()
        queue.close()
        assert new.ack().data == "new"
        assert others.statistics().calls["put"] == 1


# -- shared sessions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaver", ["creator", "joiner"])
def test_leaving_a_forgotten_shared_session_releases_no_task(face: Face, own_server: LocalServer, leaver: str) -> None:
    with face.connect(own_server.url, session_ttl=31.0) as witness:
        first, second = face.connect(own_server.url), face.connect(own_server.url)
        tube = first.create_tube("load")
        tube.put_many(range(2))
        keep(own_server)
        second.admin.identify(first.admin.identify())
        roll_back(own_server)
        tasks = [queue.tube("load").take(timeout=0) for queue in (first, second)]
        stays, leaves = (first, second) if leaver == "joiner" else (second, first)
        leaves.close()
        assert witness.tube("load").take(timeout=0) is None
        for task in tasks:
            assert stays.tube("load").ack(task.id).state == "done"
        stays.close()


def test_session_identified_in_the_lost_window_can_be_joined_soon(face: Face, own_server: LocalServer) -> None:
    with (
        face.connect(own_server.url, session_ttl=3.0) as first,
        face.connect(own_server.url, session_ttl=31.0) as second,
    ):
        tube = first.create_tube("load")
        tube.put("job")
        keep(own_server)
        uuid = first.admin.identify()
        roll_back(own_server)
        task = first.tube("load").take(timeout=0)

        def is_joined() -> bool:
            try:
                second.admin.identify(uuid)
            except SessionNotFound:
                return False
            return True

        assert eventually(is_joined)
        first.close()
        assert second.tube("load").ack(task.id).state == "done"


@pytest.mark.sample(2)
@pytest.mark.parametrize(("lost", "beats"), [("all", "who stays"), ("all", "who leaves"), ("the join", "who stays")])
def test_leaving_a_session_registered_again_releases_no_task(
    face: Face, own_server: LocalServer, lost: str, beats: str
) -> None:
    """Some callers send heartbeats soon, others after ten seconds."""
    client: Any = own_server.client()

    def callers() -> int:
        return sum(field.startswith(b"caller:") for field in client.hkeys(f"tubes:session:{uuid}"))

    with (
        client,
        face.connect(own_server.url, session_ttl=31.0) as witness,
        face.connect(own_server.url, session_ttl=3.0 if beats == "who stays" else 31.0) as stays,
    ):
        leaves = face.connect(own_server.url, session_ttl=3.0 if beats == "who leaves" else 31.0)
        leaves.create_tube("load").put("job")
        if lost == "the join":
            leaves.admin.identify()
        keep(own_server)
        uuid = leaves.admin.identify()
        stays.admin.identify(uuid)
        roll_back(own_server)
        task = stays.tube("load").take(timeout=0)
        assert eventually(lambda: callers() == 2)
        leaves.close()
        assert witness.tube("load").take(timeout=0) is None
        assert task.ack().state == "done"


# -- operations that depend on tubes -----------------------------------------------------------------------------------


def test_calls_continue_after_a_reply_tube_was_lost(face: Face, own_server: LocalServer) -> None:
    with face.connect(own_server.url) as queue, tubes.connect(own_server.url) as workers:
        tube = queue.create_tube("squares")
        worker = Handlers(workers)
        worker.on("squares", lambda task: task.data * task.data)
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            keep(own_server)
            assert tube.call(3, timeout=20) == 9
            roll_back(own_server)
            assert [tube.call(number, timeout=20) for number in range(20)] == [number**2 for number in range(20)]
        finally:
            worker.stop()
            running.join(20)


def test_call_whose_task_was_lost_raises_connection_lost(
    face: Face, own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException] = []
    waits = threading.Event()

    class Wait(calls._Wait):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            waits.set()

    def call() -> None:
        try:
            tube.call("no worker replies")
        except ConnectionLost as error:
            ended.append(error)

    monkeypatch.setattr(calls, "_Wait", Wait)
    with face.connect(own_server.url) as queue:
        tube = queue.create_tube("squares")
        keep(own_server)
        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        # A put whose reply is lost is repeated; then the task exists.
        assert waits.wait(60)
        roll_back(own_server)
        calling.join(60)
        assert "the call may or may not have been done" in str(ended[0])


def test_call_whose_task_survived_keeps_waiting(face: Face, own_server: LocalServer) -> None:
    with face.connect(own_server.url) as queue, tubes.connect(own_server.url) as workers, ThreadPoolExecutor() as pool:
        tube = queue.create_tube("squares")
        first = pool.submit(tube.call, 2, timeout=20)
        assert eventually(lambda: workers.tube("squares").statistics().tasks["ready"] == 1)
        own_server.client().delete(*own_server.client().keys("tubes:{reply.*"))
        keep(own_server)
        roll_back(own_server)
        task = take_task(workers.tube("squares"), 10)
        send_reply(workers, task, 4)
        assert first.result() == 4


def test_stream_does_not_ack_tasks_taken_by_others_after_a_rollback(own_server: LocalServer) -> None:
    with tubes.connect(own_server.url) as other, tubes.connect(own_server.url) as queue:
        others = other.create_tube("load")
        others.put_many(range(6))
        stream = Stream.open(queue, "load", "nightly")
        keep(own_server)
        assert [chunk.ids for chunk in stream.take(1, 3)] == [[0, 1, 2]]
        roll_back(own_server)
        theirs = others.take_many(3)
        assert [chunk.ids for chunk in stream.take(2, 3)] == [[3, 4, 5]]
        assert stream.retake(1) == []
        assert stream.ack(2) == 3
        assert set(others.ack_many(theirs).values()) == {True}
        queue.admin.detach()


def test_stream_opened_in_the_lost_window_is_fenced(own_server: LocalServer) -> None:
    with tubes.connect(own_server.url) as other, tubes.connect(own_server.url) as next_one:
        other.create_tube("load").put_many(range(4))
        keep(own_server)
        lost = tubes.connect(own_server.url)
        stream = Stream.open(lost, "load", "nightly")
        stream.take(1, 2)
        roll_back(own_server)
        theirs = next_one.tube("load").take_many(2)
        again = tubes.connect(own_server.url)
        following = Stream.open(again, "load", "nightly")
        assert [chunk.ids for chunk in following.take(1, 2)] == [[2, 3]]
        for call in (lambda: stream.ack(1), lambda: stream.take(2, 1), lambda: stream.retake(1)):
            with pytest.raises(StreamFenced):
                call()
        lost.admin.detach()
        assert other.tube("load").take(timeout=0) is None
        assert set(next_one.tube("load").ack_many(theirs).values()) == {True}
        assert following.ack(1) == 2
        again.admin.detach()


def test_reply_arrives_although_the_reply_tube_was_lost(own_server: LocalServer) -> None:
    with tubes.connect(own_server.url) as queue, tubes.connect(own_server.url) as workers:
        tube = queue.create_tube("squares")
        keep(own_server)
        with ThreadPoolExecutor() as pool:
            calling = pool.submit(tube.call, 3, timeout=20)
            task = take_task(workers.tube("squares"), 10)
            roll_back(own_server)
            send_reply(workers, task, 9)  # This may happen before the caller notices the loss.
            assert calling.result() == 9


@pytest.mark.parametrize("is_known", [True, False], ids=["by number", "once"])
def test_bulk_write_lost_while_publishing_raises_write_aborted(
    own_server: LocalServer, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    seal = Writer._seal

    def seal_and_roll_back(*args: Any) -> Any:
        found = seal(*args)
        roll_back(own_server)
        return found

    def publish() -> int:
        brought = [writer.stage("load-7", chunk) for chunk in writer.chunks([(writer.head({}), [b"1", b"2"])])]
        return writer.publish("load", 7, brought) if is_known else writer.publish_once("load-7", brought)

    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("load")
        writer = Writer(tube)
        keep(own_server)
        monkeypatch.setattr(Writer, "_seal", seal_and_roll_back)
        with pytest.raises(WriteAborted, match="lost the uploaded tasks"):
            publish()
        monkeypatch.undo()
        assert tube.statistics().tasks["total"] == 0
        assert publish() == 2
        assert tube.statistics().tasks["ready"] == 2


def test_lost_alter_has_no_effect_for_any_client(face: Face, own_server: LocalServer) -> None:
    """Clients that know the lost alter return to the old options, and a later alter is not mistaken for it."""
    with (
        face.connect(own_server.url) as queue,
        face.connect(own_server.url) as other,
        face.connect(own_server.url) as late,
    ):
        tube, there = (
            queue.create_tube("load", "fifottl", ttr=60, capacity=50),
            other.create_tube("load", "fifottl", ttr=60, capacity=50, if_not_exists=True),
        )
        keep(own_server)
        tube.alter(ttr=5, capacity=None)
        assert there.put("lost").ttr == 5
        roll_back(own_server)
        assert there.put("new").ttr == tube.put("new").ttr == 60
        assert there.options == tube.options == {"capacity": 50, "ttr": 60.0}
        keep(own_server)
        tube.alter(ttr=7)
        assert there.put("lost").ttr == 7
        roll_back(own_server)
        late.tube("load").alter(ttr=9)
        assert there.put("new").ttr == tube.put("new").ttr == 9
        assert queue.admin.check("load") == []
