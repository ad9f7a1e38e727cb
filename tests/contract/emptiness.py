"""Waiting until a tube is empty, that is, has no ready, delayed or taken task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import InvalidOption, QueueClosed, Tube, TubeNotFound


class Emptiness(Bench):
    """Tests of `Tube.join`."""

    def begin_wait(self, *args: float, tube: Tube | None = None) -> Future[bool]:
        """Start a call that waits until the tube is empty. It also ends if the tube is empty before it starts."""
        future = Future[bool]()
        target = self.tube if tube is None else tube

        def call() -> None:
            try:
                future.set_result(target.join(*args))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        return future

    def test_join_returns_at_once_for_an_empty_tube(self) -> None:
        assert self.tube.join()
        assert self.tube.join(0)
        assert self.tube.join(timeout=timedelta(0))

    def test_a_tube_with_a_ready_or_a_taken_task_is_not_empty(self) -> None:
        self.put()
        assert not self.tube.join(0)
        task = self.take()
        assert not self.tube.join(0)
        self.tube.ack(task)
        assert self.tube.join(0)

    def test_a_join_returns_when_the_last_task_is_done(self) -> None:
        assert self.tube.join() is True
        for _ in range(2):
            self.put()
        call = self.begin_wait()
        for _ in range(2):
            assert not call.done()
            self.tube.ack(self.take())
        assert self.result_of(call) is True

    def test_waiting_join_raises_when_its_queue_is_closed(self) -> None:
        other = self.add_worker()
        self.put()
        call = self.begin_wait(tube=other.tube)
        other.queue.close()
        with pytest.raises(QueueClosed):
            self.result_of(call)

    @needs("delay")
    def test_join_waits_for_delayed_tasks(self) -> None:
        self.put(delay=5)
        assert not self.tube.join(0)
        call = self.begin_wait()
        self.clock.advance(5)
        self.tube.ack(self.take())
        assert self.result_of(call)

    def test_wait_empty_ignores_buried_tasks(self) -> None:
        task = self.put_and_bury()
        assert self.tube.join(0)
        self.tube.kick(task=task)
        assert not self.tube.join(0)

    def test_a_paused_tube_is_empty_when_it_has_no_tasks(self) -> None:
        self.put()
        self.tube.pause()
        assert not self.tube.join(0)
        self.tube.truncate()
        assert self.tube.join(0)

    def test_removal_of_the_last_task_wakes_wait_empty(self) -> None:
        other = self.add_worker()
        ends: dict[str, Callable[[], object]] = {
            "ack": lambda: other.tube.ack(self.take(other.tube)),
            "ack_many": lambda: other.tube.ack_many([self.take(other.tube)]),
            "delete": lambda: other.tube.delete(self._ids[-1]),
            "cancel": lambda: other.tube.cancel(self._ids[-1]),
            "delete_many": lambda: other.tube.delete_many([self._ids[-1]]),
            "bury": lambda: other.tube.bury(self._ids[-1]),
            "truncate": lambda: other.tube.truncate(),
        }
        for end in ends.values():
            self.put()
            call = self.begin_wait()
            end()
            assert self.result_of(call)

    def test_burial_after_the_last_attempt_wakes_join(self) -> None:
        self.put(max_attempts=1)
        call = self.begin_wait()
        self.take().release()
        assert self.result_of(call)
        assert self.count("buried") == 1

    @needs("ttl")
    def test_ttl_expiry_of_the_last_task_wakes_join(self) -> None:
        self.put(ttl=5)
        call = self.begin_wait()
        assert eventually(lambda: self.ends_later(call))
        assert self.result_of(call)

    def test_join_waits_for_the_last_of_many_tasks(self) -> None:
        tasks = [self.put() for _ in range(30)]
        calls = [self.begin_wait() for _ in range(5)]
        for task in tasks[:-1]:
            self.tube.delete(task.id)
        assert not any(call.done() for call in calls)
        self.tube.delete(tasks[-1].id)
        assert all(self.result_of(call) for call in calls)

    def test_wait_empty_counts_tasks_kicked_or_put_meanwhile(self) -> None:
        buried = self.put_and_bury()
        first = self.put()
        call = self.begin_wait()
        self.tube.kick(task=buried)
        second = self.put()
        self.tube.delete(first.id)
        self.tube.delete(buried.id)
        assert not call.done()
        self.tube.delete(second.id)
        assert self.result_of(call)

    def test_put_waiting_for_room_is_served_before_join(self) -> None:
        tube = self.create("small", capacity=1)
        first = tube.put("first", **self.lane("a"))
        put = self.begin(tube, "put", "second", timeout=60, **self.lane("a"))
        call = self.begin_wait(tube=tube)
        tube.delete(first)
        assert self.result_of(put).data == "second"
        assert not call.done()
        tube.delete(self.result_of(put).id)
        assert self.result_of(call)

    def test_join_returns_false_after_its_timeout(self) -> None:
        self.put()
        call = self.begin_wait(5)
        assert eventually(lambda: self.ends_later(call))
        assert self.result_of(call) is False
        assert not self.tube.join(0)

    def test_dropped_tube_and_closed_queue_end_join(self) -> None:
        self.put()
        worker = self.add_worker()
        dropped, closed = self.begin_wait(), self.begin_wait(tube=worker.tube)
        worker.queue.close()
        assert isinstance(closed.exception(10), QueueClosed)
        self.add_worker().tube.drop()
        assert isinstance(dropped.exception(10), TubeNotFound)

    def test_join_is_not_counted_as_a_waiting_take(self) -> None:
        self.put()
        call = self.begin_wait()
        assert self.tube.statistics().waiting == 0
        self.tube.truncate()
        assert self.result_of(call)

    def test_join_refuses_bad_timeouts(self) -> None:
        for bad in (-1, float("nan"), True, "1", timedelta(seconds=-1)):
            with self.expect_error(InvalidOption):
                self.tube.join(bad)
