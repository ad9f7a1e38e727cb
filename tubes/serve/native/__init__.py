"""The native API, under `/v1/{namespace}`: tubes, tasks, takes and leases as in `tubes.aio`."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tubes import __version__
from tubes.serve.native import service, streams, takes, tasks, tubes
from tubes.serve.native.openapi import description
from tubes.serve.native.operations import Endpoint, Operation
from tubes.serve.problems import to_json
from tubes.serve.service import Service

_MODULES: Final = (takes, tasks, tubes, service, streams)
#: All operations, most used first, since routes are tried in this order. In each module a path that ends with a fixed
#: word comes before the path with a name in its place.
OPERATIONS: Final = tuple(
    dict.fromkeys(
        one
        for operations in ((takes.take, tasks.put_task), *(vars(module).values() for module in _MODULES))
        for one in sorted(
            (one for one in operations if isinstance(one, Operation)), key=lambda one: one.path.endswith("}")
        )
    )
)


def routes(state: Service) -> list[BaseRoute]:
    """Return the routes of the native API and of its description."""
    body = to_json(description(OPERATIONS, __version__))

    async def openapi(request: Request) -> Response:
        return Response(body, 200, None, "application/json")

    by_path: dict[str, dict[str, Operation]] = {}
    for one in OPERATIONS:
        by_path.setdefault(one.path, {})[one.method] = one
    return [
        *(Route(path.replace("}", ":name}"), Endpoint(state, methods), name=path) for path, methods in by_path.items()),
        Route("/openapi.json", openapi, name="openapi"),
    ]
