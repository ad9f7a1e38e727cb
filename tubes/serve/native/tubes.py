"""Tubes: to list, create, alter and drop them, and what is done with all their tasks."""

from __future__ import annotations

from typing import Any, Final, cast

from starlette.responses import Response

from tubes.errors import TubeExists
from tubes.serve.bodies import json_reply
from tubes.serve.native import schemas, shapes
from tubes.serve.native.operations import Call, Operation, operation
from tubes.serve.native.schemas import Fields

_TUBE: Final = schemas.an_object(
    {"name": schemas.TEXT, **shapes.OVERVIEW["properties"]}, "sessions", "oldest_ready_age"
)
_LANE: Final = schemas.an_object(
    {
        "name": schemas.TEXT,
        "ready": schemas.WHOLE,
        "taken": schemas.WHOLE,
        "next_start": schemas.maybe(schemas.MOMENT),
        "interval": schemas.SECONDS,
        "max_in_flight": schemas.WHOLE,
        "capacity": schemas.WHOLE,
    }
)
#: Edges of a histogram.
_EDGES: Final = schemas.matching(
    r"\d{1,9}(\.\d{1,6})?(,\d{1,9}(\.\d{1,6})?){0,99}", "1 to 100 numbers of seconds, with , between"
)
#: Words for yes in a query.
_TRUE: Final = ("true", "1")
_OPTIONS: Final[Fields] = {"options": shapes.OPTIONS}


@operation(
    "GET",
    "/tubes",
    "look",
    query={"ages": schemas.SWITCH},
    replies={200: schemas.an_object({"tubes": schemas.a_map(shapes.OVERVIEW)})},
)
async def list_tubes(call: Call) -> Response:
    """List the tubes that the token may look at, with their counts."""
    patterns = call.token.patterns("look", call.space.name)
    seen = await call.space.overview(patterns, ages=call.query().get("ages") in _TRUE)
    return json_reply({"tubes": {name: shapes.overview_json(each) for name, each in seen.items()}})


@operation("GET", "/tubes/{tube}", "look", replies={200: _TUBE})
async def get_tube(call: Call) -> Response:
    """Show a tube: its driver, options and counts."""
    call.space.forget(call.tube)  # Another process may have altered it.
    tube = await call.space.tube(call.tube)
    options = shapes.options_json(tube.options)
    counts = shapes.statistics_json(await tube.statistics())
    return json_reply({"name": tube.name, "driver": tube.driver.name, "options": options, **counts})


@operation(
    "PUT",
    "/tubes/{tube}",
    "manage",
    body=schemas.a_request({"driver": schemas.DRIVER, "temporary": schemas.FLAG, **_OPTIONS}),
    replies={200: _TUBE, 201: _TUBE},
)
async def put_tube(call: Call) -> Response:
    """Create a tube, or give the one that exists these options.

    Without a driver it is a `fifottl`. If its driver has a ttr, and the options none, that is 120 seconds.
    """
    body = await call.body()
    name: Any = body.get("driver", "fifottl")
    options = shapes.tube_options(body.get("options", {}))
    temporary: Any = body.get("temporary", False)
    connection: Any = call.space.queue._connection
    if "ttr" in connection.store.registry.find(name).options:
        options.setdefault("ttr", call.service.limits.ttr)
    status = 201
    try:
        await call.space.queue.create_tube(call.tube, name, temporary=temporary, **options)
    except TubeExists:
        status = 200
        await call.space.queue.create_tube(call.tube, name, if_exists="update", temporary=temporary, **options)
    reply = await _shown(call)
    reply.status_code = status
    return reply


@operation("PATCH", "/tubes/{tube}", "manage", body=schemas.a_request(_OPTIONS), replies={200: _TUBE})
async def alter_tube(call: Call) -> Response:
    """Change options of a tube; null takes one back to its default."""
    changes = shapes.tube_options((await call.body()).get("options", {}))
    await call.space.on(call.tube, lambda tube: tube.alter(**changes))
    return await _shown(call)


@operation("DELETE", "/tubes/{tube}", "manage", query={"force": schemas.SWITCH}, replies={204: None})
async def drop_tube(call: Call) -> Response:
    """Remove a tube and its tasks; while tasks are taken, or callers wait, only with `force`."""
    force = call.query().get("force") in _TRUE
    await call.space.on(call.tube, lambda tube: tube.drop(force=force))
    call.space.forget(call.tube)
    return Response(status_code=204)


@operation(
    "POST", "/tubes/{tube}/pause", "manage", body=schemas.a_request({"seconds": schemas.SECONDS}), replies={204: None}
)
async def pause(call: Call) -> Response:
    """Stop takes for so many seconds, or until `resume`."""
    seconds: Any = (await call.body()).get("seconds")
    await call.space.on(call.tube, lambda tube: tube.pause(seconds))
    return Response(status_code=204)


@operation("POST", "/tubes/{tube}/resume", "manage", replies={204: None})
async def resume(call: Call) -> Response:
    """End a pause."""
    await call.body()
    await call.space.on(call.tube, lambda tube: tube.resume())
    return Response(status_code=204)


@operation(
    "POST", "/tubes/{tube}/truncate", "manage", body=schemas.a_request({"state": shapes.STATE}), replies={204: None}
)
async def truncate(call: Call) -> Response:
    """Remove all tasks, or those in one state."""
    state: Any = (await call.body()).get("state")
    await call.space.on(call.tube, lambda tube: tube.truncate(state=state))
    return Response(status_code=204)


@operation("POST", "/tubes/{tube}/release-all", "manage", replies={204: None})
async def release_all(call: Call) -> Response:
    """Release all taken tasks, whoever holds them."""
    await call.body()
    await call.space.on(call.tube, lambda tube: tube.release_all())
    return Response(status_code=204)


@operation(
    "POST",
    "/tubes/{tube}/kick",
    "manage",
    body=schemas.a_request(
        {
            "count": schemas.BATCH,
            "attempts": schemas.ATTEMPTS,
            "ttl": schemas.SECONDS,
            "state": schemas.one_of("buried", "delayed"),
        }
    ),
    replies={200: schemas.an_object({"kicked": schemas.WHOLE})},
)
async def kick(call: Call) -> Response:
    """Make up to `count` buried tasks ready (1), or delayed ones."""
    body = await call.body()
    kicked = await call.space.on(call.tube, lambda tube: tube.kick(**body))
    return json_reply({"kicked": kicked})


@operation(
    "POST",
    "/tubes/{tube}/move",
    "manage",
    body=schemas.a_request(
        {"to": schemas.TUBE, "state": schemas.one_of("ready", "delayed", "buried"), "limit": schemas.BATCH}, "to"
    ),
    replies={200: schemas.an_object({"moved": schemas.WHOLE})},
)
async def move(call: Call) -> Response:
    """Move buried tasks (or those in another state) to another tube of the namespace, up to `limit`."""
    body: Any = await call.body()
    to = body.pop("to")
    call.check("manage", to)
    other = await call.space.tube(to)
    options: dict[str, Any] = {"limit": call.service.limits.batch, **body}
    moved = await call.space.on(call.tube, lambda tube: tube.move_to(other, **options))
    return json_reply({"moved": moved})


@operation(
    "GET",
    "/tubes/{tube}/reasons",
    "look",
    replies={200: schemas.an_object({"reasons": schemas.a_map(schemas.WHOLE)})},
)
async def reasons(call: Call) -> Response:
    """Count the buried tasks by the kind of their reason."""
    return json_reply({"reasons": await call.space.on(call.tube, lambda tube: tube.reasons())})


@operation(
    "GET",
    "/tubes/{tube}/due",
    "look",
    query={"edges": _EDGES},
    replies={200: schemas.an_object({"counts": schemas.a_list(schemas.WHOLE)})},
)
async def due(call: Call) -> Response:
    """Count the tasks that move by themselves before each of these seconds from now, `edges=1,60,3600`, and later."""
    text: str = call.query().get("edges", "1,10,60,600,3600,86400")
    edges = [float(edge) for edge in text.split(",")]
    return json_reply({"counts": await call.space.on(call.tube, lambda tube: tube.due_histogram(edges))})


@operation(
    "GET",
    "/tubes/{tube}/lanes",
    "look",
    query={"limit": schemas.BATCH},
    replies={200: schemas.an_object({"lanes": schemas.a_list(_LANE)})},
)
async def list_lanes(call: Call) -> Response:
    """List lanes by name, up to `limit` (1000)."""
    limit = call.query().get("limit", 1000)
    lanes = await call.space.on(call.tube, lambda tube: tube.utubes(limit))
    return json_reply({"lanes": [lane._asdict() for lane in lanes]})


@operation(
    "PATCH",
    "/tubes/{tube}/lanes/{lane}",
    "manage",
    body=schemas.a_request(
        {
            "interval": schemas.maybe(schemas.SECONDS),
            "max_in_flight": schemas.maybe(schemas.COUNT),
            "interval_from": schemas.maybe(shapes.INTERVAL_FROM),
            "capacity": schemas.maybe(schemas.WHOLE),
        }
    ),
    replies={204: None},
)
async def configure_lane(call: Call) -> Response:
    """Set limits of a lane; null takes one back to that of the tube."""
    limits: Any = await call.body()
    await call.space.on(call.tube, lambda tube: tube.configure(call.path["lane"], **limits))
    return Response(status_code=204)


@operation(
    "POST",
    "/tubes/{tube}/lanes/{lane}/block",
    "manage",
    body=schemas.a_request({"seconds": schemas.SECONDS, "extend": schemas.FLAG}, "seconds"),
    replies={204: None},
)
async def block_lane(call: Call) -> Response:
    """Stop takes from a lane for so many seconds; with `extend` never for less than an earlier block."""
    given: Any = await call.body()
    await call.space.on(call.tube, lambda tube: tube.block(call.path["lane"], **given))
    return Response(status_code=204)


async def _shown(call: Call) -> Response:
    return await get_tube.handler(call)


OPERATIONS: Final[tuple[Operation, ...]] = cast(
    "tuple[Operation, ...]",
    (
        *(list_tubes, get_tube, put_tube, alter_tube, drop_tube, pause, resume, truncate, release_all, kick),
        *(move, reasons, due, list_lanes, configure_lane, block_lane),
    ),
)
