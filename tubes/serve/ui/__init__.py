"""The dashboard: static files under `/ui/`, which use only the native API of the same service."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import PurePath
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

#: File suffix -> media type. Other files in this folder are not served.
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
#: The page loads nothing from other hosts, sends nothing to them, and cannot be framed.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
#: A line that is a comment. Browsers do not need these, and they are a part of the size of the page.
_COMMENT: Final = re.compile(rb"^ *//.*", re.MULTILINE)


def routes() -> list[BaseRoute]:
    """Return the routes of the page. The files are read and compressed once, here."""
    found: list[BaseRoute] = [Route(path, _redirect, name=path) for path in ("/", "/ui")]
    for file in files(__name__).iterdir():
        suffix = PurePath(file.name).suffix
        if suffix in _MEDIA_TYPES:
            path = "/ui/" if file.name == "index.html" else f"/ui/{file.name}"
            content = file.read_bytes() if suffix != ".js" else _COMMENT.sub(b"", file.read_bytes())
            found.append(Route(path, _serve_file(content, _MEDIA_TYPES[suffix]), name=path))
    return found


def _serve_file(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    compressed = gzip.compress(content, mtime=0)
    etag = f'W/"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {**_HEADERS, "etag": etag}

    async def serve(request: Request) -> Response:
        if etag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(compressed, 200, {**headers, "content-encoding": "gzip"}, media_type)
        return Response(content, 200, headers, media_type)

    return serve


async def _redirect(request: Request) -> Response:
    """Redirect to the page by a relative path: a proxy may have removed the start of the path of this request."""
    return Response(None, 307, {"location": "ui/", "cache-control": "no-cache"})
