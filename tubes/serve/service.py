"""What all requests to a service share."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.types import Scope

from tubes.aio import AsyncQueue
from tubes.errors import InvalidOption
from tubes.serve.access import noted
from tubes.serve.events import Ends, Events
from tubes.serve.leases import Leases
from tubes.serve.namespaces import Namespaces
from tubes.serve.polls import Polls
from tubes.serve.rates import Rates
from tubes.serve.sessions import Sessions
from tubes.serve.tokens import ANYBODY, Token, Tokens


@dataclass(frozen=True)
class Limits:
    """What clients may ask of a service."""

    #: Bytes of a body.
    body: int = 2**20
    #: Bytes of the headers of a request that does not arrive at once.
    headers: int = 2**16
    #: Tasks of a batch, or of a list.
    batch: int = 1000
    #: Seconds until the headers of a request, and until all of it, must have arrived.
    headers_within: float = 5.0
    body_within: float = 30.0
    #: Seconds after which a client that reads hardly anything of a long reply is cut off.
    read_within: float = 30.0
    #: Connections at the same time; a request beyond them gets a 503.
    connections: int = 20_000
    #: Seconds for which a request may wait.
    wait: float = 600.0
    #: Seconds for which a client that names no ttr may work on a task of a tube that has none either.
    ttr: float = 120.0
    #: Namespaces that are open at the same time.
    namespaces: int = 1000
    #: Sessions of clients at the same time.
    sessions: int = 10_000
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
        self.sessions: Final = Sessions(limits.sessions)
        self.rates: Final = Rates(queue)
        self.events: Final = Events()
        self.ends: Final = Ends()
        self.polls: Final = Polls()
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
        try:
            async with AsyncExitStack() as stack:
                for each in self.beside:
                    await stack.enter_async_context(each())
                yield
        finally:
            self.close()
            await self.sessions.close()
            await self.namespaces.close()

    async def count(self, token: Token, right: str) -> None:
        """Count a use of a right. Raises `HTTPException(429)` if the token has used it too often."""
        rate = token.rates.get(right)
        wait = await self.rates.wait(f"{token.id}:{right}", rate) if rate is not None else 0
        if wait:
            retry = {"retry-after": str(math.ceil(wait))}
            raise HTTPException(429, f"the token may {right} {rate}, as times/seconds: wait {wait:.3f} s", retry)

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
