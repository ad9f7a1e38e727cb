"""Batches: many tasks in one call are as many calls, and a put of many is all or none."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tubes import (
    CodecError,
    DuplicateKey,
    InvalidOption,
    Item,
    OptionNotSupported,
    State,
    Task,
    TaskNotTaken,
    TubeFull,
    TubesError,
)
from tubes.conformance.bench import Bench, eventually, lacks, needs

#: More than one call brings to a server, and than one command has arguments.
MANY = 2_500


class Batches(Bench):
    """put_many, take_many, ack_many, release_many, delete_many."""

    def items(self, count: int, **options: Any) -> list[Item]:
        """So many items, each in a lane of its own, with numbers for data."""
        return [Item(number, **self.lane(f"own-{number}"), **options) for number in range(count)]

    def put_some(self, count: int, **options: Any) -> list[Task]:
        tasks = self.tube.put_many(self.items(count, **options))
        self._ids += [task.id for task in tasks]
        return list(tasks)

    @contextmanager
    def blamed(self, number: int, error: type[TubesError]) -> Generator[None]:
        """The block raises this error about the item of this number, and changes nothing."""
        with self.unchanged(), pytest.raises(error, match=f"^item {number}: ") as caught:
            yield
        assert caught.value.facts["item"] == number

    # -- putting -------------------------------------------------------------------------------------------------------

    def test_what_is_put_together_is_answered_in_order(self) -> None:
        tasks = self.put_some(5)
        assert [task.data for task in tasks] == [0, 1, 2, 3, 4]
        assert [task.id for task in tasks] == list(range(tasks[0].id, tasks[0].id + 5))
        assert all(task == self.tube.peek(task.id) for task in tasks)
        assert (self.count("put"), self.count("ready")) == (5, 5)

    def test_a_batch_is_put_as_its_items_would_be(self) -> None:
        together = self.put_some(3)
        alone = [self.put(number, **self.lane(f"own-{number}")) for number in range(3)]
        for one, other in zip(together, alone, strict=True):
            assert (one.data, one.state, one.utube, one.pri, one.ttl, one.ttr, one.due, one.created) == (
                other.data, other.state, other.utube, other.pri, other.ttl, other.ttr, other.due, other.created,
            )  # fmt: skip

    def test_items_come_from_whatever_can_be_looped_over(self) -> None:
        assert [task.data for task in self.tube.put_many(number for number in range(3))] == [0, 1, 2]
        assert [task.data for task in self.tube.put_many({"a": 1, "b": 2})] == ["a", "b"]
        assert [task.data for task in self.tube.put_many(("a", Item("b")))] == ["a", "b"]

    def test_a_batch_of_nothing_puts_nothing(self) -> None:
        assert self.tube.put_many([]) == []
        assert self.count("put") == 0

    def test_what_is_no_collection_is_refused(self) -> None:
        assert self.refuses(self.tube.put_many, 5, None, "abc", b"abc", Item(1))

    @needs("pri")
    def test_an_items_own_options_come_before_those_of_the_batch(self) -> None:
        tasks = self.tube.put_many([1, Item(2, pri=3), Item(3), Item(4, pri=None), 5], pri=7)
        assert [task.pri for task in tasks] == [7, 3, 7, 7, 7]

    @needs("delay")
    def test_some_of_a_batch_may_be_delayed(self) -> None:
        tasks = self.tube.put_many([Item(1, **self.lane("a")), Item(2, delay=5, **self.lane("b"))])
        assert [task.state for task in tasks] == [State.READY, State.DELAYED]
        assert self.count("delayed") == 1
        self.clock.advance(5)
        assert sorted(self.drain()) == [task.id for task in tasks]

    @needs("ttl")
    def test_each_of_a_batch_lives_as_long_as_it_says(self) -> None:
        short, long = self.tube.put_many([Item(1, ttl=2), Item(2)], ttl=9)
        assert (short.expires, long.expires) == (self.clock.now() + 2, self.clock.now() + 9)
        self.clock.advance(2)
        assert (self.state(short), self.state(long)) == ("-", "r")

    @needs("ttl")
    def test_of_a_batch_what_lives_for_no_time_serves_nobody(self) -> None:
        call = self.begin()
        tasks = self.tube.put_many([Item(1, ttl=0), Item(2)])
        assert self.got(call).id == tasks[1].id

    def test_a_bad_item_says_which_it_is_and_nothing_is_put(self) -> None:
        wrong: list[dict[str, Any]] = [{"colour": 1}, {"timeout": 1}]
        for options in wrong:
            error = OptionNotSupported if "colour" in options else InvalidOption
            with self.blamed(2, error):
                self.tube.put_many([1, 2, Item(3, **options), 4])

    @needs("pri")
    def test_a_bad_option_of_an_item_says_whose_it_is(self) -> None:
        with self.blamed(1, InvalidOption):
            self.tube.put_many([Item(1, pri=1), Item(2, pri=-1)])

    def test_data_that_the_codec_refuses_says_which_item_it_is(self) -> None:
        if self.tube._port.codec is None:
            pytest.skip("objects are kept as they are")
        with self.blamed(1, CodecError):
            self.tube.put_many([1, object(), 3])

    def test_a_bad_option_of_the_batch_puts_nothing(self) -> None:
        with self.refused(OptionNotSupported):
            self.tube.put_many([1, 2], colour=1)
        with self.refused(InvalidOption):
            self.tube.put_many([1, 2], timeout=-1)

    def test_items_that_end_with_an_error_put_nothing(self) -> None:
        def items() -> Any:
            yield 1
            raise ArithmeticError

        with pytest.raises(ArithmeticError):
            self.tube.put_many(items())
        assert self.count("total") == 0

    def test_many_are_put_taken_and_acked(self) -> None:
        tasks = self.put_some(MANY)
        assert len(tasks) == MANY
        found = self.tube.take_many(MANY + 5, timeout=0)
        assert [task.id for task in found] == [task.id for task in self.in_order(tasks)]
        assert all(self.tube.ack_many(found).values())
        assert (self.count("total"), self.count("put"), self.count("take"), self.count("ack")) == (0, MANY, MANY, MANY)

    def test_a_batch_serves_all_who_wait(self) -> None:
        calls = [self.begin() for _ in range(3)]
        tasks = self.in_order(self.put_some(4))
        assert [self.got(call).id for call in calls] == [task.id for task in tasks[:3]]
        assert self.waiting(0)

    def test_listeners_hear_of_each(self) -> None:
        heard = self.listen()
        ids = [task.id for task in self.put_some(3)]
        order = [task.id for task in self.tube.take_many(3, timeout=0)]
        self.tube.release_many(order[:1])
        self.tube.ack_many(order[1:2])
        self.tube.delete_many(order[2:])
        expected = [("put", id, "r") for id in ids] + [("take", id, "t") for id in order]
        expected += [("release", order[0], "r"), ("delete", order[1], "-"), ("delete", order[2], "-")]
        assert self.heard(heard, expected)

    # -- keys and attempts --------------------------------------------------------------------------------------------

    def test_keys_of_a_batch_are_as_those_of_single_puts(self) -> None:
        before = self.put("before", key="a")
        tasks = self.tube.put_many([Item(1, key="a"), Item(2, key="b"), 3, Item(4, key="b")])
        assert [(task.data, task.created_now) for task in tasks] == [
            ("before", False), (2, True), (3, True), (2, False),
        ]  # fmt: skip
        assert (tasks[0].id, tasks[3].id, tasks[0].key) == (before.id, tasks[1].id, "a")
        assert (self.count("put"), self.count("total")) == (3, 3)

    def test_keys_of_a_batch_replace_in_its_order(self) -> None:
        before = self.put("before", key="a")
        first, second, kept = self.tube.put_many(
            [Item(1, key="a"), Item(2, key="a"), Item(3, key="a", on_duplicate="keep")], on_duplicate="replace"
        )
        assert (self.state(before), self.state(first), self.state(second)) == ("-", "-", "r")
        assert (kept.id, kept.created_now) == (second.id, False)
        assert (self.count("put"), self.count("delete"), self.count("total")) == (3, 2, 1)

    def test_a_key_that_is_in_use_says_whose_item_it_is_and_nothing_is_put(self) -> None:
        before = self.put("before", key="a")
        for items in ([1, Item(2, key="b"), Item(3, key="a")], [1, Item(2, key="c"), Item(3, key="c")]):
            with self.blamed(2, DuplicateKey):
                self.tube.put_many(items, on_duplicate="raise")
        with pytest.raises(DuplicateKey) as caught:
            self.tube.put_many([Item(1, key="a")], on_duplicate="raise")
        assert (caught.value.facts["id"], caught.value.facts["key"]) == (before.id, "a")

    def test_keys_of_a_batch_are_remembered_after_its_tasks(self) -> None:
        (task,) = self.tube.put_many([Item(1, key="a")], key_ttl=9)
        self.tube.ack_many(self.tube.take_many(1, timeout=0))
        (again,) = self.tube.put_many([Item(2, key="a")])
        assert (again.id, again.state, again.created_now) == (task.id, State.DONE, False)
        self.clock.advance(9)
        assert self.tube.put_many([Item(3, key="a")])[0].created_now

    def test_a_batch_needs_room_for_what_it_adds(self) -> None:
        self.tube = self.create("full", capacity=3)
        self.put("before", key="a")
        with self.refused(TubeFull):
            self.tube.put_many([Item(1, key="a"), Item(2), Item(3), Item(4)])
        tasks = self.tube.put_many([Item(1, key="a"), Item(2, key="b"), Item(3, key="b"), Item(4, key="c")])
        assert [task.created_now for task in tasks] == [False, True, False, True]
        assert self.tube.put_many([Item(5, key="b")])[0].created_now is False
        assert self.tube.put_many([Item(6, key="b")], on_duplicate="replace")[0].created_now
        assert self.count("total") == 3

    def test_attempts_of_a_batch_end_it_as_those_of_single_tasks(self) -> None:
        self.tube.put_many(self.items(2), max_attempts=1)
        held = self.tube.take_many(2, timeout=0)
        assert {task.max_attempts for task in held} == {1}
        assert all(self.tube.release_many(held).values())
        assert [task.reason for task in self.tube.buried()] == ["max_attempts: release"] * 2

    # -- room ----------------------------------------------------------------------------------------------------------

    def test_a_batch_needs_room_for_all_of_it(self) -> None:
        self.tube = self.create("full", capacity=3)
        self.put_some(1)
        with self.unchanged():
            with self.refused(TubeFull):
                self.tube.put_many([1, 2, 3])
            assert self.tube.put_many([1, 2, 3], timeout=0) == []
        assert len(self.put_some(2)) == 2
        assert self.tube.put_many([1], timeout=0) == []
        assert self.tube.put_many([]) == []

    def test_a_batch_that_never_has_room_is_refused(self) -> None:
        self.tube = self.create("full", capacity=3)
        with self.refused(InvalidOption):
            self.tube.put_many([1, 2, 3, 4])
        with self.refused(InvalidOption):
            self.tube.put_many([1, 2, 3, 4], timeout=9)

    def test_a_batch_waits_until_there_is_room_for_all_of_it(self) -> None:
        self.tube = self.create("full", capacity=3)
        ids = [task.id for task in self.put_some(3)]
        call = self.begin(None, "put_many", ["a", "b"], timeout=9)
        self.tube.delete(ids[0])
        assert self.waiting(1)
        self.tube.delete(ids[1])
        assert [task.data for task in self.got(call)] == ["a", "b"]
        assert (self.count("total"), self.waiting(0)) == (3, True)

    def test_who_comes_after_a_waiting_batch_waits_behind_it(self) -> None:
        self.tube = self.create("full", capacity=2)
        ids = [task.id for task in self.put_some(2)]
        batch = self.begin(None, "put_many", ["a", "b"], timeout=9)
        single = self.begin(None, "put", "c", timeout=9)
        self.tube.delete(ids[0])
        assert self.waiting(2)
        self.tube.delete(ids[1])
        assert [task.data for task in self.got(batch)] == ["a", "b"]
        assert self.waiting(1)
        self.tube.delete(self.got(batch)[0].id)
        assert self.got(single).data == "c"

    def test_a_batch_whose_time_is_over_puts_nothing_and_lets_others_in(self) -> None:
        self.tube = self.create("full", capacity=2)
        ids = [task.id for task in self.put_some(2)]
        batch = self.begin(None, "put_many", ["a", "b"], timeout=5)
        single = self.begin(None, "put", "c", timeout=9)
        self.tube.delete(ids[0])
        self.clock.advance(5)
        assert self.got(batch) == []
        assert self.got(single).data == "c"
        assert self.count("total") == 2

    def test_a_batch_with_a_timeout_that_finds_room_does_not_wait(self) -> None:
        self.tube = self.create("full", capacity=2)
        assert [task.data for task in self.tube.put_many(["a", "b"], timeout=9)] == ["a", "b"]

    def test_a_batch_that_goes_with_its_queue_lets_in_who_stood_behind_it(self) -> None:
        self.tube = self.create("full", capacity=2)
        self.put_some(1)
        worker = self.another()
        self.begin(worker.tube, "put_many", ["a", "b"], timeout=9)
        single = self.begin(None, "put", "c", timeout=9)
        worker.queue.close()
        assert self.got(single).data == "c"

    # -- taking --------------------------------------------------------------------------------------------------------

    def test_a_task_that_has_come_back_is_taken_once(self) -> None:
        tasks = self.put_some(120)
        for task in (tasks[0], tasks[1], tasks[-1]):
            self.tube.bury(task.id)
        assert self.tube.kick(3) == 3
        taken = self.tube.take_many(120, timeout=0)
        assert sorted(task.id for task in taken) == [task.id for task in tasks]
        assert all(self.tube.ack_many(taken).values())
        assert (self.count("take"), self.count("ack"), self.count("total")) == (120, 120, 0)

    def test_as_many_are_taken_as_there_are_up_to_the_limit(self) -> None:
        tasks = self.in_order(self.put_some(5))
        first = self.tube.take_many(3, timeout=0)
        assert [task.id for task in first] == [task.id for task in tasks[:3]]
        assert {(task.state, task.attempts) for task in first} == {(State.TAKEN, 1)}
        assert [task.id for task in self.tube.take_many(9, timeout=0)] == [task.id for task in tasks[3:]]
        assert self.tube.take_many(9, timeout=0) == []
        assert (self.count("taken"), self.count("take")) == (5, 5)

    def test_what_has_come_back_has_its_place_in_a_batch(self) -> None:
        tasks = self.in_order(self.put_some(6))
        held = self.tube.take_many(3, timeout=0)
        self.tube.delete(tasks[4].id)
        self.tube.release_many([held[1], held[0]])
        found = self.tube.take_many(9, timeout=0)
        assert [task.id for task in found] == [tasks[n].id for n in (0, 1, 3, 5)]
        assert [task.attempts for task in found] == [2, 2, 1, 1]

    @needs("pri")
    def test_priorities_order_a_batch(self) -> None:
        tasks = self.tube.put_many([Item(n, pri=n % 3, **self.lane(f"own-{n}")) for n in range(9)])
        assert [task.id for task in self.tube.take_many(9, timeout=0)] == [task.id for task in self.in_order(tasks)]

    @needs("lane")
    def test_a_batch_never_has_two_of_a_lane(self) -> None:
        tasks = self.tube.put_many([Item(n, **self.lane(str(n % 3))) for n in range(9)])
        first = self.tube.take_many(9, timeout=0)
        assert sorted(task.utube for task in first) == ["0", "1", "2"]
        assert self.tube.take_many(9, timeout=0) == []
        self.tube.ack_many(first[:2])
        second = self.tube.take_many(9, timeout=0)
        assert {task.utube for task in second} == {task.utube for task in first[:2]}
        assert {task.id for task in first + second} <= {task.id for task in tasks}

    def test_what_is_taken_together_belongs_to_the_session(self) -> None:
        self.put_some(3)
        worker = self.another()
        tasks = worker.tube.take_many(2, timeout=0)
        with self.refused(TaskNotTaken):
            self.tube.ack(tasks[0].id)
        worker.queue.close()
        assert self.count("ready") == 3

    @needs("ttr")
    def test_each_of_a_batch_has_its_time_to_run(self) -> None:
        self.tube.put_many([Item(1, **self.lane("a")), Item(2, ttr=2, **self.lane("b"))], ttr=9)
        tasks = self.tube.take_many(5, timeout=0)
        assert sorted(task.due - self.clock.now() for task in tasks) == [2, 9]
        self.clock.advance(2)
        assert self.count("taken") == 1
        assert [self.tube.ack_many([task])[task.id] for task in tasks] == [task.ttr == 9 for task in tasks]

    def test_a_limit_is_a_whole_number_from_1_to_100_000(self) -> None:
        self.put()
        assert self.refuses(lambda limit: self.tube.take_many(limit, timeout=0), 0, -1, 1.5, "1", None, True, 100_001)

    def test_a_batch_waits_for_its_first_task(self) -> None:
        call = self.begin(None, "take_many", 3, timeout=9)
        assert self.waiting(1)
        task = self.put("data")
        found = self.got(call)
        assert [(each.id, each.data, each.attempts) for each in found] == [(task.id, "data", 1)]
        assert self.waiting(0)

    def test_who_waits_for_a_batch_gets_what_is_put_together(self) -> None:
        call = self.begin(None, "take_many", 3)
        tasks = self.in_order(self.put_some(5))
        assert [task.id for task in self.got(call)] == [task.id for task in tasks[:3]]
        assert (self.count("taken"), self.count("ready")) == (3, 2)

    def test_a_batch_that_is_cancelled_too_late_gives_its_tasks_back(self) -> None:
        self.cancelling()
        tube = self.tube.inner
        taken = 0 if self.cancels_late(lambda: tube.take_many(2), tube, lambda: tube.put_many(self.items(3))) else 2
        assert eventually(lambda: (self.count("ready"), self.count("take")) == (3 - taken, taken))
        if not taken:
            assert {task.attempts for task in self.tube.take_many(9, timeout=0)} == {1}

    # -- what the taker does, and anybody ------------------------------------------------------------------------------

    def test_acks_say_of_each_whether_it_was_done(self) -> None:
        self.put_some(3)
        mine = self.tube.take_many(2, timeout=0)
        theirs = self.another().tube.take_many(1, timeout=0)
        named = [theirs[0], mine[1], 999, mine[0].id, mine[1]]
        done = self.tube.ack_many(named)
        assert list(done.items()) == [(theirs[0].id, False), (mine[1].id, True), (999, False), (mine[0].id, True)]
        assert (self.count("total"), self.count("ack")) == (1, 2)
        assert self.tube.ack_many(mine) == {mine[0].id: False, mine[1].id: False}

    def test_a_task_of_a_batch_speaks_for_its_own_take(self) -> None:
        self.put_some(2)
        before = self.tube.take_many(2, timeout=0)
        assert self.tube.release_many(before) == {task.id: True for task in before}
        after = self.tube.take_many(2, timeout=0)
        assert self.tube.ack_many(before) == {task.id: False for task in before}
        assert self.tube.release_many(before[:1]) == {before[0].id: False}
        assert self.tube.ack_many(after) == {task.id: True for task in after}

    def test_releases_say_of_each_whether_it_was_done(self) -> None:
        tasks = self.in_order(self.put_some(3))
        held = self.tube.take_many(2, timeout=0)
        assert self.tube.release_many([held[1], tasks[2], held[0].id]) == {
            held[1].id: True, tasks[2].id: False, held[0].id: True,
        }  # fmt: skip
        assert self.drain() == [task.id for task in tasks]
        assert self.count("release") == 2

    @needs("delay")
    def test_releases_may_have_a_delay(self) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        assert self.tube.release_many(held, delay=5) == {task.id: True for task in held}
        assert self.count("delayed") == 2
        self.clock.advance(5)
        assert self.drain() == [task.id for task in held]

    @lacks("delay")
    def test_releases_with_a_delay_are_refused_where_the_driver_has_none(self) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        with self.refused(OptionNotSupported):
            self.tube.release_many(held, delay=5)
        with self.refused(InvalidOption):
            self.tube.release_many(held, delay=-1)

    def test_deletes_say_of_each_whether_there_was_one(self) -> None:
        ids = [task.id for task in self.put_some(4)]
        held = self.another().tube.take_many(1, timeout=0)
        self.tube.bury(ids[3] if held[0].id != ids[3] else ids[2])
        done = self.tube.delete_many([999, *ids, ids[0]])
        assert list(done.items()) == [(999, False), *((id, True) for id in ids)]
        assert (self.count("total"), self.count("delete")) == (0, 4)
        assert self.tube.delete_many(ids) == dict.fromkeys(ids, False)

    def test_deletes_may_name_the_states_of_the_tasks(self) -> None:
        held, buried, ready = self.taken(), self.buried(), self.put()
        assert list(self.tube.delete_many([ready, buried.id, held], state="buried").values()) == [False, True, False]
        assert list(self.tube.delete_many([ready, held, 9], state=["taken", "~"]).values()) == [False, True, False]
        bad: tuple[Any, ...] = ("x", 5, [], ["ready", "gone"], b"ready", [None])
        assert self.refuses(lambda state: self.tube.delete_many([ready], state=state), *bad)
        assert [*self.tube.delete_many([ready], state="!").values(), *self.tube.delete_many([ready]).values()] == [0, 1]
        assert self.count("delete") == 3

    def test_verbs_on_nothing_answer_nothing(self) -> None:
        assert self.tube.ack_many([]) == self.tube.release_many([]) == self.tube.delete_many(iter(())) == {}

    @pytest.mark.parametrize("verb", ["ack_many", "release_many", "delete_many"])
    def test_what_is_no_task_of_the_tube_is_refused_and_nothing_is_done(self, verb: str) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        foreign = self.put(tube=self.create("other"))
        for bad in (-1, "0", None, True, foreign):
            with self.blamed(2, InvalidOption):
                getattr(self.tube, verb)([*held, bad])
        assert self.refuses(lambda bad: getattr(self.tube, verb)(bad), 5, None, "01", held[0])

    def test_what_was_dealt_with_in_a_batch_is_left_alone_by_its_block(self) -> None:
        self.put_some(2)
        for task, verb in zip(self.tube.take_many(2, timeout=0), ("ack_many", "release_many"), strict=True):
            with task:
                assert getattr(self.tube, verb)([task]) == {task.id: True}
        assert (self.count("ack"), self.count("release")) == (1, 1)

    def test_batches_serve_those_who_wait(self) -> None:
        self.put_some(2)
        held = self.tube.take_many(2, timeout=0)
        calls = [self.begin(timeout=9) for _ in range(2)]
        self.tube.release_many(held)
        assert {self.got(call).id for call in calls} == {task.id for task in held}

    @needs("lane")
    def test_acks_of_a_batch_free_their_lanes(self) -> None:
        self.tube.put_many([Item(n, **self.lane(str(n % 2))) for n in range(4)])
        first = self.tube.take_many(9, timeout=0)
        self.tube.ack_many(first)
        second = self.tube.take_many(9, timeout=0)
        self.tube.delete_many(second)
        assert (len(first), len(second), self.count("total")) == (2, 2, 0)
