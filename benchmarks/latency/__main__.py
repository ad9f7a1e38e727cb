"""Measure the time from put to handler under load, beside peers: `python -m benchmarks.latency [-k NAME]`."""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import CannotInstall, python_of
from benchmarks.peers.inside.notes import Notes
from benchmarks.peers.measure import WARM
from benchmarks.peers.processes import Child, PeerFailed
from benchmarks.peers.registry import REDIS, Subject, select_subjects
from benchmarks.peers.servers import STARTS, NotInstalled
from benchmarks.shared.report import percentiles, write_rows

#: Parts of the capacity, tasks at each, and the longest time for them in seconds.
LOADS, TASKS, LONGEST = (0.1, 0.5, 0.9), 1_300, 20
#: Seconds to wait for the worker.
PATIENCE = 60


def _await(notes: Notes, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while notes.count < count:
        if time.monotonic() > deadline:
            raise PeerFailed(f"{notes.count} of {count} tasks handled")
        time.sleep(0.001)


def measure(subject: Subject) -> list[dict[str, Any]]:
    """Measure a producer and a worker in separate processes at several loads."""
    python = python_of(subject.packages)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="latency-")))
        server = stack.enter_context(closing(STARTS["valkey" if subject.server == REDIS else subject.server]()))
        notes = Notes(folder / "notes")
        settings = {"PEERS_HOST": server.host, "PEERS_PORT": str(server.port)}
        settings |= {"PEERS_WAY": subject.way, "PEERS_NOTES": str(folder / "notes")}
        producer = stack.enter_context(Child(python, subject.module, "produce", settings, folder / "producer"))
        stack.enter_context(Child(python, subject.module, "work", settings, folder / "worker"))
        producer.ask(f"one {WARM}")
        _await(notes, WARM)
        # The capacity of both together: the time until the last task is handled.
        began = time.perf_counter()
        producer.ask(f"one {subject.tasks}")
        put = WARM + subject.tasks
        _await(notes, put)
        capacity = subject.tasks / (time.perf_counter() - began)
        rows: list[dict[str, Any]] = []
        for load in LOADS:
            rate = max(1, round(capacity * load))
            known, count = len(notes.latencies), min(TASKS, rate * LONGEST)
            producer.ask(f"scheduled {rate * 10_000 + count}")
            put += count
            _await(notes, put)
            times = percentiles(notes.latencies[known:], 50, 99, 99.9)
            rows.append({"subject": subject.key, "load": f"{load:.0%}", "puts per s": rate, "tasks": count, **times})
        return rows


def main() -> None:
    """Measure all subjects on servers, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("-k", metavar="NAME", help="only subjects whose names contain this; printed only")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for subject in select_subjects(args.k):
        if subject.server:
            try:
                rows += measure(subject)
            except (CannotInstall, NotInstalled, PeerFailed) as error:
                rows.append({"subject": subject.key, "load": f"not measured: {error}"})
            print(*rows[-len(LOADS) :], sep="\n")
    if not args.k:
        write_rows(Path(__file__).parent, rows)


if __name__ == "__main__":
    main()
