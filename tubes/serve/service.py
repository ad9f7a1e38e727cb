"""The state that all requests to a service share, and its limits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from tubes.aio import AsyncQueue
from tubes.backend.port import connection_of
from tubes.drivers.options import MAX_WAITING
from tubes.errors import Facts, InvalidOption
from tubes.serve.access import notes_of
from tubes.serve.bodies import encode_reply
from tubes.serve.events import EndedLeases
from tubes.serve.history import Samplers
from tubes.serve.namespaces import Namespace, Namespaces, limit_time
from tubes.serve.polls import Polls
from tubes.serve.rates import Rates
from tubes.serve.recent import Recent
from tubes.serve.sessions import Sessions
from tubes.serve.tokens import ALL_RIGHTS, ANONYMOUS, Leases, Token, Tokens

#: Seconds between two checks of the tokens of open requests; with the interval of `Tokens` less than a second in all.
_CHECK_INTERVAL: Final = 0.4


@dataclass(frozen=True)
class Limits:
    """Limits of requests, connections and sessions."""

    #: Maximum bytes of a body.
    body: int = 2**20
    #: Maximum body bytes of all running requests, in all and per token; one body always fits.
    bodies: int = 2**28
    bodies_of_token: int = 2**26
    #: Maximum bytes of the headers of a request, with its method and path.
    headers: int = 2**16
    #: Maximum tasks of a batch or a list, as stated in `/openapi.json`.
    batch: ClassVar[int] = 1000
    #: Seconds within which the headers of a request, and the complete request, must arrive.
    headers_within: float = 5.0
    body_within: float = 30.0
    #: Seconds after which a client that reads almost nothing of a long reply is disconnected.
    read_within: float = 30.0
    #: Maximum bytes of waiting pipelined requests and of unread replies in all connections. Beyond it the connections
    #: that have held bytes longest are closed.
    unread: int = 2**28
    #: Maximum simultaneous connections; a request beyond them gets a 503.
    connections: int = 20_000
    #: Maximum seconds for which a request may wait.
    wait: ClassVar[int] = 600
    #: Default ttr in seconds, if neither the request nor the tube has one.
    ttr: float = 120.0
    #: Maximum open namespaces.
    namespaces: int = 1000
    #: Maximum simultaneous sessions and streams of clients, in all and per token: on a server each is a connection.
    sessions: int = 1000
    sessions_of_token: int = 100
    #: Maximum simultaneous requests per token, including waiting ones.
    requests_of_token: int = 5000
    #: Maximum waiting requests.
    polls: int = 20_000


class Service:
    """A queue with its tokens, namespaces, sessions and waiting requests. `rights`: what clients may do at most."""

    def __init__(
        self,
        queue: AsyncQueue,
        tokens: Tokens | None,
        limits: Limits,
        rights: frozenset[str] = ALL_RIGHTS,
        *,
        history: bool = False,
    ) -> None:
        if connection_of(queue).is_read_only:
            rights &= {"look"}
        #: True in memory without a codec: data are objects, which are shown but not put, taken or changed.
        self.has_objects: Final = connection_of(queue).codec is None
        if self.has_objects and not rights.isdisjoint({"put", "take"}):
            rule = "must be connected with codec='json' in memory: the service stores bytes"
            raise InvalidOption(option="queue", value=queue, rule=rule)
        self._rights: Final = rights
        self.tokens: Final = tokens if tokens is None or rights >= ALL_RIGHTS else tokens.restrict(rights)
        self._anonymous: Final = ANONYMOUS.restrict(rights)
        self.limits: Final = limits
        self.leases: Final = Leases(None if tokens is None else tokens.secret)
        self.namespaces: Final = Namespaces(queue, limits.namespaces)
        self.sessions: Final = Sessions(limits.sessions, limits.sessions_of_token)
        # By token id: the running requests of this token, with the token as read at their start.
        self._requests: Final[dict[str, dict[asyncio.Task[object] | None, Token]]] = {}
        self.rates: Final = Rates(queue)
        self.ended_leases: Final = EndedLeases()
        self.polls: Final = Polls(limits.polls)
        self.recent: Final = Recent()
        #: The open connections of clients; None if another server runs the application.
        self.connections: Collection[object] | None = None
        self.samplers: Final = Samplers(self.namespaces, self.recent)
        self._samples_all: Final = history
        self.started: Final = time.time()
        #: True if the access log is written, False if it is switched off; None without an access log.
        self.logs_requests: bool | None = None
        #: Background work: context managers entered when the service starts and left when it stops.
        self.background: Final[list[Callable[[], AbstractAsyncContextManager[object]]]] = []

    @property
    def is_closing(self) -> bool:
        return self.polls.is_closing

    def close(self) -> None:
        """End all waits, and report that the service is not ready. Running requests continue."""
        self.polls.close()

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Run the background work of the service; at the end, close its sessions and namespaces."""
        works = [self.namespaces.open_used(), self._watch_tokens()]
        if self._samples_all:
            works.append(self.samplers.run())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            async with AsyncExitStack() as stack:
                for start in self.background:
                    await stack.enter_async_context(start())
                yield
        finally:
            self.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.samplers.close()
            await self.sessions.close()
            await self.namespaces.close()

    async def _watch_tokens(self) -> None:
        while self.tokens is not None:
            await asyncio.sleep(_CHECK_INTERVAL)
            self.end_invalid(self.tokens)

    def end_invalid(self, tokens: Tokens) -> None:
        """End the waits, streams and sessions whose token was revoked, has expired or has other grants."""
        for requests in list(self._requests.values()):
            for request, token in requests.items():
                if request is not None and not tokens.is_valid(token):
                    self.polls.refuse(request)
        self.sessions.end_invalid(tokens)

    def refusal(self, rights: Collection[str], place: str) -> HTTPException:
        """Return the error for a request with none of these rights. If no client may have them, say why."""
        subject = "clients have" if self._rights.isdisjoint(rights) else "the token has"
        why = ": connect the queue with codec='json'" if self.has_objects and {"put", "take"} & {*rights} else ""
        return HTTPException(403, f"{subject} no right to {' or '.join(rights)} in {place}{why}")

    async def count(self, token: Token, counted: str, calls: int = 1) -> None:
        """Count uses of a right, or bytes. Raise `HTTPException(429)` if the token has used it too often."""
        rate = token.rates.get(counted)
        if rate is None:
            return
        allowed = f"put {rate.count} bytes" if counted == "bytes" else f"{counted} {rate.count} times"
        rule = f"the token may {allowed} in {rate.seconds:g} s"
        if calls > rate.count:
            raise HTTPException(413, f"{rule}, and this request has {calls}")
        wait = await limit_time(self.namespaces.root, self.rates.wait(f"{token.id}:{counted}", rate, calls))
        if wait:
            retry = {"retry-after": str(math.ceil(wait))}
            raise HTTPException(429, f"{rule}: wait {wait:.3f} s", retry)

    @contextmanager
    def admit(self, token: Token) -> Generator[None]:
        """Register the current request of a token. Raise `HTTPException(429)` if the token has too many requests."""
        if not token.id:
            yield
            return
        limit = token.limits.get("requests", self.limits.requests_of_token)
        requests = self._requests.get(token.id, {})
        if len(requests) >= limit:
            raise HTTPException(429, f"the token may have {limit} requests at the same time (its limit `requests`)")
        request = asyncio.current_task()
        self._requests[token.id] = requests
        requests[request] = token
        try:
            yield
        finally:
            del requests[request]
            if not requests:
                self._requests.pop(token.id, None)

    async def check_put(self, token: Token, size: int, tasks: int = 1) -> Facts:
        """Count `size` bytes of data that a token puts; return options of the put that enforce its limit of tasks.

        Raise `HTTPException`: 413 for more tasks than the limit, 429 if the token has put too many bytes.
        """
        limit = token.limits.get("tasks")
        if limit is not None and tasks > limit:
            raise HTTPException(
                413, f"the token may have {limit} waiting tasks in a tube, and this request has {tasks}"
            )
        if size:
            await self.count(token, "bytes", size)
        return {} if limit is None else {MAX_WAITING: limit}

    def max_body(self, token: Token) -> int:
        return min(self.limits.body, token.limits.get("body", self.limits.body))

    def authenticate(self, scope: Scope) -> Token:
        """Return the token in the header `Authorization: Bearer`. Raise `HTTPException(401)` without a valid one."""
        if self.tokens is None:
            return self._anonymous
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                token = self.tokens.find(value[7:].strip().decode("latin-1"))
                if token is None:
                    break
                notes_of(scope)["token"] = token.id
                return token
        raise HTTPException(401, "the request has no valid token", {"www-authenticate": "Bearer"})


class BaseCall:
    """A request: its token, the namespace in its path, and its ASGI scope."""

    __slots__ = ("path", "receive", "scope", "service", "space", "token")

    def __init__(self, service: Service, token: Token, space: Namespace, scope: Scope, receive: Receive) -> None:
        self.service: Final = service
        self.token: Final = token
        self.space: Final = space
        self.scope: Final = scope
        self.receive: Final = receive
        self.path: Final[dict[str, str]] = scope["path_params"]


def size_of(data: bytes, options: Mapping[str, object]) -> int:
    """Return the bytes of a task that count against a token's rate: its data and context."""
    context = options.get("context")
    return len(data) + (len(encode_reply(context)) if context else 0)
