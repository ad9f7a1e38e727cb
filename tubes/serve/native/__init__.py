"""The native API, under `/v1/{namespace}`: tubes, tasks, takes and leases, as `tubes.aio` has them."""

from __future__ import annotations

from typing import Final

from starlette.routing import BaseRoute

from tubes.serve.native import leases, takes, tasks, tubes
from tubes.serve.native.operations import Operation, routes_of
from tubes.serve.service import Service

#: The busiest ones first: routes are tried one after the other.
OPERATIONS: Final[tuple[Operation, ...]] = (
    *takes.OPERATIONS,
    *leases.OPERATIONS,
    *tasks.OPERATIONS,
    *tubes.OPERATIONS,
)


def routes(service: Service) -> list[BaseRoute]:
    """The routes of the native API."""
    return routes_of(service, OPERATIONS)
