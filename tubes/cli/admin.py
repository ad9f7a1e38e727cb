"""Commands for whole tubes: create, alter, pause, resume, truncate, drop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, cast

import typer

import tubes
from tubes.cli.common import (
    AsJson,
    Name,
    Url,
    Yes,
    complete_drivers,
    open_queue,
    pairs,
    require_confirmation,
)
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.show import pause_end_json, print_json
from tubes.cli.streams import from_json
from tubes.drivers.registry import known_drivers
from tubes.errors import Facts
from tubes.values.options import options_json


def create(
    name: Name,
    driver: Annotated[
        str,
        typer.Argument(
            metavar="DRIVER", help=f"The driver: {', '.join(known_drivers())}.", autocompletion=complete_drivers
        ),
    ] = "fifottl",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the tube, for example ttr=60."),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the same tube exists.")] = False,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Create a tube."""
    options = tube_options(option or [])
    with open_queue(url) as queue:
        queue.create_tube(name, driver, if_not_exists=if_not_exists, **options)
    if as_json_:
        print_json({"tube": name, "driver": driver})


def alter(
    name: Name,
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option and its new value: ttr=60. ttr=null restores the default.",
        ),
    ],
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Change options of a tube while it is used."""
    changes = tube_options(option)
    with open_queue(url) as queue:
        tube = queue.tube(name)
        tube.alter(**changes)
        if as_json_:
            print_json({"tube": name, "options": options_json(tube.options)})


def tube_options(words: list[str]) -> Facts:
    """Parse options of a tube, such as `ttr=60` and `backoff=1,5`."""
    options = {name: _value(word) for name, word in pairs(words, "--option").items()}
    if options.get("backoff") is not None:
        options["backoff"] = _backoff(options["backoff"])
    if options.get("buried_ttl") == "inf":  # JSON cannot express it.
        options["buried_ttl"] = math.inf
    return options


def _value(word: str) -> object:
    try:
        return from_json(word)
    except ValueError:
        return word


def _backoff(value: object) -> object:
    """Convert `1,5`, `[1, 5]`, `30` or `{"first": 1, "factor": 2}` to a backoff for `create_tube`."""
    try:
        if isinstance(value, str):
            return [float(word) for word in value.split(",")]
        if isinstance(value, dict):
            return tubes.Backoff(**cast("Facts", value))
    except tubes.InvalidOption:
        raise
    except (TypeError, ValueError):
        forms = '1,5 or [1, 5] (seconds), or {"first": 1, "factor": 2, "cap": 3600, "jitter": 0, "seed": 0}'
        raise Stop(f"--option backoff={value}: must be {forms}; only first is required", Exit.USAGE) from None
    return [value] if isinstance(value, (int, float)) else value


def pause(
    name: Name,
    seconds: Annotated[
        float | None, typer.Argument(metavar="SECONDS", help="The length of the pause. Default: until `tubes resume`.")
    ] = None,
    extend: Annotated[bool, typer.Option("--extend", help="Do not shorten a pause that ends later.")] = False,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Pause a tube: its tasks cannot be taken.

    Producers can still put.
    """
    with open_queue(url) as queue:
        tube = queue.tube(name)
        tube.pause(seconds, extend=extend)
        if as_json_:
            print_json({"tube": name, "paused": pause_end_json(tube.statistics().paused)})


def resume(name: Name, url: Url = None, as_json_: AsJson = False) -> None:
    """End the pause of a tube."""
    with open_queue(url) as queue:
        queue.tube(name).pause(0)
    if as_json_:
        print_json({"tube": name, "paused": None})


def truncate(
    name: Name,
    yes: Yes = False,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Delete all tasks of a tube, in one step."""
    with open_queue(url) as queue:
        tube = queue.tube(name)
        count = tube.statistics().tasks["total"]
        require_confirmation(f"delete {count} tasks of tube {name!r}", yes=yes)
        tube.truncate()
        if as_json_:
            print_json({"tube": name, "removed": count})
        else:
            say(f"deleted {count} tasks")


def drop(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Drop it even if tasks are taken or callers wait.")] = False,
    yes: Yes = False,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Delete a tube and all its tasks.

    With --force workers and waiting callers get TubeNotFound.
    """
    with open_queue(url) as queue:
        tube = queue.tube(name)
        count = tube.statistics().tasks["total"]
        require_confirmation(f"drop tube {name!r} with {count} tasks", yes=yes)
        tube.drop(force=force)
        if as_json_:
            print_json({"tube": name, "dropped": True, "removed": count})
        else:
            say(f"dropped {name} with {count} tasks")


COMMANDS: tuple[Callable[..., None], ...] = (create, alter, pause, resume, truncate, drop)
