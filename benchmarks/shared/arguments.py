"""Arguments that several commands have, refused before anything is measured rather than after it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def new_file(*endings: str) -> Callable[[str], Path]:
    """For argparse and pytest: the `type` of a file that is to be written, whose name has one of these endings."""

    def checked(told: str) -> Path:
        path = Path(told)
        if not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"{told}: there is no folder {path.parent}")
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{told}: is a folder")
        if endings and path.suffix not in endings:
            raise argparse.ArgumentTypeError(f"{told}: must end with {' or '.join(endings)}")
        return path

    return checked
