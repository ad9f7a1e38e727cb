"""The forms that end a task by themselves: `with task`, `taking`, `for task in tube`."""

from __future__ import annotations

import logging

import pytest

from tubes import NothingReady, State, TaskNotTaken
from tubes.conformance.bench import Bench, eventually, needs


class OopsError(Exception):
    """What a block raises."""


class Loops(Bench):
    """Blocks and loops."""

    def test_a_block_that_ends_acks_its_task(self) -> None:
        task = self.taken(data="data")
        with task as inner:
            assert inner.data == "data"
        assert (self.state(task), self.count("ack")) == ("-", 1)

    def test_a_block_that_raises_releases_its_task(self) -> None:
        task = self.taken()
        with pytest.raises(OopsError), task:
            raise OopsError
        assert (self.state(task), self.count("release")) == ("r", 1)

    def test_a_block_leaves_a_task_alone_that_was_dealt_with(self) -> None:
        for verb, left in (("ack", "-"), ("delete", "-"), ("bury", "!"), ("release", "r")):
            task = self.taken()
            with task:
                getattr(task, verb)()
            assert (self.state(task), self.count(verb)) == (left, 1)

    def test_a_block_that_deals_with_its_task_through_the_tube_is_left_alone_too(self) -> None:
        task = self.taken()
        with task:
            self.tube.release(task)
        assert self.state(task) == "r"

    @needs("ttr")
    def test_a_block_keeps_a_touched_task_until_it_ends(self) -> None:
        task = self.taken(ttr=5)
        with task:
            task.touch(5)
            self.clock.advance(9)
        assert (self.state(task), self.count("ack")) == ("-", 1)

    def test_a_block_whose_task_was_lost_says_so(self) -> None:
        task = self.taken()
        with pytest.raises(TaskNotTaken), task:
            self.tube.release_all()
        assert self.state(task) == "r"

    def test_a_block_that_raises_says_so_rather_than_that_its_task_was_lost(self) -> None:
        task = self.taken()

        def work() -> None:
            with task:
                self.tube.release_all()
                raise OopsError

        with pytest.raises(OopsError):
            work()
        assert self.state(task) == "r"

    def test_taking_acks_what_it_took(self) -> None:
        put = self.put()
        with self.tube.taking(timeout=0) as task:
            assert (task.id, task.state) == (put.id, State.TAKEN)
        assert self.state(put) == "-"

    @needs("ttr")
    def test_taking_may_say_for_how_long(self) -> None:
        self.put(ttr=60)
        with self.tube.taking(timeout=0, ttr=5) as task:
            assert task.due == self.clock.now() + 5

    def test_taking_releases_what_it_took_when_its_block_raises(self) -> None:
        put = self.put()
        with pytest.raises(OopsError), self.tube.taking(timeout=0):
            raise OopsError
        assert self.state(put) == "r"

    def test_taking_says_when_there_was_nothing_to_take(self) -> None:
        with self.refused(NothingReady), self.tube.taking(timeout=0):
            pytest.fail("the block was entered without a task")

    def test_a_loop_acks_each_task_when_it_comes_back_for_the_next(self) -> None:
        tasks = self.puts(3)
        seen: list[str] = []
        for task in self.tube:
            seen.append("".join(self.state(each) for each in tasks))
            if len(seen) == 3:
                task.ack()
                break
        assert seen == ["trr", "-tr", "--t"]
        assert self.count("ack") == 3

    def test_a_loop_that_is_left_releases_its_last_task(self) -> None:
        tasks = self.puts(2)
        for task in self.tube:
            assert task.id == tasks[0].id
            break
        assert eventually(lambda: [self.state(task) for task in tasks] == ["r", "r"])

    def test_a_loop_that_raises_releases_its_last_task(self) -> None:
        task = self.put()

        def work() -> None:
            for _ in self.tube:
                raise OopsError

        with pytest.raises(OopsError):
            work()
        assert eventually(lambda: self.state(task) == "r")

    def test_a_loop_leaves_a_task_alone_that_was_dealt_with(self) -> None:
        task = self.put()
        for each in self.tube:
            each.bury()
            break
        assert (self.state(task), self.count("release")) == ("!", 0)

    def test_a_loop_ends_when_its_queue_is_closed(self) -> None:
        worker, tasks = self.another(), self.puts(2)
        seen: list[int] = []
        for task in worker.tube:
            seen.append(task.id)
            worker.queue.close()
        assert seen == [tasks[0].id]
        assert eventually(lambda: [self.state(task) for task in tasks] == ["r", "r"])

    def test_a_loop_goes_on_when_a_task_was_lost_and_logs_it(self, caplog: pytest.LogCaptureFixture) -> None:
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
