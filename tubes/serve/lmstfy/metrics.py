"""lmstfy's metrics for Prometheus, under lmstfy's names. Each process counts its own requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tubes.values.overview import Overview

#: The only pool.
POOL: Final = "default"
#: Maximum namespaces and queues with labels of their own.
_MAX_LABELS: Final = 10_000
_QUEUE: Final = ("pool", "namespace", "queue")
_HTTP: Final = ("pool", "namespace", "api", "method")
#: The suffix and the creation times that `prometheus_client` adds to counters; lmstfy's counters do not have them.
_TOTAL_SUFFIX: Final = re.compile(rb"^(infra_\w+|# (?:HELP|TYPE) infra_\w+)_total(?=[ {])", re.MULTILINE)
_CREATED: Final = re.compile(rb"^(?:# (?:HELP|TYPE) )?infra_\w+_created[ {].*\n", re.MULTILINE)


def _buckets(first: float, factor: float, count: int) -> list[float]:
    return [first * factor**number for number in range(count)]


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self._registry: Final = CollectorRegistry()
        #: Names used as labels. Clients choose them, and each uses memory until the process ends.
        self._names: Final[set[tuple[str, ...]]] = set()

        def make(kind: Any, name: str, labels: Iterable[str], **options: object) -> Any:
            return kind(f"infra_lmstfy_{name}", name, labels, registry=self._registry, **options)

        http: dict[str, object] = {"buckets": _buckets(15, 2.5, 9)}
        jobs: dict[str, object] = {"buckets": _buckets(15, 3.5, 7)}
        self._latency: Final = make(Histogram, "http_latency_milliseconds", _HTTP, **http)
        self._codes: Final = make(Counter, "http_http_codes", (*_HTTP, "code"))
        self._refused: Final = make(Counter, "http_rate_limit", ("pool", "namespace", "token", "action"))
        self._published: Final = make(Counter, "redis_publish_jobs", ("pool",))
        self._consumed: Final = make(Counter, "redis_consume_jobs", ("pool",))
        self._consumed_multi: Final = make(Counter, "redis_consume_multi_jobs", ("pool",))
        self._deleted: Final = make(Counter, "redis_pool_delete_jobs", ("pool",))
        self._respawned: Final = make(Counter, "redis_deadletter_respawn_jobs", ("pool",))
        self._queue_published: Final = make(Counter, "redis_publish_queue_jobs", _QUEUE)
        self._queue_consumed: Final = make(Counter, "redis_consume_queue_jobs", _QUEUE)
        self._elapsed: Final = make(Histogram, "redis_job_elapsed_ms", _QUEUE, **jobs)
        self._acked: Final = make(Histogram, "redis_job_ack_elapsed_ms", _QUEUE, **jobs)
        self._timed: Final = make(Gauge, "redis_timer_sizes", ("pool",))
        self._ready: Final = make(Gauge, "redis_queue_sizes", _QUEUE)
        self._dead: Final = make(Gauge, "redis_deadletter_sizes", _QUEUE)

    def _labels(self, *names: str) -> tuple[str, ...]:
        """Return a namespace, or a namespace and a queue, as labels: '' beyond `_MAX_LABELS`."""
        if names not in self._names:
            if len(self._names) >= _MAX_LABELS:
                return ("",) * len(names)
            self._names.add(names)
        return names

    def record_reply(self, namespace: str, api: str, method: str, status: int, seconds: float) -> None:
        """Record a reply. `namespace`: '' if it is unused, or the client's rights were not checked."""
        (namespace,) = self._labels(namespace)
        self._codes.labels(POOL, namespace, api, method, status).inc()
        if status < 300:
            self._latency.labels(POOL, namespace, api, method).observe(seconds * 1000)

    def record_refusal(self, namespace: str, token: str, action: str) -> None:
        self._refused.labels(POOL, namespace, token, action).inc()

    def record_published(self, namespace: str, queue: str, jobs: int) -> None:
        self._published.labels(POOL).inc(jobs)
        self._queue_published.labels(POOL, *self._labels(namespace, queue)).inc(jobs)

    def record_consumed(self, namespace: str, queue: str, age: float, *, is_multi: bool) -> None:
        """Record a consumed job, `age` milliseconds after it was published."""
        (self._consumed_multi if is_multi else self._consumed).labels(POOL).inc()
        labels = POOL, *self._labels(namespace, queue)
        self._queue_consumed.labels(*labels).inc()
        self._elapsed.labels(*labels).observe(age)

    def record_deleted(self, namespace: str, queue: str, age: float) -> None:
        """Record a deleted job, `age` milliseconds after it was published."""
        self._deleted.labels(POOL).inc()
        self._acked.labels(POOL, *self._labels(namespace, queue)).observe(age)

    def record_respawned(self, jobs: int) -> None:
        self._respawned.labels(POOL).inc(jobs)

    def text(self, tubes_by_namespace: dict[str, dict[str, Overview]]) -> bytes:
        """Return the metrics in the text format of Prometheus, with the current sizes of all queues."""
        for gauge in (self._ready, self._dead):
            gauge.clear()
        timed = 0
        for namespace, tubes in tubes_by_namespace.items():
            for queue, tube in tubes.items():
                tasks = tube.statistics.tasks
                self._ready.labels(POOL, namespace, queue).set(tasks["ready"])
                self._dead.labels(POOL, namespace, queue).set(tasks["buried"])
                timed += tasks["delayed"] + tasks["taken"]
        self._timed.labels(POOL).set(timed)
        return _TOTAL_SUFFIX.sub(rb"\1", _CREATED.sub(b"", generate_latest(self._registry)))
