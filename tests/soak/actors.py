"""The processes of a soak, controlled by their parent, which records their output in the ledger."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.worker import Worker

if TYPE_CHECKING:
    from tests.soak.long_ledger import LongLedger


#: Seconds within which a running process must write a line, and a stopped one must end.
PATIENCE: Final = 20.0


class Job(NamedTuple):
    """The job of a process; `tube`: the tube of a worker, any tube for a producer."""

    mode: str
    tube: str
    #: True if it connects through the proxy.
    is_far: bool


class Actor(Worker):
    """A producer or a worker."""

    def __init__(self, url: str, job: Job, seed: str, ledgers: dict[str, LongLedger]) -> None:
        super().__init__(url, job.mode, job.tube, seed, module="tests.soak.programs")
        self.job = job
        self.is_ready = threading.Event()
        self._ledgers = ledgers
        self._begun: set[tuple[int, int]] = set()
        self._last = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        ledger = self._ledgers[self.job.tube]
        try:
            self._write_down(ledger)
        except Exception as error:
            ledger.mistakes.append(f"{self.job.mode} of {self.job.tube} printed an invalid line: {error!r}")

    def _write_down(self, ledger: LongLedger) -> None:
        for line in self._stdout:
            self._last = time.monotonic()
            words = line.split()
            if words[0] == "put":
                self._ledgers[words[1]].record_put(words[2], int(words[3]))
            elif words[0] == "unknown":
                self._ledgers[words[1]].unknown.add(words[2])
            elif words[0] == "wrong":
                ledger.mistakes.append(" ".join(words[1:]))
            elif words[0] == "ready":
                self.is_ready.set()
            else:
                ledger.read_line(line, self._begun)
        ledger.record_unsure_acks(self._begun)

    def report_silence(self) -> None:
        """Record a mistake if the process has been silent for long although there was work."""
        if (silent := time.monotonic() - self._last) > PATIENCE:
            self._ledgers[self.job.tube].mistakes.append(f"{self.job.mode} of {self.job.tube} hangs: {silent:.0f} s")

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the process by a signal and read its remaining output. An earlier end or a bad exit code is a mistake."""
        self.signal(number)
        self._reader.join(PATIENCE)
        if self._reader.is_alive():
            self.process.kill()
            self._reader.join()
        code = self.process.wait()
        self._stdin.close()
        self._stdout.close()
        if code != (0 if number == signal.SIGTERM else -number):
            self._ledgers[self.job.tube].mistakes.append(f"{self.job.mode} of {self.job.tube} ended with {code}")
