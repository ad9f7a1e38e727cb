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
from tubes.drivers.backoff import Backoff
from tubes.errors import InvalidOption
from tubes.serve.bodies import encoded, from_json, to_json
from tubes.serve.native.operations import Call, Fields, Schema
from tubes.values.overview import Overview
from tubes.values.statistics import Statistics

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {}


def maybe(schema: Schema) -> Schema:
    """This, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def a_list(schema: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": schema}


def an_object(members: Fields, *optional: str) -> Schema:
    """An object with these members."""
    return {"type": "object", "properties": dict(members), "required": [m for m in members if m not in optional]}


_text: Final = json.encoder.encode_basestring_ascii
STATE: Final[Schema] = {"type": "string", "enum": ["ready", "taken", "done", "buried", "delayed"]}
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
        "context": {"type": "object", "additionalProperties": TEXT},
        "reason": maybe(TEXT),
        "created": {"type": "number"},
        "due": maybe({"type": "number"}),
        "expires": maybe({"type": "number"}),
        "data": ANY,
        "data_base64": TEXT,
        "lease": TEXT,
        "ended": {"type": "number"},
        "why": {"type": "string", "enum": ["ack", "delete", "ttl"]},
        "result": ANY,
        "result_base64": TEXT,
    },
    *("data", "data_base64", "lease", "ended", "why", "result", "result_base64"),
)
#: What a put says of a task: the options of `Tube.put`.
PUT: Final[Fields] = {
    "data": ANY,
    "data_base64": TEXT,
    "pri": WHOLE,
    "delay": SECONDS,
    "at": {"type": "string", "format": "date-time"},
    "ttl": SECONDS,
    "ttr": SECONDS,
    "utube": TEXT,
    "key": {"type": "string", "minLength": 1},
    "on_duplicate": {"type": "string", "enum": ["keep", "replace", "raise"]},
    "key_ttl": SECONDS,
    "max_attempts": {"type": "integer", "minimum": 1},
    "context": {"type": "object", "additionalProperties": TEXT},
    "keep_done": SECONDS,
}
#: What a put replies.
PUT_REPLY: Final[Schema] = an_object({"id": WHOLE, "state": STATE})
OVERVIEW: Final[Schema] = an_object(
    {
        "driver": TEXT,
        "options": maybe({"type": "object"}),
        "tasks": {"type": "object", "additionalProperties": WHOLE},
        "calls": {"type": "object", "additionalProperties": WHOLE},
        "kept": WHOLE,
        "waiting": WHOLE,
        "paused": FLAG,
        "paused_until": maybe({"type": "number"}),
        "sessions": WHOLE,
        "oldest_ready_age": maybe({"type": "number"}),
    },
    *("options", "sessions", "oldest_ready_age"),
)


def data_of(body: dict[str, Any]) -> bytes:
    """The data of a task in a body, as it is stored."""
    if ("data" in body) == ("data_base64" in body):
        raise InvalidOption(option="data", value=None, rule="is required, or else data_base64")
    if "data" in body:
        return encoded(body["data"])
    text: object = body["data_base64"]
    try:
        return b64decode(text if isinstance(text, str) else "?", validate=True)
    except ValueError:
        raise InvalidOption(option="data_base64", value=text, rule="must be base64") from None


def put_options(body: dict[str, Any], trace: dict[str, str]) -> dict[str, Any]:
    """The options of `Tube.put` in a body. The task carries the trace of the request, unless it has one of its own."""
    options = {name: value for name, value in body.items() if name not in ("data", "data_base64")}
    if options.get("at") is not None:
        options["at"] = moment(options["at"])
    context = options.get("context")
    if trace and (context is None or (isinstance(context, dict) and "traceparent" not in context)):
        options["context"] = {**trace, **(context or {})}
    return options


def moment(text: object) -> datetime:
    """A moment as in ISO 8601, with a time zone."""
    try:
        return datetime.fromisoformat(text if isinstance(text, str) else "?")
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


def tube_options(given: object) -> dict[str, Any]:
    """The options of a tube in a body: `"inf"` is for ever, a backoff a list of seconds or an object."""
    if not isinstance(given, dict):
        raise InvalidOption(option="options", value=given, rule="must be an object")
    options: dict[str, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
    if options.get("buried_ttl") == "inf":
        options["buried_ttl"] = math.inf
    if isinstance(options.get("backoff"), dict):
        try:
            options["backoff"] = Backoff(**options["backoff"])
        except TypeError as error:
            raise InvalidOption(option="backoff", value=options["backoff"], rule=str(error)) from None
    return options
