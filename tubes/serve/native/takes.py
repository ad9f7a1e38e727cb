"""Takes: from one tube, or from several, at once or as soon as there is a task."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from tubes.errors import InvalidOption, OptionNotSupported
from tubes.serve.bodies import list_of, to_json
from tubes.serve.native import shapes
from tubes.serve.native.leases import acked as acked_by
from tubes.serve.native.operations import Call, Fields, Operation, checked_wait, operation
from tubes.values.batch import check_limit

#: Tubes of one take.
_TUBES: Final = 100
_TAKE: Final[Fields] = {
    "limit": {"type": "integer", "minimum": 1},
    "wait": shapes.SECONDS,
    "ttr": shapes.SECONDS,
    "ack": shapes.a_list(shapes.TEXT),
    "results": shapes.a_list(shapes.ANY),
    "session": shapes.TEXT,
}
_REPLY: Final = shapes.an_object({"tasks": shapes.a_list(shapes.TASK), "acked": shapes.a_list(shapes.FLAG)}, "acked")


@operation("POST", "/tubes/{tube}/take", "take", body=_TAKE, replies={200: _REPLY, 204: None})
async def take(call: Call) -> Response:
    """Take up to `limit` tasks (1), waiting up to `wait` seconds (0) for the first.

    `ttr`: seconds for these takes; else those of the task if its tube has a ttr, and else 120. `ack`: leases that are
    acked first, with `results` if they are given. The lease of a task is what ends its take. `session`: the takes end
    with it, too; without one the tube must have a ttr. 204: there is no task, and no lease was to be acked.
    """
    return await _take(call, await call.body(), [call.tube])


@operation(
    "POST",
    "/take",
    "take",
    body={**_TAKE, "tubes": shapes.a_list(shapes.TEXT), "order": {"type": "string", "enum": ["tubes", "pri"]}},
    required=("tubes",),
    replies={200: _REPLY, 204: None},
)
async def take_any(call: Call) -> Response:
    """Take from several tubes, the first one first, or by priority (`order` is `pri`, one task at a time)."""
    body = await call.body()
    names = list_of("tubes", body["tubes"], _TUBES)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidOption(option="tubes", value=names, rule="must be names, at least one")
    for name in names:
        call.check("take", name)
    return await _take(call, body, names)


async def _take(call: Call, body: dict[str, Any], names: list[str]) -> Response:
    service, space = call.service, call.space
    if body.get("session") is not None:
        space = await service.sessions.renew(space, body["session"], call.token)
    limit = check_limit(1 if body.get("limit") is None else body["limit"])
    if limit > service.limits.batch:
        raise InvalidOption(option="limit", value=limit, rule=f"must be at most {service.limits.batch}")
    wait = checked_wait(call, 0 if body.get("wait") is None else body["wait"])
    if len(service.polls) >= service.limits.polls:
        raise HTTPException(503, f"{service.limits.polls} requests wait already")
    order = "tubes" if body.get("order") is None else body["order"]
    if order not in ("tubes", "pri"):
        raise InvalidOption(option="order", value=order, rule="must be tubes or pri")
    ttr = body.get("ttr")
    for name in names:
        tube = await space.tube(name)
        if "ttr" not in tube.driver.options:
            if space is not call.space:
                continue
            why = "a task that nobody acks would be taken for ever: take in a session"
            raise OptionNotSupported(driver=tube.driver.name, what="ttr", why=why)
        if ttr is None and "ttr" not in tube.options:
            ttr = service.limits.ttr
    acked = None
    if body.get("ack") is not None or body.get("results") is not None:
        acked = await acked_by(call, "ack", body.get("ack"), body.get("results"))
    tasks = await service.polls.take(call.receive, space, names, limit, wait, ttr, order)
    if not tasks and acked is None:
        return Response(status_code=204)
    shown = b'{"tasks":[%b]' % b",".join([shapes.task_json(call, task, leased=True) for task in tasks])
    if acked is not None:
        shown += b',"acked":%b' % to_json(acked)
    return Response(shown + b"}", 200, None, "application/json")


OPERATIONS: Final[tuple[Operation, ...]] = (take, take_any)
