"""Kept done tasks: the number that one call forgets."""

from __future__ import annotations

import pytest

import tubes
from tests.support.internals import port_of
from tubes.testing import ManualClock


def test_expired_done_tasks_are_removed_in_chunks(clock: ManualClock, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", keep_done=5)
    stored = port_of(tube).shared.engine.done
    tube.put_many(range(1200))
    tube.ack_many(tube.take_many(1200))
    assert len(stored.all()) == 1200
    clock.advance(5)
    left: list[int] = []
    while stored.all():
        tube.put(0)
        assert ([*tube.select("done")], tube.statistics().kept) == ([], 0)
        left.append(len(stored.all()))
        clock.advance(0.001)
    assert left == [700, 200, 0]


def test_done_task_is_not_found_when_its_time_is_over(clock: ManualClock, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", keep_done=5)
    tube.put_many(range(1200))
    tube.ack_many(tube.take_many(1200))
    clock.advance(5)
    with pytest.raises(tubes.TaskNotFound):  # The task is still stored, because a call forgets only some.
        tube.peek(1199)


def test_smaller_keep_done_max_applies_at_once_and_trims_in_chunks(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", keep_done=5)
    engine = port_of(tube).shared.engine
    tube.put_many(range(1200))
    tube.ack_many(tube.take_many(1200))
    assert [engine.done.trim(100) for _ in range(3)] == [True, True, False]
    assert [task.id for task in tube.select("done")] == list(range(1199, 1099, -1))
    tube.alter(keep_done_max=7)
    assert tube.statistics().kept == 7
