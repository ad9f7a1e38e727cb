"""Expand the directives in the files of `drivers/lua`: conditions on a driver and a tube, includes, moves of tasks.

    --#if KNOB|KNOB   lines for drivers and tubes that have at least one of the knobs; --#elif, --#else, --#end
    --#unless KNOB    lines for drivers and tubes that have none of the knobs; both also stand behind a single line
    --#include name   the lines of a file in steps/, or of another script
    --#move why was   a move of the table `MOVES` from the state `was`, or from the current state if `was` is missing;
                      `--#move why was quiet`: of a task without a key, in a tube without listeners
    --#moves why was  the same for all `tasks` at once, in a tube without throttled lanes and listeners
    --#done reply     the end of a script that changed something: store the counters and the reply
    --#flat           from here to the end of the file the fields of `task` are local variables: task_id and so on

The other directives stay in the lines for `library.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tubes.drivers.moves import MOVES, Move, State
from tubes.redis.scripts.lines import GENERATED, Line, read, replace_words

_FIELD: Final = re.compile(r"\btask\.(\w+)")


def expand(lines: Iterable[Line], knobs: frozenset[str]) -> list[Line]:
    """Return the lines with all directives of this module expanded for these knobs."""
    kept: list[Line] = []
    # For each open `--#if`: True if its current branch is included, and True if any branch was.
    branches: list[tuple[bool, bool]] = []
    flat: int | None = None
    for line in lines:
        text, _, rest = line.text.partition("--#")
        directive, *words = f"--#{rest}".split() if rest else [""]
        holds = bool(words) and knobs.isdisjoint(words[0].split("|")) == (directive == "--#unless")
        if rest and text.strip():
            if holds and all(counts for counts, _ in branches):
                kept.append(Line(text.rstrip(), line.source))
        elif directive in ("--#if", "--#unless"):
            branches.append((holds, holds))
        elif directive == "--#elif":
            _, chosen = branches.pop()
            branches.append((holds and not chosen, holds or chosen))
        elif directive == "--#else":
            _, chosen = branches.pop()
            branches.append((not chosen, True))
        elif directive == "--#end":
            branches.pop()
        elif not all(counts for counts, _ in branches):
            continue
        elif directive == "--#flat":
            flat = len(kept)
        elif directive == "--#include":
            kept += expand(read(words[0] if "/" in words[0] else f"steps/{words[0]}"), knobs)
        elif directive == "--#move":
            kept += _move(line.source, knobs, *words)
        elif directive == "--#moves":
            why, was = words
            kept += _row(why, was, _rows(why)[was], knobs, "moves")
        elif directive == "--#done":
            kept += replace_words(expand(read("steps/done"), knobs), {"RESULT": " ".join(words)})
        else:
            kept.append(line)
    if flat is None:
        return kept
    fields = sorted({f"task_{name}" for line in kept[flat:] for name in _FIELD.findall(line.text)})
    plain = [Line(_FIELD.sub(r"task_\1", line.text), line.source) for line in kept[flat:]]
    return [*kept[:flat], Line(f"local {', '.join(fields)}", GENERATED), *plain]


def _move(source: str, knobs: frozenset[str], why: str, was: str = "", quiet: str = "") -> list[Line]:
    """Return the lines of a move."""
    rows = _rows(why)
    if quiet:
        knobs |= {quiet.upper()}
    if was or len(rows) == 1:
        was = was or next(iter(rows))
        return _row(why, was, rows[was], knobs, "move")
    lines: list[Line] = []
    for state, move in rows.items():
        lines.append(Line(f"{'elseif' if lines else 'if'} task.state == '{state}' then", source))
        lines += _row(why, state, move, knobs, "move")
    return [*lines, *(Line(text, source) for text in ("else", f"error('no {why} from ' .. task.state)", "end"))]


def _rows(why: str) -> dict[str, Move]:
    """Return the rows of the table for this reason by the state before the move; `new`: a task that is added."""
    return {state.value if state else "new": move for state, move in MOVES[why].items()}


def _row(why: str, was: str, move: Move, knobs: frozenset[str], file: str) -> list[Line]:
    """Return the lines of move.lua or moves.lua for one row of the table."""
    row_knobs = {f"WAS_{'NEW' if was == 'new' else State(was).name}", f"TO_{move.to.name}"}
    if why.startswith("update") or (why == "bury" and "BURY" in knobs):
        row_knobs.add("UPDATES")
    if why in ("cancel", "delete", "bury"):
        row_knobs.add("TELLS")
    if why == "unput":
        row_knobs.add("UNPUT")
    words = {"TO": f"'{move.to.value}'", "WAS": f"'{was}'", "EVENT": f"'{move.event}'", "WHY": f"'{why[0]}'"}
    words["COUNT"] = _count(move, f"{move.by}" if file == "move" else f"{move.by} * #ids")
    return [line for line in replace_words(expand(read(file), knobs | row_knobs), words) if line.text]


def _count(move: Move, by: str) -> str:
    """Return the Lua code that counts a move."""
    statements: list[str] = []
    for call in move.counts:
        if call in ("take", "ack"):
            statements.append(f"META.{call}s = (META.{call}s or 0) + {by}")
        elif call != "put" or move.by < 0:
            statements.append(f"call('HINCRBY', M, 'calls:{call}', {by})")
    return " ".join(statements)
