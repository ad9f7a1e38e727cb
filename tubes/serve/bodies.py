"""The bodies of requests, within their limits, and the bodies of replies."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope

from tubes.errors import InvalidOption
from tubes.serve.problems import ClientGone
from tubes.values.codecs import JsonCodec

_CLOSE: Final = {"connection": "close"}
#: In a scope: the `Bodies` that count its body, and its notes for the access log, `token` among them.
BODIES: Final = "tubes.bodies"
NOTES: Final = "tubes.noted"
#: In a scope: the id of the token, and the bytes of the body that are counted.
_COUNTED: Final = "tubes.body"
to_json: Final = JsonCodec().encode


class Bodies:
    """Counts the bytes of the bodies of requests in work: at most `limit` in all, `limit_of_token` per token."""

    def __init__(self, limit: int, limit_of_token: int) -> None:
        self._limit: Final = limit
        self._limit_of_token: Final = limit_of_token
        self._sizes: Final[dict[str, int]] = {}
        self._total = 0

    def add(self, scope: Scope, size: int) -> None:
        """Count more bytes of a body. Raise `HTTPException` beyond a limit."""
        token, before = scope.get(_COUNTED) or (scope[NOTES].get("token", ""), 0)
        scope[_COUNTED] = token, before + size
        of_token = self._sizes[token] = self._sizes.get(token, 0) + size
        self._total += size
        if self._total > self._limit:
            raise HTTPException(503, f"the bodies of all requests are longer than {self._limit} bytes", _CLOSE)
        if token and of_token > self._limit_of_token:
            detail = f"the token may have {self._limit_of_token} bytes of bodies in requests at the same time"
            raise HTTPException(429, detail, _CLOSE)

    def remove(self, scope: Scope) -> None:
        """Forget the body of a request that has ended."""
        token, size = scope.get(_COUNTED, ("", 0))
        if size:
            self._total -= size
            self._sizes[token] -= size
            if not self._sizes[token]:
                del self._sizes[token]


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body of a request. Raises `HTTPException(413)` as soon as it is longer than so many bytes.

    415: it is packed. Whoever takes it would not know that.
    """
    for name, value in scope["headers"]:
        # Refused before the client is told to go on, if it waits for that.
        if name == b"content-length" and (len(value) > 15 or int(value) > limit):
            raise _too_large(limit)
        if name == b"content-encoding" and value.lower() != b"identity":
            raise HTTPException(415, "the body must not have a content-encoding", _CLOSE)
    bodies: Bodies | None = scope.get(BODIES)
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if part := message.get("body", b""):
            parts.append(part)
            size += len(part)
            if bodies is not None:
                bodies.add(scope, len(part))
        has_more = message.get("more_body", False)
    if size > limit:
        raise _too_large(limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> HTTPException:
    # The rest of the body is not read, so the connection cannot be used again.
    return HTTPException(413, f"the body is longer than {limit} bytes", _CLOSE)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode: Final = json.JSONDecoder(parse_constant=_constant).decode


def from_json(body: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError."""
    try:
        return _decode(body.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_of(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is; {} if it is empty."""
    if not body:
        return {}
    try:
        found = from_json(body)
    except ValueError as error:
        rule = f"must be JSON in UTF-8: {error}"
        raise InvalidOption(option="body", value=body[:80], rule=rule) from None
    if not isinstance(found, dict):
        raise InvalidOption(option="body", value=body[:80], rule="must be a JSON object")
    return found  # pyright: ignore[reportUnknownVariableType]


def encoded(data: object) -> bytes:
    """Data from a JSON body as it is stored, so that programs with the codec `json` read it."""
    try:
        return to_json(data)
    except (ValueError, RecursionError) as error:  # Half of a surrogate pair, or a number like 1e999.
        raise InvalidOption(option="data", value="...", rule=f"must be JSON: {error}") from None


def json_reply(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A reply that is JSON."""
    return Response(to_json(value), status, headers, "application/json")
