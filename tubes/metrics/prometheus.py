"""A Prometheus collector that reads all tubes at each scrape. Extra `prometheus`.

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
from concurrent.futures import TimeoutError as FutureTimeout
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
    from tubes.values.overview import FolderUsage, Overview
    from tubes.values.timings import Durations

#: The metrics of a scrape, by name.
Families: TypeAlias = "dict[str, GaugeMetricFamily | CounterMetricFamily]"
#: The overviews of all tubes, by namespace and name.
Overviews: TypeAlias = "dict[tuple[str, str], Overview]"

#: Gauges and counters that the store keeps for all programs, each with its help text and labels.
_GAUGES: Final = {
    "tubes_up": ("1 if the queue replied in time, else 0.", ()),
    "tubes_look_seconds": ("Seconds to read all tubes.", ()),
    "tubes_folder_bytes": ("Size of the files of a folder in bytes.", ()),
    "tubes_folder_checkpoint_time_seconds": ("Time of the last checkpoint of a folder's log, since the epoch.", ()),
    "tubes_tasks": ("Tasks by state: ready, taken, delayed, buried.", ("tube", "state")),
    "tubes_waiting": ("Callers waiting on the tube.", ("tube",)),
    "tubes_paused": ("1 while the tube is paused.", ("tube",)),
    "tubes_sessions": ("Live sessions that have opened the tube.", ("tube",)),
    "tubes_lanes": ("Lanes that `Tube.lanes` lists.", ("tube",)),
    "tubes_throttled_lanes": ("Lanes in cooldown or blocked, or without their full burst.", ("tube",)),
    "tubes_oldest_ready_age_seconds": ("Seconds since the put of the oldest ready task; 0 without one.", ("tube",)),
    "tubes_due_lag_seconds": ("Seconds by which the oldest due event is overdue.", ("tube",)),
    "tubes_worker_wait_seconds": (
        "Quantiles of the seconds from the put of a task to its first attempt by a worker, of the last five minutes.",
        ("tube", "function", "quantile"),
    ),
    "tubes_worker_run_seconds": (
        "Quantiles of the seconds that handlers of workers took for an attempt, of the last five minutes.",
        ("tube", "function", "quantile"),
    ),
}
_COUNTERS: Final = {
    "tubes_folder_fsyncs_total": ("Fsyncs that the process of a folder has waited for.", ()),
    "tubes_folder_fsync_seconds_total": ("Seconds that the process of a folder has waited for fsyncs.", ()),
    "tubes_calls_total": ("Calls by kind, as in Statistics.calls.", ("tube", "call")),
    "tubes_done_total": ("Tasks that were acked, were deleted, or expired.", ("tube",)),
    "tubes_expired_total": ("Tasks that were removed because their ttl ended.", ("tube",)),
    "tubes_ttr_timeouts_total": ("Tasks that became ready again because their time to run ended.", ("tube",)),
}
#: Metrics that the collector measures itself, only for the tubes that it watches.
_TASK_METRICS: Final = {
    "tubes_wait_seconds": ("Seconds from when a task is ready until it is taken.", ("tube",)),
    "tubes_hold_seconds": ("Seconds from when a task is taken until it is acked, released or buried.", ("tube",)),
    "tubes_buried_total": ("Buried tasks, by the kind of their reason.", ("tube", "reason")),
}
#: The names of all metrics, as Prometheus shows them.
NAMES: Final = (*_GAUGES, *_COUNTERS, *_TASK_METRICS)

#: The bucket boundaries of the histograms in seconds, from a millisecond to a day.
BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
#: The maximum number of reasons with a label of their own; further reasons count as "other".
_MAX_REASONS: Final = 50
#: The maximum number of functions of a scrape that have quantiles: those with the most attempts.
_MAX_FUNCTIONS: Final = 100


class Collector(Base):
    """Collects the metrics of all tubes of a queue. Register it with a registry of prometheus_client.

    `queue`: a `Queue`, whose session it does not use, or a URL. An asyncio program passes the URL of its server, or
    `memory://name`.
    `watch`: the names of tubes whose changes it follows, for the histograms of waiting and holding times and the
    counter of buried tasks; True for all tubes. A server publishes each change of such a tube, which costs it about as
    much as the call itself. Changes during a lost connection are missed.
    `ages`: also read the age of the oldest ready task, by one more call for each tube that has one.
    `namespaces`: collect the tubes of all namespaces of the store. All metrics of tubes then have a label `namespace`;
    it is "" for tubes outside of namespaces.
    `timeout`: seconds that a scrape may take; after that `tubes_up` is 0 and the tubes are missing.
    `reason`: a function that maps the reason of a buried task to its label.
    `now`: the clock of the histograms, in seconds.

    A scrape makes two calls to a server per 200 tubes, and opens no session in the tubes.

    Raises the errors of `connect` for a URL, and `InvalidOption` for anything but a queue or a URL.
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
            # A queue has one listener per tube, so the collector uses its own queue and leaves the user's listener.
            queue = queue.session()
        else:
            raise InvalidOption(option="queue", value=queue, rule="must be a Queue or a URL")
        if isinstance(watch, str):
            raise InvalidOption(option="watch", value=watch, rule="must be a list of names, or True")
        self._queue: Final = queue
        # Labels that all metrics of tubes have in addition to their own.
        self._label: Final = ("namespace",) if namespaces else ()
        # Queues by namespace.
        self._queues: Final[dict[str, Queue]] = {"": queue.namespace("") if namespaces else queue}
        self._watch: Final = watch
        self._ages: Final = ages
        self._timeout: Final = timeout
        self._reason: Final = reason
        self._now: Final = now
        self._watched: Final[dict[tuple[str, str], tuple[Tube, Spans]]] = {}
        self._seen_reasons: Final[set[str]] = set()
        self._pool: Final = ThreadPoolExecutor(1, "tubes-metrics")
        self._lock: Final = threading.Lock()
        self._pending_read: Future[Overviews] | None = None
        # Failed scrapes, and tubes that cannot be watched; the next scrape tries again.
        self._outage, self._listen_outage = Outage(), Outage()
        self._durations: dict[str, list[Durations]] = {}
        self._wait, self._hold = (self._histogram(name) for name in ("tubes_wait_seconds", "tubes_hold_seconds"))
        description, labels = _TASK_METRICS["tubes_buried_total"]
        self._buried: Final = Counter("tubes_buried", description, (*self._label, *labels), registry=None)

    def close(self) -> None:
        """Stop listening, and end the collector's session."""
        for queue in (self._queue, *self._queues.copy().values()):
            queue.close()
        self._pool.shutdown(wait=False)

    # -- collecting ----------------------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Yield all metrics without values, for registries that ask for the names first."""
        yield from make_families(*self._label).values()
        yield from self._collect_task_metrics()

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        families = make_families(*self._label)
        started_at = time.perf_counter()
        overviews = self._read_in_time()
        families["tubes_up"].add_metric([], float(overviews is not None))
        families["tubes_look_seconds"].add_metric([], time.perf_counter() - started_at)
        for (namespace, name), overview in (overviews or {}).items():
            add_tube(families, (*self._values(namespace), name), overview)
        for namespace, durations in self._durations.items() if overviews is not None else ():
            add_durations(families, self._values(namespace), durations)
        if overviews is not None:
            add_folder(families, self._queue.admin.folder_usage)
        yield from families.values()
        yield from self._collect_task_metrics()

    def _read_in_time(self) -> Overviews | None:
        """Return the overviews of all tubes, or None if they cannot be read in time.

        A read that is too slow continues; the next scrape waits for it instead of starting another one.
        """
        with self._lock:
            try:
                if self._pending_read is None:
                    self._pending_read = self._pool.submit(self._read_tubes)
                overviews = self._pending_read.result(self._timeout)
            except FutureTimeout:
                return None
            except Exception as error:  # The next scrape tries again.
                self._pending_read = None
                self._outage.log("the tubes could not be read", error)
                return None
            self._pending_read = None
            self._outage.end()
            return overviews

    def _read_tubes(self) -> Overviews:
        if self._label:
            self._find_namespaces()
        overviews = {
            (namespace, name): overview
            for namespace, queue in self._queues.items()
            for name, overview in queue.admin.overview(ages=self._ages).items()
        }
        is_incomplete = False
        for namespace, name in overviews:
            if self._watch is True or (self._watch and name in self._watch):
                try:
                    self._listen(namespace, name)
                except TubesError as error:  # The other metrics do not need it.
                    is_incomplete = True
                    self._listen_outage.log(f"tube {name!r} cannot be watched", error)
        if not is_incomplete:
            self._listen_outage.end()
        for key in self._watched.keys() - overviews.keys():
            del self._watched[key]
        self._durations = {namespace: self._read_durations(queue) for namespace, queue in self._queues.items()}
        return overviews

    def _read_durations(self, queue: Queue) -> list[Durations]:
        try:
            return queue.admin.durations()
        except TubesError:  # A folder has no workers, and this user may have no right to list them.
            return []

    def _find_namespaces(self) -> None:
        names = {"", *self._queue.admin.namespaces()}
        for name in self._queues.keys() - names:
            self._queues.pop(name).close()
        for name in sorted(names - self._queues.keys()):
            self._queues[name] = self._queue.namespace(name)

    def _listen(self, namespace: str, name: str) -> None:
        """Listen to a tube, also after it was dropped and created again."""
        for _ in range(2):
            known = self._watched.pop((namespace, name), None)
            with suppress(TubeNotFound):
                if known is None:
                    known = self._queues[namespace].tube(name), Spans(_NamespaceSink(self, namespace), self._now)
                known[0].on_task_change(known[1])
                self._watched[namespace, name] = known
                return

    def _collect_task_metrics(self) -> Iterable[Metric]:
        for metric in (self._wait, self._hold, self._buried):
            yield from metric.collect()

    # -- measurements --------------------------------------------------------------------------------------------------

    def waited(self, tube: str, seconds: float, namespace: str = "") -> None:
        """Record for how many seconds a task was ready."""
        self._wait.labels(*self._values(namespace), tube).observe(seconds)

    def held(self, tube: str, seconds: float, namespace: str = "") -> None:
        """Record for how many seconds a task was taken."""
        self._hold.labels(*self._values(namespace), tube).observe(seconds)

    def buried(self, tube: str, reason: str | None, namespace: str = "") -> None:
        """Record that a task was buried."""
        # A label that is not UTF-8, such as a file name in a reason, would break every later scrape.
        kind = self._reason(reason).encode(errors="replace").decode()
        if kind not in self._seen_reasons:
            if len(self._seen_reasons) < _MAX_REASONS:
                self._seen_reasons.add(kind)
            else:
                kind = "other"
        self._buried.labels(*self._values(namespace), tube, kind).inc()

    # -- labels --------------------------------------------------------------------------------------------------------

    def _values(self, namespace: str) -> tuple[str, ...]:
        """Return the values of the labels that all metrics of tubes have in addition to their own."""
        return (namespace,) if self._label else ()

    def _histogram(self, name: str) -> Histogram:
        description, labels = _TASK_METRICS[name]
        return Histogram(name, description, (*self._label, *labels), registry=None, buckets=BUCKETS)


class _NamespaceSink:
    """The sink for the measurements in one namespace."""

    def __init__(self, collector: Collector, namespace: str) -> None:
        self._collector: Final = collector
        self._namespace: Final = namespace

    def waited(self, tube: str, seconds: float) -> None:
        self._collector.waited(tube, seconds, self._namespace)

    def held(self, tube: str, seconds: float) -> None:
        self._collector.held(tube, seconds, self._namespace)

    def buried(self, tube: str, reason: str | None) -> None:
        self._collector.buried(tube, reason, self._namespace)


def make_families(*tube_labels: str) -> Families:
    """Return the metrics of a scrape, without values. `tube_labels`: labels of tubes in addition to their own."""
    families: Families = {}
    for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, (description, labels) in metrics.items():
            families[name] = kind(name, description, labels=(*tube_labels, *labels) if labels else ())
    return families


def add_folder(families: Families, usage: FolderUsage | None) -> None:
    """Add the disk usage of a folder, if the store is one, to the metrics of a scrape."""
    if usage is not None:
        families["tubes_folder_bytes"].add_metric([], usage.bytes)
        families["tubes_folder_checkpoint_time_seconds"].add_metric([], usage.checkpoint)
        families["tubes_folder_fsyncs_total"].add_metric([], usage.fsyncs)
        families["tubes_folder_fsync_seconds_total"].add_metric([], usage.fsync_seconds)


def add_durations(families: Families, labels: tuple[str, ...], durations: list[Durations]) -> None:
    """Add the quantiles of the durations that workers report. An empty function: all tasks of the tube."""
    for one in sorted(durations, key=lambda one: -one.count)[:_MAX_FUNCTIONS]:
        place = [*labels, one.tube, one.function or ""]
        for kind in ("wait", "run"):
            for q in (50, 95, 99):
                seconds = getattr(one, f"{kind}_p{q}")
                if seconds is not None:
                    families[f"tubes_worker_{kind}_seconds"].add_metric([*place, str(q / 100)], seconds)


def add_tube(families: Families, labels: tuple[str, ...], overview: Overview) -> None:
    """Add one tube with these labels to the metrics of a scrape."""
    counted = overview.statistics
    for state in ("ready", "taken", "delayed", "buried"):
        families["tubes_tasks"].add_metric([*labels, state], counted.tasks[state])
    for call, count in counted.calls.items():
        families["tubes_calls_total"].add_metric([*labels, call], count)
    for metric, value in (
        ("tubes_waiting", counted.waiting),
        ("tubes_paused", counted.paused is not None),
        ("tubes_sessions", overview.sessions),
        ("tubes_lanes", overview.lanes),
        ("tubes_throttled_lanes", overview.throttled_lanes),
        ("tubes_oldest_ready_age_seconds", overview.oldest_ready_age or 0.0),
        ("tubes_due_lag_seconds", overview.due_lag),
        ("tubes_done_total", counted.tasks["done"]),
        ("tubes_expired_total", counted.calls["ttl"]),
        ("tubes_ttr_timeouts_total", counted.calls["ttr"]),
    ):
        families[metric].add_metric(labels, float(value))
