"""The entry point of the command `tubes`.

It is outside of the package `tubes`, because Ctrl-C must be handled even during the slow import of that package.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from tubes.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("tubes: interrupted\n")
        sys.exit(130)
    run()
