"""Health checks: liveness, readiness and the version."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tubes.serve.bodies import json_reply
from tubes.serve.service import Service

#: Seconds that the backend has to reply.
_PING_TIMEOUT: Final = 2.0


def routes(service: Service, version: str) -> list[BaseRoute]:
    """Return the routes for monitoring. They require no token."""

    async def live(request: Request) -> Response:
        """Report that the event loop runs. `lag`: seconds for one iteration of the loop."""
        started = time.perf_counter()
        await asyncio.sleep(0)
        return json_reply({"status": "live", "lag": round(time.perf_counter() - started, 6)})

    async def ready(request: Request) -> Response:
        """Report whether the backend replies and the service is not stopping."""
        if service.is_closing:
            return json_reply({"status": "closing"}, 503)
        try:
            async with asyncio.timeout(_PING_TIMEOUT):
                await service.namespaces.ping()
        except Exception:  # Requests would fail with the same error.
            return json_reply({"status": "backend away"}, 503)
        return json_reply({"status": "ready"})

    async def show_version(request: Request) -> Response:
        return json_reply({"version": version})

    return [
        Route("/health/live", live, name="live"),
        Route("/health/ready", ready, name="ready"),
        Route("/version", show_version, name="version"),
    ]
