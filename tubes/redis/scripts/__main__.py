"""Print a script, each line with its number and its source: `python -m tubes.redis.scripts put fifo`.

The error of a server counts lines in the same way: `user_script:512` is the line printed with the number 512.
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
    """Print the script that the command line names."""
    description = (__doc__ or "").partition(":")[0] + "."
    parser = argparse.ArgumentParser("python -m tubes.redis.scripts", description=description)
    names = sorted(path.name.removesuffix(".lua") for path in (LUA / "verbs").iterdir())
    parser.add_argument("script", choices=names, metavar="SCRIPT", help=f"one of {', '.join(names)}")
    parser.add_argument("driver", nargs="?", default="fifo", help="the tube's driver (default: fifo)")
    parser.add_argument("--capacity", action="store_true", help="for a tube with a capacity")
    parser.add_argument("--idle", action="store_true", help="for a tube with idle=60")
    parser.add_argument("--backoff", action="store_true", help="for a tube with backoff=1")
    parser.add_argument("--paced", action="store_true", help="for a tube whose lanes are throttled")
    parser.add_argument("--altered", action="store_true", help="for a tube that was altered")
    args = parser.parse_args(words)
    backoff = ((SECOND,), 0.0, 0) if args.backoff else None
    settings = TubeSettings(backoff, 60_000 if args.idle else None, args.capacity, args.altered, args.paced)
    try:
        driver = Registry().find(args.driver)
    except DriverNotFound as error:
        parser.error(str(error))
    lines = assembled(args.script, driver, settings)
    width = max(len(line.source) for line in lines)
    for number, line in enumerate(lines, 1):
        print(f"{number:5} {line.source:{width}} {line.text}")


if __name__ == "__main__":
    main()
