"""Intended differences from the original: a test for each, with a comment on the original behaviour."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.faces import Face
from tubes import InvalidOption, OptionNotSupported, QueueClosed, TaskNotFound, TaskNotTaken, TubeExists
from tubes.testing import ManualClock

DRIVERS = ("fifo", "fifottl", "limfifottl", "utube", "utubettl")
TIMED = ("fifottl", "limfifottl", "utubettl")
LANES = ("utube", "utubettl")
PUT_OPTIONS: dict[str, Any] = {"pri": 1, "ttl": 9, "ttr": 9, "delay": 1, "utube": "x"}
KNOWN = {
    "fifo": set[str](),
    "fifottl": {"pri", "ttl", "ttr", "delay"},
    "limfifottl": {"pri", "ttl", "ttr", "delay"},
    "utube": {"utube"},
    "utubettl": {"pri", "ttl", "ttr", "delay", "utube"},
}
NO_SPANS = [-1, -0.1, math.nan, math.inf, "5", True, [1]]


@pytest.fixture
def root(face: Face, clock: ManualClock) -> Iterator[Any]:
    queue = face.connect("memory://", clock=clock)
    yield queue
    queue.close()


# -- 1. ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_id_of_a_removed_task_is_not_reused(root: Any, driver: str) -> None:
    # The original uses the largest existing id plus one, and 0 in an empty tube.
    tube = root.create_tube("t", driver)
    assert [tube.put(None).id for _ in range(3)] == [0, 1, 2]
    tube.delete(2)
    assert tube.put(None).id == 3
    for id in (0, 1, 3):
        tube.delete(id)
    assert tube.put(None).id == 4


@pytest.mark.parametrize("driver", DRIVERS)
def test_late_ack_does_not_affect_another_task(root: Any, driver: str) -> None:
    # In the original, the new task has the id of the old one, and the ack removes the unfinished new task.
    tube = root.create_tube("t", driver)
    tube.put("old")
    old = tube.take(0).id
    tube.delete(old)
    tube.put("new")
    assert tube.take(0).data == "new"
    with pytest.raises(TaskNotTaken):
        tube.ack(old)
    assert tube.statistics().tasks["taken"] == 1


@pytest.mark.parametrize("driver", DRIVERS)
def test_truncate_does_not_restart_the_ids(root: Any, driver: str) -> None:
    # In the original, ids start at 0 again.
    tube = root.create_tube("t", driver)
    tube.put(None)
    tube.truncate()
    assert tube.put(None).id == 1


@pytest.mark.parametrize("driver", DRIVERS)
def test_truncate_leaves_no_owner_behind(root: Any, driver: str) -> None:
    # In the original, an ack then fails with "not found", and a drop is refused until the id is put again.
    tube = root.create_tube("t", driver)
    tube.put(None)
    task = tube.take(0)
    other = root.session()
    other.tube("t").truncate()
    for method in (tube.ack, tube.release):
        with pytest.raises(TaskNotTaken):
            method(task.id)
    with pytest.raises(TaskNotTaken):
        tube.touch(task.id, 1)
    other.tube("t").drop()
    assert root.tubes() == []


def test_session_end_after_truncate_releases_tasks_in_other_tubes(root: Any) -> None:
    # In the original, the loop stops at the missing task, and the other tasks stay taken forever.
    names = ["a", "b", "c"]
    worker = root.session()
    for name in names:
        root.create_tube(name).put(name)
        worker.tube(name).take(0)
    root.tube("a").truncate()
    worker.close()
    assert [root.tube(name).statistics().tasks["ready"] for name in names] == [0, 1, 1]


# -- 2. options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "option"),
    [(driver, option) for driver in DRIVERS for option in PUT_OPTIONS if option not in KNOWN[driver]],
)
def test_a_put_option_that_the_driver_lacks_is_refused(root: Any, driver: str, option: str) -> None:
    # The original ignores it.
    tube = root.create_tube("t", driver)
    with pytest.raises(OptionNotSupported):
        tube.put(None, **{option: PUT_OPTIONS[option]})
    assert tube.statistics().calls["put"] == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_tube_option_that_the_driver_lacks_is_refused(root: Any, driver: str) -> None:
    # The original ignores and stores it.
    known = KNOWN[driver] & {"pri", "ttl", "ttr"}
    for option in {"pri", "ttl", "ttr", "nonsense"} - known:
        with pytest.raises(OptionNotSupported):
            root.create_tube("t", driver, **{option: 1})
    assert root.tubes() == []


@pytest.mark.parametrize("driver", ["fifo", "utube"])
def test_release_with_delay_is_refused_where_the_driver_has_no_delay(root: Any, driver: str) -> None:
    # The original ignores it and releases the task.
    tube = root.create_tube("t", driver)
    tube.put(None)
    task = tube.take(0)
    for delay in (0, 1):
        with pytest.raises(OptionNotSupported):
            tube.release(task.id, delay=delay)
    assert tube.peek(task.id).state == "taken"


@pytest.mark.parametrize("driver", ["fifo", "utube"])
def test_touch_is_refused_and_not_counted_where_the_driver_has_no_ttr(root: Any, driver: str) -> None:
    # The original also refuses it, but counts the call, and returns null for 0 or less.
    tube = root.create_tube("t", driver)
    tube.put(None)
    for seconds in (0, 1):
        with pytest.raises(TaskNotTaken):
            tube.touch(0, seconds)
    tube.take(0)
    for seconds in (0, 1):
        with pytest.raises(OptionNotSupported):
            tube.touch(0, seconds)
    assert tube.statistics().calls["touch"] == 0


@pytest.mark.parametrize("driver", TIMED)
@pytest.mark.parametrize("option", ["ttl", "ttr", "delay", "timeout"])
def test_put_and_create_tube_refuse_bad_spans(root: Any, driver: str, option: str) -> None:
    # The original treats negative values as 0, and checks the defaults of a tube at the first put.
    tube = root.create_tube("t", driver)
    for span in NO_SPANS if option in KNOWN[driver] else []:
        with pytest.raises(InvalidOption):
            tube.put(None, **{option: span})
        if option in ("ttl", "ttr"):
            with pytest.raises(InvalidOption):
                root.create_tube("other", driver, **{option: span})
    assert tube.statistics().calls["put"] == 0
    assert root.tubes() == ["t"]


@pytest.mark.parametrize("driver", TIMED)
def test_release_and_touch_refuse_bad_spans(root: Any, driver: str) -> None:
    # The original treats a negative delay as 0, and ignores a touch by less than 0.
    tube = root.create_tube("t", driver)
    tube.put(None)
    task = tube.take(0)
    for span in NO_SPANS:
        with pytest.raises(InvalidOption):
            tube.release(task.id, delay=span)
        with pytest.raises(InvalidOption):
            tube.touch(task.id, span)
    with pytest.raises(InvalidOption):
        tube.touch(task.id, None)
    assert tube.peek(task.id) == task


@pytest.mark.parametrize("driver", DRIVERS)
def test_take_refuses_bad_timeouts(root: Any, driver: str) -> None:
    # The original does not wait with a negative timeout.
    tube = root.create_tube("t", driver)
    tube.put(None)
    for timeout in NO_SPANS:
        with pytest.raises(InvalidOption):
            tube.take(timeout)
    assert tube.peek(0).state == "ready"


@pytest.mark.parametrize("driver", TIMED)
def test_touch_by_0_changes_nothing_and_is_only_for_the_holder(root: Any, driver: str) -> None:
    # The original returns null to all callers, for any id.
    tube = root.create_tube("t", driver)
    tube.put(None, ttl=9, ttr=9)
    with pytest.raises(TaskNotTaken):
        tube.touch(0, 0)
    task = tube.take(0)
    assert tube.touch(0, 0) == task
    for other, id in ((root.session(), 0), (root, 99)):
        with pytest.raises(TaskNotTaken):
            other.tube("t").touch(id, 0)
    assert tube.statistics().calls["touch"] == 0


@pytest.mark.parametrize("driver", TIMED)
def test_bad_priority_is_refused(root: Any, driver: str) -> None:
    # The original refuses it only in a put; as the default of a tube it makes every put fail.
    tube = root.create_tube("t", driver)
    for pri in (-1, 1.5, "1", True):
        with pytest.raises(InvalidOption):
            tube.put(None, pri=pri)
        with pytest.raises(InvalidOption):
            root.create_tube("other", driver, pri=pri)
    assert (tube.statistics().calls["put"], root.tubes()) == (0, ["t"])


@pytest.mark.parametrize("driver", LANES)
def test_bad_lane_name_is_refused(root: Any, driver: str) -> None:
    # The original converts any value to text.
    tube = root.create_tube("t", driver)
    for utube in (1.5, ["x"], b"x"):
        with pytest.raises(InvalidOption):
            tube.put(None, utube=utube)
    assert tube.statistics().calls["put"] == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_negative_kick_is_refused(root: Any, driver: str) -> None:
    # The original returns the negative number.
    tube = root.create_tube("t", driver)
    tube.put(None)
    tube.bury(0)
    for count in (-1, -2, 1.5, "2", True):
        with pytest.raises(InvalidOption):
            tube.select("buried", limit=count).kick()
    assert tube.peek(0).state == "buried"


@pytest.mark.parametrize("driver", TIMED)
def test_task_with_ttl_0_expires_before_any_take(face: Face, root: Any, driver: str) -> None:
    # The original shows it until its timer runs, but does not hand it out either.
    tube = root.create_tube("t", driver)
    waiting = face.begin(tube, "take")
    assert tube.put(None, ttl=0).state == "ready"
    with pytest.raises(TaskNotFound):
        tube.peek(0)
    tube.put("next")
    assert waiting.result(9).data == "next"


# -- 3. waiting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_waiting_takes_are_served_in_order_of_arrival(face: Face, root: Any, driver: str) -> None:
    # The original serves the smallest timeout first, and without timeouts the lowest connection.
    tube = root.create_tube("t", driver)
    waiting = [face.begin(root.session().tube("t"), "take", *timeout) for timeout in ((9,), (), (2,), (5,))]
    for data, future in enumerate(waiting):
        tube.put(data)
        task = future.result(9)
        assert task.data == data
        tube.delete(task.id)


def test_waiting_puts_are_served_in_order_of_arrival(face: Face, root: Any) -> None:
    # In the original, all callers poll, and the first one to look gets the room.
    tube = root.create_tube("t", "limfifottl", capacity=1)
    tube.put("full")
    waiting = [face.begin(tube, "put", timeout, timeout=timeout) for timeout in (9, 2, 5)]
    for future in waiting:
        tube.delete(tube.take(0).id)
        assert future.result(9).state == "ready"


def test_a_waiting_put_ends_with_its_session(face: Face, root: Any) -> None:
    # In the original, it is still put when there is room.
    tube = root.create_tube("t", "limfifottl", capacity=1)
    tube.put(None)
    other = root.session()
    waiting = face.begin(other.tube("t"), "put", "ghost", timeout=9)
    other.close()
    with pytest.raises(QueueClosed):
        waiting.result(9)
    tube.delete(0)
    assert tube.take(0) is None


# -- 4. if_not_exists ----------------------------------------------------------------------------------------


def test_if_not_exists_requires_the_same_driver_and_options(root: Any) -> None:
    # The original returns any existing tube of this name.
    root.create_tube("t", "fifottl", ttl=9).put("here")
    again = root.create_tube("t", "fifottl", if_not_exists=True, ttl=9)
    assert again.peek(0).data == "here"
    for driver, options in (("fifo", {}), ("limfifottl", {"ttl": 9}), ("fifottl", {}), ("fifottl", {"ttl": 8})):
        with pytest.raises(TubeExists):
            root.create_tube("t", driver, if_not_exists=True, **options)


# -- 5. past the ttl -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", ["release", "close", "release_all", "ttr", "release with a delay"])
def test_a_utubettl_task_past_its_ttl_is_removed_as_it_comes_back(
    face: Face, clock: ManualClock, root: Any, back: str
) -> None:
    # In the original, it may stay ready forever, cannot be taken, and counts as ready.
    tube = root.create_tube("t", "utubettl")
    tube.put("first", utube="x", ttl=1, ttr=3)
    tube.put("second", utube="x")
    worker = root.session()
    held = worker.tube("t").take(0)
    waiting = face.begin(tube, "take", 9)
    clock.advance(2)
    if back == "release":
        worker.tube("t").release(held)
    elif back == "close":
        worker.close()
    elif back == "release_all":
        tube.admin.release_all()
    elif back == "ttr":
        clock.advance(1)
    else:
        assert worker.tube("t").release(held, delay=0.5).state == "delayed"
        clock.advance(0.5)
    assert waiting.result(9).data == "second"
    with pytest.raises(TaskNotFound):
        tube.peek(held.id)
    counts = tube.statistics()
    assert (counts.calls["ttl"], counts.tasks["ready"], counts.tasks["total"]) == (1, 0, 1)


@pytest.mark.parametrize("driver", TIMED)
def test_a_released_task_is_removed_when_its_ttl_ends_later(clock: ManualClock, root: Any, driver: str) -> None:
    # In utubettl of the original, a plain release breaks the timer, and the task stays.
    tube = root.create_tube("t", driver)
    tube.put(None, ttl=2)
    tube.release(tube.take(0))
    clock.advance(2)
    assert tube.statistics().tasks == dict.fromkeys(tube.statistics().tasks, 0) | {"done": 1}


# -- 6. statistics and events --------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", TIMED)
def test_a_touch_counts_once(root: Any, driver: str) -> None:
    # The original counts it twice.
    tube = root.create_tube("t", driver)
    tube.put(None, ttr=9)
    tube.touch(tube.take(0), 1)
    assert tube.statistics().calls["touch"] == 1


def _listen(tube: Any) -> list[tuple[str, int, str]]:
    changes: list[tuple[str, int, str]] = []

    def callback(task: Any, event: str) -> None:
        changes.append((event, task.id, task.state.letter))

    tube.on_task_change(callback)
    return changes


@pytest.mark.parametrize("driver", TIMED)
def test_end_of_a_delay_is_reported_as_delay_by_every_driver(clock: ManualClock, root: Any, driver: str) -> None:
    # In utubettl of the original, the event is `delayed`, and it is counted under this name.
    tube = root.create_tube("t", driver)
    changes = _listen(tube)
    tube.put(None, delay=1)
    clock.advance(1)
    assert tube.statistics().calls["delay"] == 1
    assert "delayed" not in tube.statistics().calls
    assert changes == [("put", 0, "~"), ("delay", 0, "r")]


@pytest.mark.parametrize("driver", TIMED)
def test_a_removal_by_ttl_is_one_event(clock: ManualClock, root: Any, driver: str) -> None:
    # The original reports `delete`, and then `ttl` without a state.
    tube = root.create_tube("t", driver)
    changes = _listen(tube)
    tube.put(None, ttl=1)
    clock.advance(1)
    counts = tube.statistics()
    assert changes == [("put", 0, "r"), ("ttl", 0, "-")]
    assert (counts.calls["ttl"], counts.calls["delete"], counts.tasks["done"]) == (1, 1, 1)


@pytest.mark.parametrize("driver", LANES)
def test_neighbour_that_becomes_takeable_causes_no_event(root: Any, driver: str) -> None:
    # The original calls back with the next task of the lane and no event, to wake a take.
    tube = root.create_tube("t", driver)
    for _ in range(3):
        tube.put(None, utube="x")
    changes = _listen(tube)
    tube.ack(tube.take(0))
    tube.bury(tube.take(0))
    tube.delete(tube.take(0))
    tube.statistics()
    events = [event for event, _, _ in changes]
    assert events == ["take", "delete", "take", "bury", "take", "delete"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_failing_listener_is_logged_and_has_no_effect(root: Any, driver: str, caplog: pytest.LogCaptureFixture) -> None:
    # In the original, the call fails after its change: a taken task then has no holder.
    def fail(task: Any, event: str) -> None:
        raise RuntimeError(f"cannot stand {event}")

    tube = root.create_tube("t", driver)
    tube.on_task_change(fail)
    with caplog.at_level(logging.ERROR, logger="tubes"):
        tube.put("data")
        task = tube.take(0)
        assert tube.ack(task).state == "done"
        tube.statistics()
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "cannot stand take" in caplog.text
