"""One cell of the table: one system under one fault, measured by the ledger alone."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.network import Proxy
from benchmarks.chaos.systems import FAKETIME, LEASE, Server, System
from benchmarks.peers.environments import python_of
from benchmarks.peers.processes import Child, all_cores, place

#: Worker processes, and seconds of puts before a fault.
WORKERS: Final = 2
BEFORE: Final = 3.0
#: Seconds of repeated faults.
SPAN: Final = 12.0
#: Seconds of a partition.
PARTITION: Final = 20.0
#: Seconds after an outage and the last put, after which an undone task is stuck, and seconds that it then has to be
#: done by new workers, or another task: otherwise it is lost.
STUCK: Final = 60.0
RESCUE: Final = 20.0
#: Tasks that are put then.
MORE: Final = 20
#: Seconds to look for more repeats when all tasks are done: leases end meanwhile.
SETTLE: Final = 3 * LEASE
#: Seconds in which a run follows its take, and an ack follows the end of its run.
ACK: Final = 0.5
#: Seconds that new workers have to start in a deploy, and old ones to stop.
READY: Final = 4.0
GRACE: Final = 10.0


@dataclass
class Run:
    """A run of a task by a worker."""

    pid: int
    start: float
    end: float | None = None


@dataclass
class Ledger:
    """What the ledger says."""

    tried: set[int] = field(default_factory=set[int])
    #: The tasks whose puts have returned.
    put: set[int] = field(default_factory=set[int])
    last_put: float = 0.0
    runs: dict[int, list[Run]] = field(default_factory=lambda: defaultdict[int, list[Run]](list))

    @property
    def done(self) -> set[int]:
        """Return the tasks with a complete run."""
        return {task for task, runs in self.runs.items() if any(run.end for run in runs)}


def read(path: Path) -> Ledger:
    """Read the ledger."""
    ledger = Ledger()
    for line in path.read_text().splitlines() if path.exists() else ():
        word, *numbers = line.split()
        task, pid, nanoseconds = (int(number) for number in numbers)
        if word == "try":
            ledger.tried.add(task)
        elif word == "put":
            ledger.put.add(task)
            ledger.last_put = nanoseconds / 1e9
        elif word == "start":
            ledger.runs[task].append(Run(pid, nanoseconds / 1e9))
        else:
            next(run for run in reversed(ledger.runs[task]) if run.pid == pid and not run.end).end = nanoseconds / 1e9
    return ledger


class Cell:
    """A system with its server, workers and producer, and the faults so far."""

    def __init__(self, system: System, fault: str, tasks: int, folder: Path) -> None:
        self.system = system
        self._tasks = tasks
        self._folder = folder
        self._notes = folder / "ledger"
        self._python = python_of(system.packages)
        self.server: Server | None = None
        self.proxies: list[Proxy] = []
        #: Kills and stops of workers: their processes, from when to when.
        self.hits: list[tuple[set[int], float, float]] = []
        #: Kills of the server and partitions, from when to when; faults that explain no repeats are not in here.
        self.outages: list[tuple[float, float]] = []
        #: When the server was of use again.
        self.back: list[float] = []
        self.restarts = 0
        self._logs = 0
        ports = [0, 0]
        if system.server:
            self.server = Server(system.server, folder, always=fault.endswith("always"), fake_clock=fault == "clock")
            ports = [self.server.port] * 2
            if fault in ("cut", "partition"):
                self.proxies = [Proxy(self.server.port), Proxy(self.server.port)]
                ports = [proxy.port for proxy in self.proxies]
        self._producer_port, self._worker_port = ports
        self.producer = self._child("produce", self._producer_port) if system.server else None
        self.workers: list[Child] = []
        self._putting = threading.Thread(target=self._put, daemon=True)

    @property
    def ledger(self) -> Ledger:
        """Return what the ledger says now."""
        return read(self._notes)

    def _child(self, role: str, port: int) -> Child:
        self._logs += 1
        way = f"file:{self._folder / 'store'}" if self.system.way == "file:" else self.system.way
        address = {"PEERS_HOST": "127.0.0.1", "PEERS_PORT": str(port), "PEERS_LEASE": str(LEASE)}
        settings = {**address, "PEERS_WAY": way, "PEERS_NOTES": str(self._notes)}
        child = Child(self._python, self.system.module, role, settings, self._folder / f"{self._logs}-{role}.log")
        place(child.pids(), all_cores())
        return child

    def new_worker(self) -> Child:
        """Start a worker, which puts the tasks, too, if the queue is in one process."""
        return self._child("work" if self.producer else str(self._tasks), self._worker_port)

    def _put(self, more: int = 0) -> None:
        assert self.producer is not None
        with suppress(Exception):  # the ledger has what was put
            self.producer.ask(f"paced {self._tasks + more}")

    def begin(self) -> None:
        """Start the workers and the puts, and wait for the first task."""
        self.workers = [self.new_worker() for _ in range(WORKERS if self.producer else 1)]
        if self.producer:
            self.producer.ask("paced 1")
        deadline = time.monotonic() + 60
        while not self.ledger.done:
            if time.monotonic() > deadline or any(worker.has_ended() for worker in self.workers):
                raise TimeoutError(f"no task is done: {self.workers[0].last_words()}")
            time.sleep(0.2)
        if self.producer:
            self._putting.start()

    def sleep(self, seconds: float) -> None:
        """Wait, and restart workers that have ended, as a supervisor does."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
            for index, worker in enumerate(self.workers):
                if worker.has_ended():
                    worker.close()
                    self.restarts += 1
                    self.workers[index] = self.new_worker()

    def stop_in_task(self, worker: Child) -> set[int]:
        """Stop a worker by SIGSTOP while it runs a task; return its processes, or none if it is idle for a second."""
        for _ in range(100):
            pids = set(worker.pids())
            if self._runs_task(pids):  # A worker that starts is not stopped.
                _signal(pids, signal.SIGSTOP)
                if self._runs_task(pids):
                    return pids
                _signal(pids, signal.SIGCONT)
            time.sleep(0.01)
        return set()

    def _runs_task(self, pids: set[int]) -> bool:
        return any(not run.end and run.pid in pids for runs in self.ledger.runs.values() for run in runs)

    def deploy(self) -> None:
        """Replace all workers: new ones start, and old ones stop; in one process, the old one stops first."""
        olds = self.workers
        if self.producer:
            self.workers = [self.new_worker() for _ in olds]
            self.sleep(READY)
        for old in olds:
            _signal({old.pid}, self.system.stop)
        deadline = time.monotonic() + GRACE
        while not all(old.has_ended() for old in olds) and time.monotonic() < deadline:
            time.sleep(0.05)
        for old in olds:
            if not old.has_ended():
                self.hits.append((set(old.pids()), time.monotonic(), time.monotonic()))
            old.close()
        if not self.producer:
            self.workers = [self.new_worker()]

    def finish(self, begun: float, stuck_after: float) -> dict[str, Any]:
        """Wait for the rest of the tasks, and count."""
        ended = time.monotonic()
        deadline, settled, stuck = ended + 2 * stuck_after, 0.0, set[int]()
        while time.monotonic() < deadline:
            ledger, now = self.ledger, time.monotonic()
            is_put = len(ledger.tried) >= self._tasks and not self._putting.is_alive()
            if is_put:
                deadline = min(deadline, max(ended, ledger.last_put) + stuck_after)
            settled = (settled or now) if is_put and ledger.put <= ledger.done else 0.0
            if settled and now > settled + SETTLE:
                break
            self.sleep(1)
        ledger = self.ledger
        resumed = self._resumed(ledger, begun)
        stuck = ledger.put - ledger.done
        if stuck:
            for worker in self.workers:
                worker.close()
            self.workers = [self.new_worker() for _ in self.workers]
            if self.producer:
                # Some systems look for tasks of dead workers only when there is a new task.
                threading.Thread(target=self._put, args=(MORE,), daemon=True).start()
            until = time.monotonic() + RESCUE
            while not stuck <= ledger.done and time.monotonic() < until:
                self.sleep(1)
                before, ledger = ledger, self.ledger
                if ledger.done > before.done:  # It is slow, but goes on.
                    until = time.monotonic() + RESCUE
        lost = stuck - ledger.done
        repeats = [runs for runs in ledger.runs.values() if sum(1 for run in runs if run.end) > 1]
        return {
            "put": sum(task < self._tasks for task in ledger.put),
            "refused": sum(task < self._tasks for task in ledger.tried - ledger.put),
            "lost": len(lost),
            "stuck": len(stuck),
            "twice": len(repeats),
            "unexplained": sum(not self._explains(runs) for runs in repeats),
            "resumed": resumed,
            "kills": len(self.hits) + len(self.outages) + sum(len(proxy.cuts) for proxy in self.proxies),
            "restarts": self.restarts,
        }

    def _explains(self, runs: list[Run]) -> bool:
        """Return True if a fault met a run between its take and its ack, or the last run before its start."""
        shared = self.outages + [(cut, cut) for proxy in self.proxies[1:] for cut in proxy.cuts]
        for run in runs:
            met = shared + [(begin, end) for pids, begin, end in self.hits if run.pid in pids]
            acked = run.start if run is runs[-1] else (run.end or run.start) + ACK
            if any(begin <= acked and end >= run.start - ACK for begin, end in met):
                return True
        return False

    def _resumed(self, ledger: Ledger, begun: float) -> float | None:
        """Return the seconds until work went on: after the last outage, or the longest pause; None: never."""
        ends = sorted(run.end for runs in ledger.runs.values() for run in runs if run.end and run.end > begun)
        if self.back:
            return next((end - self.back[-1] for end in ends if end > self.back[-1]), None)
        times = [begun, *(end for end in ends if end <= ledger.last_put)]
        return max((after - before for before, after in pairwise(times)), default=None)

    def close(self) -> None:
        """End all processes."""
        for child in [*self.workers, *([self.producer] if self.producer else [])]:
            child.close()
        if self.server:
            self.server.kill()


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_workers(cell: Cell) -> None:
    until = time.monotonic() + SPAN
    while time.monotonic() < until:
        cell.sleep(1)
        if pids := cell.stop_in_task(cell.workers[0]):
            oldest = cell.workers.pop(0)
            cell.hits.append((pids | {oldest.pid}, time.monotonic(), time.monotonic()))
            oldest.close()
            cell.workers.append(cell.new_worker())
        else:
            cell.workers.append(cell.workers.pop(0))


def _stop_worker(cell: Cell) -> None:
    pids = cell.stop_in_task(cell.workers[0]) or cell.stop_in_task(cell.workers[-1])
    start = time.monotonic()
    time.sleep(3 * LEASE)
    _signal(pids, signal.SIGCONT)
    cell.hits.append((pids, start, time.monotonic()))
    if not cell.producer:  # Its only process was stopped.
        cell.back.append(time.monotonic())


def _kill_server(cell: Cell) -> None:
    assert cell.server is not None
    for _ in range(2):
        start = time.monotonic()
        cell.server.kill()
        cell.sleep(1)
        cell.server.start()
        cell.outages.append((start, time.monotonic()))
        cell.back.append(time.monotonic())
        cell.sleep(SPAN / 2)


def _cut(cell: Cell) -> None:
    for value in (True, False):
        for proxy in cell.proxies:
            proxy.cutting = value
        cell.sleep(SPAN * value)


def _partition(cell: Cell) -> None:
    start = time.monotonic()
    for proxy in cell.proxies:
        proxy.connected.clear()
    cell.sleep(PARTITION)
    for proxy in cell.proxies:
        proxy.connected.set()
    cell.outages.append((start, time.monotonic()))
    cell.back.append(time.monotonic())


def _step_clock(cell: Cell) -> None:
    assert cell.server is not None
    cell.server.step_clock(3600)
    cell.sleep(SPAN)


def _fill_memory(cell: Cell) -> None:
    assert cell.server is not None
    cell.server.reply(b"CONFIG SET maxmemory 1\r\n")
    cell.sleep(SPAN)
    cell.server.reply(b"CONFIG SET maxmemory 0\r\n")
    cell.back.append(time.monotonic())


def _deploy_twice(cell: Cell) -> None:
    cell.deploy()
    cell.sleep(2)
    cell.deploy()


#: The faults, each with its column.
FAULTS: Final[dict[str, tuple[str, Callable[[Cell], None]]]] = {
    "kill": ("SIGKILL of a worker each second", _kill_workers),
    "stop": (f"SIGSTOP of a worker for {3 * LEASE} s", _stop_worker),
    "server everysec": ("SIGKILL of the server twice, AOF everysec", _kill_server),
    "server always": ("SIGKILL of the server twice, AOF always", _kill_server),
    "cut": ("connections cut before the reply", _cut),
    "partition": (f"a partition of {PARTITION:g} s", _partition),
    "clock": ("the server's clock stepped by an hour", _step_clock),
    "maxmemory": ("maxmemory reached", _fill_memory),
    "deploys": ("two deploys", _deploy_twice),
}


def why_not(system: System, fault: str) -> str:
    """Return why a cell does not apply or is not measured; empty if it is."""
    if system.way == "memory://" and fault in ("kill", "deploys"):
        return "does not apply: the end of the process ends its memory"
    if not system.server and fault not in ("kill", "stop", "deploys"):
        return "does not apply: it has no server"
    if fault == "maxmemory" and system.server != "valkey":
        return "does not apply: its server has no such limit"
    if fault == "clock" and FAKETIME is None:
        return "not measured: libfaketime is not installed"
    return ""


def measure(system: System, fault: str, tasks: int, stuck_after: float, latest: float) -> dict[str, Any]:
    """Measure a cell, if it begins by this time; an error is a result, too."""
    if time.monotonic() > latest:
        return {"why": "not measured: there was no time left"}
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        cell: Cell | None = None
        try:
            cell = Cell(system, fault, tasks, Path(folder))
            cell.begin()
            cell.sleep(BEFORE)
            begun = time.monotonic()
            FAULTS[fault][1](cell)
            return cell.finish(begun, stuck_after)
        except Exception as error:  # a system that fails does not end the run
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            if cell is not None:
                cell.close()
