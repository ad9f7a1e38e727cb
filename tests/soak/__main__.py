"""Run a soak test, a fifth of the time in memory and the rest on a server: `python -m tests.soak MINUTES`.

Rules: no task is lost or done twice; each is taken in its turn, by one worker at a time, one per lane, not before it
is due, and not acked after its time to run; memory does not grow. Exit with 1 if a rule was broken.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from pathlib import Path

from tests.soak import in_memory
from tests.soak import on_a_server as on_server
from tests.soak.report import Part

_BUILD = Path(__file__).parent.parent.parent / "build"


def main() -> int:
    """Run the soak and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    parser.add_argument("--program", default="valkey", help="valkey, redis, or a path")
    parser.add_argument("--only", choices=["memory", "server"], help="run only this part, for the whole time")
    parser.add_argument("--plot", type=Path, default=_BUILD / "soak.svg", help="build/soak.svg")
    args = parser.parse_args()
    if not 0 < args.minutes < math.inf:
        parser.error(f"minutes must be above 0, got {args.minutes}")
    # SIGTERM ends the child processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if "/" not in args.program and args.program not in {"valkey", "redis"}:
        parser.error(f"--program {args.program}: must be valkey, redis, or a path with a /")
    if "/" in args.program and not Path(args.program).is_file():
        parser.error(f"--program {args.program}: is not a program")
    if args.plot.parent != _BUILD and not args.plot.absolute().parent.is_dir():
        parser.error(f"--plot {args.plot}: folder {args.plot.parent} does not exist")
    if args.plot.suffix not in {".svg", ".png", ".pdf"}:
        parser.error(f"--plot {args.plot}: must end with .svg, .png or .pdf")
    if not (text := os.environ.get("TUBES_SEED", str(time.time_ns() % 1_000_000))).isdecimal():
        parser.error(f"TUBES_SEED={text}: must be a whole number")
    seconds, seed = args.minutes * 60, int(text)
    print(f"seed {seed}: to repeat this run, set TUBES_SEED={seed}", flush=True)
    parts: list[Part] = []
    if args.only != "server":
        parts.append(in_memory.soak(seconds if args.only else seconds / 5, seed))
        print(*parts[-1].lines(), sep="\n", flush=True)
    if args.only != "memory":
        parts.append(on_server.soak(seconds if args.only else seconds * 4 / 5, seed, program=args.program))
        print(*parts[-1].lines(), sep="\n", flush=True)
    try:
        from tests.soak import plot

        plot.draw(parts, args.plot)
        print(f"plot: {args.plot}")
    except ImportError:
        print("no plot: matplotlib is not installed (extra `bench`)")
    return 0 if all(part.is_good for part in parts) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
