"""What all requests of lmstfy's API share: names, tokens, limits, parameters and errors."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tubes.aio import AsyncTask, AsyncTube
from tubes.drivers.options import MAX_COUNT
from tubes.errors import TubeExists, TubeNotFound, TubesError
from tubes.serve.access import GONE, REPLY_TO_ERROR, noted
from tubes.serve.bodies import json_reply, read_body
from tubes.serve.calls import BaseCall
from tubes.serve.lmstfy.metrics import POOL, Metrics
from tubes.serve.namespaces import Namespace, Value
from tubes.serve.problems import ClientGone, status_of
from tubes.serve.service import Service
from tubes.serve.tokens import ANYBODY, Token

Handler: TypeAlias = "Callable[[Call], Awaitable[Response]]"
#: Names of namespaces, of queues, and of several queues.
NAME: Final = re.compile(r"[-_A-Za-z0-9]+")
_NAMES: Final = re.compile(r"[-_,A-Za-z0-9]+")
LONGEST_NAME: Final = 255
_DRIVER: Final = "fifottl"
#: Seconds that a consumer has who names no ttr.
TTR: Final = 120
#: Ids of tasks have 53 bits.
_JOB_ID: Final = re.compile(r"([0-9a-f]{16})([01][0-9a-f]{13})")
UINT16: Final = 2**16 - 1
UINT32: Final = 2**32 - 1
INT64: Final = 2**63 - 1


def bad(what: str) -> HTTPException:
    """A request that cannot be right."""
    return HTTPException(400, what)


def error_reply(error: BaseException, path: str) -> Response:
    """The reply to a request that ended with this error, as lmstfy words it. What the backend says is for the log."""
    status = status_of(error)
    if isinstance(error, HTTPException):
        said = {"msg" if status == 429 else "error": error.detail}
        return json_reply(said, status, dict(error.headers or {}))
    if isinstance(error, TubesError) and status < 500:
        return json_reply({"error": str(error)}, status)
    return json_reply({"error": "internal error"}, status)


def not_found() -> HTTPException:
    """There is no such route."""
    return HTTPException(404, "api not found")


class Call(BaseCall):
    """A request about a queue: a tube of the same name."""

    __slots__ = ("_query", "metrics")

    def __init__(
        self,
        service: Service,
        metrics: Metrics,
        token: Token,
        space: Namespace,
        query: dict[str, str],
        scope: Scope,
        receive: Receive,
    ) -> None:
        super().__init__(service, token, space, scope, receive)
        self.metrics: Final = metrics
        self._query: Final = query

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self.path["queue"]

    def check(self, right: str, *queues: str) -> None:
        """Raise `HTTPException` unless the token may do this in these queues."""
        _check_right(self.token, right, self.space.name, queues)

    def number(self, name: str, default: int, most: int, least: int = 0) -> int:
        """A parameter of the query that is a whole number."""
        text = self._query.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 40 or not least <= int(text) <= most:
            raise bad(f"invalid {name}")
        return int(text)

    async def body(self, most: int, error: str) -> bytes:
        """The body. Raises `HTTPException(413)` with this text if it is longer."""
        try:
            return await read_body(self.scope, self.receive, most)
        except HTTPException as refused:
            if refused.status_code != 413:
                raise
            raise HTTPException(413, error, refused.headers) from None

    def job_id(self, queue: str, task: int) -> str:
        """The id of a job, which no job of another queue has."""
        return f"{_mark(self.space.name, queue)}{task:014x}"

    def task_id(self) -> int | None:
        """The id of the task that is the job in the path; None: it is no job of this queue."""
        found = _JOB_ID.fullmatch(self.path["job"])
        if found is None or found[1] != _mark(self.space.name, self.queue):
            return None
        id = int(found[2], 16)
        return id if id <= MAX_COUNT else None

    async def on_queue(self, act: Callable[[AsyncTube], Awaitable[Value]]) -> Value:
        """Do this with the queue, which is made if it is missing."""
        try:
            return await self.space.on(self.queue, act)
        except TubeNotFound:
            await self.create(self.queue)
        return await self.space.on(self.queue, act)

    async def on_known(self, act: Callable[[AsyncTube], Awaitable[Value]], default: Value) -> Value:
        """Do this with the queue; returns the default if nobody has used it yet."""
        try:
            return await self.space.on(self.queue, act)
        except TubeNotFound:
            return default

    async def first(self, state: str) -> AsyncTask[Any] | None:
        """The first job in a state."""
        try:
            tasks = await self.space.on(self.queue, lambda tube: tube.tasks(limit=1, state=state))
        except TubeNotFound:
            return None
        return tasks[0] if tasks else None

    async def create(self, queue: str) -> None:
        """Make a queue. Its dead letters live until somebody respawns or deletes them."""
        try:
            await self.space.queue.create_tube(queue, _DRIVER, ttr=TTR, buried_ttl=float("inf"))
        except TubeExists:  # By another request, meanwhile.
            self.space.forget(queue)


def _mark(namespace: str, queue: str) -> str:
    return blake2b(f"{namespace}\n{queue}".encode(), digest_size=8).hexdigest()


class Endpoint:
    """The handlers of one path by method, each with the right that it needs, as an application.

    A handler whose status is given counts against the limits of the token; another status gives that back.
    """

    def __init__(
        self,
        service: Service,
        metrics: Metrics,
        path: str,
        handlers: dict[str, tuple[Handler, str]],
        counted: dict[str, int] | None = None,
    ) -> None:
        self._service: Final = service
        self._metrics: Final = metrics
        #: The path as lmstfy's metrics have it.
        self._api: Final = re.sub(r"{(\w+):name}", r":\1", path)
        self._handlers: Final = handlers
        self._counted: Final = counted or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        scope[REPLY_TO_ERROR] = error_reply
        method = scope["method"]
        if method not in self._handlers:
            raise not_found()
        began = time.perf_counter()
        #: The namespace, as soon as it is known that the client may be there.
        known: list[Namespace] = []
        status = GONE
        try:
            response = await self._reply(scope, receive, known)
            status = response.status_code
        except ClientGone:
            raise
        except Exception as error:
            status = status_of(error)
            raise
        finally:
            # Names under which there is nothing would fill the metrics.
            name = known[0].name if known and known[0].has_tubes else ""
            self._metrics.replied(name, self._api, method, status, time.perf_counter() - began)
        await response(scope, receive, send)

    async def _reply(self, scope: Scope, receive: Receive, known: list[Namespace]) -> Response:
        handler, right = self._handlers[scope["method"]]
        path: dict[str, str] = scope["path_params"]
        namespace, queues = path["namespace"], path["queue"]
        several = right == "take" and "job" not in path
        _check_names(namespace, queues, several=several)
        # Of a parameter that is there twice, the first one counts.
        query = dict(reversed(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)))
        token = self._who(scope, query)
        _check_right(token, right, namespace, filter(None, queues.split(",")))
        space = await self._service.namespaces.get(namespace)
        known.append(space)
        call = Call(self._service, self._metrics, token, space, query, scope, receive)
        status = self._counted.get(scope["method"])
        with self._service.inside(token), space.used():
            if status is None or not token.rates:
                return await handler(call)
            return await _counted(call, right, handler, status)

    def _who(self, scope: Scope, query: dict[str, str]) -> Token:
        """Whose request this is: `[pool:]token` in the header `X-Token`, or as the parameter `token`."""
        given = query.get("token", "")
        for name, value in scope["headers"]:
            if name == b"x-token" and value:
                given = value.decode("latin-1")
        pool, colon, text = given.partition(":")
        if not colon:
            pool, text = POOL, given
        if pool != POOL:
            raise HTTPException(404, "pool not found")
        if self._service.tokens is None:
            return ANYBODY
        if not text:
            raise HTTPException(401, "token not found")
        token = self._service.tokens.find(text)
        if token is None:
            raise HTTPException(401, "invalid token")
        noted(scope)["token"] = token.id
        return token


def _check_right(token: Token, right: str, namespace: str, queues: Iterable[str]) -> None:
    for queue in queues:
        if not token.may(right, namespace, queue):
            if not token.may_somewhere(right, namespace):
                raise HTTPException(401, "invalid token")
            raise HTTPException(403, f"the token has no right to {right} in queue {queue!r}")


def _check_names(namespace: str, queues: str, *, several: bool) -> None:
    if len(namespace) > LONGEST_NAME or (not several and len(queues) > LONGEST_NAME):
        raise bad("namespace or queue name too long")
    if not NAME.fullmatch(namespace):
        raise bad("namespace name contains forbidden characters")
    if several:
        is_good = _NAMES.fullmatch(queues) is not None
        if any(len(queue) > LONGEST_NAME for queue in queues.split(",")):
            raise bad("namespace or queue name too long")
    else:
        is_good = NAME.fullmatch(queues) is not None and not queues.startswith("_")
    if not is_good:
        raise bad("queue name contains forbidden characters")


async def _counted(call: Call, right: str, handler: Handler, status: int) -> Response:
    service, token = call.service, call.token
    try:
        await service.count(token, right)
    except HTTPException as refused:
        what = "consume" if right == "take" else "produce"
        call.metrics.refused(call.space.name, token.id, what)
        said = f"token({token.id}) {what} reach the limit rate, please retry later"
        raise HTTPException(429, said, refused.headers) from None
    done: Any = None
    try:
        done = await handler(call)
        return done  # type: ignore[no-any-return]
    finally:
        rate = token.rates.get(right)
        if rate is not None and (done is None or done.status_code != status):
            await service.rates.give_back(f"{token.id}:{right}", rate)
