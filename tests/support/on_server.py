"""The contract on a server: who has a server subclasses this with the tests that it wants to run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from tubes.conformance.bench import Bench

if TYPE_CHECKING:
    from tubes.conformance import Face
    from tubes.testing import ManualClock


class OnServer(Bench):
    """A key space of its own for every test.

    Each driver runs on one face, and each face on several drivers: how a face waits does not depend on the driver.
    """

    #: Where the server is.
    url: ClassVar[str]

    def connect(self, face: Face, clock: ManualClock) -> Any:
        url = f"{self.url}?prefix={uuid4().hex}"
        return face.connect(url, clock=clock, session_ttl=self.session_ttl)
