"""A ledger of bounded size."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from typing_extensions import override

from tests.support.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from tubes import Tube


class Marks:
    """A set of small numbers with one bit each."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> None:
        byte, bit = divmod(number, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 1024 - len(self._bits)))
        self._bits[byte] |= 1 << bit

    def __contains__(self, number: int) -> bool:
        byte, bit = divmod(number, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)


class LongLedger(Ledger):
    """The ledger of one tube. It keeps one bit of a finished task, to detect a second end."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.RLock()
        self.finished = Marks()
        #: The numbers of put tasks and of confirmed done tasks.
        self.count_put = 0
        self.count_done = 0
        #: The contradictions.
        self.mistakes: list[str] = []

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Write one entry at a time; record contradictions and continue."""
        with self._guard:
            try:
                yield
            except AssertionError as mistake:
                self.mistakes.append(str(mistake).partition("\n")[0])

    @override
    def record_put(self, key: str, id: int) -> None:
        with self._writing():
            super().record_put(key, id)
            self.count_put += 1

    @override
    def record_take(self, id: int, attempts: int, key: str) -> None:
        with self._writing():
            # A stopped worker may report a take long after others have finished the task.
            if id not in self.finished:
                super().record_take(id, attempts, key)

    @override
    def record_done(self, id: int, attempts: int) -> None:
        with self._writing():
            assert id not in self.finished, f"task {id} was done twice"
            super().record_done(id, attempts)
            self.count_done += 1

    @override
    def record_unsure_acks(self, acks: Iterable[tuple[int, int]]) -> None:
        with self._guard:
            super().record_unsure_acks(acks)

    def forget_finished(self, ended: dict[int, int]) -> None:
        """Drop finished tasks. `ended`: the take that ended each task according to the server, updated here.

        If another take ended a task than the one that may have, the process with that take has yet to report it.
        """
        with self._writing():
            for key, id in list(self.puts.items()):
                if id in self.done or ended.get(id) in self.maybe.get(id, ()):
                    attempts = self.done.pop(id, None)
                    self.count_done += attempts is None
                    last = max(self.takes.pop(id, ()), default=0)
                    self.maybe.pop(id, None)
                    del self.puts[key]
                    self.ids.pop(key, None)
                    self.finished.add(id)
                    assert attempts is None or attempts >= last, f"task {id} was acked by an expired take"
            for id in [id for id in list(ended) if id in self.finished]:
                del ended[id]

    def close(self, tube: Tube) -> None:
        """Make the final check: each put task is done, or stored and available."""
        self.mistakes += self.contradictions(tube)
