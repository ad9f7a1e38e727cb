"""The command `tubes` as a shell finds it: beside the package, whose import takes longer than a quick Ctrl-C."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command."""
    try:
        from tubes.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("tubes: interrupted\n")
        sys.exit(130)
    run()
