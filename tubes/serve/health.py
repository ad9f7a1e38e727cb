"""Whether the service lives, and whether it is ready for requests."""

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
_PATIENCE: Final = 2.0


def routes(service: Service, version: str) -> list[BaseRoute]:
    """The routes for whoever looks after the service. They need no token."""

    async def live(request: Request) -> Response:
        """It replies, so its event loop turns. `lag`: seconds until the loop came round."""
        began = time.perf_counter()
        await asyncio.sleep(0)
        return json_reply({"status": "live", "lag": round(time.perf_counter() - began, 6)})

    async def ready(request: Request) -> Response:
        """The backend replies, and the service does not end."""
        if service.closing:
            return json_reply({"status": "closing"}, 503)
        try:
            async with asyncio.timeout(_PATIENCE):
                await service.namespaces.ping()
        except Exception:  # Whatever it is, requests would meet it, too.
            return json_reply({"status": "backend away"}, 503)
        return json_reply({"status": "ready"})

    async def about(request: Request) -> Response:
        return json_reply({"version": version})

    return [
        Route("/health/live", live, name="live"),
        Route("/health/ready", ready, name="ready"),
        Route("/version", about, name="version"),
    ]
