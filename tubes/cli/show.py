"""Output of the command: tables for people, JSON lines for programs."""

from __future__ import annotations

import base64
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.text import Text
from typing_extensions import override

import tubes
from tubes.cli.columns import Column, Grid
from tubes.cli.streams import printable, to_json
from tubes.values.task_data import function_of

#: The colours of the states in tables.
COLORS = {"ready": "green", "taken": "cyan", "delayed": "yellow", "buried": "red"}


class _Output(Console):
    """A console on stdout that raises BrokenPipeError when the reader has closed it."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Return a console on stdout. Output that does not go to a terminal is not truncated."""
    terminal = sys.stdout.isatty()
    return _Output(file=sys.stdout, width=None if terminal else 10**9, highlight=False, soft_wrap=not terminal)


def print_line(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def print_json(thing: object) -> None:
    print_line(to_json(thing, sys.stdout.encoding))


def pause_end_json(moment: float | None) -> float | str | None:
    """Return the end of a pause as JSON. A pause without an end is `"for ever"`."""
    return "for ever" if moment == math.inf else moment


def data_of(task: tubes.Task) -> dict[str, object]:
    """Return a task's data as JSON: `data`, or `data_base64` for bytes, or `error` if the data cannot be decoded."""
    return _value_of("data", "error", lambda: task.data)


def result_of(read: Callable[[], object]) -> dict[str, object]:
    """Return the result of a task as JSON: `result`, `result_base64` or `result_error`."""
    return _value_of("result", "result_error", read)


def _value_of(name: str, error_name: str, read: Callable[[], object]) -> dict[str, object]:
    try:
        value = read()
        if isinstance(value, (bytes, bytearray)):
            return {f"{name}_base64": base64.b64encode(value).decode()}
        json.dumps(value, allow_nan=False)
    except (tubes.CodecError, TypeError, ValueError, RecursionError) as error:
        return {error_name: str(error)}
    return {name: value}


#: The fields of a task in JSON, after its data.
_FIELDS = (
    *("utube", "pri", "key", "attempts", "max_attempts", "calls", "reason", "created", "due", "expires", "ttl", "ttr"),
    *("context", "keep_done", "saved", "progress", "note", "cancelled", "why", "buried_at", "traceback"),
)


def task_json(task: tubes.Task) -> dict[str, object]:
    return {
        "tube": task.tube,
        "id": task.id,
        "state": str(task.state),
        **data_of(task),
        **{name: getattr(task, name) for name in _FIELDS},
        "context": task.context or None,
        "failures": [asdict(failure) for failure in task.failures],
        **({} if task.ended is None else {"ended": task.ended, **result_of(lambda: task.result)}),
    }


def words_of(known: Mapping[str, object]) -> str:
    """Format the value from `data_of` or `result_of` as a line: strings unchanged, other values as JSON."""
    if error := known.get("error", known.get("result_error")):
        return f"<{error}>"
    data = next(iter(known.values()))
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def span(seconds: float | None) -> str:
    """Format seconds for people: 0.2s, 45s, 3m12s, 5h04m, 12d03h."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    for size, unit, next_size, next_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // next_size):02}{next_unit}"
    raise AssertionError(seconds)


def short_span(seconds: float | None) -> str:
    """Format seconds like `span`, but less than a tenth of a second in milliseconds: 1.2ms, 34ms."""
    return f"{seconds * 1000:.2g}ms" if seconds is not None and seconds < 0.0995 else span(seconds)


def progress_of(progress: float | None, note: str | None) -> str:
    """Format the progress and the note of the last checkpoint of a task: 42 %  step 3 of 7."""
    return "  ".join(filter(None, ("" if progress is None else f"{progress:.0%}".replace("%", " %"), note)))


def moment(at: float | None, now: float) -> str:
    """Format a time for people, relative to now."""
    return "" if at is None else f"in {span(at - now)}" if at > now else f"{span(now - at)} ago"


def text(value: object, style: str = "") -> Text:
    """Format a value literally: unlike a plain string, it is not interpreted as colour markup."""
    return Text("" if value is None else printable(str(value)), style=style)


#: Columns of a table of tasks.
_TASKS = (
    Column("id", right=True),
    Column("state", drop_order=6),
    Column("pri", right=True, drop_order=2),
    Column("utube", min_width=8, drop_order=3),
    Column("attempts", right=True, drop_order=4),
    Column("age", right=True, drop_order=5),
)
_MOVES = Column("moves", drop_order=1)
_BURIED = Column("buried", right=True, drop_order=1)
_WHY = Column("why", min_width=12)
_RESULT = Column("result", min_width=12)
_PROGRESS = Column("progress", min_width=8)
_FUNCTION = Column("function", min_width=8, drop_order=7)
_DATA = Column("data", min_width=12)


def tasks_table(tasks: Iterable[tubes.Task], *, reasons: bool = False) -> Grid:
    now = time.time()
    rows = list(tasks)
    results = any(task.ended is not None for task in rows)
    steps = any(progress_of(task.progress, task.note) for task in rows)
    known = [data_of(task) for task in rows]
    functions = [function_of(one.get("data")) for one in known]
    extra = (*([_FUNCTION] if any(functions) else ()), *([_RESULT] if results else ()), *([_PROGRESS] if steps else ()))
    moves = (_BURIED,) if reasons else () if results else (_MOVES,)
    whys = (_WHY,) if reasons or results or any(task.reason for task in rows) else ()
    grid = Grid((*_TASKS, *moves, *whys, *extra, _DATA))
    for task, data, function in zip(rows, known, functions, strict=True):
        state = str(task.state)
        attempts = f"{task.attempts}/{task.max_attempts}" if task.max_attempts else task.attempts
        move = (moment(task.buried_at if reasons else task.due, now),) if moves else ()
        why = (": ".join(filter(None, (task.why, task.reason))),) if whys else ()
        result = (words_of(result_of(partial(getattr, task, "result"))),) if results else ()
        step = (progress_of(task.progress, task.note),) if steps else ()
        call = (function,) if any(functions) else ()
        facts = (task.pri, task.utube, attempts, span(now - task.created), *move, *why, *call, *result, *step)
        grid.add_row(text(task.id), text(state, COLORS.get(state, "")), *map(text, (*facts, words_of(data))))
    return grid


def failures_of(task: tubes.Task, now: float) -> Iterable[str]:
    """Return the last failures of a task, and the traceback of the last one, as lines."""
    for failure in task.failures:
        where = f" on {failure.worker}" if failure.worker else ""
        yield (
            f"task {task.id}, attempt {failure.attempt}, {moment(failure.time, now)}{where}: "
            f"{failure.error or 'no reason'}"
        )
    yield from (task.traceback or "").splitlines()
