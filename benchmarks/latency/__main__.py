"""Measure the time from put to handler under load, beside peers: `python -m benchmarks.latency [-k PART]`."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from benchmarks.peers.environments import CannotInstall, python_of
from benchmarks.peers.inside.notes import Notes
from benchmarks.peers.measure import WARM
from benchmarks.peers.processes import Child, PeerFailed
from benchmarks.peers.registry import REDIS, SUBJECTS, Subject
from benchmarks.peers.servers import STARTS, NotInstalled
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.report import Row, percentiles, run_cases

#: Parts of the capacity, tasks at each, and the longest time for them in seconds.
LOADS, TASKS, LONGEST = (0.1, 0.5, 0.9), 1_300, 20
#: Handlers in processes of their own, which are measured here only.
PROCESSES = Subject("tubes, Worker, processes", "tubes", "tubes_sync", "processes", server="valkey", tasks=8000)
#: Seconds to wait for the worker.
PATIENCE = 60


def _await(notes: Notes, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while notes.count < count:
        if time.monotonic() > deadline:
            raise PeerFailed(f"{notes.count} of {count} tasks handled")
        time.sleep(0.001)


def measure(subject: Subject) -> list[Row]:
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
        rows: list[Row] = []
        for load in LOADS:
            rate = max(1, round(capacity * load))
            known, count = len(notes.latencies), min(TASKS, rate * LONGEST)
            producer.ask(f"scheduled {rate * 10_000 + count}")
            put += count
            _await(notes, put)
            times = percentiles(notes.latencies[known:], 50, 99, 99.9)
            rows.append({"subject": subject.key, "load": f"{load:.0%}", "puts per s": rate, "tasks": count, **times})
        return rows


def measure_or_explain(subject: Subject) -> list[Row]:
    """Measure a subject, or return why it cannot be measured."""
    try:
        return measure(subject)
    except (CannotInstall, NotInstalled, PeerFailed) as error:
        return [{"subject": subject.key, "not measured": str(error)}]


def main() -> None:
    """Measure all subjects on servers, and keep the results."""
    args = parser_of("latency", __doc__).parse_args()
    # The peers on Redis are on a Valkey, too.
    subjects = [subject for subject in (*SUBJECTS, PROCESSES) if subject.server not in ("", "redis")]
    run_cases(Path(__file__).parent, ((each.key, partial(measure_or_explain, each)) for each in subjects), args.k)


if __name__ == "__main__":
    main()
