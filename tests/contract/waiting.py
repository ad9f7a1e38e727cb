"""Waiting calls: their order, their timeouts and their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, Worker, eventually, needs
from tubes import QueueClosed, TaskNotTaken, TubeBusy, TubeNotFound

if TYPE_CHECKING:
    from concurrent.futures import Future


#: The calls that can wait: their arguments, and their return value after the timeout.
CALLS: dict[str, tuple[list[object], object]] = {
    "take": ([], None),
    "take_many": ([3], []),
    "take_any": ([["contract", "other"]], None),
    "put": (["late"], None),
    "put_many": ([["late", "later"]], []),
}
every_call = pytest.mark.parametrize("method", CALLS)


class Waiting(Bench):
    """Waiting."""

    # -- every call that waits -----------------------------------------------------------------------------------------

    def wait(self, method: str, timeout: float = 9) -> tuple[Worker, Future[object]]:
        """Switch to a full tube (for puts) or an empty one, and start a call there in a new session."""
        if self.tube.name == "contract":
            self.tube = self.create("other", capacity=2)
            if method.startswith("put"):
                self.puts(2)
        worker = self.add_worker()
        where = worker.queue if method == "take_any" else worker.tube
        return worker, self.begin(where, method, *CALLS[method][0], timeout=timeout)

    def serve(self, method: str) -> None:
        """Serve such a call: make room or put a task."""
        self.tube.truncate() if method.startswith("put") else self.put()

    def is_idle_after(self, method: str) -> bool:
        """Return True if no caller waits and the ended call has no later effect."""
        assert self.has_waiters(0)
        self.serve(method)
        total = 0 if method.startswith("put") else 1
        assert (self.count("total"), self.count("ready")) == (total, total)
        return True

    @every_call
    def test_waiting_call_ends_exactly_at_its_timeout(self, method: str) -> None:
        _, call = self.wait(method, timeout=5)
        self.clock.advance(4.9)
        assert self.has_waiters(1)
        assert not call.done()
        self.clock.advance(0.1)
        assert self.result_of(call) == CALLS[method][1]
        assert self.is_idle_after(method)

    @every_call
    @pytest.mark.parametrize("end", ["close", "detach"])
    def test_closed_queue_ends_only_its_own_waiting_calls(self, method: str, end: str) -> None:
        (worker, theirs), (_, mine) = self.wait(method), self.wait(method)
        (worker.queue.close if end == "close" else worker.queue.admin.detach)()
        with pytest.raises(QueueClosed):
            self.result_of(theirs)
        assert self.has_waiters(1)
        self.serve(method)
        assert self.result_of(mine)

    @every_call
    def test_tube_with_waiters_is_busy_and_forced_drop_ends_their_calls(self, method: str) -> None:
        calls = [call for _, call in (self.wait(method), self.wait(method))]
        assert self.has_waiters(2)
        with self.expect_error(TubeBusy):
            self.add_worker().tube.drop()
        self.tube.drop(force=True)
        for call in calls:
            with pytest.raises(TubeNotFound):
                self.result_of(call)

    @every_call
    def test_cancelled_waiting_call_has_no_effect(self, method: str) -> None:
        self.require_asyncio()
        self.wait(method)[1].cancel()
        assert self.is_idle_after(method)

    # -- takes ---------------------------------------------------------------------------------------------------------

    def test_a_take_that_finds_a_task_does_not_wait(self) -> None:
        task = self.put()
        assert self.result_of(self.begin(timeout=5)).id == task.id

    def test_a_put_serves_a_waiting_take(self) -> None:
        call = self.begin()
        assert self.has_waiters(1)
        task = self.put("data")
        taken = self.result_of(call)
        assert (taken.id, taken.state, taken.data) == (task.id, "taken", "data")
        assert self.has_waiters(0)

    def test_put_returns_a_ready_task_even_if_a_take_waits(self) -> None:
        call = self.begin()
        assert self.put().state == "ready"
        assert self.result_of(call).attempts == 1

    def test_one_task_serves_one_waiting_take(self) -> None:
        calls = [self.begin(), self.begin()]
        task = self.put()
        assert self.result_of(calls[0]).id == task.id
        assert self.has_waiters(1)
        assert not calls[1].done()

    def test_waiting_takes_are_served_in_arrival_order(self) -> None:
        calls = [self.begin(self.add_worker().tube, timeout=timeout) for timeout in (9, 3, None)]
        for call in calls:
            task = self.put()
            assert self.result_of(call).id == task.id

    def test_waiting_take_precedes_a_later_take(self) -> None:
        call, task = self.begin(), self.put()
        assert self.tube.take(timeout=0) is None
        assert self.result_of(call).id == task.id

    def test_task_of_a_waiting_take_belongs_to_its_session(self) -> None:
        worker = self.add_worker()
        call = self.begin(worker.tube)
        self.put()
        task = self.result_of(call)
        with self.expect_error(TaskNotTaken):
            self.tube.ack(task.id)
        assert worker.tube.ack(task).state == "done"

    def test_take_without_timeout_waits_indefinitely(self) -> None:
        call = self.begin()
        self.clock.advance(50 * 365 * 86400)
        assert self.has_waiters(1)
        self.put()
        assert self.result_of(call).state == "taken"

    def test_each_take_has_its_own_timeout(self) -> None:
        calls = [self.begin(timeout=timeout) for timeout in (3, 1, 2)]
        for call in (calls[1], calls[2], calls[0]):
            self.clock.advance(1)
            assert self.result_of(call) is None
        assert self.has_waiters(0)

    def test_timed_out_take_takes_no_task(self) -> None:
        early, late = self.begin(timeout=1), self.begin(timeout=9)
        self.clock.advance(1)
        assert self.result_of(early) is None
        task = self.put()
        assert self.result_of(late).id == task.id
        assert self.state(self.put()) == "ready"

    def test_a_take_of_timeout_0_never_waits(self) -> None:
        assert self.result_of(self.begin(timeout=0)) is None
        assert self.has_waiters(0)

    def test_take_refuses_bad_timeouts(self) -> None:
        self.put()
        assert self.refuses(self.tube.take, -1, float("nan"), float("inf"), "1", True, False)

    def test_task_released_by_a_closing_session_does_not_serve_that_session(self) -> None:
        worker = self.add_worker()
        self.put()
        task = self.take(worker.tube)
        theirs, mine = self.begin(worker.tube), self.begin()
        worker.queue.close()
        with pytest.raises(QueueClosed):
            self.result_of(theirs)
        assert self.result_of(mine).id == task.id

    def test_truncate_does_not_end_waiting_takes(self) -> None:
        call = self.begin()
        self.tube.truncate()
        assert self.has_waiters(1)
        task = self.put()
        assert self.result_of(call).id == task.id

    def test_waiting_take_takes_for_the_session_joined_meanwhile(self) -> None:
        worker = self.add_worker()
        call = self.begin(worker.tube)
        worker.queue.admin.identify(self.queue.admin.identify())
        self.put()
        task = self.result_of(call)
        assert self.tube.ack(task.id).state == "done"

    def test_many_waiting_takes_lose_no_task(self) -> None:
        workers = [self.add_worker() for _ in range(3)]
        calls = [self.begin(workers[number % 3].tube) for number in range(9)]
        tasks = [self.put(number) for number in range(9)]
        assert [self.result_of(call).id for call in calls] == [task.id for task in tasks]

    def test_cancelled_take_takes_no_task(self) -> None:
        self.require_asyncio()
        early, late = self.begin(), self.begin()
        early.cancel()
        task = self.put()
        assert self.result_of(late).id == task.id
        assert self.has_waiters(0)
        assert self.state(self.put()) == "ready"

    def test_take_cancelled_too_late_returns_its_task(self) -> None:
        self.require_asyncio()
        tube = self.tube.inner
        cancelled = self.cancel_late(tube.take, tube, lambda: tube.put("data", max_attempts=1))
        counts = [1, 0, 0] if cancelled else [0, 1, 1]
        assert eventually(lambda: [self.count(name) for name in ("ready", "taken", "take")] == counts)
        if cancelled:
            assert self.take().attempts == 1

    @needs("ttl")
    def test_task_with_ttl_0_serves_no_waiter(self) -> None:
        call = self.begin()
        self.put(ttl=0)
        assert self.has_waiters(1)
        assert not call.done()
