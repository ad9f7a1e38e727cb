"""Put, show, change and remove tasks."""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from tubes.aio import AsyncTask
from tubes.drivers.options import micros, text
from tubes.errors import CallTimeout, Facts, InvalidOption, TubesError
from tubes.serve.bodies import json_reply
from tubes.serve.namespaces import scan_tasks
from tubes.serve.native import schemas, shapes
from tubes.serve.native.operations import Call, Operation, operation
from tubes.serve.native.schemas import Schema
from tubes.serve.polls import MAX_REPLY, MAX_STEP, has_disconnected
from tubes.serve.problems import ClientDisconnected
from tubes.serve.service import Limits, size_of
from tubes.values.batch import Item

#: Seconds for which an `Idempotency-Key` is remembered after its task has ended.
_IDEMPOTENCY_TTL: Final = 86_400
_WITH_TIMEOUT: Final = {**shapes.PUT, "timeout": schemas.SECONDS}
_QUERY: Final = {
    name: schema for name, schema in _WITH_TIMEOUT.items() if name not in ("data", "data_base64", "context")
}
_ANY: Final = "|".join(shapes.STATES)
_UPDATE: Final = shapes.update_schema("data", "data_base64", "pri", "delay", "at", "ttl")
_STATES: Final = schemas.pattern_schema(
    rf"({_ANY})(,({_ANY}))*", f"some of {', '.join(shapes.STATES)}, separated by commas"
)
_IDS: Final = schemas.object_schema({"ids": schemas.list_schema(schemas.INTEGER)})


@operation(
    "POST",
    "/tubes/{tube}/tasks",
    "put",
    body=shapes.put_schema(_WITH_TIMEOUT),
    replies={201: shapes.PUT_REPLY, 200: shapes.PUT_REPLY},
)
async def put_task(call: Call) -> Response:
    """Put a task. If a task with this key exists, it is kept and returned with status 200."""
    body = await call.body()
    return await _put(call, shapes.data_of(body), shapes.put_options(body, call.trace))


@operation(
    "POST",
    "/tubes/{tube}/tasks/raw",
    "put",
    query=_QUERY,
    rules=shapes.RULES,
    takes_bytes=True,
    replies={201: shapes.PUT_REPLY, 200: shapes.PUT_REPLY},
)
async def put_raw(call: Call) -> Response:
    """Put a task whose data is the raw body. The options are in the query."""
    options = shapes.put_options(call.query(), call.trace)
    return await _put(call, await call.raw(), options)


async def _put(call: Call, data: bytes, options: Facts) -> Response:
    key = _idempotency_key(call)
    if key is not None:
        if "key" in options:
            raise InvalidOption(option="key", value=options["key"], rule="must be left out with an Idempotency-Key")
        options |= {"key": key, "key_ttl": _IDEMPOTENCY_TTL, "on_duplicate": "keep"}
    timeout = options.pop("timeout", None)
    seconds = 0.0 if timeout is None else min(micros("timeout", timeout) / 1e6, call.service.limits.wait)
    task: AsyncTask | None
    with call.service.polls.reserve() if seconds else nullcontext():
        options |= await call.service.check_put(call.token, size_of(data, options))
        if not seconds:
            task = await call.space.apply(call.tube, lambda tube: tube.put(data, **options))
        else:
            waiting = call.space.apply(call.tube, lambda tube: tube.put(data, timeout=seconds, **options), waits=True)
            task = await call.service.polls.wait(call.receive, waiting)
    if task is None:
        if call.service.is_closing:
            raise HTTPException(503, "the service is stopping")
        raise HTTPException(409, f"tube {call.tube!r} had no room within {seconds} s")
    if key is not None and not task.created_now and task.data != data:
        raise HTTPException(422, "this Idempotency-Key was used with another body")
    location = {"location": call.url("tubes", call.tube, "tasks", task.id)}
    return json_reply({"id": task.id, "state": str(task.state)}, 201 if task.created_now else 200, location)


def _idempotency_key(call: Call) -> str | None:
    for name, value in call.scope["headers"]:
        if name == b"idempotency-key":
            return text("Idempotency-Key", value.decode("latin-1"))
    return None


def _refuse_idempotency_key(call: Call, why: str) -> None:
    if (key := _idempotency_key(call)) is not None:
        raise InvalidOption(option="Idempotency-Key", value=key, rule=f"must be left out: {why}")


@operation(
    "POST",
    "/tubes/{tube}/tasks/batch",
    "put",
    body=schemas.request_schema({"items": schemas.list_schema(shapes.put_schema(shapes.PUT), Limits.batch)}, "items"),
    replies={201: _IDS},
)
async def put_batch(call: Call) -> Response:
    """Put many tasks, all or none. An error has the index of its item as `item`."""
    _refuse_idempotency_key(call, "give each item a key instead")
    body = await call.body()
    items: list[Item[bytes]] = []
    trace = call.trace
    for number, each in enumerate(body["items"]):
        try:
            items.append(Item(shapes.data_of(each), **shapes.put_options(each, trace)))
        except TubesError as error:
            raise type(error)(**error.facts, item=number) from None
    options = await call.service.check_put(
        call.token, sum(size_of(item.data, item.options) for item in items), len(items)
    )
    tasks = await call.space.apply(call.tube, lambda tube: tube.put_many(items, errors="raise", **options))
    return json_reply({"ids": [task.id for task in tasks]}, 201)


@operation(
    "POST",
    "/tubes/{tube}/call",
    "put",
    body=shapes.put_schema(
        {
            **{name: schema for name, schema in shapes.PUT.items() if name not in ("key", "key_ttl", "on_duplicate")},
            "timeout": schemas.WAIT,
        },
        "timeout",
    ),
    replies={200: schemas.object_schema({"result": schemas.ANY})},
)
async def call_handler(call: Call) -> Facts:
    """Put a task, and wait up to `timeout` seconds for the return value of the handler of a Python worker."""
    _refuse_idempotency_key(call, "each call runs the handler")
    body = await call.body()
    timeout = body.pop("timeout")
    data, options = shapes.data_of(body), shapes.put_options(body, call.trace)

    async def work() -> list[object]:
        return [await call.space.apply(call.tube, lambda tube: tube.call(data, timeout, **options), waits=True)]

    with call.service.polls.reserve():
        options |= await call.service.check_put(call.token, size_of(data, options))
        results = await call.service.polls.wait(call.receive, work())
    if results is None:
        raise HTTPException(503, "the service is stopping: the task stays in the tube")
    return {"result": results[0]}


@operation(
    "GET",
    "/tubes/{tube}/tasks",
    "look",
    query={**shapes.FILTERS, "after": schemas.INTEGER, "limit": schemas.BATCH, "preview": shapes.PREVIEW},
    replies={200: schemas.object_schema({"tasks": schemas.list_schema(shapes.TASK)})},
)
async def list_tasks(call: Call) -> bytes:
    """List up to `limit` (100) tasks that pass all filters, after the id `after`, without taking them.

    The filters and the order are those of `Tube.select`. Returns fewer than `limit` once they have more than 8 MiB of
    data. An empty list is the end.
    """
    query = call.query()
    limit = query.pop("limit", 100)
    after, preview = query.pop("after", None), query.pop("preview", None)
    tasks: list[bytes] = []
    parts = scan_tasks(query, after, min(limit, MAX_STEP), partial(call.space.apply, call.tube))
    async with aclosing(parts):
        async for part in parts:
            if await has_disconnected(call.receive):
                raise ClientDisconnected
            tasks += [shapes.task_json(call, task, preview=preview) for task in part[: limit - len(tasks)]]
            if len(tasks) >= limit or sum(map(len, tasks)) >= MAX_REPLY:
                break
    return b'{"tasks":[%b]}' % b",".join(tasks)


@operation("GET", "/tubes/{tube}/tasks/{id}", "look", query={"preview": shapes.PREVIEW}, replies={200: shapes.TASK})
async def get_task(call: Call) -> bytes:
    """Show a task."""
    task = await call.space.apply(call.tube, lambda tube: tube.peek(call.task))
    return shapes.task_json(call, task, preview=call.query().get("preview"))


@operation("PATCH", "/tubes/{tube}/tasks/{id}", "manage", body=_UPDATE, replies={200: shapes.TASK})
async def update_task(call: Call) -> bytes:
    """Change a task in any state, even if another client holds it."""
    changes = update_arguments(await call.body())
    if call.service.has_objects and "data" in changes:
        rule = "cannot be changed here: this queue in memory has no codec, so its data are objects of a program"
        raise InvalidOption(option="data", value=changes["data"], rule=rule)
    return task_reply(call, await call.space.apply(call.tube, lambda tube: tube.update(call.task, **changes)))


def update_arguments(body: dict[str, object]) -> Facts:
    """Return the arguments of `Tube.update` in a body."""
    data = {"data": shapes.data_of(body)} if "data" in body or "data_base64" in body else {}
    return data | shapes.put_options(body, {})


@operation("DELETE", "/tubes/{tube}/tasks/{id}", "manage", query={"state": _STATES}, replies={204: None})
async def delete_task(call: Call) -> None:
    """Remove a task in any state, or only in the given states: `state=ready,delayed`."""
    state = call.query().get("state")
    states = None if state is None else state.split(",")
    await call.space.apply(call.tube, lambda tube: tube.delete(call.task, state=states))


def _changing(action: str, summary: str, **members: Schema) -> Operation:
    """Return the operation that applies this action to the task of the path."""

    async def change(call: Call) -> bytes:
        body: Any = await call.body()
        return task_reply(
            call, await call.space.apply(call.tube, lambda tube: getattr(tube, action)(task=call.task, **body))
        )

    change.__name__, change.__doc__ = f"{action}_task", summary
    path, body = f"/tubes/{{tube}}/tasks/{{id}}/{action}", schemas.request_schema(members)
    return operation("POST", path, "manage", body=body, replies={200: shapes.TASK})(change)


bury_task = _changing("bury", "Bury a task, even if another client holds it.", reason=schemas.NONEMPTY, pri=schemas.PRI)
cancel_task = _changing(
    "cancel",
    "End a task in any state as cancelled. The next checkpoint of a client that holds it reports this.",
    reason=schemas.NONEMPTY,
)
kick_task = _changing(
    "kick",
    "Make a buried or delayed task ready, or put a kept done task again under a new id.",
    attempts=schemas.ATTEMPTS,
    ttl=schemas.SECONDS,
)


@operation(
    "GET",
    "/tubes/{tube}/tasks/{id}/result",
    "look",
    query={"wait": schemas.WAIT},
    replies={
        200: schemas.object_schema({"result": schemas.ANY, "result_base64": schemas.TEXT}, "result_base64"),
        204: None,
    },
)
async def get_result(call: Call) -> bytes | None:
    """Return the result of a task with `keep_done`, waiting up to `wait` seconds (0) for its end. 204: it is not done.

    404: it has expired; 502: it ended without a result.
    """
    wait = call.query().get("wait", 0)
    id = call.task

    async def work() -> bytes | None:
        try:
            result: bytes | None = await call.space.apply(call.tube, lambda tube: tube.result(id, wait), waits=wait > 0)
        except CallTimeout:
            return None
        return b"{%b}" % shapes.bytes_json("result", b"null" if result is None else result)

    with call.service.polls.reserve() if wait else nullcontext():
        return await (call.service.polls.wait(call.receive, work()) if wait else work())


def task_reply(call: Call, task: AsyncTask) -> bytes:
    """Return a task as a reply, without its data if the client may not see that."""
    may_look = call.operation.right == "take" or call.may("look", task.tube)
    return shapes.task_json(call, task) if may_look else shapes.facts_json(task).encode()
