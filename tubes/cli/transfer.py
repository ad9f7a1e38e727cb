"""`tubes export` and `tubes import`: tasks as lines of JSON."""

from __future__ import annotations

import base64
import binascii
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Final, TextIO, cast

import typer
from rich.console import Console
from rich.progress import Progress

import tubes
from tubes.cli.common import Codec, Name, Url, complete_drivers, connected, given, lanes
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.show import STATES, context_of, data_of
from tubes.cli.streams import from_json, stdin, text_of, to_json
from tubes.errors import TubesError

#: How many tasks one call reads or writes.
_PAGE = 500
#: Seconds for which a full tube is waited for.
PATIENCE = 60.0
#: Seconds for which a buried task is out of reach until it is buried again, where the driver knows delays.
_ASIDE = 3600.0

File = Annotated[Path, typer.Argument(help="A file; -: stdin or stdout.", show_default=True)]


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
        typer.Option("--drain", help="Take the ready tasks, and ack each when it is written: nobody else gets it."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    url: Url = None,
    codec: Codec = "json",
) -> None:
    """Write the tasks of a tube as lines of JSON; the tube stays as it is.

    All states are written, by id. It is no snapshot of one moment: what is put, taken or done meanwhile may be in it or
    not, but what is there all the time is. With --drain only what is ready is written, and is gone from the tube.
    """
    with connected(url, codec) as queue:
        tube = queue.tube(name)
        seen = queue.overview()[name]
        total = seen.statistics.tasks["ready" if drain else "total"]
        # How far the queue's clock is ahead: what is left of a delay is written, not when it ends.
        ahead = seen.at - time.time()
        written = 0
        with _written(file, force=force) as out, _progress(f"export {name}", total) as advance:
            for page in _drained(tube, out) if drain else _pages(tube):
                now = time.time() + ahead
                for task in page:
                    out.write(to_json(record_of(task, now), out.encoding) + "\n")
                written += len(page)
                advance(len(page))
            out.flush()
        say(f"exported {written} tasks of {name}")


@contextmanager
def _written(file: Path, *, force: bool) -> Generator[TextIO]:
    if str(file) == "-":
        yield sys.stdout
        return
    with file.open("w" if force else "x", encoding="utf-8") as out:
        yield out


def _pages(tube: tubes.Tube) -> Iterator[list[tubes.Task]]:
    start = 0
    while page := tube.tasks(start, _PAGE):
        yield page
        start = page[-1].id + 1


def _drained(tube: tubes.Tube, out: IO[str]) -> Iterator[list[tubes.Task]]:
    """Pages of taken tasks; each page is acked when the next one is asked for, after it has reached the file."""
    while page := tube.take_many(_PAGE, timeout=0):
        yield page
        out.flush()
        if out is not sys.stdout:
            os.fsync(out.fileno())
        tube.ack_many(page)


def record_of(task: tubes.Task, now: float) -> dict[str, Any]:
    """A task as a line has it: times are seconds from the moment of the export."""
    known = data_of(task)
    if "error" in known:
        raise Stop(f"task {task.id}: {known['error']}; --codec raw exports data as it is", Exit.USAGE)
    state = STATES[task.state]
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
        ),
        **context_of(task),
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
    create: Annotated[
        str | None,
        typer.Option(metavar="DRIVER", help="Create the tube, if it is not there.", autocompletion=complete_drivers),
    ] = None,
    url: Url = None,
    codec: Codec = "json",
) -> None:
    """Put the tasks of lines that `tubes export` has written, or of others that have at least `data`.

    They keep their order, data, utube, pri, key, context, ttr, max_attempts, and what was left of delay and ttl; those
    that were buried are buried. They get ids and attempts of their own; what was taken is ready. Options that the
    tube's driver lacks are left out. Of a key that is in use the task that is there stays.
    """
    with connected(url, codec) as queue:
        if create is not None and name not in queue.tubes():
            queue.create_tube(name, create, if_not_exists=True)
        tube = queue.tube(name)
        with _read(file) as lines, _progress(f"import {name}", _lines_of(file)) as advance:
            counts = _import(tube, lines, advance)
        left_out = f", without {', '.join(sorted(counts[2]))}: {tube.driver.name} has none" if counts[2] else ""
        kept = f", {counts[1]} keys were in use" if counts[1] else ""
        say(f"imported {counts[0]} tasks into {name}{kept}{left_out}")


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


def _import(tube: tubes.Tube, lines: IO[bytes], advance: Callable[[int], None]) -> tuple[int, int, set[str]]:
    """Put them; answers how many, how many keys were in use, and which options were left out."""
    put, kept, left_out = 0, 0, set[str]()
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while page := list(islice(numbered, _PAGE)):
        done = f"{put} tasks were imported, up to line {page[0][0] - 1}"
        records = [_record(number, line, done) for number, line in page]
        items = [_item(tube, record, left_out) for record in records]
        try:
            tasks = tube.put_many(items, timeout=PATIENCE)
        except TubesError as error:
            item: int | None = error.facts.get("item")
            if item is None:
                say(done)
                raise
            raise _refused(page[item][0], str(error).removeprefix(f"item {item}: "), done) from error
        if not tasks:
            raise Stop(f"tube {tube.name!r} is full: {done}", Exit.NOTHING)
        for task, record in zip(tasks, records, strict=True):
            kept += not task.created_now
            if record.get("state") == "buried" and task.created_now:
                task.bury(record.get("reason") or None)
        put += len(tasks)
        advance(len(tasks))
    return put - kept, kept, left_out


def _refused(number: int, why: str, done: str) -> Stop:
    return Stop(f"line {number}: {why.rstrip('.')}; {done}", Exit.USAGE)


def _record(number: int, line: bytes, done: str) -> Mapping[str, Any]:
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
    if delay is not None and ttl is not None and {type(delay), type(ttl)} <= _NUMBERS:
        # A delay prolongs the ttl, and what was left had that in it.
        options["ttl"] = max(0.0, ttl - delay)
    if record.get("state") == "buried" and "delay" in tube.driver.options and type(delay) in _NUMBERS | {type(None)}:
        options["delay"] = _ASIDE
    return tubes.Item(record["data"], **options)


COMMANDS: tuple[Callable[..., None], ...] = (export, import_)
