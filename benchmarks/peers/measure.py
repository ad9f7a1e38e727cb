"""How a subject is measured once: a fresh server, a producer and a worker in processes of their own, on one core."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Final, Self

from benchmarks.peers.environments import python_of
from benchmarks.peers.inside.notes import Notes
from benchmarks.peers.processes import Child, PeerFailed, all_cores, one_core, place
from benchmarks.peers.registry import REDIS, Subject
from benchmarks.peers.results import BATCHES, BYTES, CPU_PUT, CPU_WORK, CYCLE, ONE, SEVERAL, WORK, Turn
from benchmarks.peers.servers import STARTS, Server, cpu_seconds

#: Trips of the yardstick before each measure, and cycles of the one in process.
TRIPS: Final = 1000
CYCLES: Final = 50_000
#: In process, where a measure takes a moment, it is done so often in a turn; the median counts.
PASSES: Final = 3
#: Tasks that are put before anything is measured.
WARM: Final = 50
#: Seconds that a worker may take for all tasks, and milliseconds for which its wake-up is measured.
PATIENCE: Final = 60.0
WAKE: Final = 800


class Stage:
    """Where subjects are measured; keeps a folder for logs, and what the yardsticks took."""

    def __init__(self, server: str, share: float) -> None:
        self._redis = server
        #: What part of each subject's tasks is put, and of the time for which a worker is woken.
        self._share = share
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        self.folder = Path(self._folder.name)
        #: Seconds of a raw PING, and of a cycle of queue.Queue.
        self.pings: list[float] = []
        self.queues: list[float] = []

    def _told(self, server: Server | None, way: str = "") -> dict[str, str]:
        address = {"PEERS_HOST": server.host, "PEERS_PORT": str(server.port)} if server else {}
        return {**address, "PEERS_WAY": way, "PEERS_NOTES": str(self.folder / "notes")}

    def _pinger(self, stack: ExitStack) -> Callable[[], float]:
        """Answers seconds of a raw PING, now; to a server of its own, for subjects of all kinds alike."""
        server = stack.enter_context(closing(STARTS[self._redis]()))
        place([server.pid], one_core())
        log = self.folder / "ping.log"
        child = stack.enter_context(Child(python_of(()), "ping", "produce", self._told(server), log))

        def ping() -> float:
            self.pings.append(child.ask(f"one {TRIPS}")["seconds"] / TRIPS)
            return self.pings[-1]

        return ping

    def _tasks(self, subject: Subject) -> int:
        return max(100, int(subject.tasks * self._share)) if subject.tasks >= 100 else subject.tasks

    def turn(self, subject: Subject) -> tuple[Turn, dict[str, str]]:
        """Measure it once; the versions of its packages too. Raises what says why it cannot be."""
        python = python_of(subject.packages)
        if not subject.server:
            return self._cycles(subject, python)
        turn = Turn()
        with ExitStack() as stack:
            server = stack.enter_context(closing(STARTS[self._redis if subject.server == REDIS else subject.server]()))
            place([server.pid], one_core())
            notes_file = self.folder / "notes"
            notes_file.unlink(missing_ok=True)
            ping = self._pinger(stack)
            told = self._told(server, subject.way)
            log = self.folder / f"{subject.module}.log"
            producer = stack.enter_context(Child(python, subject.module, "produce", told, log))
            found = _versions(producer, subject)
            put = self._puts(subject, server, producer, turn, ping)
            notes = Notes(notes_file)
            trip = ping()
            worked = cpu_seconds(server.pid)
            worker_log = self.folder / f"{subject.module}-worker.log"
            worker = stack.enter_context(Child(python, subject.module, "work", told, worker_log))
            _await(worker, notes, put)
            turn.costs[CPU_WORK] = (cpu_seconds(server.pid) - worked) / put
            # A worker takes a while to start: the machine may be another by then.
            turn.rate(WORK, put - 1, notes.seconds, (trip + ping()) / 2)
            place([server.pid, *producer.pids(), *worker.pids()], all_cores())
            producer.ask(f"wake {WAKE * self._share:.0f}")
            turn.latencies = notes.latencies
        return turn, found

    def _puts(self, subject: Subject, server: Server, producer: Child, turn: Turn, ping: Callable[[], float]) -> int:
        """Put tasks in each of its ways; answers how many."""
        can = producer.ask("can 0")
        tasks = self._tasks(subject)
        producer.ask(f"one {WARM}")
        put = WARM
        if not subject.puts:
            word = "batches" if can["batches"] and tasks >= 100 else "one"
            producer.ask(f"{word} {tasks}")
            return put + (tasks // 100 * 100 if word == "batches" else tasks)
        memory, cpu = server.memory(), cpu_seconds(server.pid)
        trip = ping()
        turn.rate(ONE, tasks, producer.ask(f"one {tasks}")["seconds"], trip)
        turn.costs[CPU_PUT] = (cpu_seconds(server.pid) - cpu) / tasks
        # Before more clients connect, which need memory too.
        turn.costs[BYTES] = (server.memory() - memory) / tasks
        put += tasks
        for word, measure, part in (("several", SEVERAL, 50), ("batches", BATCHES, 100)):
            if can[word]:
                trip = ping()
                count = tasks // part * part
                turn.rate(measure, count, producer.ask(f"{word} {count}")["seconds"], trip)
                put += count
        return put

    def _cycles(self, subject: Subject, python: str) -> tuple[Turn, dict[str, str]]:
        turn, tasks = Turn(), subject.tasks
        log = self.folder / "cycles.log"
        with (
            Child(python, subject.module, "produce", self._told(None, subject.way), log) as child,
            Child(python_of(()), subject.module, "produce", self._told(None, "queue.Queue"), log) as yardstick,
        ):
            found = _versions(child, subject)
            child.ask(f"cycle {max(100, tasks // 10)}")
            passes: list[tuple[float, float]] = []
            for _ in range(PASSES):
                self.queues.append(yardstick.ask(f"cycle {CYCLES}")["seconds"] / CYCLES)
                passes.append((child.ask(f"cycle {tasks}")["seconds"], self.queues[-1]))
            seconds, trip = sorted(passes, key=lambda both: both[0] / both[1])[PASSES // 2]
            turn.rate(CYCLE, tasks, seconds, trip)
        return turn, found

    def yardsticks(self) -> dict[str, float]:
        """Per second, medians of all that were measured."""
        found = (("PING", self.pings), ("queue.Queue", self.queues))
        return {name: 1 / median(times) for name, times in found if times}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def _versions(child: Child, subject: Subject) -> dict[str, str]:
    names = [package.partition("[")[0] for package in subject.packages]
    return child.ask(f"versions {','.join(names)}") if names else {}


def _await(worker: Child, notes: Notes, put: int) -> None:
    """Until all tasks are handled."""
    patience = time.monotonic() + PATIENCE
    while notes.count < put:
        if worker.ended():
            raise PeerFailed(f"its worker ended: {worker.last_words()}")
        if time.monotonic() > patience:
            raise PeerFailed(f"{notes.count} of {put} tasks handled within {PATIENCE:g} s: {worker.last_words()}")
        time.sleep(0.02)
