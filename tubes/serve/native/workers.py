"""List the running workers and their schedules."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

from tubes.errors import Facts, TubesError
from tubes.serve.bodies import encode_reply
from tubes.serve.namespaces import limit_time
from tubes.serve.native import schemas
from tubes.serve.native.operations import Call, operation
from tubes.serve.native.schemas import Schema
from tubes.values.worker_info import HeldTask, ScheduleInfo

#: Maximum held tasks whose progress one list reads.
_MAX_PROGRESS: Final = 100
_RESULT: Final = schemas.nullable(schemas.TEXT)
_SCHEDULE: Final[dict[str, Schema]] = {
    **dict.fromkeys(("name", "tube", "schedule"), schemas.TEXT),
    "next": schemas.MOMENT,
    "last": schemas.nullable(schemas.MOMENT),
    "last_result": {**_RESULT, "description": "`acked`, `released`, `buried`, `lost` or `cancelled`."},
}
_HELD: Final = schemas.object_schema(
    {
        "tube": schemas.TEXT,
        **dict.fromkeys(("id", "attempts"), schemas.INTEGER),
        "since": schemas.MOMENT,
        "progress": schemas.nullable(schemas.number(0, 1)),
        "note": schemas.nullable(schemas.TEXT),
    }
)
_HANDLER: Final = schemas.object_schema(
    {"name": schemas.TEXT, "tubes": schemas.list_schema(schemas.TEXT), "concurrency": schemas.INTEGER}
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


@operation("GET", "/workers", "look", replies={200: schemas.object_schema({"workers": schemas.list_schema(_WORKER)})})
async def list_workers(call: Call) -> bytes:
    """List the running workers of the namespace, as `QueueAdmin.workers` does, with the tasks that they hold.

    The lists contain only handlers, tasks and schedules of tubes that the token may see; `in_hand`, `acked`,
    `released`, `buried` and `lost` count the tasks of all tubes. `progress` and `note` of the last checkpoint are read
    for the 100 tasks that have been held longest.
    """
    key = ("workers", call.token.grants)  # They determine which tubes are shown.
    return await call.service.recent.get(call.space.name, key, lambda: _read_workers(call))


async def _read_workers(call: Call) -> bytes:
    workers: list[Facts] = []
    held: list[tuple[HeldTask, Facts]] = []
    for info in await limit_time(call.space.queue, call.space.queue.admin.workers()):
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
        workers.append(dataclasses.asdict(info) | facts)
    held.sort(key=lambda one: one[0].since)
    await asyncio.gather(*(_add_progress(call, *one) for one in held[:_MAX_PROGRESS]))
    return encode_reply({"workers": workers})


async def _add_progress(call: Call, task: HeldTask, facts: Facts) -> None:
    try:
        seen = await call.space.apply(task.tube, lambda tube: tube.peek(task.id))
    except TubesError:  # It has ended, or its tube was dropped.
        return
    facts |= {"progress": seen.progress, "note": seen.note}


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
