"""Random faults during a soak."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tests.soak.actors import PATIENCE

if TYPE_CHECKING:
    from tests.soak.actors import Actor
    from tests.soak.watched import Watched
    from tests.support.proxy import Proxy
    from tubes.testing import LocalServer

#: The share of requests whose reply is lost while connections are cut.
_CUT: Final = 0.05


class Chaos:
    """Cause one fault after the other; `hire` replaces `workers` in place."""

    def __init__(
        self,
        server: LocalServer,
        proxy: Proxy,
        workers: list[Actor],
        hire: Callable[[Actor], Actor],
        watched: list[Watched],
        rng: random.Random,
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._workers = workers
        self._hire = hire
        self._watched = watched
        self._rng = rng
        self._stopped = threading.Event()
        self._acts: Final[dict[str, tuple[Callable[[], None], int]]] = {
            "worker killed": (self._kill_worker, 4),
            "worker stopped": (self._stop_worker, 4),
            "lines cut": (self._cut_lines, 3),
            "connections killed": (self._kill_connections, 2),
            "scripts flushed": (self._flush_scripts, 2),
            "server stopped": (self._stop_server, 1),
            "server killed": (self._kill_server, 1),
            "server paused": (self._pause_server, 1),
            "listeners killed": (self._kill_listeners, 1),
        }
        #: The number of workers, from the first, that are not killed.
        self.spared: Final = len(workers) // 2
        #: The faults with their times, by `time.monotonic`.
        self.log: list[tuple[float, str]] = []

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of faults of each kind."""
        return dict(Counter(what for _, what in self.log))

    def run(self, until: float, pause: float) -> None:
        """Cause faults until the time `until`, `pause` seconds apart on average, each kind once before any repeats."""
        first = list(self._acts)
        self._rng.shuffle(first)
        weights = [weight for _, weight in self._acts.values()]
        while time.monotonic() < until:
            what = first.pop() if first else self._rng.choices(list(self._acts), weights)[0]
            self.log.append((time.monotonic(), what))
            self._acts[what][0]()
            self._stopped.wait(pause * 2 * self._rng.random())

    def _kill_worker(self) -> None:
        number = self._rng.randrange(self.spared, len(self._workers))
        victim = self._workers[number]
        victim.end()
        self._workers[number] = self._hire(victim)

    def _stop_worker(self) -> None:
        """Stop a worker for less than its lease, or for longer, so that it loses its tasks."""
        victim = self._rng.choice(self._workers)
        victim.signal(signal.SIGSTOP)
        self._stopped.wait(self._rng.random() * 2)
        victim.signal(signal.SIGCONT)

    def _cut_lines(self) -> None:
        self._proxy.cuts = lambda request: random.random() < _CUT
        self._stopped.wait(self._rng.random())
        self._proxy.cuts = lambda request: False

    def _command(self, *words: Any) -> None:
        with self._server.client() as client:
            client.execute_command(*words)

    def _kill_connections(self) -> None:
        self._command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def _flush_scripts(self) -> None:
        self._command("SCRIPT", "FLUSH")

    def _pause_server(self) -> None:
        self._command("CLIENT", "PAUSE", 200, "ALL")

    def _stop_server(self) -> None:
        self._server.signal(signal.SIGSTOP)
        self._stopped.wait(self._rng.random() * 0.5)
        self._server.signal(signal.SIGCONT)

    def _kill_server(self) -> None:
        """Kill the server and restart it with all confirmed writes."""

        def again() -> None:
            self._server.kill()
            self._server.start()

        self._disconnect_listeners(again)

    def _kill_listeners(self) -> None:
        self._disconnect_listeners(lambda: self._command("CLIENT", "KILL", "TYPE", "pubsub"))

    def _disconnect_listeners(self, act: Callable[[], object]) -> None:
        """Cause a fault that disconnects the listeners, which restart when they receive the put of a later task."""
        mark = f"mark{len(self.log)}."
        listened = [(tube, tube.listener) for tube in self._watched if tube.listener is not None]
        for _, listener in listened:
            listener.forget(mark)
        act()
        puts = count()
        until = time.monotonic() + PATIENCE
        for tube, listener in listened:
            while listener.is_blind:
                if time.monotonic() > until:
                    tube.ledger.mistakes.append(f"no event of {tube.tube.name} arrived for {PATIENCE:g} s")
                    break
                tube.ledger.put(tube.tube, f"{mark}{next(puts)}")
                self._stopped.wait(0.05)
