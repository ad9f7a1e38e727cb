"""The audit: who changed what through the service. All its processes share a hidden tube in each namespace."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from tubes.aio import AsyncTube
from tubes.errors import CodecError, Facts
from tubes.serve.namespaces import Namespace, limit_time, scan_tasks
from tubes.serve.problems import may_have_changed
from tubes.serve.tokens import Token

if TYPE_CHECKING:
    from tubes.serve.service import Service

#: The hidden tube. Each of its tasks is a change; their ids are consecutive.
AUDIT: Final = "tubes.audit"
#: Seconds for which a change is kept, and maximum changes of a namespace, in all and per token.
KEPT: Final = 30 * 86_400
MAX_CHANGES: Final = 10_000
MAX_OF_TOKEN: Final = 5000
#: Arguments that are data of tasks.
_DATA: Final = ("contains", "data", "data_base64")
#: Maximum characters of an argument as JSON.
_LONGEST: Final = 500
#: Changes per call of the backend, and changes after which the oldest ones beyond the limits are removed.
_STEP: Final = 250
_log: Final = logging.getLogger("tubes.serve")


def shorten(arguments: Mapping[str, object]) -> Facts:
    """Return arguments for the audit: long ones as text, and without data of tasks, such as the searched text."""
    return {name: "..." if name in _DATA else _shorten(value) for name, value in arguments.items()}


def _shorten(value: object) -> object:
    # UTF-8 has no lone surrogates: replace them by question marks.
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return json.loads(text) if len(text) <= _LONGEST else text[:_LONGEST] + "..."


async def record(
    service: Service,
    namespace: str,
    token: Token,
    action: str,
    *,
    tube: str | None = None,
    task: int | None = None,
    lane: str | None = None,
    arguments: Mapping[str, object],
    count: int | None = None,
    is_certain: bool = True,
) -> None:
    """Add a change that was made by a request, and forget the recent results of its namespace.

    `count`: the number of changed tasks, if known. `is_certain`: False if the request has failed, but the backend may
    have applied the change. A failure to add it is only logged: the reply to the request is not changed.
    """
    change: Facts = {"token": token.id or None, "description": token.description, "action": action}
    change |= {"tube": tube, "task": task, "lane": lane, "arguments": arguments, "count": count}
    if not is_certain:
        change["outcome"] = "unknown"
    try:
        space = await service.namespaces.get(namespace)
        await limit_time(space.queue, _put(space, change))
    except Exception as error:
        _log.warning("the audit of namespace %s lacks a change, %s: %s", namespace, action, error)
    service.recent.forget(namespace)


@asynccontextmanager
async def recorded(record_change: Callable[..., Awaitable[None]]) -> AsyncGenerator[None]:
    """Call `record_change` after a block; with `is_certain=False` if it fails, but may have changed something."""
    try:
        yield
    except Exception as error:
        if may_have_changed(error):
            await record_change(is_certain=False)
        raise
    await record_change()


async def _put(space: Namespace, change: Facts) -> None:
    tube = await _open(space)
    task = await tube.put(change, ttl=KEPT)
    if task.id % _STEP == _STEP - 1:
        await _remove_oldest(tube)


async def _remove_oldest(tube: AsyncTube) -> None:
    """Remove the oldest changes, so that the next ones do not exceed the limits."""
    kept, kept_of_token = 0, Counter[object]()
    removed: list[int] = []
    async for task in tube.select(newest_first=True):
        token: object = None
        with suppress(CodecError):
            token = task.data["token"]
        if kept < MAX_CHANGES - _STEP and kept_of_token[token] < MAX_OF_TOKEN - _STEP:
            kept += 1
            kept_of_token[token] += 1
        else:
            removed.append(task.id)
    for start in range(0, len(removed), _STEP):
        await tube.delete_many(removed[start : start + _STEP])


async def read(space: Namespace, is_visible: Callable[[Facts], bool], limit: int, before: int | None) -> list[Facts]:
    """Return up to `limit` visible changes, newest first; `before`: only those with smaller ids."""
    tube = await _open(space)
    parts = scan_tasks(
        {"newest_first": True}, before, min(limit, _STEP), lambda read: limit_time(space.queue, read(tube))
    )
    found: list[Facts] = []
    async with aclosing(parts):
        async for part in parts:
            for task in part:
                with suppress(CodecError):
                    change: Facts = {"id": task.id, "at": task.created, **task.data}
                    if is_visible(change):
                        found.append(change)
            if len(found) >= limit:
                break
    return found[:limit]


async def _open(space: Namespace) -> AsyncTube:
    return await space.queue.admin._hidden_tube(AUDIT, KEPT, kept=True)
