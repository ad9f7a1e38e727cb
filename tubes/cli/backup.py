"""`tubes backup`: copy a store in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tubes.backend.url import read, redact_url
from tubes.cli.common import Url, place_of
from tubes.cli.exits import Exit, Stop, say
from tubes.durable.database import back_up

Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="The folder for the copy, which the command creates.", show_default=False),
]


def backup(folder: Folder, url: Url = None) -> None:
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


COMMANDS = (backup,)
