"""Take tasks, and end or extend their takes. The lease of a task proves that the client holds it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

from tubes.aio import AsyncTube
from tubes.errors import Facts, InvalidOption, OptionNotSupported, TaskNotTaken, TubeNotFound, TubesError
from tubes.serve.bodies import encode_data
from tubes.serve.native import schemas, shapes
from tubes.serve.native.operations import Call, Operation, operation
from tubes.serve.native.schemas import Fields, Schema
from tubes.serve.native.tasks import task_reply, update_arguments
from tubes.serve.problems import to_json
from tubes.serve.service import Limits
from tubes.values.lease import Lease
from tubes.values.task import MAX_NOTE

#: Maximum tubes of one take.
_MAX_TUBES: Final = 100
_TAKE: Final[Fields] = {
    "limit": schemas.BATCH,
    "wait": schemas.WAIT,
    "ttr": schemas.SECONDS,
    "ack": schemas.list_schema(schemas.LEASE, Limits.batch),
    "results": schemas.list_schema(schemas.ANY, Limits.batch),
    "session": schemas.TEXT,
}
_RULES: Final[Schema] = {"dependentRequired": {"results": ["ack"]}}
_TAKEN: Final = schemas.object_schema(
    {"tasks": schemas.list_schema(shapes.TASK), "acked": schemas.list_schema(schemas.FLAG)}, "acked"
)


@operation(
    "POST", "/tubes/{tube}/take", "take", body=schemas.request_schema(_TAKE, **_RULES), replies={200: _TAKEN, 204: None}
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
            "tubes": schemas.list_schema(schemas.TUBE, _MAX_TUBES, minimum=1),
            "order": schemas.one_of("tubes", "pri"),
        },
        "tubes",
        **_RULES,
    ),
    replies={200: _TAKEN, 204: None},
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


_LEASES: Final[Fields] = {"leases": schemas.list_schema(schemas.LEASE, Limits.batch)}
_DONE: Final = schemas.object_schema({"done": schemas.list_schema(schemas.FLAG)})
_UPDATE: Final = shapes.update_schema("data", "data_base64", "pri")


@operation(
    "POST",
    "/leases/ack",
    "take",
    body=schemas.request_schema({**_LEASES, "results": schemas.list_schema(schemas.ANY, Limits.batch)}, "leases"),
    replies={200: _DONE},
)
async def ack(call: Call) -> Facts:
    """Finish tasks. Returns for each lease whether it was valid.

    `results`: one for each lease, stored for tasks with `keep_done`; null: no result.
    """
    body = await call.body()
    return {"done": await ack_leases(call, body["leases"], body.get("results"))}


async def ack_leases(call: Call, texts: list[str], results: list[object] | None) -> list[bool]:
    """Ack the tasks of these leases, with their results; return for each whether it was valid."""
    if results is None:
        return await end_leases(call, texts, "ack", {})
    leases = _leases_of(call, texts)
    if len(results) != len(leases):
        raise InvalidOption(option="results", value=f"{len(results)} results", rule="must be one for each lease")
    encoded = [_encode_result(result) for result in results]
    done = [True] * len(leases)
    for number, (lease, result) in enumerate(zip(leases, encoded, strict=True)):
        try:
            await _ack(call, lease, result)
        except (TaskNotTaken, TubeNotFound):
            done[number] = False
    return done


def _encode_result(result: object) -> bytes | None:
    return None if result is None else encode_data(result)


async def _ack(call: Call, lease: Lease, result: bytes | None) -> None:
    await call.space.apply(lease.tube, lambda tube: tube.ack(lease, result))
    call.service.ended_leases.publish(call.space.name, lease)


@operation(
    "DELETE", "/leases/{lease}", "take", body=schemas.request_schema({"result": schemas.ANY}), replies={204: None}
)
async def ack_one(call: Call) -> None:
    """Finish a task, with a result if it has `keep_done`. 409: the take has ended already."""
    lease = _lease(call, schemas.check(schemas.LEASE, "lease", call.path["lease"]))
    await _ack(call, lease, _encode_result((await call.body()).get("result")))


@operation(
    "POST",
    "/leases/checkpoint",
    "take",
    body=schemas.request_schema(
        {
            "lease": schemas.LEASE,
            "saved": schemas.ANY,
            "progress": schemas.number(0, 1),
            "note": {**schemas.TEXT, "maxLength": MAX_NOTE},
        },
        "lease",
    ),
    replies={200: shapes.TASK},
)
async def checkpoint(call: Call) -> bytes:
    """Save the progress of the work on a task for the next attempt, and extend its take to at least its ttr from now.

    `saved`: any JSON of at most 65,536 bytes. `progress`: from 0 to 1. `note`: a text for people. An omitted member
    keeps its value. 409 with the type `task-cancelled`: the task was cancelled, so stop the work.
    """
    body: Any = await call.body()
    lease = _lease(call, body.pop("lease"))
    return task_reply(call, await call.space.apply(lease.tube, lambda tube: tube._checkpoint(lease, **body)))


@operation("PATCH", "/leases/{lease}", "take", body=_UPDATE, replies={200: shapes.TASK})
async def update(call: Call) -> bytes:
    """Change the data or the priority of a task that the client holds, for later takes."""
    lease = _lease(call, schemas.check(schemas.LEASE, "lease", call.path["lease"]))
    changes = update_arguments(await call.body())
    return task_reply(call, await call.space.apply(lease.tube, lambda tube: tube.update(lease, **changes)))


def _ending(action: str, summary: str, *required: str, **members: Schema) -> Operation:
    """Return the operation that applies this action to the tasks of leases."""

    async def end(call: Call) -> Facts:
        body = await call.body()
        return {"done": await end_leases(call, body.pop("leases"), action, body)}

    end.__name__, end.__doc__ = action, summary
    body = schemas.request_schema({**_LEASES, **members}, "leases", *required)
    return operation("POST", f"/leases/{action}", "take", body=body, replies={200: _DONE})(end)


_BURY: Final[Fields] = {
    "reason": schemas.NONEMPTY,
    "pri": schemas.PRI,
    "traceback": schemas.NONEMPTY,
    "worker": schemas.NONEMPTY,
}
release = _ending("release", "Release tasks, at once or after a delay.", delay=schemas.SECONDS, **_BURY)
bury = _ending("bury", "Bury tasks.", **_BURY)
renew = _ending("renew", "Extend takes to at least `seconds` from now.", "seconds", seconds=schemas.SECONDS)
touch = _ending(
    "touch", "Add `seconds` to the ttr and to the ttl of tasks, permanently.", "seconds", seconds=schemas.SECONDS
)


def _lease(call: Call, text: str) -> Lease:
    lease = call.service.leases.read(call.space.name, text)
    call.check("take", lease.tube)
    return lease


def _leases_of(call: Call, texts: list[str]) -> list[Lease]:
    leases: list[Lease] = []
    for number, text in enumerate(texts):
        try:
            leases.append(_lease(call, text))
        except TubesError as error:
            raise type(error)(**error.facts, item=number) from None
    return leases


async def end_leases(call: Call, texts: list[str], action: str, options: dict[str, object]) -> list[bool]:
    """Apply an action to the tasks of leases; return for each whether it was valid. All leases are read first."""
    leases = _leases_of(call, texts)
    by_tube: dict[str, list[int]] = {}
    for number, lease in enumerate(leases):
        by_tube.setdefault(lease.tube, []).append(number)
    done = [False] * len(leases)
    for name, numbers in by_tube.items():
        group = [leases[number] for number in numbers]
        try:
            results = await call.space.apply(name, lambda tube, group=group: _act(tube, group, action, options))  # type: ignore[misc]
        except TubeNotFound:  # The tube was dropped with its tasks.
            continue
        for number, result in zip(numbers, results, strict=True):
            done[number] = result
            if action not in ("renew", "touch"):
                call.service.ended_leases.publish(call.space.name, leases[number])
    return done


async def _act(tube: AsyncTube, leases: list[Lease], action: str, options: Facts) -> list[bool]:
    """Apply an action to tasks of one tube, in one call if the tube has a method for many tasks."""
    by_id: dict[int, bool] | None = None
    if len({lease.id for lease in leases}) == len(leases):
        if action == "ack":
            by_id = await tube.ack_many(leases)
        elif action == "renew":
            by_id = await tube.touch_many(leases, options["seconds"])
        elif action == "release" and options.keys() <= {"delay"}:
            by_id = await tube.release_many(leases, **options)
    if by_id is not None:
        return [by_id[lease.id] for lease in leases]
    return [await _end_one(tube, lease, action, options) for lease in leases]


async def _end_one(tube: AsyncTube, lease: Lease, action: str, options: Facts) -> bool:
    try:
        if action == "renew":
            return (await tube.touch_many([lease], options["seconds"]))[lease.id]
        await getattr(tube, action)(lease, **options)
    except TaskNotTaken:
        return False
    return True
