"""Sessions: the tasks of a session are released when it ends or is not renewed in time."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from tubes.serve.bodies import json_reply
from tubes.serve.native import schemas
from tubes.serve.native.operations import Call, operation
from tubes.serve.sessions import MAX_TTL, MIN_TTL

_TTL: Final = 60
_REPLY: Final = schemas.object_schema({"session": schemas.TEXT})


@operation(
    "POST",
    "/sessions",
    "take",
    body=schemas.request_schema({"ttl": schemas.number(MIN_TTL, MAX_TTL)}),
    replies={201: _REPLY},
)
async def begin_session(call: Call) -> Response:
    """Begin a session. It ends `ttl` seconds (60) after its last request. Pass its text as `session` of a take."""
    ttl = (await call.body()).get("ttl")
    text = await call.service.sessions.begin(call.space, _TTL if ttl is None else ttl, call.token)
    return json_reply({"session": text}, 201, {"location": call.url("sessions", text)})


@operation("POST", "/sessions/{session}/beat", "take", replies={204: None})
async def renew_session(call: Call) -> None:
    """Renew a session."""
    await call.body()
    await call.service.sessions.renew(call.space, call.path["session"], call.token)


@operation("DELETE", "/sessions/{session}", "take", replies={204: None})
async def end_session(call: Call) -> None:
    """End a session and release its tasks."""
    await call.service.sessions.end(call.space, call.path["session"], call.token)
