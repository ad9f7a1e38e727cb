"""Takes from several tubes at once: which tube serves the take, waiting, and cleanup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import Queue, QueueClosed, Tube, TubeBusy, TubeNotFound

if TYPE_CHECKING:
    from concurrent.futures import Future


class TakeAny(Bench):
    """Taking from several tubes."""

    # -- ready tasks ---------------------------------------------------------------------------------------------------

    def test_take_any_takes_from_the_first_tube_with_a_task(self) -> None:
        first, second, third = self.create_three()
        self.put("old", tube=third)
        self.put("new", tube=second)
        tasks = [self.queue.take_any([first, second, third], timeout=0) for _ in range(3)]
        assert [task and task.data for task in tasks] == ["new", "old", None]
        assert [(task.tube, task.state, task.attempts) for task in tasks[:2]] == [("b", "taken", 1), ("c", "taken", 1)]

    def test_take_any_accepts_names_and_duplicate_tubes(self) -> None:
        self.create_three()
        self.put("x", tube=self.queue.tube("b"))
        task = self.queue.take_any(["a", self.queue.tube("b"), "b"], timeout=5)
        assert task.ack().data == "x"
        assert self.queue.take_any(("b", "b"), timeout=0) is None

    def test_task_from_take_any_belongs_to_the_session(self) -> None:
        first, second, _ = self.create_three()
        self.put(tube=second)
        other = self.add_worker().queue
        task = other.take_any(["a", "b"], timeout=0)
        with pytest.raises(Exception, match="does not hold"):
            second.ack(task.id)
        assert task.ack().state == "done"
        assert first.statistics().tasks["total"] == 0

    def test_fair_take_any_starts_with_each_tube_in_turn(self) -> None:
        tubes = self.create_three()
        for _ in range(3):
            for tube in tubes:
                self.put(tube=tube)
        assert [self.queue.take_any(tubes, 0, fair=True).tube for _ in range(9)] == list("abcabcabc")

    def test_fair_take_any_continues_after_an_empty_tube(self) -> None:
        first, second, third = self.create_three()
        for tube in (first, first, third, third):
            self.put(tube=tube)
        taken = [self.queue.take_any([first, second, third], 0, fair=True) for _ in range(5)]
        assert [task and task.tube for task in taken] == ["a", "c", "c", "a", None]

    def test_fair_take_any_rotates_each_list_separately(self) -> None:
        first, second, third = self.create_three()
        for _ in range(4):
            for tube in (first, second, third, self.tube):
                self.put(tube=tube)
        lists = ([first, second], [third, self.tube])
        taken = [self.queue.take_any(lists[number % 2], 0, fair=True).tube for number in range(8)]
        assert taken[::2] == list("abab")
        assert set(taken[1::2]) == {"c", "contract"}

    def test_unfair_take_any_does_not_rotate_tubes(self) -> None:
        tubes = self.create_three()
        for tube in tubes:
            self.put(tube=tube)
        assert self.queue.take_any(tubes, 0, fair=True).tube == "a"
        assert self.queue.take_any([tubes[2]], 0).tube == "c"
        assert self.queue.take_any(tubes, 0, fair=True).tube == "b"

    # -- bad input -----------------------------------------------------------------------------------------------------

    def test_take_any_refuses_bad_tube_lists(self) -> None:
        self.put()
        foreign = self.add_worker().tube
        bad: list[object] = [
            [],
            (),
            "contract",
            self.tube,
            None,
            7,
            [7],
            [None],
            [[self.tube]],
            [self.tube, foreign],
            [""],
        ]
        assert self.refuses(lambda tubes: self.queue.take_any(tubes, timeout=0), *bad)
        with self.expect_error(TubeNotFound):
            self.queue.take_any([self.tube, "nowhere"], timeout=0)

    def test_take_any_checks_timeout_and_fair_before_taking(self) -> None:
        self.put()
        assert self.refuses(lambda timeout: self.queue.take_any([self.tube], timeout), -1, float("nan"), "1", True)
        assert self.refuses(lambda value: self.queue.take_any([self.tube], 0, fair=value), 1, None, "yes")

    def test_take_any_on_a_closed_queue_raises_queue_closed_first(self) -> None:
        worker = self.add_worker()
        worker.queue.close()
        for tubes in ([], [worker.tube], ["contract"], ["nowhere"]):
            with pytest.raises(QueueClosed):
                worker.queue.take_any(tubes, timeout=0)

    # -- waiting -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("place", range(3))
    def test_put_into_any_listed_tube_serves_a_waiting_take_any(self, place: int) -> None:
        tubes = self.create_three()
        call = self.begin_any(tubes)
        task = self.put("data", tube=tubes[place])
        taken = self.result_of(call)
        assert (taken.tube, taken.id, taken.data, taken.attempts) == (tubes[place].name, task.id, "data", 1)
        assert self.has_no_waiters()
        others = [tube for tube in tubes if tube is not tubes[place]]
        assert [self.put(tube=tube).state for tube in others] == ["ready", "ready"]
        assert [tube.statistics().calls["take"] for tube in others] == [0, 0]

    def test_take_any_callers_are_served_in_arrival_order_per_tube(self) -> None:
        first, second, _ = self.create_three()
        calls = [
            self.begin_any([first, second]),
            self.begin(second),
            self.begin_any([second, first], self.add_worker().queue),
        ]
        tasks = [self.put(tube=tube) for tube in (second, second, first)]
        results = [self.result_of(call) for call in calls]
        assert [(task.tube, task.id) for task in results] == [
            ("b", tasks[0].id),
            ("b", tasks[1].id),
            ("a", tasks[2].id),
        ]

    def test_waiter_served_by_another_tube_is_skipped(self) -> None:
        first, second, _ = self.create_three()
        early, late = self.begin_any([first, second]), self.begin(second)
        self.put(tube=first)
        assert self.result_of(early).tube == "a"
        task = self.put(tube=second)
        assert self.result_of(late).id == task.id

    def test_many_waiting_take_any_calls_lose_no_task(self) -> None:
        tubes = self.create_three()
        calls = [self.begin_any(tubes, self.add_worker().queue) for _ in range(6)]
        put = {(tubes[number % 3].name, self.put(tube=tubes[number % 3]).id) for number in range(6)}
        assert {(task.tube, task.id) for task in map(self.result_of, calls)} == put
        assert self.has_no_waiters()

    def test_take_any_waits_exactly_for_its_timeout(self) -> None:
        tubes = self.create_three()
        call = self.begin_any(tubes, timeout=5)
        self.clock.advance(4.9)
        assert not call.done()
        self.clock.advance(0.1)
        assert self.result_of(call) is None
        assert self.has_no_waiters()
        assert self.put(tube=tubes[2]).state == "ready"
        assert self.take(tubes[2]).attempts == 1

    @needs("delay")
    @pytest.mark.parametrize("place", range(3))
    def test_delay_ending_at_the_timeout_still_serves_take_any(self, place: int) -> None:
        tubes = self.create_three()
        task = self.put(tube=tubes[place], delay=5)
        call = self.begin_any(tubes, timeout=5)
        self.clock.advance(5)
        assert self.result_of(call).id == task.id
        assert self.has_no_waiters()

    def test_waiting_take_any_takes_for_the_session_joined_meanwhile(self) -> None:
        first, second, _ = self.create_three()
        queue = self.add_worker().queue
        call = self.begin_any([queue.tube("a"), queue.tube("b")], queue)
        queue.admin.identify(self.queue.admin.identify())
        self.put(tube=second)
        assert second.ack(self.result_of(call).id).state == "done"
        assert first.statistics().waiting == 0

    # -- closed queues and cancelled calls -----------------------------------------------------------------------------

    @pytest.mark.parametrize("place", range(3))
    def test_drop_of_one_tube_ends_a_waiting_take_any(self, place: int) -> None:
        tubes = self.create_three()
        call = self.begin_any(tubes)
        with pytest.raises(TubeBusy):
            tubes[place].drop()
        tubes[place].drop(force=True)
        with pytest.raises(TubeNotFound):
            self.result_of(call)
        assert self.has_no_waiters()
        for tube in tubes:
            if tube is not tubes[place]:
                assert self.put(tube=tube).state == "ready"
                assert self.take(tube).attempts == 1

    def test_take_any_reports_a_dropped_tube_at_once(self) -> None:
        first, second, _ = self.create_three()
        first.drop()
        self.put(tube=second)
        with pytest.raises(TubeNotFound):
            self.queue.take_any([first, second], timeout=0)
        assert second.statistics().tasks["ready"] == 1

    def test_cancelled_take_any_takes_no_task(self) -> None:
        self.require_asyncio()
        tubes = self.create_three()
        early, late = self.begin_any(tubes), self.begin_any(tubes)
        early.cancel()
        task = self.put(tube=tubes[1])
        assert self.result_of(late).id == task.id
        assert self.has_no_waiters()
        for tube in tubes:
            assert self.put(tube=tube).state == "ready"
            assert tube.statistics().tasks["ready"] == 1

    def test_take_any_cancelled_too_late_returns_its_task(self) -> None:
        self.require_asyncio()
        tubes, queue = [self.create(name).inner for name in "abc"], self.queue.inner

        async def put() -> None:
            for tube in tubes:
                await tube.put("data")

        taken = 0 if self.cancel_late(lambda: queue.take_any(tubes), tubes[2], put) else 1

        def counts(name: str) -> int:
            return sum(statistics.tasks[name] for statistics in self.queue.statistics().values())

        assert eventually(lambda: (counts("ready"), counts("taken")) == (3 - taken, taken))
        assert {self.take(self.queue.tube(name)).attempts for name in "abc"[taken:]} == {1}

    # -- helpers -------------------------------------------------------------------------------------------------------

    def create_three(self) -> list[Tube]:
        """Create three more tubes: a, b and c."""
        return [self.create(name) for name in "abc"]

    def begin_any(self, tubes: list[Tube], queue: Queue | None = None, **options: object) -> Future[Any]:
        """Start a `take_any` and return when it waits on each tube."""
        queue = self.queue if queue is None else queue
        tubes = [tube if isinstance(tube, str) else tube.name for tube in tubes]
        before = self.waiters()
        call = self.face.begin(queue, "take_any", tubes, **options)
        assert eventually(lambda: call.done() or self.waiters() == before + len(tubes))
        return call

    def waiters(self) -> int:
        """Return the number of waiters on all tubes."""
        return sum(statistics.waiting for statistics in self.queue.statistics().values())

    def has_no_waiters(self) -> bool:
        """Return True if no tube has a waiter, now or soon."""
        return eventually(lambda: self.waiters() == 0)

    @needs("pri")
    def test_take_any_by_priority_takes_the_best_task_of_all_tubes(self) -> None:
        other, third = self.create("other"), self.create("third")
        rows = [(self.tube, 7), (other, 5), (third, 6), (self.tube, 0), (other, 9)]
        tasks = [self.put(pri=pri, tube=tube) for tube, pri in rows]
        heads = {task.tube: task for task in self.sort_as_taken(tasks[::-1])[::-1]}
        tubes = [third, other, self.tube]
        task = self.queue.take_any(tubes, 0, order="pri")
        assert (task.tube, task.id) == min((head.pri, head.id, head.tube) for head in heads.values())[:0:-1]
        other.pause()
        third.pause()
        assert self.queue.take_any(tubes, 0, order="pri").tube == self.tube.name
        self.tube.truncate()
        assert self.queue.take_any(tubes, 0, order="pri") is None
        waiting = self.begin(self.queue, "take_any", tubes, 5, order="pri")
        assert self.has_waiters(1)
        self.put()
        assert self.result_of(waiting).tube == self.tube.name
        assert self.refuses(lambda order: self.queue.take_any(tubes, 0, order=order), "id", None, 1)
        assert self.refuses(lambda fair: self.queue.take_any(tubes, 0, order="pri", fair=fair), True)

    def test_queue_take_many_takes_from_several_tubes(self) -> None:
        other = self.create("other")
        self.put()
        self.put(tube=other)
        tasks = self.queue.take_many([other, self.tube], 5, 0)
        assert [task.tube for task in tasks] == ["other", self.tube.name]
        assert self.queue.take_many(["other", self.tube], 1, 0) == []
        self.put()
        self.put(tube=other)
        assert [task.tube for task in self.queue.take_many([self.tube, other], 1, 0)] == [self.tube.name]
        waiting = self.begin(self.queue, "take_many", [self.tube], 3, 5)
        assert self.has_waiters(1)
        self.put()
        assert [task.tube for task in self.result_of(waiting)] == [self.tube.name]
        assert self.refuses(lambda limit: self.queue.take_many([self.tube], limit, 0), 0, -1, 100_001, None)
        assert self.refuses(lambda tubes: self.queue.take_many(tubes, 1, 0), [], "contract", [7])
