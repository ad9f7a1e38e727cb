"""`tubes worker`: run a worker of a program."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import tubes
from tubes.backend.port import connection_of
from tubes.backend.url import url_of_environment
from tubes.cli.common import AsJson, Url, open_queue, with_options
from tubes.cli.exits import SHOWS_WHERE, Exit, Stop
from tubes.cli.logs import set_log_level, show_logs
from tubes.cli.show import print_json
from tubes.cli.supervisor import Supervisor, SupervisorLink, child_command
from tubes.worker import Worker
from tubes.worker.outcomes import AT_ONCE, CUT_OFF
from tubes.worker.signals import exit_on_sigterm, exit_soon

_log: Final = logging.getLogger("tubes.worker")
#: Connect timeout in seconds. It is longer than that of other commands: a script may start worker and server together.
_CONNECT_TIMEOUT = 10.0
_NOT_SHARED = "memory:// and file: work in one process only, but --processes starts several: give the URL of a server"
_CODES: dict[int, Exit] = {CUT_OFF: Exit.CUT_OFF, AT_ONCE: Exit.AT_ONCE}


@dataclass(frozen=True)
class WorkerOptions:
    """The options of `tubes worker`."""

    burst: Annotated[bool, typer.Option("--burst", help="Exit when no more tasks can be taken.")] = False
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="The number of tasks that each handler works on at a time."),
    ] = None
    total: Annotated[
        int | None,
        typer.Option("--total", min=1, help="The number of tasks that all handlers together work on at a time."),
    ] = None
    grace: Annotated[
        float | None,
        typer.Option("--grace", min=0, help="Seconds that handlers have to finish after a signal."),
    ] = None
    processes: Annotated[
        int | None,
        typer.Option("--processes", "-p", min=1, help="Run this many processes, and restart them when they end."),
    ] = None
    max_tasks: Annotated[int | None, typer.Option("--max-tasks", min=1, help="Exit after this many tasks.")] = None
    max_memory: Annotated[
        int | None,
        typer.Option("--max-memory", metavar="MB", min=1, help="Exit when the process uses more memory than this."),
    ] = None
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a .py file in this folder changes.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print debug messages.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")] = False


@with_options(WorkerOptions)
def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER", help="A Worker, or a function that gets the queue and returns a Worker."
        ),
    ],
    *,
    options: WorkerOptions,
    url: Url = None,
    as_json_: AsJson = False,
    supervisor: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C.

    After the signal it takes no more tasks, and handlers have --grace seconds to finish. A second signal ends it at
    once. MODULE can be in the current folder. A Worker has its own queue. A function, `def make(queue)`, gets the
    queue of --url.

    With --processes a supervisor starts several processes of this worker, and restarts them when they end.
    """
    level = logging.DEBUG if options.verbose else logging.WARNING if options.quiet else logging.INFO
    if supervisor is None and (options.processes is not None or options.reload):
        show_logs(is_one_of_many=False)
        set_log_level(level)
        _supervise([target, *_words_of(options), *(["--json"] if as_json_ else [])], url, options)
        return
    codes = [Exit.DONE]
    with ExitStack() as stack:
        stack.enter_context(exit_on_sigterm(lambda: codes[-1]))
        link = None if supervisor is None else SupervisorLink(supervisor)
        show_logs(is_one_of_many=link is not None)
        loaded = _load(target)
        if not isinstance(loaded, Worker):
            connect = partial(open_queue, url, connect_timeout=_CONNECT_TIMEOUT)
            loaded = _make(target, loaded, lambda: stack.enter_context(connect()))
        set_log_level(level)
        if options.concurrency is not None:
            loaded.concurrency = options.concurrency
        if options.total is not None:
            loaded.total = options.total
        if options.grace is not None:
            loaded.grace = options.grace
        limit(loaded, options.max_tasks, options.max_memory)
        loaded._code_at_once = Exit.AT_ONCE
        if link is not None:
            if (options.processes or 1) > 1 and not connection_of(loaded._queue).is_remote:
                raise Stop(_NOT_SHARED, Exit.USAGE)
            link.stop = partial(_stop, loaded)
            _report_start(loaded, link)
        try:
            summary = loaded.run(burst=options.burst)
        except tubes.TubesError:
            raise
        except Exception as error:
            raise Stop(f"{target} failed: {type(error).__name__}: {error} ({SHOWS_WHERE})", Exit.INTERNAL) from error
        codes.append(_CODES.get(summary.exit_code, Exit.DONE))
        if as_json_:
            facts = ("acked", "released", "buried", "lost", "cut_off")
            print_json({name: getattr(summary, name) for name in facts})
    if summary.exit_code:
        # Threads of handlers that were cut off may still run, and Python would wait for some of them at exit.
        exit_soon(codes[-1])
        raise typer.Exit(int(codes[-1]))


def _words_of(options: WorkerOptions) -> Iterator[str]:
    """Return the options as words of a command line, for a process of the supervisor."""
    for name, value in vars(options).items():
        if value is not None and value is not False and name != "reload":
            yield f"--{name.replace('_', '-')}"
            if value is not True:
                yield str(value)


def _supervise(words: list[str], url: str | None, options: WorkerOptions) -> None:
    processes = options.processes or 1
    place = url or url_of_environment() or ""
    if processes > 1 and place.partition(":")[0].lower() in ("memory", "file"):
        raise Stop(_NOT_SHARED, Exit.USAGE)
    if url is not None:
        os.environ["TUBES_URL"] = url  # As an argument its password would be visible in the list of processes.
    supervisor = Supervisor(child_command(*words), processes, burst=options.burst, reload=options.reload)
    what = "a process" if processes == 1 else f"{processes} processes"
    _log.info("the supervisor starts %s of %s; Ctrl-C stops %s", what, words[0], "it" if processes == 1 else "them")
    code = asyncio.run(supervisor.run())
    if code:
        raise typer.Exit(int(code))


def _report_start(worker: Worker, link: SupervisorLink) -> None:
    """Notify the supervisor when the worker's lifespans have started."""

    @worker.lifespan
    def _() -> Iterator[None]:
        link.ready()
        yield


def _stop(worker: Worker, now: bool) -> None:
    worker.stop(now=now)
    if now:
        exit_soon(Exit.AT_ONCE)


def limit(worker: Worker, tasks: int | None, megabytes: int | None) -> None:
    """Stop a worker after this many tasks, or when its process uses more memory than this."""
    if tasks is None and megabytes is None:
        return
    numbers = count(1)  # `next` is atomic, so handlers in threads can share it.

    @worker.around
    def _(task: object) -> Iterator[None]:
        if next(numbers) == tasks:
            _log.info("process %d stops after %d tasks", os.getpid(), tasks)
            worker.stop()
        try:
            yield
        finally:
            if megabytes is not None and (used := _memory()) > megabytes:
                text = "process %d stops: it uses %d MB of memory, and may use %d"
                _log.info(text, os.getpid(), used, megabytes)
                worker.stop()


def _memory() -> int:
    """Return the memory of this process in MB, or its peak if the system reports only that."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**20
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def _make(target: str, factory: Callable[[tubes.Queue], object], queue: Callable[[], tubes.Queue]) -> Worker:
    """Call the program's function with the queue, and return its worker."""
    try:
        inspect.signature(factory, follow_wrapped=False).bind(None)
    except TypeError as error:
        raise Stop(f"{target} must be a function of one argument, the queue: {error}", Exit.USAGE) from error
    except ValueError:  # The signature is unknown, as for some builtins.
        pass
    connection = queue()
    try:
        result: object = factory(connection)
    except tubes.TubesError:
        raise
    except Exception as error:
        raise Stop(f"{target} failed: {type(error).__name__}: {error}", Exit.USAGE) from error
    if not isinstance(result, Worker):
        raise Stop(f"{target} must return a Worker, not {type(result).__name__}", Exit.USAGE)
    return result


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    if not module or not name:
        raise Stop(f"{target!r}: must be module:worker", Exit.USAGE)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        imported = importlib.import_module(module)
    except tubes.TubesError:
        raise
    except Exception as error:
        # A ModuleNotFoundError may also be about an import within the module.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise Stop(f"there is no module {module!r} in this folder or on the Python path", Exit.USAGE) from error
        message = f"{type(error).__name__}: {error}"
        raise Stop(f"module {module!r} cannot be imported: {message}", Exit.USAGE) from error
    found: Any = imported
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise Stop(f"module {module!r} has no {name!r}", Exit.USAGE)
    if not isinstance(found, Worker) and not callable(found):
        raise Stop(f"{target} must be a Worker or a function, not {type(found).__name__}", Exit.USAGE)
    return found


COMMANDS: tuple[Callable[..., None], ...] = (worker,)
