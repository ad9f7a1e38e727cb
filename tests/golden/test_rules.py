"""Rules of the original that the recorded traces do not show for these drivers, as handwritten traces."""

from __future__ import annotations

import pytest

from tests.contract.faces import Face

from .deviations import USUAL
from .replay import Replay
from .rules_tasks import TASKS
from .rules_tubes import TUBES
from .rules_waiting import WAITING

RULES = TASKS | TUBES | WAITING


def test_each_handwritten_trace_is_reproduced(face: Face, subtests: pytest.Subtests) -> None:
    for name, trace in RULES.items():
        with subtests.test(name):
            Replay(face, trace, USUAL).run()
