"""Cancelled tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, Worker, eventually, needs
from tubes import CallFailed, TaskCancelled, TaskNotFound, TaskNotTaken
from tubes.drivers.entry import Loss
from tubes.values.task import CANCELLED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes import Task, Tube

#: Calls by which another session takes a task away from its holder, and the event that the holder gets.
LOSING: dict[str, tuple[str, Callable[[Worker, Task], object]]] = {
    "cancel": ("cancel", lambda other, task: other.tube.cancel(task.id, "not needed")),
    "cancel by lease": ("cancel", lambda other, task: other.tube.cancel(str(task.lease), "not needed")),
    "cancel of a selection": ("cancel", lambda other, task: other.tube.select("taken").cancel("not needed")),
    "delete": ("delete", lambda other, task: other.tube.delete(task.id)),
    "delete_many": ("delete", lambda other, task: other.tube.delete_many([task.id])),
    "delete of a selection": ("delete", lambda other, task: other.tube.select("taken").delete()),
    "replace": ("delete", lambda other, task: other.tube.put(None, key=task.key, on_duplicate="replace")),
    "bury": ("bury", lambda other, task: other.tube.bury(task.id, "no such address")),
    "bury of a selection": ("bury", lambda other, task: other.tube.select("taken").bury("no such address")),
    "release_all": ("release", lambda other, task: other.tube.admin.release_all()),
    "release of a selection": ("release", lambda other, task: other.tube.select("taken").release()),
}
#: Calls of the holder itself, which are not reported to it.
OWN: dict[str, Callable[[Tube, Task], object]] = {
    "ack": lambda tube, task: tube.ack(task),
    "ack_many": lambda tube, task: tube.ack_many([task]),
    "release": lambda tube, task: tube.release(task),
    "bury": lambda tube, task: tube.bury(task),
    "delete": lambda tube, task: tube.delete(task),
    "delete_many": lambda tube, task: tube.delete_many([task]),
    "release_all": lambda tube, task: tube.admin.release_all(),
    "release of a selection": lambda tube, task: tube.select("taken").release(),
    "bury of a selection": lambda tube, task: tube.select("taken").bury(),
    "delete of a selection": lambda tube, task: tube.select("taken").delete(),
}
#: Seconds for which a task is kept that was cancelled while it was taken.
KEPT = 60


class Cancelling(Bench):
    """`Tube.cancel`."""

    def test_cancel_ends_a_ready_task(self) -> None:
        task = self.put("a long job")
        done = self.tube.cancel(task, "not needed")
        assert (done.id, str(done.state), done.why, done.reason, done.data) == (
            task.id,
            "done",
            "cancelled",
            "not needed",
            "a long job",
        )
        assert done.cancelled
        assert not task.cancelled
        assert (self.state(task), self.drain()) == ("done", [])

    def test_cancel_without_a_reason_clears_the_reason_of_the_burial(self) -> None:
        task = self.put(keep_done=10)
        self.tube.bury(task, "no such address")
        assert self.tube.cancel(task.id).reason is None
        assert self.tube.peek(task).reason is None

    @needs("delay")
    def test_cancel_ends_a_delayed_task(self) -> None:
        task = self.put(delay=10)
        assert self.tube.cancel(task).why == "cancelled"
        self.pass_time(11)
        assert (self.drain(), self.count("delayed"), self.count("total")) == ([], 0, 0)

    def test_cancelled_task_is_counted_and_not_kept(self) -> None:
        self.tube.cancel(self.put())
        self.tube.cancel(self.put_and_bury())
        assert [self.count(name) for name in ("delete", "done", "ack", "total", "buried")] == [2, 2, 0, 0, 0]

    def test_listeners_get_the_event(self) -> None:
        events = self.listen()
        task = self.put_and_take()
        self.tube.cancel(task)
        assert self.has_received(
            events, [("put", task.id, "ready"), ("take", task.id, "taken"), ("cancel", task.id, "done")]
        )

    def test_task_with_keep_done_is_kept_as_cancelled(self) -> None:
        task = self.put("a long job", keep_done=10, context={"trace": "4bf9"})
        self.pass_time(5)
        now = self.clock.now()
        self.tube.cancel(task, "not needed")
        seen = self.tube.peek(task)
        assert (seen.why, seen.reason, seen.ended, seen.result) == ("cancelled", "not needed", now, None)
        assert (seen.data, seen.context, seen.attempts) == ("a long job", {"trace": "4bf9"}, 0)
        with self.expect_error(CallFailed, match="cancelled: not needed"):
            self.tube.result(task, timeout=0)
        self.pass_time(11)
        with self.expect_error(TaskNotFound):
            self.tube.peek(task)

    @pytest.mark.parametrize("keep_done", [0, 10, 100])
    def test_taken_task_is_kept_for_its_holder(self, keep_done: int) -> None:
        task = self.put_and_take(data="a long job", keep_done=keep_done)
        other = self.add_worker()
        done = other.tube.cancel(task.id, "not needed")
        assert (done.why, done.attempts, done.keep_done) == ("cancelled", 1, keep_done or None)
        for method in ("ack", "release", "touch") if self.knows("ttr") else ("ack", "release"):
            with self.expect_error(TaskNotTaken):
                getattr(self.tube, method)(task.id)
        seen = self.tube.peek(task.id)
        assert (seen.cancelled, seen.reason, seen.created) == (True, "not needed", task.created)
        self.pass_time(max(keep_done, KEPT) - 1)
        assert self.tube.peek(task.id).cancelled
        self.pass_time(2)
        with self.expect_error(TaskNotFound):
            self.tube.peek(task.id)

    def test_checkpoint_of_a_cancelled_task_raises_task_cancelled(self) -> None:
        task, other = self.put_and_take(), self.add_worker()
        after, lease = task.checkpoint(1), str(task.lease)
        other.tube.cancel(task.id, "not needed")
        calls: list[Callable[[], object]] = [
            lambda: task.checkpoint(2),
            lambda: after.checkpoint(2),
            lambda: self.tube._checkpoint(task.id, 2),
            lambda: other.tube._checkpoint(lease, 2),
        ]
        for call in calls:
            with self.expect_no_change(), pytest.raises(TaskCancelled, match="was cancelled: not needed") as cancelled:
                call()
            assert cancelled.value.facts == {"id": task.id, "tube": self.tube.name, "reason": "not needed"}
        assert self.tube.peek(task.id).saved == 1
        self.pass_time(KEPT + 1)
        with self.expect_no_change(), pytest.raises(TaskNotTaken) as raised:
            task.checkpoint(2)
        assert raised.type is TaskNotTaken

    def test_checkpoint_of_a_task_marked_as_cancelled_raises_task_cancelled_for_ever(self) -> None:
        task = self.put_and_take()
        self.tube.cancel(task.id, "not needed")
        getattr(task, "inner", task)._take = CANCELLED
        with self.expect_error(TaskCancelled, match="not needed$"):
            task.checkpoint()
        self.pass_time(KEPT + 1)
        with self.expect_error(TaskCancelled, match="was cancelled$"):
            task.checkpoint()

    def test_checkpoint_of_a_task_that_ended_in_another_way_raises_task_not_taken(self) -> None:
        for end in (self.tube.ack, self.tube.delete):
            task = self.put_and_take(keep_done=60)
            end(task.id)
            with self.expect_no_change(), pytest.raises(TaskNotTaken) as raised:
                task.checkpoint(2)
            assert raised.type is TaskNotTaken
        task = self.put_and_take()
        self.tube.cancel(task)
        with self.expect_error(TaskCancelled, match=r"was cancelled\.?$"):
            task.checkpoint(2)

    def test_only_one_of_ack_and_cancel_wins(self) -> None:
        acked, cancelled = self.put_and_take(), self.put_and_take()
        self.tube.ack(acked)
        with self.expect_error(TaskNotFound):
            self.tube.cancel(acked.id)
        self.tube.cancel(cancelled)
        with self.expect_error(TaskNotTaken):
            self.tube.ack(cancelled)
        with self.expect_error(TaskNotFound):
            self.tube.cancel(cancelled.id)

    def test_cancel_by_lease_ends_only_that_take(self) -> None:
        task, other = self.put_and_take(), self.add_worker()
        lease = str(task.lease)
        self.tube.release(task)
        with self.expect_error(TaskNotTaken):
            other.tube.cancel(lease)
        again = self.take()
        assert other.tube.cancel(str(again.lease)).cancelled

    def test_cancel_frees_the_key(self) -> None:
        first = self.put(key="a")
        self.tube.cancel(first)
        assert self.put(key="a").id != first.id
        remembered = self.put(key="b", key_ttl=60)
        self.tube.cancel(remembered)
        assert self.put(key="b").id == remembered.id

    @needs("lane")
    def test_cancel_lets_the_lane_go_on(self) -> None:
        for _ in range(2):
            self.put(**self.lane("a"))
        first = self.take()
        assert self.tube.take(timeout=0) is None
        self.tube.cancel(first)
        assert self.take().id != first.id

    def test_cancel_makes_room(self) -> None:
        self.tube.alter(capacity=1)
        task = self.put()
        self.tube.cancel(task)
        self.put()

    def test_bad_reasons_are_refused(self) -> None:
        task = self.put()
        assert self.refuses(lambda value: self.tube.cancel(task, value), 7, b"bytes", ["list"])

    def test_kick_puts_a_cancelled_task_again(self) -> None:
        task = self.put("a long job", keep_done=10)
        self.tube.cancel(task, "not needed")
        new = self.tube.kick(task=task)
        assert (new.data, new.reason, new.cancelled, str(new.state)) == ("a long job", None, False, "ready")

    def test_kick_of_a_task_that_was_cancelled_while_taken_keeps_its_keep_done(self) -> None:
        cancels: list[Callable[[int], object]] = [self.tube.cancel, lambda _: self.tube.select("taken").cancel()]
        for cancel in cancels:
            for keep_done in (0, 10, 100):
                task = self.put_and_take(keep_done=keep_done)
                cancel(task.id)
                self.tube.alter(keep_done=30)  # For other tasks.
                assert self.tube.kick(task=task.id).keep_done == (keep_done or None)
                self.tube.truncate()


class Losses(Bench):
    """The messages to a session that loses a task: `Port.on_loss`."""

    def watch(self, tube: Tube) -> list[Loss]:
        """Return a list that receives the losses of the tube's session from now on."""
        losses, calls = list[Loss](), list[Loss | None]()

        def callback(loss: Loss | None) -> None:
            calls.append(loss)
            if loss is not None:  # None: messages may be missing.
                losses.append(loss)

        tube._port.on_loss(callback)
        assert eventually(lambda: calls[:1] == [None])
        return losses

    def end_of(self, losses: list[Loss]) -> list[Loss]:
        """Lose another task, and return the losses before that one."""
        task = self.put()
        mine = self.tube.take(timeout=0)
        while mine.id != task.id:
            mine = self.tube.take(timeout=0)
        last = Loss(task.id, mine._take, "cancel", "the last one")
        self.add_worker().tube.cancel(task.id, "the last one")
        assert eventually(lambda: last in losses)
        assert losses[-1] == last
        return losses[:-1]

    @pytest.mark.parametrize("way", LOSING)
    def test_loss_is_reported_at_once(self, way: str) -> None:
        event, lose = LOSING[way]
        losses, other = self.watch(self.tube), self.add_worker()
        task = self.put_and_take(key="k")
        lose(other, task)
        assert self.end_of(losses) == [Loss(task.id, task._take, event, "not needed" if event == "cancel" else None)]

    @pytest.mark.parametrize("way", OWN)
    def test_own_calls_are_not_reported_as_losses(self, way: str) -> None:
        losses = self.watch(self.tube)
        OWN[way](self.tube, self.put_and_take())
        assert self.end_of(losses) == []

    def test_cancel_by_the_same_session_is_reported(self) -> None:
        losses = self.watch(self.tube)
        task = self.put_and_take()
        self.tube.cancel(task.id)
        assert self.end_of(losses) == [Loss(task.id, task._take, "cancel")]

    def test_each_loss_is_reported_once(self) -> None:
        losses, other = self.watch(self.tube), self.add_worker()
        first = self.put_and_take()
        other.tube.admin.release_all()
        again = self.take()
        assert again.id == first.id
        other.tube.bury(again.id)
        other.tube.cancel(again.id)
        assert self.end_of(losses) == [
            Loss(first.id, first._take, "release"),
            Loss(again.id, again._take, "bury"),
        ]

    def test_losses_of_other_tubes_are_not_reported(self) -> None:
        losses = self.watch(self.tube)
        elsewhere = self.create("elsewhere")
        task = self.put(tube=elsewhere)
        self.take(elsewhere)
        elsewhere.cancel(task.id)
        assert self.end_of(losses) == []

    @pytest.mark.parametrize("reason", ["a b  c ", "\ud800 \0 ü", "x" * 1000])
    def test_reason_arrives_unchanged(self, reason: str) -> None:
        losses = self.watch(self.tube)
        task = self.put_and_take()
        self.add_worker().tube.cancel(task.id, reason)
        assert self.tube.peek(task.id).reason == reason
        assert self.end_of(losses) == [Loss(task.id, task._take, "cancel", reason)]

    @pytest.mark.parametrize("method", ["truncate", "drop"])
    def test_holder_of_a_tube_without_tasks_looks_at_them(self, method: str) -> None:
        calls, other = list[Loss | None](), self.add_worker()
        self.tube._port.on_loss(calls.append)
        assert eventually(lambda: calls == [None])
        self.put_and_take()
        if method == "drop":
            other.tube.drop(force=True)
        else:
            other.tube.truncate()
        assert eventually(lambda: len(calls) > 1)
        assert {*calls} == {None}

    def test_callback_ends_with_none(self) -> None:
        losses, other = self.watch(self.tube), self.add_worker()
        others = self.watch(other.tube)
        self.tube._port.on_loss(None)
        self.tube.cancel(self.put_and_take().id)
        task = self.put()
        assert self.take(other.tube).id == task.id
        self.tube.cancel(task.id)
        assert eventually(lambda: task.id in [loss.id for loss in others])
        assert losses == []
