"""The command `tubes`: see, put, move and measure tasks from a shell. Extra `cli`; docs/cli.md is its manual."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command with the words of the command line. Exits with one of `tubes.cli.exits.Exit`."""
    try:
        from tubes.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.stderr.write(f"tubes: the command needs {error.name}: pip install 'tubes-queue[cli]'\n")
        sys.exit(2)
    app()
