"""A Starlette app that reads a body and says hello, on the same uvicorn as the service."""

from __future__ import annotations

import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def hello(request: Request) -> JSONResponse:
    """Read the body and say hello."""
    await request.json()
    return JSONResponse({"hello": "world"}, 201)


def main() -> None:
    """Serve on a free port and print it to stderr."""
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stderr.write(f"at http://127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stderr.flush()
    app = Starlette(routes=[Route("/hello", hello, methods=["POST"])])
    config = uvicorn.Config(app, http="httptools", loop="uvloop", log_level="warning", access_log=False, ws="none")
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
