"""Ownership: only the session that holds a task may ack, release and touch it, and only for its latest take."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, lacks, needs
from tubes import OptionNotSupported, Task, TaskNotTaken, Tube

if TYPE_CHECKING:
    from collections.abc import Callable

#: The methods that only the holder of a task may call.
HOLDER_CALLS: list[Callable[[Tube, Task | int], object]] = [
    lambda tube, task: tube.ack(task),
    lambda tube, task: tube.release(task),
    lambda tube, task: tube.touch(task, 1),
    lambda tube, task: tube.touch(task, 0),
]


class Ownership(Bench):
    """Takes belong to sessions."""

    def refuses_holder_calls(self, tube: Tube, *tasks: Task | int) -> bool:
        """Return True if every such method refuses these tasks in this session."""
        for method in HOLDER_CALLS:
            assert self.refuses(partial(method, tube), *tasks, error=TaskNotTaken)
        return True

    def test_task_without_holder_cannot_be_acked(self) -> None:
        acked = self.tube.ack(self.put_and_take())
        buried, ready = self.put_and_bury(), self.put()
        assert self.refuses_holder_calls(self.tube, ready.id, buried.id, acked.id, ready.id + 1000)

    def test_task_of_another_session_cannot_be_acked(self) -> None:
        task, other = self.put_and_take(), self.add_worker()
        assert self.refuses_holder_calls(other.tube, task.id, task)

    @pytest.mark.parametrize("loss", ["bury", "delete", "release_all", "truncate"])
    def test_holder_that_lost_its_task_cannot_ack_it(self, loss: str) -> None:
        task, other = self.put_and_take(), self.add_worker()
        lose = getattr(other.tube.admin if loss == "release_all" else other.tube, loss)
        lose(task.id) if loss in ("bury", "delete") else lose()
        assert self.refuses_holder_calls(self.tube, task, task.id)

    def test_former_holder_cannot_ack_a_task_taken_by_another_session(self) -> None:
        task, other = self.put_and_take(), self.add_worker()
        self.tube.admin.release_all()
        again = self.take(other.tube)
        assert again.id == task.id
        assert self.refuses_holder_calls(self.tube, task, task.id)
        assert other.tube.ack(again).state == "done"

    def test_task_object_of_an_earlier_take_cannot_be_acked(self) -> None:
        early = self.put_and_take()
        self.tube.release(early.id)
        late = self.take()
        assert late.id == early.id
        assert self.refuses_holder_calls(self.tube, early)
        assert self.tube.ack(late).state == "done"

    def test_id_refers_to_the_current_take_of_the_session(self) -> None:
        self.tube.release(self.put_and_take())
        assert self.tube.ack(self.take().id).state == "done"

    def test_holder_can_use_task_objects_from_put_and_peek(self) -> None:
        put = self.put()
        self.take()
        assert self.tube.release(put).state == "ready"
        self.take()
        assert self.tube.ack(self.tube.peek(put)).state == "done"

    @needs("ttr")
    def test_touched_task_object_refers_to_the_same_take(self) -> None:
        task = self.put_and_take(ttr=5)
        touched = self.tube.touch(task, 5)
        self.tube.touch(task, 5)
        assert self.tube.ack(touched).state == "done"

    def test_a_task_of_another_tube_is_refused(self) -> None:
        elsewhere = self.create("elsewhere")
        self.put(tube=elsewhere)
        foreign = self.take(elsewhere)
        self.put_and_take()
        assert self.refuses(
            lambda method: getattr(self.tube, method)(foreign), "ack", "release", "bury", "delete", "peek"
        )

    def test_task_object_of_a_dropped_tube_is_refused_by_its_successor(self) -> None:
        stale = self.put_and_take()
        self.tube.drop(force=True)
        self.tube = self.create("contract")
        self.put_and_take()
        with self.expect_error(TaskNotTaken):
            self.tube.ack(stale)

    def test_task_has_methods_for_release_bury_ack_and_delete(self) -> None:
        self.put()
        assert self.take().release().state == "ready"
        task = self.take()
        assert task.peek() == task
        assert task.bury().state == "buried"
        self.tube.select("buried", limit=1).kick()
        assert self.take().ack().state == "done"
        assert self.put().delete().state == "done"

    @needs("delay", "ttr")
    def test_task_methods_accept_the_arguments_of_the_tube_methods(self) -> None:
        task = self.put_and_take(ttr=5)
        assert task.touch(3).ttr == 8
        assert task.release(delay=4).state == "delayed"

    @lacks("ttr")
    def test_touch_is_refused_where_the_driver_has_no_ttr(self) -> None:
        task = self.put_and_take()
        with self.expect_error(OptionNotSupported):
            self.tube.touch(task, 1)
        with self.expect_error(OptionNotSupported):
            self.tube.touch_many([task], 5)

    @lacks("ttr")
    def test_take_with_ttr_is_refused_where_the_driver_has_no_ttr(self) -> None:
        held, ready = self.put_and_take(), self.put()
        takes = partial(self.tube.take, 0), partial(self.tube.take_many, 2, 0), ready.take
        assert self.refuses(lambda take: take(ttr=5), *takes, error=OptionNotSupported)
        assert self.refuses(lambda task: self.tube.touch(task, ttr=5), held, error=OptionNotSupported)
        assert self.tube.peek(ready).take().id == ready.id
        waits = partial(self.queue.take_any, [self.tube], 5)
        assert self.refuses(lambda order: waits(ttr=5, order=order), "tubes", "pri", error=OptionNotSupported)

    @lacks("delay")
    def test_delayed_release_is_refused_where_the_driver_has_no_delay(self) -> None:
        task = self.put_and_take()
        with self.expect_error(OptionNotSupported):
            self.tube.release(task, delay=1)
        with self.expect_error(TaskNotTaken):
            self.tube.release(task.id + 1000, delay=1)

    def test_touch_and_release_refuse_bad_spans(self) -> None:
        task = self.put_and_take()
        spans = (-1, float("nan"), float("inf"), "1", True)
        assert self.refuses(lambda span: self.tube.touch(task, span), *spans, None)
        assert self.refuses(lambda span: self.tube.touch(task, 1, ttr=span), 1, -1)
        assert self.refuses(lambda span: self.tube.release(task, delay=span), *spans)
