"""Take tasks from one tube or from several, with or without waiting."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

from tubes.errors import Facts, OptionNotSupported
from tubes.serve.native import schemas, shapes
from tubes.serve.native.leases import ack_leases
from tubes.serve.native.operations import Call, operation
from tubes.serve.native.schemas import Fields, Schema
from tubes.serve.problems import to_json
from tubes.serve.service import Limits

#: Maximum tubes of one take.
_TUBES: Final = 100
_TAKE: Final[Fields] = {
    "limit": schemas.BATCH,
    "wait": schemas.WAIT,
    "ttr": schemas.SECONDS,
    "ack": schemas.list_schema(schemas.LEASE, Limits.batch),
    "results": schemas.list_schema(schemas.ANY, Limits.batch),
    "session": schemas.TEXT,
}
_RULES: Final[Schema] = {"dependentRequired": {"results": ["ack"]}}
_REPLY: Final = schemas.object_schema(
    {"tasks": schemas.list_schema(shapes.TASK), "acked": schemas.list_schema(schemas.FLAG)}, "acked"
)


@operation(
    "POST", "/tubes/{tube}/take", "take", body=schemas.request_schema(_TAKE, **_RULES), replies={200: _REPLY, 204: None}
)
async def take(call: Call) -> bytes | None:
    """Take up to `limit` tasks (1), waiting up to `wait` seconds (0) for the first.

    `ttr`: seconds for these takes; default: the ttr of the task if its tube has one, else 120. `ack`: leases to ack
    first, with optional `results`. The lease of a task is used to end its take. `session`: the takes also end with this
    session; without one the tube must have a ttr. 204: no task, and no `ack` in the request.
    """
    return await _take(call, await call.body(), [call.tube])


@operation(
    "POST",
    "/take",
    "take",
    body=schemas.request_schema(
        {
            **_TAKE,
            "tubes": schemas.list_schema(schemas.TUBE, _TUBES, minimum=1),
            "order": schemas.one_of("tubes", "pri"),
        },
        "tubes",
        **_RULES,
    ),
    replies={200: _REPLY, 204: None},
)
async def take_any(call: Call) -> bytes | None:
    """Take from several tubes, in their order, or by priority (`order` is `pri`, one task at a time)."""
    body = await call.body()
    names: list[str] = body["tubes"]
    for name in names:
        call.check("take", name)
    return await _take(call, body, names)


async def _take(call: Call, body: Facts, names: list[str]) -> bytes | None:
    service, space = call.service, call.space
    with service.polls.reserve() if body.get("wait") else nullcontext():
        if "session" in body:
            space = await service.sessions.renew(space, body["session"], call.token)
        limit, wait, order = body.get("limit", 1), body.get("wait", 0), body.get("order", "tubes")
        ttr = body.get("ttr")
        for name in names:
            tube = await space.tube(name)
            if "ttr" not in tube.driver.options:
                if space is not call.space:
                    continue
                why = "without a ttr or a session, a task whose client is lost would stay taken: take in a session"
                raise OptionNotSupported(driver=tube.driver.name, what="ttr", why=why)
            if ttr is None and "ttr" not in tube.options:
                ttr = service.limits.ttr
        acked = None
        if "ack" in body:
            acked = await ack_leases(call, body["ack"], body.get("results"))
        tasks = await service.polls.take(call.receive, space, names, limit, wait, ttr, order)
        if not tasks and acked is None:
            return None
        reply = b'{"tasks":[%b]' % b",".join([shapes.task_json(call, task, leased=True) for task in tasks])
        if acked is not None:
            reply += b',"acked":%b' % to_json(acked)
        return reply + b"}"
