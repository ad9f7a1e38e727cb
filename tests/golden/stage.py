"""The environment of a replay: named sessions on one store, waiting calls and the time."""

from __future__ import annotations

import math
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tubes.errors import QueueClosed
from tubes.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.faces import Face

#: The real seconds to wait for a served call to return.
PATIENCE = 10.0


@dataclass(eq=False)
class Call:
    """A call that may wait."""

    session: str
    tube: str
    verb: str
    args: tuple[Any, ...]
    timeout: float
    began: float
    #: The rank of a waiting take in the original; smaller first.
    key: float
    future: Future[Any] = field(default_factory=Future[Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Its duration, once it has returned.
    took: float | None = None
    #: The meaning of the ids of the trace when it returned.
    ids: dict[int, int] = field(default_factory=dict[int, int])
    #: Its own connection, if it has one.
    line: Any = None

    def left(self, now: float) -> dict[str, float]:
        """Return the remaining timeout as an option; empty if it waits forever."""
        return {"timeout": round(self.began + self.timeout - now, 6)} if math.isfinite(self.timeout) else {}


class Stage:
    """Sessions by name, opened at their first use; a closed name opens a new session at its next use.

    `lease`: the time for which a session outlives its last connection. `on_return`: called with each returned call.
    """

    def __init__(self, face: Face, lease: float, on_return: Callable[[Call], None]) -> None:
        self.clock = ManualClock()
        self.calls: list[Call] = []
        self._face = face
        self._lease = lease
        self._on_return = on_return
        self.root = face.connect("memory://", clock=self.clock, session_ttl=lease)
        self._queues: dict[str, Any] = {"root": self.root}
        self._tubes: dict[tuple[str, str], Any] = {}

    def queue(self, session: str) -> Any:
        """Return the connection of the session."""
        if session not in self._queues:
            self._queues[session] = self.root.session()
        return self._queues[session]

    def tube(self, session: str, name: str) -> Any:
        """Return the tube of this name for the session."""
        key = session, name
        if key not in self._tubes:
            self._tubes[key] = self.queue(session).tube(name)
        return self._tubes[key]

    def forget(self, name: str) -> None:
        """Forget a dropped tube: the next one of this name is a new tube."""
        self._tubes = {key: tube for key, tube in self._tubes.items() if key[1] != name}

    def disconnect(self, session: str) -> list[Call]:
        """Close the connection of the session; return its waiting calls, which must fail."""
        self.wait_for_served()
        mine = [call for call in self.calls if call.session == session]
        waiting = [call for call in self.waiting() if call in mine]
        self.calls = [call for call in self.calls if call not in mine]
        for call in mine:
            if call.line is not None:
                call.line.close()
        queue = self.queue(session)
        queue.admin.detach() if self._lease else queue.close()
        for call in waiting:
            assert isinstance(call.future.exception(PATIENCE), QueueClosed)
        del self._queues[session]
        self._tubes = {key: tube for key, tube in self._tubes.items() if key[0] != session}
        return waiting

    def sleep(self, seconds: float, *, watch: bool = False) -> None:
        """Let time pass; with `watch`, in steps of 0.1 s, to detect when waiting calls return."""
        if not watch:
            self.clock.advance(seconds)
            return
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.wait_for_served()

    def close(self) -> None:
        """Close all sessions and check that no call continues."""
        for queue in [call.line for call in self.calls if call.line is not None] + [*self._queues.values()]:
            queue.close()
        for call in self.calls:
            call.future.exception(PATIENCE)

    # -- waiting calls -------------------------------------------------------------------------------------------------

    def begin(self, session: str, tube: str, verb: str, *args: Any, timeout: float = math.inf, **options: Any) -> Call:
        """Start a call that may wait."""
        call = Call(session, tube, verb, args, timeout, self.clock.now(), timeout, options=options)
        call.future = self._face.begin(self.tube(session, tube), verb, *args, **options, **call.left(call.began))
        self.calls.append(call)
        return call

    def begin_by_timeout(self, session: str, tube: str, *, timeout: float = math.inf) -> tuple[Call, bool]:
        """Start a take before the waiting ones with longer timeouts, which are restarted behind it.

        Each take has its own connection in the named session, so that it can be restarted.
        Return the call, and True if any take was restarted.
        """
        self.wait_for_served()
        behind = sorted((call for call in self.waiting() if call.key > timeout), key=lambda call: call.key)
        for call in behind:
            call.line.close()
            assert isinstance(call.future.exception(PATIENCE), QueueClosed)
        call = Call(session, tube, "take", (), timeout, self.clock.now(), timeout)
        self.calls.append(call)
        for entering in [call, *behind]:
            entering.line = self.root.session()
            entering.line.admin.identify(self.queue(entering.session).admin.identify())
            timed = entering.left(self.clock.now())
            entering.future = self._face.begin(entering.line.tube(tube), "take", **timed)
        return call, bool(behind)

    def repeat_useless_wake(self) -> None:
        """Repeat a useless wake of the original: its first take restarts with its remaining timeout."""
        self.wait_for_served()
        if waiting := self.waiting():
            first = min(waiting, key=lambda call: call.key)
            first.key = first.left(self.clock.now()).get("timeout", math.inf)

    def waiting(self) -> list[Call]:
        """Return the unfinished calls; exact after `wait_for_served`."""
        return [call for call in self.calls if not call.future.done()]

    def wait_for_served(self) -> None:
        """Wait until all served calls have returned, so that all others are known to wait."""
        deadline = time.monotonic() + PATIENCE
        while waiting := self.waiting():
            if sum(counts.waiting for counts in self.root.statistics().values()) == len(waiting):
                break
            assert time.monotonic() < deadline, "a call neither waits nor returns"
            wait([call.future for call in waiting], timeout=0.001, return_when=FIRST_COMPLETED)
        for call in self.calls:
            if call.took is None and call.future.done():
                call.took = self.clock.now() - call.began
                self._on_return(call)

    def finish(self, call: Call) -> None:
        """Forget a call whose result was compared."""
        self.calls.remove(call)
        if call.line is not None:
            call.line.close()
