"""Replies that do not end: tasks as lines of JSON, and changes as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from tubes.aio import AsyncTask
from tubes.errors import InvalidOption, TubeNotFound, TubesError
from tubes.serve.events import Change
from tubes.serve.namespaces import Namespace
from tubes.serve.native import schemas, shapes
from tubes.serve.native.operations import Call, Operation, operation
from tubes.serve.polls import Polls, has_left
from tubes.serve.problems import ClientGone, problem
from tubes.values.lease import Lease

#: Seconds without a word after which an empty line is sent, so that a client that is gone is found out.
_QUIET: Final = 15.0
#: Seconds that a client may take to read what was sent.
_SLOW: Final = 30.0
#: Seconds after which leases that were given out are looked at, if nobody said that they have ended.
_LOOK: Final = 1.0
#: Seconds after which the tasks of a stream are released if its process is killed.
_TTL: Final = 8.0
_TUBES: Final = 100
#: Tasks that are written at once: what a client does not read waits in memory.
_AT_ONCE: Final = 10
_BLANKS: Final = bytes.maketrans(b"\r\n", b"  ")
Write: TypeAlias = "Callable[[bytes], Awaitable[None]]"


class _Endless(Response):
    """A reply that goes on until the client leaves, the service ends, or `work` raises.

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
        with self._polls.place():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = await self._run(receive, send)
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _run(self, receive: Receive, send: Send) -> bytes:
        """Run `work` until the reply ends. Returns the problem that ended it, as the last line."""

        async def write(some: bytes) -> None:
            await asyncio.sleep(0)  # The loop reads what has arrived.
            if has_left(receive):
                raise ClientGone
            # No wait_for: before Python 3.12 that forgets that it was cancelled, if the wait is over at the same time.
            async with asyncio.timeout(_SLOW):
                await send({"type": "http.response.body", "body": some, "more_body": True})

        async def work() -> None:
            with suppress(TimeoutError):  # The client reads too slowly.
                await self._work(write)

        try:
            await self._polls.wait(receive, work())
        except (HTTPException, TubesError) as error:
            return self._last_line % bytes(problem(error).body)
        return b""


@operation(
    "GET",
    "/tubes/{tube}/stream",
    "take",
    query={"window": schemas.BATCH, "ttr": schemas.SECONDS},
    replies={200: shapes.TASK},
    media_type="application/x-ndjson",
)
async def stream(call: Call) -> Response:
    """Take tasks as they come, one a line of JSON, until the client leaves: then those that are not ended are released.

    `window`: how many tasks may be taken and not ended (1 to 1000; 1). Their leases end them, as those of `take` do. An
    empty line comes every 15 seconds.
    """
    query = call.query()
    window = query.get("window", 1)
    tube = await call.space.tube(call.tube)
    ttr = query.get("ttr")
    if ttr is None and "ttr" in tube.driver.options and "ttr" not in tube.options:
        ttr = call.service.limits.ttr

    with call.service.sessions.room(call.token):
        pass  # There is some: once the reply has begun it is too late to say that there is none.

    async def work(write: Write) -> None:
        async with call.space.session(_TTL) as queue:
            session = Namespace(call.space.name, queue)
            with call.service.sessions.room(call.token), call.service.ends.heard(call.space.name) as ended:
                await _pump(call, session, window, ttr, ended, write)

    return _Endless(call.service.polls, "application/x-ndjson", b"%b\n", work)


async def _pump(
    call: Call, session: Namespace, window: int, ttr: float | None, ended: asyncio.Queue[Lease], write: Write
) -> None:
    """Take tasks and write them, as long as the window has room."""
    open_: set[Lease] = set()
    tube = await session.tube(call.tube)
    while True:
        while not ended.empty():
            open_.discard(ended.get_nowait())
        if len(open_) >= window:
            try:
                async with asyncio.timeout(_LOOK):
                    open_.discard(await ended.get())
            except TimeoutError:  # Perhaps another process has ended one, or its ttr.
                open_ = {lease for lease in open_ if await _is_held(session, lease)}
            continue
        tasks = await tube.take_many(min(window - len(open_), _AT_ONCE), _QUIET, ttr=ttr)
        open_ |= {task.lease for task in tasks}
        try:
            await write(b"".join([_line(call, task) for task in tasks]) or b"\n")
        except BaseException:  # It has left, or reads too slowly: nothing of this was sent.
            await session.give_back(tasks)
            raise


def _line(call: Call, task: AsyncTask[Any]) -> bytes:
    """A task in one line: between the values of its data there may be others."""
    return shapes.task_json(call, task, leased=True).translate(_BLANKS) + b"\n"


async def _is_held(session: Namespace, lease: Lease) -> bool:
    try:
        await (await session.tube(lease.tube)).peek(lease)
    except TubesError:
        return False
    return True


@operation(
    "GET", "/events", "look", query={"tubes": schemas.TEXT}, replies={200: schemas.TEXT}, media_type="text/event-stream"
)
async def events(call: Call) -> Response:
    """Send an event for each change of a task in these tubes: `tubes=mail,jobs`.

    An event has the name of the change, as in `on_task_change`, and the task without its data. `lost`: the client reads
    too slowly, and some are missing.
    """
    names = [name for name in call.query().get("tubes", "").split(",") if name]
    if not 1 <= len(names) <= _TUBES:
        raise InvalidOption(option="tubes", value=",".join(names), rule=f"must be 1 to {_TUBES} names with , between")
    for name in names:
        call.check("look", name)
        await call.space.on(name, _same)

    listeners = call.space.listeners

    async def listen(names: Iterable[str]) -> None:
        for name in names:
            with suppress(TubeNotFound):  # It was dropped.
                await call.space.on(name, listeners.told)

    async def work(write: Write) -> None:
        try:
            with listeners.heard(names) as changes:
                await listen(names)
                await write(b": listening\n\n")
                spoke = time.monotonic()
                while True:
                    shown = b""
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            shown = _event(await changes.get())
                    with suppress(TubesError):  # Another process may have dropped a tube, and made it anew.
                        await listen(filter(listeners.is_due, names))
                    if shown or time.monotonic() - spoke >= _QUIET:
                        await write(shown or b": quiet\n\n")
                        spoke = time.monotonic()
        finally:
            with suppress(TubesError):
                await listen(name for name in names if name not in listeners)

    return _Endless(call.service.polls, "text/event-stream", b"event: problem\ndata: %b\n\n", work)


def _event(change: Change) -> bytes:
    if change is None:
        return b"event: lost\ndata: {}\n\n"
    event, task = change
    return f"event: {event}\ndata: {shapes.facts_json(task)}\n\n".encode()


async def _same(tube: Any) -> Any:
    return tube


OPERATIONS: Final[tuple[Operation, ...]] = (stream, events)
