"""Metrics for Prometheus: a collector that reads all tubes at each scrape. Extra `prometheus`.

>>> import tubes
>>> from prometheus_client import CollectorRegistry, generate_latest
>>> from tubes.metrics.prometheus import Collector
>>> with tubes.connect() as queue:
...     _ = queue.create_tube("mail").put("to ann")
...     registry = CollectorRegistry()
...     registry.register(Collector(queue))
...     registry.get_sample_value("tubes_tasks", {"tube": "mail", "state": "ready"}) == 1
True
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from typing_extensions import override

from tubes import sync
from tubes.backend.retry import Outage
from tubes.drivers.options import flag
from tubes.errors import InvalidOption, TubeNotFound, TubesError, needs
from tubes.metrics.spans import Spans
from tubes.values.reasons import kind_of

with needs("tubes.metrics.prometheus", "prometheus"):
    from prometheus_client import Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector as Base

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tubes.sync import Queue, Tube
    from tubes.values.overview import Overview

#: The metrics of a scrape by name.
Families: TypeAlias = "dict[str, GaugeMetricFamily | CounterMetricFamily]"
#: All tubes by namespace and name.
Seen: TypeAlias = "dict[tuple[str, str], Overview]"

#: Metrics that the store itself counts, for all programs: gauges and counters, each with its help and labels.
_GAUGES: Final = {
    "tubes_up": ("1 if the queue replied in time, else 0.", ()),
    "tubes_look_seconds": ("Seconds to read all tubes.", ()),
    "tubes_folder_bytes": ("How large the files of a folder are.", ()),
    "tubes_folder_checkpoint_time_seconds": ("When the log of a folder was last folded into its file.", ()),
    "tubes_tasks": ("Tasks by state: ready, taken, delayed, buried.", ("tube", "state")),
    "tubes_waiting": ("Callers that wait on the tube.", ("tube",)),
    "tubes_paused": ("1 while the tube is paused.", ("tube",)),
    "tubes_sessions": ("Live sessions that have opened the tube.", ("tube",)),
    "tubes_utubes": ("Lanes that have tasks or cool down.", ("tube",)),
    "tubes_blocked_utubes": ("Lanes that cool down or are blocked.", ("tube",)),
    "tubes_oldest_ready_age_seconds": ("Seconds since the put of the oldest ready task; 0: none is ready.", ("tube",)),
    "tubes_due_lag_seconds": ("Seconds since something fell due that has not happened yet.", ("tube",)),
}
_COUNTERS: Final = {
    "tubes_folder_fsyncs_total": ("How often the process of a folder has waited for its disk.", ()),
    "tubes_folder_fsync_seconds_total": ("For how many seconds it has.", ()),
    "tubes_calls_total": ("Calls by kind, as in Statistics.calls.", ("tube", "call")),
    "tubes_done_total": ("Tasks that are gone: acked, deleted, expired.", ("tube",)),
    "tubes_expired_total": ("Tasks that were removed because their ttl was over.", ("tube",)),
    "tubes_ttr_timeouts_total": ("Tasks that became ready again because their time to run was over.", ("tube",)),
}
#: Metrics of tubes that are watched.
_HEARD: Final = {
    "tubes_wait_seconds": ("Seconds from when a task is ready until it is taken.", ("tube",)),
    "tubes_hold_seconds": ("Seconds from when a task is taken until it is acked, released or buried.", ("tube",)),
    "tubes_buried_total": ("Tasks that were buried, by the kind of their reason.", ("tube", "reason")),
}
#: All metrics, as Prometheus shows them.
NAMES: Final = (*_GAUGES, *_COUNTERS, *_HEARD)

#: The borders of the histograms: from a millisecond to a day.
BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
#: How many different reasons are counted apart; more are "other".
_REASONS: Final = 50


class Collector(Base):
    """Collects the metrics of all tubes of a queue: register it with a registry of prometheus_client.

    `queue`: a `Queue`, whose session it does not use, or a URL. A program of asyncio gives the URL of its server, or
    `memory://name`.
    `watch`: the tubes whose changes it follows, for the histograms of waiting and holding times and the counter of
    buried tasks; True for all. A server publishes each change of such a tube, which costs it about as much as the call
    itself. Changes during a lost connection are missed.
    `ages`: also read the age of the oldest ready task, by one more call for each tube that has one.
    `namespaces`: collect the tubes of all namespaces of the store, and of none. All metrics of tubes have a label
    `namespace` then; "": the tube is in none.
    `timeout`: seconds that a scrape may take; after that `tubes_up` is 0 and the tubes are missing.
    `reason`: a function that returns the kind of a reason.
    `now`: the clock of the histograms, in seconds.

    A scrape makes two calls to a server for 200 tubes, and opens no session in them.

    Raises what `connect` raises for a URL, and `InvalidOption` for anything but a queue or a URL.
    """

    def __init__(
        self,
        queue: Queue | str,
        *,
        watch: Collection[str] | bool = (),
        ages: bool = True,
        namespaces: bool = False,
        timeout: float = 5.0,
        reason: Callable[[str | None], str] = kind_of,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        flag("namespaces", namespaces)
        if isinstance(queue, str):
            queue = sync.connect(queue)
        elif isinstance(queue, sync.Queue):  # pyright: ignore[reportUnnecessaryIsInstance]
            # A queue has one listener per tube: the collector has a queue of its own, and so leaves the user's free.
            queue = queue.session()
        else:
            raise InvalidOption(option="queue", value=queue, rule="must be a Queue or a URL")
        if isinstance(watch, str):
            raise InvalidOption(option="watch", value=watch, rule="must be a list of names, or True")
        self._queue: Final = queue
        # The label of all metrics of tubes, if there is one.
        self._label: Final = ("namespace",) if namespaces else ()
        # By namespace.
        self._queues: Final[dict[str, Queue]] = {"": queue.namespace("") if namespaces else queue}
        self._watch: Final = watch
        self._ages: Final = ages
        self._timeout: Final = timeout
        self._reason: Final = reason
        self._now: Final = now
        self._watched: Final[dict[tuple[str, str], tuple[Tube, Spans]]] = {}
        self._reasons: Final[set[str]] = set()
        self._pool: Final = ThreadPoolExecutor(1, "tubes-metrics")
        self._lock: Final = threading.Lock()
        self._looking: Future[Seen] | None = None
        # Scrapes that fail, and tubes that cannot be watched: the next scrape tries again.
        self._outage, self._deaf = Outage(), Outage()
        self._wait, self._hold = (self._histogram(name) for name in ("tubes_wait_seconds", "tubes_hold_seconds"))
        about, labels = _HEARD["tubes_buried_total"]
        self._buried: Final = Counter("tubes_buried", about, (*self._label, *labels), registry=None)

    def close(self) -> None:
        """Stop listening, and end its session."""
        for queue in (self._queue, *self._queues.copy().values()):
            queue.close()
        self._pool.shutdown(wait=False)

    # -- collecting ----------------------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """All metrics without values, for registries that ask for the names first."""
        yield from self._families().values()
        yield from self._heard()

    @override
    def collect(self) -> Iterator[Metric]:
        """All metrics now."""
        families = self._families()
        began = time.perf_counter()
        seen = self._look()
        families["tubes_up"].add_metric([], float(seen is not None))
        families["tubes_look_seconds"].add_metric([], time.perf_counter() - began)
        for (namespace, name), one in (seen or {}).items():
            _add(families, (*self._values(namespace), name), one)
        usage = self._queue.folder_usage if seen is not None else None
        if usage is not None:
            families["tubes_folder_bytes"].add_metric([], usage.bytes)
            families["tubes_folder_checkpoint_time_seconds"].add_metric([], usage.checkpoint)
            families["tubes_folder_fsyncs_total"].add_metric([], usage.fsyncs)
            families["tubes_folder_fsync_seconds_total"].add_metric([], usage.fsync_seconds)
        yield from families.values()
        yield from self._heard()

    def _look(self) -> Seen | None:
        """All tubes; None if they cannot be read in time. The next scrape waits for the same call."""
        with self._lock:
            try:
                if self._looking is None:
                    self._looking = self._pool.submit(self._look_and_listen)
                seen = self._looking.result(self._timeout)
            except NotInTime:
                return None
            except Exception as error:  # The next scrape tries again.
                self._looking = None
                self._outage.log("the tubes could not be read", error)
                return None
            self._looking = None
            self._outage.end()
            return seen

    def _look_and_listen(self) -> Seen:
        if self._label:
            self._find_namespaces()
        seen = {
            (namespace, name): one
            for namespace, queue in self._queues.items()
            for name, one in queue.overview(ages=self._ages).items()
        }
        deaf = False
        for namespace, name in seen:
            if self._watch is True or (self._watch and name in self._watch):
                try:
                    self._listen(namespace, name)
                except TubesError as error:  # The other metrics do not need it.
                    deaf = True
                    self._deaf.log(f"tube {name!r} cannot be watched", error)
        if not deaf:
            self._deaf.end()
        for gone in self._watched.keys() - seen.keys():
            del self._watched[gone]
        return seen

    def _find_namespaces(self) -> None:
        names = {"", *self._queue.namespaces()}
        for name in self._queues.keys() - names:
            self._queues.pop(name).close()
        for name in sorted(names - self._queues.keys()):
            self._queues[name] = self._queue.namespace(name)

    def _listen(self, namespace: str, name: str) -> None:
        """Listen to a tube; again, if it was dropped and created again."""
        for _ in range(2):
            known = self._watched.pop((namespace, name), None)
            with suppress(TubeNotFound):
                if known is None:
                    known = self._queues[namespace].tube(name), Spans(_Heard(self, namespace), self._now)
                known[0].on_task_change(known[1])
                self._watched[namespace, name] = known
                return

    def _heard(self) -> Iterable[Metric]:
        for metric in (self._wait, self._hold, self._buried):
            yield from metric.collect()

    # -- what is heard -------------------------------------------------------------------------------------------------

    def waited(self, tube: str, seconds: float, namespace: str = "") -> None:
        """A task was ready for so long."""
        self._wait.labels(*self._values(namespace), tube).observe(seconds)

    def held(self, tube: str, seconds: float, namespace: str = "") -> None:
        """A task was taken for so long."""
        self._hold.labels(*self._values(namespace), tube).observe(seconds)

    def buried(self, tube: str, reason: str | None, namespace: str = "") -> None:
        """A task was buried."""
        # A label that is not UTF-8, such as a file name in a reason, would break every later scrape.
        kind = self._reason(reason).encode(errors="replace").decode()
        if kind not in self._reasons:
            if len(self._reasons) < _REASONS:
                self._reasons.add(kind)
            else:
                kind = "other"
        self._buried.labels(*self._values(namespace), tube, kind).inc()

    # -- labels --------------------------------------------------------------------------------------------------------

    def _values(self, namespace: str) -> tuple[str, ...]:
        """The values of the labels that all metrics of tubes have besides their own."""
        return (namespace,) if self._label else ()

    def _histogram(self, name: str) -> Histogram:
        about, labels = _HEARD[name]
        return Histogram(name, about, (*self._label, *labels), registry=None, buckets=BUCKETS)

    def _families(self) -> Families:
        """The metrics of a scrape, empty."""
        made: Families = {}
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (about, labels) in metrics.items():
                made[name] = kind(name, about, labels=(*self._label, *labels) if labels else ())
        return made


class _Heard:
    """What is heard in one namespace."""

    def __init__(self, collector: Collector, namespace: str) -> None:
        self._collector: Final = collector
        self._namespace: Final = namespace

    def waited(self, tube: str, seconds: float) -> None:
        self._collector.waited(tube, seconds, self._namespace)

    def held(self, tube: str, seconds: float) -> None:
        self._collector.held(tube, seconds, self._namespace)

    def buried(self, tube: str, reason: str | None) -> None:
        self._collector.buried(tube, reason, self._namespace)


def _add(families: Families, labels: tuple[str, ...], seen: Overview) -> None:
    """Add one tube, of these labels, to the metrics of a scrape."""
    counted = seen.statistics
    for state in ("ready", "taken", "delayed", "buried"):
        families["tubes_tasks"].add_metric([*labels, state], counted.tasks[state])
    for call, count in counted.calls.items():
        families["tubes_calls_total"].add_metric([*labels, call], count)
    for metric, value in (
        ("tubes_waiting", counted.waiting),
        ("tubes_paused", counted.paused is not None),
        ("tubes_sessions", seen.sessions),
        ("tubes_utubes", seen.utubes),
        ("tubes_blocked_utubes", seen.resting),
        ("tubes_oldest_ready_age_seconds", seen.oldest_ready_age or 0.0),
        ("tubes_due_lag_seconds", seen.due_lag),
        ("tubes_done_total", counted.tasks["done"]),
        ("tubes_expired_total", counted.calls["ttl"]),
        ("tubes_ttr_timeouts_total", counted.calls["ttr"]),
    ):
        families[metric].add_metric(labels, float(value))
