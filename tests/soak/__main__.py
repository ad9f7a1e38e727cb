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
    asked = parser.parse_args()
    if not 0 < asked.minutes < math.inf:
        parser.error(f"minutes must be above 0, got {asked.minutes}")
    # SIGTERM ends the child processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if "/" not in asked.program and asked.program not in {"valkey", "redis"}:
        parser.error(f"--program {asked.program}: must be valkey, redis, or a path with a /")
    if "/" in asked.program and not Path(asked.program).is_file():
        parser.error(f"--program {asked.program}: is not a program")
    if asked.plot.parent != _BUILD and not asked.plot.absolute().parent.is_dir():
        parser.error(f"--plot {asked.plot}: folder {asked.plot.parent} does not exist")
    if asked.plot.suffix not in {".svg", ".png", ".pdf"}:
        parser.error(f"--plot {asked.plot}: must end with .svg, .png or .pdf")
    if not (told := os.environ.get("TUBES_SEED", str(time.time_ns() % 1_000_000))).isdecimal():
        parser.error(f"TUBES_SEED={told}: must be a whole number")
    seconds, seed = asked.minutes * 60, int(told)
    print(f"seed {seed}: to repeat this run, set TUBES_SEED={seed}", flush=True)
    parts: list[Part] = []
    if asked.only != "server":
        parts.append(in_memory.soak(seconds if asked.only else seconds / 5, seed))
        print(*parts[-1].lines(), sep="\n", flush=True)
    if asked.only != "memory":
        parts.append(on_server.soak(seconds if asked.only else seconds * 4 / 5, seed, program=asked.program))
        print(*parts[-1].lines(), sep="\n", flush=True)
    try:
        from tests.soak import plot

        plot.draw(parts, asked.plot)
        print(f"plot: {asked.plot}")
    except ImportError:
        print("no plot: matplotlib is not installed (extra `bench`)")
    return 0 if all(part.is_good for part in parts) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
