"""Leases: how the holder of a task ends its take, or gets more time. The lease is what proves that it is the holder."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from tubes.aio import AsyncTube
from tubes.errors import InvalidOption, TaskNotTaken, TubeNotFound, TubesError
from tubes.serve.bodies import encoded, json_reply
from tubes.serve.native import schemas, shapes
from tubes.serve.native.operations import Call, Operation, operation
from tubes.serve.native.schemas import Fields
from tubes.serve.native.tasks import changes_of, shown
from tubes.serve.service import Limits
from tubes.values.lease import Lease

_LEASES: Final[Fields] = {"leases": schemas.a_list(schemas.LEASE, Limits.batch)}
_check_lease: Final = schemas.compiled(schemas.LEASE)
_DONE: Final = schemas.an_object({"done": schemas.a_list(schemas.FLAG)})
_UPDATE: Final = shapes.an_update("data", "data_base64", "pri")


@operation(
    "POST",
    "/leases/ack",
    "take",
    body=schemas.a_request({**_LEASES, "results": schemas.a_list(schemas.ANY, Limits.batch)}, "leases"),
    replies={200: _DONE},
)
async def ack(call: Call) -> Response:
    """Finish tasks. Says of each lease whether it was the hold of its task.

    `results`: of as many tasks, for those with `keep_done`; null: none.
    """
    body = await call.body()
    return json_reply({"done": await acked(call, body["leases"], body.get("results"))})


async def acked(call: Call, texts: list[str], results: list[Any] | None) -> list[bool]:
    """Ack the tasks of these leases, with their results; returns for each whether it was the hold."""
    if results is None:
        return await ended(call, texts, "ack", {})
    leases = _leases_of(call, texts)
    if len(results) != len(leases):
        raise InvalidOption(option="results", value=f"{len(results)} results", rule="must be one for each lease")
    kept = [_kept(result) for result in results]
    return [await _ack_with(call, lease, result) for lease, result in zip(leases, kept, strict=True)]


def _kept(result: object) -> bytes | None:
    return None if result is None else encoded(result)


async def _ack_with(call: Call, lease: Lease, result: bytes | None) -> bool:
    try:
        await call.space.on(lease.tube, lambda tube: tube.ack(lease, result))
    except (TaskNotTaken, TubeNotFound):
        return False
    call.service.ends.tell(call.space.name, lease)
    return True


@operation("DELETE", "/leases/{lease}", "take", body=schemas.a_request({"result": schemas.ANY}), replies={204: None})
async def ack_one(call: Call) -> Response:
    """Finish a task, with a result if it has `keep_done`. 409: the take was over."""
    lease = _lease(call, _check_lease("lease", call.path["lease"]))
    result = _kept((await call.body()).get("result"))
    await call.space.on(lease.tube, lambda tube: tube.ack(lease, result))
    call.service.ends.tell(call.space.name, lease)
    return Response(status_code=204)


@operation("PATCH", "/leases/{lease}", "take", body=_UPDATE, replies={200: shapes.TASK})
async def update(call: Call) -> Response:
    """Change the data or the priority of a task that the client holds: later takes have them."""
    lease = _lease(call, _check_lease("lease", call.path["lease"]))
    changes = changes_of(await call.body())
    return shown(call, await call.space.on(lease.tube, lambda tube: tube.update(lease, **changes)))


@operation(
    "POST",
    "/leases/release",
    "take",
    body=schemas.a_request(
        {**_LEASES, "delay": schemas.SECONDS, "reason": schemas.NONEMPTY, "pri": schemas.PRI}, "leases"
    ),
    replies={200: _DONE},
)
async def release(call: Call) -> Response:
    """Give tasks back, at once or after a delay."""
    return await _end(call, "release")


@operation(
    "POST",
    "/leases/bury",
    "take",
    body=schemas.a_request({**_LEASES, "reason": schemas.NONEMPTY, "pri": schemas.PRI}, "leases"),
    replies={200: _DONE},
)
async def bury(call: Call) -> Response:
    """Set tasks aside."""
    return await _end(call, "bury")


@operation(
    "POST",
    "/leases/renew",
    "take",
    body=schemas.a_request({**_LEASES, "seconds": schemas.SECONDS}, "leases", "seconds"),
    replies={200: _DONE},
)
async def renew(call: Call) -> Response:
    """Give takes at least so many seconds from now on."""
    return await _end(call, "renew")


@operation(
    "POST",
    "/leases/touch",
    "take",
    body=schemas.a_request({**_LEASES, "seconds": schemas.SECONDS}, "leases", "seconds"),
    replies={200: _DONE},
)
async def touch(call: Call) -> Response:
    """Add seconds to the time to run, and to the ttl, for good."""
    return await _end(call, "touch")


async def _end(call: Call, how: str) -> Response:
    body = await call.body()
    return json_reply({"done": await ended(call, body.pop("leases"), how, body)})


def _lease(call: Call, text: str) -> Lease:
    lease = call.service.leases.read(call.space.name, text)
    call.check("take", lease.tube)
    return lease


def _leases_of(call: Call, texts: list[str]) -> list[Lease]:
    """The leases that these texts are."""
    leases: list[Lease] = []
    for number, text in enumerate(texts):
        try:
            leases.append(_lease(call, text))
        except TubesError as error:
            raise type(error)(**error.facts, item=number) from None
    return leases


async def ended(call: Call, texts: list[str], how: str, options: dict[str, Any]) -> list[bool]:
    """Do this to the tasks of leases; returns for each whether it was the hold of its task. All are read first."""
    leases = _leases_of(call, texts)
    by_tube: dict[str, list[int]] = {}
    for number, lease in enumerate(leases):
        by_tube.setdefault(lease.tube, []).append(number)
    done = [False] * len(leases)
    for name, numbers in by_tube.items():
        those = [leases[number] for number in numbers]
        try:
            results = await call.space.on(name, lambda tube, those=those: _act(tube, those, how, options))  # type: ignore[misc]
        except TubeNotFound:  # It was dropped, with the tasks.
            continue
        for number, result in zip(numbers, results, strict=True):
            done[number] = result
            if how not in ("renew", "touch"):
                call.service.ends.tell(call.space.name, leases[number])
    return done


async def _act(tube: AsyncTube, leases: list[Lease], how: str, given: dict[str, Any]) -> list[bool]:
    """Do this to tasks of one tube: in one call, if there is a method for many."""
    by_id: dict[int, bool] | None = None
    if len({lease.id for lease in leases}) == len(leases):
        if how == "ack":
            by_id = await tube.ack_many(leases)
        elif how == "renew":
            by_id = await tube.renew_many(leases, given["seconds"])
        elif how == "release" and given.keys() <= {"delay"}:
            by_id = await tube.release_many(leases, **given)
    if by_id is not None:
        return [by_id[lease.id] for lease in leases]
    return [await _one(tube, lease, how, given) for lease in leases]


async def _one(tube: AsyncTube, lease: Lease, how: str, given: dict[str, Any]) -> bool:
    try:
        if how == "renew":
            return (await tube.renew_many([lease], given["seconds"]))[lease.id]
        await getattr(tube, how)(lease, **given)
    except TaskNotTaken:
        return False
    return True


OPERATIONS: Final[tuple[Operation, ...]] = (ack, release, bury, renew, touch, ack_one, update)
