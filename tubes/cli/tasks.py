"""Commands for tasks: put, take, ack, release, kick, bury, cancel, move, delete."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

import tubes
from tubes.backend.port import port_of
from tubes.backend.selecting import CHANGED_STATES
from tubes.backend.url import SHORTEST_LEASE
from tubes.cli.common import (
    AsJson,
    Because,
    Codec,
    Create,
    Ids,
    Name,
    SomeIds,
    Url,
    Wanted,
    apply_to_each,
    complete_tubes,
    drop_none,
    join_ids,
    open_queue,
    pairs,
    require_confirmation,
    selecting,
    with_options,
)
from tubes.cli.exits import Exit, Stop, code_of, describe_error, say
from tubes.cli.show import console, data_of, print_json, print_line, span, task_json, tasks_table, words_of
from tubes.cli.streams import TooDeep, encodable, from_json, printable, stdin, text_of
from tubes.drivers.moves import check_state
from tubes.drivers.options import SECOND, micros
from tubes.errors import Facts

#: Lines of stdin per call of `put_many`.
_BATCH = 1000
#: Maximum characters of data that an error quotes.
_MAX_QUOTE = 80
#: Commands that change only buried tasks unless --state is given.
_OF_BURIED = ("kick", "move")
_PAST = {
    "kick": "kicked",
    "release": "released",
    "delete": "deleted",
    "move": "moved",
    "bury": "buried",
    "cancel": "cancelled",
}
#: Tasks that --dry-run shows.
_PREVIEW_SIZE = 5

Session = Annotated[
    str | None,
    typer.Option("--session", metavar="UUID", help="The session that holds the tasks: `take --hold` prints it."),
]


@dataclass(frozen=True)
class TaskOptions:
    """The options of a new task."""

    utube: Annotated[str | None, typer.Option(help="The lane of the task.")] = None
    pri: Annotated[int | None, typer.Option(help="The priority: 0 comes first.")] = None
    delay: Annotated[float | None, typer.Option(help="Seconds until the task is ready.")] = None
    ttl: Annotated[float | None, typer.Option(help="Seconds until the task expires.")] = None
    ttr: Annotated[float | None, typer.Option(help="Seconds that a worker can hold the task (time to run).")] = None
    max_attempts: Annotated[int | None, typer.Option(help="The maximum number of times the task can be taken.")] = None
    key: Annotated[str | None, typer.Option(help="A key that only one task of the tube can have.")] = None
    on_duplicate: Annotated[
        str | None, typer.Option(help="What to do if the key is in use: keep, replace, update or raise.")
    ] = None
    keep_done: Annotated[float | None, typer.Option(help="Seconds for which the task is kept after it is done.")] = None
    context: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="NAME=VALUE", help="Context of the task, for example a trace id."),
    ] = None


@with_options(TaskOptions)
def put(
    name: Name,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA", help="JSON; other text is put as a string. Without DATA or with -: each line of stdin."
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Put the data as a string even if it is JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse data that is not JSON.")] = False,
    *,
    options: TaskOptions,
    create: Create = None,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """Put tasks and print their ids."""
    if strict and (text or codec == "raw"):
        raise Stop(f"--strict and {'--text' if text else '--codec raw'} cannot be used together", Exit.USAGE)
    read = partial(_datum, text=text, strict=strict)
    with open_queue(url, codec) as queue:
        if create is not None and name not in queue.tubes():
            queue.create_tube(name, create, if_not_exists=True)
        tube = queue.tube(name)
        chosen = drop_none(**vars(options))
        if options.context:
            chosen["context"] = pairs(options.context, "--context")
        codec = "raw" if isinstance(port_of(tube).codec, tubes.RawCodec) else "json"  # The URL can also set it.
        words = _lines(codec, read) if data in (None, [], ["-"]) else _arguments(data or [], codec, read)
        while batch := list(islice(words, _BATCH)):
            tasks = tube.put_many(batch, timeout=0, errors="raise", **chosen)
            if not tasks:
                raise Stop(f"tube {name!r} is full: no task was put", Exit.NOTHING)
            for task in tasks:
                if as_json_:
                    print_json(task_json(task) | {"created_now": task.created_now})
                else:
                    print_line(str(task.id))


def _arguments(words: list[str], codec: str, read: Callable[[str], object]) -> Iterator[object]:
    for word in words:
        try:
            yield os.fsencode(word) if codec == "raw" else read(word)
        except ValueError as error:
            raise Stop(str(error), Exit.USAGE) from error


def _lines(codec: str, read: Callable[[str], object]) -> Iterator[object]:
    for number, raw in enumerate(stdin(), 1):
        if codec == "raw":
            yield raw.removesuffix(b"\n")
            continue
        try:
            word = text_of(raw).rstrip("\r\n")
        except ValueError as error:
            raise Stop(f"line {number} of stdin: {error}; --codec raw puts bytes unchanged", Exit.USAGE) from error
        try:
            yield read(word)
        except ValueError as error:
            raise Stop(f"line {number} of stdin: {error}", Exit.USAGE) from error


def _datum(word: str, *, text: bool, strict: bool) -> object:
    """Parse JSON, or return `word` as a string if it is not JSON. `strict`: raise ValueError instead."""
    if text:
        return word
    try:
        return from_json(word)
    except ValueError as error:
        if strict or isinstance(error, TooDeep):
            quote = word if len(word) <= _MAX_QUOTE else f"{word[:_MAX_QUOTE]}..."
            raise ValueError(f"{quote!r} is not JSON: {error}; --text puts it as a string") from None
        return word


def take(
    name: Name,
    timeout: Annotated[float, typer.Option("--timeout", "-t", help="Seconds to wait for a task to be ready.")] = 0,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="The maximum number of tasks.")] = 1,
    release: Annotated[bool, typer.Option("--release", help="Release the tasks instead of acking them.")] = False,
    hold: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Hold the tasks for this long, until `tubes ack` or `tubes release`."),
    ] = None,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """Take tasks, print their data and ack them.

    A task is acked when its data is printed. It is released if the codec cannot decode it, or if printing fails or is
    interrupted. With --hold it stays taken, and the UUID of the session is printed on stderr, or with --json in each
    line.
    """
    if release and hold is not None:
        raise Stop("--release and --hold cannot be used together", Exit.USAGE)
    if hold is not None and micros("--hold", hold) < SHORTEST_LEASE:
        raise Stop(f"--hold {hold:g}: must be at least {SHORTEST_LEASE / SECOND} seconds", Exit.USAGE)
    with open_queue(url, codec, hold) as queue:
        tube = queue.tube(name)
        session = None if hold is None else queue.admin.identify()
        tasks = tube.take_many(count, timeout)
        if not tasks:
            raise Stop(_describe_empty(queue, name), Exit.NOTHING)
        held: list[tubes.Task] = []
        errors: dict[int, str] = {}
        for task in tasks:
            error = _print_task(task, session, as_json_=as_json_)
            if error is not None:
                errors[task.id] = error
                task.release()
            elif session is not None:
                held.append(task)
            else:
                task.release() if release else task.ack()
        if held and hold is not None:
            seconds, note = _hold_time(held, hold)
            ids = " ".join(str(task.id) for task in held)
            say(f"session {session} holds {len(held)} for {seconds:g} s{note}: {ids}")
            queue.admin.detach()
    if errors:
        others = f" ({len(errors)} tasks in all)" if len(errors) > 1 else ""
        raise Stop(f"task {next(iter(errors))} was released{others}: {next(iter(errors.values()))}", Exit.USAGE)


def _print_task(task: tubes.Task, session: str | None, *, as_json_: bool) -> str | None:
    """Print a task. Return an error message if its data cannot be printed."""
    known = data_of(task)
    if "error" in known:
        return str(known["error"])
    if as_json_:
        print_json(task_json(task) | drop_none(session=session))
        return None
    words = words_of(known)
    if sys.stdout.isatty():
        words = printable(words)
    elif not encodable(words, sys.stdout.encoding):
        return f"the output is {sys.stdout.encoding}, which lacks some of its characters; --json escapes them"
    print_line(words)
    return None


def _describe_empty(queue: tubes.Queue, name: str) -> str:
    """Explain why no task could be taken."""
    overview = queue.admin.overview().get(name)
    paused = None if overview is None else overview.statistics.paused
    if overview is None or paused is None:
        return f"no task of tube {name!r} is ready"
    duration = f"for {span(paused - overview.at)} more" if paused < math.inf else "until it is resumed"
    hint = f"`tubes resume {name}` ends the pause"
    return f"tube {name!r} is paused {duration}, and {overview.statistics.tasks['ready']} tasks are ready: {hint}"


def _hold_time(tasks: list[tubes.Task], hold: float) -> tuple[float, str]:
    """Return the seconds for which the tasks stay taken, and a note if their ttr is shorter than `hold`."""
    ttr = min((task.ttr for task in tasks if task.ttr is not None), default=hold)
    return (ttr, f" (their ttr, shorter than {hold:g} s)") if ttr < hold else (hold, "")


def ack(name: Name, ids: SomeIds, session: Session = None, url: Url = None, as_json_: AsJson = False) -> None:
    """Ack tasks that `take --hold` has taken."""
    done = _settle(name, ids, session, url, lambda tube, task: tube.ack(task), "acked")
    if as_json_:
        print_json({"tube": name, "acked": done})


@selecting(unwanted=("state", "reason"))
def release(
    name: Name,
    ids: Ids = None,
    *,
    session: Session = None,
    delay: Annotated[float | None, typer.Option(help="Seconds until the tasks are ready again.")] = None,
    wanted: Wanted,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Make taken tasks ready again, or delayed.

    With ids and --session it releases tasks that `take --hold` has taken. Without both it releases the selected taken
    tasks of all sessions, even if a worker is handling them, and prints their number.
    """
    if not ids and session is None and delay is None:
        with open_queue(url) as queue:
            _change(queue.tube(name), wanted, "release", as_json_=as_json_)
        return
    wanted.refuse_ids()
    done = _settle(name, ids, session, url, lambda tube, task: tube.release(task, delay), "released")
    if as_json_:
        print_json({"tube": name, "released": done})


def _print_result(as_json_: bool, facts: dict[str, object], past: str, count: int) -> None:
    if as_json_:
        print_json(facts)
    else:
        print_line(f"{past} {count} {'task' if count == 1 else 'tasks'}")


def _settle(
    name: str,
    ids: list[int] | None,
    session: str | None,
    url: str | None,
    act: Callable[[tubes.Tube, int], object],
    action: str,
) -> list[int]:
    if not ids or session is None:
        raise Stop("the ids of tasks and --session UUID are required", Exit.USAGE)
    with open_queue(url) as queue:
        queue.admin.identify(session)
        tube = queue.tube(name)
        try:
            return apply_to_each(ids, lambda task: act(tube, task), action)
        finally:
            queue.admin.detach()  # The session may hold more tasks; it expires by itself.


def _change(tube: tubes.Tube, wanted: Wanted, act: str, /, *, as_json_: bool, **arguments: Any) -> None:
    """Change the selected tasks and print their number."""
    is_of_buried = act in _OF_BURIED or "reason" in wanted.filters
    filters: Facts = {"state": "buried"} | wanted.filters if is_of_buried else wanted.filters
    states, past = CHANGED_STATES[act], _PAST[act]
    if state := filters.get("state"):
        states = (check_state(state, states),)
    else:
        states = tuple(state for state in states if state is not tubes.State.DONE)
    method = "move_to" if act == "move" else act
    if wanted.dry_run:
        nothing: Facts = filters | {"limit": 0}
        getattr(tube.select(**nothing), method)(**arguments)  # Check the arguments.
        others: Facts = {name: value for name, value in filters.items() if name != "state"}
        parts = [tube.select(state, **others) for state in states]
        changed = min(sum(part.count() for part in parts), filters.get("limit", math.inf))
        found = tube.select(**{name: value for name, value in filters.items() if name != "limit"})
        first = list(islice((task for task in found if task.state in states), min(_PREVIEW_SIZE, changed)))
        if as_json_:
            print_json({"tube": tube.name, "dry_run": True, past: changed, "tasks": [*map(task_json, first)]})
        elif first:
            console().print(tasks_table(first, reasons=True))
            print_line(f"{changed} would be {past}")
    else:
        if not wanted.filters.keys() - {"newest_first"}:
            counts = tube.statistics().tasks
            count, which = sum(counts[one] for one in states), f"{state} tasks" if state else "tasks"
            if not count and not wanted.yes:
                raise Stop(f"tube {tube.name!r} has no {which} to {act}", Exit.NOTHING)
            require_confirmation(f"{act} {count} {which} of tube {tube.name!r}", yes=wanted.yes)
        changed = _run(partial(getattr(tube.select(**filters), method), **arguments), f"{act} {tube.name}", past)
        to = {"to": arguments["tube"].name} if act == "move" else {}
        _print_result(as_json_, {"tube": tube.name, **to, past: changed}, past, changed)
    if not changed:
        raise wanted.nothing(tube)


def _run(change: Callable[..., int], title: str, past: str) -> int:
    """Change tasks with a progress display on a terminal; return their number. Ctrl-C stops after the current batch."""
    changed, is_stopped = 0, False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        signal.signal(signal.SIGINT, before)  # A second Ctrl-C stops it at once.

    def report(count: int) -> bool:
        nonlocal changed
        changed = count
        status.update(f"{title}: {count} tasks {past}")
        return not is_stopped

    before = signal.signal(signal.SIGINT, stop)
    try:
        with Console(file=sys.stderr).status(title) as status:
            changed = change(on_progress=report)
    except tubes.TubesError as error:
        raise Stop(f"{describe_error(error)}; {past} before: {changed}", code_of(error)) from error
    except KeyboardInterrupt:
        is_stopped = True
    finally:
        signal.signal(signal.SIGINT, before)
    if is_stopped:
        raise Stop(f"interrupted: {changed} tasks were {past}", Exit.INTERRUPTED)
    return changed


def _end(
    name: str, ids: list[int] | None, act: str, because: str | None, wanted: Wanted, url: str | None, *, as_json_: bool
) -> None:
    """Bury or cancel tasks: the ones with these ids, or the selected ones."""
    with open_queue(url) as queue:
        tube = queue.tube(name)
        if not ids:
            _change(tube, wanted, act, as_json_=as_json_, reason=because)
            return
        wanted.refuse_ids()
        done = apply_to_each(ids, lambda task: getattr(tube, act)(task, because), _PAST[act])
        _print_result(as_json_, {"tube": name, _PAST[act]: done}, _PAST[act], len(done))


@selecting(states=CHANGED_STATES["kick"])
def kick(
    name: Name,
    ids: Ids = None,
    *,
    wanted: Wanted,
    more_attempts: Annotated[int | None, typer.Option(help="The number of additional attempts for each task.")] = None,
    ttl: Annotated[float | None, typer.Option(help="Seconds until the tasks expire, from now.")] = None,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Make buried or delayed tasks ready and print their number.

    With ids it kicks these tasks, whether they are buried or delayed; a kept done task is put again under a new id.
    Without ids it kicks the selected buried tasks, or with --state delayed the selected delayed tasks.
    """
    with open_queue(url) as queue:
        tube = queue.tube(name)
        if not ids:
            _change(tube, wanted, "kick", as_json_=as_json_, attempts=more_attempts, ttl=ttl)
            return
        wanted.refuse_ids()
        kicked = 0

        def kick_one(task: int) -> None:
            nonlocal kicked
            old = tube.peek(task).state
            tube.kick(task=task, attempts=more_attempts, ttl=ttl)
            kicked += old in (tubes.State.BURIED, tubes.State.DELAYED, tubes.State.DONE)

        apply_to_each(ids, kick_one, "kicked")
        _print_result(as_json_, {"tube": name, "kicked": kicked}, "kicked", kicked)
        if not kicked:
            raise Stop(f"tube {name!r} has no such buried, delayed or done tasks", Exit.NOTHING)


@selecting(unwanted=("reason",), states=CHANGED_STATES["bury"])
def bury(
    name: Name, ids: Ids = None, *, because: Because = None, wanted: Wanted, url: Url = None, as_json_: AsJson = False
) -> None:
    """Bury tasks and print their number.

    Without ids it buries the selected ready, delayed and taken tasks, even if a worker is handling them.
    """
    _end(name, ids, "bury", because, wanted, url, as_json_=as_json_)


@selecting(states=CHANGED_STATES["cancel"])
def cancel(
    name: Name, ids: Ids = None, *, because: Because = None, wanted: Wanted, url: Url = None, as_json_: AsJson = False
) -> None:
    """Cancel tasks and print their number.

    Without ids it cancels the selected tasks, in any state except done. If a worker handles a task, an async handler
    and a handler in a process end at once, and a handler in a thread ends at its next checkpoint.
    """
    _end(name, ids, "cancel", because, wanted, url, as_json_=as_json_)


@selecting(states=CHANGED_STATES["move"])
def move(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="TO", help="The name of the other tube.", autocompletion=complete_tubes)],
    *,
    wanted: Wanted,
    url: Url = None,
    codec: Codec = None,
    as_json_: AsJson = False,
) -> None:
    """Move tasks to another tube and print their number.

    It moves buried tasks, or with --state ready or delayed ones. In the other tube buried tasks become ready, and
    delayed tasks stay delayed. All get new ids and creation times, and lose their reasons.
    """
    with open_queue(url, codec) as queue:
        _change(queue.tube(name), wanted, "move", as_json_=as_json_, tube=queue.tube(to))


@selecting()
def delete(name: Name, ids: Ids = None, *, wanted: Wanted, url: Url = None, as_json_: AsJson = False) -> None:
    """Delete tasks and print their number.

    Without ids it deletes the selected tasks, in any state except done, even if a worker is handling them.
    """
    with open_queue(url) as queue:
        tube = queue.tube(name)
        if not ids:
            _change(tube, wanted, "delete", as_json_=as_json_)
            return
        wanted.refuse_ids("state")
        state = wanted.filters.get("state")
        results = tube.delete_many(ids, state=state)
        done = [id for id, is_deleted in results.items() if is_deleted]
        _print_result(as_json_, {"tube": name, "deleted": done}, "deleted", len(done))
        if len(done) < len(results):
            missing = join_ids(id for id, is_deleted in results.items() if not is_deleted)
            note = f"; deleted: {join_ids(done)}" if done else ""
            kind = f"{state} task" if state else "task"
            raise Stop(f"there is no {kind} {missing} in tube {name!r}{note}", Exit.NOT_FOUND)


COMMANDS: tuple[Callable[..., None], ...] = (put, take, ack, release, kick, bury, cancel, move, delete)
