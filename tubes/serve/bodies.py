"""Read the bodies of requests within limits, and write the bodies of replies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Final, NoReturn

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope

from tubes.errors import InvalidOption, cut
from tubes.serve.problems import ClientDisconnected, to_json

_CLOSE: Final = {"connection": "close"}
#: Keys of a scope: the `Bodies` that count its body, and its notes for the access log, such as `token`.
BODIES: Final = "tubes.bodies"
NOTES: Final = "tubes.noted"
#: Key of a scope: the id of the token and the number of body bytes counted so far.
_COUNT: Final = "tubes.body"


class Bodies:
    """Count the bytes of the bodies of running requests: at most `limit` in all and `limit_of_token` per token."""

    def __init__(self, limit: int, limit_of_token: int) -> None:
        self._limit: Final = limit
        self._limit_of_token: Final = limit_of_token
        self._sizes: Final[dict[str, int]] = {}
        self._total = 0

    def add(self, scope: Scope, size: int) -> None:
        """Count more bytes of a body. Raise `HTTPException` beyond a limit."""
        token, counted = scope.get(_COUNT) or (scope[NOTES].get("token", ""), 0)
        scope[_COUNT] = token, counted + size
        token_size = self._sizes[token] = self._sizes.get(token, 0) + size
        self._total += size
        if self._total > self._limit:
            raise HTTPException(503, f"the bodies of all requests together have more than {self._limit} bytes", _CLOSE)
        if token and token_size > self._limit_of_token:
            detail = f"the token may have {self._limit_of_token} bytes of bodies in requests at the same time"
            raise HTTPException(429, detail, _CLOSE)

    def remove(self, scope: Scope) -> None:
        """Forget the body of a request that has ended."""
        token, size = scope.get(_COUNT, ("", 0))
        if size:
            self._total -= size
            self._sizes[token] -= size
            if not self._sizes[token]:
                del self._sizes[token]


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the body of a request. Raise `HTTPException(413)` as soon as it is longer than `limit` bytes.

    Raise `HTTPException(415)` for a compressed body: the consumer of the task would not know that it is compressed.
    """
    for name, value in scope["headers"]:
        # Refuse before the first `receive`, which sends `100 Continue` to a client that waits for it.
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
            raise ClientDisconnected
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
    # The remaining body is not read, so the connection cannot be reused.
    return HTTPException(413, f"the body is longer than {limit} bytes", _CLOSE)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, which Python's decoder accepts."""
    raise ValueError(f"{name} is not JSON")


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse equal members: a check of the client may have seen one of them, and the last one would count."""
    members = dict(pairs)
    if len(members) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"an object has the member {cut(repr, name)} more than once")
    return members


_decode: Final = json.JSONDecoder(parse_constant=refuse_constant).decode
_decode_strictly: Final = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=_make_object).decode


def from_json(body: bytes, decode: Callable[[str], object] = _decode) -> object:
    """Decode a JSON text in UTF-8. Raise ValueError if it is not valid."""
    try:
        return decode(body.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_object(body: bytes) -> dict[str, object]:
    """Decode a body that is a JSON object without equal members; an empty body is {}."""
    if not body:
        return {}
    try:
        value = from_json(body, _decode_strictly)
    except ValueError as error:
        rule = f"must be JSON in UTF-8: {error}"
        raise InvalidOption(option="body", value=body[:80], rule=rule) from None
    if not isinstance(value, dict):
        raise InvalidOption(option="body", value=body[:80], rule="must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def encode_data(data: object) -> bytes:
    """Encode data from a JSON body for storage, so that programs with the codec `json` can read it."""
    try:
        return to_json(data)
    except (ValueError, RecursionError) as error:  # A lone surrogate, or a number like 1e999.
        raise InvalidOption(option="data", value="...", rule=f"must be JSON: {error}") from None


def encode_reply(value: object) -> bytes:
    """Encode a part of a reply. Names and reasons may have lone surrogates, which only escapes can express."""
    try:
        return to_json(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def json_reply(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode_reply(value), status, headers, "application/json")
