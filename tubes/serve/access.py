"""The outermost part: request ids, a line of JSON for each request, and paths whose escapes are not read yet."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tubes.errors import TubesError
from tubes.serve.bodies import BODIES, NOTES, Bodies
from tubes.serve.problems import ClientGone, problem, status_of

_log: Final = logging.getLogger("tubes.serve")
#: A scope may have here what makes a reply of an error and the path, instead of `problem`.
REPLY_TO_ERROR: Final = "tubes.reply_to_error"
#: The status in the log of a request whose client has left.
GONE: Final = 499
#: What no log has: tokens, wherever a client has put them, leases and sessions.
_SECRET: Final = re.compile(r"(tubes_[0-9a-zA-Z]+_|/(?:leases|sessions)/(?=[^/]{32})|^/token/[^/]*/)[^/]+")
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")


def is_of_a_page(scope: Scope) -> bool:
    """Whether a page in a browser sends this request: also one for a picture or a script, which has no origin."""
    return any(
        name in (b"origin", b"referer") or (name == b"sec-fetch-site" and value not in (b"same-origin", b"none"))
        for name, value in scope.get("headers", ())
    )


class _Name(Convertor[str]):
    """One segment of a path, unescaped: the name of a tube may have a `/`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", _Name())


def noted(scope: Scope) -> dict[str, Any]:
    """What the line of this request in the access log says besides: `token`, the id of a token, for example.

    `path`: instead of the path of the request, if a secret stands there.
    """
    notes: dict[str, Any] = scope.setdefault(NOTES, {})
    return notes


#: A string as JSON. The rest of a line is written out: it is as much work as half a request otherwise.
_text: Final = json.encoder.encode_basestring_ascii


def _moment() -> str:
    """Now, in UTC, to the millisecond."""
    now = time.time()
    return f"{_second(int(now))}.{int(now * 1000) % 1000:03}Z"


@lru_cache(2)
def _second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


class Access:
    """An application, with request ids, an access log, and a reply to every error.

    `write`: gets a line for each request; None: there is no log. `bodies`: bounds the bodies of all requests.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], object] | None, bodies: Bodies | None = None) -> None:
        self._app: Final = app
        self._write: Final = write
        self._bodies: Final = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        raw: bytes | None = scope.get("raw_path")
        path: str = quote(scope["path"]) if raw is None else raw.partition(b"?")[0].decode("ascii", "replace")
        request_id = b""
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                request_id = value
        request_id = request_id or secrets.token_hex(8).encode()
        notes: dict[str, Any] = {}
        inner: Scope = {**scope, "path": path, NOTES: notes, BODIES: self._bodies}
        status, size = 0, 0

        async def tell(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(inner, receive, tell)
        except ClientGone:
            status = status or GONE
        except Exception as error:
            # What went wrong inside is for whoever runs the service.
            if status_of(error) == 500:
                _log.error("request %s failed", request_id.decode(), exc_info=error)
            elif status_of(error) in (503, 507) and isinstance(error, TubesError):
                _log.warning("request %s failed: %s", request_id.decode(), error)
            if status:  # Half of a reply is sent: only the end of the connection says that there is no other half.
                raise
            reply: Callable[[BaseException, str], Response] = inner.get(REPLY_TO_ERROR, problem)
            await reply(error, path)(inner, receive, tell)
        finally:
            if self._bodies is not None:
                self._bodies.remove(inner)
            if self._write is not None:
                client = scope.get("client") or ("",)
                shown = notes.pop("path", None) or _SECRET.sub(r"\1***", path)
                more = "".join(f', "{name}": {_text(str(note))}' for name, note in notes.items())
                self._write(
                    f'{{"time": "{_moment()}", "request_id": "{request_id.decode()}", "client": {_text(client[0])}'
                    f', "method": {_text(scope["method"])}, "path": {_text(shown)}, "status": {status}, "bytes": {size}'
                    f', "seconds": {time.perf_counter() - began:.6f}{more}}}'
                )
