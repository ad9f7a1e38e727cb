"""Every step of every recorded trace has the same result, apart from documented deviations."""

from __future__ import annotations

import pytest

from tests.contract.faces import Face

from .deviations import BY_QUIRK, USUAL
from .referee import MismatchError
from .replay import Replay
from .traces import GROUPS, TRACES

#: The traces with quirks, and the first step that shows the quirk. None: it does not show in this trace, because
#: both rules serve its waiting takes in the same order.
QUIRKS: dict[str, int | None] = {
    "random/utubettl.0006": 68,
    "random/utubettl.0039": 44,
    "random/utubettl.0048": 7,
    "random/utubettl.0051": 16,
    "random/utubettl.0060": 13,
    "random_wait/fifo.0003": None,
    "random_wait/fifo.0006": 47,
    "random_wait/fifo.0009": None,
    "random_wait/fifo.0012": None,
    "random_wait/fifo.0015": None,
    "random_wait/fifo.0018": None,
    "random_wait/fifo.0021": 25,
    "random_wait/fifottl.0015": None,
    "random_wait/fifottl.0024": 46,
    "random_wait/fifottl.0027": 60,
    "random_wait/fifottl.0030": None,
    "random_wait/fifottl.0033": None,
    "random_wait/utube.0003": None,
    "random_wait/utube.0009": None,
    "random_wait/utube.0012": 40,
    "random_wait/utube.0018": 11,
    "random_wait/utube.0021": None,
    "random_wait/utubettl.0009": 8,
    "random_wait/utubettl.0021": None,
    "random_wait/utubettl.0027": 15,
    "random_wait/utubettl.0036": None,
    "random_wait/utubettl.0039": None,
    "scripted/fifo.disconnect_wakes_several": 12,
    "scripted/fifo.kick_negative": 2,
    "scripted/fifo.touch_unsupported": 10,
    "scripted/fifo.truncate_with_taken": 4,
    "scripted/fifottl.disconnect_wakes_several": 12,
    "scripted/fifottl.kick_negative": 2,
    "scripted/fifottl.waiters_smallest_timeout_first": 8,
    "scripted/limfifottl.lim_ghost_put": 7,
    "scripted/utube.kick_negative": 2,
    "scripted/utube.touch_unsupported": 10,
    "scripted/utube.truncate_with_taken": 4,
    "scripted/utube.waiters_smallest_timeout_first": 8,
    "scripted/utubettl.disconnect_wakes_several": 12,
    "scripted/utubettl.kick_negative": 2,
    "scripted/utubettl.on_task_change_timed_events": 18,
    "scripted/utubettl.released_task_outlives_ttl_as_zombie": 4,
    "scripted/utubettl.touch_rules": 12,
    "scripted/utubettl.truncate_with_taken": 4,
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("group", GROUPS)
def test_each_trace_is_reproduced(face: Face, group: str, subtests: pytest.Subtests) -> None:
    for trace in GROUPS[group]:
        with subtests.test(trace.name):
            Replay(face, trace, USUAL | {BY_QUIRK[quirk] for quirk in trace.quirks}).run()


@pytest.mark.parametrize("group", GROUPS)
def test_trace_with_a_quirk_first_differs_at_its_known_step(face: Face, group: str, subtests: pytest.Subtests) -> None:
    for trace in GROUPS[group]:
        if not trace.quirks:
            continue
        with subtests.test(trace.name):
            replay = Replay(face, trace, USUAL - {BY_QUIRK[quirk] for quirk in trace.quirks})
            step = QUIRKS[trace.name]
            if step is None:
                replay.run()
                continue
            with pytest.raises(MismatchError) as differs:
                replay.run()
            assert differs.value.number == step


def test_every_quirk_is_listed() -> None:
    assert QUIRKS.keys() == {trace.name for trace in TRACES if trace.quirks}


def test_all_recorded_traces_are_present() -> None:
    assert len(TRACES) == 269
    assert {trace.driver for trace in TRACES} == {"fifo", "fifottl", "limfifottl", "utube", "utubettl"}
