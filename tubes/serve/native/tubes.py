"""List, create, alter and drop tubes, and change all tasks of a tube."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from starlette.responses import Response

from tubes.aio import AsyncLane, AsyncTube
from tubes.backend.port import connection_of, port_of
from tubes.errors import Facts, TubeExists, TubeNotFound
from tubes.serve.bodies import from_json, json_reply
from tubes.serve.history import COUNTS, RATES, SAMPLES
from tubes.serve.namespaces import limit_time
from tubes.serve.native import schemas, shapes
from tubes.serve.native.operations import Call, Operation, operation
from tubes.serve.native.schemas import Fields, Schema
from tubes.values.lane import LaneInfo
from tubes.values.overview import Overview, exact_names, match_names
from tubes.values.problem import Problem
from tubes.values.reasons import kind_of
from tubes.values.task_data import function_of

_TUBE: Final = schemas.object_schema(
    {"name": schemas.TEXT, **shapes.OVERVIEW["properties"]}, *("oldest_ready_age", "history")
)
_LANE: Final = schemas.object_schema(
    {
        "name": schemas.TEXT,
        **dict.fromkeys(("ready", "taken", "max_in_flight", "capacity"), schemas.INTEGER),
        "interval": schemas.SECONDS,
        "burst": shapes.BURST,
        "weight": shapes.WEIGHT,
        **dict.fromkeys(("next_start", "blocked_until"), schemas.nullable(schemas.MOMENT)),
        "blocked_reason": schemas.nullable(schemas.TEXT),
        "waiting_since": {**schemas.nullable(schemas.MOMENT), "description": "When the next task of the lane was put."},
    }
)
#: Edges of a histogram.
_EDGES: Final = schemas.pattern_schema(
    r"\d{1,9}(\.\d{1,6})?(,\d{1,9}(\.\d{1,6})?){0,99}", "1 to 100 numbers of seconds, separated by commas"
)
#: The query parameters of a part of a list.
_PAGE: Final[Fields] = {
    "limit": schemas.BATCH,
    "offset": schemas.INTEGER,
    "contains": {**schemas.TEXT, "description": "A part of the name, in upper or lower case."},
}
#: True values in a query.
_TRUE: Final = ("true", "1")
_OPTIONS: Final[Fields] = {"options": shapes.OPTIONS}
#: The sort keys of a list of lanes, smallest first; lanes with equal keys are sorted by name.
_LANE_SORTS: Final[dict[str, Callable[[LaneInfo], float]]] = {
    "name": lambda lane: 0,
    "ready": lambda lane: -lane.ready,
    "taken": lambda lane: -lane.taken,
    "waiting_since": lambda lane: math.inf if lane.waiting_since is None else lane.waiting_since,
    "next_start": lambda lane: math.inf if lane.next_start is None else lane.next_start,
    "blocked": lambda lane: -(lane.blocked_until or 0),
}
_PROBLEMS: Final[Schema] = schemas.object_schema(
    {
        "problems": schemas.list_schema(
            schemas.object_schema(
                {
                    **dict.fromkeys(("kind", "what", "remedy"), schemas.TEXT),
                    "count": schemas.INTEGER,
                    "examples": schemas.list_schema(schemas.TEXT),
                    "repaired": schemas.FLAG,
                }
            )
        )
    }
)
#: Maximum lanes that a sorted list looks at, and seconds after which a list reads no further part of them.
_MAX_LANES: Final = 10_000
_LANES_WITHIN: Final = 1.0
#: The oldest and the newest buried tasks that are sampled, and the maximum bytes of their data.
_SAMPLED, _SAMPLED_BYTES = 1000, 2**23
#: The maximum number of functions in a sample.
_SAMPLED_FUNCTIONS = 5
_SAMPLE: Final[Schema] = schemas.object_schema(
    {
        "first": schemas.MOMENT,
        "last": schemas.MOMENT,
        "id": schemas.INTEGER,
        "functions": schemas.list_schema(schemas.TEXT, _SAMPLED_FUNCTIONS),
    }
)


def _count_tasks(state: str, tube: Overview) -> int:
    return tube.statistics.tasks[state]


#: The sort keys of a list of tubes, largest first; tubes with equal keys are sorted by name.
_SORTS: Final[dict[str, Callable[[Overview], float]]] = {
    **{state: partial(_count_tasks, state) for state in COUNTS},
    "waiting": lambda tube: tube.statistics.waiting,
    "oldest": lambda tube: -1.0 if tube.oldest_ready_age is None else tube.oldest_ready_age,
}


@operation(
    "GET",
    "/tubes",
    "look",
    query={
        **_PAGE,
        "ages": schemas.SWITCH,
        "sort": schemas.one_of("name", *_SORTS),
        "history": schemas.integer(0, SAMPLES),
    },
    replies={
        200: schemas.object_schema(
            {
                "tubes": schemas.map_schema(shapes.OVERVIEW),
                "names": schemas.list_schema(schemas.TEXT),
                "total": schemas.INTEGER,
                "tasks": schemas.map_schema(schemas.INTEGER),
                "interval": schemas.SECONDS,
            },
            *("names", "total", "tasks", "interval"),
        )
    },
)
async def list_tubes(call: Call) -> Facts:
    """List the tubes that the token may see, with their counts.

    The other parameters select a part of the list: the tubes whose names contain a text in any case, sorted by name or
    by a number, the largest first. `names` has their order; `total` and `tasks` count all of them. Such a list is read
    again only after a second or more. `history`: up to this number of samples of each tube, oldest first, `interval`
    seconds apart: `put`, `done` and `failed` per second, and `ready`.
    """
    query = call.query()
    ages = query.pop("ages", None) in _TRUE
    if query:
        return await _list_page(call, query, ages=ages)
    names = await _visible_names(call)
    found = await call.space.read_tubes(("*",) if names is None else names, ages=ages) if names != [] else {}
    return {"tubes": {name: shapes.overview_json(call, name, one) for name, one in found.items()}}


async def _list_page(call: Call, query: Facts, *, ages: bool) -> Facts:
    """List a part of the tubes, with the totals of all."""
    sort, offset = query.get("sort", "name"), query.get("offset", 0)
    tubes = await _recent_tubes(call, ages=sort == "oldest")
    text = query.get("contains", "").casefold()
    names = sorted(name for name in tubes if text in name.casefold())
    totals = {state: sum(_count_tasks(state, tubes[name]) for name in names) for state in (*COUNTS, "done", "total")}
    if sort in _SORTS:
        names.sort(key=lambda name: _SORTS[sort](tubes[name]), reverse=True)
    part = names[offset : offset + query.get("limit", len(names))]
    if ages and sort != "oldest" and part:
        tubes = tubes | await _recent_named(call, part, ages=True)
    replies = {name: shapes.overview_json(call, name, tubes[name]) for name in part}
    reply: dict[str, object] = {"tubes": replies, "names": part, "total": len(names), "tasks": totals}
    if query.get("history"):
        history = call.service.samplers.keep_sampling(call.space.name)
        reply["interval"] = history.interval
        for name, members in replies.items():
            samples = history.read(name, query["history"], (*RATES, "ready"))
            del samples["at"]
            members["history"] = samples
    return reply


async def _recent_tubes(call: Call, *, ages: bool) -> dict[str, Overview]:
    """Return a recent overview of the tubes that the token may see."""
    names = await _visible_names(call)
    if names is not None:
        return await _recent_named(call, names, ages=ages) if names else {}
    return (await call.service.samplers.read_recent_tubes(call.space.name, ages=ages))[1]


async def _visible_names(call: Call) -> list[str] | None:
    """Return the names of the tubes that the token may see: a recent result for wildcards. None: all tubes."""
    patterns, queue = call.token.patterns("look", call.space.name), call.space.queue
    if "*" in patterns:
        return None

    async def read() -> list[str]:
        return match_names(await limit_time(queue, queue.tubes()), patterns)

    names = exact_names(patterns)
    return names or await call.service.recent.get(call.space.name, ("names", *patterns), read)


async def _recent_named(call: Call, names: list[str], *, ages: bool) -> dict[str, Overview]:
    """Return a recent overview of the existing tubes among `names`."""
    read = partial(call.space.read_tubes, names, ages=ages)
    return await call.service.recent.get(call.space.name, ("tubes", ages, *names), read)


@operation("GET", "/tubes/{tube}", "look", query={"ages": schemas.SWITCH}, replies={200: _TUBE})
async def get_tube(call: Call) -> Facts:
    """Show a tube: its driver, options and counts. `lanes` is null if its driver has no lanes."""
    ages = call.query().get("ages") in _TRUE
    # On a server an overview does not make overdue changes.
    await call.space.apply(call.tube, lambda tube: tube.statistics())
    overview = (await call.space.read_tubes((call.tube,), ages=ages)).get(call.tube)
    if overview is None:
        raise TubeNotFound(name=call.tube)
    return {"name": call.tube, **shapes.overview_json(call, call.tube, overview)}


@operation(
    "GET",
    "/tubes/{tube}/history",
    "look",
    replies={
        200: schemas.object_schema(
            {
                "interval": schemas.SECONDS,
                "at": schemas.list_schema(schemas.MOMENT),
                **dict.fromkeys(COUNTS, schemas.list_schema(schemas.INTEGER)),
                **dict.fromkeys(RATES, schemas.list_schema(schemas.NUMBER)),
            }
        )
    },
)
async def tube_history(call: Call) -> Facts:
    """Return up to 720 samples of a tube, oldest first: counts, and `put`, `done` and `failed` per second.

    The service samples the namespace while a stream of samples is open, for 30 seconds after a request for a history,
    and with `--history` always. `failed`: tasks that were released or buried, and takes that their ttr ended.
    """
    call.space.forget(call.tube)
    await call.space.tube(call.tube)
    history = call.service.samplers.keep_sampling(call.space.name)
    return {"interval": history.interval, **history.read(call.tube, SAMPLES)}


@operation(
    "PUT",
    "/tubes/{tube}",
    "manage",
    body=schemas.request_schema({"driver": schemas.DRIVER, "temporary": schemas.FLAG, **_OPTIONS}),
    replies={200: _TUBE, 201: _TUBE},
)
async def put_tube(call: Call) -> Response:
    """Create a tube, or give an existing tube these options.

    The default driver is `fifottl`. If the driver has the option ttr, its default is 120 seconds.
    """
    body = await call.body()
    name: Any = body.get("driver", "fifottl")
    options = shapes.tube_options(body.get("options", {}))
    temporary: Any = body.get("temporary", False)
    if "ttr" in connection_of(call.space.queue).find_driver(name).options:
        options.setdefault("ttr", call.service.limits.ttr)
    status = 201
    try:
        await call.space.queue.create_tube(call.tube, name, temporary=temporary, **options)
    except TubeExists:
        status = 200
        await call.space.queue.create_tube(call.tube, name, if_exists="update", temporary=temporary, **options)
    return json_reply(await get_tube.handler(call), status)


@operation("PATCH", "/tubes/{tube}", "manage", body=schemas.request_schema(_OPTIONS), replies={200: _TUBE})
async def alter_tube(call: Call) -> object:
    """Change options of a tube; null resets an option to its default."""
    changes = shapes.tube_options((await call.body()).get("options", {}))
    await call.space.apply(call.tube, lambda tube: tube.alter(**changes))
    return await get_tube.handler(call)


@operation("DELETE", "/tubes/{tube}", "manage", query={"force": schemas.SWITCH}, replies={204: None})
async def drop_tube(call: Call) -> None:
    """Remove a tube and its tasks. If tasks are taken or callers wait, `force` is required."""
    force = call.query().get("force") in _TRUE

    async def drop(tube: AsyncTube) -> int:
        count = (await tube.statistics()).tasks["total"]
        await tube.drop(force=force)
        return count

    call.count = await call.space.apply(call.tube, drop)
    call.space.forget(call.tube)


def _changing(
    name: str, summary: str, act: Callable[..., Awaitable[int | None]], *required: str, at: str = "", **members: Schema
) -> Operation:
    """Return the operation that calls `act` with the tube or the lane of the path and the members of the body.

    `act` may return the number of changed tasks. `at`: the method and the path; default: POST, and a path by the name.
    """

    async def change(call: Call) -> None:
        body: Any = await call.body()
        lane = call.path.get("lane")
        call.count = await call.space.apply(
            call.tube, lambda tube: act(tube if lane is None else tube.lane(lane), **body)
        )

    change.__name__, change.__doc__ = name, summary
    method, _, path = at.partition(" ")
    path, body = path or f"/{name.replace('_', '-')}", schemas.request_schema(members, *required)
    return operation(method or "POST", f"/tubes/{{tube}}{path}", "manage", body=body, replies={204: None})(change)


async def _resume(tube: AsyncTube) -> None:
    await tube.pause(0)


async def _truncate(tube: AsyncTube) -> int:
    statistics = await tube.statistics()
    await tube.truncate()
    return statistics.tasks["total"] + statistics.kept


async def _release_all(tube: AsyncTube) -> None:
    await tube.admin.release_all()


pause = _changing(
    "pause",
    "Stop takes for `seconds`, or until `resume`. With `extend`, an earlier pause is never shortened.",
    AsyncTube.pause,
    seconds=schemas.SECONDS,
    extend=schemas.FLAG,
)
resume = _changing("resume", "End a pause.", _resume)
truncate = _changing("truncate", "Remove all tasks.", _truncate)
release_all = _changing("release_all", "Release all taken tasks, including tasks held by other clients.", _release_all)


@operation("GET", "/tubes/{tube}/problems", "manage", replies={200: _PROBLEMS})
async def check_tube(call: Call) -> Facts:
    """Look for problems of a tube, such as keys of the server that contradict each other. It reads all tasks."""
    return _problems_reply(await call.space.queue.admin.check(call.tube))


@operation("POST", "/tubes/{tube}/repair", "manage", replies={200: _PROBLEMS})
async def repair_tube(call: Call) -> Facts:
    """Repair a tube, even while others use it; return its problems. No readable task is lost. It reads all tasks."""
    problems = await call.space.queue.admin.repair(call.tube)
    call.count = sum(problem.count for problem in problems)
    return _problems_reply(problems)


def _problems_reply(problems: list[Problem]) -> Facts:
    members = ("kind", "what", "remedy", "count", "examples", "repaired")
    return {"problems": [{name: getattr(each, name) for name in members} for each in problems]}


@operation(
    "GET",
    "/tubes/{tube}/reasons",
    "look",
    query={"samples": schemas.SWITCH},
    replies={
        200: schemas.object_schema(
            {"reasons": schemas.map_schema(schemas.INTEGER), "samples": schemas.map_schema(_SAMPLE)}, "samples"
        )
    },
)
async def reasons(call: Call) -> Facts:
    """Count the buried tasks by the kind of their reason.

    `samples=1` adds for each kind when its first and its last task were put, the id of the last one, and the names of
    up to five task functions. It looks at the oldest and the newest 1000 buried tasks, and reuses the reply for a short
    time.
    """
    if call.query().get("samples") not in _TRUE:
        return {"reasons": await call.space.apply(call.tube, lambda tube: tube.admin.reasons())}
    read = partial(call.space.apply, call.tube, _sample_reasons)
    return await call.service.recent.get(call.space.name, ("reasons", call.tube), read)


async def _sample_reasons(tube: AsyncTube) -> dict[str, object]:
    """Count the buried tasks by kind, and sample each kind."""
    samples: dict[str, Any] = {}
    for newest_first in (False, True):
        size = 0
        async for task in tube.select("buried", newest_first=newest_first, limit=_SAMPLED):
            sample = samples.setdefault(
                kind_of(task.reason), {"first": task.created, "last": task.created, "id": task.id, "functions": []}
            )
            if task.created < sample["first"]:
                sample["first"] = task.created
            elif (task.created, task.id) > (sample["last"], sample["id"]):
                sample |= {"last": task.created, "id": task.id}
            data = shapes.bytes_of(task.data)
            with suppress(ValueError):
                called = function_of(from_json(data))
                if called and called not in (names := sample["functions"]) and len(names) < _SAMPLED_FUNCTIONS:
                    names.append(called)
            size += len(data)
            if size > _SAMPLED_BYTES:
                break
    return {"reasons": await tube.admin.reasons(), "samples": samples}


@operation(
    "GET",
    "/tubes/{tube}/due",
    "look",
    query={"edges": _EDGES},
    replies={200: schemas.object_schema({"counts": schemas.list_schema(schemas.INTEGER)})},
)
async def due(call: Call) -> Facts:
    """Count the tasks that become due before each edge, in seconds from now (`edges=1,60,3600`), and after the last."""
    text: str = call.query().get("edges", "1,10,60,600,3600,86400")
    edges = [float(edge) for edge in text.split(",")]
    return {"counts": await call.space.apply(call.tube, lambda tube: tube.admin.due_histogram(edges))}


@operation(
    "GET",
    "/tubes/{tube}/lanes",
    "look",
    query={**_PAGE, "sort": schemas.one_of(*_LANE_SORTS)},
    replies={
        200: schemas.object_schema(
            {"lanes": schemas.list_schema(_LANE), "total": schemas.INTEGER, "complete": schemas.FLAG}, "total"
        )
    },
)
async def list_lanes(call: Call) -> Facts:
    """List lanes by name, up to `limit` (1000), after the first `offset` ones.

    `sort`: first the lanes with the most `ready` or `taken` tasks, the lanes whose next task has waited longest
    (`waiting_since`), the lanes whose cooldown or block ends first (`next_start`), or the lanes whose block ends last
    (`blocked`). `total` counts the lanes whose name `contains` the text; a list without `sort` and `contains` omits it
    if there are more lanes. A list with `sort` or `contains` looks at the first 10,000 lanes by name, and each list at
    those that can be read in a second: `complete` is false if it looks at some lanes only. The read lanes are reused
    for a short time.
    """
    query = call.query()
    limit, offset = query.get("limit", 1000), query.get("offset", 0)
    is_plain = query.keys().isdisjoint(("sort", "contains"))
    max_lanes = offset + limit if is_plain else _MAX_LANES
    read = partial(call.space.apply, call.tube, partial(_read_lanes, max_lanes=max_lanes + 1))
    found, has_all = await call.service.recent.get(call.space.name, ("lanes", call.tube, max_lanes), read)
    part = query.get("contains", "").casefold()
    lanes = [lane for lane in found[:max_lanes] if part in lane.name.casefold()]
    lanes.sort(key=_LANE_SORTS[query.get("sort", "name")])
    is_whole = len(found) <= max_lanes
    part_of_lanes = [lane._asdict() for lane in lanes[offset : offset + limit]]
    reply: Facts = {"lanes": part_of_lanes, "complete": has_all and (is_plain or is_whole)}
    if is_whole or not is_plain:
        reply["total"] = len(lanes)
    return reply


async def _read_lanes(tube: AsyncTube, max_lanes: int) -> tuple[list[LaneInfo], bool]:
    """Return up to `max_lanes` lanes, and whether all lanes could be read within the time limit."""
    until, has_all = time.monotonic() + _LANES_WITHIN, True

    def should_stop() -> bool:
        nonlocal has_all
        has_all = time.monotonic() < until
        return not has_all

    reply = port_of(tube).lanes(max_lanes, should_stop)
    return (await reply if isawaitable(reply) else reply), has_all


@operation("GET", "/tubes/{tube}/lanes/{lane}", "look", replies={200: _LANE})
async def get_lane(call: Call) -> Facts:
    """Show a lane: its counts, limits and block."""
    return (await call.space.apply(call.tube, lambda tube: tube.lane(call.path["lane"]).info()))._asdict()


configure_lane = _changing(
    "configure_lane",
    "Set limits of a lane; null resets a limit to that of the tube.",
    AsyncLane.configure,
    at="PATCH /lanes/{lane}",
    interval=schemas.nullable(schemas.SECONDS),
    max_in_flight=schemas.nullable(schemas.COUNT),
    interval_from=schemas.nullable(shapes.INTERVAL_FROM),
    capacity=schemas.nullable(schemas.INTEGER),
    rate=schemas.nullable(shapes.RATE),
    burst=schemas.nullable(shapes.BURST),
    weight=schemas.nullable(shapes.WEIGHT),
)
block_lane = _changing(
    "block_lane",
    "Stop takes from a lane for `seconds`. With `extend`, an earlier block is never shortened. `reason`: why.",
    AsyncLane.block,
    "seconds",
    at="POST /lanes/{lane}/block",
    seconds=schemas.SECONDS,
    extend=schemas.FLAG,
    reason=schemas.NONEMPTY,
)
unblock_lane = _changing(
    "unblock_lane",
    "End the block of a lane; its cooldown continues. Without a block it has no effect.",
    AsyncLane.unblock,
    at="DELETE /lanes/{lane}/block",
)
