"""Code that all requests of lmstfy's API share: names, tokens, limits, parameters and errors."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tubes.aio import AsyncTask, AsyncTube
from tubes.drivers.options import MAX_COUNT
from tubes.errors import TubeExists, TubeNotFound, TubesError
from tubes.serve.access import CLIENT_CLOSED, REPLY_TO_ERROR, is_from_browser, notes_of
from tubes.serve.audit import record, recorded
from tubes.serve.bodies import json_reply, read_body
from tubes.serve.lmstfy.metrics import POOL, Metrics
from tubes.serve.namespaces import Namespace, Value
from tubes.serve.problems import ClientDisconnected, status_of
from tubes.serve.service import BaseCall, Service
from tubes.serve.tokens import ANONYMOUS, Token

Handler: TypeAlias = "Callable[[Call], Awaitable[Response]]"
#: Names of namespaces and queues, and lists of queues.
NAME: Final = re.compile(r"[-_A-Za-z0-9]+")
_NAMES: Final = re.compile(r"[-_,A-Za-z0-9]+")
MAX_NAME: Final = 255
_MALFORMED: Final = re.compile(";|%(?![0-9A-Fa-f]{2})")
_DRIVER: Final = "fifottl"
#: The default ttr, in seconds.
TTR: Final = 120
#: A job id: the hash of its queue, and the id of its task, which has 53 bits.
_JOB_ID: Final = re.compile(r"([0-9a-f]{16})([01][0-9a-f]{13})")
UINT16: Final = 2**16 - 1
UINT32: Final = 2**32 - 1
INT64: Final = 2**63 - 1


def bad_request(message: str) -> HTTPException:
    return HTTPException(400, message)


def error_reply(error: BaseException, path: str) -> Response:
    """Return lmstfy's reply to a request that failed with this error, without details of the backend."""
    status = status_of(error)
    if isinstance(error, HTTPException):
        body = {"msg" if status == 429 else "error": error.detail}
        return json_reply(body, status, dict(error.headers or {}))
    if isinstance(error, TubesError) and status < 500:
        return json_reply({"error": str(error)}, status)
    return json_reply({"error": "internal error"}, status)


def parse_query(text: bytes) -> dict[str, str]:
    """Parse a query or a form; the first of repeated parameters counts. As in Go, malformed parameters are ignored."""
    pairs = [pair for pair in text.decode("latin-1").split("&") if not _MALFORMED.search(pair)]
    return dict(reversed(parse_qsl("&".join(pairs), keep_blank_values=True)))


def name_of(handler: Any) -> str:
    """Return the name of a function, which may be wrapped in a partial."""
    return str(getattr(handler, "func", handler).__name__)


def not_found() -> HTTPException:
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
    def arguments(self) -> dict[str, str]:
        """The arguments of a change, for the audit."""
        return {name: self._query[name][:20] for name in ("limit", "ttl") if name in self._query}

    @property
    def queue(self) -> str:
        return self.path["queue"]

    def check(self, right: str, *queues: str) -> None:
        """Raise `HTTPException` unless the token has this right in these queues."""
        _check_right(self.token, right, self.space.name, queues)

    def number(self, name: str, default: int, max_value: int, min_value: int = 0) -> int:
        """Return a parameter of the query, a whole number."""
        text = self._query.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 40 or not min_value <= int(text) <= max_value:
            raise bad_request(f"invalid {name}")
        return int(text)

    async def body(self, limit: int, error: str) -> bytes:
        """Return the body. Raise `HTTPException(413)` with the text `error` if it is longer than `limit` bytes."""
        try:
            return await read_body(self.scope, self.receive, limit)
        except HTTPException as refused:
            if refused.status_code != 413:
                raise
            raise HTTPException(413, error, refused.headers) from None

    def job_id(self, queue: str, task: int) -> str:
        """Return the id of a job, which is unique over all queues."""
        return f"{_queue_hash(self.space.name, queue)}{task:014x}"

    def task_id(self) -> int | None:
        """Return the task id of the job in the path; None if it is not a job of this queue."""
        match = _JOB_ID.fullmatch(self.path["job"])
        if match is None or match[1] != _queue_hash(self.space.name, self.queue):
            return None
        id = int(match[2], 16)
        return id if id <= MAX_COUNT else None

    async def apply_creating(self, act: Callable[[AsyncTube], Awaitable[Value]]) -> Value:
        """Return `act(queue)`; create the queue if it is missing."""
        try:
            return await self.space.apply(self.queue, act)
        except TubeNotFound:
            await self.create(self.queue)
        return await self.space.apply(self.queue, act)

    async def apply_or(self, act: Callable[[AsyncTube], Awaitable[Value]], default: Value) -> Value:
        """Return `act(queue)`, or `default` if the queue does not exist."""
        try:
            return await self.space.apply(self.queue, act)
        except TubeNotFound:
            return default

    async def first(self, state: str) -> AsyncTask | None:
        """Return the first job in a state."""

        async def read(tube: AsyncTube) -> list[AsyncTask]:
            return [task async for task in tube.select(state, limit=1)]

        tasks: list[AsyncTask] = await self.apply_or(read, [])
        return tasks[0] if tasks else None

    async def create(self, queue: str) -> None:
        """Create a queue. Its dead letters stay until a client respawns or deletes them."""
        try:
            await self.space.queue.create_tube(queue, _DRIVER, ttr=TTR, buried_ttl=float("inf"))
        except TubeExists:  # Another request created it in the meantime.
            self.space.forget(queue)


def _queue_hash(namespace: str, queue: str) -> str:
    return blake2b(f"{namespace}\n{queue}".encode(), digest_size=8).hexdigest()


class Endpoint:
    """An application with the handlers of one path by method, and the right that each requires.

    `counted`: HTTP method -> the status of the requests that count against the limits of their token. A request with
    another status does not count.
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
        #: The path in the form of lmstfy's metrics.
        self._api: Final = re.sub(r"{(\w+):name}", r":\1", path)
        self._handlers: Final = handlers
        self._counted_statuses: Final = counted or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REPLY_TO_ERROR] = error_reply
        method = scope["method"]
        if method not in self._handlers:
            raise not_found()
        started = time.perf_counter()
        #: The namespace, once the rights of the client there have been checked.
        spaces: list[Namespace] = []
        status = CLIENT_CLOSED
        try:
            response = await self._reply(scope, receive, spaces)
            status = response.status_code
        except ClientDisconnected:
            raise
        except Exception as error:
            status = status_of(error)
            raise
        finally:
            # Leave out names of unused namespaces, which would fill the metrics.
            name = spaces[0].name if spaces and spaces[0].has_tubes else ""
            self._metrics.record_reply(name, self._api, method, status, time.perf_counter() - started)
        await response(scope, receive, send)

    async def _reply(self, scope: Scope, receive: Receive, spaces: list[Namespace]) -> Response:
        handler, right = self._handlers[scope["method"]]
        path: dict[str, str] = scope["path_params"]
        namespace, queues = path["namespace"], path["queue"]
        is_multi = right == "take" and "job" not in path
        _check_names(namespace, queues, is_multi=is_multi)
        query = parse_query(scope["query_string"])
        token = self._authenticate(scope, query)
        if not token.id and (scope["method"], right) == ("GET", "take") and is_from_browser(scope, is_safe=False):
            raise HTTPException(403, "requests from web pages are refused")
        _check_right(token, right, namespace, filter(None, queues.split(",")))
        space = await self._service.namespaces.get(namespace)
        spaces.append(space)
        call = Call(self._service, self._metrics, token, space, query, scope, receive)
        status = self._counted_statuses.get(scope["method"])
        with self._service.admit(token), space.hold():
            if right == "manage":
                action, arguments = f"lmstfy.{name_of(handler)}", call.arguments
                change = partial(record, self._service, space.name, token, action, tube=queues, arguments=arguments)
                async with recorded(change):
                    return await handler(call)
            if status is None or not token.rates:
                return await handler(call)
            return await _handle_counted(call, right, handler, status)

    def _authenticate(self, scope: Scope, query: dict[str, str]) -> Token:
        """Return the token of a request: `[pool:]token` in the header `X-Token` or the parameter `token`."""
        credentials = query.get("token", "")
        for name, value in scope["headers"]:
            if name == b"x-token" and value:
                credentials = value.decode("latin-1")
        pool, colon, text = credentials.partition(":")
        if not colon:
            pool, text = POOL, credentials
        if pool != POOL:
            raise HTTPException(404, "pool not found")
        if self._service.tokens is None:
            return ANONYMOUS
        if not text:
            raise HTTPException(401, "token not found")
        token = self._service.tokens.find(text)
        if token is None:
            raise HTTPException(401, "invalid token")
        notes_of(scope)["token"] = token.id
        return token


def _check_right(token: Token, right: str, namespace: str, queues: Iterable[str]) -> None:
    for queue in queues:
        if not token.may(right, namespace, queue):
            if not token.may_somewhere(right, namespace):
                raise HTTPException(401, "invalid token")
            raise HTTPException(403, f"the token has no right to {right} in queue {queue!r}")


def _check_names(namespace: str, queues: str, *, is_multi: bool) -> None:
    if len(namespace) > MAX_NAME or (not is_multi and len(queues) > MAX_NAME):
        raise bad_request("namespace or queue name too long")
    if not NAME.fullmatch(namespace):
        raise bad_request("namespace name contains forbidden characters")
    if is_multi:
        is_good = _NAMES.fullmatch(queues) is not None
        if any(len(queue) > MAX_NAME for queue in queues.split(",")):
            raise bad_request("namespace or queue name too long")
    else:
        is_good = NAME.fullmatch(queues) is not None and not queues.startswith("_")
    if not is_good:
        raise bad_request("queue name contains forbidden characters")


async def _handle_counted(call: Call, right: str, handler: Handler, status: int) -> Response:
    service, token = call.service, call.token
    try:
        await service.count(token, right)
    except HTTPException as refused:
        action = "consume" if right == "take" else "produce"
        call.metrics.record_refusal(call.space.name, token.id, action)
        message = f"token({token.id}) {action} reach the limit rate, please retry later"
        raise HTTPException(429, message, refused.headers) from None
    response: Any = None
    try:
        response = await handler(call)
        return response  # type: ignore[no-any-return]
    finally:
        rate = token.rates.get(right)
        if rate is not None and (response is None or response.status_code != status):
            await service.rates.give_back(f"{token.id}:{right}", rate)
