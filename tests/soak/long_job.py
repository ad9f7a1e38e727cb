"""A long job in a worker that is deployed and killed at random moments, with a ledger of its items.

    python -m tests.soak.long_job [--items 1000000] [--deploys 20] [--kills 5] [--kind plain] [--seed 1]

Runs it in a folder and on a server. Ends with an `AssertionError` unless each item was done once, except the items
after the last checkpoint before a kill, or if an attempt was lost by anything but a kill.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import tubes
from tests.support.processes import python
from tubes.testing import LocalServer
from tubes.worker import Worker, current_task

#: Seconds after which the server gives up the session of a killed worker.
LEASE: Final = 1.0
#: The number of items between two checkpoints.
STEP: Final = 100
#: The kinds of handlers.
KINDS: Final = ("plain", "async", "process")
#: The item from which on the job is slow, until the worker gets a signal.
_FAULT: Final = "TUBES_FAULT_AT"
#: The bytes of an item in the ledger.
_WIDTH: Final = 4
#: Seconds without progress after which the job has failed.
_PATIENCE: Final = 60


def _do(ledger: int, first: int, limit: int) -> int:
    """Do the items up to the next checkpoint, and return the number of the next item."""
    end, fault = min(first + STEP, limit), int(os.environ[_FAULT])
    for item in range(first, end):
        os.write(ledger, item.to_bytes(_WIDTH))
        if item >= fault:
            time.sleep(0.001)
    return end


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def work(path: str, limit: int) -> None:
    """Do the items of a job in a thread or in a process."""
    task = current_task()
    ledger, item = _open(path), task.saved or 0
    while item < limit:
        item = _do(ledger, item, limit)
        task.checkpoint(item, progress=item / limit)
    os.close(ledger)


async def work_async(path: str, limit: int) -> None:
    """Do the items of a job in an event loop."""
    task: Any = current_task()
    ledger, item = _open(path), task.saved or 0
    while item < limit:
        item = _do(ledger, item, limit)
        await task.checkpoint(item, progress=item / limit)
    os.close(ledger)


def run_worker(url: str, kind: str) -> int:
    """Run a worker until the job is done or the worker is stopped."""
    with tubes.connect(url, session_ttl=LEASE) as queue:
        worker = Worker(queue, grace=_PATIENCE)
        worker.task(process=kind == "process")(work)
        worker.task()(work_async)
        queue.tube("tasks").on_task_change(lambda _, event: worker.stop() if event == "delete" else None)
        return worker.run().exit_code


class Report(NamedTuple):
    """The numbers of a job."""

    items: int
    repeated: int
    attempts: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.items} items, {self.repeated} repeated, {self.attempts} attempts, {self.seconds:.1f} s"


def run_job(url: str, folder: Path, items: int, deploys: int, kills: int, kind: str = "plain", seed: int = 1) -> Report:
    """Run a job, deploy and kill its worker, and check the ledger."""
    rng, began = random.Random(seed), time.monotonic()
    ledger = folder / "ledger"
    ledger.touch()
    with tubes.connect(url) as queue:
        function = work_async if kind == "async" else work
        # A deploy that loses an attempt buries the job.
        task = queue.enqueue_with(max_attempts=kills + 1, keep_done=3600)(function, str(ledger), items)
    faults = [signal.SIGTERM] * deploys + [signal.SIGKILL] * kills
    rng.shuffle(faults)
    moments = sorted(rng.sample(range(items * 97 // 100), len(faults)))
    for fault, moment in zip(faults, moments, strict=True):
        with _worker(url, kind, moment) as worker:
            _wait(worker, ledger, moment)
            worker.send_signal(fault)
            code = worker.wait(timeout=_PATIENCE)
        assert code == (0 if fault is signal.SIGTERM else -fault), f"the worker ended with {code}"
    with _worker(url, kind, items) as worker:
        assert worker.wait(timeout=max(_PATIENCE, items / 1000)) == 0
    with tubes.connect(url) as queue:
        ended = queue.tube("tasks").peek(task.id)
        assert (ended.why, ended.saved, ended.progress) == ("ack", items, 1), ended
        attempts = ended.attempts
    assert attempts == kills + 1, f"{attempts} attempts, {kills} kills"
    return Report(items, _repeated(ledger, items, kills), attempts, time.monotonic() - began)


@contextmanager
def _worker(url: str, kind: str, fault: int) -> Generator[subprocess.Popen[Any]]:
    """Start a worker, and kill it at the end of the block if it still runs."""
    with python("-m", "tests.soak.long_job", "--url", url, "--kind", kind, env={_FAULT: str(fault)}) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def _wait(worker: subprocess.Popen[Any], ledger: Path, item: int) -> None:
    """Wait until this worker has done something, and the job has done this item."""
    before, end = ledger.stat().st_size, time.monotonic() + _PATIENCE
    while (size := ledger.stat().st_size) < max(before + _WIDTH, item * _WIDTH):
        assert worker.poll() is None, f"the worker ended with {worker.returncode}"
        assert time.monotonic() < end, f"no progress after item {size // _WIDTH}"
        time.sleep(0.0005)


def _repeated(ledger: Path, items: int, kills: int) -> int:
    """Check that each item was done, and return the number of repeated items."""
    done = ledger.read_bytes()
    counts = [0] * items
    for start in range(0, len(done), _WIDTH):
        counts[int.from_bytes(done[start : start + _WIDTH])] += 1
    assert all(counts), f"{counts.count(0)} items were not done"
    repeated = [item for item, count in enumerate(counts) for _ in range(count - 1)]
    # A kill repeats at most the items from its last checkpoint on.
    parts = [len([*part]) for _, part in groupby(repeated, lambda item: item // STEP)]
    assert sum(-(-part // STEP) for part in parts) <= kills, f"{kills} kills repeated {repeated}"
    return len(repeated)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--deploys", type=int, default=20)
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--kind", choices=KINDS, default="plain")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--url", help="run a worker of this store")
    args = options.parse_args()
    if args.url:
        return run_worker(args.url, args.kind)
    for name in ("folder", "server"):
        with TemporaryDirectory() as folder, LocalServer() as server:
            url = server.url if name == "server" else f"file:{folder}/store"
            report = run_job(url, Path(folder), args.items, args.deploys, args.kills, args.kind, args.seed)
            print(f"{name}: {args.deploys} deploys, {args.kills} kills: {report}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
