"""Calls of Lua functions by the methods of one connection on one tube, in threads and on event loops.

A method with one call uses `call`. A method with several calls is a flow (a generator that yields calls), which `run`
or `change` runs. On an event loop these return an awaitable; the annotations name its result.

A call uses the tube's options as the session knows them. `transport/attempt.py` says what to do after an error reply,
and `RedisPort.settle` does it.

A call that is interrupted or cancelled has its full effect or none. A take whose caller is gone is undone by the call's
`undo`, so `take` and `take_many` lose no task. A `next` in a thread is not undone: its session keeps the task.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from tubes.backend.interface import AnyConnection
from tubes.backend.port import PortBase, mark_finished
from tubes.backend.waiters import TUBE_EMPTY, TaskEnd
from tubes.drivers.moves import State
from tubes.drivers.timers import NEVER
from tubes.errors import ConnectionLost, ServerRefused, TaskNotFound, TaskNotTaken, TubeFull, TubeNotFound, TubesError
from tubes.redis import task_codec, validation
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.library.replies import list_of, number_of
from tubes.redis.options_version import LeaseSession, TubeSession
from tubes.redis.task_codec import Parsed, put_of
from tubes.redis.transport.attempt import RESULTS, UNSURE, PortStep, port_step
from tubes.redis.transport.script_call import AHEAD, SERVING, Flow, ScriptCall, ScriptLook
from tubes.redis.transport.wire import ErrorReply, Reply, Word, error_of
from tubes.values.lease import Lease
from tubes.values.task import F, TaskView

if TYPE_CHECKING:
    from tubes.backend.waiters import Waiter
    from tubes.redis.options_version import OptionsVersion
    from tubes.redis.sessions.session import RedisSession
    from tubes.redis.sessions.store import RedisStore
    from tubes.redis.transport.channel import Undo
    from tubes.redis.waiting.shared_tube import RedisTube

P = ParamSpec("P")
R = TypeVar("R", bound="RedisPort")
T = TypeVar("T")
_log = logging.getLogger("tubes")
#: The arguments of a Lua function, or a function that makes them for a version (None: the arguments do not fit it).
Words: TypeAlias = "tuple[Word, ...] | Callable[[OptionsVersion], tuple[Word, ...] | None]"
#: A function that turns the reply into a result, the arguments of the call, and its lease, if any.
Request: TypeAlias = tuple[Callable[[Reply], T], tuple[Word, ...], Lease | None]

#: The functions of takes that do not wait for the dead node of a partition.
_TAKES: Final = frozenset({"take", "take_many", "take_for"})
#: Words per call of `undo`: two for each task.
_UNDO_WORDS: Final = 100


def change_method(flow: Callable[Concatenate[R, P], Flow[T]]) -> Callable[Concatenate[R, P], T]:
    """Make a method that runs the flow by `RedisPort.change`."""

    @wraps(flow)
    def run(port: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return port.change(flow(port, *args, **kwargs))

    return run


class PortConnection(AnyConnection, Protocol):
    """The connection of a port."""

    store: RedisStore
    session: RedisSession
    awaited: bool
    #: Interrupted calls that have to be undone: see `ThreadChannel`.
    undos: list[Undo]

    def run_undos(self) -> None:
        """Undo the interrupted calls, if that is possible now."""
        ...

    def run(self, flow: Flow[T]) -> T:
        """Run a flow, here or on the event loop."""
        ...

    def may_run(self) -> bool:
        """Return True if a finalizer may run a call now in this thread."""
        ...

    def enter(self, port: RedisPort, /) -> Flow[None]:
        """Open the tube of a port again after the session has changed or its lease has expired."""
        ...

    def forget(self, shared: RedisTube, /) -> None:
        """Drop the port of a tube that no longer exists."""
        ...

    def repair(self, name: str, /) -> Flow[None]:
        """Repair a tube that is marked as damaged."""
        ...

    def forget_name(self, name: str, /) -> Flow[None]:
        """Remove the name of a dropped tube unless it was created again."""
        ...


class RedisPort(PortBase[F]):
    """The methods of one connection on one tube."""

    def __init__(self, connection: PortConnection, shared: RedisTube) -> None:
        store = connection.store
        super().__init__(shared.driver, store.codec)
        self.connection: Final = connection
        self.shared: Final = shared
        self.born = int(shared.born)
        #: The session in this tube; None: not open.
        self.session: TubeSession | None = None
        #: The last session that was open here; it holds the tasks that this port has taken.
        self.last_session: TubeSession | None = None
        #: True if takes do not wait for a dead node: they are from a partition in a cluster.
        self.takes_fail_soon = False
        self.url: Final = store.url
        self.clock: Final = store.clock

    def known_facts_word(self, view: TaskView) -> str:
        """Return the argument that describes a task whose data the caller knows.

        '2': its end has other effects; '3': it may be due; '1': neither. The reply need not contain the data.
        """
        if has_end_effects(view):
            return "2"
        # Another caller may have set a ttr meanwhile.
        return "3" if "ttr" in self._driver.options or view._times[0] is not None else "1"

    @property
    def may_serve_waiters(self) -> bool:
        """True if a take in this thread serves waiters first.

        An event loop may stop in the middle of a call, and the main thread may be interrupted.
        """
        return self.connection.store.manual or not (
            self.connection.awaited or threading.current_thread() is threading.main_thread()
        )

    # -- calls ---------------------------------------------------------------------------------------------------------

    def run(self, flow: Flow[T]) -> T:
        """Run a flow."""
        return self.connection.run(flow)

    def change(self, flow: Flow[T]) -> T:
        """Run a flow that may make a task available or free room; then serve the waiters of this process."""
        shared = self.shared
        # Without a test's clock, a marker wakes their thread just as soon.
        if self.connection.store.manual and (shared.queue.take_waiters or shared.queue.put_waiters):
            flow = shared.serving.serve_after(flow)
        return self.connection.run(flow)

    def call(self, name: str, request: Request[T], *, changes: bool = True) -> T:
        """Call a function; `changes`: it may make a task available or free room."""
        flow = self.run_request(name, request)
        return self.change(flow) if changes else self.run(flow)

    def run_request(self, name: str, request: Request[T]) -> Flow[T]:
        """Call a function and return the result for its reply."""
        decode, words, lease = request
        return decode((yield from self.run_script(name, words, lease=lease)))

    def task_request(
        self, task: object, *words: Word, looks: bool = False, ends: bool = False, data: bytes | None = None
    ) -> Request[F]:
        """Return a request about a task; `words`: further arguments of its function.

        `looks`: any caller may hold the task, and the reply contains its data; otherwise the caller holds it and has
        its data. `ends`: the call ends the take. `data`: the new data of the task.
        """
        id, _, view = self.resolve_task(task)
        lease = view if isinstance(view, Lease) else None
        known = None if looks or view is None or isinstance(view, Lease) else view

        def decode(reply: Reply) -> F:
            if type(reply) is ErrorReply:
                if lease is not None:
                    raise TaskNotTaken(id=id, tube=self.shared.name, leased=True)
                raise (TaskNotFound if reply.code == "NOTFOUND" else TaskNotTaken)(id=id, tube=self.shared.name)
            if type(reply) is bytes:
                known_data = data if known is None or data is not None else known._record.data
                found = self.decode(task_codec.parse(reply), known_data)
            else:
                assert known is not None
                found = task_codec.make_task(self.kind, self.tube, known._record, State.DONE, known._attempts, NEVER)
            if ends:
                mark_finished(task)
            return found

        identity = identity_of(view, by_put=looks)
        return decode, (id, identity, "" if known is None else self.known_facts_word(known), *words), lease

    def run_script(
        self,
        name: str,
        words: Words = (),
        *,
        undo: Callable[[Reply], None] | None = None,
        slot: str | None = None,
        lease: Lease | None = None,
    ) -> Flow[Reply]:
        """Call a function in the session until it is done; return its reply, or an `ErrorReply` about a task.

        `words`: its arguments. `lease`: use the session of this lease. `undo`, `slot`: as for `ScriptCall`.
        """
        while True:
            if self.shared.queue.stale is not None:
                yield from self.shared.wait_loop.cancel_stale_take()
            if self.shared.is_damaged:
                yield from self.mark_damaged()
            session = self.session_of(lease, (yield from self.open_session()))
            version, now = session.version, self.connection.store.now()
            args = words(version) if callable(words) else words
            if args is None:
                return ErrorReply("ALTERED since they were made")
            try:
                its_script = version.function(name)
            except ServerRefused:
                self.forget_session(session)  # The next call asks for the rights again.
                raise
            call = ScriptCall(its_script, self.shared.key, args, session, now, undo, slot)
            if self.takes_fail_soon and name in _TAKES:
                self.connection.store.health.limit(call)
            reply: Reply = yield call
            if type(reply) is not ErrorReply or (yield from self.settle(name, reply, session, resent=call.resent)):
                return reply

    def mark_damaged(self) -> Flow[None]:
        """Mark the tube, so that the next call repairs it: the server has refused a command in the middle of a call."""
        self.session = None  # The next call asks for the rights again.
        reply = yield ScriptCall(FUNCTIONS["damage"], self.shared.key, ("1",))
        self.shared.is_damaged = type(reply) is ErrorReply
        if self.shared.is_damaged:
            _log.error("tube %r may be damaged: run `tubes repair`, or give this user the rights", self.shared.name)

    def lane_full(self, reply: ErrorReply) -> TubeFull:
        """Return the error for a put into a full lane."""
        _, name, tasks, capacity = str(reply).split()
        lane = bytes.fromhex(name[1:]).decode("utf-8", "surrogatepass")
        return TubeFull(tube=self.shared.name, utube=lane, tasks=int(tasks), capacity=int(capacity))

    def open_session(self) -> Flow[TubeSession]:
        """Return the session in the tube; open it if needed."""
        while True:
            if self.closed_error is not None:
                raise self.closed_error()
            if (session := self.session) is not None:
                return session
            yield from self.connection.enter(self)

    def session_of(self, lease: Lease | None, own: TubeSession) -> TubeSession:
        """Return the session for a call: the one of its lease, or else the port's own."""
        if lease is None:
            return own
        token = f"s{lease.number}.{lease.born}.{lease.session:016x}"
        if token == own.token:
            return own
        number = f"{lease.number} {own.version.name}" if own.version.name else lease.number
        # Replies are stored under a name that no other caller uses.
        return LeaseSession(number, token, self.connection.session.name, own.version)

    def lease_of(self, task: TaskView) -> Lease:
        """Return the lease of a task that this session has taken."""
        assert self.last_session is not None
        number, _, session = self.last_session.token[1:].split(".")
        return Lease.of(self.shared.name, task._record.id, self.born, int(number), int(session, 16), task._take)

    def version(self) -> Flow[OptionsVersion]:
        """Return the options for the next call; they hold unless the tube is altered meanwhile."""
        return (yield from self.open_session()).version

    def settle(self, name: str, reply: ErrorReply, session: TubeSession, *, resent: bool = False) -> Flow[bool]:
        """Take the step after an error reply of a function; return True if the reply is its result.

        Return False if a new call has to be made, with a new session or the new options. Raise any other error.
        """
        step = port_step(name, reply, resent=resent, leased=isinstance(session, LeaseSession))
        if step in (PortStep.END, PortStep.RENEW, PortStep.RAISE_UNSURE):
            self.forget_session(session)
        elif step is PortStep.REPAIR:
            yield from self.connection.repair(self.shared.name)
        elif step is PortStep.TICK:
            yield from self.run_script("tick", slot="m")
        elif step is PortStep.MARK:
            yield from self.mark_damaged()
        if step is PortStep.RAISE_UNSURE:
            raise ConnectionLost(url=self.url, why=UNSURE)
        if step in (PortStep.MARK, PortStep.RAISE):
            raise self.refusal(reply)
        return step in (PortStep.RETURN, PortStep.END)

    def run_plain_script(self, name: str, *args: Word) -> Flow[Reply]:
        """Call a function that uses no session and is safe to repeat; return its reply like `run_script`."""
        its_script = FUNCTIONS[name]
        self.shared.version.check_rights(its_script)
        return (yield from self._reply_to(ScriptCall(its_script, self.shared.key, args)))

    def run_commands(self, *commands: bytes) -> Flow[list[Reply]]:
        """Return the replies to packed read-only commands, all run at one moment while the tube exists. For threads."""
        look = ScriptLook(commands, FUNCTIONS["describe"], self.shared.key)
        *replies, tube = list_of((yield from self._reply_to(look)))
        if tube is None:
            raise self.refusal(ErrorReply("TUBEGONE there is no such tube"))
        return replies

    def _reply_to(self, call: ScriptCall) -> Flow[Reply]:
        reply: Reply = yield call
        if type(reply) is ErrorReply and reply.code not in RESULTS:
            raise self.refusal(reply)
        return reply

    def refusal(self, reply: ErrorReply) -> TubesError:
        """Return the exception for an error reply of a function."""
        if reply.code == "TUBEGONE":
            self.shared.handle_drop()
            return TubeNotFound(name=self.shared.name)
        if self.shared.driver.rank is not None:  # A driver's order may fail for a task.
            return error_of(reply, self.url)
        return validation.refusal(f"tube {self.shared.name!r}", reply, self.url)

    def forget(self) -> None:
        """Remove this port from its connection: the tube was dropped."""
        self.connection.forget(self.shared)

    def forget_session(self, session: TubeSession) -> None:
        """Forget a session that has ended or whose tube was altered: the next call opens the tube again."""
        if self.session is not None and self.session.version is session.version:
            self.session = None

    def decode(self, parsed: Parsed, known: bytes | None = None) -> F:
        """Return a task for the user from the result of `task_codec.parse`."""
        if parsed[4] >= 0:
            self.shared.watch(parsed[4])
        return task_codec.decode(self.kind, self.tube, parsed, known)

    # -- takes of waiters, and undoing calls ---------------------------------------------------------------------------

    def _waiter_words(self, count: int, span: int | None) -> tuple[Word, ...]:
        return count, self.connection.store.process, *(() if span is None else ("", span))

    def take_waiting(
        self, count: int, span: int | None = None, undo: Callable[[Reply], None] | None = None
    ) -> Flow[Parsed | int]:
        """Take for one of `count` waiters, for `span` if given; return a task for `decode`, or the next due time."""
        reply = yield from self.run_script("take", self._waiter_words(count, span), undo=undo, slot=SERVING)
        return self.read_waiting(reply)

    def read_waiting(self, reply: Reply) -> Parsed | int:
        """Return the task in a reply to `take_waiting`, or the next due time, and record it."""
        note = self.shared.queue.note_reply
        if type(reply) is not bytes:
            soonest = number_of(reply)
            note(soonest, registers=True)
            return soonest
        soonest = int.from_bytes(reply[: task_codec.OUTLOOK])
        note(None if soonest == 1 else soonest)
        return task_codec.parse(reply, task_codec.OUTLOOK)

    @property
    def knows_none(self) -> bool:
        """True if no task is available unless the server has pushed a marker."""
        self.connection.check()
        return self.shared.queue.knows_none()

    def take_ahead(self, count: int, span: int | None = None) -> ScriptCall | None:
        """Return the call of `take_waiting`, to be sent ahead of a task; None if the tube must be opened first.

        The caller ignores an error reply: it means that the call took no task.
        """
        session = self.session
        if session is None or self.closed_error is not None:
            return None
        words = self._waiter_words(count, span)
        call = ScriptCall(session.version.function("take"), self.shared.key, words, session, slot=AHEAD)
        call.begin(AHEAD)  # From now on the call can be cancelled by its number.
        return call

    def undo_take(self, reply: Reply) -> None:
        """Give back a task that was taken for a caller that is gone."""
        if type(reply) is bytes:
            id, _, _, take, _, _ = task_codec.parse(reply)
            self.connection.store.later(lambda: self.undo("undo_take", id, take))

    def undo_waiting_take(self, reply: Reply) -> None:
        """Give back a task that was taken for a waiting caller that is gone."""
        if type(reply) is bytes:
            self.undo_take(reply[task_codec.OUTLOOK :])

    def undo_next(self, reply: Reply) -> None:
        """Give back the task that `next` took for a caller that is gone."""
        if type(reply) is bytes and len(reply) > 1:
            self.undo_take(reply[1:])

    def undo(self, name: str, *args: Word, slot: str | None = None, session: TubeSession | None = None) -> Flow[None]:
        """Undo a call whose caller is gone, even if the queue is closed or the tube dropped.

        `session`: the session of that call, if it may differ from the port's.
        """
        current = session or self.session
        first = 0
        while current is not None and first < len(args):  # Without a session its tasks have been released already.
            chunk = args[first : first + _UNDO_WORDS]
            undo_script, now = current.version.function(name), self.connection.store.now()
            reply = yield ScriptCall(undo_script, self.shared.key, chunk, current, now, slot=slot)
            step = port_step(name, reply)
            if step is PortStep.RENEW:
                current = yield from self._reopen(current)
            elif step is PortStep.REPAIR:
                yield from self.connection.repair(self.shared.name)
            else:
                if step is PortStep.MARK:
                    yield from self.mark_damaged()
                first += _UNDO_WORDS

    def _reopen(self, session: TubeSession) -> Flow[TubeSession | None]:
        """Return the same session with the current options of the tube; None if the session or the tube is gone."""
        self.forget_session(session)
        if self.session is None:
            with suppress(TubesError):
                yield from self.connection.enter(self)
        now = self.session
        return now if now is not None and now.token == session.token else None

    # -- waiting -------------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Append the waiter to its queue."""
        waiter.owner = self
        if waiter.span is not None:
            self.require_option("ttr")
        if self.closed_error is not None:
            raise self.closed_error()
        if waiter.timeout is not None:
            waiter.deadline = self.clock.micros() + waiter.timeout
        if _waits_for_events(waiter):
            self.shared.emptiness.enlist(waiter)
        else:
            self.shared.wait_loop.enlist(waiter)

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Remove the waiter; return its result, or None if it has none yet. `undo`: give the result back."""
        if _waits_for_events(waiter):
            return self.shared.emptiness.withdraw(waiter)
        return self.shared.wait_loop.withdraw(waiter, undo=undo)

    def must_keep_waiting(self, waiter: Waiter) -> bool:
        """Return True if the waiter's put was sent: it is woken soon, although its timeout has passed."""
        return not _waits_for_events(waiter) and self.shared.queue.move(waiter, "keep")

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw the waiter and undo its call in another thread: finalizers may run at any point of the program."""
        self.connection.store.later(lambda: self.withdraw(waiter, undo=True))

    def release_later(self, task: object) -> None:
        """Release a task that no worker holds any more, in another thread if the channel is busy or must not block."""
        if self.connection.may_run():
            with suppress(TubesError):
                self.connection.run(self._release(task))
        else:
            self.connection.store.later(lambda: self._release(task))

    def _release(self, task: object) -> Flow[None]:
        id, _, view = self.resolve_task(task)
        yield from self.run_script("release", (id, identity_of(view), "1", ""))


def _waits_for_events(waiter: Waiter) -> bool:
    """Return True if the waiter waits for events of the tube, not for the reply to a call."""
    return waiter.request is TUBE_EMPTY or isinstance(waiter.request, TaskEnd)


def has_end_effects(view: TaskView) -> bool:
    """Return True if the end of a task does more than remove it: it has a key, or is kept."""
    extras = view._extras
    return extras is not None and (extras.key is not None or extras.keep_done > 0)


def encode_text(text: str) -> bytes:
    """Encode text for storage; lone surrogates are kept."""
    return text.encode("utf-8", "surrogatepass")


def identity_of(view: TaskView | Lease | None, *, by_put: bool = False) -> int | str:
    """Return the word that distinguishes a caller's task from others with its id.

    It is the number of its take; without a take, or if `by_put`, the moment of its put. A lease always uses its take.
    """
    if view is None:
        return ""
    if isinstance(view, Lease):
        return f"t{view.take}" if by_put else view.take
    return put_of(view) if by_put or view._state is not State.TAKEN else view._take


def lane_word(view: TaskView) -> bytes:
    """Return the lane of a task as an argument of functions."""
    utube = view._record.utube
    return b"nil" if utube is None else encode_text(utube)
