"""The common part of ports and connections: they check options, encode data and resolve tasks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from tubes.drivers.moves import State, check_state
from tubes.drivers.options import flag, one_of, priority, text, whole
from tubes.errors import CallFailed, InvalidOption, QueueForked, TubeFull, TubesError
from tubes.values.batch import Batch, Reference, gather
from tubes.values.codecs import encode
from tubes.values.codecs import find as find_codec
from tubes.values.lane import lane_of
from tubes.values.lease import Lease
from tubes.values.task import FINISHED, F, TaskView

if TYPE_CHECKING:
    from tubes.backend.interface import IfExists, Options, PreparedPut, Replies
    from tubes.backend.listeners import Listener
    from tubes.drivers.driver import Driver
    from tubes.values.codecs import Codec
    from tubes.values.overview import FolderUsage

#: Looked up once: a member of an enum costs a call.
_TAKEN: Final = State.TAKEN
_if_exists: Final = one_of("raise", "keep", "update")


class PortBase(Generic[F]):
    """The methods of one connection on one tube: the part that every backend has."""

    #: The API's class of tasks, and its tube.
    kind: type[F]
    tube: Any
    #: A number that no other tube of its name has had, in any store.
    born: int

    def __init__(self, driver: Driver, codec: Codec | None) -> None:
        self._driver: Final = driver
        self.codec = codec
        #: Makes the error for a dropped tube or a closed queue.
        self.gone: Callable[[], TubesError] | None = None
        #: What is called at every change of the tube, if this port listens.
        self.listener: Listener | None = None

    def prepare(self, data: object, options: Options) -> PreparedPut:
        """Encode the data of a put, and check its options."""
        if options:
            options = self._driver.check_put(options)
        return (data if self.codec is None else encode(self.codec, data)), options

    def gather(self, items: object, options: Options, errors: object = "raise") -> Batch:
        """What `put_many` puts, checked and encoded."""
        return gather(self._driver, self.codec, items, options, errors)

    def full(self, tasks: int) -> TubeFull:
        """The error if so many tasks have no room."""
        return TubeFull(tube=self.tube.name, tasks=tasks, capacity=self.tube.options.get("capacity"))

    def prepare_update(self, changes: Options) -> dict[str, Any]:
        """The changes of an update, checked, with encoded data."""
        checked = self._driver.check_update(changes)
        if self.codec is not None and "data" in checked:
            checked["data"] = encode(self.codec, checked["data"])
        return checked

    def need(self, option: str) -> None:
        """Raise `OptionNotSupported` if the driver lacks an option that a method needs."""
        if option not in self._driver.options:
            raise self._driver.lacks(option)

    def check_list(
        self, after: object, limit: object, state: object, utube: object
    ) -> tuple[int, TaskView | None, int, State | None, str | None]:
        """The task after which a list begins (its id, -1: at the first), how many there are at most, state and lane."""
        id, _, known = (-1, 0, None) if after is None else self.refer(after)
        task = known if isinstance(known, TaskView) else None
        lane = None if utube is None else lane_of(self._driver, utube)
        wanted = None if state is None else check_state(state)
        return id, task, whole("limit", limit), wanted, lane

    def refer(self, task: object) -> Reference:
        """Resolve a task, a lease or an id of a caller: see `Reference`.

        The id is -1 for a task of another tube that had the same name.
        """
        if not isinstance(task, TaskView):
            if task.__class__ is not int and isinstance(task, str):
                return self.read_lease(task)
            return whole("task", task), 0, None
        origin = task._tube
        if origin is not self.tube:
            if origin.name != self.tube.name:
                raise InvalidOption(option="task", value=task, rule=f"belongs to another tube than {self.tube.name!r}")
            if origin._port.shared is not self.tube._port.shared:
                return -1, 0, None
        return task._record.id, task._take if task._state is _TAKEN else 0, task  # pyright: ignore[reportUnknownVariableType]

    def refer_untaken(self, task: object) -> Reference:
        """The same of a task to be taken: a lease is of one that is taken."""
        if isinstance(task, str):
            raise InvalidOption(option="task", value=task, rule="must be a task or an id, not a lease")
        return self.refer(task)

    def check_pri(self, pri: object) -> int:
        """A new priority."""
        self.need("pri")
        return priority("pri", pri)

    def read_lease(self, text: str) -> tuple[int, int, Lease]:
        """What a lease says: the id, the take, and the lease."""
        lease = text if isinstance(text, Lease) else Lease(text)
        name = self.tube.name
        if lease.tube != name:
            raise InvalidOption(option="lease", value=text, rule=f"is for tube {lease.tube!r}, not for {name!r}")
        if lease.born != self.born:
            rule = f"is for another tube {name!r}: one of another store, or one that was dropped since"
            raise InvalidOption(option="lease", value=text, rule=rule)
        return lease.id, lease.take, lease


def check_end(task: F) -> F | None:
    """The task, as it was just seen, if it is done; None: not yet. Raises `CallFailed` if it will have no result."""
    if task._state is State.DONE and task.why == "ack":
        return task
    if task._state is State.DONE:
        why = "it was deleted" if task.why == "delete" else "its ttl was over"
    elif task._state is State.BURIED:
        why = f"it is buried: {task.reason or 'no reason was given'}"
    elif task.keep_done:
        return None
    else:
        rule = "must be set where a result is asked for, by the put of the task or by its tube"
        raise InvalidOption(option="keep_done", value=task.keep_done, rule=rule, current=str(task._state))
    raise CallFailed(id=task.id, tube=task.tube, why=why, state=task._state)


def check_reason(reason: str | None) -> str | None:
    """Why a task is released or buried."""
    return None if reason is None else text("reason", reason)


def mark_finished(task: object) -> None:
    """Mark a task as finished by its caller."""
    if isinstance(task, TaskView):
        task._take = FINISHED


class ConnectionBase:
    """One connection: the part that every backend has."""

    #: Makes the error for a connection that is closed; None: it is open.
    closed: Callable[[], TubesError] | None = None
    #: Where it gets the replies to its calls.
    replies: Replies | None = None

    def __init__(self, url: str) -> None:
        self.url = url
        self._pid: Final = os.getpid()

    def check(self) -> None:
        """Raise `QueueClosed` if this connection is closed, `QueueForked` if it is another process's."""
        if self._pid != os.getpid():
            raise self._forked()
        if self.closed is not None:
            raise self.closed()

    def folder_usage(self) -> FolderUsage | None:
        """What a store in a folder uses of its disk; None of other stores."""
        return None

    def meet(self) -> None:
        """Try the connection, if that was not done yet."""

    def _forked(self) -> TubesError:
        return QueueForked(parent=self._pid, child=os.getpid())


P = TypeVar("P", bound=PortBase[Any])


def with_json(port: P) -> P:
    """The port of an internal tube, which programs with other codecs read, too."""
    if port.codec is not None:
        port.codec = find_codec("json")
    return port


def how_if_exists(if_not_exists: Any, if_exists: Any) -> IfExists:
    """What `create_tube` does where there is a tube of the name, by both options that say so."""
    flag("if_not_exists", if_not_exists)
    if if_exists is None:
        return "same" if if_not_exists else "raise"
    if if_not_exists:
        raise InvalidOption(option="if_exists", value=if_exists, rule="is not for a call with if_not_exists=True")
    chosen: IfExists = _if_exists("if_exists", if_exists)  # type: ignore[assignment]
    return chosen


def session_name(uuid: str | UUID | None, create: bool = False) -> str | None:
    """The hexadecimal digits of a session's uuid; `create`: it may be a new one."""
    flag("create", create)
    if uuid is None:
        if create:
            raise InvalidOption(option="create", value=create, rule="needs a uuid")
        return None
    try:
        known = uuid if isinstance(uuid, UUID) else UUID(hex=uuid)
    except (ValueError, TypeError, AttributeError):
        raise InvalidOption(option="uuid", value=uuid, rule="must be 32 hexadecimal digits") from None
    if create and known.version != 4:  # Those of version 5 are sessions of streams.
        raise InvalidOption(option="uuid", value=uuid, rule="must be a random one (version 4), as of uuid.uuid4()")
    return known.hex
