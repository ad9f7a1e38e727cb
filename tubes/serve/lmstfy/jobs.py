"""Jobs: to publish, consume, look at and delete them. A job is a task, and its attributes are the task's context."""

from __future__ import annotations

import json
import math
import time
from base64 import b64encode
from contextlib import nullcontext, suppress
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from tubes.aio import AsyncTask, AsyncTube
from tubes.drivers.moves import State
from tubes.drivers.options import MAX_SECONDS
from tubes.errors import TaskNotFound, TubeNotFound
from tubes.serve.bodies import json_reply
from tubes.serve.calls import size_of
from tubes.serve.lmstfy.calls import TTR, UINT16, UINT32, Call, bad

_TTL: Final = 86_400
_BULK: Final = 64
#: How often the longest body a bulk may be long.
_BULK_BODIES: Final = 4
_JOBS: Final = 100
#: Queues of one request.
_QUEUES: Final = 100
_ATTRIBUTES: Final = 16
_ATTRIBUTE: Final = b"job-attr-"
#: Characters of the name and of the value of an attribute; longer ones are cut.
_LONGEST_NAME: Final = 32
_LONGEST_VALUE: Final = 128
_NOT_A_LIST: Final = "request body should be an array of objects"


async def publish(call: Call) -> Response:
    """Put a job; returns its id."""
    options = _options(call)
    body = await call.body(call.service.longest_body(call.token), "body too large")
    options |= await call.service.check_put(call.token, size_of(body, options))
    task = await call.on_queue(lambda tube: tube.put(body, timeout=None, **options))
    call.metrics.published(call.space.name, call.queue, 1)
    return json_reply({"msg": "published", "job_id": call.job_id(call.queue, task.id)}, 201)


async def republish(call: Call) -> Response:
    """Put a job in the place of another one, which is deleted, if there is one."""
    call.check("take", call.queue)
    old = call.task_id()
    reply = await publish(call)
    if old is not None:
        await _delete(call, old)
    return reply


async def publish_bulk(call: Call) -> Response:
    """Put the elements of a JSON array as jobs, all or none."""
    options = _options(call)
    most = call.service.longest_body(call.token)
    elements = _elements(await call.body(most * _BULK_BODIES, "job too large"))
    if not elements:
        raise bad("no jobs")
    if any(len(element) > most for element in elements):
        raise HTTPException(413, "job too large")
    options |= await call.service.check_put(call.token, sum(size_of(each, options) for each in elements), len(elements))
    tasks = await call.on_queue(lambda tube: tube.put_many(elements, errors="raise", **options))
    call.metrics.published(call.space.name, call.queue, len(tasks))
    ids = [call.job_id(call.queue, task.id) for task in tasks]
    return json_reply({"msg": "published", "job_ids": ids}, 201)


def _options(call: Call) -> dict[str, Any]:
    delay, ttl = call.number("delay", 0, UINT32), call.number("ttl", _TTL, UINT32)
    if ttl and ttl < delay:
        raise bad("ttl is shorter than delay")
    tries = call.number("tries", 1, UINT16)
    if not tries:
        raise bad("tries shouldn't be zero")
    options: dict[str, Any] = {"max_attempts": tries}
    if delay:
        options["delay"] = min(delay, MAX_SECONDS)
    if 0 < ttl <= MAX_SECONDS:
        options["ttl"] = ttl - delay  # A delay prolongs the ttl of a task, but not that of a job.
    attributes = _attributes(call)
    if attributes:
        options["context"] = attributes
    return options


def _attributes(call: Call) -> dict[str, str]:
    """The attributes of a job: headers `Job-Attr-*`, if the client asks for that."""
    found: dict[str, str] = {}
    enabled = False
    for name, value in call.scope["headers"]:
        if name == b"enable-job-version":
            enabled = value.upper() == b"YES"
        elif name.startswith(_ATTRIBUTE) and value:
            attribute = name[len(_ATTRIBUTE) :].decode("latin-1")[:_LONGEST_NAME]
            found.setdefault(attribute, value.decode("latin-1")[:_LONGEST_VALUE])
    if enabled and len(found) > _ATTRIBUTES:
        raise bad(f"too many attributes, cannot exceed {_ATTRIBUTES}")
    return found if enabled else {}


def _constant(name: str) -> Any:
    raise ValueError(name)


#: Numbers are not read, so that any length will do.
_decoder: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_constant)


def _elements(body: bytes) -> list[bytes]:
    """The elements of a JSON array, each as it is written, if there are no more than may be."""
    try:
        text = body.decode()
        found: list[bytes] = []
        at = _skip(text, 0)
        if text[at] != "[":
            raise bad(_NOT_A_LIST)
        at = _skip(text, at + 1)
        while found or text[at] != "]":
            _, end = _decoder.raw_decode(text, at)
            found.append(text[at:end].encode())
            at = _skip(text, end)
            if text[at] == "]":
                break
            if text[at] != ",":
                raise bad(_NOT_A_LIST)
            if len(found) == _BULK:  # The rest need not be read.
                raise bad("too many jobs")
            at = _skip(text, at + 1)
        if _skip(text, at + 1) != len(text):
            raise bad(_NOT_A_LIST)
    except (ValueError, IndexError, RecursionError):
        raise bad(_NOT_A_LIST) from None
    return found


def _skip(text: str, at: int) -> int:
    """Where the next character is that is no space."""
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at


async def consume(call: Call) -> Response:
    """Take jobs of these queues, the first one first, as soon as there is one."""
    ttr = max(call.number("ttr", TTR, UINT32), 1)
    wait = min(call.number("timeout", 0, UINT32), call.service.limits.wait)
    count = call.number("count", 1, _JOBS, 1)
    names = list(dict.fromkeys(name for name in call.queue.split(",") if name))
    if not names or len(names) > _QUEUES or any(name.startswith("_") for name in names):
        raise bad("invalid queue name(s)")
    tasks: list[AsyncTask[Any]] = []
    polls = call.service.polls
    with polls.place() if wait else nullcontext():
        names = [name for name in names if await _is_there(call, name, create=wait > 0)]
        if names:
            try:
                tasks = await polls.take(call.receive, call.space, names, count, wait, min(ttr, MAX_SECONDS))
            except TubeNotFound:  # It was dropped just now.
                for name in names:
                    call.space.forget(name)
    if not tasks:
        return json_reply({"msg": "no job available"}, 404)
    jobs: list[dict[str, Any]] = [{"msg": "new job", **shown(call, task)} for task in tasks]
    for job in jobs:
        call.metrics.consumed(call.space.name, job["queue"], job["elapsed_ms"], of_several="," in call.queue)
    return json_reply(jobs if count > 1 else jobs[0])


async def _is_there(call: Call, name: str, *, create: bool) -> bool:
    try:
        await call.space.tube(name)
    except TubeNotFound:
        if create:
            await call.create(name)
        return create
    return True


async def peek(call: Call) -> Response:
    """Show the job that comes next."""
    task = await call.first("ready")
    if task is None:
        raise HTTPException(404, "the queue is empty")
    return json_reply(shown(call, task))


async def peek_job(call: Call) -> Response:
    """Show a job in any state."""
    task = call.task_id()
    if task is not None:
        with suppress(TubeNotFound, TaskNotFound):
            found = await call.space.on(call.queue, lambda tube: tube.peek(task))
            if found.state is not State.DONE:  # It may be kept, but lmstfy knows no done jobs.
                return json_reply({**shown(call, found), "remain_tries": 0})
    raise HTTPException(404, "job not found")


async def delete(call: Call) -> Response:
    """Remove a job in any state: that is how its consumer says that it is done."""
    task = call.task_id()
    if task is not None:
        await _delete(call, task)
    return Response(status_code=204)


async def _delete(call: Call, task: int) -> None:
    with suppress(TubeNotFound, TaskNotFound):
        done = await call.space.on(call.queue, lambda tube: tube.delete(task))
        call.metrics.deleted(call.space.name, call.queue, (time.time() - done.created) * 1000)


async def size(call: Call) -> Response:
    """Count the jobs that are ready."""
    return _sized(call, await counted(call, "ready"))


async def dead_letter_size(call: Call) -> Response:
    """Count the dead letters."""
    return _sized(call, await counted(call, "buried"))


async def counted(call: Call, state: str) -> int:
    """How many jobs of a queue are in a state."""

    async def count(tube: AsyncTube) -> int:
        return (await tube.statistics()).tasks[state]

    return await call.on_known(count, 0)


def _sized(call: Call, size: int) -> Response:
    return json_reply({"namespace": call.space.name, "queue": call.queue, "size": size})


async def destroy(call: Call) -> Response:
    """Remove the jobs that are ready."""
    await call.on_known(lambda tube: tube.truncate(state="ready"), None)
    return Response(status_code=204)


def shown(call: Call, task: AsyncTask[Any]) -> dict[str, Any]:
    """A job, as its consumer sees it."""
    now = time.time()
    lives = 0 if task.expires is None else max(math.ceil(task.expires - now - 1e-3), 0)
    return {
        "namespace": call.space.name,
        "queue": task.tube,
        "job_id": call.job_id(task.tube, task.id),
        "data": b64encode(task.data).decode(),
        "ttl": lives,
        "elapsed_ms": max(round((now - task.created) * 1000), 0),
        "remain_tries": max((task.max_attempts or 0) - task.attempts, 0),
        "attributes": task.context or None,
    }
