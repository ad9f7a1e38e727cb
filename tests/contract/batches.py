"""Batches: a call with many tasks has the effect of single calls, and `put_many` puts all items or none."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.contract.bench import Bench, eventually, lacks, needs
from tubes import (
    CodecError,
    DuplicateKey,
    InvalidOption,
    Item,
    OptionNotSupported,
    Task,
    TaskNotTaken,
    TubeFull,
    TubesError,
)
from tubes.errors import Facts

#: More tasks than one request to a server carries, and more than one command has arguments.
MANY = 2_500


class Batches(Bench):
    """put_many, take_many, ack_many, release_many, delete_many."""

    def items(self, count: int, **options: Any) -> list[Item]:
        """Return `count` items, each in a separate lane, with numbers as data."""
        return [Item(number, **self.lane(f"own-{number}"), **options) for number in range(count)]

    def put_some(self, count: int, **options: Any) -> list[Task]:
        tasks = self.tube.put_many(self.items(count, **options))
        self._ids += [task.id for task in tasks]
        return list(tasks)

    @contextmanager
    def refuses_item(self, number: int, error: type[TubesError]) -> Generator[None]:
        """Check that the block raises this error about item `number` and changes nothing."""
        with self.expect_no_change(), pytest.raises(error, match=f"^item {number}: ") as caught:
            yield
        assert caught.value.facts["item"] == number

    # -- puts ----------------------------------------------------------------------------------------------------------

    def test_put_many_returns_tasks_in_order(self) -> None:
        tasks = self.put_some(5)
        assert [task.data for task in tasks] == [0, 1, 2, 3, 4]
        assert [task.id for task in tasks] == list(range(tasks[0].id, tasks[0].id + 5))
        assert all(task == self.tube.peek(task.id) for task in tasks)
        assert (self.count("put"), self.count("ready")) == (5, 5)

    def test_put_many_puts_items_like_single_puts(self) -> None:
        together = self.put_some(3)
        alone = [self.put(number, **self.lane(f"own-{number}")) for number in range(3)]
        for one, other in zip(together, alone, strict=True):
            assert (one.data, one.state, one.utube, one.pri, one.ttl, one.ttr, one.due, one.created) == (
                other.data, other.state, other.utube, other.pri, other.ttl, other.ttr, other.due, other.created,
            )  # fmt: skip

    def test_put_many_accepts_any_iterable(self) -> None:
        assert [task.data for task in self.tube.put_many(number for number in range(3))] == [0, 1, 2]
        assert [task.data for task in self.tube.put_many({"a": 1, "b": 2})] == ["a", "b"]
        assert [task.data for task in self.tube.put_many(("a", Item("b")))] == ["a", "b"]

    def test_empty_batch_puts_nothing(self) -> None:
        assert self.tube.put_many([]) == []
        assert self.count("put") == 0

    def test_put_many_refuses_non_collections(self) -> None:
        assert self.refuses(self.tube.put_many, 5, None, "abc", b"abc", Item(1))

    @needs("pri")
    def test_item_options_override_batch_options(self) -> None:
        tasks = self.tube.put_many([1, Item(2, pri=3), Item(3), Item(4, pri=None), 5], pri=7)
        assert [task.pri for task in tasks] == [7, 3, 7, 7, 7]

    @needs("delay")
    def test_batch_items_may_have_their_own_delay(self) -> None:
        tasks = self.tube.put_many([Item(1, **self.lane("a")), Item(2, delay=5, **self.lane("b"))])
        assert [task.state for task in tasks] == ["ready", "delayed"]
        assert self.count("delayed") == 1
        self.clock.advance(5)
        assert sorted(self.drain()) == [task.id for task in tasks]

    @needs("ttl")
    def test_batch_items_may_have_their_own_ttl(self) -> None:
        short, long = self.tube.put_many([Item(1, ttl=2), Item(2)], ttl=9)
        assert (short.expires, long.expires) == (self.clock.now() + 2, self.clock.now() + 9)
        self.clock.advance(2)
        assert (self.state(short), self.state(long)) == ("done", "ready")

    @needs("ttl")
    def test_batch_item_with_ttl_0_serves_no_waiter(self) -> None:
        call = self.begin()
        tasks = self.tube.put_many([Item(1, ttl=0), Item(2)])
        assert self.result_of(call).id == tasks[1].id

    def test_bad_item_is_named_by_position_and_nothing_is_put(self) -> None:
        wrong: list[Facts] = [{"colour": 1}, {"timeout": 1}]
        for options in wrong:
            error = OptionNotSupported if "colour" in options else InvalidOption
            with self.refuses_item(2, error):
                self.tube.put_many([1, 2, Item(3, **options), 4])

    @needs("pri")
    def test_bad_item_option_error_names_the_item(self) -> None:
        with self.refuses_item(1, InvalidOption):
            self.tube.put_many([Item(1, pri=1), Item(2, pri=-1)])

    def test_codec_error_of_a_batch_names_the_item(self) -> None:
        if self.tube._port.codec is None:
            pytest.skip("the tube stores objects without a codec")
        with self.refuses_item(1, CodecError):
            self.tube.put_many([1, object(), 3])

    def test_put_many_returns_the_errors_of_bad_items_if_asked(self) -> None:
        items: Any = [1, Item(2, colour=1), 3, Item(4, delay=0, nosuch=1), 5]  # type: ignore[call-arg]
        found = self.tube.put_many(items, errors="return")
        assert [type(each) for each in found[1::2]] == [OptionNotSupported] * 2
        assert [each.facts["item"] for each in found[1::2]] == [1, 3]
        assert [(task.id, task.data) for task in found[::2]] == [(0, 1), (1, 3), (2, 5)]
        assert [type(each) for each in self.tube.put_many(items[1:2], errors="return")] == [OptionNotSupported]
        with self.expect_error(OptionNotSupported):
            self.tube.put_many(items, errors="raise")
        with self.expect_error(InvalidOption):
            self.tube.put_many([1], errors="ignore")
        assert [task.data for task in self.tube.select()] == [1, 3, 5]

    def test_a_bad_option_of_the_batch_puts_nothing(self) -> None:
        with self.expect_error(OptionNotSupported):
            self.tube.put_many([1, 2], colour=1)
        with self.expect_error(InvalidOption):
            self.tube.put_many([1, 2], timeout=-1)

    def test_failing_iterator_puts_nothing(self) -> None:
        def items() -> object:
            yield 1
            raise ArithmeticError

        with pytest.raises(ArithmeticError):
            self.tube.put_many(items())
        assert self.count("total") == 0

    def test_large_batch_is_put_taken_and_acked(self) -> None:
        tasks = self.put_some(MANY)
        assert len(tasks) == MANY
        found = self.tube.take_many(MANY + 5, timeout=0)
        assert [task.id for task in found] == [task.id for task in self.sort_as_taken(tasks)]
        assert all(self.tube.ack_many(found).values())
        assert (self.count("total"), self.count("put"), self.count("take"), self.count("ack")) == (0, MANY, MANY, MANY)

    def test_batch_put_serves_all_waiting_takes(self) -> None:
        calls = [self.begin() for _ in range(3)]
        tasks = self.sort_as_taken(self.put_some(4))
        assert [self.result_of(call).id for call in calls] == [task.id for task in tasks[:3]]
        assert self.has_waiters(0)

    def test_listeners_get_one_event_per_batch_task(self) -> None:
        events = self.listen()
        ids = [task.id for task in self.put_some(3)]
        order = [task.id for task in self.tube.take_many(3, timeout=0)]
        self.tube.release_many(order[:1])
        self.tube.ack_many(order[1:2])
        self.tube.delete_many(order[2:])
        expected = [("put", id, "ready") for id in ids] + [("take", id, "taken") for id in order]
        expected += [("release", order[0], "ready"), ("delete", order[1], "done"), ("delete", order[2], "done")]
        assert self.has_received(events, expected)

    # -- keys and attempts ---------------------------------------------------------------------------------------------

    def test_batch_keys_behave_like_keys_of_single_puts(self) -> None:
        before = self.put("before", key="a")
        tasks = self.tube.put_many([Item(1, key="a"), Item(2, key="b"), 3, Item(4, key="b")])
        assert [(task.data, task.created_now) for task in tasks] == [
            ("before", False), (2, True), (3, True), (2, False),
        ]  # fmt: skip
        assert (tasks[0].id, tasks[3].id, tasks[0].key) == (before.id, tasks[1].id, "a")
        assert (self.count("put"), self.count("total")) == (3, 3)

    def test_batch_keys_replace_in_item_order(self) -> None:
        before = self.put("before", key="a")
        first, second, kept = self.tube.put_many(
            [Item(1, key="a"), Item(2, key="a"), Item(3, key="a", on_duplicate="keep")], on_duplicate="replace"
        )
        assert (self.state(before), self.state(first), self.state(second)) == ("done", "done", "ready")
        assert (kept.id, kept.created_now) == (second.id, False)
        assert (self.count("put"), self.count("delete"), self.count("total")) == (3, 2, 1)

    def test_duplicate_key_error_names_the_item_and_puts_nothing(self) -> None:
        before = self.put("before", key="a")
        for items in ([1, Item(2, key="b"), Item(3, key="a")], [1, Item(2, key="c"), Item(3, key="c")]):
            with self.refuses_item(2, DuplicateKey):
                self.tube.put_many(items, on_duplicate="raise")
        with pytest.raises(DuplicateKey) as caught:
            self.tube.put_many([Item(1, key="a")], on_duplicate="raise")
        assert (caught.value.facts["id"], caught.value.facts["key"]) == (before.id, "a")

    def test_batch_keys_are_remembered_after_ack(self) -> None:
        (task,) = self.tube.put_many([Item(1, key="a")], key_ttl=9)
        self.tube.ack_many(self.tube.take_many(1, timeout=0))
        (again,) = self.tube.put_many([Item(2, key="a")])
        assert (again.id, again.state, again.created_now) == (task.id, "done", False)
        self.clock.advance(9)
        assert self.tube.put_many([Item(3, key="a")])[0].created_now

    def test_batch_needs_room_only_for_new_tasks(self) -> None:
        self.tube = self.create("full", capacity=3)
        self.put("before", key="a")
        with self.expect_error(TubeFull):
            self.tube.put_many([Item(1, key="a"), Item(2), Item(3), Item(4)])
        tasks = self.tube.put_many([Item(1, key="a"), Item(2, key="b"), Item(3, key="b"), Item(4, key="c")])
        assert [task.created_now for task in tasks] == [False, True, False, True]
        assert self.tube.put_many([Item(5, key="b")])[0].created_now is False
        assert self.tube.put_many([Item(6, key="b")], on_duplicate="replace")[0].created_now
        assert self.count("total") == 3

    def test_batch_tasks_are_buried_after_max_attempts(self) -> None:
        self.tube.put_many(self.items(2), max_attempts=1)
        held = self.tube.take_many(2, timeout=0)
        assert {task.max_attempts for task in held} == {1}
        assert all(self.tube.release_many(held).values())
        assert [task.reason for task in self.tube.select("buried")] == ["max_attempts: release"] * 2

    # -- capacity ------------------------------------------------------------------------------------------------------

    def test_put_many_needs_room_for_the_whole_batch(self) -> None:
        self.tube = self.create("full", capacity=3)
        self.put_some(1)
        with self.expect_no_change():
            with self.expect_error(TubeFull):
                self.tube.put_many([1, 2, 3])
            assert self.tube.put_many([1, 2, 3], timeout=0) == []
        assert len(self.put_some(2)) == 2
        assert self.tube.put_many([1], timeout=0) == []
        assert self.tube.put_many([]) == []

    def test_batch_larger_than_the_capacity_is_refused(self) -> None:
        self.tube = self.create("full", capacity=3)
        with self.expect_error(InvalidOption):
            self.tube.put_many([1, 2, 3, 4])
        with self.expect_error(InvalidOption):
            self.tube.put_many([1, 2, 3, 4], timeout=9)

    def test_batch_waits_until_all_items_fit(self) -> None:
        self.tube = self.create("full", capacity=3)
        ids = [task.id for task in self.put_some(3)]
        call = self.begin(None, "put_many", ["a", "b"], timeout=9)
        self.tube.delete(ids[0])
        assert self.has_waiters(1)
        self.tube.delete(ids[1])
        assert [task.data for task in self.result_of(call)] == ["a", "b"]
        assert (self.count("total"), self.has_waiters(0)) == (3, True)

    def test_put_behind_a_waiting_batch_waits_its_turn(self) -> None:
        self.tube = self.create("full", capacity=2)
        ids = [task.id for task in self.put_some(2)]
        batch = self.begin(None, "put_many", ["a", "b"], timeout=9)
        single = self.begin(None, "put", "c", timeout=9)
        self.tube.delete(ids[0])
        assert self.has_waiters(2)
        self.tube.delete(ids[1])
        assert [task.data for task in self.result_of(batch)] == ["a", "b"]
        assert self.has_waiters(1)
        self.tube.delete(self.result_of(batch)[0].id)
        assert self.result_of(single).data == "c"

    def test_timed_out_batch_puts_nothing_and_unblocks_later_puts(self) -> None:
        self.tube = self.create("full", capacity=2)
        ids = [task.id for task in self.put_some(2)]
        batch = self.begin(None, "put_many", ["a", "b"], timeout=5)
        single = self.begin(None, "put", "c", timeout=9)
        self.tube.delete(ids[0])
        self.clock.advance(5)
        assert self.result_of(batch) == []
        assert self.result_of(single).data == "c"
        assert self.count("total") == 2

    def test_a_batch_with_a_timeout_that_finds_room_does_not_wait(self) -> None:
        self.tube = self.create("full", capacity=2)
        assert [task.data for task in self.tube.put_many(["a", "b"], timeout=9)] == ["a", "b"]

    def test_waiting_batch_of_a_closed_queue_unblocks_later_puts(self) -> None:
        self.tube = self.create("full", capacity=2)
        self.put_some(1)
        worker = self.add_worker()
        self.begin(worker.tube, "put_many", ["a", "b"], timeout=9)
        single = self.begin(None, "put", "c", timeout=9)
        worker.queue.close()
        assert self.result_of(single).data == "c"

    # -- takes ---------------------------------------------------------------------------------------------------------

    def test_take_many_returns_a_kicked_task_once(self) -> None:
        tasks = self.put_some(120)
        for task in (tasks[0], tasks[1], tasks[-1]):
            self.tube.bury(task.id)
        assert self.tube.select("buried", limit=3).kick() == 3
        taken = self.tube.take_many(120, timeout=0)
        assert sorted(task.id for task in taken) == [task.id for task in tasks]
        assert all(self.tube.ack_many(taken).values())
        assert (self.count("take"), self.count("ack"), self.count("total")) == (120, 120, 0)

    def test_take_many_takes_up_to_its_limit(self) -> None:
        tasks = self.sort_as_taken(self.put_some(5))
        first = self.tube.take_many(3, timeout=0)
        assert [task.id for task in first] == [task.id for task in tasks[:3]]
        assert {(task.state, task.attempts) for task in first} == {("taken", 1)}
        assert [task.id for task in self.tube.take_many(9, timeout=0)] == [task.id for task in tasks[3:]]
        assert self.tube.take_many(9, timeout=0) == []
        assert (self.count("taken"), self.count("take")) == (5, 5)

    def test_returned_tasks_keep_their_place_in_take_many(self) -> None:
        tasks = self.sort_as_taken(self.put_some(6))
        held = self.tube.take_many(3, timeout=0)
        self.tube.delete(tasks[4].id)
        self.tube.release_many([held[1], held[0]])
        found = self.tube.take_many(9, timeout=0)
        assert [task.id for task in found] == [tasks[n].id for n in (0, 1, 3, 5)]
        assert [task.attempts for task in found] == [2, 2, 1, 1]

    @needs("pri")
    def test_take_many_follows_priorities(self) -> None:
        tasks = self.tube.put_many([Item(n, pri=n % 3, **self.lane(f"own-{n}")) for n in range(9)])
        assert [task.id for task in self.tube.take_many(9, timeout=0)] == [
            task.id for task in self.sort_as_taken(tasks)
        ]

    @needs("lane")
    def test_take_many_takes_at_most_one_task_per_lane(self) -> None:
        tasks = self.tube.put_many([Item(n, **self.lane(str(n % 3))) for n in range(9)])
        first = self.tube.take_many(9, timeout=0)
        assert sorted(task.utube for task in first) == ["0", "1", "2"]
        assert self.tube.take_many(9, timeout=0) == []
        self.tube.ack_many(first[:2])
        second = self.tube.take_many(9, timeout=0)
        assert {task.utube for task in second} == {task.utube for task in first[:2]}
        assert {task.id for task in first + second} <= {task.id for task in tasks}

    def test_tasks_of_take_many_belong_to_the_session(self) -> None:
        self.put_some(3)
        worker = self.add_worker()
        tasks = worker.tube.take_many(2, timeout=0)
        with self.expect_error(TaskNotTaken):
            self.tube.ack(tasks[0].id)
        worker.queue.close()
        assert self.count("ready") == 3

    @needs("ttr")
    def test_tasks_of_take_many_have_their_own_ttr(self) -> None:
        self.tube.put_many([Item(1, **self.lane("a")), Item(2, ttr=2, **self.lane("b"))], ttr=9)
        tasks = self.tube.take_many(5, timeout=0)
        assert sorted(task.due - self.clock.now() for task in tasks) == [2, 9]
        self.clock.advance(2)
        assert self.count("taken") == 1
        assert [self.tube.ack_many([task])[task.id] for task in tasks] == [task.ttr == 9 for task in tasks]

    def test_take_many_limit_is_a_whole_number_from_1_to_100_000(self) -> None:
        self.put()
        assert self.refuses(lambda limit: self.tube.take_many(limit, timeout=0), 0, -1, 1.5, "1", None, True, 100_001)

    def test_take_many_waits_for_the_first_task(self) -> None:
        call = self.begin(None, "take_many", 3, timeout=9)
        assert self.has_waiters(1)
        task = self.put("data")
        found = self.result_of(call)
        assert [(each.id, each.data, each.attempts) for each in found] == [(task.id, "data", 1)]
        assert self.has_waiters(0)

    def test_waiting_take_many_gets_several_tasks_of_one_batch(self) -> None:
        call = self.begin(None, "take_many", 3)
        tasks = self.sort_as_taken(self.put_some(5))
        assert [task.id for task in self.result_of(call)] == [task.id for task in tasks[:3]]
        assert (self.count("taken"), self.count("ready")) == (3, 2)

    def test_take_many_cancelled_too_late_returns_its_tasks(self) -> None:
        self.require_asyncio()
        tube = self.tube.inner
        taken = 0 if self.cancel_late(lambda: tube.take_many(2), tube, lambda: tube.put_many(self.items(3))) else 2
        assert eventually(lambda: (self.count("ready"), self.count("take")) == (3 - taken, taken))
        if not taken:
            assert {task.attempts for task in self.tube.take_many(9, timeout=0)} == {1}

    # -- calls of the holder and of other sessions ---------------------------------------------------------------------

    def test_ack_many_returns_success_per_task(self) -> None:
        self.put_some(3)
        mine = self.tube.take_many(2, timeout=0)
        theirs = self.add_worker().tube.take_many(1, timeout=0)
        named = [theirs[0], mine[1], 999, mine[0].id, mine[1]]
        done = self.tube.ack_many(named)
        assert list(done.items()) == [(theirs[0].id, False), (mine[1].id, True), (999, False), (mine[0].id, True)]
        assert (self.count("total"), self.count("ack")) == (1, 2)
        assert self.tube.ack_many(mine) == {mine[0].id: False, mine[1].id: False}

    def test_batch_calls_ignore_tasks_of_an_earlier_take(self) -> None:
        self.put_some(2)
        before = self.tube.take_many(2, timeout=0)
        assert self.tube.release_many(before) == {task.id: True for task in before}
        after = self.tube.take_many(2, timeout=0)
        assert self.tube.ack_many(before) == {task.id: False for task in before}
        assert self.tube.release_many(before[:1]) == {before[0].id: False}
        assert self.tube.ack_many(after) == {task.id: True for task in after}

    def test_release_many_returns_success_per_task(self) -> None:
        tasks = self.sort_as_taken(self.put_some(3))
        held = self.tube.take_many(2, timeout=0)
        assert self.tube.release_many([held[1], tasks[2], held[0].id]) == {
            held[1].id: True, tasks[2].id: False, held[0].id: True,
        }  # fmt: skip
        assert self.drain() == [task.id for task in tasks]
        assert self.count("release") == 2

    @needs("delay")
    def test_release_many_accepts_a_delay(self) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        assert self.tube.release_many(held, delay=5) == {task.id: True for task in held}
        assert self.count("delayed") == 2
        self.clock.advance(5)
        assert self.drain() == [task.id for task in held]

    @lacks("delay")
    def test_release_many_refuses_a_delay_where_the_driver_has_no_delay(self) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        with self.expect_error(OptionNotSupported):
            self.tube.release_many(held, delay=5)
        with self.expect_error(InvalidOption):
            self.tube.release_many(held, delay=-1)

    def test_delete_many_returns_success_per_task(self) -> None:
        ids = [task.id for task in self.put_some(4)]
        held = self.add_worker().tube.take_many(1, timeout=0)
        self.tube.bury(ids[3] if held[0].id != ids[3] else ids[2])
        done = self.tube.delete_many([999, *ids, ids[0]])
        assert list(done.items()) == [(999, False), *((id, True) for id in ids)]
        assert (self.count("total"), self.count("delete")) == (0, 4)
        assert self.tube.delete_many(ids) == dict.fromkeys(ids, False)

    def test_delete_many_can_be_limited_to_states(self) -> None:
        held, buried, ready = self.put_and_take(), self.put_and_bury(), self.put()
        assert list(self.tube.delete_many([ready, buried.id, held], state="buried").values()) == [False, True, False]
        assert list(self.tube.delete_many([ready, held, 9], state=["taken", "delayed"]).values()) == [
            False,
            True,
            False,
        ]
        bad: tuple[object, ...] = ("x", 5, [], ["ready", "gone"], b"ready", [None])
        assert self.refuses(lambda state: self.tube.delete_many([ready], state=state), *bad)
        assert [*self.tube.delete_many([ready], state="buried").values(), *self.tube.delete_many([ready]).values()] == [
            0,
            1,
        ]
        assert self.count("delete") == 3

    def test_batch_calls_without_tasks_return_an_empty_result(self) -> None:
        assert self.tube.ack_many([]) == self.tube.release_many([]) == self.tube.delete_many(iter(())) == {}

    @pytest.mark.parametrize("method", ["ack_many", "release_many", "delete_many"])
    def test_batch_calls_refuse_foreign_tasks_and_change_nothing(self, method: str) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        foreign = self.put(tube=self.create("other"))
        for bad in (-1, "0", None, True, foreign):
            with self.refuses_item(2, InvalidOption):
                getattr(self.tube, method)([*held, bad])
        assert self.refuses(lambda bad: getattr(self.tube, method)(bad), 5, None, "01", held[0])

    def test_block_leaves_a_task_finished_by_a_batch_call_alone(self) -> None:
        self.put_some(2)
        for task, method in zip(self.tube.take_many(2, timeout=0), ("ack_many", "release_many"), strict=True):
            with task:
                assert getattr(self.tube, method)([task]) == {task.id: True}
        assert (self.count("ack"), self.count("release")) == (1, 1)

    def test_release_many_serves_waiting_takes(self) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        calls = [self.begin(timeout=9) for _ in range(2)]
        self.tube.release_many(held)
        assert {self.result_of(call).id for call in calls} == {task.id for task in held}

    @needs("lane")
    def test_ack_many_and_delete_many_free_the_lanes(self) -> None:
        self.tube.put_many([Item(n, **self.lane(str(n % 2))) for n in range(4)])
        first = self.tube.take_many(9, timeout=0)
        self.tube.ack_many(first)
        second = self.tube.take_many(9, timeout=0)
        self.tube.delete_many(second)
        assert (len(first), len(second), self.count("total")) == (2, 2, 0)
