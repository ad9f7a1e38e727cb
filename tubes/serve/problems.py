"""Convert errors to replies: `application/problem+json` of RFC 9457, with the facts of a `TubesError`."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from tubes import errors
from tubes.errors import TubesError, cut
from tubes.values.codecs import JsonCodec

MEDIA_TYPE: Final = "application/problem+json"
to_json: Final = JsonCodec().encode
_STATUSES: Final[tuple[tuple[int, tuple[type[TubesError], ...]], ...]] = (
    (400, (errors.InvalidOption, errors.OptionNotSupported, errors.CodecError, errors.DriverNotFound)),
    (403, (errors.StoreReadOnly,)),
    (404, (errors.TubeNotFound, errors.TaskNotFound, errors.SessionNotFound)),
    (409, (errors.TaskNotTaken, errors.DuplicateKey, errors.TubeExists, errors.TubeBusy, errors.TubeFull)),
    (409, (errors.DriverExists,)),
    (502, (errors.CallFailed,)),
    (503, (errors.ConnectionLost, errors.QueueClosed, errors.StoreBusy, errors.StoreFailed, errors.ServerRefused)),
    (504, (errors.CallTimeout,)),
    (507, (errors.ServerFull, errors.StoreFull)),
)
#: Facts of errors that depend on the state of a task or tube.
_STATE_FACTS: Final = frozenset({"states", "current"})
#: The start of the rule in an error about a missing member.
REQUIRED: Final = "is required"
#: Default `Retry-After` in seconds, by status.
_RETRY_AFTER: Final = {429: "1", 503: "1"}


class ClientDisconnected(Exception):
    """The client has disconnected, so no reply can be sent."""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error; 500 means a bug."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, TubesError) and not _STATE_FACTS.isdisjoint(error.facts):
        return 409
    return next((status for status, kinds in _STATUSES if isinstance(error, kinds)), 500)


def may_have_changed(error: BaseException) -> bool:
    """True if the backend may have made the change that failed with this error: it did not reply."""
    return status_of(error) >= 500 and not isinstance(error, (HTTPException, ClientDisconnected))


def problem(error: BaseException, instance: str = "") -> Response:
    """Return the reply to a request that failed with this error.

    Details of the backend, such as hosts and paths, are written to the log of the service but not sent to clients.
    """
    status = status_of(error)
    members: dict[str, object] = {}
    headers: dict[str, str] = {}
    if isinstance(error, TubesError) and status not in (500, 503, 507):
        kind = _slug(type(error).__name__ if _STATE_FACTS.isdisjoint(error.facts) else "Conflict")
        facts = {
            f"fact_{name}" if name in _RESERVED else name: _fact_json(value)
            for name, value in error.facts.items()
            if name != "url"
        }
        members = {"detail": _detail(error)} | facts
    elif isinstance(error, HTTPException):
        kind = _slug(HTTPStatus(status).phrase)
        members = {"detail": error.detail}
        headers |= dict(error.headers or {})
    else:
        kind = _slug(type(error).__name__ if isinstance(error, TubesError) else "internal-error")
    if status in _RETRY_AFTER:
        headers.setdefault("retry-after", _RETRY_AFTER[status])
    body = {"type": f"/problems/{kind}", "title": kind.replace("-", " "), "status": status, **members}
    if instance:
        body["instance"] = instance
    return Response(to_json(body), status, headers, MEDIA_TYPE)


#: Members defined by RFC 9457.
_RESERVED: Final = frozenset({"type", "title", "status", "detail", "instance"})


def _detail(error: TubesError) -> str:
    """Return the text of an error, with terms of HTTP in place of terms of Python."""
    facts = error.facts
    if type(error) is errors.TubeNotFound:
        text = f"there is no tube {facts['name']}: PUT creates it"
    elif type(error) is errors.StoreReadOnly:
        text = "this shows a folder as it was when it was opened, without workers and audit, and changes nothing"
    elif type(error) is errors.InvalidOption:
        is_missing = facts["rule"].startswith(REQUIRED)
        value_text = "" if is_missing else f": {cut(_as_json, facts['value'])}"
        text = f"{facts['option']}{value_text}: {facts['rule']}"
        if "item" in facts:
            text = f"item {facts['item']}: {text}"
    else:
        text = str(error)
    return text.encode(errors="replace").decode()


def _as_json(value: object) -> str:
    """Return a value in the notation of a request."""
    if isinstance(value, (str, bytes)):
        return (value or '""') if isinstance(value, str) else value.decode(errors="replace")
    return to_json(value).decode(errors="replace")


def _slug(name: str) -> str:
    """Convert `TaskNotTaken` and `Not Found` to `task-not-taken` and `not-found`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])| ", "-", name).lower()


def _fact_json(value: object) -> object:
    """Convert a fact to a JSON value; long values and types that JSON does not have become text."""
    if isinstance(value, str):
        return cut(lambda text: str(text).encode(errors="replace").decode(), value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return cut(_as_json, value).encode(errors="replace").decode()
