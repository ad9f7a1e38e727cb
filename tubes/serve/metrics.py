"""The metrics of the service at `/metrics`: of its requests, and of the tubes that the token may look at."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from types import SimpleNamespace
from typing import Final, cast

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from tubes.backend.retry import Outage
from tubes.errors import TubesError
from tubes.metrics.prometheus import add_durations, add_folder, add_tube, make_families
from tubes.serve.namespaces import NO_NAMESPACE, limit_time
from tubes.serve.service import Service
from tubes.serve.tokens import Token
from tubes.values.timings import Durations

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_REQUESTS: Final = ("tubes_http_requests_total", "Requests by the template of their path.")
_SECONDS: Final = ("tubes_http_request_seconds", "Seconds until the end of the reply, including the wait for a task.")
#: Name of a gauge -> its help text, and the function that reads it.
_GAUGES: Final[dict[str, tuple[str, Callable[[Service], int]]]] = {
    "tubes_http_waiting": (
        "Requests that wait for a task, for room or for a result.",
        lambda one: len(one.polls) - one.polls.streams,
    ),
    "tubes_http_streams": ("Streams, events and selections in progress.", lambda one: one.polls.streams),
    "tubes_http_sessions": ("Sessions of clients in this process.", lambda one: len(one.sessions)),
    "tubes_http_connections": ("Open connections of clients.", lambda one: len(one.connections or ())),
}
#: The number of namespaces whose workers are read at the same time.
_SPACES_AT_ONCE: Final = 20
#: The names of the metrics of requests, as Prometheus shows them.
NAMES: Final = (_REQUESTS[0], _SECONDS[0], *_GAUGES)
#: Upper bounds of the buckets of the histogram in seconds; a request may wait for 600 s.
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 600.0)
#: Methods with a label of their own. Clients choose the method, and each label uses memory.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: The label of an unknown path or method.
_OTHER: Final = "other"
#: Seconds for reading the tubes. Prometheus waits for 10 s.
_TIMEOUT: Final = 8.0


class Metrics:
    """The requests of the public listener of this process, by route, method and class of the status.

    `record` takes less than a microsecond: it looks up a list of counts, one for each bucket of the histogram and one
    above the last bound, and the sum of the seconds. The metrics are computed from these lists on request.
    """

    def __init__(self, service: Service) -> None:
        self._service: Final = service
        #: Templates of paths by the endpoints of their routes.
        self._templates: Final[dict[object, str]] = {}
        self._counts: Final[dict[tuple[object, str, int], list[float]]] = {}
        self._outage: Final = Outage()

    def set_routes(self, routes: Iterable[BaseRoute]) -> None:
        self._templates.update({route.endpoint: route.path_format for route in routes if isinstance(route, Route)})

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        key = (scope["endpoint"], scope["method"], status // 100)
        counts = self._counts.get(key) or self._find(*key)
        counts[bisect_left(BUCKETS, seconds)] += 1
        counts[-1] += seconds

    def _find(self, endpoint: object, method: str, status: int) -> list[float]:
        """Return the counts of a request. Unknown paths, and unknown methods, share their counts."""
        key = (endpoint if endpoint in self._templates else None, method if method in _METHODS else _OTHER, status)
        return self._counts.setdefault(key, [0] * (len(BUCKETS) + 2))

    async def show(self, request: Request) -> Response:
        """Return all metrics of requests, and the metrics of the tubes that the token may look at."""
        token = self._service.authenticate(request.scope)
        await self._service.count(token, "look")
        with self._service.admit(token):
            return Response(await self.text(token), media_type=MEDIA_TYPE)

    async def text(self, token: Token) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        try:
            key = ("metrics", token.grants)
            tubes = await self._service.recent.get("", key, lambda: self._read_tubes(token))
            self._outage.end()
        except TubesError as error:
            self._outage.log("the tubes could not be read", error)
            families = make_families()
            families["tubes_up"].add_metric([], 0)
            tubes = _render(families.values())
        return _render(self._collect_requests()) + tubes

    async def _read_tubes(self, token: Token) -> bytes:
        """Return the metrics of the tubes that a token may look at."""
        namespaces = self._service.namespaces
        started_at = time.perf_counter()
        overviews = await limit_time(namespaces.root, namespaces.read_tubes(token, ages=True), _TIMEOUT)
        families = make_families("namespace")
        families["tubes_up"].add_metric([], 1)
        families["tubes_look_seconds"].add_metric([], time.perf_counter() - started_at)
        add_folder(families, namespaces.root.admin.folder_usage)

        spaces, durations = [*overviews], dict[str, list[Durations]]()
        for start in range(0, len(spaces), _SPACES_AT_ONCE):
            part = spaces[start : start + _SPACES_AT_ONCE]
            found = await asyncio.gather(*(self._read_durations(token, space) for space in part))
            durations |= zip(part, found, strict=True)

        def render() -> bytes:
            for space, tubes in overviews.items():
                for name, overview in tubes.items():
                    add_tube(families, ("" if space == NO_NAMESPACE else space, name), overview)
                add_durations(families, ("" if space == NO_NAMESPACE else space,), durations[space])
            return _render(families.values())

        # In a thread: 10,000 tubes have 250,000 lines.
        return await asyncio.to_thread(render)

    async def _read_durations(self, token: Token, space: str) -> list[Durations]:
        async with self._service.namespaces.visit(space) as opened:
            try:
                found = await limit_time(opened.queue, opened.queue.admin.durations(), _TIMEOUT)
            except TubesError:  # A folder has no workers, and the service may have no right to list them.
                return []
        return [one for one in found if token.may("look", space, one.tube)]

    def _collect_requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(*_REQUESTS, labels=("route", "method", "status"))
        by_route: dict[str, list[float]] = {}
        for (endpoint, method, status), counts in self._counts.items():
            route = self._templates.get(endpoint, _OTHER)
            requests.add_metric((route, method, f"{status}xx"), sum(counts[:-1]))
            by_route[route] = [a + b for a, b in zip(by_route.get(route, [0] * len(counts)), counts, strict=True)]
        latencies = HistogramMetricFamily(*_SECONDS, labels=("route",))
        bounds = [*map(str, BUCKETS), "+Inf"]
        for route, (*counts, total) in by_route.items():
            latencies.add_metric((route,), list(zip(bounds, accumulate(counts), strict=True)), total)
        yield from (requests, latencies)
        for name, (description, read) in _GAUGES.items():
            if name != "tubes_http_connections" or self._service.connections is not None:
                yield GaugeMetricFamily(name, description, read(self._service))


def _render(metrics: Iterable[Metric]) -> bytes:
    return generate_latest(cast("Collector", SimpleNamespace(collect=lambda: metrics)))
