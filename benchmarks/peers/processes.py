"""Processes of a run: where they run, what they are asked, and that they end."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parent.parent.parent
#: Seconds that a producer may take for an answer.
PATIENCE: Final = 120.0
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def dies_with_parent() -> None:
    """Have this process killed when the one that started it ends, however it does; Linux only."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def all_cores() -> set[int]:
    """Those that this process may use; none where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def one_core() -> set[int]:
    """The one that client, worker and server share: where they run moves a round trip more than all else."""
    return {max(all_cores())} if all_cores() else set()


def place(pids: Iterable[int], cores: set[int]) -> None:
    """Have all threads of processes run there."""
    for pid in pids if cores else ():
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), cores)


class PeerFailed(Exception):
    """A peer's process ended or kept silent; says what it said last."""


class Child:
    """A process of `benchmarks.peers.inside`, and what it starts, in a session of its own."""

    def __init__(self, python: str, module: str, role: str, told: dict[str, str], log: Path) -> None:
        self._log = log
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **told}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.inside", module, role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if role == "produce" else errors,
                stderr=errors,
                cwd=ROOT,
                env=environment,
                text=True,
                start_new_session=True,
                preexec_fn=dies_with_parent,
            )
        place([self._process.pid], one_core())

    def ask(self, line: str) -> dict[str, Any]:
        """What a producer answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        alarm = threading.Timer(PATIENCE, self._process.kill)
        alarm.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            alarm.cancel()
        if not answer:
            raise PeerFailed(self.last_words() or f"no answer to {line!r} within {PATIENCE:g} seconds")
        found: dict[str, Any] = json.loads(answer)
        return found

    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else ""

    def pids(self) -> Iterator[int]:
        """Itself, and what it has started."""
        for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
            with suppress(ValueError, OSError):
                if os.getsid(int(name)) == self._process.pid:
                    yield int(name)

    def close(self) -> None:
        """End them all."""
        for pid in [*self.pids(), self._process.pid]:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
