"""A tube of a soak with its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.soak.listener import Listener
from tests.soak.long_ledger import LongLedger
from tests.soak.plan import PLANS

if TYPE_CHECKING:
    from tubes import Queue


class Watched:
    """A tube, its ledger and its listener."""

    def __init__(self, queue: Queue, name: str) -> None:
        plan = PLANS[name]
        self.tube = queue.create_tube(name, plan.driver, **plan.options)
        self.ledger = LongLedger()
        self.listener = Listener(self.tube) if plan.has_listener else None

    @property
    def mistakes(self) -> list[str]:
        """Return the broken rules."""
        reported = [] if self.listener is None else self.listener.mistakes
        return [f"{self.tube.name}: {mistake}" for mistake in self.ledger.mistakes + reported]

    @property
    def judged(self) -> int:
        """Return the number of takes whose order was checked."""
        return 0 if self.listener is None else self.listener.judged

    def forget_finished(self) -> None:
        """Forget finished tasks."""
        self.ledger.forget_finished({} if self.listener is None else self.listener.ended)
