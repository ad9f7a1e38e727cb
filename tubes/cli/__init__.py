"""The command `tubes`: see, put, move and measure tasks from a shell. Extra `cli`; docs/cli.md is its manual.

May import all of `tubes` but `tubes.spark`.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from tubes.errors import ExtraMissing, needs


def main() -> None:
    """Run the command with the words of the command line. Exits with one of `tubes.cli.exits.Exit`."""
    try:
        _run()
    except KeyboardInterrupt:  # So early that the command itself was not there yet.
        _leave(130, "interrupted")


def _run() -> None:
    try:
        with needs("the command", "cli"):
            from tubes.cli.app import app
    except ExtraMissing as error:
        _leave(2, str(error))
    app()


def _leave(code: int, why: str) -> NoReturn:
    """End before there is anything that knows how."""
    if sys.stderr is not None:
        sys.stderr.write(f"tubes: {why}\n")
    sys.exit(code)
