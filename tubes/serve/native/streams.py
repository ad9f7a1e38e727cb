"""Long replies: tasks and the progress of selections as lines of JSON, and changes as server-sent events."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from tubes.aio import AsyncSelection, AsyncTask
from tubes.backend.port import connection_of, port_of
from tubes.backend.selecting import Filters, Scan, see_all
from tubes.drivers.options import SECOND
from tubes.errors import InvalidOption, TaskNotFound, TubeNotFound, TubesError
from tubes.serve.events import Change
from tubes.serve.namespaces import REPLY_TIMEOUT, Namespace
from tubes.serve.native import schemas, shapes
from tubes.serve.native.operations import Call, operation
from tubes.serve.polls import Polls, has_disconnected
from tubes.serve.problems import REQUIRED, ClientDisconnected, may_have_changed, problem
from tubes.serve.service import Limits
from tubes.values.lease import Lease

#: Seconds without output after which an empty line is sent, to detect disconnected clients.
_KEEPALIVE: Final = 15.0
#: Seconds within which a client must read a write.
_WRITE_TIMEOUT: Final = 30.0
#: Seconds between two checks for leases that another process has ended and for tubes that were created again.
_CHECK_INTERVAL: Final = 1.0
#: Seconds after which the tasks of a stream are released if this process is killed.
_SESSION_TTL: Final = 8.0
_TUBES: Final = schemas.pattern_schema(
    rf"{schemas.TUBE_PATTERN}(,{schemas.TUBE_PATTERN}){{0,99}}", "1 to 100 names of tubes separated by commas"
)
#: Maximum tasks per write, since unread tasks wait in memory.
_MAX_WRITE: Final = 10
#: Bytes of data after which a part of a selection ends.
_MAX_PART: Final = 2**23
#: The arguments of the actions of a selection.
_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "kick": ("attempts", "ttl"),
    "release": (),
    "bury": ("reason",),
    "delete": (),
    "cancel": ("reason",),
    "move": ("to",),
}
_BLANKS: Final = bytes.maketrans(b"\r\n", b"  ")
Write: TypeAlias = "Callable[[bytes], Awaitable[None]]"


class _Endless(Response):
    """A reply that continues until the client disconnects, the service stops, or `work` raises.

    `last_line`: the format of a problem in this media type.
    """

    def __init__(
        self, polls: Polls, media_type: str, last_line: bytes, work: Callable[[Write], Awaitable[None]]
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"}, media_type)
        del self.headers["content-length"]
        self._polls: Final = polls
        self._last_line: Final = last_line
        self._work: Final = work

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._polls.reserve():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = await self._run(receive, send)
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _run(self, receive: Receive, send: Send) -> bytes:
        """Run `work` until the reply ends. Returns the problem that ended it, as the last line."""

        async def write(part: bytes) -> None:
            await asyncio.sleep(0)  # Let the event loop read from the connection.
            if await has_disconnected(receive):
                raise ClientDisconnected
            # Not wait_for: before Python 3.12 it loses a cancellation if the wait completes at the same time.
            async with asyncio.timeout(_WRITE_TIMEOUT):
                await send({"type": "http.response.body", "body": part, "more_body": True})

        async def work() -> None:
            with suppress(TimeoutError):  # The client reads too slowly.
                await self._work(write)

        try:
            await self._polls.wait(receive, work(), is_stream=True)
        except (HTTPException, TubesError) as error:
            return self._last_line % bytes(problem(error).body)
        return b""


@operation(
    "POST",
    "/tubes/{tube}/stream",
    "take",
    body=schemas.request_schema({"window": schemas.BATCH, "ttr": schemas.SECONDS}),
    replies={200: shapes.TASK},
    media_type="application/x-ndjson",
)
async def stream(call: Call) -> Response:
    """Send each task as a line of JSON until the client disconnects; then release the tasks that have not ended.

    `window`: maximum number of tasks taken and not ended (1 to 1000; 1). End them by their leases, as after `take`.
    The stream ends when two tasks in a row have run out of time, or one and the next task is at its last attempt.
    If no task is sent for 15 seconds, an empty line is sent.
    """
    body: Any = await call.body()
    window: int = body.get("window", 1)
    tube = await call.space.tube(call.tube)
    ttr: float | None = body.get("ttr")
    if ttr is None and "ttr" in tube.driver.options and "ttr" not in tube.options:
        ttr = call.service.limits.ttr

    with call.service.sessions.reserve(call.token):
        pass  # Check the limit now: after the start of the reply its status cannot change.

    async def work(write: Write) -> None:
        async with call.space.session(_SESSION_TTL) as queue:
            session = Namespace(call.space.name, queue)
            with (
                call.service.sessions.reserve(call.token),
                call.service.ended_leases.subscribe(call.space.name) as ended,
            ):
                await _pump(call, session, window, ttr, ended, write)

    return _Endless(call.service.polls, "application/x-ndjson", b"%b\n", work)


async def _pump(
    call: Call, session: Namespace, window: int, ttr: float | None, ended: asyncio.Queue[Lease], write: Write
) -> None:
    """Take tasks and write them, whenever the window has room, while the client ends tasks in time."""
    # When each lease ends, by the clock of the queue, and the ones that did so since the client last ended one.
    held: dict[Lease, float] = {}
    lost: set[Lease] = set()
    tube = await session.tube(call.tube)
    written_at = time.monotonic()
    while True:
        while not ended.empty():
            _note_end(ended.get_nowait(), held, lost)
        if len(held) >= window:
            try:
                async with asyncio.timeout(_CHECK_INTERVAL):
                    _note_end(await ended.get(), held, lost)
            except TimeoutError:  # Another process or the ttr may have ended some.
                await _review(session, held, lost, all_leases=True)
            if time.monotonic() - written_at >= _KEEPALIVE:
                await write(b"\n")
                written_at = time.monotonic()
            continue
        tasks = await tube.take_many(min(window - len(held), _MAX_WRITE), _KEEPALIVE, ttr=ttr)
        try:
            await _review(session, held, lost)
            # A client that let a task run out of time may be gone: it does not get the last attempt of another one.
            if len(lost) > 1 or (lost and any(task.attempts == task.max_attempts for task in tasks)):
                raise HTTPException(408, "tasks of this stream ran out of time, and its client has ended none since")
            held |= {task.lease: task.due or math.inf for task in tasks}
            await write(b"".join([_line(call, task) for task in tasks]) or b"\n")
            written_at = time.monotonic()
        except BaseException:  # The client left or reads too slowly; these tasks were not sent.
            await session.give_back(tasks)
            raise


def _line(call: Call, task: AsyncTask) -> bytes:
    """Return a task as one line. Its data may contain line breaks between JSON values, which become spaces."""
    return shapes.task_json(call, task, leased=True).translate(_BLANKS) + b"\n"


def _note_end(lease: Lease, held: dict[Lease, float], lost: set[Lease]) -> None:
    """Forget a lease that a client has ended, perhaps too late. It may be one of another stream."""
    if held.pop(lease, None) is not None or lease in lost:
        lost.clear()


async def _review(session: Namespace, held: dict[Lease, float], lost: set[Lease], *, all_leases: bool = False) -> None:
    """Find the leases that have ended by time; with `all_leases`, also those that another process has ended."""
    for lease, due in list(held.items()):
        is_due = due <= connection_of(session.queue).micros() / SECOND
        try:
            if is_due or all_leases:
                held[lease] = (await (await session.tube(lease.tube)).peek(lease)).due or math.inf
        except TubesError:
            if is_due:
                del held[lease]
                lost.add(lease)
            else:
                _note_end(lease, held, lost)


@operation(
    "GET",
    "/events",
    "look",
    query={"tubes": _TUBES},
    rules={"required": ["tubes"]},
    replies={200: schemas.EVENT},
    media_type="text/event-stream",
)
async def events(call: Call) -> Response:
    """Send an event for each change of a task in these tubes: `tubes=mail,jobs`.

    An event has the name of the change, as in `on_task_change`, and the task without its data. `lost`: events are
    missing because the client reads too slowly.
    """
    names: list[str] = call.query()["tubes"].split(",")
    for name in names:
        call.check("look", name)
        await call.space.tube(name)

    listeners = call.space.listeners

    async def listen(names: Iterable[str]) -> None:
        for name in names:
            with suppress(TubeNotFound):  # Dropped.
                await call.space.apply(name, listeners.watch)

    async def work(write: Write) -> None:
        try:
            with listeners.subscribe(names) as changes:
                await listen(names)
                await write(b": listening\n\n")
                written_at = time.monotonic()
                while True:
                    lines = b""
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_CHECK_INTERVAL):
                            lines = _event(await changes.get())
                    with suppress(TubesError):  # Another process may have dropped a tube and created it again.
                        await listen(filter(listeners.should_check, names))
                    if lines or time.monotonic() - written_at >= _KEEPALIVE:
                        await write(lines or b": quiet\n\n")
                        written_at = time.monotonic()
        finally:
            with suppress(TubesError):
                await listen(name for name in names if name not in listeners)

    return _Endless(call.service.polls, "text/event-stream", b"event: problem\ndata: %b\n\n", work)


@operation("GET", "/samples", "look", replies={200: schemas.EVENT}, media_type="text/event-stream")
async def samples(call: Call) -> Response:
    """Send an event `sample` with its time after each sample of the counts of the tubes, every 5 seconds or less often.

    If there is already a sample, its event is sent at once. After each event, a client should read its data again.
    """

    async def work(write: Write) -> None:
        with call.service.samplers.watch(call.space.name) as moments:
            await write(b": listening\n\n")
            while True:
                line = ": quiet\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KEEPALIVE):
                        line = f'event: sample\ndata: {{"at":{await moments.get()!r}}}\n\n'
                await write(line.encode())

    return _Endless(call.service.polls, "text/event-stream", b"event: problem\ndata: %b\n\n", work)


def _event(change: Change) -> bytes:
    if change is None:
        return b"event: lost\ndata: {}\n\n"
    event, task = change
    return f"event: {event}\ndata: {shapes.facts_json(task)}\n\n".encode()


class _Selection(AsyncSelection[bytes]):
    """A selection that ends before the next part once its client has left.

    `ids`: only the tasks with these ids; the last one is the next.
    """

    is_stopped = False
    ids: list[int] | None = None

    @override
    async def _part(self, scan: Scan, filters: Filters, size: int, *, with_data: bool = False) -> list[Any]:
        if self.ids is None:
            part = await super()._part(scan, filters, size, with_data=with_data)
        else:
            part, bytes_left = list[Any](), _MAX_PART
            while self.ids and len(part) < size and bytes_left > 0:
                task = await self._find(self.ids.pop(), filters)
                if task is not None and with_data:
                    part.append(task)
                    bytes_left -= len(task.data) if isinstance(task.data, bytes) else 0
                elif task is not None:
                    part += see_all([task])
            scan.ended = not self.ids
        if self.is_stopped:
            raise ClientDisconnected
        return part

    async def _find(self, id: int, filters: Filters) -> AsyncTask | None:
        with suppress(TaskNotFound):
            task: AsyncTask = await self._port.tube.peek(id)
            return task if filters.state in (None, task._state) else None
        return None


@operation(
    "POST",
    "/tubes/{tube}/select",
    "look|manage",
    body=schemas.request_schema(
        {
            **shapes.FILTERS,
            "limit": schemas.COUNT,
            "ids": schemas.list_schema(schemas.INTEGER, Limits.batch, minimum=1),
            "action": schemas.one_of("count", *_ARGUMENTS),
            "with": schemas.request_schema(
                {
                    "attempts": schemas.ATTEMPTS,
                    "ttl": schemas.SECONDS,
                    "reason": schemas.NONEMPTY,
                    "to": schemas.TUBE,
                }
            ),
        },
        "action",
        allOf=[{"not": {"required": ["ids", name]}} for name in (*shapes.FILTERS, "limit")],
    ),
    replies={200: schemas.object_schema({"done": schemas.INTEGER, "finished": schemas.FLAG}, "finished")},
    media_type="application/x-ndjson",
)
async def select(call: Call) -> Response:
    """Count the tasks that pass all filters, or change each of them: `action`. The filters are those of `Tube.select`.

    `ids`: the ids of the tasks, in place of filters.
    `with`: the arguments of the action: `attempts` and `ttl` of kick, `reason` of bury and cancel; move requires `to`,
    another tube of the namespace. After each part of the work a line of JSON reports how many tasks are done so far.
    The last line has `finished`, or else it is a problem. If the client disconnects, the work stops after the current
    part. Counting requires the right to look, all other actions require the right to manage, `contains` and `function`
    both.
    """
    body: Any = await call.body()
    action, arguments, ids = body.pop("action"), {**body.pop("with", {})}, body.pop("ids", None)
    right = "look" if action == "count" else "manage"
    call.check(right, call.tube)
    await call.service.count(call.token, right)
    if "contains" in body or "function" in body:
        call.check("look", call.tube)
    for name, value in arguments.items():
        if name not in _ARGUMENTS.get(action, ()):
            raise InvalidOption(option=name, value=value, rule=f"must be left out with the action {action}")
    call.space.forget(call.tube)  # It may have been dropped: after the start of the reply its status cannot change.
    tube = await call.space.tube(call.tube)
    if action == "kick":
        tube.driver.check_kick(arguments.get("attempts"), arguments.get("ttl"))
    elif action == "move":
        if "to" not in arguments:
            raise InvalidOption(option="to", value=None, rule=REQUIRED)
        to = arguments.pop("to")
        if to == call.tube:
            raise InvalidOption(option="to", value=to, rule="must be another tube")
        call.check("manage", to)
        call.space.forget(to)
        arguments["tube"] = await call.space.tube(to)
    chosen = tube.select(**body)

    async def work(write: Write) -> None:
        selection = _Selection(port_of(chosen), chosen._filters)
        selection.ids = None if ids is None else list(dict.fromkeys(ids))[::-1]
        await _report(call, selection, action, arguments, write)

    return _Endless(call.service.polls, "application/x-ndjson", b"%b\n", work)


async def _report(call: Call, selection: _Selection, action: str, arguments: dict[str, object], write: Write) -> None:
    """Count or change the tasks, and write a line after each part, or several if the client reads slowly.

    Then record the change, even if it is incomplete.
    """
    done = written = 0
    is_complete = False
    changed = asyncio.Event()

    def on_progress(count: int) -> bool:
        nonlocal done
        done = count
        changed.set()
        return not selection.is_stopped

    if action == "count":
        running: asyncio.Future[int] = asyncio.ensure_future(selection.count())
    else:
        running = asyncio.ensure_future(
            getattr(selection, "move_to" if action == "move" else action)(**arguments, on_progress=on_progress)
        )
    running.add_done_callback(lambda _: changed.set())

    async def end() -> None:
        with suppress(TimeoutError):  # Let a move complete its part, unless the backend does not reply.
            async with asyncio.timeout(REPLY_TIMEOUT):
                await asyncio.gather(running, return_exceptions=True)
        is_certain = running.done() and not running.cancelled()
        if is_certain and (error := running.exception()):
            is_certain = not may_have_changed(error)
        if action != "count" and (done or is_complete or not is_certain):
            call.count = done
            await _record(call, action, is_certain=is_certain)

    try:
        while not running.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(_KEEPALIVE):
                    await changed.wait()
            changed.clear()
            if done > written or not running.done():
                written = done
                await write(b'{"done":%d}\n' % done)
        done, is_complete = await running, True
        await write(b'{"done":%d,"finished":true}\n' % done)
    finally:
        selection.is_stopped = True
        ending = asyncio.create_task(end())
        while not ending.done():  # A client that leaves cancels this task, maybe only now.
            with suppress(asyncio.CancelledError):
                await asyncio.wait((ending,))


async def _record(call: Call, action: str, *, is_certain: bool) -> None:
    """Record a change of tasks; a move in both tubes."""
    if action != "move":
        await call.changed(is_certain=is_certain)
        return
    members = dict(call.members)
    to = members.pop("with")["to"]
    await call.changed(is_certain=is_certain, arguments={**members, "to": to})
    await call.changed(is_certain=is_certain, tube=to, arguments={"action": action, "from": call.tube})
