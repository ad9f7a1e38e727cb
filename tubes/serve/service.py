"""What all requests to a service share."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from starlette.exceptions import HTTPException
from starlette.types import Scope

from tubes.aio import AsyncQueue
from tubes.drivers.options import MAX_WAITING
from tubes.errors import InvalidOption
from tubes.serve.access import noted
from tubes.serve.events import Ends
from tubes.serve.leases import Leases
from tubes.serve.namespaces import Namespaces, in_time
from tubes.serve.polls import Polls
from tubes.serve.rates import Rates
from tubes.serve.sessions import Sessions
from tubes.serve.tokens import ANYBODY, Token, Tokens

#: Seconds between two looks at the tokens of open requests; with the age of the tokens it is less than a second.
_WATCH: Final = 0.4


@dataclass(frozen=True)
class Limits:
    """What clients may ask of a service."""

    #: Bytes of a body.
    body: int = 2**20
    #: Bytes of the bodies of all requests in work, and of those of each token; one body always fits.
    bodies: int = 2**28
    bodies_of_token: int = 2**26
    #: Bytes of the headers of a request, with its method and path.
    headers: int = 2**16
    #: Tasks of a batch, or of a list: `/openapi.json` says so.
    batch: ClassVar[int] = 1000
    #: Seconds until the headers of a request, and until all of it, must have arrived.
    headers_within: float = 5.0
    body_within: float = 30.0
    #: Seconds after which a client that reads hardly anything of a long reply is cut off.
    read_within: float = 30.0
    #: Bytes of pipelined requests that wait, and of replies that clients have not read yet, in all connections. Beyond
    #: this the connections that have held some longest are cut off.
    unread: int = 2**28
    #: Connections at the same time; a request beyond them gets a 503.
    connections: int = 20_000
    #: Seconds for which a request may wait.
    wait: ClassVar[int] = 600
    #: Seconds for which a client that names no ttr may work on a task of a tube that has none either.
    ttr: float = 120.0
    #: Namespaces that are open at the same time.
    namespaces: int = 1000
    #: Sessions of clients, and streams, at the same time, in all and of each token: on a server each is a connection.
    sessions: int = 1000
    sessions_of_token: int = 100
    #: Requests of each token at the same time; those that wait, too.
    requests_of_token: int = 5000
    #: Requests that wait at the same time.
    polls: int = 20_000


class Service:
    """A queue, who may use it, and who waits."""

    def __init__(self, queue: AsyncQueue, tokens: Tokens | None, limits: Limits) -> None:
        connection: Any = queue._connection
        if connection.store.codec is None:
            rule = "must be connected with codec='json' in memory: the service stores bytes"
            raise InvalidOption(option="queue", value=queue, rule=rule)
        self.tokens: Final = tokens
        self.limits: Final = limits
        self.leases: Final = Leases(None if tokens is None else tokens.secret)
        self.namespaces: Final = Namespaces(queue, limits.namespaces)
        self.sessions: Final = Sessions(limits.sessions, limits.sessions_of_token)
        # The requests that are here, with their tokens, by the ids of those.
        self._requests: Final[dict[str, dict[asyncio.Task[Any] | None, Token]]] = {}
        self.rates: Final = Rates(queue)
        self.ends: Final = Ends()
        self.polls: Final = Polls(limits.polls)
        self.started: Final = time.time()
        #: Whether the access log is written; None: there is none.
        self.logs_requests: bool | None = None
        #: What goes on beside requests: entered when the service starts, and left at its end.
        self.beside: Final[list[Callable[[], AbstractAsyncContextManager[object]]]] = []

    @property
    def closing(self) -> bool:
        """Whether the service has been told to end."""
        return self.polls.closing

    def close(self) -> None:
        """End all waits, and report that the service is not ready. Requests that have begun go on."""
        self.polls.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """What goes on as long as the service runs."""
        beside = [asyncio.create_task(work) for work in (self.namespaces.join_held(), self._watch_tokens())]
        try:
            async with AsyncExitStack() as stack:
                for each in self.beside:
                    await stack.enter_async_context(each())
                yield
        finally:
            self.close()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await self.sessions.close()
            await self.namespaces.close()

    async def _watch_tokens(self) -> None:
        while self.tokens is not None:
            await asyncio.sleep(_WATCH)
            self.end_invalid(self.tokens)

    def end_invalid(self, tokens: Tokens) -> None:
        """End the waits, streams and sessions whose token was revoked, has expired or has other grants."""
        for requests in list(self._requests.values()):
            for request, token in requests.items():
                if request is not None and not tokens.is_valid(token):
                    self.polls.refuse(request)
        self.sessions.end_invalid(tokens)

    async def count(self, token: Token, right: str) -> None:
        """Count a use of a right. Raises `HTTPException(429)` if the token has used it too often."""
        await self._count(token, right, 1)

    async def _count(self, token: Token, what: str, calls: int) -> None:
        rate = token.rates.get(what)
        if rate is None:
            return
        allowed = f"put {rate.count} bytes" if what == "bytes" else f"{what} {rate.count} times"
        rule = f"the token may {allowed} in {rate.seconds:g} s"
        if calls > rate.count:
            raise HTTPException(413, f"{rule}, and this request has {calls}")
        wait = await in_time(self.namespaces.root, self.rates.wait(f"{token.id}:{what}", rate, calls))
        if wait:
            retry = {"retry-after": str(math.ceil(wait))}
            raise HTTPException(429, f"{rule}: wait {wait:.3f} s", retry)

    @contextmanager
    def inside(self, token: Token) -> Generator[None]:
        """A request of a token, which may have so many at the same time. Raises `HTTPException(429)`."""
        if not token.id:
            yield
            return
        most = token.limits.get("requests", self.limits.requests_of_token)
        requests = self._requests.get(token.id, {})
        if len(requests) >= most:
            raise HTTPException(429, f"the token may have {most} requests at the same time (its limit `requests`)")
        request = asyncio.current_task()
        self._requests[token.id] = requests
        requests[request] = token
        try:
            yield
        finally:
            del requests[request]
            if not requests:
                self._requests.pop(token.id, None)

    async def check_put(self, token: Token, size: int, tasks: int = 1) -> dict[str, Any]:
        """Count `size` bytes of data that a token puts; returns the options by which the put keeps its limit of tasks.

        Raises `HTTPException`: 413 for more tasks than the limit, 429 if the token has put too many bytes.
        """
        most = token.limits.get("tasks")
        if most is not None and tasks > most:
            raise HTTPException(413, f"the token may have {most} waiting tasks in a tube, and this request has {tasks}")
        if size:
            await self._count(token, "bytes", size)
        return {} if most is None else {MAX_WAITING: most}

    def longest_body(self, token: Token) -> int:
        """Bytes that a body of a token may have."""
        return min(self.limits.body, token.limits.get("body", self.limits.body))

    def who(self, scope: Scope) -> Token:
        """Whose request this is, by its header `Authorization: Bearer`. Raises `HTTPException(401)`."""
        if self.tokens is None:
            return ANYBODY
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                token = self.tokens.find(value[7:].strip().decode("latin-1"))
                if token is None:
                    break
                noted(scope)["token"] = token.id
                return token
        raise HTTPException(401, "the request has no valid token", {"www-authenticate": "Bearer"})
