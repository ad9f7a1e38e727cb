"""Rules of the original that no recorded trace here shows for these drivers, as traces written by hand."""

from __future__ import annotations

import pytest

from tubes.conformance.faces import Face

from .deviations import USUAL
from .replay import Replay
from .rules_tasks import TASKS
from .rules_tubes import TUBES
from .rules_waiting import WAITING
from .traces import Trace

RULES = TASKS | TUBES | WAITING


@pytest.mark.parametrize("trace", RULES.values(), ids=RULES.keys())
def test_a_rule_holds(face: Face, trace: Trace) -> None:
    Replay(face, trace, USUAL).run()
