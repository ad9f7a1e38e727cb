"""`tubes backup`: copies a store in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tubes.backend.url import read, redact_url
from tubes.cli.common import Url, place_of
from tubes.cli.exits import Exit, Stop, say
from tubes.durable.database import back_up

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A folder for the copy, which is made.", show_default=False)
]


def backup(folder: Folder, url: Url = None) -> None:
    """Copy a store in a folder to another folder.

    Its process can go on meanwhile: the copy has what was there at one moment.
    """
    place = read(place_of(url))
    if place.scheme != "file":
        raise Stop(f"{redact_url(place.shown)} is no folder: backups of a server are its own", Exit.USAGE)
    if (folder / "tubes.db").exists():
        raise Stop(f"{folder} has a store already: name a new folder", Exit.REFUSED)
    back_up(Path(place.path), folder, place.shown)
    say(f"copied {place.shown} to {folder}")


COMMANDS = (backup,)
