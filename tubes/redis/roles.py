"""What those who look after waiters and listeners ask of the store and of ports, which are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tubes.backend.clock import Clock
    from tubes.backend.listeners import Listener
    from tubes.errors import TubesError
    from tubes.redis.scripts.assembly import Script
    from tubes.redis.transport.channel import ThreadChannel
    from tubes.redis.transport.script_call import Flow, ScriptCall, TubeSession
    from tubes.redis.transport.server import Server
    from tubes.redis.transport.wire import Word
    from tubes.values.task import TaskView

#: What `task_codec.parse` says of a task.
TakenTask: TypeAlias = tuple[int, bytes, int, int, int, bytes]


class Store(Protocol):
    """What a process knows of a server: see `RedisStore`."""

    @property
    def server(self) -> Server: ...
    @property
    def url(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def process(self) -> str: ...
    @property
    def manual(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def ringing(self) -> Script: ...
    def span(self) -> int | str: ...
    def local_micros(self, moment: int) -> int: ...
    def heed(self, soonest: int, channel: ThreadChannel | None = None) -> None: ...
    def later(self, act: Callable[[], object]) -> None: ...
    def poke(self, key: str) -> None: ...


class ListeningPort(Protocol):
    """A port through which somebody listens: see `Port`."""

    gone: Callable[[], TubesError] | None
    listener: Listener | None

    def ask(self, verb: str, /, *args: Word) -> Flow[int]: ...
    def show(self, taken: TakenTask, /) -> TaskView: ...


class WaitingPort(Protocol):
    """A port through which somebody waits: see `BatchPort`."""

    session: TubeSession | None

    def show(self, taken: TakenTask, /) -> TaskView: ...
    def take_waiting(self, count: int, /) -> Flow[int | TakenTask]: ...
    def take_ahead(self, count: int, /) -> ScriptCall | None: ...
    def put_waiting(self, request: object, /) -> Flow[TaskView | Sequence[TaskView] | None]: ...
    def undo(
        self, verb: str, /, *args: Word, slot: str | None = None, session: TubeSession | None = None
    ) -> Flow[None]: ...
