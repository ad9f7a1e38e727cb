"""The effect and the return value of each method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import State, Task, TaskNotFound, TaskNotTaken

#: A function that makes a task in some state.
Make: TypeAlias = Callable[[Bench], Task]
STATES: dict[str, Make] = {
    "ready": lambda bench: bench.put(),
    "taken": lambda bench: bench.put_and_take(),
    "buried": lambda bench: bench.put_and_bury(),
    "delayed": lambda bench: bench.put(delay=9),
}
in_any_state = pytest.mark.parametrize("state", STATES)


class Methods(Bench):
    """The methods, one by one."""

    def make(self, state: str) -> Task:
        """Make a task in this state."""
        self.require("delay" if state == "delayed" else "")
        return STATES[state](self)

    def test_data_comes_back_as_it_was_put(self) -> None:
        for data in (None, 0, "text", [1, "two"], {"deep": {"er": [True, 0.5]}}):
            assert self.put(data).data == data
            assert self.take().data == data

    def test_a_new_task_is_ready(self) -> None:
        task = self.put("data")
        assert (task.state, task.tube, task.attempts) == ("ready", "contract", 0)
        assert self.tube.peek(task) == task

    @in_any_state
    def test_state_equals_its_word_and_its_letter(self, state: str) -> None:
        task = self.make(state)
        found = self.tube.peek(task).state
        assert (found == state, found != state, f"{found}", {found}) == (True, False, state, {state})
        letter = found.letter
        assert (found == letter, found != letter, State(letter), State(state)) == (True, False, found, found)
        assert [other for other in State if found == other.letter or found == str(other)] == [found]
        assert f"state={state!r}" in repr(self.tube.peek(task))

    def test_task_repr_shows_only_the_beginning_of_its_data(self) -> None:
        for data in ("secret" * 1000, ["secret"] * 1000, {"deep": "secret" * 1000}):
            text = repr(self.put(data))
            assert "secret" in text
            assert "..." in text
            assert len(text) < 200
        assert "data='short'" in repr(self.put("short"))

    def test_taken_task_cannot_be_taken_by_any_session(self) -> None:
        put = self.put()
        task = self.take()
        assert (task.id, task.state) == (put.id, "taken")
        assert self.tube.take(timeout=0) is None
        assert self.add_worker().tube.take(timeout=0) is None

    def test_an_empty_tube_has_nothing_to_take(self) -> None:
        assert self.tube.take(timeout=0) is None

    def test_an_acked_task_is_gone(self) -> None:
        task = self.put_and_take()
        assert self.tube.ack(task).state == "done"
        assert self.state(task) == "done"
        with self.expect_error(TaskNotTaken):
            self.tube.ack(task.id)

    def test_a_released_task_can_be_taken_again(self) -> None:
        task = self.put_and_take()
        assert self.tube.release(task).state == "ready"
        assert self.take().id == task.id

    def test_task_counts_its_attempts(self) -> None:
        self.put()
        assert [self.tube.release(self.take()).attempts for _ in range(5)] == [1, 2, 3, 4, 5]

    @in_any_state
    def test_any_session_may_bury_a_task_in_any_state(self, state: str) -> None:
        task = self.make(state)
        assert self.add_worker().tube.bury(task.id).state == "buried"
        assert self.state(task) == "buried"
        assert self.tube.take(timeout=0) is None

    def test_burying_a_buried_task_changes_nothing(self) -> None:
        task = self.put_and_bury()
        with self.expect_no_change():
            assert self.tube.bury(task).state == "buried"

    @in_any_state
    def test_any_session_may_delete_a_task_in_any_state(self, state: str) -> None:
        task = self.make(state)
        assert self.add_worker().tube.delete(task.id).state == "done"
        assert self.state(task) == "done"
        assert (self.tube.select("buried", limit=9).kick(), self.tube.take(timeout=0)) == (0, None)

    @in_any_state
    def test_any_session_may_peek_a_task_without_changing_it(self, state: str) -> None:
        task = self.make(state)
        with self.expect_no_change():
            seen = self.add_worker().tube.peek(task.id)
            assert (seen.id, seen.state.name.lower()) == (task.id, state)

    def test_a_kicked_task_is_ready(self) -> None:
        task = self.put_and_bury()
        assert self.tube.select("buried", limit=1).kick() == 1
        assert self.state(task) == "ready"
        assert self.take().id == task.id

    def test_kick_returns_the_number_of_kicked_tasks(self) -> None:
        for _ in range(4):
            self.put_and_bury()
        assert [
            self.tube.select("buried", limit=0).kick(),
            self.tube.select("buried", limit=3).kick(),
            self.tube.select("buried", limit=3).kick(),
            self.tube.select("buried", limit=1).kick(),
        ] == [0, 3, 1, 0]

    def test_kick_leaves_tasks_that_are_not_buried(self) -> None:
        tasks = [self.put_and_take(), self.put()]
        assert self.tube.select("buried", limit=9).kick() == 0
        assert [self.state(task) for task in tasks] == ["taken", "ready"]

    @pytest.mark.parametrize("method", ["bury", "delete", "peek"])
    def test_missing_task_is_not_found(self, method: str) -> None:
        done_task = self.tube.ack(self.put_and_take())
        assert self.refuses(getattr(self.tube, method), done_task.id, done_task.id + 1000, error=TaskNotFound)

    def test_ids_grow_and_are_never_reused(self) -> None:
        first, second = self.put().id, self.put().id
        self.tube.delete(second)
        third = self.put().id
        self.tube.truncate()
        assert first < second < third < self.put().id

    def test_truncate_removes_all_tasks(self) -> None:
        tasks = [self.put_and_take(), self.put_and_bury(), self.put()]
        self.tube.truncate()
        assert [self.state(task) for task in tasks] == ["done"] * 3
        assert (self.count("total"), self.tube.select("buried", limit=9).kick(), self.tube.take(timeout=0)) == (
            0,
            0,
            None,
        )

    def test_truncate_leaves_no_owner_behind(self) -> None:
        task = self.put_and_take()
        self.tube.truncate()
        with self.expect_error(TaskNotTaken):
            self.tube.ack(task)
        self.tube.admin.release_all()
        self.tube.drop()

    def test_release_all_releases_the_tasks_of_all_sessions(self) -> None:
        mine, other = self.put_and_take(), self.add_worker()
        self.put()
        theirs = self.take(other.tube)
        self.add_worker().tube.admin.release_all()
        assert [self.state(task) for task in (mine, theirs)] == ["ready", "ready"]
        with self.expect_error(TaskNotTaken):
            self.tube.ack(mine)
        with self.expect_error(TaskNotTaken):
            other.tube.ack(theirs)

    def test_release_all_reaches_every_open_session(self) -> None:
        for _ in range(3):
            self.add_worker().queue.close()
        task, late = self.put_and_take(), self.add_worker()
        self.add_worker().queue.close()
        self.put()
        self.take(late.tube)
        self.tube.admin.release_all()
        assert (self.state(task), self.count("taken"), self.count("ready")) == ("ready", 0, 2)

    @pytest.mark.parametrize("method", ["ack", "release", "bury", "delete", "peek"])
    def test_bad_task_ids_are_refused(self, method: str) -> None:
        self.put_and_take()
        assert self.refuses(lambda task: getattr(self.tube, method)(task), "0", -1, 0.5, None, True)

    def test_kick_refuses_bad_counts(self) -> None:
        self.put_and_bury()
        assert self.refuses(self.tube.kick, -1, 0.5, "1", None, True)

    @needs("delay")
    def test_a_kicked_task_has_forgotten_its_delay(self) -> None:
        task = self.tube.bury(self.put(delay=9))
        self.tube.select("buried", limit=1).kick()
        assert self.take().id == task.id

    def test_take_of_a_task_takes_it_out_of_order(self) -> None:
        tasks = self.puts(4)
        chosen = tasks[2]
        task = self.tube.peek(chosen).take()
        assert (task.id, task.state, task.attempts) == (chosen.id, "taken", 1)
        left = sorted(task.id for task in tasks if task.id != chosen.id)
        assert sorted(self.drain()) == left
        assert self.tube.ack(task).state == "done"

    def test_take_task_returns_nothing_for_a_task_that_is_not_takeable(self) -> None:
        mine, buried = self.put_and_take(), self.put_and_bury()
        ready = self.put()
        assert mine.take() is None
        assert buried.take() is None
        self.tube.pause(5)
        assert ready.take() is None
        self.tube.pause(0)
        assert self.tube.peek(ready).take().id == ready.id
        self.tube.delete(buried)
        assert self.refuses(lambda task: task.take(), buried, error=TaskNotFound)

    def test_delete_with_state_removes_a_task_only_in_that_state(self) -> None:
        task, buried = self.put_and_take(), self.put_and_bury()
        assert self.refuses(
            lambda state: self.tube.delete(task, state=state), "ready", ["buried", "ready"], error=TaskNotFound
        )
        with self.expect_error(TaskNotFound, match=f"^task {task.id} of tube '.*' is not buried or ready$"):
            self.tube.delete(task.id, state=["buried", "ready"])
        assert self.refuses(lambda state: self.tube.delete(task, state=state), "gone", "x", [], ["ready", 7], 7)
        assert self.tube.delete(buried, state=("ready", "buried")).state == "done"
        assert self.tube.delete(task.id, state="taken").state == "done"

    def test_truncate_with_state_removes_only_tasks_in_that_state(self) -> None:
        mine, buried = self.put_and_take(), self.put_and_bury()
        ready = self.puts(3)
        events = self.listen()
        self.tube.select("ready").delete()
        assert [self.state(task) for task in (mine, buried, *ready)] == ["taken", "buried", "done", "done", "done"]
        assert eventually(lambda: sorted(events) == sorted(("delete", task.id, "done") for task in ready))
        self.tube.select("buried").delete()
        self.tube.select(State.TAKEN).delete()
        assert self.count("total") == 0
        assert self.refuses(lambda state: self.tube.select(state).delete(), "gone", "all", ["ready"], 7, "")
