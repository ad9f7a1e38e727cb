"""The statements that end a task automatically: `with task`, `taking`, `for task in tube`."""

from __future__ import annotations

import logging

import pytest

from tests.contract.bench import Bench, eventually, needs
from tubes import NothingReady, TaskNotTaken


class OopsError(Exception):
    """The error that a block raises."""


class Loops(Bench):
    """Blocks and loops."""

    def test_a_block_that_ends_acks_its_task(self) -> None:
        task = self.put_and_take(data="data")
        with task as inner:
            assert inner.data == "data"
        assert (self.state(task), self.count("ack")) == ("done", 1)

    def test_a_block_that_raises_releases_its_task(self) -> None:
        task = self.put_and_take()
        with pytest.raises(OopsError), task:
            raise OopsError
        assert (self.state(task), self.count("release")) == ("ready", 1)

    def test_block_leaves_an_already_finished_task_alone(self) -> None:
        for method, left in (("ack", "done"), ("delete", "done"), ("bury", "buried"), ("release", "ready")):
            task = self.put_and_take()
            with task:
                getattr(task, method)()
            assert (self.state(task), self.count(method)) == (left, 1)

    def test_block_leaves_a_task_finished_through_the_tube_alone(self) -> None:
        task = self.put_and_take()
        with task:
            self.tube.release(task)
        assert self.state(task) == "ready"

    @needs("ttr")
    def test_block_acks_a_touched_task_when_it_ends(self) -> None:
        task = self.put_and_take(ttr=5)
        with task:
            task.touch(5)
            self.clock.advance(9)
        assert (self.state(task), self.count("ack")) == ("done", 1)

    def test_block_raises_if_its_task_was_lost(self) -> None:
        task = self.put_and_take()
        with pytest.raises(TaskNotTaken), task:
            self.tube.admin.release_all()
        assert self.state(task) == "ready"

    def test_block_error_is_raised_instead_of_the_loss_of_the_task(self) -> None:
        task = self.put_and_take()

        def work() -> None:
            with task:
                self.tube.admin.release_all()
                raise OopsError

        with pytest.raises(OopsError):
            work()
        assert self.state(task) == "ready"

    def test_taking_acks_its_task(self) -> None:
        put = self.put()
        with self.tube.taking(timeout=0) as task:
            assert (task.id, task.state) == (put.id, "taken")
        assert self.state(put) == "done"

    @needs("ttr")
    def test_taking_accepts_a_ttr(self) -> None:
        self.put(ttr=60)
        with self.tube.taking(timeout=0, ttr=5) as task:
            assert task.due == self.clock.now() + 5

    def test_taking_releases_its_task_when_the_block_raises(self) -> None:
        put = self.put()
        with pytest.raises(OopsError), self.tube.taking(timeout=0):
            raise OopsError
        assert self.state(put) == "ready"

    def test_taking_raises_nothing_ready_when_there_is_no_task(self) -> None:
        with self.expect_error(NothingReady), self.tube.taking(timeout=0):
            pytest.fail("the block was entered without a task")

    def test_loop_acks_each_task_before_taking_the_next(self) -> None:
        tasks = self.puts(3)
        seen: list[str] = []
        for task in self.tube:
            seen.append(" ".join(self.state(each) for each in tasks))
            if len(seen) == 3:
                task.ack()
                break
        assert seen == ["taken ready ready", "done taken ready", "done done taken"]
        assert self.count("ack") == 3

    def test_leaving_a_loop_releases_its_last_task(self) -> None:
        tasks = self.puts(2)
        for task in self.tube:
            assert task.id == tasks[0].id
            break
        assert eventually(lambda: [self.state(task) for task in tasks] == ["ready", "ready"])

    def test_a_loop_that_raises_releases_its_last_task(self) -> None:
        task = self.put()

        def work() -> None:
            for _ in self.tube:
                raise OopsError

        with pytest.raises(OopsError):
            work()
        assert eventually(lambda: self.state(task) == "ready")

    def test_loop_leaves_an_already_finished_task_alone(self) -> None:
        task = self.put()
        for each in self.tube:
            each.bury()
            break
        assert (self.state(task), self.count("release")) == ("buried", 0)

    def test_a_loop_ends_when_its_queue_is_closed(self) -> None:
        worker, tasks = self.add_worker(), self.puts(2)
        seen: list[int] = []
        for task in worker.tube:
            seen.append(task.id)
            worker.queue.close()
        assert seen == [tasks[0].id]
        assert eventually(lambda: [self.state(task) for task in tasks] == ["ready", "ready"])

    def test_loop_logs_a_lost_task_and_continues(self, caplog: pytest.LogCaptureFixture) -> None:
        tasks = self.puts(2)
        seen: list[int] = []
        with caplog.at_level(logging.WARNING):
            for task in self.tube:
                seen.append(task.id)
                if len(seen) == 1:
                    self.tube.delete(task.id)
                else:
                    break
        assert seen == [task.id for task in tasks]
        assert str(tasks[0].id) in caplog.text
