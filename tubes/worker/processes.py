"""Processes for handlers that need a core of their own: as many as there is work at a time.

Each works on one call at a time, so that one that dies, or is killed since it takes too long, fails one attempt.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final

from tubes.errors import InvalidOption, TubesError
from tubes.worker.functions import current
from tubes.worker.outcomes import reason_of
from tubes.worker.routes import Target, is_async

if TYPE_CHECKING:
    from tubes.values.task import TaskView

#: Seconds that an idle process gets to end.
_MOMENT: Final = 1.0
#: Seconds that a process gets to start, with all that the main module of the program imports.
_START: Final = 60.0
#: Seconds between two looks whether a process has died: its end does not close its pipe while a child of it lives.
_LOOK: Final = 0.5
_NAME: Final = "tubes-handler"


class ProcessDied(TubesError):
    """the process of the handler died: {how}."""


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """A task as a handler in another process sees it: its facts, without the methods.

    >>> ProcessTask(tube="frames", id=7, data="cat.png").data
    'cat.png'
    """

    tube: str
    id: int
    data: Any
    attempts: int = 1
    max_attempts: int | None = None
    utube: str | None = None
    key: str | None = None
    #: When it was put: seconds since the epoch.
    created: float = 0.0
    context: dict[str, str] | None = None


def _facts_of(task: TaskView) -> ProcessTask:
    facts: dict[str, Any] = {name: getattr(task, name) for name in ProcessTask.__slots__}
    return ProcessTask(**facts)


class Processes:
    """The processes of one run. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._idle: Final[list[_Child]] = []
        self._all: Final[set[_Child]] = set()
        self._closed = False

    def call(self, target: Target, task: TaskView) -> Any:
        """Call a handler with a task in a process, and wait for it.

        Raises what it raises, `TimeoutError` after the target's timeout, and `ProcessDied`.
        """
        facts = _facts_of(task)
        args, kwargs = ([facts], {}) if target.arguments is None else target.arguments(task)
        work = pickle.dumps((target.function, args, kwargs, facts))
        child = self._begun(work)
        try:
            if (answer := child.receive(target.timeout)) is None:
                raise TimeoutError(f"the handler took longer than {target.timeout} s")
            is_good, result = pickle.loads(answer)
        except (EOFError, ConnectionError):
            raise ProcessDied(how=self._end(child)) from None
        except BaseException:
            self._end(child)
            raise
        with self._lock:
            self._idle.append(child)
        if is_good:
            return result
        raise result

    def _begun(self, work: bytes) -> _Child:
        """A process that has this work. One that has died while it was idle is none."""
        while True:
            # A process is started under the lock: `close` finds each of them.
            with self._lock:
                was_idle = bool(self._idle)
                child = self._idle.pop() if was_idle else _Child()
                self._all.add(child)
                if self._closed:
                    child.process.kill()
            try:
                if not was_idle and child.receive(_START) is None:
                    self._end(child)
                    raise TimeoutError(f"a process for the handler did not start in {_START:g} s")
                child.pipe.send_bytes(work)
                return child
            except (EOFError, ConnectionError):
                how = self._end(child)
                if not was_idle:
                    raise ProcessDied(how=how) from None

    def _end(self, child: _Child) -> str:
        """End a process, if it has not died; how it has ended."""
        with self._lock:
            self._all.discard(child)
        return child.end()

    def close(self) -> None:
        """End all processes: the idle ones, and those that still work."""
        with self._lock:
            self._closed = True
            idle, busy = [*self._idle], self._all.difference(self._idle)
            self._idle.clear()
            self._all.clear()
        for child in busy:
            # Its thread waits for it, and ends it.
            child.process.kill()
        for child in idle:
            child.pipe.close()
        for child in idle:
            child.process.join(_MOMENT)
            child.end()


class _Child:
    """A process that works on one call at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), name=_NAME)
        with theirs:
            self.process.start()

    def receive(self, timeout: float | None) -> bytes | None:
        """What it sends next; None: nothing in so many seconds. Raises `EOFError` if it has died."""
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK if ends is None else min(ends - time.monotonic(), _LOOK)
            # Whether it lives is asked before the pipe: what it has sent before it died counts.
            is_alive = self.process.is_alive()
            if self.pipe.poll(max(left, 0) if is_alive else 0):
                return self.pipe.recv_bytes()
            if not is_alive:
                raise EOFError
            if left <= 0:
                return None

    def end(self) -> str:
        """End it, if it has not died; how it has ended."""
        self.process.join(0 if self.pipe.closed or not self._has_hung_up() else _MOMENT)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        with suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
        return f"it ended with {code}"

    def _has_hung_up(self) -> bool:
        """Whether it is about to end by itself: how, is of interest then."""
        try:
            return self.pipe.poll() and not self.pipe.recv_bytes()
        except (EOFError, OSError):
            return True


def _serve(pipe: Connection) -> None:
    """What a process does, until its parent hangs up or dies."""
    threading.Thread(target=_end_with_parent, name="tubes-parent", daemon=True).start()
    # The parent says when it is over: a signal to the whole group means the parent, which has its grace.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            pipe.send_bytes(_done(pipe.recv_bytes()))


def _end_with_parent() -> None:
    """End this process when its parent has died, whatever the handler does: its task goes to another worker."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    # A fork of the parent may hold the sentinel open.
    while os.getppid() == parent.pid and not wait([parent.sentinel], _MOMENT):
        pass
    os._exit(1)


def kill_all() -> None:
    """Kill all processes of handlers, before this one ends without further ado."""
    for process in multiprocessing.active_children():
        if process.name == _NAME:
            process.kill()


def _done(work: bytes) -> bytes:
    try:
        function, args, kwargs, facts = pickle.loads(work)
        current.set(facts)
        return pickle.dumps((True, function(*args, **kwargs)))
    except BaseException as error:
        error.add_note(f"In its process:\n{''.join(traceback.format_exception(error)).rstrip()}")
        try:
            failure = pickle.dumps((False, error))
            pickle.loads(failure)
            return failure
        except Exception:  # It cannot be brought to another process.
            return pickle.dumps((False, RuntimeError(reason_of(error))))


def check_process(function: Any) -> None:
    """Raise `InvalidOption` for a function that cannot be called in another process."""
    rule = "must be a function at the top level of a module, which another process finds by its name"
    if is_async(function):
        rule = "must be plain to run in a process of its own"
    elif hasattr(function, "__qualname__") and hasattr(function, "__module__"):
        # The name of a function that is just being decorated is not there yet.
        if "<" not in function.__qualname__:
            return
    else:
        with suppress(Exception):
            pickle.dumps(function)
            return
    raise InvalidOption(option="handler", value=function, rule=rule)
