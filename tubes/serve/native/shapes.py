"""What tasks and tubes are in JSON, and the schemas of that."""

from __future__ import annotations

import dataclasses
import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from tubes.aio import AsyncTask
from tubes.drivers.backoff import MOST_DELAYS, STEEPEST, Backoff
from tubes.errors import InvalidOption
from tubes.serve.bodies import encoded, from_json, to_json
from tubes.serve.native.operations import Call
from tubes.serve.native.schemas import (
    ANY,
    ATTEMPTS,
    BASE64,
    COUNT,
    FLAG,
    MOMENT,
    NONEMPTY,
    PRI,
    SECONDS,
    TEXT,
    WHOLE,
    Fields,
    Schema,
    a_list,
    a_map,
    a_request,
    an_object,
    maybe,
    number,
    one_of,
)
from tubes.values.overview import Overview
from tubes.values.statistics import Statistics

_text: Final = json.encoder.encode_basestring_ascii
STATES: Final = ("ready", "taken", "done", "buried", "delayed")
STATE: Final = one_of(*STATES)
#: A task as a client sees it. Its data is `data` where it is JSON, and else `data_base64`.
TASK: Final[Schema] = an_object(
    {
        "id": WHOLE,
        "tube": TEXT,
        "state": STATE,
        "pri": WHOLE,
        "utube": maybe(TEXT),
        "attempts": WHOLE,
        "max_attempts": maybe(WHOLE),
        "key": maybe(TEXT),
        "context": a_map(TEXT),
        "reason": maybe(TEXT),
        "created": MOMENT,
        "due": maybe(MOMENT),
        "expires": maybe(MOMENT),
        "data": ANY,
        "data_base64": TEXT,
        "lease": TEXT,
        "ended": MOMENT,
        "why": one_of("ack", "delete", "ttl"),
        "result": ANY,
        "result_base64": TEXT,
    },
    *("data", "data_base64", "lease", "ended", "why", "result", "result_base64"),
)
#: What a put says of a task: the options of `Tube.put`.
PUT: Final[Fields] = {
    "data": ANY,
    "data_base64": BASE64,
    "pri": PRI,
    "delay": SECONDS,
    "at": {"type": "string", "format": "date-time", "description": "A moment within 100 years from now."},
    "ttl": SECONDS,
    "ttr": SECONDS,
    "utube": TEXT,
    "key": NONEMPTY,
    "on_duplicate": one_of("keep", "replace", "raise"),
    "key_ttl": SECONDS,
    "max_attempts": ATTEMPTS,
    "context": {**a_map(TEXT), "propertyNames": {"pattern": r"^(?!tubes\.)"}},
    "keep_done": SECONDS,
}
_ONE_DATA: Final[Schema] = {"not": {"required": ["data", "data_base64"]}}
_ONE_TIME: Final[Schema] = {"not": {"required": ["delay", "at"]}}
_KEYED: Final = {name: ["key"] for name in ("on_duplicate", "key_ttl")}
#: Which options of a put need or exclude another.
RULES: Final[Schema] = {"allOf": [_ONE_TIME], "dependentRequired": _KEYED}


def a_put(members: Fields, *required: str) -> Schema:
    """The body of a put with these members, some of which are required beside its data."""
    data = [{"required": ["data"]}, {"required": ["data_base64"]}]
    return a_request(members, *required, **{**RULES, "anyOf": data, "allOf": [_ONE_DATA, _ONE_TIME]})


def an_update(*names: str) -> Schema:
    """The body of an update that may change these."""
    return a_request({name: PUT[name] for name in names}, allOf=[_ONE_DATA, _ONE_TIME])


_BACKOFF: Final = a_request(
    {"first": SECONDS, "factor": number(1, STEEPEST), "cap": SECONDS, "jitter": number(0, 1), "seed": WHOLE}, "first"
)
INTERVAL_FROM: Final = one_of("take", "ack")
_OF_TUBES: Final[Fields] = {
    "pri": PRI,
    "ttl": SECONDS,
    "ttr": SECONDS,
    "capacity": WHOLE,
    "max_attempts": ATTEMPTS,
    "key_ttl": SECONDS,
    "buried_ttl": {**SECONDS, "type": ["number", "string"], "pattern": "^inf$", "description": "inf"},
    "keep_done": SECONDS,
    "keep_done_max": COUNT,
    "backoff": {**_BACKOFF, **a_list(SECONDS, MOST_DELAYS, least=1), "type": ["array", "object"]},
    "lane_capacity": WHOLE,
    "max_in_flight": COUNT,
    "interval": SECONDS,
    "interval_from": INTERVAL_FROM,
    "jitter": number(0, 1),
    "order": one_of("fifo", "round_robin"),
}
#: The options of a tube; null: the default.
OPTIONS: Final = a_request({name: maybe(schema) for name, schema in _OF_TUBES.items()})
#: What a put replies.
PUT_REPLY: Final[Schema] = an_object({"id": WHOLE, "state": STATE})
OVERVIEW: Final[Schema] = an_object(
    {
        "driver": TEXT,
        "options": maybe({"type": "object"}),
        "tasks": a_map(WHOLE),
        "calls": a_map(WHOLE),
        "kept": WHOLE,
        "waiting": WHOLE,
        "paused": FLAG,
        "paused_until": maybe(MOMENT),
        "sessions": WHOLE,
        "oldest_ready_age": maybe(MOMENT),
    },
    *("options", "sessions", "oldest_ready_age"),
)


def data_of(body: dict[str, Any]) -> bytes:
    """The data of a task in a body, as it is stored."""
    if "data" in body:
        return encoded(body["data"])
    text = body["data_base64"]
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidOption(option="data_base64", value=text, rule="must be base64") from None


def put_options(body: dict[str, Any], trace: dict[str, str]) -> dict[str, Any]:
    """The options of `Tube.put` in a body. The task carries the trace of the request, unless it has one of its own."""
    options = {name: value for name, value in body.items() if name not in ("data", "data_base64")}
    if "at" in options:
        options["at"] = moment(options["at"])
    context = options.get("context", {})
    if trace and "traceparent" not in context:
        options["context"] = {**trace, **context}
    return options


def moment(text: str) -> datetime:
    """A moment as in ISO 8601, with a time zone."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(option="at", value=text, rule="must be a moment like 2030-01-31T12:00:00Z") from None


def task_json(call: Call, task: AsyncTask[Any], *, leased: bool = False) -> bytes:
    """A task as JSON. Its data is not read but to see whether it is JSON, and goes out as it was put."""
    shown = facts_json(task)[:-1]
    if leased:
        shown += f',"lease":"{call.service.leases.given(call.space.name, task.lease)}"'
    elif task.ended is not None:
        shown += f',"ended":{task.ended},"why":"{task.why}"'
        if task.result is not None:
            shown += f",{bytes_json('result', task.result).decode()}"
    return b"%b,%b}" % (shown.encode(), bytes_json("data", task.data))


def bytes_json(name: str, value: bytes) -> bytes:
    """A member of this name that is JSON as it is stored, or else, under `name_base64`, any bytes."""
    try:
        from_json(value)
    except ValueError:
        return b'"%b_base64":"%b"' % (name.encode(), b64encode(value))
    return b'"%b":%b' % (name.encode(), value)


def facts_json(task: AsyncTask[Any]) -> str:
    """A task but for its data, as JSON. Written out, since a task is most of what a take costs."""
    utube, key, reason, due, expires = task.utube, task.key, task.reason, task.due, task.expires
    context = task.context
    return (
        f'{{"id":{task.id},"tube":{_text(task.tube)},"state":"{task.state}","pri":{task.pri}'
        f',"utube":{"null" if utube is None else _text(utube)}'
        f',"attempts":{task.attempts},"max_attempts":{task.max_attempts or "null"}'
        f',"key":{"null" if key is None else _text(key)}'
        f',"context":{to_json(context).decode() if context else "{}"}'
        f',"reason":{"null" if reason is None else _text(reason)},"created":{task.created!r}'
        f',"due":{"null" if due is None else repr(due)},"expires":{"null" if expires is None else repr(expires)}}}'
    )


def statistics_json(seen: Statistics) -> dict[str, Any]:
    """The counts of a tube."""
    return {
        "tasks": seen.tasks,
        "calls": seen.calls,
        "kept": seen.kept,
        "waiting": seen.waiting,
        "paused": seen.paused is not None,
        "paused_until": None if seen.paused is None or math.isinf(seen.paused) else seen.paused,
    }


def overview_json(seen: Overview) -> dict[str, Any]:
    """A tube of an overview."""
    return {
        "driver": seen.driver,
        "options": None if seen.options is None else options_json(seen.options),
        **statistics_json(seen.statistics),
        "sessions": seen.sessions,
        "oldest_ready_age": seen.oldest_ready_age,
    }


def options_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a tube, as `tube_options` reads them."""
    return {
        name: "inf" if value == math.inf else dataclasses.asdict(value) if isinstance(value, Backoff) else value
        for name, value in options.items()
    }


def tube_options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a tube in a body: `"inf"` means for ever, a backoff is a list of seconds or an object."""
    options = dict(given)
    if options.get("buried_ttl") == "inf":
        options["buried_ttl"] = math.inf
    if isinstance(options.get("backoff"), dict):
        options["backoff"] = Backoff(**options["backoff"])
    return options
