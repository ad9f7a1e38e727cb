"""Errors as replies: `application/problem+json` of RFC 9457, made of the facts of a `TubesError`."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from tubes import errors
from tubes.errors import TubesError, cut
from tubes.values.codecs import JsonCodec

MEDIA_TYPE: Final = "application/problem+json"
_json: Final = JsonCodec().encode
_STATUSES: Final[tuple[tuple[int, tuple[type[TubesError], ...]], ...]] = (
    (400, (errors.InvalidOption, errors.OptionNotSupported, errors.CodecError, errors.DriverNotFound)),
    (404, (errors.TubeNotFound, errors.TaskNotFound, errors.SessionNotFound)),
    (409, (errors.TaskNotTaken, errors.DuplicateKey, errors.TubeExists, errors.TubeBusy, errors.TubeFull)),
    (409, (errors.DriverExists,)),
    (502, (errors.CallFailed,)),
    (503, (errors.ConnectionLost, errors.QueueClosed, errors.StoreBusy, errors.StoreFailed, errors.ServerRefused)),
    (504, (errors.CallTimeout,)),
    (507, (errors.ServerFull, errors.StoreFull)),
)
#: Facts of errors that depend on the state of a task or tube.
_STATE: Final = frozenset({"states", "current"})
#: The beginning of the rule in an error about a missing member.
REQUIRED: Final = "is required"
#: Seconds after which a client may try again where the error says no other.
_RETRY_AFTER: Final = {429: "1", 503: "1"}


class ClientGone(Exception):
    """The client has left: there is nobody to reply to."""


def status_of(error: BaseException) -> int:
    """The status of an error; 500: it is a bug."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, TubesError) and not _STATE.isdisjoint(error.facts):
        return 409
    return next((status for status, kinds in _STATUSES if isinstance(error, kinds)), 500)


def problem(error: BaseException, instance: str = "") -> Response:
    """The reply to a request that ended with this error.

    What a backend says of itself, hosts and paths for example, is for the log of the service, not for clients.
    """
    status = status_of(error)
    said: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if isinstance(error, TubesError) and status not in (500, 503, 507):
        kind = _slug(type(error).__name__ if _STATE.isdisjoint(error.facts) else "Conflict")
        facts = {f"fact_{name}" if name in _OWN else name: _fact(value) for name, value in error.facts.items()}
        said = {"detail": _detail(error)} | facts
    elif isinstance(error, HTTPException):
        kind = _slug(HTTPStatus(status).phrase)
        said = {"detail": error.detail}
        headers |= dict(error.headers or {})
    else:
        kind = _slug(type(error).__name__ if isinstance(error, TubesError) else "internal-error")
    if status in _RETRY_AFTER:
        headers.setdefault("retry-after", _RETRY_AFTER[status])
    body = {"type": f"/problems/{kind}", "title": kind.replace("-", " "), "status": status, **said}
    if instance:
        body["instance"] = instance
    return Response(_json(body), status, headers, MEDIA_TYPE)


#: Members that RFC 9457 gives a meaning.
_OWN: Final = frozenset({"type", "title", "status", "detail", "instance"})


def _detail(error: TubesError) -> str:
    """What an error says, in the words of HTTP where those of Python would not help."""
    facts = error.facts
    if type(error) is errors.TubeNotFound:
        said = f"there is no tube {facts['name']}: PUT creates it"
    elif type(error) is errors.InvalidOption:
        is_missing = facts["rule"].startswith(REQUIRED)
        shown = "" if is_missing else f": {cut(_as_json, facts['value'])}"
        said = f"{facts['option']}{shown}: {facts['rule']}"
        if "item" in facts:
            said = f"item {facts['item']}: {said}"
    else:
        said = str(error)
    return said.encode(errors="replace").decode()


def _as_json(value: object) -> str:
    """A value as it stood in a request."""
    if isinstance(value, (str, bytes)):
        return (value or '""') if isinstance(value, str) else value.decode(errors="replace")
    return _json(value).decode(errors="replace")


def _slug(name: str) -> str:
    """`TaskNotTaken` and `Not Found` as `task-not-taken` and `not-found`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])| ", "-", name).lower()


def _fact(value: object) -> object:
    """A fact for JSON; what JSON has no word for, and what is long, is text."""
    if isinstance(value, str):
        return cut(lambda text: str(text).encode(errors="replace").decode(), value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return cut(_as_json, value).encode(errors="replace").decode()
