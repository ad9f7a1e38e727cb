"""`tubes worker`: runs a worker of a program."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Annotated, Any

import typer

import tubes
from tubes.cli.common import AsJson, Url, connected
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.show import as_json
from tubes.worker import Worker
from tubes.worker.signals import end_soon, leaving
from tubes.worker.summary import AT_ONCE, CUT_OFF

#: Seconds for which a first connection is tried.
_PATIENCE = 10.0
_CODES: dict[int, Exit] = {CUT_OFF: Exit.CUT_OFF, AT_ONCE: Exit.AT_ONCE}


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:WORKER", help="A Worker, or a function that makes one of a queue.")
    ],
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is left to do: for tests and cron.")] = False,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Tasks that each handler works on at a time.")
    ] = None,
    grace: Annotated[
        float | None, typer.Option("--grace", min=0, help="Seconds for which handlers may go on at the end.")
    ] = None,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Work on tasks until SIGTERM or Ctrl-C: then take no more, and let what is in hand be finished.

    MODULE is looked for in this folder too. A Worker has a queue already; a function, `def make(queue)`, is given that
    of --url.
    """
    # A worker has news: handlers that fail, a server that is away. A program that has set up its logs keeps them.
    codes = [Exit.DONE]
    with ExitStack() as stack:
        stack.enter_context(leaving(lambda: codes[-1]))
        found = _found(target)
        logging.basicConfig(format="tubes: %(message)s")
        made = found if isinstance(found, Worker) else _make(target, found, lambda: stack.enter_context(_reached(url)))
        if concurrency is not None:
            made.concurrency = concurrency
        if grace is not None:
            made.grace = grace
        made._code_at_once = Exit.AT_ONCE
        say(f"works: {target}; Ctrl-C ends it")
        summary = made.run(burst=burst)
        codes.append(_CODES.get(summary.exit_code, Exit.DONE))
        if as_json_:
            facts = ("acked", "released", "buried", "lost", "cut_off")
            as_json({name: getattr(summary, name) for name in facts})
        else:
            say(str(summary).removeprefix("Summary(").removesuffix(")").replace("=", " ").partition(", exit_code")[0])
        if burst and not summary.exit_code:
            _look_for_tubes(made)
    if summary.exit_code:
        # Threads of handlers that were cut off may go on, and Python waits for some of them.
        end_soon(codes[-1])
        raise typer.Exit(int(codes[-1]))


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
