"""Commands for damaged tubes: check, repair."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

import tubes
from tubes.backend.url import read
from tubes.cli.common import CONNECT_TIMEOUT, AsJson, Url, complete_tubes, open_queue, place_of
from tubes.cli.exits import Exit, Stop
from tubes.cli.show import print_json, print_line
from tubes.cli.streams import printable
from tubes.durable.repair import examine
from tubes.durable.repair import repair as repair_folder
from tubes.redis.administration import why_scripts
from tubes.values.problem import LOSSES

_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TUBE",
        help="The names of tubes. Default: all tubes.",
        show_default=False,
        autocompletion=complete_tubes,
    ),
]


def check(names: _Names = None, url: Url = None, as_json_: AsJson = False) -> None:
    """Report damaged tubes.

    A tube is damaged if its keys on the server contradict each other, or if rows of its folder's database are invalid.
    The command changes no tube. It also reports why a server runs the Lua library as a script, if it does.
    """
    _examine(names, url, fixes=False, as_json_=as_json_)


def repair(
    names: _Names = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, like `tubes check`.")] = False,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Repair damaged tubes.

    Other clients can use the tubes of a server during the repair; no process may use a folder. It prints each problem
    and its repair, and fails if tasks of a folder are lost or uncertain.
    """
    _examine(names, url, fixes=not dry_run, as_json_=as_json_)


def _examine(names: list[str] | None, url: str | None, *, fixes: bool, as_json_: bool) -> None:
    damaged: list[str] = []
    place = read(place_of(url))
    if place.scheme == "file":
        found = (repair_folder if fixes else examine)(Path(place.path), place.redacted)
        for problem in found:
            _show(problem.tube or place.redacted, problem, as_json_=as_json_)
        if not all(problem.repaired for problem in found):
            raise Stop(f"{place.redacted} is damaged; `tubes repair` saves all readable data", Exit.DAMAGED)
        if losses := LOSSES & {problem.kind for problem in found}:
            has_losses = losses & {"lost", "uncertain"}
            damage = "tasks are lost or uncertain" if has_losses else "parts of the file are unreadable"
            raise Stop(f"{place.redacted} was repaired, but {damage}", Exit.DAMAGED)
    with open_queue(url, read_only=not fixes) as queue:
        if not as_json_ and (why := why_scripts(place_of(url), CONNECT_TIMEOUT)):
            print_line(printable(f"the Lua library runs as a script, not as functions: {why}"))
        for name in names or queue.tubes():
            found = queue.admin.repair(name) if fixes else queue.admin.check(name)
            for problem in found:
                _show(name, problem, as_json_=as_json_)
            if not all(problem.repaired for problem in found):
                damaged.append(name)
            elif not found and not as_json_:
                print_line(f"{name}: fine")
    if damaged:
        subject = f"{'this tube is' if len(damaged) == 1 else 'these tubes are'} damaged: {', '.join(damaged)}"
        hint = "it cannot be repaired" if len(damaged) == 1 else "they cannot be repaired"
        raise Stop(f"{subject}; {hint if fixes else '`tubes repair` repairs as much as possible'}", Exit.DAMAGED)


def _show(name: str, problem: tubes.Problem, *, as_json_: bool) -> None:
    if as_json_:
        facts = dataclasses.asdict(problem)
        print_json({**facts, "tube": name, "what": problem.what, "remedy": problem.remedy})
    else:
        prefix = "" if problem.repaired else "repair "
        print_line(printable(f"{name}: {problem.what}; {prefix}{problem.remedy}"))


COMMANDS: tuple[Callable[..., None], ...] = (check, repair)
