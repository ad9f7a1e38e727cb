"""Dead letters: jobs whose last try has ended. They are buried tasks."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from tubes.aio import AsyncTube
from tubes.drivers.options import MAX_SECONDS
from tubes.serve.bodies import json_reply
from tubes.serve.lmstfy.calls import INT64, Call
from tubes.serve.lmstfy.jobs import counted

_TTL: Final = 86_400
#: Dead letters that one call of the backend is for.
_STEP: Final = 1000


async def peek(call: Call) -> Response:
    """Count the dead letters, and name the first one."""
    first = await call.first("buried")
    size = 0 if first is None else await counted(call, "buried")
    head = "" if first is None else call.job_id(call.queue, first.id)
    facts = {"deadletter_size": size, "deadletter_head": head}
    return json_reply({"namespace": call.space.name, "queue": call.queue, **facts})


async def respawn(call: Call) -> Response:
    """Make dead letters ready, each for one more try."""
    limit, ttl = call.number("limit", 1, INT64, 1), call.number("ttl", _TTL, INT64)
    lives = ttl if 0 < ttl <= MAX_SECONDS else None

    async def kick(tube: AsyncTube) -> int:
        kicked = 0
        while kicked < limit:
            step = min(limit - kicked, _STEP)
            done = await tube.kick(step, attempts=1, ttl=lives)
            kicked += done
            if done < step:
                break
        return kicked

    count = await call.on_known(kick, 0)
    call.metrics.respawned(count)
    return json_reply({"msg": "respawned", "count": count})


async def delete(call: Call) -> Response:
    """Remove dead letters, the first ones first."""
    limit = call.number("limit", 1, INT64, 1)

    async def remove(tube: AsyncTube) -> None:
        left = limit
        while left:
            found = await tube.buried(min(left, _STEP))
            await tube.delete_many(found, state="buried")
            left -= len(found)
            if not found:
                break

    await call.on_known(remove, None)
    return Response(status_code=204)
