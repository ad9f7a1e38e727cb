"""`tubes export` and `tubes import`: tasks as lines of JSON."""

from __future__ import annotations

import base64
import binascii
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Final, TextIO, cast

import typer
from rich.console import Console
from rich.progress import Progress

import tubes
from tubes.cli.common import Codec, Create, Name, OfState, Url, connected, given, lanes
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.show import context_of, data_of, result_of
from tubes.cli.streams import from_json, stdin, text_of, to_json
from tubes.errors import TaskNotFound, TubesError

#: How many tasks one call reads or writes.
_PAGE = 500
#: Seconds for which a full tube is waited for.
PATIENCE = 60.0
#: Seconds for which a buried task is out of reach until it is buried again, where the driver knows delays.
_ASIDE = 3600.0

File = Annotated[Path, typer.Argument(metavar="FILE", help="A file, or - for stdin or stdout.")]


@contextmanager
def _progress(what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """A bar on stderr, where somebody looks on."""
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

    It writes tasks in all states but done, ordered by id, and does not change the tube. It is not a snapshot of one
    moment: a task that is put or done while it runs may be missing. With --state it writes the tasks in that state, in
    their order, done ones with their results. With --drain it writes the ready tasks only and removes them from the
    tube.
    """
    if state is not None and (drain or state not in map(str, tubes.State)):
        raise Stop(f"--state {state!r}: must be ready, taken, buried, delayed or done, without --drain", Exit.USAGE)
    with connected(url, codec, looks=not drain) as queue:
        tube = queue.tube(name)
        seen = queue.overview()[name]
        which = "ready" if drain else state or "total"
        total = seen.statistics.kept if which == "done" else seen.statistics.tasks[which]
        # How far the queue's clock is ahead: what is left of a delay is written, not when it ends.
        ahead = seen.at - time.time()
        written = 0
        with _written(file, force=force) as out, _progress(f"export {name}", total) as advance:
            for page in _drained(tube, out) if drain else _pages(tube, state):
                now = time.time() + ahead
                for task in page:
                    out.write(to_json(record_of(task, now), out.encoding) + "\n")
                written += len(page)
                advance(len(page))
            out.flush()
        say(f"exported {written} {'task' if written == 1 else 'tasks'} of {name}")


@contextmanager
def _written(file: Path, *, force: bool) -> Generator[TextIO]:
    if str(file) == "-":
        yield sys.stdout
        return
    with file.open("w" if force else "x", encoding="utf-8") as out:
        yield out


def _pages(tube: tubes.Tube, state: str | None) -> Iterator[list[tubes.Task]]:
    last: tubes.Task | None = None
    while page := tube.tasks(last, _PAGE, state=state):
        yield page
        last = page[-1]


def _drained(tube: tubes.Tube, out: IO[str]) -> Iterator[list[tubes.Task]]:
    """Pages of taken tasks; each page is acked when the next one is asked for, after it has reached the file."""
    while page := tube.take_many(_PAGE, timeout=0):
        yield page
        out.flush()
        if out is not sys.stdout:
            os.fsync(out.fileno())
        tube.ack_many(page)


def record_of(task: tubes.Task, now: float) -> dict[str, object]:
    """A task as a line has it: times are seconds from the moment of the export."""
    known = data_of(task)
    if "error" in known:
        raise Stop(f"task {task.id}: {known['error']}; --codec raw exports data as it is", Exit.USAGE)
    state = str(task.state)
    return {
        "id": task.id,
        "state": state,
        **known,
        **given(
            utube=task.utube,
            pri=task.pri or None,
            key=task.key,
            delay=max(0.0, task.due - now) if state == "delayed" and task.due is not None else None,
            ttl=max(0.0, task.expires - now) if task.expires is not None else None,
            ttr=task.ttr,
            max_attempts=task.max_attempts,
            attempts=task.attempts or None,
            reason=task.reason,
            created=task.created,
            ended=task.ended,
            why=task.why,
        ),
        **context_of(task),
        **({} if task.ended is None else result_of(lambda: task.result)),
    }


# -- import ------------------------------------------------------------------------------------------------------------

#: What of a line is an option of put.
_OPTIONS = ("pri", "key", "delay", "ttl", "ttr", "max_attempts", "context")
#: Those that every driver knows.
_OF_ALL = frozenset({"key", "max_attempts", "context"})
_NUMBERS: Final[set[type]] = {int, float}


def import_(
    name: Name,
    file: File = Path("-"),
    create: Create = None,
    url: Url = None,
    codec: Codec = None,
) -> None:
    """Put tasks from lines of JSON.

    The lines are those of `tubes export`, or others that have at least `data`. Tasks keep their order, data, utube,
    pri, key, context, ttr, max_attempts, and what was left of their delay and ttl. Buried tasks are buried again. Tasks
    get new ids, and taken ones are ready. Options that the driver of the tube does not have are left out. If a key is
    in use, the existing task stays.
    """
    with connected(url, codec) as queue:
        if create is not None and name not in queue.tubes():
            queue.create_tube(name, create, if_not_exists=True)
        tube = queue.tube(name)
        with _read(file) as lines, _progress(f"import {name}", _lines_of(file)) as advance:
            counted = _import(tube, lines, advance)
        left_out = sorted(counted.left_out)
        without = f", without {', '.join(left_out)}: {tube.driver.name} has none" if left_out else ""
        kept = f", {counted.kept} keys were in use" if counted.kept else ""
        gone = f", {counted.gone} were gone before they could be buried" if counted.gone else ""
        say(f"imported {counted.put - counted.kept} tasks into {name}{kept}{gone}{without}")


@contextmanager
def _read(file: Path) -> Generator[IO[bytes]]:
    if str(file) == "-":
        yield stdin()
        return
    with file.open("rb") as lines:
        yield lines


def _lines_of(file: Path) -> int | None:
    """How many lines the bar is for; nobody counts them for nothing."""
    if str(file) == "-" or not sys.stderr.isatty():
        return None
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


@dataclass
class _Counted:
    """How far an import has come."""

    #: Lines whose tasks are in, how many of them found their key in use, and the last of them.
    put: int = 0
    kept: int = 0
    line: int = 0
    #: What was to be buried, and was gone before.
    gone: int = 0
    #: What is in and still to be buried.
    unburied: int = 0
    #: The last line of the call that is under way.
    trying: int = 0
    #: Options that the driver lacks.
    left_out: set[str] = field(default_factory=set[str])

    def __str__(self) -> str:
        said = f"{self.put} tasks were imported, up to line {self.line}"
        if self.unburied:
            said += f", of which {self.unburied} are not buried yet"
        return said + (f"; those up to line {self.trying} may be in too" if self.trying else "")


def _import(tube: tubes.Tube, lines: IO[bytes], advance: Callable[[int], None]) -> _Counted:
    """Put them. Whatever ends it says how far it came."""
    counted = _Counted()
    try:
        _put_all(tube, lines, advance, counted)
    except KeyboardInterrupt:
        raise Stop(f"interrupted: {counted}", Exit.INTERRUPTED) from None
    except TubesError:
        say(str(counted))
        raise
    return counted


def _put_all(tube: tubes.Tube, lines: IO[bytes], advance: Callable[[int], None], counted: _Counted) -> None:
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while page := list(islice(numbered, _PAGE)):
        records = [_record(number, line, counted) for number, line in page]
        items = [_item(tube, record, counted.left_out) for record in records]
        counted.trying = page[-1][0]
        try:
            tasks = tube.put_many(items, timeout=PATIENCE)
        except TubesError as error:
            item: int | None = error.facts.get("item")
            if item is None:
                raise
            counted.trying = 0
            raise _refused(page[item][0], str(error).removeprefix(f"item {item}: "), counted) from error
        at, counted.trying = time.monotonic(), 0
        if not tasks:
            raise Stop(f"tube {tube.name!r} is full: {counted}", Exit.NOTHING)
        pairs = list(zip(tasks, records, strict=True))
        counted.put, counted.line = counted.put + len(tasks), page[-1][0]
        counted.kept += sum(not task.created_now for task in tasks)
        dead = [(task, record) for task, record in pairs if record.get("state") == "buried" and task.created_now]
        counted.unburied = len(dead)
        for task, record in dead:
            counted.gone += not _bury(tube, task, record.get("reason") or None, time.monotonic() - at)
            counted.unburied -= 1
        advance(len(tasks))


def _bury(tube: tubes.Tube, task: tubes.Task, reason: str | None, since: float) -> bool:
    """Bury what was put so many seconds ago; whether it was still there."""
    try:
        if "delay" in tube.driver.options and task.expires is not None:
            # The delay that has kept it from workers has prolonged its life.
            tube.update(task, ttl=max(0.0, task.expires - task.created - _ASIDE - since))
        return tube.bury(task, reason).state is tubes.State.BURIED
    except TaskNotFound:
        return False


def _refused(number: int, why: str, done: _Counted) -> Stop:
    return Stop(f"line {number}: {why.rstrip('.')}; {done}", Exit.USAGE)


def _record(number: int, line: bytes, done: _Counted) -> Mapping[str, Any]:
    try:
        record: Any = from_json(text_of(line))
    except ValueError as error:
        raise _refused(number, f"is no JSON: {error}", done) from error
    if not isinstance(record, dict) or not ("data" in record or "data_base64" in record):
        raise _refused(number, "must be an object with data", done)
    found = cast("dict[str, Any]", record)
    # What is buried with it is put before: it is looked at now.
    if not isinstance(found.get("reason") or "", str):
        raise _refused(number, f"reason must be a string, not {found['reason']!r}", done)
    if "data_base64" in found:
        try:
            return {**found, "data": base64.b64decode(found["data_base64"], validate=True)}
        except (binascii.Error, TypeError, ValueError) as error:
            raise _refused(number, f"data_base64: {error}", done) from error
    return found


def _item(tube: tubes.Tube, record: Mapping[str, Any], left_out: set[str]) -> tubes.Item:
    """What is put for a line."""
    options = {name: record[name] for name in _OPTIONS if record.get(name) is not None}
    lacking = {name for name in options if name not in _OF_ALL and name not in tube.driver.options}
    if record.get("utube") is not None:
        if tube.driver.lane is None:
            lacking.add("utube")
        else:
            options |= lanes(tube, record["utube"])
    left_out |= lacking
    options = {name: value for name, value in options.items() if name not in lacking}
    delay, ttl = options.get("delay"), options.get("ttl")
    if record.get("state") == "buried" and "delay" in tube.driver.options and type(delay) in _NUMBERS | {type(None)}:
        options["delay"] = _ASIDE
    elif delay is not None and ttl is not None and {type(delay), type(ttl)} <= _NUMBERS:
        # A delay prolongs the ttl, and what was left had that in it.
        options["ttl"] = max(0.0, ttl - delay)
    return tubes.Item(record["data"], **options)


COMMANDS: tuple[Callable[..., None], ...] = (export, import_)
