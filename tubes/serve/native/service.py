"""The service and its namespaces: the rights of the token, sessions, workers, schedules, and the audit."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

from starlette.responses import Response

from tubes import __version__
from tubes.errors import Facts, TubesError
from tubes.serve import audit
from tubes.serve.bodies import encode_reply, json_reply
from tubes.serve.namespaces import NO_NAMESPACE, limit_time
from tubes.serve.native import schemas
from tubes.serve.native.operations import Call, operation
from tubes.serve.native.schemas import Schema
from tubes.serve.sessions import MAX_TTL, MIN_TTL
from tubes.serve.tokens import TUBE_RIGHTS
from tubes.values.overview import exact_names
from tubes.values.worker_info import HeldTask, ScheduleInfo, functions_of_no_worker

_NULLABLE_TEXT: Final = schemas.nullable(schemas.TEXT)
_TOKEN: Final = schemas.object_schema(
    {"id": schemas.TEXT, "description": schemas.TEXT, "grants": schemas.list_schema(schemas.TEXT)}
)
_SERVICE: Final = schemas.object_schema(
    {
        "version": schemas.TEXT,
        "namespaces": schemas.list_schema(schemas.TEXT),
        "rights": schemas.map_schema(schemas.list_schema(schemas.one_of(*TUBE_RIGHTS))),
        "token": schemas.nullable(_TOKEN),
    }
)


@operation("GET", "", "", replies={200: _SERVICE})
async def show_service(call: Call) -> Facts:
    """Show the version of the service, the namespaces in which the token may see tubes, and its grants.

    The namespaces are `_`, then those with tubes and those that a grant names exactly, by name. `rights`: the rights of
    the token on some tubes of each. `token` is null without tokens.
    """
    token, spaces = call.token, call.service.namespaces
    named = (name for grant in token.grants for name in exact_names([grant.namespace]))
    known = [NO_NAMESPACE, *sorted({*named, *await limit_time(spaces.root, spaces.names())})]
    rights = {name: [right for right in TUBE_RIGHTS if token.may_somewhere(right, name)] for name in known}
    rights = {name: some for name, some in rights.items() if "look" in some}
    facts = {"id": token.id, "description": token.description, "grants": list(map(str, token.grants))}
    known_token = facts if token.id else None
    return {"version": __version__, "namespaces": list(rights), "rights": rights, "token": known_token}


@operation(
    "POST",
    "/sessions",
    "take",
    body=schemas.request_schema({"ttl": schemas.number(MIN_TTL, MAX_TTL)}),
    replies={201: schemas.object_schema({"session": schemas.TEXT})},
)
async def begin_session(call: Call) -> Response:
    """Begin a session. It ends `ttl` seconds (60) after its last request. Pass its text as `session` of a take."""
    text = await call.service.sessions.begin(call.space, (await call.body()).get("ttl", 60), call.token)
    return json_reply({"session": text}, 201, {"location": call.url("sessions", text)})


@operation("POST", "/sessions/{session}/beat", "take", replies={204: None})
async def renew_session(call: Call) -> None:
    """Renew a session."""
    await call.body()
    await call.service.sessions.renew(call.space, call.path["session"], call.token)


@operation("DELETE", "/sessions/{session}", "take", replies={204: None})
async def end_session(call: Call) -> None:
    """End a session and release its tasks."""
    await call.service.sessions.end(call.space, call.path["session"], call.token)


#: Maximum held tasks whose progress one list reads.
_MAX_PROGRESS: Final = 100
_SCHEDULE: Final[dict[str, Schema]] = {
    **dict.fromkeys(("name", "tube", "schedule"), schemas.TEXT),
    "next": schemas.MOMENT,
    "last": schemas.nullable(schemas.MOMENT),
    "last_result": {**_NULLABLE_TEXT, "description": "`acked`, `released`, `buried`, `lost` or `cancelled`."},
}
_HELD: Final = schemas.object_schema(
    {
        "tube": schemas.TEXT,
        **dict.fromkeys(("id", "attempts"), schemas.INTEGER),
        "since": schemas.MOMENT,
        "function": _NULLABLE_TEXT,
        "progress": schemas.nullable(schemas.number(0, 1)),
        "note": _NULLABLE_TEXT,
    }
)
_HANDLER: Final = schemas.object_schema(
    {
        "name": schemas.TEXT,
        "tubes": schemas.list_schema(schemas.TEXT),
        "concurrency": schemas.INTEGER,
        "functions": schemas.list_schema(schemas.TEXT),
        "is_shared": schemas.FLAG,
    }
)
_WORKER: Final = schemas.object_schema(
    {
        **dict.fromkeys(("id", "host"), schemas.TEXT),
        **dict.fromkeys(("started", "seen"), schemas.MOMENT),
        **dict.fromkeys(("pid", "in_hand", "acked", "released", "buried", "lost"), schemas.INTEGER),
        "handlers": schemas.list_schema(_HANDLER),
        "tasks": schemas.list_schema(_HELD),
        "stopping": schemas.FLAG,
        "schedules": schemas.list_schema(schemas.object_schema(_SCHEDULE)),
    }
)


_WORKERS: Final = schemas.object_schema(
    {
        "workers": schemas.list_schema(_WORKER),
        "unknown": schemas.list_schema(schemas.object_schema({"tube": schemas.TEXT, "name": schemas.TEXT})),
    }
)


@operation("GET", "/workers", "look", replies={200: _WORKERS})
async def list_workers(call: Call) -> bytes:
    """List the running workers of the namespace, as `QueueAdmin.workers` does, with the tasks that they hold.

    The lists contain only handlers, tasks and schedules of tubes that the token may see; `in_hand`, `acked`,
    `released`, `buried` and `lost` count the tasks of all tubes. `progress` and `note` of the last checkpoint are read
    for the 100 tasks that have been held longest. `unknown`: functions that tasks have called during the last minute,
    and that no running worker has.
    """
    key = ("workers", call.token.grants)  # They determine which tubes are shown.
    return await call.service.recent.get(call.space.name, key, lambda: _read_workers(call))


async def _read_workers(call: Call) -> bytes:
    workers: list[Facts] = []
    held: list[tuple[HeldTask, Facts]] = []
    infos = await limit_time(call.space.queue, call.space.queue.admin.workers())
    for info in infos:
        handlers = [
            {**dataclasses.asdict(handler), "tubes": names}
            for handler in info.handlers
            if (names := [name for name in handler.tubes if call.may("look", name)])
        ]
        if info.handlers and not handlers:
            continue
        tasks = [
            (task, dataclasses.asdict(task) | {"progress": None, "note": None})
            for task in info.tasks
            if call.may("look", task.tube)
        ]
        held += tasks
        schedules = [dataclasses.asdict(one) for one in info.schedules if call.may("look", one.tube)]
        facts = {"handlers": handlers, "tasks": [task for _, task in tasks], "schedules": schedules}
        own = dataclasses.asdict(info)
        workers.append({name: own[name] for name in _WORKER["properties"]} | facts)
    held.sort(key=lambda one: one[0].since)
    await asyncio.gather(*(_add_progress(call, *one) for one in held[:_MAX_PROGRESS]))
    unknown = [dataclasses.asdict(one) for one in functions_of_no_worker(infos) if call.may("look", one.tube)]
    return encode_reply({"workers": workers, "unknown": unknown})


async def _add_progress(call: Call, task: HeldTask, facts: Facts) -> None:
    try:
        seen = await call.space.apply(task.tube, lambda tube: tube.peek(task.id))
    except TubesError:  # It has ended, or its tube was dropped.
        return
    facts |= {"progress": seen.progress, "note": seen.note}


_DURATIONS: Final = schemas.object_schema(
    {
        "tube": schemas.TEXT,
        "function": _NULLABLE_TEXT,
        "count": schemas.INTEGER,
        **{f"{kind}_p{q}": schemas.nullable(schemas.SECONDS) for kind in ("wait", "run") for q in (50, 95, 99)},
    }
)


@operation(
    "GET",
    "/durations",
    "look",
    replies={200: schemas.object_schema({"durations": schemas.list_schema(_DURATIONS)})},
)
async def list_durations(call: Call) -> bytes:
    """List how long tasks have waited and run during the last five minutes, as `QueueAdmin.durations` does.

    The running workers of the namespace report it, for tubes that the token may see. `function` is null for all tasks
    of a tube.
    """
    key = ("durations", call.token.grants)
    return await call.service.recent.get(call.space.name, key, lambda: _read_durations(call))


async def _read_durations(call: Call) -> bytes:
    found = await limit_time(call.space.queue, call.space.queue.admin.durations())
    return encode_reply({"durations": [dataclasses.asdict(one) for one in found if call.may("look", one.tube)]})


@operation(
    "GET",
    "/schedules",
    "look",
    replies={
        200: schemas.object_schema(
            {"schedules": schemas.list_schema(schemas.object_schema({**_SCHEDULE, "workers": schemas.INTEGER}))}
        )
    },
)
async def list_schedules(call: Call) -> bytes:
    """List the schedules of the running workers for tubes that the token may see, the next one first.

    `workers`: the number of workers with the schedule. `last`: the last occurrence that one of them has handled.
    """
    key = ("schedules", call.token.grants)
    return await call.service.recent.get(call.space.name, key, lambda: _read_schedules(call))


async def _read_schedules(call: Call) -> bytes:
    found: dict[tuple[str, str, str], list[ScheduleInfo]] = {}
    for worker in await limit_time(call.space.queue, call.space.queue.admin.workers()):
        for one in worker.schedules:
            if call.may("look", one.tube):
                found.setdefault((one.name, one.tube, one.schedule), []).append(one)
    schedules = [
        dataclasses.asdict(max(same, key=lambda one: one.last or 0))
        | {"next": min(one.next for one in same), "workers": len(same)}
        for same in found.values()
    ]
    return encode_reply({"schedules": sorted(schedules, key=lambda one: (one["next"], one["name"]))})


_CHANGE: Final = schemas.object_schema(
    {
        "id": schemas.INTEGER,
        "at": schemas.MOMENT,
        "token": {**_NULLABLE_TEXT, "description": "The id of the token; null: the service has no tokens."},
        **dict.fromkeys(("description", "action"), schemas.TEXT),
        **dict.fromkeys(("tube", "lane"), _NULLABLE_TEXT),
        "task": schemas.nullable(schemas.INTEGER),
        "arguments": schemas.map_schema(schemas.ANY),
        "count": {**schemas.nullable(schemas.INTEGER), "description": "The number of changed or removed tasks."},
        "outcome": {**schemas.one_of("unknown"), "description": "Present only if the backend did not reply."},
    },
    "outcome",
)


@operation(
    "GET",
    "/audit",
    "look",
    query={"limit": schemas.BATCH, "before": schemas.INTEGER},
    replies={200: schemas.object_schema({"changes": schemas.list_schema(_CHANGE)})},
)
async def list_changes(call: Call) -> Facts:
    """List up to `limit` (100) changes that were made through the service, newest first, before the id `before`.

    `action` is the name of the operation; `arguments` are the members of its body and query, without data of tasks. A
    move is recorded in both tubes; the name of the other tube is `...` if the token may not see it.
    Contains the changes of tubes that the token may see, and, with the right `admin`, those of tokens.
    """
    query = call.query()

    def is_visible(change: Facts) -> bool:
        if change["tube"] is None:
            return call.token.may_somewhere("admin", call.space.name)
        return call.may("look", change["tube"])

    limit, before = query.get("limit", 100), query.get("before")
    # Cached, since the read is slow if the token may see few of the changes.
    key = ("audit", call.token.grants, limit, before)
    changes = await call.service.recent.get(
        call.space.name, key, lambda: audit.read(call.space, is_visible, limit, before)
    )
    return {"changes": [_hide_tubes(call, change) for change in changes]}


def _hide_tubes(call: Call, change: Facts) -> Facts:
    """Hide the name of the other tube of a move if the token may not see it."""
    arguments = change["arguments"]
    hidden = {
        name: "..." for name in ("from", "to") if name in arguments and not call.may("look", str(arguments[name]))
    }
    return change | {"arguments": arguments | hidden}
