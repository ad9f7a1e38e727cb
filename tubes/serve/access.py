"""The outermost layer: request ids, the access log (a line of JSON per request), and paths before `%` decoding."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tubes.errors import Facts, TubesError
from tubes.serve.bodies import BODIES, NOTES, Bodies
from tubes.serve.problems import ClientDisconnected, problem, status_of

_log: Final = logging.getLogger("tubes.serve")
#: Key of a scope: a function of the error and the path that returns the reply, used instead of `problem`.
REPLY_TO_ERROR: Final = "tubes.reply_to_error"
#: The logged status of a request whose client disconnected.
CLIENT_CLOSED: Final = 499
#: Secrets in paths, which are not logged: tokens, wherever a client has put them, leases and sessions.
_SECRET: Final = re.compile(r"(tubes_[0-9a-zA-Z]+_|/(?:leases|sessions)/(?=[^/]{32})|^/token/[^/]*/)[^/]+")
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")


def is_from_browser(scope: Scope, *, is_safe: bool = True) -> bool:
    """True if a web page sends this request, including requests for images and scripts, which have no origin.

    `is_safe`: False for a GET with effects. A page can keep the browser from sending all headers but its name.
    """
    return any(
        name in (b"origin", b"referer")
        or (name == b"sec-fetch-site" and value not in (b"same-origin", b"none"))
        or (name == b"user-agent" and value.startswith(b"Mozilla/") and not is_safe)
        for name, value in scope.get("headers", ())
    )


def _page_headers(scope: Scope) -> dict[bytes, str]:
    """Return the headers that tell which page sends a request. Raise `HTTPException(400)` if one is repeated."""
    headers: dict[bytes, str] = {}
    for name, value in scope.get("headers", ()):
        if name in (b"host", b"origin", b"referer", b"sec-fetch-site") and name in headers:
            raise HTTPException(400, f"the header {name.decode()} is given more than once")
        headers[name] = value.decode("latin-1")
    return headers


def _is_at(page: str, host: str | None, scheme: str | None = None) -> bool:
    """Return True if the address of a page has this header `Host`: in any case, and with or without the default port.

    `scheme`: None accepts the page's own.
    """
    start, _, rest = page.lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(start, "")
    authority = rest.partition("/")[0].removesuffix(port)
    return bool(authority) and (host or "").lower().removesuffix(port) == authority and scheme in (start, None)


def check_page(scope: Scope, is_local: Callable[[str], bool]) -> None:
    """Raise `HTTPException` if the browser says that a page from another address sends this request.

    `is_local`: called with the header `Host`; False refuses the request, too.
    """
    headers = _page_headers(scope)
    # A link in another page or file may lead to the dashboard, which cannot be framed.
    is_link = scope["path"] == "/ui/" and headers.get(b"sec-fetch-dest") == "document" and scope.get("method") == "GET"
    pages = [headers[name] for name in (b"origin", b"referer") if name in headers]
    if (
        not all(_is_at(page, headers.get(b"host"), scope["scheme"]) for page in pages)
        or not (is_link or headers.get(b"sec-fetch-site", "none") in ("same-origin", "none"))
        or not is_local(headers.get(b"host", "localhost"))
    ):
        raise HTTPException(403, "this address accepts only programs on its own machine, and its own pages")


class OwnPages:
    """An application whose tasks and tubes are changed only by programs and by its own pages.

    Otherwise any page open in the browser of a user could send a form to it. It may be behind a proxy that changes the
    scheme or the header `Host`, so the browser decides which page is its own, or else the host of the page's address.
    Own pages send JSON, which no form can. A GET has no effect: pages can make browsers send it without these headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app: Final = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
            headers = _page_headers(scope)
            site, host = headers.get(b"sec-fetch-site"), headers.get(b"host")
            pages = [headers[name] for name in (b"origin", b"referer") if name in headers]
            is_own = site in ("same-origin", "none") or (site is None and all(_is_at(page, host) for page in pages))
            if not is_own:
                raise HTTPException(403, "only programs and pages of this address may change something")
            has_body = b"transfer-encoding" in headers or headers.get(b"content-length", "0") != "0"
            if (site is not None or pages) and has_body:
                media_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
                if media_type != "application/json":
                    raise HTTPException(415, "pages must send JSON, with the header Content-Type: application/json")
        await self._app(scope, receive, send)


class _NameConvertor(Convertor[str]):
    """One segment of a path, decoded: the name of a tube may contain a `/`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", _NameConvertor())


def notes_of(scope: Scope) -> dict[str, object]:
    """Return the extra members of this request's line in the access log, such as `token`, the id of its token.

    `path` replaces the path of the request if that contains a secret.
    """
    notes: dict[str, object] = scope.setdefault(NOTES, {})
    return notes


#: Encode a string as JSON. The access log formats the line itself: a JSON encoder would cost half as much as a request.
_quote: Final = json.encoder.encode_basestring_ascii


def _raw_prefix(path: str, prefix: str) -> str:
    """Return the start of the encoded path that decodes to `prefix`, or `prefix` itself."""
    if not prefix or path.startswith(f"{prefix}/"):
        return prefix
    size = end = -1
    for segment in path.split("/"):  # Decode each segment once: clients without a token choose the length of the path.
        size, end = size + 1 + len(unquote(segment)), end + 1 + len(segment)
        if size >= len(prefix):
            break
    return path[:end] if unquote(path[:end]) == prefix else prefix


class Access:
    """Wrap an application: add request ids, an access log, and a reply to every error.

    `write`: called with a line for each request; None: no log. `bodies`: limits the bodies of all requests.
    `record`: called with the scope, status and seconds of each request, for metrics.
    """

    def __init__(
        self,
        app: ASGIApp,
        write: Callable[[str], object] | None,
        bodies: Bodies | None = None,
        record: Callable[[Scope, int, float], None] | None = None,
    ) -> None:
        self._app: Final = app
        self._write: Final = write
        self._bodies: Final = bodies
        self._record: Final = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        raw: bytes | None = scope.get("raw_path")
        path: str = quote(scope["path"]) if raw is None else raw.partition(b"?")[0].decode("ascii", "replace")
        request_id = b""
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]  # Not all servers strip the end.
        for name, value in headers:
            if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                request_id = value
        request_id = request_id or secrets.token_hex(8).encode()
        notes: Facts = {}
        prefix = _raw_prefix(path, scope.get("root_path", ""))
        own: Facts = {"path": path, "root_path": prefix, "path_params": {}, "endpoint": None, "headers": headers}
        # With an `app`, routes raise an error for a wrong method; otherwise they would reply with plain text.
        inner: Scope = {**scope, **own, "app": self._app, NOTES: notes, BODIES: self._bodies}
        status, size = 0, 0

        async def send_noting(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(inner, receive, send_noting)
        except ClientDisconnected:
            status = status or CLIENT_CLOSED
        except Exception as error:
            # Log internal errors; their details are not sent to clients.
            if status_of(error) == 500:
                _log.error("request %s failed", request_id.decode(), exc_info=error)
            elif status_of(error) in (503, 507) and isinstance(error, TubesError):
                _log.warning("request %s failed: %s", request_id.decode(), error)
            if status:  # Part of a reply was sent: only closing the connection shows that it is incomplete.
                raise
            reply: Callable[[BaseException, str], Response] = inner.get(REPLY_TO_ERROR, problem)
            await reply(error, path)(inner, receive, send_noting)
        finally:
            if self._bodies is not None:
                self._bodies.remove(inner)
            seconds = time.perf_counter() - started
            if self._record is not None:
                self._record(inner, status or CLIENT_CLOSED, seconds)
            if self._write is not None:
                client = scope.get("client") or ("",)
                logged_path = notes.pop("path", None) or _SECRET.sub(r"\1***", path)
                extra = "".join(f', "{name}": {_quote(str(note))}' for name, note in notes.items())
                now = datetime.now(UTC).isoformat(timespec="milliseconds")[:-6]
                self._write(
                    f'{{"time": "{now}Z", "request_id": "{request_id.decode()}", "client": {_quote(client[0])}'
                    f', "method": {_quote(scope["method"])}, "path": {_quote(logged_path)}, "status": {status}'
                    f', "bytes": {size}, "seconds": {seconds:.6f}{extra}}}'
                )
