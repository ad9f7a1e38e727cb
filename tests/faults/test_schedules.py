"""A schedule on a server with killed workers: each call starts, and never while another worker runs it."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from datetime import datetime
from itertools import pairwise
from subprocess import PIPE, Popen

import pytest

import tubes
from tests.support.processes import python
from tests.support.scheduled import INTERVAL, LEASE
from tubes.testing import LocalServer

pytestmark = pytest.mark.full

#: The number of kills.
_KILLS = 9


class Crew:
    """Processes and their output; killed ones are replaced."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lines: list[list[str]] = []
        #: The moments of the kills, by process id.
        self.killed: dict[int, float] = {}
        self._processes: list[Popen[str]] = []
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        process: Popen[str] = python("-m", "tests.support.scheduled", self.url, stdout=PIPE, text=True, bufsize=1)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        reader = threading.Thread(target=self._read, args=(process,))
        reader.start()
        self._processes.append(process)
        self._readers.append(reader)

    def _read(self, process: Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            self.lines += [line.split() for line in lines]

    def kill(self, process: Popen[str]) -> None:
        process.kill()
        process.wait()
        self.killed[process.pid] = time.time()
        self._processes.remove(process)

    def kill_one(self, pick: random.Random) -> None:
        self.kill(pick.choice(self._processes))

    def end(self) -> None:
        for process in [*self._processes]:
            self.kill(process)
        for reader in self._readers:
            reader.join(20)


def test_scheduled_calls_survive_killed_workers(valkey: LocalServer, url: str) -> None:
    pick = random.Random(7)
    crew = Crew(url)
    with tubes.connect(url) as queue:
        queue.create_tube("schedules", "fifottl", ttr=60, keep_done=600)  # A call may be started any number of times.
    try:
        for _ in range(3):
            crew.start()
        while len(crew.killed) < _KILLS:
            time.sleep(pick.uniform(0.2, INTERVAL))
            crew.kill_one(pick)
            crew.start()
        # Living workers finish the calls of dead ones.
        time.sleep(LEASE + 3 * INTERVAL)
        now = time.time()
        with tubes.connect(url) as queue:
            tube = queue.tube("schedules")
            put = Counter(task.data["at"] for state in ("done", "ready", "delayed") for task in tube.select(state))
    finally:
        crew.end()
    assert set(put.values()) == {1}, "a call was put twice"
    begins: defaultdict[float, list[tuple[float, int, int]]] = defaultdict(list)
    ends: dict[tuple[float, int], float] = {}
    left = set()
    for what, *facts in crew.lines:
        if what == "left":
            left.add(datetime.fromisoformat(facts[0]).timestamp())
        else:
            pid, at, attempts, moment = int(facts[0]), float(facts[1]), int(facts[2]), float(facts[3])
            if what == "begins":
                begins[at].append((moment, pid, attempts))
            else:
                ends[at, attempts] = moment
    calls = sorted(begins)
    # No call starts early, or again unless its worker was killed.
    for at, starts in begins.items():
        starts.sort()
        assert starts[0][0] >= at - 0.2
        assert len({attempts for _, _, attempts in starts}) == len(starts)
        for (_, pid, attempts), (again, _, _) in pairwise(starts):
            assert (at, attempts) not in ends or pid in crew.killed
            assert again >= crew.killed[pid], f"{at} began again while {pid} worked on it"
    # No call is lost: each one started, or was skipped in favour of a later one.
    expected = [calls[0] + INTERVAL * number for number in range(int((now - INTERVAL - calls[0]) // INTERVAL))]
    assert set(expected) - set(calls) <= left
    assert set(calls) - set(expected) <= {at for at in calls if at > expected[-1]}
    assert len(set(expected) & set(calls)) > len(expected) / 2
    # Each started call is finished, even if its workers died.
    assert {at for at in expected if at in begins} <= {at for at, _ in ends}
