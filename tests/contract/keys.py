"""Unique keys: at most one live task per key, and optionally no new one for `key_ttl` after it ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, needs
from tubes import DuplicateKey, Item, Task, TaskNotFound, TaskNotTaken, TubeFull

if TYPE_CHECKING:
    from collections.abc import Callable

#: The ways in which a task ends.
ENDS: dict[str, Callable[[Bench, Task], object]] = {
    "ack": lambda bench, task: bench.tube.ack(bench.take()),
    "delete": lambda bench, task: bench.tube.delete(task),
    "cancel": lambda bench, task: bench.tube.cancel(task),
}


class UniqueKeys(Bench):
    """Keys."""

    def test_second_put_of_a_key_returns_the_existing_task(self) -> None:
        first = self.put("first", key="k")
        assert (first.key, first.created_now) == ("k", True)
        with self.expect_no_change():
            second = self.tube.put("second", key="k")
            assert (second.id, second.data, second.state, second.created_now) == (first.id, "first", "ready", False)
        assert self.put(key="other").created_now
        assert self.put().created_now

    def test_taken_or_buried_task_keeps_its_key(self) -> None:
        task = self.put(key="k")
        self.take()
        assert self.put(key="k").state == "taken"
        self.tube.bury(task)
        assert self.put(key="k").state == "buried"
        assert self.count("total") == 1

    @pytest.mark.parametrize("method", ["put", "put_many", "waiting put", "put at once"])
    @pytest.mark.parametrize("on_duplicate", ["keep", "update"])
    def test_first_put_that_finds_a_buried_task_is_logged(
        self, method: str, on_duplicate: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        task = self.put(key="k")
        options = {"key": "k", "on_duplicate": on_duplicate, **self.lane("x")}
        assert not self.put(**options).created_now
        self.take()
        self.tube.bury(task)
        assert not caplog.records
        for _ in range(2):
            if method == "put_many":
                (found,) = self.tube.put_many(["new"], **options)
            else:
                timeout = {"waiting put": {"timeout": 9}, "put at once": {"timeout": 0}}.get(method, {})
                found = self.tube.put("new", **options, **timeout)
            assert (found.id, found.state, found.created_now) == (task.id, "buried", False)
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert f"found the buried task {task.id}" in record.getMessage()
        assert self.tube.take(timeout=0) is None

    @needs("delay")
    def test_delayed_task_keeps_its_key(self) -> None:
        self.put(key="k", delay=5)
        assert self.put(key="k").state == "delayed"

    @pytest.mark.parametrize("way", ENDS)
    def test_a_key_is_free_when_its_task_is_gone(self, way: str) -> None:
        task = self.put(key="k")
        ENDS[way](self, task)
        again = self.put(key="k")
        assert again.created_now
        assert again.id > task.id

    @needs("ttl")
    def test_key_is_free_when_its_task_has_expired(self) -> None:
        self.put(key="k", ttl=5)
        self.clock.advance(5)
        assert self.put(key="k").created_now

    def test_on_duplicate_raise_raises_duplicate_key(self) -> None:
        task = self.put(key="k")
        with self.expect_error(DuplicateKey):
            self.tube.put(0, key="k", on_duplicate="raise", **self.lane("x"))
        with pytest.raises(DuplicateKey, match=f"task {task.id}"):
            self.tube.put(0, key="k", on_duplicate="raise")

    def test_on_duplicate_replace_replaces_the_existing_task(self) -> None:
        first = self.put("first", key="k")
        events = self.listen()
        second = self.put("second", key="k", on_duplicate="replace")
        assert (second.data, second.created_now, self.state(first)) == ("second", True, "done")
        assert self.has_received(events, [("delete", first.id, "done"), ("put", second.id, "ready")])
        assert [task.data for task in (self.take(),)] == ["second"]
        assert self.put(key="k").id == second.id

    @pytest.mark.parametrize("method", ["put", "put_many"])
    def test_on_duplicate_update_changes_only_the_data(self, method: str) -> None:
        options: dict[str, object] = {"key": "k", "on_duplicate": "update"}
        taken = self.put("old", key="k", max_attempts=3, context={"a": "b"}, **self.lane("x"))
        self.take()
        self.put(key="other", **self.lane("y"))
        events = self.listen()
        before = self.tube.peek(taken)
        for number, state in enumerate(("taken", "ready", "buried")):
            if state == "ready":
                self.tube.release(taken)
            elif state == "buried":
                self.tube.bury(taken.id, "why")
            data = [number] if number else None
            found = getattr(self.tube, method)(
                *([data] if method == "put" else [[data]]), max_attempts=9, context={}, **options, **self.lane("z")
            )
            task = found if method == "put" else found[0]
            assert (task.id, task.data, task.state, task.created_now) == (taken.id, data, state, False)
            seen = self.tube.peek(taken.id)
            assert (seen.data, seen.state, seen.attempts) == (data, state, 1)
            for name in ("utube", "pri", "ttl", "ttr", "created", "max_attempts", "context", "key"):
                assert getattr(seen, name) == getattr(before, name)
        assert self.tube.peek(taken.id).reason == "why"
        names = ["taken", "release", "ready", "bury", "buried"]
        assert self.has_received(
            events, [("update" if name in ("taken", "ready", "buried") else name, taken.id, state)
                     for name, state in zip(names, ("taken", "ready", "ready", "buried", "buried"), strict=True)]
        )  # fmt: skip
        assert (self.count("put"), self.count("total")) == (2, 2)

    def test_holder_keeps_its_data_after_an_update_by_key(self) -> None:
        self.put("old", key="k")
        held = self.take()
        self.put("new", key="k", on_duplicate="update")
        assert held.data == "old"
        assert self.tube.release(held).data == "old"
        again = self.take()
        assert (again.data, again.attempts) == ("new", 2)
        assert self.tube.ack(again).state == "done"

    @needs("delay")
    def test_update_by_key_leaves_the_times_and_the_place(self) -> None:
        self.put("old", key="k", delay=5)
        self.clock.advance(1)
        task = self.put("new", key="k", delay=50, on_duplicate="update")
        assert (task.state, task.data, task.due, task.created) == ("delayed", "new", 5, 0)
        assert self.changes_state(task, "delayed", "ready", after=4)

    def test_update_by_key_keeps_the_order(self) -> None:
        tasks = [self.put(number, key=str(number)) for number in range(3)]
        for number in range(3):
            self.put(number + 10, key=str(number), on_duplicate="update")
        assert self.drain() == [task.id for task in self.sort_as_taken(tasks)]

    def test_update_by_key_of_a_free_key_puts_and_of_a_remembered_key_keeps(self) -> None:
        task = self.put("first", key="k", key_ttl=9, on_duplicate="update")
        assert task.created_now
        self.tube.ack(self.take())
        again = self.put("second", key="k", on_duplicate="update")
        assert (again.id, again.state, again.created_now, again.data) == (task.id, "done", False, "second")
        first, second = self.tube.put_many([Item(1, key="b"), Item(2, key="b")], on_duplicate="update")
        assert (first.data, second.data, second.id, second.created_now) == (1, 2, first.id, False)
        assert self.take().data == 2

    def test_update_by_key_needs_no_room(self) -> None:
        self.tube = self.create("full", capacity=1)
        task = self.put(key="k")
        assert self.put("new", key="k", on_duplicate="update").id == task.id
        assert self.tube.put_many(["newer"], key="k", on_duplicate="update")[0].data == "newer"
        with self.expect_error(TubeFull):
            self.tube.put(0, key="other", on_duplicate="update")

    def test_a_taken_task_may_be_replaced(self) -> None:
        first = self.put_and_take(key="k")
        second = self.put(key="k", on_duplicate="replace")
        assert (self.state(first), self.state(second)) == ("done", "ready")

    def test_a_key_may_be_remembered_after_its_task_is_gone(self) -> None:
        task = self.put("seen", key="k", key_ttl=10)
        self.tube.ack(self.take())
        self.clock.advance(9.9)
        again = self.put("again", key="k")
        assert (again.id, again.state, again.created_now, again.data) == (task.id, "done", False, "again")
        with self.expect_error(DuplicateKey):
            self.tube.put(0, key="k", on_duplicate="raise")
        assert self.count("total") == 0
        self.clock.advance(0.1)
        assert self.put(key="k").created_now

    @needs("ttl")
    def test_key_ttl_counts_from_the_expiry_of_the_task(self) -> None:
        for looks in (False, True):
            task = self.put(key="k", ttl=1, key_ttl=5)
            self.pass_time(1)
            if looks:
                assert self.state(task) == "done"
            self.pass_time(4.999)
            assert not self.put(key="k").created_now
            self.pass_time(0.001)
            task = self.put(key="k")
            assert task.created_now
            self.tube.delete(task)

    @needs("ttl", "ttl_spares_taken")
    def test_key_ttl_counts_from_the_return_of_an_expired_task(self) -> None:
        for way in ("release", "bury"):
            self.put(key="k", ttl=1, key_ttl=5)
            self.pass_time(0.5)
            task = self.take()
            self.pass_time(9.5)
            getattr(self.tube, way)(task)
            self.pass_time(4.999)
            assert not self.put(key="k").created_now
            self.pass_time(0.001)
            again = self.put(key="k")
            assert again.created_now
            self.tube.delete(again)

    def test_remembered_key_without_task_cannot_be_acked_or_peeked(self) -> None:
        self.put(key="k", key_ttl=10)
        self.tube.ack(self.take())
        again = self.put(key="k")
        tube = self.tube
        assert self.refuses(lambda method: method(again), tube.ack, tube.release, error=TaskNotTaken)
        methods = (tube.bury, tube.delete, tube.peek)
        assert self.refuses(lambda method: method(again), *methods, error=TaskNotFound)
        assert self.refuses(lambda task: tube.kick(task=task), again, error=TaskNotFound)
        assert self.tube.ack_many([again]) == {again.id: False}

    def test_task_found_by_its_key_belongs_only_to_its_holder(self) -> None:
        mine = self.put_and_take(key="k")
        found = self.put(key="k")
        assert self.add_worker().tube.put(0, key="k").state == "taken"
        with self.expect_error(TaskNotTaken):
            self.add_worker().tube.ack(mine.id)
        assert self.tube.ack(found).state == "done"
        with self.expect_error(TaskNotTaken):
            self.tube.ack(mine)

    def test_tube_key_ttl_is_the_default_for_its_tasks(self) -> None:
        self.tube = self.create("seen", key_ttl=5)
        for key, options in (("own", {"key_ttl": 0}), ("tubes", {})):
            self.put(key=key, **options)
            self.tube.ack(self.take())
        assert self.put(key="own").created_now
        assert not self.put(key="tubes").created_now

    def test_replace_creates_a_task_when_the_key_is_only_remembered(self) -> None:
        self.put(key="k", key_ttl=10)
        self.tube.ack(self.take())
        assert self.put("new", key="k", key_ttl=0, on_duplicate="replace").created_now
        assert self.tube.ack(self.take()).data == "new"
        assert self.put(key="k").created_now

    def test_key_of_a_replaced_task_is_not_remembered(self) -> None:
        self.put(key="k", key_ttl=10)
        self.put(key="k", key_ttl=0, on_duplicate="replace")
        self.tube.ack(self.take())
        assert self.put(key="k").created_now

    def test_truncate_forgets_keys(self) -> None:
        self.put(key="k", key_ttl=10)
        self.put(key="gone", key_ttl=10)
        self.tube.ack(self.take())
        self.tube.truncate()
        assert all(self.put(key=key).created_now for key in ("k", "gone"))

    def test_forgotten_key_is_free(self) -> None:
        self.put(key="k", key_ttl=10)
        self.put(key="other", key_ttl=10)
        for _ in range(2):
            self.tube.ack(self.take())
        assert (self.tube.admin.forget_key("k"), self.tube.admin.forget_key("k")) == (True, False)
        assert self.put(key="k").created_now
        assert not self.put(key="other").created_now

    def test_forget_leaves_the_key_of_a_task_alone(self) -> None:
        task = self.put(key="k", key_ttl=10)
        assert not self.tube.admin.forget_key("k")
        assert self.put(key="k").id == task.id
        self.tube.ack(self.take())
        assert not self.put(key="k").created_now

    def test_forget_of_an_unknown_or_expired_key_returns_false(self) -> None:
        assert not self.tube.admin.forget_key("k")
        self.put(key="k", key_ttl=10)
        self.tube.ack(self.take())
        self.clock.advance(10)
        assert not self.tube.admin.forget_key("k")
        assert self.refuses(self.tube.admin.forget_key, "", 5, b"k", None)

    def test_put_of_an_existing_key_succeeds_in_a_full_tube(self) -> None:
        self.tube = self.create("full", capacity=1)
        task = self.put(key="k")
        assert self.put(key="k").id == task.id
        with self.expect_error(TubeFull):
            self.tube.put(0, key="other")
        replaced = self.put(key="k", on_duplicate="replace")
        assert (replaced.created_now, self.state(task)) == (True, "done")

    def test_concurrent_puts_of_one_key_create_one_task(self) -> None:
        def put(number: int) -> Task:
            task: Task = self.tube.put(number, key="k")
            return task

        with ThreadPoolExecutor(8) as pool:
            tasks = list(pool.map(put, range(40)))
        assert len(tasks) == 40
        assert sum(task.created_now for task in tasks) == 1
        assert len({task.id for task in tasks}) == 1

    def test_key_that_is_not_a_string_is_refused(self) -> None:
        assert self.refuses(lambda value: self.tube.put(0, key=value), "", 5, b"k", True)
        assert self.refuses(lambda value: self.tube.put(0, key="k", on_duplicate=value), "ignore", "", 1)

    def test_a_key_may_have_any_characters_and_be_long(self) -> None:
        for key in ("https://example.com/ü?a=b c\n", "x" * 5000, "\ud800", "\0", "a\0b", "7 8"):
            assert self.put(key=key).key == key
            assert not self.put(key=key).created_now
