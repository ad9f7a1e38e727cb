"""The tube of later, and the worker that posts its tasks to their callbacks."""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from tubes.aio import AsyncQueue, AsyncTask, AsyncTube
from tubes.backend.port import connection_of
from tubes.drivers.backoff import Backoff
from tubes.errors import Facts, InvalidOption, TubeNotFound, TubesError
from tubes.push import Sender, SendFailed, Signer
from tubes.push.webhook import message_id
from tubes.serve.bodies import refuse_constant
from tubes.serve.later.ids import Ids
from tubes.serve.problems import to_json
from tubes.serve.pushes import run_worker
from tubes.values.codecs import RawCodec
from tubes.worker import Bury, Retry, Worker, retry_after

#: The tube of all tasks of later, without a namespace.
TUBE: Final = "later"
#: The `code` in the reply of a successful callback.
DONE: Final = 100
#: Delays after failed attempts. The tube has no backoff: it would also delay a task whose worker died.
_BACKOFF: Final = Backoff(10, factor=2, cap=10 * 2**20)
_MEMBERS: Final = frozenset({"topic", "content", "callback", "retry", "delay"})
_log: Final = logging.getLogger("tubes.serve")
#: Numbers of any length are valid JSON. Those that are too large for Go become floats, which are refused as integers.
_decode: Final = json.JSONDecoder(
    parse_int=lambda text: int(text) if len(text) <= 20 else float(text), parse_constant=refuse_constant
).decode
Value = TypeVar("Value")


@dataclass(frozen=True)
class Callbacks:
    """The callbacks that may be called, and their options."""

    #: Prefixes of allowed URLs, and non-public addresses that are allowed: see `tubes.push.Sender`.
    allow: tuple[str, ...]
    networks: tuple[str, ...] = ()
    #: Secrets that sign the posts; if empty, posts are not signed.
    secrets: tuple[str, ...] = ()
    #: Maximum simultaneous callbacks in this process, and to one host from all processes. If a process is killed, up to
    #: `per_host` callbacks to each host may be called again.
    concurrency: int = 100
    per_host: int = 10
    #: Seconds within which a callback must reply.
    timeout: float = 3.0
    #: Seconds after which other processes get the tasks of a process that died.
    ttr: float = 15.0


class Delivery:
    """The tube of later, and a worker for it."""

    def __init__(self, queue: AsyncQueue, callbacks: Callbacks, secret: bytes) -> None:
        if isinstance(connection_of(queue).codec, RawCodec):
            raise InvalidOption(option="codec", value="raw", rule="must encode objects, since later stores them")
        self.ids: Final = Ids(secret)
        self.sender: Final = Sender(
            callbacks.allow, networks=callbacks.networks, per_host=callbacks.concurrency, timeout=callbacks.timeout
        )
        self._signer: Final = Signer(callbacks.secrets)
        self._callbacks: Final = callbacks
        self._queue: Final = queue
        self._tube: AsyncTube | None = None

    async def apply(self, act: Callable[[AsyncTube], Awaitable[Value]]) -> Value:
        """Return `act(tube)`; create the tube if it is missing. Options of an existing tube are kept."""
        if self._tube is not None:
            try:
                return await act(self._tube)
            except TubeNotFound:
                pass
        self._tube = await self._queue.create_tube(
            TUBE,
            "utubettl",
            if_exists="keep",
            ttr=self._callbacks.ttr,
            max_in_flight=self._callbacks.per_host,
        )
        return await act(self._tube)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Post tasks during a block; at the end, wait for running posts."""
        worker = Worker(self._queue, grace=self._callbacks.timeout + 1)
        worker.lifespan(self.sender.running)
        worker.on(TUBE, self._deliver, concurrency=self._callbacks.concurrency)
        try:
            await self.apply(lambda tube: tube.alter(max_in_flight=self._callbacks.per_host))
        except TubesError as error:
            _log.error("callbacks are not called until tube %r can be used: %s", TUBE, error)
        async with run_worker(worker):
            yield

    async def _deliver(self, task: AsyncTask) -> None:
        """Post a task. Raise `Bury` or `Retry` if it failed."""
        data: Facts = task.data
        if type(data) is not dict or not data.keys() >= _MEMBERS:
            raise Bury("the task was not put by /create")
        id = str(self.ids.encode(task.id))
        body = to_json({"id": id, "topic": data["topic"], "content": data["content"]})
        headers = {"content-type": "application/json"} | self._signer.headers(message_id(task), body)
        try:
            reply = await self.sender.post(data["callback"], body, headers)
        except (SendFailed, InvalidOption) as error:
            raise _failure(task, str(error)) from None
        code = None if reply.is_cut else _code_of(reply.body)
        if not 200 <= reply.status < 300 or code != DONE:
            wait = retry_after(reply.headers.get("retry-after")) or 0
            raise _failure(task, f"the reply was {reply.status}, code {code}", wait)


def _code_of(body: bytes) -> int | None:
    """Return the code in a reply."""
    try:
        code = read_object(body.removeprefix(codecs.BOM_UTF8)).get("code")
    except ValueError:
        return None
    return code if type(code) is int else None


def read_object(body: bytes) -> dict[str, object]:
    """Decode a JSON object like Go, in which later is written. Raise ValueError if it is not valid.

    Names become lower-case, the last of equal names counts, invalid UTF-8 is replaced, and null is an empty object.
    """
    try:
        value: object = _decode(body.decode(errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict | None):
        raise ValueError("not an object")
    return {name.lower(): member for name, member in cast("Facts", value or {}).items()}


def _failure(task: AsyncTask, reason: str, wait: float = 0) -> Exception:
    """Return the exception for a failed attempt: retry after at least `wait` seconds, or bury the task.

    Attempts are limited here, since a limit of the tube would also bury a task whose worker died in its last attempt.
    """
    if task.attempts > task.data["retry"]:
        return Bury(reason)
    return Retry(max(_BACKOFF.delay(task.attempts), wait), reason)
