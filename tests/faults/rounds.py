"""Repeat the scenarios, longer and with new seeds: `python tests/faults/rounds.py MINUTES`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

#: The factor for the length of a round, compared with the tests.
MUCH = 5
_FOLDER = Path(__file__).parent
#: The scenarios of each round, whose behaviour depends on the seed.
_SCENARIOS = [
    _FOLDER,
    _FOLDER.parent / "on_redis" / "test_twin.py",
    _FOLDER.parent / "unit" / "test_model.py",
    _FOLDER.parent / "spark" / "test_session_kills.py",
]
#: The number of tasks through the killed streams, and the number of kills.
_KILLS = {"TUBES_KILL_TASKS": "60000", "TUBES_KILLS": "5"}


def main(minutes: float) -> int:
    """Run rounds until the time is over. Stop at the first failure and print its seed."""
    end = time.monotonic() + minutes * 60
    seed = int(os.environ.get("TUBES_SEED", time.time_ns() % 1_000_000))
    rounds = 0
    while not rounds or time.monotonic() < end:
        print(f"round {rounds + 1}, seed {seed}", flush=True)
        command = [sys.executable, "-m", "pytest", "-n", "2", "-x", *map(str, _SCENARIOS)]
        environment = {**os.environ, "TUBES_SEED": str(seed), "TUBES_FAULTS": str(MUCH), **_KILLS}
        ended = subprocess.run(command, cwd=_FOLDER.parent.parent, env=environment, check=False)
        if ended.returncode:
            print(f"failed; to repeat: TUBES_SEED={seed} TUBES_FAULTS={MUCH} python -m pytest tests/faults")
            return ended.returncode
        rounds += 1
        seed += 1
    print(f"{rounds} rounds, no task lost")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="rounds.py", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    sys.exit(main(parser.parse_args().minutes))
