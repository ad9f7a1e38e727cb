"""What lmstfy measures, by the names that it has for Prometheus. Each process counts what it did itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tubes.values.overview import Overview

#: The only pool there is.
POOL: Final = "default"
MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Namespaces and queues that have labels of their own.
_MOST: Final = 10_000
_QUEUE: Final = ("pool", "namespace", "queue")
_HTTP: Final = ("pool", "namespace", "api", "method")
#: lmstfy's counters have no such ending, and nothing that says since when they count.
_ENDING: Final = re.compile(rb"^(infra_\w+|# (?:HELP|TYPE) infra_\w+)_total(?=[ {])", re.MULTILINE)
_CREATED: Final = re.compile(rb"^(?:# (?:HELP|TYPE) )?infra_\w+_created[ {].*\n", re.MULTILINE)


def _buckets(first: float, factor: float, count: int) -> list[float]:
    return [first * factor**number for number in range(count)]


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self._registry: Final = CollectorRegistry()
        #: Names that are labels. Clients choose them, and each takes memory for good.
        self._names: Final[set[tuple[str, ...]]] = set()

        def named(kind: Any, name: str, labels: Iterable[str], **more: Any) -> Any:
            return kind(f"infra_lmstfy_{name}", name, labels, registry=self._registry, **more)

        http: dict[str, Any] = {"buckets": _buckets(15, 2.5, 9)}
        jobs: dict[str, Any] = {"buckets": _buckets(15, 3.5, 7)}
        self._latency: Final = named(Histogram, "http_latency_milliseconds", _HTTP, **http)
        self._codes: Final = named(Counter, "http_http_codes", (*_HTTP, "code"))
        self._refused: Final = named(Counter, "http_rate_limit", ("pool", "namespace", "token", "action"))
        self._published: Final = named(Counter, "redis_publish_jobs", ("pool",))
        self._consumed: Final = named(Counter, "redis_consume_jobs", ("pool",))
        self._consumed_multi: Final = named(Counter, "redis_consume_multi_jobs", ("pool",))
        self._deleted: Final = named(Counter, "redis_pool_delete_jobs", ("pool",))
        self._respawned: Final = named(Counter, "redis_deadletter_respawn_jobs", ("pool",))
        self._published_of: Final = named(Counter, "redis_publish_queue_jobs", _QUEUE)
        self._consumed_of: Final = named(Counter, "redis_consume_queue_jobs", _QUEUE)
        self._elapsed: Final = named(Histogram, "redis_job_elapsed_ms", _QUEUE, **jobs)
        self._acked: Final = named(Histogram, "redis_job_ack_elapsed_ms", _QUEUE, **jobs)
        self._timed: Final = named(Gauge, "redis_timer_sizes", ("pool",))
        self._ready: Final = named(Gauge, "redis_queue_sizes", _QUEUE)
        self._dead: Final = named(Gauge, "redis_deadletter_sizes", _QUEUE)

    def _shown(self, *names: str) -> tuple[str, ...]:
        """A namespace, or a namespace and a queue, as labels: '' for those that are too many."""
        if names not in self._names:
            if len(self._names) >= _MOST:
                return ("",) * len(names)
            self._names.add(names)
        return names

    def replied(self, namespace: str, api: str, method: str, status: int, seconds: float) -> None:
        """A request of a client who may be in this namespace ('': that is not known) got a reply."""
        (namespace,) = self._shown(namespace)
        self._codes.labels(POOL, namespace, api, method, status).inc()
        if status < 300:
            self._latency.labels(POOL, namespace, api, method).observe(seconds * 1000)

    def refused(self, namespace: str, token: str, action: str) -> None:
        """A token was used too often."""
        self._refused.labels(POOL, namespace, token, action).inc()

    def published(self, namespace: str, queue: str, jobs: int) -> None:
        """Jobs were published."""
        self._published.labels(POOL).inc(jobs)
        self._published_of.labels(POOL, *self._shown(namespace, queue)).inc(jobs)

    def consumed(self, namespace: str, queue: str, age: float, *, of_several: bool) -> None:
        """A job was consumed, so many milliseconds after it was published."""
        (self._consumed_multi if of_several else self._consumed).labels(POOL).inc()
        labels = POOL, *self._shown(namespace, queue)
        self._consumed_of.labels(*labels).inc()
        self._elapsed.labels(*labels).observe(age)

    def deleted(self, namespace: str, queue: str, age: float) -> None:
        """A job was deleted, so many milliseconds after it was published."""
        self._deleted.labels(POOL).inc()
        self._acked.labels(POOL, *self._shown(namespace, queue)).observe(age)

    def respawned(self, jobs: int) -> None:
        """Dead letters were respawned."""
        self._respawned.labels(POOL).inc(jobs)

    def text(self, seen: dict[str, dict[str, Overview]]) -> bytes:
        """The metrics as Prometheus reads them, with the sizes of all queues as they are now."""
        for gauge in (self._ready, self._dead):
            gauge.clear()
        timed = 0
        for namespace, tubes in seen.items():
            for queue, tube in tubes.items():
                tasks = tube.statistics.tasks
                self._ready.labels(POOL, namespace, queue).set(tasks["ready"])
                self._dead.labels(POOL, namespace, queue).set(tasks["buried"])
                timed += tasks["delayed"] + tasks["taken"]
        self._timed.labels(POOL).set(timed)
        return _ENDING.sub(rb"\1", _CREATED.sub(b"", generate_latest(self._registry)))
