"""Processes for handlers that need a core of their own: one for each simultaneous call.

Each process serves one call at a time. So a process that dies, or is killed at its timeout, fails only one attempt.
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

from tubes.errors import InvalidOption, TaskCancelled, TaskNotTaken, TubesError
from tubes.worker.functions import current
from tubes.worker.in_flight import NEVER, Take, take_of
from tubes.worker.outcomes import reason_of
from tubes.worker.routes import Target, is_async

if TYPE_CHECKING:
    from tubes.sync import Task

#: Seconds that an idle process has to exit.
_EXIT_TIMEOUT: Final = 1.0
#: Seconds that a process has to start, including the imports of the program's main module.
_START_TIMEOUT: Final = 60.0
#: Seconds between two checks whether a process is alive: its pipe stays open as long as a child of it lives.
_POLL_INTERVAL: Final = 0.5
#: Bytes per write to a pipe: the system writes so few in one step, even if the writer is killed meanwhile.
_PIECE: Final = 2**14
_NAME: Final = "tubes-handler"


class ProcessDied(TubesError):
    """the process of the handler died: {how}."""


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """A task as a handler in another process sees it: its attributes, and `checkpoint`.

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
    #: The time of the put, in seconds since the epoch.
    created: float = 0.0
    context: dict[str, str] | None = None
    #: The data that the last `checkpoint` of an earlier attempt saved, and its progress and note.
    saved: Any = None
    progress: float | None = None
    note: str | None = None

    def checkpoint(self, saved: Any = None, *, progress: float | None = None, note: str | None = None) -> None:
        """Store how far the handler got, through the worker's process: see `Task.checkpoint`."""
        if _pipe is None:
            raise RuntimeError("checkpoint works in the process of a handler only")
        with _pipe_lock:
            if _serving != (self.tube, self.id, self.attempts):  # A thread of an earlier handler.
                raise TaskNotTaken(id=self.id, tube=self.tube)
            for piece in _split(pickle.dumps((None, (saved, progress, note)))):
                _pipe.send_bytes(piece)
            error: BaseException | None = pickle.loads(_receive(_pipe))
        if error is not None:
            raise error


#: In a process of a handler: the pipe to the worker's process.
_pipe: Connection | None = None
_pipe_lock: Final = threading.Lock()
#: The tube, the id and the attempt of the task whose handler runs; None: no handler runs.
_serving: tuple[str, int, int] | None = None


class Processes:
    """The processes of one run. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._idle: Final[list[_Child]] = []
        self._all: Final[set[_Child]] = set()
        # The child of each running call, None until it has one, and the calls whose child is to be killed.
        self._running: Final[dict[Take, _Child | None]] = {}
        self._killed: Final[set[Take]] = set()
        self._closed = False

    def call(self, target: Target, task: Task) -> object:
        """Call a handler with a task in a process, and wait for its result.

        Raises the errors of the handler, `TimeoutError` after the target's timeout, and `ProcessDied`.
        """
        facts = ProcessTask(**{name: getattr(task, name) for name in ProcessTask.__slots__})
        args, kwargs = ([facts], {}) if target.arguments is None else target.arguments(task)
        work = pickle.dumps((target.function, args, kwargs, facts))
        take = take_of(task)
        with self._lock:
            self._running[take] = None
        try:
            if task.cancelled:  # It was cancelled before this call.
                raise TaskCancelled(id=task.id, tube=task.tube, reason=None)
            return self._call_in_child(target, task, take, work)
        finally:
            with self._lock:
                del self._running[take]
                self._killed.discard(take)

    def _call_in_child(self, target: Target, task: Task, take: Take, work: bytes) -> object:
        child = self._send_to_child(target, take, work)
        try:
            is_good: bool | None = None
            result: Any = None
            while is_good is None:
                is_good, result = pickle.loads(child.receive())
                if is_good is None:
                    child.send(pickle.dumps(_store_checkpoint(task, *result)))
        except (EOFError, ConnectionError):
            raise ProcessDied(how=self._end(child)) from None
        except BaseException:
            self._end(child)
            raise
        # Decide and hand the child over in one step: a child that was killed, or still may be, serves no other call.
        with self._lock:
            is_killed = self._closed or take in self._killed
            self._running[take] = None
            if not is_killed:
                self._idle.append(child)
        if is_killed:
            self._end(child)
        if is_good:
            return result
        raise result

    def kill(self, take: Take) -> None:
        """Kill the process that handles a task, or the one that is about to."""
        with self._lock:
            if take in self._running:
                self._killed.add(take)
                if (child := self._running[take]) is not None:
                    child.process.kill()

    def _send_to_child(self, target: Target, take: Take, work: bytes) -> _Child:
        """Send the work to an idle child or a new one. Skips idle children that die before they have read all of it."""
        while True:
            # Start the process under the lock, so that `close` and `kill` find it.
            with self._lock:
                if self._closed or take in self._killed:
                    raise ProcessDied(how="its call was ended before it began")
                was_idle = bool(self._idle)
                child = self._idle.pop() if was_idle else _Child()
                self._all.add(child)
                self._running[take] = child
            try:
                if not was_idle:
                    child.receive()
                child.limit(target.timeout or NEVER, target.timeout_error())
                child.send(work)
                return child
            except (EOFError, ConnectionError):
                how = self._end(child)
                if not was_idle:
                    raise ProcessDied(how=how) from None
            except BaseException:
                self._end(child)
                raise

    def _end(self, child: _Child) -> str:
        """End a process if it is alive. Returns how it ended."""
        with self._lock:
            self._all.discard(child)
        return child.end()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, busy = [*self._idle], self._all.difference(self._idle)
            self._idle.clear()
            self._all.clear()
        for child in busy:
            # The thread that waits for its result cleans up.
            child.process.kill()
        for child in idle:
            child.pipe.close()
        for child in idle:
            child.process.join(_EXIT_TIMEOUT)
            child.end()


class _Child:
    """A process that serves one call at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self.process = context.Process(target=_serve, args=(child_pipe,), name=_NAME)
        with child_pipe:
            self.process.start()
        self.limit(_START_TIMEOUT, TimeoutError(f"a process for the handler did not start in {_START_TIMEOUT:g} s"))

    def limit(self, seconds: float, error: TimeoutError) -> None:
        """Let `send` and `receive` raise `error` when `seconds` have passed."""
        self._ends, self._error = time.monotonic() + seconds, error

    def send(self, message: bytes) -> None:
        """Send a message, and return once the process has read it. Raises `EOFError` if it has died."""
        for piece in _split(message):
            # It fits into the pipe, because the process has read everything before it.
            self.pipe.send_bytes(piece)
            self.receive()

    def receive(self) -> bytearray:
        """Return the next message of the process. Raises `EOFError` if it has died."""
        message = bytearray()
        while True:
            left = min(self._ends - time.monotonic(), _POLL_INTERVAL)
            # Check this before the pipe: a message that it sent before it died counts.
            is_alive = self.process.is_alive()
            if self.pipe.poll(max(left, 0) if is_alive else 0):
                message += (piece := self.pipe.recv_bytes())
                if len(piece) < _PIECE:
                    return message
            elif not is_alive:
                raise EOFError
            elif left <= 0:
                raise self._error

    def end(self) -> str:
        """End the process if it is alive. Returns how it ended."""
        self.process.join(0 if self.pipe.closed or not self._is_exiting() else _EXIT_TIMEOUT)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        with suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def _is_exiting(self) -> bool:
        """Return True if the process closed its pipe: wait for it then, because its exit code says why."""
        try:
            return self.pipe.poll() and not self.pipe.recv_bytes()
        except (EOFError, OSError):
            return True


def _store_checkpoint(task: Task, saved: object, progress: float | None, note: str | None) -> BaseException | None:
    """Store a checkpoint of a handler in another process; return the error that the handler gets."""
    try:
        task.checkpoint(saved, progress=progress, note=note)
    except BaseException as error:
        return error
    return None


def _split(message: bytes) -> list[bytes]:
    """Split a message into pieces. The last one is shorter than the others, and may be empty."""
    return [message[start : start + _PIECE] for start in range(0, len(message) + 1, _PIECE)]


def _receive(pipe: Connection) -> bytearray:
    """Return the next message of the worker's process, and confirm each piece."""
    message = bytearray()
    while True:
        message += (piece := pipe.recv_bytes())
        pipe.send_bytes(b"read")
        if len(piece) < _PIECE:
            return message


def _serve(pipe: Connection) -> None:
    """Serve calls until the parent closes the pipe or dies. Runs in the child."""
    global _pipe, _serving
    _pipe = pipe
    threading.Thread(target=_end_with_parent, name="tubes-parent", daemon=True).start()
    # Ignore signals that are sent to the whole group: they are meant for the parent, which has a grace period.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            reply = _execute(_receive(pipe))
            with _pipe_lock:
                _serving = None
                for piece in _split(reply):
                    pipe.send_bytes(piece)


def _end_with_parent() -> None:
    """Exit when the parent has died, even in the middle of a handler: another worker gets the task."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    # A fork of the parent may keep the sentinel open, so compare the parent's pid as well.
    while os.getppid() == parent.pid and not wait([parent.sentinel], _EXIT_TIMEOUT):
        pass
    os._exit(1)


def kill_all() -> None:
    """Kill all processes of handlers. Call it before `os._exit`."""
    for process in multiprocessing.active_children():
        if process.name == _NAME:
            process.kill()


def _execute(work: bytearray) -> bytes:
    global _serving
    try:
        function, args, kwargs, facts = pickle.loads(work)
        current.set(facts)
        _serving = facts.tube, facts.id, facts.attempts
        return pickle.dumps((True, function(*args, **kwargs)))
    except BaseException as error:
        trace = error.__traceback__
        lines = traceback.format_exception(type(error), error, trace and trace.tb_next)  # Without this function.
        error.add_note(f"In its process:\n{''.join(lines).rstrip()}")
        try:
            failure = pickle.dumps((False, error))
            pickle.loads(failure)
            return failure
        except Exception:  # The error cannot be pickled.
            return pickle.dumps((False, RuntimeError(reason_of(error))))


def check_process(function: Any) -> None:
    """Raise `InvalidOption` for a function that cannot be called in another process."""
    rule = "must be a function at the top level of a module, which another process finds by its name"
    if is_async(function):
        rule = "must be plain to run in a process of its own"
    elif hasattr(function, "__qualname__") and hasattr(function, "__module__"):
        # Do not look the function up: while it is being decorated, its module does not have the name yet.
        if "<" not in function.__qualname__:
            return
    else:
        with suppress(Exception):
            pickle.dumps(function)
            return
    raise InvalidOption(option="handler", value=function, rule=rule)
