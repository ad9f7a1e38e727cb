"""Sessions of clients: they hold tasks as long as they are renewed."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final
from uuid import UUID, uuid4

from starlette.exceptions import HTTPException

from tubes.aio import AsyncQueue
from tubes.drivers.options import SECOND, micros
from tubes.errors import SessionNotFound, TubesError
from tubes.serve.namespaces import SESSION, Namespace
from tubes.serve.tokens import Token, Tokens

#: A session as its client names it: its uuid, and its ttl in microseconds. Who knows the uuid may use it.
_TEXT: Final = re.compile(r"([0-9a-f]{32})-([0-9]{4,10})")
#: The ttl of a session, in seconds.
LONGEST: Final = 3600
SHORTEST: Final = 1


class Sessions:
    """The sessions that this process keeps, by namespace and uuid; `most` at a time, so many of them of a token.

    Each process that hears of a session joins it, until it has heard nothing of it for its ttl. The session ends when
    the last one of them leaves.
    """

    def __init__(self, most: int, most_of_token: int) -> None:
        self._most: Final = most
        self._most_of_token: Final = most_of_token
        self._of_tokens: Final[Counter[str]] = Counter()
        self._joined: Final[dict[tuple[str, str], tuple[_Session, asyncio.TimerHandle]]] = {}
        self._ending: Final[set[asyncio.Task[None]]] = set()

    async def begin(self, space: Namespace, ttl: object, token: Token) -> str:
        """Begin a session; returns its text."""
        span = micros("ttl", ttl)
        text = f"{uuid4().hex}-{span}"
        await self._join(space, text, token, create=True)
        return text

    async def renew(self, space: Namespace, text: object, token: Token) -> Namespace:
        """Renew a session; returns the tubes as it sees them. Raises `SessionNotFound`."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        # That of the service itself is not for clients.
        if found is None or found[1] == UUID(SESSION).hex or not SHORTEST <= int(found[2]) / SECOND <= LONGEST:
            raise SessionNotFound(uuid=text)
        known = self._joined.get((space.name, found[1]))
        if known is None:
            return await self._join(space, found[0], token, create=False)
        # The next token of a client whose first one is about to be revoked takes its session over.
        known[0].token = token
        self._keep(known[0], found[0])
        return known[0]

    async def end(self, space: Namespace, text: str, token: Token) -> None:
        """End a session: its tasks are released. Raises `SessionNotFound`."""
        await self.renew(space, text, token)
        session, timer = self._joined.pop((space.name, _uuid(text)))
        timer.cancel()
        await self._leave(session)

    @contextmanager
    def room(self, token: Token) -> Generator[None]:
        """Room for a session of this token. Raises `HTTPException` if there are too many."""
        self._enter(token)
        try:
            yield
        finally:
            self._exit(token)

    def _enter(self, token: Token) -> None:
        if self._of_tokens.total() >= self._most:
            raise HTTPException(503, f"{self._most} sessions and streams are in use")
        most = token.limits.get("sessions", self._most_of_token)
        if token.id and self._of_tokens[token.id] >= most:
            raise HTTPException(
                429, f"the token may have {most} sessions and streams at the same time (its limit `sessions`)"
            )
        self._of_tokens[token.id] += 1

    def _exit(self, token: Token) -> None:
        self._of_tokens[token.id] -= 1
        if not self._of_tokens[token.id]:
            del self._of_tokens[token.id]

    async def close(self) -> None:
        """Leave all sessions: those that other processes have joined go on there."""
        while self._joined:
            _, (session, timer) = self._joined.popitem()
            timer.cancel()
            await self._leave(session)

    def end_invalid(self, tokens: Tokens) -> None:
        """End the sessions whose token was revoked, has expired or has other grants."""
        for key, (session, timer) in list(self._joined.items()):
            if session.token.id and not tokens.is_valid(session.token):
                timer.cancel()
                self._drop(key)

    async def _join(self, space: Namespace, text: str, token: Token, *, create: bool) -> Namespace:
        with ExitStack() as stack:
            stack.enter_context(self.room(token))
            queue = space.session(_ttl(text))
            try:
                await queue.identify(_uuid(text), create=create)
            except BaseException:
                await queue.close()
                raise
            known = self._joined.get((space.name, _uuid(text)))
            if known is not None:  # By another request, meanwhile.
                await queue.close()
                return known[0]
            # The namespace stays open as long as a session of it.
            stack.enter_context(space.used())
            session = _Session(space.name, queue, token, stack.pop_all())
        self._keep(session, text)
        return session

    def _keep(self, session: _Session, text: str) -> None:
        key = (session.name, _uuid(text))
        if key in self._joined:
            self._joined[key][1].cancel()
        timer = asyncio.get_running_loop().call_later(_span(text), self._expire, key, text)
        self._joined[key] = session, timer

    def _expire(self, key: tuple[str, str], text: str) -> None:
        session, _ = self._joined[key]
        if session.users:  # A poll of it waits.
            self._keep(session, text)
            return
        self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        session, _ = self._joined.pop(key)
        ending = asyncio.ensure_future(self._leave(session))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _leave(self, session: _Session) -> None:
        session.ends.close()
        with suppress(TubesError):
            await session.queue.close()


class _Session(Namespace):
    """A namespace as the session of a client sees it. `token`: the last one that used it. `ends`: its cleanup."""

    def __init__(self, name: str, queue: AsyncQueue, token: Token, ends: ExitStack) -> None:
        super().__init__(name, queue)
        self.token = token
        self.ends: Final = ends


def _ttl(text: str) -> float:
    """The session ttl on the server: the greatest power of two within the ttl, so that few heartbeats serve all."""
    return float(max(2, 1 << int(_span(text)).bit_length() - 1))


def _span(text: str) -> float:
    return int(text.partition("-")[2]) / SECOND


def _uuid(text: str) -> str:
    return text.partition("-")[0]
