"""The audit: who changed what through the service. All its processes share a hidden tube in each namespace."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tubes.aio import AsyncTube
from tubes.backend.selecting import Scan
from tubes.errors import CodecError, Facts
from tubes.serve.namespaces import Namespace, limit_time
from tubes.serve.tokens import Token

if TYPE_CHECKING:
    from tubes.serve.service import Service

#: The hidden tube. Each of its tasks is a change; their ids are consecutive.
AUDIT: Final = "tubes.audit"
#: Seconds for which a change is kept, and maximum changes of a namespace.
KEPT: Final = 30 * 86_400
MAX_CHANGES: Final = 10_000
#: Maximum characters of an argument as JSON.
_LONGEST: Final = 500
#: Changes per call of the backend.
_STEP: Final = 250
_log: Final = logging.getLogger("tubes.serve")


def shorten(arguments: Mapping[str, object]) -> Facts:
    """Return arguments for the audit: long ones as text, and without the searched text, which is data of tasks."""
    return {name: "..." if name == "contains" else _shorten(value) for name, value in arguments.items()}


def _shorten(value: object) -> object:
    # A lone surrogate becomes a question mark.
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return json.loads(text) if len(text) <= _LONGEST else text[:_LONGEST] + "..."


async def record(service: Service, namespace: str, token: Token, action: str, **facts: object) -> None:
    """Add a change that was made by a request. A failure is only logged: the request itself has succeeded.

    `facts`: its tube, task, lane, arguments and count, as far as the change has them.
    """
    known: Facts = {"token": token.id or None, "description": token.description, "action": action}
    missing = dict.fromkeys(("tube", "task", "lane", "count"))
    try:
        space = await service.namespaces.get(namespace)
        await limit_time(space.queue, _put(space, {**known, **missing, "arguments": {}, **facts}))
        service.recent.forget(space.name)
    except Exception as error:
        _log.warning("the audit of namespace %s lacks a change, %s: %s", namespace, action, error)


async def _put(space: Namespace, change: Facts) -> None:
    tube = await _open(space)
    task = await tube.put(change, ttl=KEPT)
    if task.id >= MAX_CHANGES:
        await tube.delete_many([task.id - MAX_CHANGES])


async def read(space: Namespace, is_visible: Callable[[Facts], bool], limit: int, before: int | None) -> list[Facts]:
    """Return up to `limit` visible changes, newest first; `before`: only those with smaller ids."""
    selection: Any = (await _open(space)).select(newest_first=True)
    scan = Scan(selection._filters, before)
    found: list[Facts] = []
    while len(found) < limit and not scan.ended:
        await asyncio.sleep(0)  # Let other requests run: few changes may be visible.
        part = selection._part(scan, selection._filters, min(limit, _STEP), with_data=True)
        for task in await limit_time(space.queue, part):
            with suppress(CodecError):
                change: Facts = {"id": task.id, "at": task.created, **task.data}
                if is_visible(change):
                    found.append(change)
    return found[:limit]


async def _open(space: Namespace) -> AsyncTube:
    return await space.queue.admin._hidden_tube(AUDIT, KEPT, kept=True)
