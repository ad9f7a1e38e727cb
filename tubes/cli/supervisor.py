"""`tubes worker --processes` and `--reload`: a supervisor keeps worker processes running.

Each child is a new interpreter, connected to the supervisor by a socket. The child sends `READY` when its worker
starts. The supervisor sends `_STOP` to stop the child, and `_NOW` to end it without grace. If the supervisor dies, even
by kill -9, the socket closes, and the child stops as after `_STOP`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from tubes.cli.exits import Exit
from tubes.drivers.backoff import Backoff
from tubes.errors import needs

_log: Final = logging.getLogger("tubes.worker")
#: Sent by a child when its worker starts.
READY: Final = b"r"
_STOP: Final = b"s"
_NOW: Final = b"n"
#: Delays before a child is restarted.
_BACKOFF: Final = Backoff(0.5, cap=30)
#: The supervisor gives up after this many deaths in a row, if the last child died before its worker started.
_MAX_DEATHS: Final = 5
#: A death after this many seconds of work starts a new row of deaths.
_HEALTHY_TIME: Final = 10.0
#: Seconds after `_NOW` before children are killed.
_KILL_DELAY: Final = 5.0
#: Exit codes of children that ended normally.
_CLEAN: Final = (Exit.DONE, Exit.CUT_OFF, Exit.AT_ONCE)
#: Exit codes of programs that can never start, so that a retry is useless.
_PERMANENT: Final = (Exit.USAGE, Exit.NOT_FOUND)


# -- the supervisor ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Child:
    process: Process
    socket: socket.socket
    #: True once it was told to stop: it has not died then, whatever its exit code.
    is_stopped: bool = False

    async def is_ready(self) -> bool:
        """Wait until the worker starts. Return False if the process ends before that."""
        loop = asyncio.get_running_loop()
        message = asyncio.ensure_future(loop.sock_recv(self.socket, 1))
        exit_ = asyncio.ensure_future(self.process.wait())
        await asyncio.wait((message, exit_), return_when=asyncio.FIRST_COMPLETED)
        exit_.cancel()
        if not message.done():
            message.cancel()
        with suppress(OSError):  # Nothing was sent, or not yet read.
            return (message.result() if message.done() else self.socket.recv(1)) == READY
        return False

    def stop(self, *, now: bool = False) -> None:
        self.is_stopped = True
        with suppress(OSError):  # The process has ended.
            self.socket.send(_NOW if now else _STOP)


class Supervisor:
    """Keeps `processes` processes running until a signal.

    `command`: the command line of a child, without the number of its socket. `burst`: children end by themselves.
    `reload`: a change of a .py file restarts the children, and a child that cannot start waits for the next change.
    """

    def __init__(self, command: list[str], processes: int, *, burst: bool = False, reload: bool = False) -> None:
        self._command: Final = command
        self._processes: Final = processes
        self._burst: Final = burst
        self._changes: Final = _watch_changes() if reload else None
        self._children: Final[set[_Child]] = set()
        self._code = Exit.DONE
        #: Number of stop requests: 1 stops with grace, 2 without.
        self._stop_requests = 0
        #: Set when the first child has started. The others wait for it, so that an error of the program is logged once.
        self._first_started: Final = asyncio.Event()
        #: Set by a change of a file, and by a stop request.
        self._wakeup: Final = asyncio.Event()

    async def run(self) -> Exit:
        """Run until a stop request, or until children cannot start. In a burst, run until all children have ended."""
        loop = asyncio.get_running_loop()
        watcher = None if self._changes is None else loop.create_task(self._replace(self._changes))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            await asyncio.gather(*map(self._supervise, range(self._processes)))
        finally:
            if watcher is not None:
                watcher.cancel()
        return self._code

    async def _supervise(self, number: int) -> None:
        """Run a child, and restart it when it ends."""
        deaths = 0
        if number:
            await self._first_started.wait()
        while not self._stop_requests:
            child = await self._start()
            is_ready = await child.is_ready()
            if is_ready:
                self._first_started.set()
            start = time.monotonic()
            code = await child.process.wait()
            child.socket.close()
            self._children.discard(child)
            name = f"process {child.process.pid} {_describe_exit(code)}"
            if self._stop_requests or (self._burst and is_ready and code >= 0):
                if is_ready:
                    self._record(code)
                return
            if code in _CLEAN or child.is_stopped:
                deaths = 0
                _log.info("%s; another one takes its place", name)
            elif self._changes is not None:
                _log.warning("%s; the next change of a file starts another one", name)
                await self._sleep(None)
            else:
                deaths = 1 if is_ready and time.monotonic() - start > _HEALTHY_TIME else deaths + 1
                # Workers wait for a server that is unreachable, except in a burst.
                waits = code == Exit.UNREACHABLE and not self._burst
                if (
                    not is_ready
                    and not waits
                    and (deaths >= _MAX_DEATHS or (code in _PERMANENT and not self._first_started.is_set()))
                ):
                    self._give_up(code, deaths)
                    return
                seconds = _BACKOFF.delay(deaths)
                _log.warning("%s; another one starts in %g s", name, seconds)
                await self._sleep(seconds)

    async def _start(self) -> _Child:
        own, other = socket.socketpair()
        own.setblocking(False)
        with other:
            words = (*self._command, "--supervisor", str(other.fileno()))
            process = await asyncio.create_subprocess_exec(*words, pass_fds=[other.fileno()])
        child = _Child(process, own)
        self._children.add(child)
        if self._stop_requests:
            child.stop(now=self._stop_requests > 1)
        return child

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until a file changes or a signal arrives, at most `seconds` seconds."""
        self._wakeup.clear()
        if not self._stop_requests:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wakeup.wait()

    def _give_up(self, code: int, deaths: int) -> None:
        if deaths >= _MAX_DEATHS:
            last = _describe_exit(code)
            _log.error("the processes do not start: %d in a row have died, the last one %s", deaths, last)
        self._code = _to_exit(code)
        self._stop()

    def _stop(self) -> None:
        """Stop all children; on the second call, without grace."""
        self._stop_requests += 1
        self._wakeup.set()
        self._first_started.set()
        for child in self._children:
            child.stop(now=self._stop_requests > 1)
        if self._stop_requests == 2:
            asyncio.get_running_loop().call_later(_KILL_DELAY, self._kill)

    def _kill(self) -> None:
        for child in self._children:
            with suppress(ProcessLookupError):
                child.process.kill()

    def _record(self, code: int) -> None:
        """Record the exit code of a child: the supervisor exits with the highest one."""
        killed = Exit.AT_ONCE if self._stop_requests > 1 else Exit.CUT_OFF
        self._code = max(self._code, killed if code < 0 else _to_exit(code))

    async def _replace(self, changes: AsyncIterator[str]) -> None:
        """Stop the children whenever files change, so that they are restarted."""
        try:
            async for files in changes:
                _log.info("%s changed: the processes are restarted", files)
                self._wakeup.set()
                for child in self._children:
                    child.stop()
        except Exception as error:  # The system may have run out of file watches.
            _log.error("--reload cannot watch this folder: %s", error)
            self._code = Exit.INTERNAL
            self._stop()


def _watch_changes() -> AsyncIterator[str]:
    """Yield the names of .py files that change in this folder, except in virtual environments and similar folders."""
    with needs("--reload", "reload"):
        watchfiles = import_module("watchfiles")

    async def changes() -> AsyncIterator[str]:
        async for changed in watchfiles.awatch(".", watch_filter=watchfiles.PythonFilter()):
            yield ", ".join(sorted({Path(file).name for _, file in changed}))

    return changes()


def _to_exit(code: int) -> Exit:
    return Exit(code) if code in set(Exit) else Exit.CRASHED


def _describe_exit(code: int) -> str:
    if code >= 0:
        return "has ended" if code == Exit.DONE else f"has ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


# -- the child ---------------------------------------------------------------------------------------------------------


class SupervisorLink:
    """A child's end of the socket."""

    def __init__(self, number: int) -> None:
        self._socket: Final = socket.socket(fileno=number)
        self._socket.set_inheritable(False)
        #: `stop(False)` stops the program with grace, `stop(True)` at once.
        self.stop: Callable[[bool], object] = _terminate
        threading.Thread(target=self._listen, name="tubes-supervisor", daemon=True).start()

    def ready(self) -> None:
        """Notify the supervisor that the worker starts."""
        with suppress(OSError):
            self._socket.send(READY)

    def _listen(self) -> None:
        request = b""
        with suppress(OSError):
            while received := self._socket.recv(1):
                request = received
                self.stop(request == _NOW)
        if not request:  # The supervisor has died.
            _log.warning("the supervisor has died, so this process stops")
            self.stop(False)


def _terminate(now: bool) -> None:
    """Raise SIGTERM in the main thread: the worker has not started yet."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGTERM)


def child_command(*words: str) -> list[str]:
    """Return the command line of a child: `tubes worker` in its own interpreter."""
    return [sys.executable, "-m", "tubes", "worker", *words]
