"""`python -m tests.soak MINUTES`: a fifth of the time in memory, the rest on a server. Ends with 1 if a rule broke.

Rules: nothing is lost, no task is done twice, each is taken in its turn, by one at a time, one per lane, not before it
is due and not acked after its time to run; memory is flat.
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
    """Soak, and say what became of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    parser.add_argument("--program", default="valkey", help="valkey, redis, or a path")
    parser.add_argument("--only", choices=["memory", "server"], help="one part, for all of the time")
    parser.add_argument("--plot", type=Path, default=_BUILD / "soak.svg", help="build/soak.svg")
    asked = parser.parse_args()
    if not 0 < asked.minutes < math.inf:
        parser.error(f"{asked.minutes} minutes: must be above 0")
    # Whoever ends it ends its processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if "/" not in asked.program and asked.program not in {"valkey", "redis"}:
        parser.error(f"--program {asked.program}: must be valkey, redis, or a path with a /")
    if "/" in asked.program and not Path(asked.program).is_file():
        parser.error(f"--program {asked.program}: is no program")
    if asked.plot.parent != _BUILD and not asked.plot.absolute().parent.is_dir():
        parser.error(f"--plot {asked.plot}: there is no folder {asked.plot.parent}")
    if asked.plot.suffix not in {".svg", ".png", ".pdf"}:
        parser.error(f"--plot {asked.plot}: must end with .svg, .png or .pdf")
    if not (told := os.environ.get("TUBES_SEED", str(time.time_ns() % 1_000_000))).isdecimal():
        parser.error(f"TUBES_SEED={told}: must be a whole number")
    seconds, seed = asked.minutes * 60, int(told)
    print(f"seed {seed}: TUBES_SEED={seed} lets the same things go wrong again", flush=True)
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
        print("no plot: it needs matplotlib, of the extra `bench`")
    return 0 if all(part.is_good for part in parts) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
