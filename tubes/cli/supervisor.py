"""`tubes worker --processes` and `--reload`: a supervisor keeps worker processes running.

Each child is a fresh interpreter. A socket joins the two: the child says `READY` when its worker begins, the supervisor
sends a byte to stop it, and another one to end it at once. When the supervisor dies, by kill -9 too, the socket closes,
and the child stops as if it had been told to.
"""

from __future__ import annotations

import asyncio
import os
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

from tubes.cli.exits import Exit, say
from tubes.drivers.backoff import Backoff
from tubes.errors import needs

#: What a child says when its worker begins.
READY: Final = b"r"
_STOP: Final = b"s"
#: Pauses before a child is started again.
_BACKOFF: Final = Backoff(0.5, cap=30)
#: After so many deaths in a row, the last of them before its worker began, the supervisor gives up.
_STARTS: Final = 5
#: Seconds of work after which a death is the first of its row.
_WELL: Final = 10.0
#: Seconds that a child has to end at once, before it is killed.
_LAST_MOMENT: Final = 5.0
#: Codes of children that have ended as they should.
_CLEAN: Final = (Exit.DONE, Exit.CUT_OFF, Exit.AT_ONCE)
#: Codes of a program that cannot be started, however often it is tried.
_HOPELESS: Final = (Exit.USAGE, Exit.NOT_FOUND)


# -- the supervisor ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Child:
    process: Process
    line: socket.socket

    async def is_ready(self) -> bool:
        """Wait until its worker begins; False: it has ended before."""
        loop = asyncio.get_running_loop()
        told = asyncio.ensure_future(loop.sock_recv(self.line, 1))
        ended = asyncio.ensure_future(self.process.wait())
        await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not told.done():
            told.cancel()
            return False
        with suppress(OSError):
            return told.result() == READY
        return False

    def stop(self) -> None:
        with suppress(OSError):  # It has ended.
            self.line.send(_STOP)


class Supervisor:
    """Keeps so many processes running until a signal.

    `command`: the words of a child; the number of its socket is added. `burst`: children end by themselves.
    `reload`: a change of a .py file replaces the children, and a child that cannot start waits for the next change.
    """

    def __init__(self, command: list[str], processes: int, *, burst: bool = False, reload: bool = False) -> None:
        self._command: Final = command
        self._processes: Final = processes
        self._burst: Final = burst
        self._changes: Final = _changes() if reload else None
        self._children: Final[set[_Child]] = set()
        self._code = Exit.DONE
        #: How often it was told to stop: once with grace, twice at once.
        self._orders = 0
        # The others wait for the first: what is wrong with the program is said once.
        self._is_well: Final = asyncio.Event()
        self._changed: Final = asyncio.Event()

    async def run(self) -> Exit:
        """Work until it is told to stop, or its children cannot start; in a burst until they have ended."""
        loop = asyncio.get_running_loop()
        watching = None if self._changes is None else loop.create_task(self._replace(self._changes))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            await asyncio.gather(*map(self._keep, range(self._processes)))
        finally:
            if watching is not None:
                watching.cancel()
        return self._code

    async def _keep(self, place: int) -> None:
        """Run a child, and another one when it ends."""
        deaths = 0
        if place:
            await self._is_well.wait()
        while not self._orders:
            child = await self._start()
            is_ready = await child.is_ready()
            if is_ready:
                self._is_well.set()
            began = time.monotonic()
            code = await child.process.wait()
            child.line.close()
            self._children.discard(child)
            name = f"process {child.process.pid} {_how_it_ended(code)}"
            if self._orders or (self._burst and is_ready and code >= 0):
                if is_ready:
                    self._count(code)
                return
            if code in _CLEAN:
                deaths = 0
                say(f"{name}; another one takes its place")
            elif self._changes is not None:
                say(f"{name}; the next change of a file starts another one")
                await self._rest(None)
            else:
                deaths = 1 if is_ready and time.monotonic() - began > _WELL else deaths + 1
                # A server that is away comes back, and a worker waits for it. A burst does not.
                waits = code == Exit.UNREACHABLE and not self._burst
                if (
                    not is_ready
                    and not waits
                    and (deaths >= _STARTS or (code in _HOPELESS and not self._is_well.is_set()))
                ):
                    self._give_up(code, deaths)
                    return
                seconds = _BACKOFF.delay(deaths)
                say(f"{name}; another one starts in {seconds:g} s")
                await self._rest(seconds)

    async def _start(self) -> _Child:
        ours, its = socket.socketpair()
        ours.setblocking(False)
        with its:
            words = (*self._command, "--supervisor", str(its.fileno()))
            process = await asyncio.create_subprocess_exec(*words, pass_fds=[its.fileno()])
        child = _Child(process, ours)
        self._children.add(child)
        for _ in range(self._orders):
            child.stop()
        return child

    async def _rest(self, seconds: float | None) -> None:
        """Wait so long, or until a file changes or a signal comes."""
        self._changed.clear()
        if not self._orders:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    def _give_up(self, code: int, deaths: int) -> None:
        if deaths >= _STARTS:
            say(f"the processes do not start: {deaths} in a row have died, the last one {_how_it_ended(code)}")
        self._code = _exit_of(code)
        self._stop()

    def _stop(self) -> None:
        """Have all children stop; told twice, end at once."""
        self._orders += 1
        self._changed.set()
        self._is_well.set()
        for child in self._children:
            child.stop()
        if self._orders == 2:
            asyncio.get_running_loop().call_later(_LAST_MOMENT, self._kill)

    def _kill(self) -> None:
        for child in self._children:
            with suppress(ProcessLookupError):
                child.process.kill()

    def _count(self, code: int) -> None:
        """The worst of what became of children at the end is what becomes of their supervisor."""
        killed = Exit.AT_ONCE if self._orders > 1 else Exit.CUT_OFF
        self._code = max(self._code, killed if code < 0 else _exit_of(code))

    async def _replace(self, changes: AsyncIterator[str]) -> None:
        """Stop the children whenever files change: others take their places."""
        try:
            async for files in changes:
                say(f"{files} changed: reload")
                self._changed.set()
                for child in self._children:
                    child.stop()
        except Exception as error:  # The system may have no more watches.
            say(f"--reload cannot watch this folder: {error}")
            self._code = Exit.INTERNAL
            self._stop()


def _changes() -> AsyncIterator[str]:
    """The .py files of this folder that change, without those of virtual environments and the like."""
    with needs("--reload", "reload"):
        watchfiles = import_module("watchfiles")

    async def changes() -> AsyncIterator[str]:
        async for changed in watchfiles.awatch(".", watch_filter=watchfiles.PythonFilter()):
            yield ", ".join(sorted({Path(file).name for _, file in changed}))

    return changes()


def _exit_of(code: int) -> Exit:
    return Exit(code) if code in set(Exit) else Exit.CRASHED


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return "has ended" if code == Exit.DONE else f"has ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


# -- the child ---------------------------------------------------------------------------------------------------------


class Line:
    """A child's end of the socket."""

    def __init__(self, number: int) -> None:
        self._socket: Final = socket.socket(fileno=number)
        self._socket.set_inheritable(False)
        #: `stop(False)` stops the program with grace, `stop(True)` at once.
        self.stop: Callable[[bool], object] = _end_the_program
        threading.Thread(target=self._listen, name="tubes-supervisor", daemon=True).start()

    def ready(self) -> None:
        """Tell the supervisor that the worker begins."""
        with suppress(OSError):
            self._socket.send(READY)

    def _listen(self) -> None:
        orders = 0
        with suppress(OSError):
            while self._socket.recv(1):
                orders += 1
                self.stop(orders > 1)
        if not orders:  # The supervisor has died.
            say(f"process {os.getpid()}: the supervisor has gone, so this process stops")
            self.stop(False)


def _end_the_program(now: bool) -> None:
    """There is no worker yet: end as by SIGTERM."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGTERM)


def child_command(*words: str) -> list[str]:
    """The words of a child: `tubes worker` in an interpreter of its own."""
    return [sys.executable, "-m", "tubes", "worker", *words]
