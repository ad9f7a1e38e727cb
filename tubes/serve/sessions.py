"""Sessions of clients. A session holds its tasks as long as the client renews it."""

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

#: The text of a session: its uuid, and its ttl in microseconds. Every client that knows the uuid may use the session.
_SESSION_TEXT: Final = re.compile(r"([0-9a-f]{32})-([0-9]{4,10})")
#: Bounds of the ttl of a session, in seconds.
MAX_TTL: Final = 3600
MIN_TTL: Final = 1


class Sessions:
    """The sessions that this process has joined: at most `limit`, and at most `token_limit` per token.

    A process joins a session at its first request, and leaves it after a ttl without requests. The session ends when
    the last process leaves.
    """

    def __init__(self, limit: int, token_limit: int) -> None:
        self._limit: Final = limit
        self._token_limit: Final = token_limit
        self._counts: Final[Counter[str]] = Counter()
        self._sessions: Final[dict[tuple[str, str], _Session]] = {}
        self._leaving: Final[set[asyncio.Task[None]]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    async def begin(self, space: Namespace, ttl: object, token: Token) -> str:
        uuid, span = uuid4().hex, micros("ttl", ttl)
        await self._join(space, uuid, span / SECOND, token, create=True)
        return f"{uuid}-{span}"

    async def renew(self, space: Namespace, text: object, token: Token) -> _Session:
        """Renew a session; return its view of the namespace. Raise `SessionNotFound` if it does not exist."""
        match = _SESSION_TEXT.fullmatch(text) if isinstance(text, str) else None
        # Clients must not use the session of the service itself.
        if match is None or match[1] == UUID(SESSION).hex or not MIN_TTL <= int(match[2]) / SECOND <= MAX_TTL:
            raise SessionNotFound(uuid=text)
        session, ttl = self._sessions.get((space.name, match[1])), int(match[2]) / SECOND
        if session is None:
            return await self._join(space, match[1], ttl, token, create=False)
        # The session now depends on this token, so a client can change tokens before the first one is revoked.
        session.token = token
        self._schedule_expiry(session, ttl)
        return session

    async def end(self, space: Namespace, text: str, token: Token) -> None:
        """End a session and release its tasks. Raise `SessionNotFound` if it does not exist."""
        await self._leave(await self.renew(space, text, token))

    @contextmanager
    def reserve(self, token: Token) -> Generator[None]:
        """Reserve a session of this token for a block. Raise `HTTPException` if there are too many."""
        if self._counts.total() >= self._limit:
            raise HTTPException(503, f"{self._limit} sessions and streams are in use")
        limit = token.limits.get("sessions", self._token_limit)
        if token.id and self._counts[token.id] >= limit:
            raise HTTPException(
                429, f"the token may have {limit} sessions and streams at the same time (its limit `sessions`)"
            )
        self._counts[token.id] += 1
        try:
            yield
        finally:
            self._counts[token.id] -= 1
            if not self._counts[token.id]:
                del self._counts[token.id]

    async def close(self) -> None:
        """Leave all sessions; a session that another process has joined continues."""
        while self._sessions:
            await self._leave(next(reversed(self._sessions.values())))

    def end_invalid(self, tokens: Tokens) -> None:
        """End the sessions whose token was revoked, has expired or has other grants."""
        for session in list(self._sessions.values()):
            if session.token.id and not tokens.is_valid(session.token):
                self._leave(session)

    async def _join(self, space: Namespace, uuid: str, ttl: float, token: Token, *, create: bool) -> _Session:
        with ExitStack() as stack:
            stack.enter_context(self.reserve(token))
            # The greatest power of two within the ttl, so that sessions share heartbeats.
            queue = space.session(float(max(2, 1 << int(ttl).bit_length() - 1)))
            try:
                await queue.admin.identify(uuid, create=create)
            except BaseException:
                await queue.close()
                raise
            joined = self._sessions.get((space.name, uuid))
            if joined is not None:  # Another request joined the session in the meantime.
                await queue.close()
                return joined
            # Keep the namespace open as long as this session.
            stack.enter_context(space.hold())
            session = self._sessions[space.name, uuid] = _Session(space.name, queue, uuid, token, stack.pop_all())
        self._schedule_expiry(session, ttl)
        return session

    def _schedule_expiry(self, session: _Session, ttl: float) -> None:
        if session.timer is not None:
            session.timer.cancel()
        session.timer = asyncio.get_running_loop().call_later(ttl, self._expire, session, ttl)

    def _expire(self, session: _Session, ttl: float) -> None:
        if session.users:  # A request of this session is waiting.
            self._schedule_expiry(session, ttl)
        else:
            self._leave(session)

    def _leave(self, session: _Session) -> asyncio.Task[None]:
        """Forget a session; return the task that leaves it."""
        del self._sessions[session.name, session.uuid]
        if session.timer is not None:
            session.timer.cancel()
        session.cleanup.close()
        leaving = asyncio.ensure_future(_close(session.queue))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return leaving


class _Session(Namespace):
    """A namespace opened with the session of a client. `token`: the last token that used the session.

    `cleanup`: gives up its reserved place and its hold on the namespace.
    """

    timer: asyncio.TimerHandle | None = None

    def __init__(self, name: str, queue: AsyncQueue, uuid: str, token: Token, cleanup: ExitStack) -> None:
        super().__init__(name, queue)
        self.uuid: Final = uuid
        self.token = token
        self.cleanup: Final = cleanup


async def _close(queue: AsyncQueue) -> None:
    with suppress(TubesError):
        await queue.close()
