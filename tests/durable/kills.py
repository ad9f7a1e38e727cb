"""Kills a program that works on a folder, again and again, with a ledger of every task.

    python -m tests.durable.kills [--kills 200] [--batch 400] [--seed 1]

It ends with an `AssertionError` if a task was lost that a method had returned, if one that was acked is back, if an id
was given twice, or if the counts disagree.
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

#: Says a line for each call that has returned. One thread waits for what the other one puts.
PROGRAM = """
import random, sys, threading, tubes
url, seed, most = sys.argv[1], *map(int, sys.argv[2:])
chance, saying = random.Random(seed), threading.Lock()
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
    way = chance.random()
    if way < 0.25:
        say("put", "t", tube.put({"number": number}).id)
    elif way < 0.35:
        say("put", "awaited", awaited.put(number).id)
    elif way < 0.45:
        say("put", "t", *(task.id for task in tube.put_many(range(chance.randrange(1, most)))))
    elif way < 0.6:
        for task in tube.take_many(chance.randrange(1, most), timeout=0):
            done(tube, task)
    elif way < 0.8:
        if task := tube.take(0):
            done(tube, task)
    elif way < 0.85:
        if task := tube.take(0):
            tube.bury(task, "why")
            say("buried", "t", task.id)
    elif way < 0.9:
        if task := tube.take(0):
            tube.release(task, delay=chance.choice([0, 5]))
    elif way < 0.95:
        queue.create_tube(f"tube-{number}", if_exists="keep").put(1)
        queue.tube(f"tube-{number}").drop()
    else:
        say("put", "lanes", lanes.put(number, utube=str(number % 3)).id)
"""

Said = defaultdict[str, defaultdict[str, set[int]]]


class Kills:
    """A folder, and what is known of the tasks in it."""

    def __init__(self, folder: Path, seed: int, batch: int = 40) -> None:
        self.url = f"file:{folder}"
        self._chance = random.Random(seed)
        self._batch = batch
        #: By tube: the tasks that were put, acked and buried, and those of which nobody knows.
        self._put: defaultdict[str, set[int]] = defaultdict(set)
        self._acked: defaultdict[str, set[int]] = defaultdict(set)
        self._unknown: defaultdict[str, set[int]] = defaultdict(set)

    @property
    def put(self) -> int:
        """How many tasks were put."""
        return sum(map(len, self._put.values()))

    def kill(self) -> None:
        """Let the program run until it is killed, and open the folder."""
        said = self._run()
        with tubes.connect(self.url) as queue:
            for name in {*said["put"], *said["taken"]}:
                self._check(queue.tube(name), said)

    def _run(self) -> Said:
        """What the program says before it is killed, after some lines."""
        said: Said = defaultdict(lambda: defaultdict(set))
        lines = self._chance.randrange(1, 30 * self._batch)
        words = [sys.executable, "-c", PROGRAM, self.url, str(self._chance.randrange(1 << 30)), str(self._batch)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                if number == lines:
                    process.kill()
                if line.endswith("\n"):
                    what, name, *ids = line.split()
                    said[what][name] |= {int(id) for id in ids}
        assert process.returncode == -signal.SIGKILL
        return said

    def _check(self, tube: tubes.Tube, said: Said) -> None:
        name = tube.name
        put, acked, unknown = self._put[name], self._acked[name], self._unknown[name]
        assert not put & said["put"][name], "an id was given again"
        put |= said["put"][name]
        acked |= said["acked"][name]
        # Of the one call that was killed nobody knows; a batch of puts is done or not.
        broken_off = said["taken"][name] - said["acked"][name]
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
        assert all(tube.peek(id).state == "buried" for id in said["buried"][name])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--batch", type=int, default=400)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        kills = Kills(Path(folder), given.seed, given.batch)
        for number in range(1, given.kills + 1):
            kills.kill()
            if number % 20 == 0:
                print(f"{number} kills, {kills.put} tasks: none lost, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
