"""Arguments shared by several commands, checked before a measurement rather than after it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def new_file(*endings: str) -> Callable[[str], Path]:
    """Return a `type` for argparse and pytest: a file to write, whose name has one of these endings."""

    def to_path(name: str) -> Path:
        path = Path(name)
        if not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"{name}: the folder {path.parent} does not exist")
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{name}: must be a file, not a folder")
        if endings and path.suffix not in endings:
            raise argparse.ArgumentTypeError(f"{name}: must end with {' or '.join(endings)}")
        return path

    return to_path


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark whose cases can be measured alone."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("-k", metavar="PART", default="", help="only cases whose names contain this; printed only")
    return parser
