"""The processes of a run: their cores, requests to them, and their end."""

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
#: Seconds to wait for a reply of a producer.
PATIENCE: Final = 120.0
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def dies_with_parent() -> None:
    """Have this process killed when its parent ends for any reason; Linux only."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def all_cores() -> set[int]:
    """Return the cores that this process may use; empty if the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def one_core() -> set[int]:
    """Return the core shared by client, worker and server: their cores affect a round trip more than anything else."""
    return {max(all_cores())} if all_cores() else set()


def place(pids: Iterable[int], cores: set[int]) -> None:
    """Pin all threads of these processes to the core."""
    for pid in pids if cores else ():
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), cores)


class PeerFailed(Exception):
    """A process of a peer ended or did not reply; the message has its last output."""


class Child:
    """A process of `benchmarks.peers.inside` and its children, in a separate process session."""

    def __init__(self, python: str, module: str, role: str, settings: dict[str, str], log: Path) -> None:
        self._log = log
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **settings}
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
        self.pid = self._process.pid
        place([self.pid], one_core())

    def ask(self, line: str) -> dict[str, Any]:
        """Send a command to a producer and return its reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        alarm = threading.Timer(PATIENCE, self._process.kill)
        alarm.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except OSError:
            reply = ""
        finally:
            alarm.cancel()
        if not reply:
            raise PeerFailed(self.last_words() or f"no reply to {line!r} within {PATIENCE:g} seconds")
        found: dict[str, Any] = json.loads(reply)
        return found

    def has_ended(self) -> bool:
        """Return True if the process has ended."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """Return the last line of the log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else ""

    def pids(self) -> Iterator[int]:
        """Return the ids of the process and its children."""
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
