"""The command `library`: the Lua library that servers run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tubes.cli.common import CONNECT_TIMEOUT, Url, place_of
from tubes.cli.show import print_line
from tubes.redis import administration


def library(
    load: Annotated[bool, typer.Option("--load", help="Load it into the server, as an administrator.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete its other versions from the server.")] = False,
    url: Url = None,
) -> None:
    """Print the Lua library that servers run for this version of tubes.

    Programs load it themselves if their users may run FUNCTION LOAD; else an administrator loads it once, with --load.
    Delete other versions when no program uses them any more.
    """
    if not load and not prune:
        print_line(administration.library_text())
    if load:
        administration.load(place_of(url), CONNECT_TIMEOUT)
        print_line(f"{administration.library_name()}: loaded")
    for name in administration.prune(place_of(url), CONNECT_TIMEOUT) if prune else ():
        print_line(f"{name}: deleted")


COMMANDS: tuple[Callable[..., None], ...] = (library,)
