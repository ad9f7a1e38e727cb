"""Sessions of clients: they hold tasks as long as they are renewed."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

from starlette.exceptions import HTTPException

from tubes.drivers.options import SECOND, micros
from tubes.errors import InvalidOption, SessionNotFound, TubesError
from tubes.serve.namespaces import SESSION, Namespace

#: A session as its client names it: its uuid, and its ttl in microseconds. Who knows the uuid may use it.
_TEXT: Final = re.compile(r"([0-9a-f]{32})-([0-9]{4,10})")
_LONGEST: Final = 3600
_SHORTEST: Final = 1


class Sessions:
    """The sessions that this process keeps, by namespace and uuid; `most` at a time.

    Each process that hears of a session joins it, until it has heard nothing of it for its ttl. The session ends when
    the last one of them leaves.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._joined: Final[dict[tuple[str, str], tuple[Namespace, asyncio.TimerHandle]]] = {}
        self._ending: Final[set[asyncio.Task[None]]] = set()

    async def begin(self, space: Namespace, ttl: object) -> str:
        """Begin a session; returns its text."""
        span = micros("ttl", ttl)
        if not _SHORTEST * SECOND <= span <= _LONGEST * SECOND:
            raise InvalidOption(option="ttl", value=ttl, rule=f"must be from {_SHORTEST} to {_LONGEST} seconds")
        text = f"{uuid4().hex}-{span}"
        await self._join(space, text, create=True)
        return text

    async def renew(self, space: Namespace, text: object) -> Namespace:
        """Renew a session; returns the tubes as it sees them. Raises `SessionNotFound`."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        # That of the service itself is not for clients.
        if found is None or found[1] == UUID(SESSION).hex or not _SHORTEST <= int(found[2]) / SECOND <= _LONGEST:
            raise SessionNotFound(uuid=text)
        known = self._joined.get((space.name, found[1]))
        if known is None:
            return await self._join(space, found[0], create=False)
        self._keep(known[0], found[0])
        return known[0]

    async def end(self, space: Namespace, text: str) -> None:
        """End a session: its tasks are released. Raises `SessionNotFound`."""
        await self.renew(space, text)
        session, timer = self._joined.pop((space.name, _uuid(text)))
        timer.cancel()
        await _leave(session)

    async def close(self) -> None:
        """Leave all sessions: those that other processes have joined go on there."""
        while self._joined:
            _, (session, timer) = self._joined.popitem()
            timer.cancel()
            await _leave(session)

    async def _join(self, space: Namespace, text: str, *, create: bool) -> Namespace:
        if len(self._joined) >= self._most:
            raise HTTPException(503, f"{self._most} sessions are in use")
        queue = await space.queue.session()
        try:
            await queue.identify(_uuid(text), create=create)
        except BaseException:
            await queue.close()
            raise
        session = Namespace(space.name, queue)
        known = self._joined.get((space.name, _uuid(text)))
        if known is not None:  # By another request, meanwhile.
            await queue.close()
            return known[0]
        # The namespace stays open as long as a session of it.
        space.users += 1
        session.parent = space
        self._keep(session, text)
        return session

    def _keep(self, session: Namespace, text: str) -> None:
        key = (session.name, _uuid(text))
        if key in self._joined:
            self._joined[key][1].cancel()
        span = int(text.partition("-")[2]) / SECOND
        self._joined[key] = session, asyncio.get_running_loop().call_later(span, self._expire, key, text)

    def _expire(self, key: tuple[str, str], text: str) -> None:
        session, _ = self._joined[key]
        if session.users:  # A poll of it waits.
            self._keep(session, text)
            return
        del self._joined[key]
        ending = asyncio.ensure_future(_leave(session))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def _uuid(text: str) -> str:
    return text.partition("-")[0]


async def _leave(session: Namespace) -> None:
    if session.parent is not None:
        session.parent.users -= 1
        session.parent = None
    with suppress(TubesError):
        await session.queue.close()
