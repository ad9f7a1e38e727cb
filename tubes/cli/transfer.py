"""`tubes export` and `tubes import`: tasks as lines of JSON; and `tubes backup`: a copy of a folder."""

from __future__ import annotations

import base64
import binascii
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Final, TextIO, cast

import typer
from rich.console import Console
from rich.progress import Progress

import tubes
from tubes.backend.url import read, redact_url
from tubes.cli.common import Codec, Create, Name, OfState, Url, drop_none, open_queue, path_of, place_of
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.show import data_of, result_of
from tubes.cli.streams import from_json, stdin, text_of, to_json
from tubes.drivers.options import InternalContext, context
from tubes.durable.database import back_up
from tubes.errors import Facts, TaskNotFound, TubesError
from tubes.values.task import CHECKPOINT_NAMES, checkpoint_changes, reserved_names

#: Tasks per call.
_PAGE = 500
#: Seconds to wait for room in a full tube.
PUT_TIMEOUT = 60.0
#: Delay in seconds that keeps a task from workers until it is buried again, if the driver has delays.
_BURY_DELAY = 3600.0

File = Annotated[Path, typer.Argument(parser=path_of, metavar="FILE", help="A file, or - for stdin or stdout.")]


@contextmanager
def _progress(what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal."""
    with Progress(console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


# -- export ------------------------------------------------------------------------------------------------------------


def export(
    name: Name,
    file: File = Path("-"),
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Take the ready tasks and ack them when they are written."),
    ] = False,
    state: OfState = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    url: Url = None,
    codec: Codec = None,
) -> None:
    """Write the tasks of a tube as lines of JSON.

    It writes tasks in all states except done, ordered by id, and does not change the tube. It is not a snapshot of one
    moment: a task that is put or done while it runs may be missing. With --state it writes the tasks in this state in
    the order of the state, and done tasks with their results. With --drain it writes only ready tasks, and removes them
    from the tube.
    """
    if state is not None and (drain or state not in map(str, tubes.State)):
        raise Stop(f"--state {state!r}: must be ready, taken, buried, delayed or done, without --drain", Exit.USAGE)
    with open_queue(url, codec, read_only=not drain) as queue:
        tube = queue.tube(name)
        overview = queue.admin.overview()[name]
        counter = "ready" if drain else state or "total"
        total = overview.statistics.kept if counter == "done" else overview.statistics.tasks[counter]
        # The offset of the queue's clock: lines have the remaining delay, not its end.
        offset = overview.at - time.time()
        written = 0
        with _open_output(file, force=force) as out, _progress(f"export {name}", total) as advance:
            for page in _drain(tube, out) if drain else _pages(tube, state):
                now = time.time() + offset
                for task in page:
                    out.write(to_json(record_of(task, now), out.encoding) + "\n")
                written += len(page)
                advance(len(page))
            out.flush()
        say(f"exported {written} {'task' if written == 1 else 'tasks'} of {name}")


@contextmanager
def _open_output(file: Path, *, force: bool) -> Generator[TextIO]:
    if str(file) == "-":
        yield sys.stdout
        return
    with file.open("w" if force else "x", encoding="utf-8") as out:
        yield out


def _pages(tube: tubes.Tube, state: str | None) -> Iterator[list[tubes.Task]]:
    tasks = iter(tube.select(state))
    while page := [*islice(tasks, _PAGE)]:
        yield page


def _drain(tube: tubes.Tube, out: IO[str]) -> Iterator[list[tubes.Task]]:
    """Yield pages of taken tasks. A page is flushed to the file and acked before the next one is taken."""
    while page := tube.take_many(_PAGE, timeout=0):
        yield page
        out.flush()
        if out is not sys.stdout:
            os.fsync(out.fileno())
        tube.ack_many(page)


def record_of(task: tubes.Task, now: float) -> dict[str, object]:
    """Return a task as the object of an export line. Delay and ttl are the remaining seconds at the time `now`."""
    known = data_of(task)
    if "error" in known:
        raise Stop(f"task {task.id}: {known['error']}; --codec raw exports the bytes unchanged", Exit.USAGE)
    state = str(task.state)
    return {
        "id": task.id,
        "state": state,
        **known,
        **drop_none(
            utube=task.utube,
            pri=task.pri or None,
            key=task.key,
            delay=max(0.0, task.due - now) if state == "delayed" and task.due is not None else None,
            ttl=max(0.0, task.expires - now) if task.expires is not None else None,
            ttr=task.ttr,
            max_attempts=task.max_attempts,
            attempts=task.attempts or None,
            **{name: getattr(task, name) for name in ("reason", *CHECKPOINT_NAMES, "created", "ended", "why")},
            context=task.context or None,
            failures=[asdict(failure) for failure in task.failures] or None,
            traceback=task.traceback,
        ),
        **({} if task.ended is None else result_of(lambda: task.result)),
    }


# -- import ------------------------------------------------------------------------------------------------------------

#: Fields of a line that are options of put.
_OPTIONS = ("pri", "key", "delay", "ttl", "ttr", "max_attempts", "context")
#: Options that every driver supports.
_COMMON_OPTIONS = frozenset({"key", "max_attempts", "context"})
_NUMBERS: Final[set[type]] = {int, float}


def import_(
    name: Name,
    file: File = Path("-"),
    create: Create = None,
    url: Url = None,
    codec: Codec = None,
) -> None:
    """Put tasks from lines of JSON.

    The lines come from `tubes export`, or have at least `data`. Tasks keep their order, data, utube, pri, key, context,
    ttr, max_attempts, saved, progress, note, and the remaining part of their delay and ttl. Buried tasks are buried
    again, and taken ones become ready. Tasks get new ids. Options that the driver of the tube does not have are left
    out. If a key is in use, the existing task stays.
    """
    with open_queue(url, codec) as queue:
        if create is not None and name not in queue.tubes():
            queue.create_tube(name, create, if_not_exists=True)
        tube = queue.tube(name)
        with _read(file) as lines, _progress(f"import {name}", _count_lines(file)) as advance:
            progress = _import(tube, lines, advance)
        dropped = ", ".join(sorted(progress.dropped))
        notes = f", {progress.duplicates} keys were in use" if progress.duplicates else ""
        notes += f", {progress.lost} disappeared before they could be buried" if progress.lost else ""
        notes += f", without {dropped}, which {tube.driver.name} does not support" if dropped else ""
        say(f"imported {progress.put - progress.duplicates} tasks into {name}{notes}")


@contextmanager
def _read(file: Path) -> Generator[IO[bytes]]:
    if str(file) == "-":
        yield stdin()
        return
    with file.open("rb") as lines:
        yield lines


def _count_lines(file: Path) -> int | None:
    """Count the lines for the progress bar. Return None if there is no bar or the input is stdin."""
    if str(file) == "-" or not sys.stderr.isatty():
        return None
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


@dataclass
class _ImportProgress:
    """Counters of an import."""

    #: Lines put, the number of them whose key was in use, and the last line put.
    put: int = 0
    duplicates: int = 0
    line: int = 0
    #: Tasks that disappeared before they could be buried.
    lost: int = 0
    #: Tasks that are put, but not buried yet.
    unburied: int = 0
    #: The last line of the call in progress; 0: no call is in progress.
    uncertain: int = 0
    #: Options that the driver does not support.
    dropped: set[str] = field(default_factory=set[str])

    def __str__(self) -> str:
        message = f"{self.put} tasks were imported, up to line {self.line}"
        if self.unburied:
            message += f", but {self.unburied} of them are not buried yet"
        return message + (f"; lines up to {self.uncertain} may also be imported" if self.uncertain else "")


def _import(tube: tubes.Tube, lines: IO[bytes], advance: Callable[[int], None]) -> _ImportProgress:
    """Put the tasks of all lines. Errors and Ctrl-C print the progress."""
    progress = _ImportProgress()
    try:
        _put_all(tube, lines, advance, progress)
    except KeyboardInterrupt:
        raise Stop(f"interrupted: {progress}", Exit.INTERRUPTED) from None
    except TubesError:
        say(str(progress))
        raise
    return progress


def _put_all(tube: tubes.Tube, lines: IO[bytes], advance: Callable[[int], None], progress: _ImportProgress) -> None:
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while page := list(islice(numbered, _PAGE)):
        records = [_record(number, line, progress) for number, line in page]
        items: list[tubes.Item] = []
        for (number, _), record in zip(page, records, strict=True):
            try:
                items.append(_item(tube, record, progress.dropped))
            except TubesError as error:
                raise _line_error(number, str(error), progress) from error
        progress.uncertain = page[-1][0]
        try:
            tasks = tube.put_many(items, timeout=PUT_TIMEOUT)
        except TubesError as error:
            item: int | None = error.facts.get("item")
            if item is None:
                raise
            progress.uncertain = 0
            raise _line_error(page[item][0], str(error).removeprefix(f"item {item}: "), progress) from error
        put_time, progress.uncertain = time.monotonic(), 0
        if not tasks:
            raise Stop(f"tube {tube.name!r} is full: {progress}", Exit.NOTHING)
        pairs = list(zip(tasks, records, strict=True))
        progress.put, progress.line = progress.put + len(tasks), page[-1][0]
        progress.duplicates += sum(not task.created_now for task in tasks)
        buried = [(task, record) for task, record in pairs if record.get("state") == "buried" and task.created_now]
        progress.unburied = len(buried)
        for task, record in buried:
            progress.lost += not _bury(tube, task, record.get("reason") or None, time.monotonic() - put_time)
            progress.unburied -= 1
        advance(len(tasks))


def _bury(tube: tubes.Tube, task: tubes.Task, reason: str | None, age: float) -> bool:
    """Bury a task put `age` seconds ago. Return False if it no longer exists."""
    try:
        if "delay" in tube.driver.options and task.expires is not None:
            # Undo the extension of the ttl by the delay that has kept the task from workers.
            tube.update(task, ttl=max(0.0, task.expires - task.created - _BURY_DELAY - age))
        return tube.bury(task, reason).state is tubes.State.BURIED
    except TaskNotFound:
        return False


def _line_error(number: int, rule: str, progress: _ImportProgress) -> Stop:
    return Stop(f"line {number}: {rule.rstrip('.')}; {progress}", Exit.USAGE)


def _record(number: int, line: bytes, progress: _ImportProgress) -> Mapping[str, Any]:
    """Parse and check a line."""
    try:
        record: Any = from_json(text_of(line))
    except ValueError as error:
        raise _line_error(number, f"is not JSON: {error}", progress) from error
    if not isinstance(record, dict) or not ("data" in record or "data_base64" in record):
        raise _line_error(number, "must be an object with data", progress)
    found = cast("Facts", record)
    # Check the reason here: tasks are put before they are buried with it.
    if not isinstance(found.get("reason") or "", str):
        raise _line_error(number, f"reason must be a string, not {found['reason']!r}", progress)
    if "data_base64" in found:
        try:
            return {**found, "data": base64.b64decode(found["data_base64"], validate=True)}
        except (binascii.Error, TypeError, ValueError) as error:
            raise _line_error(number, f"data_base64: {error}", progress) from error
    return found


def _item(tube: tubes.Tube, record: Mapping[str, Any], dropped: set[str]) -> tubes.Item:
    """Return the item to put for a line, and add options that the driver does not support to `dropped`."""
    options = {name: record[name] for name in _OPTIONS if record.get(name) is not None}
    unsupported = {name for name in options if name not in _COMMON_OPTIONS and name not in tube.driver.options}
    if record.get("utube") is not None:
        if tube.driver.lane is None:
            unsupported.add("utube")
        else:
            options["utube"] = record["utube"]
    dropped |= unsupported
    options = {name: value for name, value in options.items() if name not in unsupported}
    delay, ttl = options.get("delay"), options.get("ttl")
    if record.get("state") == "buried" and "delay" in tube.driver.options and type(delay) in _NUMBERS | {type(None)}:
        options["delay"] = _BURY_DELAY
    elif delay is not None and ttl is not None and {type(delay), type(ttl)} <= _NUMBERS:
        # A delay extends the ttl, and the exported ttl includes this extension.
        options["ttl"] = max(0.0, ttl - delay)
    facts = checkpoint_changes(*(record.get(name) for name in CHECKPOINT_NAMES))
    if facts and record.get("ended") is None:
        checked = context("context", options.get("context", {})) or {}
        options["context"] = InternalContext(checked | reserved_names(facts))
    return tubes.Item(record["data"], **options)


# -- backup ------------------------------------------------------------------------------------------------------------


def backup(
    folder: Annotated[
        Path,
        typer.Argument(
            parser=path_of,
            metavar="FOLDER",
            help="The folder for the copy, which the command creates.",
            show_default=False,
        ),
    ],
    url: Url = None,
) -> None:
    """Copy a store in a folder to another folder.

    The process that uses the store can continue: the copy is a snapshot of one moment.
    """
    place = read(place_of(url))
    if place.scheme != "file":
        raise Stop(f"{redact_url(place.redacted)} is not a folder: back up a server with its own tools", Exit.USAGE)
    if (folder / "tubes.db").exists():
        raise Stop(f"{folder} already has a store: name a new folder", Exit.REFUSED)
    back_up(Path(place.path), folder, place.redacted)
    say(f"copied {place.redacted} to {folder}")


COMMANDS: tuple[Callable[..., None], ...] = (export, import_, backup)
