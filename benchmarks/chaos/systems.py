"""The systems: each with its server, and its settings for reliability as its guide describes them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.processes import ROOT, dies_with_parent
from benchmarks.peers.registry import SUBJECTS
from benchmarks.peers.servers import NotInstalled, free_port
from tubes.testing import server_program

#: The lease of a task in seconds, for each system that has such an option.
LEASE: Final = 5
#: Seconds to wait for a server to start.
PATIENCE: Final = 20.0
#: Debian's libfaketime, with which the clock of one process can be stepped.
FAKETIME: Final = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@dataclass(frozen=True)
class System:
    """One row."""

    name: str
    module: str
    #: The name of a server below; empty for queues of one process.
    server: str
    #: The settings, for the table.
    settings: str
    way: str = ""
    #: The signal that its guide names for a graceful end of a worker.
    stop: signal.Signals = signal.SIGTERM

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages of its environment, the same as for the measurements of speed."""
        return next((subject.packages for subject in SUBJECTS if subject.name == self.name), ())


SYSTEMS: Final = (
    System("tubes, memory", "tubes_sync", "", "ttr; Worker, 10 at a time", "memory://"),
    System("tubes, folder", "tubes_sync", "", "ttr, sync=normal; Worker, 10 at a time", "file:"),
    System("tubes, server", "tubes_sync", "valkey", "ttr; Worker, 10 at a time", "coroutines"),
    System("tubes, service", "tubes_http", "serve", "of a folder; ttr, sync=normal or full; keys of puts, 1 at a time"),
    System("rq", "rq", "valkey", "Retry, maintenance_interval and job_monitoring_interval of a lease"),
    System("celery", "celery", "valkey", "acks_late, reject_on_worker_lost, visibility_timeout, unacked_restore_*"),
    System("dramatiq", "dramatiq", "valkey", "heartbeat_timeout, maintenance_chance of 10 %; 8 threads"),
    System("huey", "huey", "valkey", "no acks; 1 thread, stopped by SIGINT", stop=signal.SIGINT),
    System("saq", "saq", "valkey", "timeout, retries, a sweep each lease; 10 at a time"),
    System("taskiq, stream", "taskiq", "valkey", "idle_timeout, unacknowledged_lock_timeout", "stream"),
    System("arq", "arq", "valkey", "job_timeout (its lease is 10 s longer), max_tries, job_completion_wait"),
    System("bullmq", "bullmq", "valkey", "lockDuration, stalledInterval, maxStalledCount; 10 at a time"),
    System("beanstalkd", "beanstalkd", "beanstalkd", "ttr, binlog with -f 1000 or -f 0; 1 at a time"),
)


def _command(server: str, port: int, folder: Path, *, always: bool) -> list[str]:
    if server == "valkey":
        options = {"bind": "127.0.0.1", "port": str(port), "save": "", "dir": str(folder), "appendonly": "yes"}
        options["appendfsync"] = "always" if always else "everysec"
        return [
            server_program("valkey") or "",
            *(word for key, value in options.items() for word in (f"--{key}", value)),
        ]
    if server == "beanstalkd":
        words = ["-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f", "0" if always else "1000"]
        return [shutil.which("beanstalkd") or "", *words]
    url = f"file:{folder / 'store'}?sync={'full' if always else 'normal'}"
    words = ["--url", url, "--http", f"127.0.0.1:{port}", "--no-access-log", "--no-ui"]
    return [sys.executable, "-m", "tubes", "serve", *words]


class Server:
    """A server on loopback that can be killed and restarted with its data."""

    def __init__(self, name: str, folder: Path, *, always: bool, fake_clock: bool) -> None:
        self.port: Final = free_port()
        self._clock = folder / "clock"
        self._log = (folder / "server.log").open("ab")
        data = folder / "data"
        data.mkdir()
        self._command = _command(name, self.port, data, always=always)
        if not self._command[0]:
            raise NotInstalled(f"{name} is not installed")
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if fake_clock:
            self._clock.write_text("+0")
            clock = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock)}
            self._environment |= clock | {"FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
            preexec_fn=dies_with_parent,
        )
        deadline = time.monotonic() + PATIENCE
        while not self.reply(b""):
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = Path(self._log.name).read_text(errors="replace").split("\n")[-3:]
                raise NotInstalled(f"{self._command[0]} did not start: {' '.join(lines)}")
            time.sleep(0.02)

    def reply(self, request: bytes) -> bool:
        """Send a request on a new connection; return False if the server does not listen."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            if request:
                connection.sendall(request)
                connection.recv(1024)
            return True
        return False

    def step_clock(self, seconds: int) -> None:
        """Step its clock; its monotonic clock goes on."""
        self._clock.write_text(f"+{seconds}")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()
