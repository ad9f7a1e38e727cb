"""lmstfy's API, under `/api/{namespace}/{queue}`: a queue is a tube, a job is a task.

docs/howto/other-apis.md documents it. `calls.py` has the code that all requests share; `jobs.py` and `dead_letters.py`
have the handlers. `admin.py` is the API for administrators, `metrics.py` the metrics at `/metrics`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.routing import BaseRoute, Route

from tubes.serve.lmstfy import admin, dead_letters, jobs
from tubes.serve.lmstfy.calls import Endpoint, Handler
from tubes.serve.lmstfy.metrics import Metrics as LmstfyMetrics
from tubes.serve.metrics import Metrics
from tubes.serve.service import Service

_QUEUE: Final = "/api/{namespace:name}/{queue:name}"
#: By path and method: the handler, and the right that it requires.
_HANDLERS: Final[dict[str, dict[str, tuple[Handler, str]]]] = {
    "": {"PUT": (jobs.publish, "put"), "GET": (jobs.consume, "take"), "DELETE": (jobs.destroy, "manage")},
    "/job/{job:name}": {
        "DELETE": (jobs.delete, "take"),
        "PUT": (jobs.republish, "put"),
        "GET": (jobs.peek_job, "look"),
    },
    "/bulk": {"PUT": (jobs.publish_bulk, "put")},
    "/peek": {"GET": (jobs.peek, "look")},
    "/size": {"GET": (partial(jobs.size, state="ready"), "look")},
    "/deadletter": {
        "GET": (dead_letters.peek, "look"),
        "PUT": (dead_letters.respawn, "manage"),
        "DELETE": (dead_letters.delete, "manage"),
    },
    "/deadletter/size": {"GET": (partial(jobs.size, state="buried"), "look")},
}
#: By path and method: the status with which a request counts against the limits of a token.
_COUNTED: Final = {"": {"PUT": 201, "GET": 200}, "/bulk": {"PUT": 201}}


def routes(service: Service, service_metrics: Metrics, version: str) -> tuple[list[BaseRoute], list[BaseRoute]]:
    """Return the routes for clients and the routes for administrators."""
    metrics = LmstfyMetrics()
    public: list[BaseRoute] = [
        Route(_QUEUE + path, Endpoint(service, metrics, _QUEUE + path, handlers, _COUNTED.get(path)))
        for path, handlers in _HANDLERS.items()
    ]
    public.append(Route("/api/{rest:path}", Endpoint(service, metrics, "", {})))  # It replies 404.
    return public, admin.routes(service, metrics, service_metrics, version)
