"""A tube of a soak with all that is kept of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.soak.listener import Referee
from tests.soak.long_ledger import Books
from tests.soak.plan import PLANS

if TYPE_CHECKING:
    from tubes import Queue


class Watched:
    """A tube, its books, and who hears what happens in it."""

    def __init__(self, queue: Queue, name: str) -> None:
        plan = PLANS[name]
        self.tube = queue.create_tube(name, plan.driver, **plan.options)
        self.books = Books()
        self.referee = Referee(self.tube) if plan.is_heard else None

    @property
    def mistakes(self) -> list[str]:
        """What is against the rules."""
        heard = [] if self.referee is None else self.referee.mistakes
        return [f"{self.tube.name}: {mistake}" for mistake in self.books.mistakes + heard]

    @property
    def judged(self) -> int:
        """Takes of which the order was looked at."""
        return 0 if self.referee is None else self.referee.judged

    def settle(self) -> None:
        """Forget what is done."""
        self.books.settle({} if self.referee is None else self.referee.ended)
