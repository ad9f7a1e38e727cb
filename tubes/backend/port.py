"""Base classes of ports and connections: they check options, encode data and resolve tasks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar
from uuid import UUID

from tubes.drivers.failures import NO_TRACE, Trace
from tubes.drivers.moves import State
from tubes.drivers.options import flag, integer, one_of, priority, text
from tubes.errors import CallFailed, Facts, InvalidOption, QueueForked, TubeFull, TubesError
from tubes.values.batch import Batch, Reference, gather
from tubes.values.codecs import encode
from tubes.values.lease import Lease
from tubes.values.task import FINISHED, F, TaskView

if TYPE_CHECKING:
    from tubes.backend.interface import IfExists, Options, PreparedPut, Replies
    from tubes.backend.listeners import Listener
    from tubes.drivers.driver import Driver
    from tubes.drivers.registry import Registry
    from tubes.values.codecs import Codec
    from tubes.values.overview import FolderUsage

_log: Final = logging.getLogger("tubes")
_NO_LANE: Final = (
    "tube %r has lanes, but a task was put without %s=: such tasks share one lane, so by default only one of them is "
    "taken at a time"
)
#: A constant, because each access to a member of an enum costs a call.
_TAKEN: Final = State.TAKEN
_if_exists: Final = one_of("raise", "keep", "update")

PortT = TypeVar("PortT", covariant=True)
ConnectionT = TypeVar("ConnectionT", covariant=True)


class PortBase(Generic[F]):
    """The methods of one connection on one tube that all backends share."""

    #: The class of tasks and the tube of the API.
    kind: type[F]
    tube: Any
    #: A number that differs for every tube of this name, in any store.
    born: int

    def __init__(self, driver: Driver, codec: Codec | None) -> None:
        self._driver: Final = driver
        self.codec = codec
        #: Factory of the error to raise after the tube was dropped or the queue closed.
        self.closed_error: Callable[[], TubesError] | None = None
        #: For a partitioned tube: its port.
        self.partitioned: Any = None
        #: The listener of this port.
        self.listener: Listener | None = None

    @property
    def knows_none(self) -> bool:
        """True if no task is available, so that a caller can wait at once."""
        return False

    @property
    def hot(self) -> Self:
        """The port for takes that may wait: on a server it leaves out partitions that wake this process."""
        return self

    def reach(self, request: object) -> list[F] | None:
        """Prepare the wait for room of a put, or of a batch. Return the tasks if they need not wait."""
        return None

    def use_codec(self, codec: Codec) -> Self:
        """Use another codec than the store's for this tube, and return the port. Unencoded data stay unencoded."""
        if self.codec is not None:
            self.codec = codec
        return self

    def prepare(self, data: object, options: Options) -> PreparedPut:
        """Encode the data of a put and check its options."""
        if options:
            options = self._driver.check_put(options)
        if self._driver.lane is not None:
            self.check_lane(options)
        return (data if self.codec is None else encode(self.codec, data)), options

    def gather(self, items: object, options: Options, errors: object = "raise") -> Batch:
        batch = gather(self._driver, self.codec, items, options, errors)
        if self._driver.lane is not None:
            for each, _ in batch.runs:
                self.check_lane(each)
        return batch

    def check_lane(self, options: Options) -> None:
        """Log a warning if a put into a tube with lanes has none, once for each tube and process."""
        lane, shared = self._driver.lane or "utube", self.tube._port.shared
        if options.get(lane) is None and options.get("utube") is None and not shared.has_warned:
            shared.has_warned = True
            _log.warning(_NO_LANE, shared.name, lane)

    def full_error(self, tasks: int) -> TubeFull:
        return TubeFull(tube=self.tube.name, tasks=tasks, capacity=self.tube.options.get("capacity"))

    def prepare_update(self, changes: Options) -> Facts:
        checked = self._driver.check_update(changes)
        if self.codec is not None and "data" in checked:
            checked["data"] = encode(self.codec, checked["data"])
        return checked

    def require_option(self, option: str) -> None:
        """Raise `OptionNotSupported` if the driver lacks this option."""
        if option not in self._driver.options:
            raise self._driver.make_option_error(option)

    def resolve_task(self, task: object) -> Reference:
        """Resolve a task, a lease or an id that a caller passed: see `Reference`.

        The id is -1 for a task of a former tube of the same name.
        """
        if not isinstance(task, TaskView):
            if task.__class__ is not int and isinstance(task, str):
                return self.read_lease(task)
            return integer("task", task), 0, None
        origin = task._tube
        if origin is not self.tube:
            if origin.name != self.tube.name:
                raise InvalidOption(option="task", value=task, rule=f"belongs to another tube than {self.tube.name!r}")
            if origin._port.shared is not self.tube._port.shared:
                return -1, 0, None
        return task._record.id, task._take if task._state is _TAKEN else 0, task  # pyright: ignore[reportUnknownVariableType]

    def resolve_untaken_task(self, task: object) -> Reference:
        """Resolve a task or an id for a take. Raises `InvalidOption` for a lease: its task is already taken."""
        if isinstance(task, str):
            raise InvalidOption(option="task", value=task, rule="must be a task or an id, not a lease")
        return self.resolve_task(task)

    def check_pri(self, pri: object) -> int:
        self.require_option("pri")
        return priority("pri", pri)

    def read_lease(self, text: str) -> tuple[int, int, Lease]:
        """Parse a lease and check that it belongs to this tube; return id, take number and lease."""
        lease = text if isinstance(text, Lease) else Lease(text)
        name = self.tube.name
        if lease.tube != name:
            raise InvalidOption(option="lease", value=text, rule=f"is for tube {lease.tube!r}, not for {name!r}")
        if lease.born != self.born:
            rule = f"is for another tube {name!r}: in another store, or dropped since"
            raise InvalidOption(option="lease", value=text, rule=rule)
        return lease.id, lease.take, lease


class HasPort(Protocol[PortT]):
    """A tube, a selection, or another object of the API that calls a port."""

    @property
    def _port(self) -> PortT: ...


class HasConnection(Protocol[ConnectionT]):
    """A `Queue` or an `AsyncQueue`."""

    @property
    def _connection(self) -> ConnectionT: ...


def port_of(tube: HasPort[PortT]) -> PortT:
    """Return the port that a tube calls. For the library's own packages outside of the backends and the API."""
    return tube._port


def connection_of(queue: HasConnection[ConnectionT]) -> ConnectionT:
    """Return the connection that a queue calls: see `port_of`."""
    return queue._connection


def check_end(task: F) -> F | None:
    """Return a task that was just read if it is done, else None. Raises `CallFailed` if it will have no result."""
    if task._state is State.DONE and task.why == "ack":
        return task
    if task._state is State.DONE:
        ends = {"delete": "it was deleted", "cancelled": f"it was cancelled: {task.reason or 'no reason was given'}"}
        why = ends.get(task.why or "", "its ttl expired")
    elif task._state is State.BURIED:
        why = f"it is buried: {task.reason or 'no reason was given'}"
    elif task.keep_done:
        return None
    else:
        rule = "must be set, by the put or by the tube, to wait for a result"
        raise InvalidOption(option="keep_done", value=task.keep_done, rule=rule, current=str(task._state))
    raise CallFailed(id=task.id, tube=task.tube, why=why, state=task._state)


def check_reason(reason: str | None) -> str | None:
    return None if reason is None else text("reason", reason)


def check_trace(traceback: str | None, worker: str | None) -> Trace:
    if traceback is worker is None:
        return NO_TRACE
    facts = {"traceback": traceback, "worker": worker}
    return Trace(**{name: text(name, value) for name, value in facts.items() if value is not None})


def mark_finished(task: object) -> None:
    if isinstance(task, TaskView):
        task._take = FINISHED


class Store(Protocol):
    """The properties of a store that are the same in all backends."""

    @property
    def codec(self) -> Codec | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def registry(self) -> Registry: ...


class ConnectionBase:
    """The methods of a connection that all backends share."""

    #: True if the store is on a server: calls take a round trip, and replies may be lost.
    is_remote = False
    store: Store
    #: Factory of the error to raise if the connection is closed; None: it is open.
    closed: Callable[[], TubesError] | None = None
    #: Receives the replies to the calls of this connection.
    replies: Replies | None = None
    #: Called after each `Task.checkpoint`; a worker sets it, to interrupt its handlers by an exception.
    on_checkpoint: Callable[[], None] | None = None

    def __init__(self, url: str) -> None:
        self.url = url
        self._pid: Final = os.getpid()

    def check(self) -> None:
        """Raise `QueueClosed` if this connection is closed, and `QueueForked` if a parent process opened it."""
        if self._pid != os.getpid():
            raise self._make_forked_error()
        if self.closed is not None:
            raise self.closed()

    @property
    def codec(self) -> Codec | None:
        """The codec of new ports; None: data is stored unchanged."""
        return self.store.codec

    @property
    def namespace(self) -> str:
        """The namespace of the tubes; '' without one."""
        return self.store.namespace

    @property
    def is_read_only(self) -> bool:
        """True if the connection cannot change the store: a folder opened with `mode=read`."""
        return False

    def reachable(self, tubes: list[Any]) -> Any:
        """Return the tubes and names of tubes whose node replies, all if none does; in an async cluster a coroutine."""
        return tubes

    def find_driver(self, name: str) -> Driver:
        """Return the driver of this name. Raises `DriverNotFound`."""
        return self.store.registry.find(name)

    def folder_usage(self) -> FolderUsage | None:
        """Return the disk usage of a store in a folder; None for other stores."""
        return None

    def ensure_connected(self) -> None:
        """Connect to the server, if that has not been done yet."""

    def _make_forked_error(self) -> TubesError:
        return QueueForked(parent=self._pid, child=os.getpid())


def combine_if_exists(if_not_exists: object, if_exists: object) -> IfExists:
    """Combine `if_not_exists` and `if_exists` of `create_tube` into one value."""
    flag("if_not_exists", if_not_exists)
    if if_exists is None:
        return "same" if if_not_exists else "raise"
    if if_not_exists:
        raise InvalidOption(option="if_exists", value=if_exists, rule="cannot be combined with if_not_exists=True")
    chosen: IfExists = _if_exists("if_exists", if_exists)  # type: ignore[assignment]
    return chosen


def check_session_uuid(uuid: str | UUID | None, create: bool = False) -> str | None:
    """Check a session's uuid and return its hexadecimal digits; `create`: the session may be new."""
    flag("create", create)
    if uuid is None:
        if create:
            raise InvalidOption(option="create", value=create, rule="needs a uuid")
        return None
    try:
        known = uuid if isinstance(uuid, UUID) else UUID(hex=uuid)
    except (ValueError, TypeError, AttributeError):
        raise InvalidOption(option="uuid", value=uuid, rule="must be 32 hexadecimal digits") from None
    if create and known.version != 4:  # Streams use sessions with uuids of version 5.
        raise InvalidOption(option="uuid", value=uuid, rule="must be random (version 4), as uuid.uuid4() returns it")
    return known.hex
