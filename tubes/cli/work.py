"""`tubes worker`: runs a worker of a program."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

import tubes
from tubes.backend.url import url_of_environment
from tubes.cli.common import AsJson, Url, connected
from tubes.cli.exits import SHOWS_WHERE, Exit, Stop, say
from tubes.cli.logs import log_from, show_logs
from tubes.cli.show import as_json
from tubes.cli.supervisor import Line, Supervisor, child_command
from tubes.memory import connection as memory
from tubes.worker import Worker
from tubes.worker.signals import end_soon, leaving
from tubes.worker.summary import AT_ONCE, CUT_OFF

#: Seconds for which a first connection is tried.
_PATIENCE = 10.0
_ALONE = "memory:// is in one process, as file: is, and --processes starts several: give the URL of a server"
_CODES: dict[int, Exit] = {CUT_OFF: Exit.CUT_OFF, AT_ONCE: Exit.AT_ONCE}


def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:WORKER", help="A Worker, or a function of the queue that returns one."),
    ],
    burst: Annotated[bool, typer.Option("--burst", help="Exit when no task is left that can be taken.")] = False,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="The number of tasks that each handler works on at a time."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option("--grace", min=0, help="Seconds that handlers have to finish after a signal."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-p", min=1, help="Run so many processes, and replace those that end.")
    ] = None,
    max_tasks: Annotated[int | None, typer.Option("--max-tasks", min=1, help="Exit after so many tasks.")] = None,
    max_memory: Annotated[
        int | None,
        typer.Option("--max-memory", metavar="MB", min=1, help="Exit when the process uses more memory than this."),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a .py file in this folder changes.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print debug messages, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")] = False,
    url: Url = None,
    as_json_: AsJson = False,
    supervisor: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C.

    Then it takes no more tasks, and handlers have --grace seconds to finish. A second signal ends it at once. MODULE
    may be in this folder. A Worker has its own queue. A function, `def make(queue)`, gets the queue of --url.

    With --processes a supervisor starts several processes of this worker, and replaces those that end.
    """
    if supervisor is None and (processes is not None or reload):
        options = {"--concurrency": concurrency, "--grace": grace, "--processes": processes}
        options |= {"--max-tasks": max_tasks, "--max-memory": max_memory}
        flags = {"--burst": burst, "--verbose": verbose, "--quiet": quiet, "--json": as_json_}
        words = [target, *(name for name, given in flags.items() if given)]
        words += [word for name, value in options.items() if value is not None for word in (name, str(value))]
        _supervise(words, processes or 1, url, burst=burst, reload=reload)
        return
    codes = [Exit.DONE]
    with ExitStack() as stack:
        stack.enter_context(leaving(lambda: codes[-1]))
        line = None if supervisor is None else Line(supervisor)
        show_logs(is_one_of_many=line is not None)
        made = _found(target)
        if not isinstance(made, Worker):
            made = _make(target, made, lambda: stack.enter_context(_reached(url)))
        log_from(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        if concurrency is not None:
            made.concurrency = concurrency
        if grace is not None:
            made.grace = grace
        limit(made, max_tasks, max_memory)
        made._code_at_once = Exit.AT_ONCE
        if line is not None:
            _check_shared(made, processes or 1)
            line.stop = partial(_stop, made)
            _tell_when_ready(made, line)
        try:
            summary = made.run(burst=burst)
        except tubes.TubesError:
            raise
        except Exception as error:
            raise Stop(f"{target} failed: {type(error).__name__}: {error} ({SHOWS_WHERE})", Exit.INTERNAL) from error
        codes.append(_CODES.get(summary.exit_code, Exit.DONE))
        if as_json_:
            facts = ("acked", "released", "buried", "lost", "cut_off")
            as_json({name: getattr(summary, name) for name in facts})
        if burst and not summary.exit_code:
            _look_for_tubes(made)
    if summary.exit_code:
        # Threads of handlers that were cut off may go on, and Python waits for some of them.
        end_soon(codes[-1])
        raise typer.Exit(int(codes[-1]))


def _supervise(words: list[str], processes: int, url: str | None, *, burst: bool, reload: bool) -> None:
    """Run processes of `tubes worker` with these words."""
    place = url or url_of_environment() or ""
    if processes > 1 and place.partition(":")[0].lower() in ("memory", "file"):
        raise Stop(_ALONE, Exit.USAGE)
    if url is not None:
        os.environ["TUBES_URL"] = url  # Its password does not belong into a list of processes.
    supervisor = Supervisor(child_command(*words), processes, burst=burst, reload=reload)
    what = "a process" if processes == 1 else f"{processes} processes"
    say(f"starts {what} of {words[0]}; Ctrl-C ends {'it' if processes == 1 else 'them'}")
    code = asyncio.run(supervisor.run())
    if code:
        raise typer.Exit(int(code))


def _check_shared(worker: Worker, processes: int) -> None:
    """Several processes need a queue that they share."""
    if processes > 1 and isinstance(worker._queue._connection, memory.Connection):
        raise Stop(_ALONE, Exit.USAGE)


def _tell_when_ready(worker: Worker, line: Line) -> None:
    """The supervisor is told when the program has opened all that it needs."""

    @worker.lifespan
    def _() -> Iterator[None]:
        line.ready()
        yield


def _stop(worker: Worker, now: bool) -> None:
    worker.stop(now=now)
    if now:
        end_soon(Exit.AT_ONCE)


def limit(worker: Worker, tasks: int | None, megabytes: int | None) -> None:
    """Stop a worker after so many tasks, and when its process has grown larger than this."""
    if tasks is None and megabytes is None:
        return
    numbers = count(1)  # Atomic: handlers in threads share it.

    @worker.around
    def _(task: object) -> Iterator[None]:
        if next(numbers) == tasks:
            say(f"process {os.getpid()} stops after {tasks} tasks")
            worker.stop()
        try:
            yield
        finally:
            if megabytes is not None and (used := _memory()) > megabytes:
                say(f"process {os.getpid()} stops: it uses {used} MB of memory, and may use {megabytes}")
                worker.stop()


def _memory() -> int:
    """How many megabytes of memory this process uses; where only the most that it ever used is known, that."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**20
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def _reached(url: str | None) -> AbstractContextManager[tubes.Queue]:
    """A worker is begun by a program, as the server may be: it has the patience of a program."""
    return connected(url, patience=_PATIENCE)


def _make(target: str, factory: Callable[[tubes.Queue], object], queue: Callable[[], tubes.Queue]) -> Worker:
    """What the program's function makes of the queue."""
    try:
        inspect.signature(factory).bind(None)
    except TypeError as error:
        raise Stop(f"{target} must be a function of one argument, the queue: {error}", Exit.USAGE) from error
    except ValueError:  # It does not tell its arguments.
        pass
    reached = queue()
    try:
        made: object = factory(reached)
    except tubes.TubesError:
        raise
    except Exception as error:
        raise Stop(f"{target} failed: {type(error).__name__}: {error}", Exit.USAGE) from error
    if not isinstance(made, Worker):
        raise Stop(f"{target} made no Worker, but {type(made).__name__}", Exit.USAGE)
    return made


def _look_for_tubes(worker: Worker) -> None:
    """A worker waits for tubes that are not there; a burst has ended without them."""
    with tubes.connect(worker._queue) as queue:
        for route in worker._routes:
            for name in route.tubes:
                queue.tube(name)


def _found(target: str) -> Any:
    """What stands in the module under this name."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise Stop(f"{target!r}: must be module:worker", Exit.USAGE)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except tubes.TubesError:
        raise
    except Exception as error:
        # What the module needs may be missing too.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise Stop(f"there is no module {module!r} here, or on the path of Python", Exit.USAGE) from error
        why = f"{type(error).__name__}: {error}"
        raise Stop(f"module {module!r} cannot be imported: {why}", Exit.USAGE) from error
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise Stop(f"module {module!r} has no {name!r}", Exit.USAGE)
    if not isinstance(found, Worker) and not callable(found):
        raise Stop(f"{target} is no Worker, but {type(found).__name__}", Exit.USAGE)
    return found


COMMANDS: tuple[Callable[..., None], ...] = (worker,)
