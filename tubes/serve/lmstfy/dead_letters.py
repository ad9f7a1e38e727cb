"""Dead letters: jobs whose last try has failed. They are buried tasks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final

from starlette.responses import Response

from tubes.aio import AsyncTube
from tubes.drivers.options import MAX_COUNT, MAX_SECONDS
from tubes.serve.bodies import json_reply
from tubes.serve.lmstfy.calls import INT64, Call
from tubes.serve.lmstfy.jobs import count_jobs

_TTL: Final = 86_400
#: Dead letters per call of the backend.
_STEP: Final = 1000


async def peek(call: Call) -> Response:
    """Count the dead letters, and return the id of the first one."""
    first = await call.first("buried")
    size = 0 if first is None else await count_jobs(call, "buried")
    head = "" if first is None else call.job_id(call.queue, first.id)
    facts = {"deadletter_size": size, "deadletter_head": head}
    return json_reply({"namespace": call.space.name, "queue": call.queue, **facts})


async def respawn(call: Call) -> Response:
    """Make dead letters ready for one more try each."""
    limit, ttl = call.number("limit", 1, INT64, 1), call.number("ttl", _TTL, INT64)
    task_ttl = ttl if 0 < ttl <= MAX_SECONDS else None

    def kick(tube: AsyncTube) -> Coroutine[object, None, int]:
        return tube.select("buried", limit=min(limit, MAX_COUNT)).kick(attempts=1, ttl=task_ttl)

    count = await call.apply_or(kick, 0)
    call.metrics.record_respawned(count)
    return json_reply({"msg": "respawned", "count": count})


async def delete(call: Call) -> Response:
    """Remove dead letters, beginning with the first."""
    limit = call.number("limit", 1, INT64, 1)

    await call.apply_or(lambda tube: tube.select("buried", limit=min(limit, MAX_COUNT)).delete(), None)
    return Response(status_code=204)
