"""Publish, consume, peek at and delete jobs. A job is a task, and its attributes are the task's context."""

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
from tubes.errors import Facts, TaskNotFound, TubeNotFound
from tubes.serve.bodies import json_reply, refuse_constant
from tubes.serve.lmstfy.calls import TTR, UINT16, UINT32, Call, bad_request
from tubes.serve.service import size_of

_TTL: Final = 86_400
_MAX_BULK: Final = 64
#: Maximum length of a bulk, as a multiple of the maximum body.
_BULK_BODY_FACTOR: Final = 4
_MAX_JOBS: Final = 100
#: Maximum queues of one request.
_MAX_QUEUES: Final = 100
_MAX_ATTRIBUTES: Final = 16
_ATTRIBUTE_PREFIX: Final = b"job-attr-"
#: Maximum bytes of the name and of the value of an attribute; longer ones are cut.
_MAX_ATTRIBUTE_NAME: Final = 32
_MAX_ATTRIBUTE_VALUE: Final = 128
_NOT_A_LIST: Final = "request body should be an array of objects"


async def publish(call: Call, old: int | None = None) -> Response:
    """Put a job, in one step instead of the job `old` if that exists; return its id."""
    options = _options(call)
    body = await call.body(call.service.max_body(call.token), "body too large")
    options |= await call.service.check_put(call.token, size_of(body, options))

    async def put(tube: AsyncTube) -> tuple[Any, AsyncTask | None]:
        if old is not None:
            with suppress(TaskNotFound):
                replaced = await tube.peek(old)
                return await tube._put_again(replaced, (body, options)), replaced
        return await tube.put(body, **options), None

    task, replaced = await call.apply_creating(put)
    call.metrics.record_published(call.space.name, call.queue, 1)
    if replaced is not None:
        call.metrics.record_deleted(call.space.name, call.queue, (time.time() - replaced.created) * 1000)
    return json_reply({"msg": "published", "job_id": call.job_id(call.queue, task.id)}, 201)


async def republish(call: Call) -> Response:
    """Put a job, and delete the job in the path, which it replaces."""
    call.check("take", call.queue)
    return await publish(call, call.task_id())


async def publish_bulk(call: Call) -> Response:
    """Put the elements of a JSON array as jobs, all or none."""
    options = _options(call)
    max_body = call.service.max_body(call.token)
    elements = _elements(await call.body(max_body * _BULK_BODY_FACTOR, "job too large"))
    if not elements:
        raise bad_request("no jobs")
    if any(len(element) > max_body for element in elements):
        raise HTTPException(413, "job too large")
    options |= await call.service.check_put(
        call.token, sum(size_of(element, options) for element in elements), len(elements)
    )
    tasks = await call.apply_creating(lambda tube: tube.put_many(elements, errors="raise", **options))
    call.metrics.record_published(call.space.name, call.queue, len(tasks))
    ids = [call.job_id(call.queue, task.id) for task in tasks]
    return json_reply({"msg": "published", "job_ids": ids}, 201)


def _options(call: Call) -> Facts:
    delay, ttl = call.number("delay", 0, UINT32), call.number("ttl", _TTL, UINT32)
    if ttl and ttl < delay:
        raise bad_request("ttl is shorter than delay")
    tries = call.number("tries", 1, UINT16)
    if not tries:
        raise bad_request("tries shouldn't be zero")
    options: Facts = {"max_attempts": tries}
    if delay:
        options["delay"] = min(delay, MAX_SECONDS)
    if 0 < ttl <= MAX_SECONDS:
        options["ttl"] = ttl - delay  # A delay extends the ttl of a task, but not the ttl of a job.
    attributes = _attributes(call)
    if attributes:
        options["context"] = attributes
    return options


def _attributes(call: Call) -> dict[str, str]:
    """Return the attributes of a job: headers `Job-Attr-*`, if the header `Enable-Job-Version` is YES."""
    attributes: dict[str, str] = {}
    enabled = False
    for name, value in call.scope["headers"]:
        if name == b"enable-job-version":
            enabled = value.upper() == b"YES"
        elif name.startswith(_ATTRIBUTE_PREFIX) and value:
            attribute = name.removeprefix(_ATTRIBUTE_PREFIX)[:_MAX_ATTRIBUTE_NAME].decode(errors="replace")
            attributes.setdefault(attribute, value[:_MAX_ATTRIBUTE_VALUE].decode(errors="replace"))
    if enabled and len(attributes) > _MAX_ATTRIBUTES:
        raise bad_request(f"too many attributes, cannot exceed {_MAX_ATTRIBUTES}")
    return attributes if enabled else {}


#: Numbers are not converted, so that they may have any length.
_decoder: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=refuse_constant)


def _elements(body: bytes) -> list[bytes]:
    """Return the elements of a JSON array, each as its original text. Raise `HTTPException` if there are too many.

    As in Go, null is an empty array, and strings may have bytes that are not UTF-8.
    """
    if body.strip(b" \t\n\r") == b"null":
        return []
    text = body.decode(errors="surrogateescape")
    try:
        elements: list[bytes] = []
        position = _skip(text, 0)
        if text[position] != "[":
            raise bad_request(_NOT_A_LIST)
        position = _skip(text, position + 1)
        while elements or text[position] != "]":
            _, end = _decoder.raw_decode(text, position)
            elements.append(text[position:end].encode(errors="surrogateescape"))
            position = _skip(text, end)
            if text[position] == "]":
                break
            if text[position] != ",":
                raise bad_request(_NOT_A_LIST)
            if len(elements) == _MAX_BULK:  # Stop early: the remaining elements need not be read.
                raise bad_request("too many jobs")
            position = _skip(text, position + 1)
        if _skip(text, position + 1) != len(text):
            raise bad_request(_NOT_A_LIST)
    except (ValueError, IndexError, RecursionError):
        raise bad_request(_NOT_A_LIST) from None
    return elements


def _skip(text: str, position: int) -> int:
    """Return the position of the next character that is not whitespace."""
    while text[position : position + 1] in (" ", "\t", "\n", "\r"):
        position += 1
    return position


async def consume(call: Call) -> Response:
    """Take jobs from these queues, in their order, waiting for the first job if necessary."""
    ttr = max(call.number("ttr", TTR, UINT32), 1)
    wait = min(call.number("timeout", 0, UINT32), call.service.limits.wait)
    count = call.number("count", 1, _MAX_JOBS, 1)
    names = list(dict.fromkeys(name for name in call.queue.split(",") if name))
    if not names or len(names) > _MAX_QUEUES or any(name.startswith("_") for name in names):
        raise bad_request("invalid queue name(s)")
    tasks: list[AsyncTask] = []
    polls = call.service.polls
    with polls.reserve() if wait else nullcontext():
        names = [name for name in names if await _has_queue(call, name, create=wait > 0)]
        if names:
            try:
                tasks = await polls.take(call.receive, call.space, names, count, wait, min(ttr, MAX_SECONDS))
            except TubeNotFound:  # Dropped in the meantime.
                for name in names:
                    call.space.forget(name)
    if not tasks:
        return json_reply({"msg": "no job available"}, 404)
    jobs: list[Facts] = [{"msg": "new job", **job_json(call, task)} for task in tasks]
    for job in jobs:
        call.metrics.record_consumed(call.space.name, job["queue"], job["elapsed_ms"], is_multi="," in call.queue)
    return json_reply(jobs if count > 1 else jobs[0])


async def _has_queue(call: Call, name: str, *, create: bool) -> bool:
    try:
        await call.space.tube(name)
    except TubeNotFound:
        if create:
            await call.create(name)
        return create
    return True


async def peek(call: Call) -> Response:
    task = await call.first("ready")
    if task is None:
        raise HTTPException(404, "the queue is empty")
    return json_reply(job_json(call, task))


async def peek_job(call: Call) -> Response:
    """Show a job in any state."""
    task = call.task_id()
    if task is not None:
        with suppress(TubeNotFound, TaskNotFound):
            found = await call.space.apply(call.queue, lambda tube: tube.peek(task))
            if found.state is not State.DONE:  # A done task may be kept, but lmstfy has no done jobs.
                return json_reply({**job_json(call, found), "remain_tries": 0})
    raise HTTPException(404, "job not found")


async def delete(call: Call) -> Response:
    """Remove a job in any state. A consumer acks its job this way."""
    task = call.task_id()
    if task is not None:
        with suppress(TubeNotFound, TaskNotFound):
            done = await call.space.apply(call.queue, lambda tube: tube.delete(task))
            call.metrics.record_deleted(call.space.name, call.queue, (time.time() - done.created) * 1000)
    return Response(status_code=204)


async def size(call: Call, state: str) -> Response:
    """Count the jobs in a state."""
    return json_reply({"namespace": call.space.name, "queue": call.queue, "size": await count_jobs(call, state)})


async def count_jobs(call: Call, state: str) -> int:
    async def count(tube: AsyncTube) -> int:
        return (await tube.statistics()).tasks[state]

    return await call.apply_or(count, 0)


async def destroy(call: Call) -> Response:
    await call.apply_or(lambda tube: tube.select("ready").delete(), None)
    return Response(status_code=204)


def job_json(call: Call, task: AsyncTask) -> dict[str, object]:
    """Return a job in the form for its consumer."""
    now = time.time()
    ttl = 0 if task.expires is None else max(math.ceil(task.expires - now - 1e-3), 0)
    return {
        "namespace": call.space.name,
        "queue": task.tube,
        "job_id": call.job_id(task.tube, task.id),
        "data": b64encode(task.data).decode(),
        "ttl": ttl,
        "elapsed_ms": max(round((now - task.created) * 1000), 0),
        "remain_tries": max((task.max_attempts or 0) - task.attempts, 0),
        "attributes": task.context or None,
    }
