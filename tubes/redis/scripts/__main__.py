"""Print the script of a verb, each line with its number and its source: `python -m tubes.redis.scripts put fifo`.

A server counts the lines in the same way: its `user_script:512` is the line that is printed with that number.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tubes.drivers import Registry
from tubes.drivers.options import SECOND
from tubes.errors import DriverNotFound
from tubes.redis.scripts.assembly import TubeSettings, assembled
from tubes.redis.scripts.lines import LUA


def main(words: Sequence[str] | None = None) -> None:
    """Print what the command line asks for."""
    what = (__doc__ or "").partition(":")[0] + "."
    parser = argparse.ArgumentParser("python -m tubes.redis.scripts", description=what)
    verbs = sorted(path.name.removesuffix(".lua") for path in (LUA / "verbs").iterdir())
    parser.add_argument("verb", choices=verbs, metavar="VERB", help=f"one of {', '.join(verbs)}")
    parser.add_argument("driver", nargs="?", default="fifo", help="the tube's driver (default: fifo)")
    parser.add_argument("--capacity", action="store_true", help="for a tube with a capacity")
    parser.add_argument("--idle", action="store_true", help="for a tube with idle=60")
    parser.add_argument("--backoff", action="store_true", help="for a tube with backoff=1")
    parser.add_argument("--paced", action="store_true", help="for a tube whose lanes are throttled")
    parser.add_argument("--altered", action="store_true", help="for a tube that was altered")
    asked = parser.parse_args(words)
    backoff = ((SECOND,), 0.0, 0) if asked.backoff else None
    settings = TubeSettings(backoff, 60_000 if asked.idle else None, asked.capacity, asked.altered, asked.paced)
    try:
        driver = Registry().find(asked.driver)
    except DriverNotFound as error:
        parser.error(str(error))
    lines = assembled(asked.verb, driver, settings)
    width = max(len(line.source) for line in lines)
    for number, line in enumerate(lines, 1):
        print(f"{number:5} {line.source:{width}} {line.text}")


if __name__ == "__main__":
    main()
