"""Checkpoints: facts that a holder stores in its task, for the next attempt and for others to see."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, eventually, lacks, needs
from tubes import CodecError, InvalidOption, TaskNotTaken
from tubes.errors import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes import Task

SAVED = {"page": 7, "seen": ["a", None, 1.5, True], "näme": {"": "\ud800 \U0001f600"}}


def facts_of(task: Task) -> tuple[object, float | None, str | None]:
    """Return the facts of the checkpoints of a task."""
    return task.saved, task.progress, task.note


class Checkpoints(Bench):
    """checkpoint."""

    def test_checkpoint_is_seen_by_all_and_by_its_holder(self) -> None:
        task = self.put_and_take(data="film", context={"trace": "1"})
        assert facts_of(task) == (None, None, None)
        updated = task.checkpoint(SAVED, progress=0.25, note="äh\ud800")
        expected = (SAVED, 0.25, "äh\ud800")
        listed = [*self.tube.select("taken")]
        for seen in (updated, self.tube.peek(task), self.add_worker().tube.peek(task.id), *listed):
            assert facts_of(seen) == expected
            assert (seen.state, seen.data, seen.context, seen.attempts) == ("taken", "film", {"trace": "1"}, 1)
        assert facts_of(task) == (None, None, None)
        assert facts_of(self.tube.ack(updated)) == expected

    def test_omitted_values_stay(self) -> None:
        task = self.put_and_take()
        task.checkpoint([1], progress=0.5, note="first")
        assert facts_of(task.checkpoint()) == ([1], 0.5, "first")
        assert facts_of(task.checkpoint(progress=1)) == ([1], 1.0, "first")
        assert facts_of(task.checkpoint(note="")) == ([1], 1.0, "")
        assert facts_of(task.checkpoint(False)) == (False, 1.0, "")

    @pytest.mark.parametrize("saved", [0, "", [], {}, "ü" * 32_767, [[[["\udfff"]]]] * 50, 2**80, -0.5, "a\0b"])
    def test_saved_may_be_any_json_value(self, saved: object) -> None:
        task = self.put_and_take()
        assert task.checkpoint(saved).saved == saved
        assert self.tube.peek(task).saved == saved

    def test_facts_survive_all_changes_of_the_task(self) -> None:
        self.put(max_attempts=4)
        self.take().checkpoint(SAVED, progress=0.25, note="n").release()
        expected = (SAVED, 0.25, "n")
        task = self.take()
        assert facts_of(task) == expected
        assert facts_of(self.tube.bury(task, "why")) == expected
        assert facts_of(self.tube.kick(task=task.id)) == expected
        assert facts_of(self.tube.update(task.id, data="other")) == expected
        other = self.add_worker()
        assert facts_of(self.take(other.tube)) == expected
        other.queue.close()
        again = self.take()
        assert (facts_of(again), again.data, again.max_attempts) == (expected, "other", 4)

    @needs("ttr")
    def test_facts_survive_the_end_of_the_ttr(self) -> None:
        task = self.put_and_take(ttr=5)
        task.checkpoint(SAVED, note="n")
        self.clock.advance(5)
        assert facts_of(self.take()) == (SAVED, None, "n")

    def test_facts_survive_a_move_to_another_tube(self) -> None:
        task = self.put_and_take(context={"trace": "1"}).checkpoint(SAVED, progress=0.5, note="n")
        self.tube.bury(task)
        with self.queue.namespace("elsewhere") as queue:
            other = queue.create_tube("other", self.driver, **self.options)
            self.tube.select("buried").move_to(other)
            (moved,) = other.select()
            assert (facts_of(moved), moved.context) == ((SAVED, 0.5, "n"), {"trace": "1"})

    def test_a_kept_done_task_has_the_facts_and_starts_again_without_them(self) -> None:
        task = self.put_and_take(keep_done=60, context={"trace": "1"}).checkpoint(SAVED, progress=1, note="n")
        self.tube.ack(task)
        done = self.tube.peek(task.id)
        assert (done.state, facts_of(done)) == ("done", (SAVED, 1, "n"))
        again = self.tube.kick(task=done)
        assert (facts_of(again), again.context) == ((None, None, None), {"trace": "1"})
        self.tube.delete(again)
        plain = self.put_and_take(keep_done=60).checkpoint(1).ack()
        assert self.tube.kick(task=plain).saved is None

    def test_a_lease_allows_other_sessions_to_checkpoint(self) -> None:
        task, other = self.put_and_take(data="film"), self.add_worker()
        updated = other.tube._checkpoint(str(task.lease), SAVED, 0.5, "n")
        assert (facts_of(updated), updated.data) == ((SAVED, 0.5, "n"), "film")
        assert self.tube._checkpoint(task.id, 1).saved == 1
        assert self.tube.ack(task).state == "done"

    def test_only_the_holder_can_checkpoint(self) -> None:
        task, other = self.put_and_take(), self.add_worker()
        ready = self.put("ready")
        calls: list[Callable[[], object]] = [
            lambda: other.tube._checkpoint(task.id, 1),
            lambda: other.tube.peek(task).checkpoint(1),
            lambda: ready.checkpoint(1),
            lambda: self.tube._checkpoint(99, 1),
        ]
        for call in calls:
            with self.expect_error(TaskNotTaken):
                call()
        lease = task.lease
        self.tube.release(task)
        again = self.take()
        with self.expect_error(TaskNotTaken):
            task.checkpoint(2)
        with self.expect_error(TaskNotTaken):
            other.tube._checkpoint(lease, 2)
        again.checkpoint(3)
        again.ack()
        with self.expect_error(TaskNotTaken):
            again.checkpoint(4)

    @pytest.mark.parametrize(
        "bad",
        [
            *({"progress": value} for value in (-0.1, 1.1, "1", True, math.nan)),
            *({"note": value} for value in (1, b"n", "x" * 1001)),
            *({"saved": value} for value in ("x" * 65_535, "ü" * 32_768)),
        ],
        ids=lambda bad: f"{str(bad)[:24]}",
    )
    def test_bad_values_are_refused(self, bad: Facts) -> None:
        task = self.put_and_take()
        (option,) = bad
        with self.expect_error(InvalidOption, match=f"^{option}="):
            arguments: Facts = {"saved": 1, "note": "n", **bad}
            task.checkpoint(**arguments)

    @pytest.mark.parametrize("bad", [{1, 2}, b"x", math.nan, object(), [math.inf], {(1,): 1}])
    def test_saved_that_is_not_json_is_refused(self, bad: object) -> None:
        task = self.put_and_take()
        with self.expect_error(CodecError, match="^codec 'json' cannot encode"):
            task.checkpoint(bad, note="n")

    def test_listeners_see_a_touch_with_the_facts(self) -> None:
        task = self.put_and_take()
        seen: list[tuple[str, object]] = []

        def callback(changed: Task, event: str) -> None:
            seen.append((event, facts_of(changed)))

        self.tube.on_task_change(callback)
        task.checkpoint(SAVED, progress=0.5, note="n")
        task.checkpoint()
        assert eventually(lambda: len(seen) == 2)
        assert seen == [("touch", (SAVED, 0.5, "n"))] * 2
        assert self.count("touch") == 2

    @needs("ttr")
    def test_checkpoint_renews_the_take_and_keeps_the_ttr(self) -> None:
        task = self.put_and_take(ttr=5)
        for moment in (4, 8, 12):
            self.clock.advance(4)
            updated = task.checkpoint()
            assert (updated.ttr, updated.due) == (5, moment + 5)
        assert self.changes_state(task, "taken", "ready", after=5)
        assert self.take().due == 22

    @needs("ttr")
    def test_checkpoint_never_shortens_the_time_left(self) -> None:
        task = self.put_and_take(ttr=5)
        self.tube.touch(task, ttr=60)
        assert task.checkpoint(1).due == 60
        assert self.tube.peek(task).due == 60

    @needs("ttl", "ttr")
    @lacks("ttl_spares_taken")
    def test_checkpoint_extends_a_ttl_that_would_end_the_taken_task(self) -> None:
        updated = task = self.put_and_take(ttl=5, ttr=3)
        for _ in range(4):
            self.clock.advance(2)
            updated = task.checkpoint(1)
        assert (updated.expires, updated.due) == (11, 11)
        self.tube.release(task)
        assert self.changes_state(task, "ready", "done", after=3)

    @needs("ttl", "ttr")
    @lacks("ttl_spares_taken")
    def test_checkpoint_never_shortens_a_ttl(self) -> None:
        updated = self.put_and_take(ttl=60, ttr=3).checkpoint(1)
        assert (updated.due, updated.expires) == (3, 60)

    @needs("ttl", "ttr", "ttl_spares_taken")
    def test_checkpoint_leaves_a_ttl_that_spares_the_taken_task(self) -> None:
        updated = task = self.put_and_take(ttl=5, ttr=3)
        for _ in range(4):
            self.clock.advance(2)
            updated = task.checkpoint(1)
        assert (updated.expires, updated.due) == (5, 11)

    @needs("ttl")
    def test_checkpoint_of_a_task_without_ttr_changes_no_time(self) -> None:
        task = self.put_and_take(ttl=5)
        self.clock.advance(2)
        updated = task.checkpoint(1)
        assert (updated.ttr, updated.expires, updated.due) == (None, 5, task.due)

    def test_a_worker_may_be_called_after_a_checkpoint(self) -> None:
        task = self.put_and_take()

        def stop() -> None:
            raise InterruptedError

        connection = task._tube._port.connection
        connection.on_checkpoint = stop
        try:
            with pytest.raises(InterruptedError):
                task.checkpoint(1)
        finally:
            connection.on_checkpoint = None
        assert self.tube.peek(task).saved == 1
