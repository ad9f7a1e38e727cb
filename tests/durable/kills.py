"""Kills a program that uses a folder, repeatedly, and keeps a ledger of all tasks.

    python -m tests.durable.kills [--kills 200] [--batch 400] [--seed 1]

Ends with an `AssertionError` if a returned task was lost, if an acked task is back, if an id was used twice, or if the
counts disagree.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import tubes
from tests.support.internals import port_of
from tubes.drivers.invariants import check_engine

#: Prints a line for each completed call. One thread takes the tasks that the other one puts.
PROGRAM = """
import random, sys, threading, tubes
url, seed, most = sys.argv[1], *map(int, sys.argv[2:])
rng, saying = random.Random(seed), threading.Lock()
queue = tubes.connect(url)
tube = queue.create_tube("t", "fifottl", ttr=600, if_exists="keep")
lanes = queue.create_tube("lanes", "utube", max_in_flight=2, if_exists="keep")
awaited = queue.create_tube("awaited", if_exists="keep")
def say(what, name, *ids):
    with saying:
        sys.stdout.write(f"{what} {name} {' '.join(map(str, ids))}\\n")
        sys.stdout.flush()
def done(tube, task):
    say("taken", tube.name, task.id)
    tube.ack(task)
    say("acked", tube.name, task.id)
def wait():
    while True:
        done(awaited, awaited.take())
threading.Thread(target=wait, daemon=True).start()
number = 0
while True:
    number += 1
    draw = rng.random()
    if draw < 0.25:
        say("put", "t", tube.put({"number": number}).id)
    elif draw < 0.35:
        say("put", "awaited", awaited.put(number).id)
    elif draw < 0.45:
        say("put", "t", *(task.id for task in tube.put_many(range(rng.randrange(1, most)))))
    elif draw < 0.6:
        for task in tube.take_many(rng.randrange(1, most), timeout=0):
            done(tube, task)
    elif draw < 0.8:
        if task := tube.take(0):
            done(tube, task)
    elif draw < 0.85:
        if task := tube.take(0):
            tube.bury(task, "why")
            say("buried", "t", task.id)
    elif draw < 0.9:
        if task := tube.take(0):
            tube.release(task, delay=rng.choice([0, 5]))
    elif draw < 0.95:
        queue.create_tube(f"tube-{number}", if_exists="keep").put(1)
        queue.tube(f"tube-{number}").drop()
    else:
        say("put", "lanes", lanes.put(number, utube=str(number % 3)).id)
"""

Output = defaultdict[str, defaultdict[str, set[int]]]


class Kills:
    """A folder, and a ledger of its tasks."""

    def __init__(self, folder: Path, seed: int, batch: int = 40) -> None:
        self.url = f"file:{folder}"
        self._rng = random.Random(seed)
        self._batch = batch
        #: By tube: tasks that were put and acked, and tasks whose acks were interrupted by a kill.
        self._put: defaultdict[str, set[int]] = defaultdict(set)
        self._acked: defaultdict[str, set[int]] = defaultdict(set)
        self._unknown: defaultdict[str, set[int]] = defaultdict(set)

    @property
    def put(self) -> int:
        """The number of tasks that were put."""
        return sum(map(len, self._put.values()))

    def kill(self) -> None:
        """Run the program, kill it, and check the folder."""
        output = self._run()
        with tubes.connect(self.url) as queue:
            for name in {*output["put"], *output["taken"]}:
                self._check(queue.tube(name), output)

    def _run(self) -> Output:
        """Run the program, kill it after some lines, and return its output."""
        output: Output = defaultdict(lambda: defaultdict(set))
        lines = self._rng.randrange(1, 30 * self._batch)
        words = [sys.executable, "-c", PROGRAM, self.url, str(self._rng.randrange(1 << 30)), str(self._batch)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                if number == lines:
                    process.kill()
                if line.endswith("\n"):
                    what, name, *ids = line.split()
                    output[what][name] |= {int(id) for id in ids}
        assert process.returncode == -signal.SIGKILL
        return output

    def _check(self, tube: tubes.Tube, output: Output) -> None:
        name = tube.name
        put, acked, unknown = self._put[name], self._acked[name], self._unknown[name]
        assert not put & output["put"][name], "an id was used twice"
        put |= output["put"][name]
        acked |= output["acked"][name]
        # The outcome of the call that was killed is unknown; a batch of puts is complete or has no effect.
        broken_off = output["taken"][name] - output["acked"][name]
        assert len(broken_off) <= 1
        unknown |= broken_off
        engine = port_of(tube).shared.engine
        check_engine(engine)
        there = engine.tasks.keys()
        lost, back = put - acked - unknown - there, acked & there
        assert not lost, f"tasks of {name} were lost: {sorted(lost)}"
        assert not back, f"acked tasks of {name} are back: {sorted(back)}"
        counts, calls = tube.statistics().tasks, tube.statistics().calls
        assert calls["put"] - calls["ack"] == counts["total"]
        assert counts["taken"] == 0
        assert all(tube.peek(id).state == "buried" for id in output["buried"][name])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--batch", type=int, default=400)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        kills = Kills(Path(folder), args.seed, args.batch)
        for number in range(1, args.kills + 1):
            kills.kill()
            if number % 20 == 0:
                print(f"{number} kills, {kills.put} tasks: none lost, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
