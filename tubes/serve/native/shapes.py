"""Convert tasks and tubes to and from JSON, with the schemas of both."""

from __future__ import annotations

import codecs
import json
import math
import sys
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Final

from tubes.aio import AsyncTask
from tubes.backend.port import connection_of
from tubes.backend.selecting import MAX_CONTAINS
from tubes.drivers.backoff import MOST_DELAYS, STEEPEST, Backoff
from tubes.drivers.options import MAX_BURST, MAX_SECONDS, MAX_WEIGHT, OF_TASKS, SECOND
from tubes.drivers.tube_options import MAX_PARTITIONS
from tubes.errors import DriverNotFound, Facts, InvalidOption, cut
from tubes.serve.bodies import encode_data, encode_reply, from_json
from tubes.serve.history import RATES
from tubes.serve.native.operations import Call
from tubes.serve.native.schemas import (
    ANY,
    ATTEMPTS,
    BASE64,
    COUNT,
    FLAG,
    INTEGER,
    MOMENT,
    NONEMPTY,
    NUMBER,
    PRI,
    SECONDS,
    TEXT,
    Fields,
    Schema,
    integer,
    list_schema,
    map_schema,
    nullable,
    number,
    object_schema,
    one_of,
    pattern_schema,
    request_schema,
)
from tubes.serve.tokens import TUBE_RIGHTS
from tubes.values.options import options_json
from tubes.values.overview import Overview

_UTF_8: Final = codecs.getincrementaldecoder("utf-8")
_text: Final = json.encoder.encode_basestring_ascii
#: A time in the past that can be computed with: a moment before the year 1 in UTC cannot.
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CANCELLED: Final = ',"cancelled":true'
STATES: Final = ("ready", "taken", "done", "buried", "delayed")
STATE: Final = one_of(*STATES)
_PREVIEWS: Final[Fields] = {
    prefix + name: schema
    for prefix in ("", "result_", "saved_")
    for name, schema in (
        ("preview", {**TEXT, "description": "In place of the value: its first bytes as stored, as text."}),
        ("preview_base64", {**TEXT, "description": "The first bytes of a value that is not UTF-8."}),
        ("size", {**INTEGER, "description": "The size of the value in bytes, sent with a preview."}),
    )
}
#: A task in a reply. Its data is `data` if it is JSON, else `data_base64`.
TASK: Final[Schema] = object_schema(
    {
        "id": INTEGER,
        "tube": TEXT,
        "state": STATE,
        "pri": INTEGER,
        "utube": nullable(TEXT),
        "attempts": INTEGER,
        "max_attempts": nullable(INTEGER),
        "key": nullable(TEXT),
        "context": map_schema(TEXT),
        "reason": nullable(TEXT),
        "created": MOMENT,
        "due": nullable(MOMENT),
        "expires": nullable(MOMENT),
        "data": ANY,
        "data_base64": TEXT,
        **_PREVIEWS,
        "lease": TEXT,
        "ended": MOMENT,
        "why": one_of("ack", "delete", "ttl", "cancelled"),
        "result": ANY,
        "result_base64": TEXT,
        "saved": ANY,
        "progress": {
            **number(0, 1),
            "description": "How much of the work is done, from 0 to 1, by the last checkpoint.",
        },
        "note": TEXT,
        "failures": {
            **list_schema(
                object_schema({"time": MOMENT, "attempt": INTEGER, "worker": nullable(TEXT), "error": nullable(TEXT)})
            ),
            "description": "The last failed attempts and burials, the last one at the end.",
        },
        "traceback": {**TEXT, "description": "The end of the traceback of the last failure, at most 4096 bytes."},
        "buried_at": {**MOMENT, "description": "When the task was buried, if it is buried."},
        "cancelled": {**FLAG, "description": "True if the task was cancelled; otherwise the member is missing."},
    },
    *("data", "data_base64", "lease", "ended", "why", "result", "result_base64"),
    *("saved", "progress", "note", "failures", "traceback", "buried_at", "cancelled", *_PREVIEWS),
)
#: The query parameter of a preview.
PREVIEW: Final = {
    **integer(1),
    "description": "Send only this many bytes of the data, as the text `preview`, and its `size`. Likewise "
    "`result_preview`, `result_size`, `saved_preview` and `saved_size`.",
}
#: The filters of `Tube.select`.
FILTERS: Final[Fields] = {
    "state": {**STATE, "description": "The default is any state except done."},
    "reason": {**NONEMPTY, "description": "Buried or done tasks with this reason, or with this text before a colon."},
    "contains": {
        **NONEMPTY,
        "maxLength": MAX_CONTAINS,
        "description": "Tasks whose stored data, such as JSON, contains this text.",
    },
    "function": {
        **NONEMPTY,
        "maxLength": MAX_CONTAINS,
        "description": "Tasks that call the task function with this name: the member `task` of their data.",
    },
    "lane": {**TEXT, "description": "Tasks in this lane."},
    "key": {**NONEMPTY, "description": "The task with this key."},
    "older_than": {**SECONDS, "description": "Tasks that were put at least this many seconds ago."},
    "attempts": {**ATTEMPTS, "description": "Tasks that were taken at least this many times."},
    "newest_first": {**FLAG, "description": "Reverse the order."},
}
#: The members of a put: the data and the options of `Tube.put`.
PUT: Final[Fields] = {
    "data": ANY,
    "data_base64": BASE64,
    "pri": PRI,
    "delay": SECONDS,
    "at": {"type": "string", "format": "date-time", "description": "A time; at most 100 years from now count."},
    "ttl": SECONDS,
    "ttr": SECONDS,
    "utube": TEXT,
    "key": NONEMPTY,
    "on_duplicate": one_of("keep", "replace", "update", "raise"),
    "key_ttl": SECONDS,
    "max_attempts": ATTEMPTS,
    "context": {**map_schema(TEXT), "propertyNames": {"pattern": r"^(?!tubes\.)"}},
    "keep_done": SECONDS,
}
_ONE_DATA: Final[Schema] = {"not": {"required": ["data", "data_base64"]}}
_ONE_TIME: Final[Schema] = {"not": {"required": ["delay", "at"]}}
_NEEDS_KEY: Final = {name: ["key"] for name in ("on_duplicate", "key_ttl")}
#: Which options of a put need or exclude another.
RULES: Final[Schema] = {"allOf": [_ONE_TIME], "dependentRequired": _NEEDS_KEY}


def put_schema(members: Fields, *required: str) -> Schema:
    """Return the schema of the body of a put. `required`: required members in addition to its data."""
    data = [{"required": ["data"]}, {"required": ["data_base64"]}]
    return request_schema(members, *required, **{**RULES, "anyOf": data, "allOf": [_ONE_DATA, _ONE_TIME]})


def update_schema(*names: str) -> Schema:
    """Return the schema of the body of an update that may change these members."""
    return request_schema({name: PUT[name] for name in names}, allOf=[_ONE_DATA, _ONE_TIME])


_BACKOFF: Final = request_schema(
    {"first": SECONDS, "factor": number(1, STEEPEST), "cap": SECONDS, "jitter": number(0, 1), "seed": INTEGER}, "first"
)
INTERVAL_FROM: Final = one_of("take", "ack")
_RATE_TEXT: Final = pattern_schema(
    r"[1-9][0-9]{0,5}(\.[0-9]{1,9})?/(s|second|min|minute|h|hour|day)", "takes per second, or a text such as 500/min"
)
RATE: Final[Schema] = {**number(0, SECOND), **_RATE_TEXT, "type": ["number", "string"]}
BURST: Final[Schema] = {**COUNT, "maximum": MAX_BURST}
WEIGHT: Final[Schema] = {**COUNT, "maximum": MAX_WEIGHT}
_TUBE_OPTIONS: Final[Fields] = {
    "pri": PRI,
    "ttl": SECONDS,
    "ttr": SECONDS,
    "capacity": INTEGER,
    "max_attempts": ATTEMPTS,
    "key_ttl": SECONDS,
    "buried_ttl": {**SECONDS, "type": ["number", "string"], "pattern": "^inf$", "description": "inf"},
    "keep_done": SECONDS,
    "keep_done_max": COUNT,
    "backoff": {**_BACKOFF, **list_schema(SECONDS, MOST_DELAYS, minimum=1), "type": ["array", "object"]},
    "lane_capacity": INTEGER,
    "max_in_flight": COUNT,
    "interval": SECONDS,
    "interval_from": INTERVAL_FROM,
    "jitter": number(0, 1),
    "order": one_of("fifo", "round_robin"),
    "rate": RATE,
    "burst": BURST,
    "lane_rate": RATE,
    "lane_burst": BURST,
    "partitions": {**COUNT, "maximum": MAX_PARTITIONS},
}
#: The options of a tube; null: the default.
OPTIONS: Final = request_schema({name: nullable(schema) for name, schema in _TUBE_OPTIONS.items()})
#: The reply to a put.
PUT_REPLY: Final[Schema] = object_schema({"id": INTEGER, "state": STATE})
OVERVIEW: Final[Schema] = object_schema(
    {
        "driver": TEXT,
        "options": nullable({"type": "object"}),
        "task_options": {
            **nullable(list_schema(TEXT)),
            "description": "The options of a put. Null: the service does not know the driver.",
        },
        **dict.fromkeys(("tasks", "calls"), map_schema(INTEGER)),
        **dict.fromkeys(("kept", "waiting", "sessions", "throttled_lanes"), INTEGER),
        "paused": FLAG,
        "paused_until": nullable(MOMENT),
        "oldest_ready_age": nullable(SECONDS),
        "due_lag": {**SECONDS, "description": "By how much the oldest due change of a task is overdue."},
        "lanes": nullable(INTEGER),
        "rights": list_schema(one_of(*TUBE_RIGHTS)),
        "history": object_schema({"ready": list_schema(INTEGER), **dict.fromkeys(RATES, list_schema(NUMBER))}),
    },
    *("options", "sessions", "oldest_ready_age", "history"),
)


def data_of(body: Facts) -> bytes:
    """Return the data of a task in a body, encoded for storage."""
    if "data" in body:
        return encode_data(body["data"])
    text = body["data_base64"]
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidOption(option="data_base64", value=text, rule="must be base64") from None


def put_options(body: Facts, trace: dict[str, str]) -> Facts:
    """Return the options of `Tube.put` in a body. The trace of the request is added unless the context has its own."""
    options = {name: value for name, value in body.items() if name not in ("data", "data_base64")}
    if "at" in options:
        options["at"] = moment(options["at"])
    context = options.get("context", {})
    if trace and "traceparent" not in context:
        options["context"] = {**trace, **context}
    return options


def moment(text: str) -> datetime:
    """Parse an ISO 8601 time with a time zone. A time in more than 100 years counts as in 100 years."""
    try:
        at = datetime.fromisoformat(text.upper())
    except ValueError:
        raise InvalidOption(option="at", value=text, rule="must be a time like 2030-01-31T12:00:00Z") from None
    if at.utcoffset() is None:
        return at  # It is refused.
    # A day less, since the clock of a server may differ.
    return min(max(at, _FIRST), datetime.now(UTC) + timedelta(seconds=MAX_SECONDS, days=-1))


def task_json(call: Call, task: AsyncTask, *, leased: bool = False, preview: int | None = None) -> bytes:
    """Return a task as JSON. Its data is parsed only to check that it is JSON, and is sent unchanged.

    `preview`: at most this many bytes of the data, the result and the saved value are sent, as text. So a program that
    rounds large numbers can show them.
    """
    members = facts_json(task, preview)[:-1]
    if leased:
        members += f',"lease":"{call.service.leases.sign(call.space.name, task.lease)}"'
    elif task.ended is not None:
        members += f',"ended":{task.ended},"why":"{task.why}"'
        if task.result is not None:
            members += f",{_value_json('result', task.result, preview).decode()}"
    return b"%b,%b}" % (members.encode(), _value_json("data", task.data, preview))


def _value_json(name: str, value: object, limit: int | None) -> bytes:
    """Return a value as members of a JSON object: with a limit only its start as text, and its size."""
    if limit is None:
        return bytes_json(name, value)
    data, prefix = bytes_of(value), "" if name == "data" else f"{name}_"
    try:
        # The cut may be within a character.
        member = f'preview":{_text(_UTF_8().decode(data[:limit], len(data) <= limit))}'
    except UnicodeDecodeError:
        member = f'preview_base64":"{b64encode(data[:limit]).decode()}"'
    return f'"{prefix}{member},"{prefix}size":{len(data)}'.encode()


def bytes_of(value: object) -> bytes:
    """Return data as stored. Objects of a queue in memory without a codec become JSON, or else their `repr` as JSON."""
    if isinstance(value, bytes):
        return value
    try:
        return encode_reply(value)
    except Exception:  # Objects of a program may raise any error.
        return encode_reply(cut(repr, value, sys.maxsize - 1))


def bytes_json(name: str, value: object) -> bytes:
    """Return a member of a JSON object: the value as stored if it is JSON, else as `name_base64`."""
    data = bytes_of(value)
    try:
        from_json(data)
    except ValueError:
        return b'"%b_base64":"%b"' % (name.encode(), b64encode(data))
    return b'"%b":%b' % (name.encode(), data)


def facts_json(task: AsyncTask, preview: int | None = None) -> str:
    """Return a task without its data, as JSON. It is formatted by hand, since this is most of the cost of a take."""
    utube, key, reason, due, expires = task.utube, task.key, task.reason, task.due, task.expires
    context, extras = task.context, task._extras
    return (
        f'{{"id":{task.id},"tube":{_text(task.tube)},"state":"{task.state}","pri":{task.pri}'
        f',"utube":{"null" if utube is None else _text(utube)}'
        f',"attempts":{task.attempts},"max_attempts":{task.max_attempts or "null"}'
        f',"key":{"null" if key is None else _text(key)}'
        f',"context":{encode_reply(context).decode() if context else "{}"}'
        f',"reason":{"null" if reason is None else _text(reason)},"created":{task.created!r}'
        f',"due":{"null" if due is None else repr(due)},"expires":{"null" if expires is None else repr(expires)}'
        f"{_checkpoint_json(task, preview) if extras is not None and extras.context else ''}"
        f"{_CANCELLED if task.cancelled else ''}}}"
    )


def _checkpoint_json(task: AsyncTask, preview: int | None) -> str:
    """Return the members that the last checkpoint and the last failures stored."""
    saved, failures = task.saved, [asdict(failure) for failure in task.failures]
    facts = {
        "progress": task.progress,
        "note": task.note,
        "failures": failures or None,
        "traceback": task.traceback,
        "buried_at": task.buried_at,
    }
    members = [f'"{name}":{encode_reply(fact).decode()}' for name, fact in facts.items() if fact is not None]
    if saved is not None:
        members.insert(0, _value_json("saved", encode_reply(saved), preview).decode())
    return "".join(f",{member}" for member in members)


def overview_json(call: Call, name: str, overview: Overview) -> dict[str, object]:
    """Return the facts of a tube, and the rights of the token on it."""
    statistics = overview.statistics
    lanes: int | None = overview.lanes
    task_options: list[str] | None = None
    with suppress(DriverNotFound):  # Other programs may use other drivers.
        driver = connection_of(call.space.queue).find_driver(overview.driver)
        task_options = sorted(filter(driver.takes_put, OF_TASKS))
        if driver.lane is None:
            lanes = None
    return {
        "driver": overview.driver,
        "options": None if overview.options is None else options_json(overview.options),
        "task_options": task_options,
        "tasks": statistics.tasks,
        "calls": statistics.calls,
        "kept": statistics.kept,
        "waiting": statistics.waiting,
        "paused": statistics.paused is not None,
        "paused_until": None if statistics.paused is None or math.isinf(statistics.paused) else statistics.paused,
        "sessions": overview.sessions,
        "oldest_ready_age": overview.oldest_ready_age,
        "due_lag": overview.due_lag,
        "lanes": lanes,
        "throttled_lanes": overview.throttled_lanes,
        "rights": [right for right in TUBE_RIGHTS if call.may(right, name)],
    }


def tube_options(values: Facts) -> Facts:
    """Return the options of a tube in a body: `"inf"` means forever, a backoff is a list of seconds or an object."""
    options = dict(values)
    if options.get("buried_ttl") == "inf":
        options["buried_ttl"] = math.inf
    if isinstance(options.get("backoff"), dict):
        options["backoff"] = Backoff(**options["backoff"])
    return options
