"""The servers of a run: real processes on loopback, without persistence, which end with their parent."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from benchmarks.peers.processes import dies_with_parent
from tubes.testing import LocalServer, server_program

#: Seconds to wait for a server to start.
PATIENCE: Final = 20.0
#: Seconds after which a Redis has measured the memory of all its clients, which it does ten times a second.
MEMORY_INTERVAL: Final = 0.3
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_TARANTOOL: Final = """
box.cfg{{listen = '127.0.0.1:{port}', wal_mode = 'none', memtx_dir = '{folder}', log = '{folder}/log', log_level = 2}}
box.schema.user.grant('guest', 'super')
queue = require('queue')
queue.create_tube('jobs', 'fifo', {{temporary = true}})
"""


class NotInstalled(Exception):
    """A server is not installed on this machine."""


class Server(Protocol):
    """A running server."""

    host: str
    port: int
    pid: int

    def memory(self) -> float:
        """Return the bytes in use now."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process: all threads, user and system."""
    # The CPU clock of a process as in clock_getcpuclockid(3); it is finer than the ticks in /proc.
    return time.clock_gettime((~pid << 3) | 2)


def free_port() -> int:
    """Return an unused port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """A Valkey or a Redis."""

    def __init__(self, program: str) -> None:
        if server_program(program) is None:
            raise NotInstalled(f"{program}-server is not installed")
        self.host, self.port = "127.0.0.1", free_port()
        self._server = LocalServer(program, port=self.port)
        self.pid = self._server.pid
        self._client: Any = self._server.client()

    def memory(self) -> float:
        """Return the server's own figure without the buffers of its clients, which vary."""
        time.sleep(MEMORY_INTERVAL)
        info: dict[str, Any] = self._client.info("memory")
        return float(info["used_memory"] - info["mem_clients_normal"])

    def close(self) -> None:
        """End it."""
        self._client.close()
        self._server.close()


class _Started:
    """A server started by a command with its port as an argument."""

    def __init__(self, program: str, command: Callable[[str, int, Path], list[str]]) -> None:
        found = shutil.which(program)
        if found is None:
            raise NotInstalled(f"{program} is not installed")
        self.host, self.port = "127.0.0.1", free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="peers-"))
        self._process = subprocess.Popen(
            command(found, self.port, self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=dies_with_parent,
        )
        self.pid = self._process.pid
        deadline = time.monotonic() + PATIENCE
        while not self._is_listening():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise NotInstalled(f"{program} did not start")
            time.sleep(0.01)

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def memory(self) -> float:
        """Return the resident memory, since these servers do not report their usage."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return float(int(fields[1]) * PAGE)

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Beanstalkd(_Started):
    """beanstalkd without a binlog."""

    def __init__(self) -> None:
        super().__init__("beanstalkd", lambda program, port, _: [program, "-l", "127.0.0.1", "-p", str(port)])


class Tarantool(_Started):
    """Tarantool with a temporary fifo of its queue module, and no log of writes."""

    def __init__(self) -> None:
        program = shutil.which("tarantool")
        if program is None:
            raise NotInstalled("tarantool is not installed")
        # Tarantool would keep running after an uncaught error.
        probe = [program, "-e", "os.exit(pcall(require, 'queue') and 0 or 1)"]
        if subprocess.run(
            probe, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False
        ).returncode:
            raise NotInstalled("tarantool's queue module is not installed: tarantoolctl rocks install queue")

        def command(program: str, port: int, folder: Path) -> list[str]:
            script = folder / "init.lua"
            script.write_text(_TARANTOOL.format(port=port, folder=folder))
            return [program, str(script)]

        super().__init__("tarantool", command)


STARTS: Final[dict[str, Callable[[], Server]]] = {
    "valkey": lambda: RedisServer("valkey"),
    "redis": lambda: RedisServer("redis"),
    "beanstalkd": Beanstalkd,
    "tarantool": Tarantool,
}


def versions() -> dict[str, str]:
    """Return the versions of the installed servers."""
    programs = {
        "Valkey": (server_program("valkey"), "--version"),
        "Redis": (server_program("redis"), "--version"),
        "beanstalkd": (shutil.which("beanstalkd"), "-v"),
        "Tarantool": (shutil.which("tarantool"), "-v"),
    }
    found: dict[str, str] = {}
    for name, (program, flag) in programs.items():
        if program is not None:
            output = subprocess.run([program, flag], capture_output=True, text=True, check=False).stdout
            number = re.search(r"\d+(\.\d+)+", output)
            found[name] = number[0] if number else "?"
    return found
