"""The contract on a server: subclasses provide the server and add the tests to run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from tests.contract.bench import Bench

if TYPE_CHECKING:
    from tests.contract import Face
    from tubes.testing import ManualClock


class OnServer(Bench):
    """A separate key space for every test.

    Each driver runs on one face and each face with several drivers, because waiting does not depend on the driver.
    """

    #: The URL of the server.
    url: ClassVar[str]

    def connect(self, face: Face, clock: ManualClock) -> Any:
        url = f"{self.url}?prefix={uuid4().hex}"
        return face.connect(url, clock=clock, session_ttl=self.session_ttl)
