"""Pauses: takes stop, everything else continues, and the end of the pause serves waiting takes."""

from __future__ import annotations

import math
import threading

from tests.contract.bench import Bench, eventually, needs
from tubes import QueueClosed


class Pauses(Bench):
    """Pausing."""

    # -- effects of a pause --------------------------------------------------------------------------------------------

    def test_paused_tube_gives_no_tasks_but_accepts_puts(self) -> None:
        before = self.put()
        self.tube.pause()
        during = self.put()
        assert during.state == "ready"
        assert [self.tube.take(timeout=0), self.add_worker().tube.take(timeout=0)] == [None, None]
        assert self.tube.take_many(5, timeout=0) == []
        assert self.count("ready") == 2
        self.tube.pause(0)
        assert self.drain() == [task.id for task in self.sort_as_taken([before, during])]
        assert self.count("take") == 2

    def test_holder_can_finish_its_task_during_a_pause(self) -> None:
        tasks = [self.put_and_take() for _ in range(4)]
        self.tube.pause(60)
        assert self.tube.ack(tasks[0]).state == "done"
        assert self.tube.release(tasks[1]).state == "ready"
        assert self.tube.bury(tasks[2]).state == "buried"
        assert self.tube.delete(tasks[3]).state == "done"
        assert self.tube.select("buried", limit=1).kick() == 1
        assert self.tube.take(timeout=0) is None
        assert self.tube.peek(tasks[1].id).state == "ready"
        self.tube.pause(0)
        assert sorted(self.drain()) == sorted([tasks[1].id, tasks[2].id])

    def test_extending_pause_never_ends_earlier(self) -> None:
        for first, second, ends in (
            (60, 30, 60),
            (30, 60, 60),
            (60, 0, 60),
            (None, 30, math.inf),
            (30, None, math.inf),
        ):
            self.tube.pause(first)
            self.add_worker().tube.pause(second, extend=True)
            assert self.tube.statistics().paused == self.clock.now() + ends
            self.tube.pause(0)
        self.tube.pause(0, extend=True)
        assert self.tube.statistics().paused is None

    def test_loop_continues_after_the_pause(self) -> None:
        tasks = self.puts(3)
        seen: list[int] = []
        going, paused = threading.Event(), threading.Event()

        def work() -> None:
            for task in self.tube:
                seen.append(task.id)
                if len(seen) == 1:
                    going.set()
                    paused.wait(10)
                if len(seen) == 3:
                    task.ack()
                    return

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        assert going.wait(10)
        self.tube.pause(5)
        paused.set()
        assert self.has_waiters(1)
        assert (len(seen), self.count("ack")) == (1, 1)
        self.clock.advance(5)
        worker.join(10)
        assert seen == [task.id for task in tasks]

    @needs("ttl")
    def test_ttl_runs_on_during_a_pause(self) -> None:
        task = self.put(ttl=3)
        self.tube.pause(5)
        self.clock.advance(5)
        assert self.state(task) == "done"
        assert self.count("ttl") == 1

    @needs("delay")
    def test_delays_end_during_a_pause(self) -> None:
        task = self.put(delay=3)
        self.tube.pause(5)
        self.clock.advance(4)
        assert self.state(task) == "ready"
        assert self.tube.take(timeout=0) is None

    @needs("ttr")
    def test_ttr_ends_during_a_pause(self) -> None:
        task = self.put_and_take(ttr=3)
        call = self.begin()
        self.tube.pause(5)
        self.clock.advance(4)
        assert self.state(task) == "ready"
        assert self.has_waiters(1)
        self.clock.advance(1)
        assert self.result_of(call).id == task.id

    @needs("capacity")
    def test_put_waiting_for_room_is_served_during_a_pause(self) -> None:
        tube = self.queue.create_tube("narrow", self.driver, **{**self.options, "capacity": 1})
        first = tube.put("first")
        assert tube.take(timeout=0).id == first.id
        tube.pause(60)
        call = self.begin(tube, "put", "second", timeout=9)
        tube.ack(first.id)
        assert self.result_of(call).data == "second"
        assert tube.take(timeout=0) is None

    # -- the end of a pause --------------------------------------------------------------------------------------------

    def test_pause_ends_at_its_moment(self) -> None:
        task = self.put()
        self.tube.pause(5)
        self.clock.advance(4.999999)
        assert self.tube.take(timeout=0) is None
        self.clock.advance(0.000001)
        assert self.take().id == task.id

    def test_waiting_takes_are_served_when_the_pause_ends(self) -> None:
        self.tube.pause(5)
        calls = [self.begin(self.add_worker().tube) for _ in range(3)]
        tasks = self.puts(2)
        self.clock.advance(4.9)
        assert self.has_waiters(3)
        assert not any(call.done() for call in calls)
        self.clock.advance(0.1)
        assert [self.result_of(call).id for call in calls[:2]] == [task.id for task in tasks]
        assert self.has_waiters(1)
        assert self.result_of(calls[0]).attempts == 1

    def test_resume_serves_a_waiting_take(self) -> None:
        self.tube.pause()
        call = self.begin()
        task = self.put()
        assert self.has_waiters(1)
        self.add_worker().tube.pause(0)
        assert self.result_of(call).id == task.id
        assert self.has_waiters(0)

    def test_pause_holds_callers_that_already_wait(self) -> None:
        call = self.begin()
        self.tube.pause(5)
        task = self.put()
        assert self.has_waiters(1)
        self.clock.advance(5)
        assert self.result_of(call).id == task.id

    def test_take_many_waits_for_the_end_of_the_pause(self) -> None:
        self.tube.pause(5)
        call = self.begin(self.tube, "take_many", 3)
        tasks = self.puts(2)
        self.clock.advance(5)
        assert [task.id for task in self.result_of(call)] == [task.id for task in tasks]

    def test_take_times_out_during_a_pause(self) -> None:
        self.put()
        self.tube.pause(9)
        call = self.begin(timeout=5)
        self.clock.advance(5)
        assert self.result_of(call) is None
        assert self.has_waiters(0)

    def test_pause_ending_at_the_timeout_still_serves_the_take(self) -> None:
        task = self.put()
        self.tube.pause(5)
        call = self.begin(timeout=5)
        self.clock.advance(5)
        assert self.result_of(call).id == task.id

    def test_second_pause_replaces_the_end_of_the_first(self) -> None:
        self.put()
        call = self.begin(self.queue.create_tube("other", self.driver, **self.options))
        for seconds, later in ((5, 9), (9, 2), (None, 3), (5, None)):
            self.tube.pause(seconds)
            self.tube.pause(later)
            self.clock.advance(2 if later == 2 else 8 if later == 9 else 3)
            if later in (9, None):
                assert self.tube.take(timeout=0) is None
                self.tube.pause(0)
            self.take().release()
        assert not call.done()

    def test_a_pause_of_0_seconds_is_over_at_once(self) -> None:
        task = self.put()
        for seconds in (None, 5):
            self.tube.pause(seconds)
            self.tube.pause(0)
            assert self.tube.statistics().paused is None
        assert self.take().id == task.id

    def test_resume_of_a_running_tube_changes_nothing(self) -> None:
        self.put()
        with self.expect_no_change():
            self.tube.pause(0)
            self.tube.pause(0)

    # -- persistence of a pause ----------------------------------------------------------------------------------------

    def test_statistics_show_the_end_of_the_pause(self) -> None:
        assert self.tube.statistics().paused is None
        self.clock.advance(1)
        self.tube.pause(5)
        assert self.add_worker().tube.statistics().paused == self.clock.now() + 5
        self.tube.pause()
        assert self.tube.statistics().paused == math.inf
        self.tube.pause(0)
        assert self.tube.statistics().paused is None
        self.tube.pause(1)
        self.clock.advance(1)
        assert self.tube.statistics().paused is None

    def test_truncate_keeps_a_pause_and_drop_removes_it(self) -> None:
        self.tube.pause(5)
        self.tube.truncate()
        self.put()
        assert self.tube.take(timeout=0) is None
        self.tube.drop()
        self.tube = self.create("contract")
        task = self.put()
        assert self.take().id == task.id

    def test_pause_of_a_truncated_tube_still_ends(self) -> None:
        self.tube.pause(5)
        call = self.begin()
        self.tube.truncate()
        task = self.put()
        self.clock.advance(5)
        assert self.result_of(call).id == task.id

    def test_pause_outlives_the_session_that_started_it(self) -> None:
        worker = self.add_worker()
        self.put()
        worker.tube.pause(5)
        worker.queue.close()
        assert self.tube.take(timeout=0) is None
        self.clock.advance(5)
        assert self.take().attempts == 1

    def test_pause_does_not_affect_other_tubes(self) -> None:
        other = self.create("other")
        self.tube.pause()
        task = self.put(tube=other)
        assert self.queue.take_any([self.tube, other], timeout=5).id == task.id

    def test_take_any_waits_on_a_tube_that_pauses(self) -> None:
        other = self.create("other")
        task = self.put()
        self.tube.pause(5)
        call = self.begin(self.queue, "take_any", ["contract", "other"], timeout=9)
        assert eventually(lambda: other.statistics().waiting == 1)
        self.clock.advance(5)
        assert self.result_of(call).id == task.id

    def test_pause_refuses_bad_spans(self) -> None:
        self.put()
        assert self.refuses(self.tube.pause, -1, float("nan"), float("inf"), "1", True)
        assert self.take().attempts == 1

    def test_closing_the_queue_ends_a_take_that_waits_on_a_paused_tube(self) -> None:
        worker = self.add_worker()
        self.tube.pause()
        self.put()
        call = self.begin(worker.tube)
        worker.queue.close()
        try:
            self.result_of(call)
        except QueueClosed:
            assert self.has_waiters(0)
        else:
            raise AssertionError("take raised no QueueClosed")
