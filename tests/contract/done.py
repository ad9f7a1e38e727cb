"""Done tasks that a tube keeps for some time, and waiting for the result of a task."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import (
    CallFailed,
    CallTimeout,
    DuplicateKey,
    InvalidOption,
    QueueClosed,
    Task,
    TaskNotFound,
    TaskNotTaken,
    Tube,
    TubeFull,
    TubeNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class DoneTasks(Bench):
    """keep_done, result and again."""

    def kept_ids(self, tube: Tube | None = None) -> list[int]:
        """Return the ids of the kept done tasks."""
        return [task.id for task in (tube or self.tube).select("done")]

    def put_and_ack(self, result: object = None, **options: object) -> Task:
        """Put, take and ack a task, which is then kept unless the options disable this."""
        task = self.put_and_take(**{"keep_done": 60, **options})
        self.tube.ack(task, result)
        return task

    def begin_result(self, task: Task | int, timeout: float | None = None, tube: Tube | None = None) -> Future[object]:
        """Start a call that waits for the result of a task."""
        future = Future[object]()
        target = tube or self.tube

        def call() -> None:
            try:
                future.set_result(target.result(task, timeout))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        return future

    def test_a_done_task_is_kept_with_its_result(self) -> None:
        put = self.put({"to": "ann"}, keep_done=60, context={"trace": "1"})
        self.clock.advance(1)
        task = self.take()
        assert (task.keep_done, task.result, task.ended, task.why) == (60, None, None, None)
        self.clock.advance(1)
        assert self.tube.ack(task, {"sent": True}).state == "done"
        for seen in (self.tube.peek(task.id), self.tube.peek(put), *self.tube.select("done")):
            assert (seen.state, seen.data, seen.result, seen.why) == ("done", {"to": "ann"}, {"sent": True}, "ack")
            assert (seen.id, seen.attempts, seen.context, seen.utube) == (put.id, 1, {"trace": "1"}, put.utube)
            assert (seen.created, seen.ended) == (put.created, self.clock.now())
        assert self.tube.result(task) == {"sent": True}
        assert self.add_worker().tube.result(task.id, 0) == {"sent": True}

    def test_done_task_is_kept_for_keep_done_seconds(self) -> None:
        task = self.put_and_ack(1, keep_done=5)
        self.clock.advance(4.999)
        assert self.tube.peek(task).result == 1
        self.clock.advance(0.001)
        assert self.kept_ids() == []
        assert self.tube.statistics().kept == 0
        for look in (self.tube.peek, self.tube.result, self.tube.delete):
            with pytest.raises(TaskNotFound):
                look(task.id)
        with pytest.raises(TaskNotFound):
            self.tube.kick(task=task.id)

    def test_task_without_keep_done_is_not_kept(self) -> None:
        tube = self.create("keeps", keep_done=60)
        for each, options in ((self.tube, {}), (tube, {"keep_done": 0})):
            task = self.put(tube=each, **options)
            each.ack(self.take(each), 1)
            with pytest.raises(TaskNotFound):
                each.peek(task.id)
            assert [*each.select("done")] == []

    def test_tube_keep_done_is_the_default_for_its_tasks(self) -> None:
        tube = self.create("keeps", keep_done=60)
        assert tube.options["keep_done"] == 60
        first, second, third = (self.put(tube=tube, **options) for options in ({}, {"keep_done": 90}, {}))
        tube.alter(keep_done=None)
        fourth = self.put(tube=tube)
        for _ in range(4):
            self.clock.advance(1)
            tube.ack(self.take(tube))
        assert first.keep_done == third.keep_done == 60
        assert fourth.keep_done is None
        order = [task.id for task in self.sort_as_taken([first, second, third, fourth]) if task.id != fourth.id]
        order.remove(second.id)
        assert self.kept_ids(tube) == [second.id, *reversed(order)]
        self.clock.advance(60)
        assert self.kept_ids(tube) == [second.id]

    def test_kept_done_task_uses_no_capacity_and_counts_only_as_done(self) -> None:
        tube = self.create("small", capacity=1, keep_done=60)
        for number in range(3):
            assert tube.put(number, **self.lane("a"))
            tube.ack(self.take(tube))
        counts = tube.statistics()
        assert (counts.kept, counts.tasks["total"], counts.tasks["done"]) == (3, 0, 3)
        assert [*tube.select()] == []
        assert tube.join(0)
        assert self.queue.admin.overview()["small"].statistics.kept == 3

    def test_keep_done_max_limits_the_kept_tasks(self) -> None:
        tube = self.create("few", keep_done=60, keep_done_max=2)
        tasks = [self.put(tube=tube) for _ in range(3)]
        for _ in tasks:
            self.clock.advance(1)
            tube.ack(self.take(tube))
        assert self.kept_ids(tube) == [task.id for task in reversed(self.sort_as_taken(tasks)[1:])]

    def test_delete_many_processes_kept_tasks_in_call_order(self) -> None:
        tube = self.create("some", keep_done=60, keep_done_max=1)
        first, second = self.put(tube=tube), self.put(tube=tube)
        assert tube.delete_many([second.id]) == {second.id: True}
        self.clock.advance(1)
        # The tube keeps one task: the first one replaces the second.
        assert tube.delete_many([first.id, second.id]) == {first.id: True, second.id: False}
        assert self.kept_ids(tube) == [first.id]

    def test_smaller_keep_done_max_drops_the_oldest_kept_tasks(self) -> None:
        tube = self.create("fewer", keep_done=60)
        tasks = [self.put(tube=tube) for _ in range(5)]
        for _ in tasks:
            self.clock.advance(1)
            tube.ack(self.take(tube))
        ids = [task.id for task in reversed(self.sort_as_taken(tasks))]
        tube.alter(keep_done_max=3)
        assert self.kept_ids(tube) == ids[:3]
        assert tube.statistics().kept == 3
        tube.alter(keep_done_max=None)
        assert self.kept_ids(tube) == ids[:3]

    def test_kept_task_says_whether_delete_or_ttl_ended_it(self) -> None:
        deleted = self.put(keep_done=60)
        self.tube.delete(deleted)
        many = self.put(keep_done=60)
        self.tube.delete_many([many])
        replaced = self.put(keep_done=60, key="k")
        self.put(key="k", on_duplicate="replace")
        whys = {deleted.id: "delete", many.id: "delete", replaced.id: "delete"}
        if self.knows("ttl"):
            late = self.put(keep_done=60, ttl=5)
            whys[late.id] = "ttl"
            self.clock.advance(7)
            assert self.tube.peek(late).ended == late.created + 5
        for id, why in whys.items():
            assert self.tube.peek(id).why == why
            with pytest.raises(CallFailed, match="no result"):
                self.tube.result(id)

    def test_ack_many_keeps_tasks_without_results(self) -> None:
        for _ in range(3):
            self.put(keep_done=60)
        tasks = self.tube.take_many(3)
        self.tube.ack_many(tasks)
        assert sorted(self.kept_ids()) == sorted(task.id for task in tasks)
        assert self.tube.result(tasks[0]) is None

    def test_done_tasks_can_be_listed_page_by_page(self) -> None:
        tasks: list[Task] = []
        for _ in range(4):
            self.clock.advance(1)
            tasks.append(self.put_and_ack(**self.lane("a")))
        ids = [task.id for task in reversed(tasks)]
        first = [*self.tube.select("done", limit=1)]
        assert [task.id for task in first] == ids[:1]
        assert self.list_after(ids[0], "done") == ids[1:]
        with pytest.raises(TaskNotFound):
            self.list_after(ids[0] + 100, "done")
        if self.knows("lane"):
            self.put_and_ack(**self.lane("b"))
            assert [task.id for task in self.tube.select("done", lane="a")] == ids

    def test_kept_done_task_can_be_deleted(self) -> None:
        first, second, third, fourth = (self.put_and_ack() for _ in range(4))
        with self.expect_error(TaskNotFound):
            self.tube.delete(first, state="ready")
        assert self.tube.delete(first).state == "done"
        self.tube.delete(second.id, state=["ready", "done"])
        assert self.tube.delete_many([third], state=["ready", "buried"]) == {third.id: False}
        assert self.tube.delete_many([third, third.id + 100], state="done") == {third.id: True, third.id + 100: False}
        assert self.kept_ids() == [fourth.id]
        waits = self.put()
        self.tube.select("done").delete()
        assert self.kept_ids() == []
        assert self.state(waits) == "ready"
        self.tube.delete(self.put(keep_done=60))
        assert len(self.kept_ids()) == 1
        self.tube.truncate()
        assert self.kept_ids() == []

    def test_kept_done_task_cannot_be_acked_buried_or_updated(self) -> None:
        task = self.put_and_ack()
        for method, error in (("ack", TaskNotTaken), ("release", TaskNotTaken), ("bury", TaskNotFound)):
            with self.expect_error(error):
                getattr(self.tube, method)(task.id)
        with self.expect_error(TaskNotFound):
            self.tube.update(task.id, data=1)
        assert self.tube.update(task.id).state == "done"  # An update without changes only reads the task.
        assert self.tube.take_many(1, 0) == []

    def test_key_of_a_kept_done_task_is_free(self) -> None:
        first = self.put_and_ack(key="k")
        assert self.tube.peek(first).key == "k"
        second = self.put(key="k")
        assert second.created_now
        with self.expect_error(DuplicateKey):
            self.tube.kick(task=first)

    def test_kick_requeues_a_done_task_with_its_options(self) -> None:
        options: dict[str, object] = {"max_attempts": 3, "context": {"a": "b"}, "key": "k"}
        options |= {name: 40 for name in ("pri", "ttl", "ttr") if self.knows(name)} | self.lane("here")
        old = self.put_and_ack("result", data="data", **options)
        with self.expect_error(InvalidOption):
            self.tube.kick(task=old.id, attempts=5)
        new = self.tube.kick(task=old.id)
        assert new.id > old.id
        assert (new.state, new.data, new.attempts, new.result) == ("ready", "data", 0, None)
        facts = ("max_attempts", "context", "key", "pri", "ttl", "ttr", "utube", "keep_done")
        assert [getattr(new, name) for name in facts] == [getattr(old, name) for name in facts]
        assert self.kept_ids() == []
        assert self.tube.kick(task=new) == new  # It is ready already.
        self.tube.ack(self.take())
        with pytest.raises(TaskNotFound):
            self.tube.kick(task=old)

    @needs("pri")
    def test_kick_of_a_done_task_keeps_priority_0(self) -> None:
        self.tube.alter(pri=7)
        assert self.tube.kick(task=self.put_and_ack(pri=0)).pri == 0

    def test_kick_that_fails_leaves_the_task_done(self) -> None:
        tube = self.create("full", keep_done=60, capacity=1)
        old = self.put("old", tube=tube)
        tube.ack(self.take(tube), "result")
        self.put("new", tube=tube)
        with self.expect_error(TubeFull):
            tube.kick(task=old.id)
        assert tube.result(old) == "result"
        tube.ack(self.take(tube))
        assert tube.kick(task=old).data == "old"
        assert old.id not in self.kept_ids(tube)

    def test_result_waits_until_the_task_is_done(self) -> None:
        other = self.add_worker()
        task = self.put(keep_done=60)
        self.put()
        calls = [self.begin_result(task), self.begin_result(task.id, 60, other.tube), self.begin_result(task)]
        while (taken := self.take(other.tube)).id != task.id:
            other.tube.ack(taken)
        assert not any(call.done() for call in calls)
        other.tube.ack(taken, ["result"])
        assert [self.result_of(call) for call in calls] == [["result"]] * 3

    def test_waiting_result_of_a_moved_task_raises_task_not_found(self) -> None:
        waiting = self.begin_result(self.put(keep_done=60), 60)
        assert self.tube.select("ready").move_to(self.create("other")) == 1
        with pytest.raises(TaskNotFound):
            self.result_of(waiting)

    def test_listener_gets_the_result_of_a_kept_task(self) -> None:
        events: list[Task] = []

        def on_change(task: Task, event: str) -> None:
            events.append(task)

        self.tube.on_task_change(on_change)
        self.put_and_ack("result")
        assert eventually(lambda: len(events) == 3)
        assert (events[-1].state, events[-1].why, events[-1].result) == ("done", "ack", "result")
        self.tube.on_task_change(None)

    def test_result_raises_when_the_task_ends_without_one(self) -> None:
        ends: list[Callable[[Task], object]] = [
            lambda task: self.tube.bury(task, "broken"),
            lambda task: self.tube.delete(task),
            lambda task: self.tube.cancel(task),
            lambda task: self.take().release(),
        ]
        for end in ends:
            task = self.put(keep_done=60, max_attempts=1)
            call = self.begin_result(task)
            end(task)
            with pytest.raises(CallFailed):
                self.result_of(call)
        task = self.put(keep_done=60)
        call = self.begin_result(task)
        self.tube.truncate()
        with pytest.raises(TaskNotFound):
            self.result_of(call)

    @needs("ttl")
    def test_result_raises_when_the_ttl_ends_the_task(self) -> None:
        call = self.begin_result(self.put(keep_done=10**8, ttl=5))
        assert eventually(lambda: self.ends_later(call))
        with pytest.raises(CallFailed, match="ttl"):
            self.result_of(call)

    def test_result_raises_call_timeout_after_its_timeout(self) -> None:
        task = self.put(keep_done=60)
        with pytest.raises(CallTimeout, match=r"is not done after 0(\.0)? s: it is ready$"):
            self.tube.result(task, 0)
        call = self.begin_result(task, 5)
        assert eventually(lambda: self.ends_later(call))
        with pytest.raises(CallTimeout, match=r"is not done after 5(\.0)? s: it is ready$"):
            self.result_of(call)

    def test_dropped_tube_and_closed_queue_end_a_waiting_result(self) -> None:
        worker = self.add_worker()
        task = self.put(keep_done=60)
        dropped, closed = self.begin_result(task), self.begin_result(task.id, tube=worker.tube)
        worker.queue.close()
        assert isinstance(closed.exception(10), QueueClosed)
        self.add_worker().tube.drop()
        assert isinstance(dropped.exception(10), TubeNotFound)

    def test_result_needs_a_task_with_keep_done(self) -> None:
        task = self.put()
        with self.expect_error(InvalidOption, "keep_done"):
            self.tube.result(task)
        with self.expect_error(TaskNotFound):
            self.tube.result(task.id + 100)
        for bad in (-1, float("nan"), True, "1"):
            with self.expect_error(InvalidOption):
                self.tube.put(0, keep_done=bad)
            with self.expect_error(InvalidOption):
                self.tube.result(task, bad)
        with pytest.raises(InvalidOption):
            self.create("bad", keep_done_max=0)
