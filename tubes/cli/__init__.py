"""The command `tubes`: inspect, put, move and measure tasks from a shell. Extra `cli`; docs/cli.md is its manual.

It may import all of `tubes` except `tubes.spark`.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from tubes.errors import ExtraMissing, needs


def main() -> None:
    """Run the command with the arguments of the process, and exit with a code of `tubes.cli.exits.Exit`."""
    try:
        _run()
    except KeyboardInterrupt:  # During the import of the command, which handles Ctrl-C itself once it is loaded.
        _leave(130, "interrupted")


def _run() -> None:
    try:
        with needs("the command", "cli"):
            from tubes.cli.app import app
    except ExtraMissing as error:
        _leave(2, str(error))
    app()


def _leave(code: int, reason: str) -> NoReturn:
    """Exit before `tubes.cli.exits` is loaded."""
    if sys.stderr is not None:
        sys.stderr.write(f"tubes: {reason}\n")
    sys.exit(code)
