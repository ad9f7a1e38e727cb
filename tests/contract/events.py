"""Notifications and counts: `on_task_change` and `statistics`."""

from __future__ import annotations

import logging

import pytest

from tests.contract.bench import Bench, eventually, lacks, needs
from tubes import Task, TaskNotFound, TaskNotTaken

TASKS = {"ready", "taken", "buried", "delayed", "done", "total"}
CALLS = {"put", "take", "ack", "release", "touch", "bury", "kick", "delete", "delay", "ttl", "ttr"}


class Events(Bench):
    """Events and counts."""

    def test_listener_receives_every_state_change(self) -> None:
        events = self.listen()
        id = self.put().id
        self.tube.release(self.take())
        self.tube.bury(id)
        self.tube.select("buried", limit=1).kick()
        self.tube.ack(self.take())
        assert self.has_received(
            events,
            [
                ("put", id, "ready"),
                ("take", id, "taken"),
                ("release", id, "ready"),
                ("bury", id, "buried"),
                ("kick", id, "ready"),
                ("take", id, "taken"),
                ("delete", id, "done"),
            ],
        )

    def test_listener_receives_a_delete(self) -> None:
        task, events = self.put(), self.listen()
        self.tube.delete(task)
        assert self.has_received(events, [("delete", task.id, "done")])

    def test_listener_receives_changes_of_other_sessions(self) -> None:
        worker, events = self.add_worker(), self.listen()
        task = self.put(tube=worker.tube)
        self.take(worker.tube)
        worker.queue.close()
        assert self.has_received(
            events, [("put", task.id, "ready"), ("take", task.id, "taken"), ("release", task.id, "ready")]
        )

    def test_listener_receives_the_take_of_a_waiter(self) -> None:
        call, events = self.begin(), self.listen()
        task = self.put()
        self.result_of(call)
        assert self.has_received(events, [("put", task.id, "ready"), ("take", task.id, "taken")])

    @needs("delay", "ttl", "ttr")
    def test_listener_receives_changes_caused_by_time(self) -> None:
        events = self.listen()
        id = self.put(delay=1, ttl=9).id
        self.clock.advance(1)
        self.tube.touch(self.take(), 1)
        self.tube.release(self.tube.peek(id), delay=2)
        self.clock.advance(20)
        assert self.has_received(
            events,
            [
                ("put", id, "delayed"),
                ("delay", id, "ready"),
                ("take", id, "taken"),
                ("touch", id, "taken"),
                ("release", id, "delayed"),
                ("delay", id, "ready"),
                ("ttl", id, "done"),
            ],
        )

    @needs("ttr")
    def test_listener_receives_the_end_of_a_ttr(self) -> None:
        task, events = self.put_and_take(ttr=5), self.listen()
        self.clock.advance(5)
        assert self.has_received(events, [("ttr", task.id, "ready")])

    @needs("ttl")
    @lacks("ttl_spares_taken")
    def test_ttl_end_of_a_taken_task_is_reported_as_ttr_and_ttl(self) -> None:
        task, events = self.put_and_take(ttl=5), self.listen()
        self.clock.advance(5)
        assert self.has_received(events, [("ttr", task.id, "ready"), ("ttl", task.id, "done")])

    def test_calls_without_effect_are_not_reported_to_listeners(self) -> None:
        task, events = self.put_and_bury(), self.listen()
        self.tube.bury(task)
        self.tube.select("buried", limit=0).kick()
        self.tube.peek(task)
        self.tube.take(timeout=0)
        for method, error in (("ack", TaskNotTaken), ("release", TaskNotTaken), ("delete", TaskNotFound)):
            with pytest.raises(error):
                getattr(self.tube, method)(task.id + 1000)
        self.tube.truncate()
        last = self.put()
        assert self.has_received(events, [("put", last.id, "ready")])

    def test_on_task_change_replaces_and_returns_the_previous_callback(self) -> None:
        calls: list[str] = []

        def first(task: Task, event: str) -> None:
            calls.append("first")

        def second(task: Task, event: str) -> None:
            calls.append("second")

        assert self.tube.on_task_change(first) is None
        assert self.tube.on_task_change(second) is first
        self.put()
        assert eventually(lambda: calls == ["second"])
        assert self.tube.on_task_change(None) is second
        self.put()
        self.tube.on_task_change(first)
        self.put()
        assert eventually(lambda: calls == ["second", "first"])

    def test_callback_is_not_called_after_its_queue_is_closed(self) -> None:
        worker, calls = self.add_worker(), list[str]()

        def callback(task: Task, event: str) -> None:
            calls.append(event)

        worker.tube.on_task_change(callback)
        self.put()
        assert eventually(lambda: calls == ["put"])
        worker.queue.close()
        events = self.listen()
        task = self.put()
        assert self.has_received(events, [("put", task.id, "ready")])
        assert calls == ["put"]

    def test_failing_callback_is_logged_and_has_no_effect(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(task: Task, event: str) -> None:
            raise RuntimeError("the callback failed")

        self.tube.on_task_change(fail)
        with caplog.at_level(logging.ERROR):
            task = self.put()
            assert self.tube.ack(self.take()).id == task.id
            assert eventually(lambda: "the callback failed" in caplog.text)

    def test_callback_that_is_not_callable_is_refused(self) -> None:
        assert self.refuses(self.tube.on_task_change, 1, "name")

    def test_tasks_are_counted_by_state(self) -> None:
        self.tube.ack(self.put_and_take())
        self.put_and_take()
        self.put_and_bury()
        self.put()
        self.put()
        assert self.tube.statistics().tasks == {
            "ready": 2, "taken": 1, "buried": 1, "delayed": 0, "done": 1, "total": 4
        }  # fmt: skip

    def test_a_new_tube_counts_nothing(self) -> None:
        statistics = self.tube.statistics()
        assert statistics.tasks == dict.fromkeys(TASKS, 0)
        assert statistics.calls == dict.fromkeys(CALLS, 0)
        assert statistics.waiting == 0

    def test_call_counts_equal_the_number_of_affected_tasks(self) -> None:
        for _ in range(3):
            self.put_and_bury()
        self.tube.select("buried", limit=9).kick()
        for method in ("ack", "release", "delete"):
            getattr(self.tube, method)(self.take())
        self.take()
        self.tube.admin.release_all()
        done = {"put": 3, "bury": 3, "kick": 3, "take": 4, "ack": 1, "release": 2, "delete": 1}
        assert self.tube.statistics().calls == dict.fromkeys(CALLS, 0) | done

    @needs("ttr")
    def test_a_touch_counts_once(self) -> None:
        task = self.put_and_take(ttr=5)
        self.tube.touch(task, 1)
        self.tube.touch(task, 0)
        assert self.count("touch") == 1

    def test_truncate_keeps_the_counts(self) -> None:
        self.tube.ack(self.put_and_take())
        self.put()
        self.tube.truncate()
        assert [self.count(name) for name in ("put", "ack", "done", "delete", "total")] == [2, 1, 1, 0, 0]

    def test_queue_statistics_cover_all_its_tubes(self) -> None:
        self.put()
        self.create("elsewhere")
        assert self.queue.statistics("contract") == self.tube.statistics()
        assert {name: counts.tasks["total"] for name, counts in self.queue.statistics().items()} == {
            "contract": 1,
            "elsewhere": 0,
        }
