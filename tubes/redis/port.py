"""The verbs of one connection on one tube: each written once, as a flow that asks for calls.

`ThreadPort` runs them in the calling thread, `LoopPort` answers coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic

from tubes.backend.listeners import Listener, check_listener
from tubes.drivers import options as known_options
from tubes.drivers.entry import NOTHING_MORE, More
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND, flag, micros, text, whole
from tubes.drivers.timers import NEVER
from tubes.errors import (
    ConnectionLost,
    DuplicateKey,
    InvalidOption,
    TaskNotFound,
    TaskNotTaken,
    TubeBusy,
    TubeNotFound,
    TubesError,
    Unreadable,
)
from tubes.redis import task_codec, validation
from tubes.redis.overview import statistics_of
from tubes.redis.scripts.assembly import script
from tubes.redis.transport.script_call import AHEAD, SERVING, UNSURE, Flow, ScriptCall, ScriptLook, TubeSession
from tubes.redis.transport.wire import ErrorReply, error_of
from tubes.values.codecs import encode
from tubes.values.lane import Utube, changes_of, lane_of
from tubes.values.statistics import Statistics
from tubes.values.task import F, TaskView, log_lost

if TYPE_CHECKING:
    from tubes.backend.waiters import Waiter
    from tubes.redis.connection import Connection
    from tubes.redis.shared_tube import SharedTube

#: How many buried tasks one call kicks.
_KICKS: Final = 50
#: How an answer of `next` begins if the first task was not held.
_LOST: Final = b"0"[0]
#: What a script is told where a lane has no limit of its own any more.
_UNSET: Final = (("interval", -1), ("max_in_flight", 0))
#: Refusals that a verb tells its caller in its own words.
_ABOUT_TASKS: Final = frozenset({"NOTTAKEN", "NOTFOUND", "DUPLICATE", "STATE", "STAGEGONE", "FENCED", "ABORTED"})
#: Verbs whose callers want to know what the task says now; a taker knows what it was given.
_LOOKING: Final = frozenset({"peek", "bury", "delete", "kick_task"})
#: How many tasks are looked at in one call, and how many places of buried ones.
_LOOKS: Final = 250
_PLACES: Final = 1000
#: How many words one call undoes: two of each task.
_UNDONE: Final = 100
#: How many bytes a place has at least, and what is behind an empty one.
_PLACE: Final = 6
_BEHIND_NONE: Final = b"\0"
#: What an update may change besides the data.
_CHANGES: Final = ("pri", "delay", "ttl")


#: Verbs that find nothing to do when the session has ended.
_OF_TAKERS: Final = frozenset(
    {"ack", "ack_many", "release", "release_many", "renew_many", "touch", "hold", "untake", "leave"}
)
#: Those of which nobody knows then whether they were done, if they were sent before.
_ONCE: Final = frozenset(
    {"put", "put_many", "put_keyed", "take", "take_many", "ack", "ack_many", "kick", "kick_task", "bury", "update"}
    | {"delete", "delete_many"}
)


class Port(Generic[F]):
    """What one connection can do with one tube."""

    kind: type[F]
    tube: Any
    #: Whether its verbs are to be awaited.
    awaited = False

    def __init__(self, connection: Connection, shared: SharedTube) -> None:
        self.connection: Final = connection
        self.shared: Final = shared
        #: The session in this tube; None: not open yet.
        self.session: TubeSession | None = None
        #: Makes the error for a tube that is dropped or a queue that is closed.
        self.gone: Callable[[], TubesError] | None = None
        self.listener: Listener | None = None
        # An event loop may stand still in the middle of a verb, and would keep those who wait from being served.
        self.serves: Final = not connection.awaited or connection.store.manual
        self.url: Final = connection.store.url
        self.clock: Final = connection.store.clock
        self.codec: Final = connection.store.codec

    # -- calls ---------------------------------------------------------------------------------------------------------

    def ask(
        self,
        verb: str,
        *args: Any,
        orphaned: Callable[[Any], None] | None = None,
        slot: str | None = None,
        parts: tuple[str, ...] = (),
    ) -> Flow[Any]:
        """Call a verb's script until it is done; answers what it answers, or an `ErrorReply` about a task.

        `slot`, `parts`: as for `ScriptCall`.
        """
        known = self.shared.script(verb)
        while True:
            if self.gone is not None:
                raise self.gone()
            session = self.session
            if session is None:
                yield from self.connection.enter(self)
                continue
            call = ScriptCall(
                known, self.shared.key, args, session, self.connection.store.now(), orphaned, slot, parts=parts
            )
            reply = yield call
            if reply.__class__ is not ErrorReply:
                return reply
            code = reply.code
            if code in _ABOUT_TASKS:
                return reply
            if code == "SESSIONGONE":
                self.lose(session)
                if call.resent and verb in _ONCE:
                    raise ConnectionLost(url=self.url, why=UNSURE)
                if verb in _OF_TAKERS:
                    return reply
                continue
            if code == "TUBEGONE" and verb == "drop" and call.resent:
                return None  # It was done before its answer was lost.
            raise self._refusal(reply)

    def ask_alone(self, verb: str, *args: Any, parts: tuple[str, ...] = ()) -> Flow[Any]:
        """As `ask`, for scripts that know no session: they may be done twice."""
        return (yield from self._answer(ScriptCall(script(verb), self.shared.key, args, parts=parts)))

    def look(self, *commands: bytes) -> Flow[list[Any]]:
        """The replies to plain commands that only look, packed: at one moment, while the tube is there. For threads."""
        replies: list[Any]
        *replies, there = yield from self._answer(ScriptLook(commands, script("there"), self.shared.key))
        if there is None:
            raise self._refusal(ErrorReply("TUBEGONE there is no such tube"))
        return replies

    def _answer(self, call: ScriptCall) -> Flow[Any]:
        reply = yield call
        if reply.__class__ is ErrorReply and reply.code not in _ABOUT_TASKS:
            raise self._refusal(reply)
        return reply

    def _refusal(self, reply: ErrorReply) -> TubesError:
        if reply.code == "TUBEGONE":
            self.shared.vanish()
            return TubeNotFound(name=self.shared.name)
        if self.shared.driver.rank is not None:  # An order may fail for a task.
            return error_of(reply, self.url)
        return validation.refusal(f"tube {self.shared.name!r}", reply, self.url)

    def lose(self, session: TubeSession) -> None:
        """The session has ended on the server: the next call opens a new one."""
        if self.session == session:
            self.session = None

    def show(self, reply: Any, known: Any = None) -> F:
        """A task as the user sees it, of what `record.parse` says of it."""
        if reply[4] >= 0:
            self.shared.watch(reply[4])
        return task_codec.show(self.kind, self.tube, reply, known)

    def _show_each(self, parsed: Iterable[Any]) -> Iterator[F]:
        """Tasks that scripts tell of; one that cannot be read is left out."""
        for reply in parsed:
            try:
                yield self.show(reply)
            except Unreadable as error:
                self.shared.store.strangers.leave_out(f"tube {self.shared.name!r}", {error.facts["what"]: error})

    # -- putting and taking --------------------------------------------------------------------------------------------

    def _put(self, data: Any, options: Mapping[str, Any]) -> Flow[F | None]:
        """Add a task; None if there is no room."""
        check_listener = self.shared.driver.check_put(options) if options else {}
        raw = encode(self.codec, data)
        task: F | None = yield from self.put_encoded(raw, check_listener, waits=False)
        return task

    def put_encoded(self, raw: bytes, options: Mapping[str, Any], *, waits: bool) -> Flow[F | None]:
        """The same with data that is encoded and options that are checked; `waits`: for room, if there is none."""
        shared = self.shared
        new = task_codec.write(shared.driver, shared.options, options)
        key = self._key_words(options) if "key" in options else ()
        reply = yield from self.ask(
            "put", *self.put_words(new, raw, waits=waits), *key, slot=SERVING if waits else None
        )
        if reply.__class__ is list:
            return self._show_kept(reply[0], new, raw, options)
        if reply.__class__ is ErrorReply:
            raise DuplicateKey(key=options["key"], tube=shared.name, id=int(str(reply).split()[1]))
        return None if reply is None else self.show_put(reply, new, raw, options)

    def put_words(self, new: task_codec.NewTask, raw: bytes, *, waits: bool) -> tuple[Any, ...]:
        """What the script is told of a new task."""
        shared = self.shared
        room = shared.options.get("capacity") or ""
        waiting = (shared.count_local(), shared.store.process) if waits else ("", "")
        return new.flags, new.header + raw, new.due, new.pri, new.lane, room, *waiting

    @staticmethod
    def _key_words(options: Mapping[str, Any]) -> tuple[Any, ...]:
        return _raw(options["key"]), options.get("on_duplicate", "keep")

    def _show_kept(self, reply: Any, new: task_codec.NewTask, raw: bytes, options: Mapping[str, Any]) -> F:
        """The task that a put found by its key: it lives, or only its key is remembered."""
        if reply.__class__ is not int:
            task = self.show(task_codec.parse(reply) if reply.__class__ is bytes else reply)
        else:
            task = task_codec.shown(
                self.kind, self.tube, self._stored(reply, self.clock.micros(), new, raw, options), State.DONE, 0, NEVER
            )
            task._times = (None, None, NEVER, NEVER)
            task._more = More(options["key"])
        task._more = (task._more or NOTHING_MORE)._replace(kept=True)
        return task

    def _stored(
        self, id: int, created: int, new: task_codec.NewTask, raw: bytes, options: Mapping[str, Any]
    ) -> task_codec.StoredTask:
        stored = task_codec.StoredTask()
        stored.id, stored.created, stored.data, stored.more = id, created, raw, new.more
        stored.pri, stored.ttl, stored.ttr = new.pri or 0, new.ttl, new.ttr  # type: ignore[assignment]
        stored.utube = options.get(self.shared.driver.lane) if self.shared.driver.lane is not None else None
        return stored

    def read_put(self, reply: bytes) -> tuple[int, int]:
        """The moment of a put, and the id of its task."""
        try:
            return int.from_bytes(reply[:7], "big"), int(reply[7:])
        except ValueError as error:
            raise validation.unreadable(f"tube {self.shared.name!r}: the answer to a put", error) from error

    def show_put(self, reply: bytes, new: task_codec.NewTask, raw: bytes, options: Mapping[str, Any]) -> F:
        """A task that was put, as the user sees it."""
        shared = self.shared
        created, id = self.read_put(reply)
        stored = self._stored(id, created, new, raw, options)
        due = NEVER
        if new.due != "":
            due = created + int(new.due)
            shared.watch(due)
        return task_codec.shown(self.kind, self.tube, stored, State.DELAYED if new.is_delayed else State.READY, 0, due)

    def _take(self) -> Flow[F | None]:
        """The first task that may be taken; None if there is none. Whoever waits in this process comes first."""
        shared = self.shared
        while self.serves and shared.has_unserved():
            if not (yield from shared.serve_one()):
                return None
        reply = yield from self.ask("take", orphaned=self.untake)
        return None if reply.__class__ is int else self.show(task_codec.parse(reply))

    def _next(self, task: Any) -> Flow[F | None]:
        """A held task is done, and the next one is taken; None if there is none. A task that was lost is logged."""
        shared = self.shared
        id, take, _ = self._refer(task)
        if shared.takers and self.serves:
            try:
                yield from self._ack(task)
            except TaskNotTaken as lost:
                log_lost(lost)
            following: F | None = yield from self._take()
            return following
        keyed = ("1",) if task.key is not None else ()
        reply = yield from self.ask("next", id, take, *keyed, orphaned=self.unnext)
        return self.show_next(task, reply)

    def show_next(self, task: Any, reply: bytes) -> F | None:
        """What `next` answers."""
        task_codec.mark_finished(task)
        if reply[0] == _LOST:
            log_lost(TaskNotTaken(id=task.id, tube=self.shared.name))
        return self.show(task_codec.parse(reply, 1)) if len(reply) > 1 else None

    def unnext(self, reply: Any) -> None:
        """Give back what was taken after an ack for somebody who is gone."""
        if reply.__class__ is bytes and len(reply) > 1:
            self.untake(reply[1:])

    def take_waiting(self, count: int) -> Flow[Any]:
        """For a caller that waits, one of so many: what `show` shows, or the moment at which something is due."""
        reply = yield from self.ask("take", count, self.shared.store.process, orphaned=self.untake, slot=SERVING)
        return reply if reply.__class__ is int else task_codec.parse(reply)

    def take_ahead(self, count: int) -> ScriptCall | None:
        """The same as a call, to be sent before there is a task; None where nothing can be taken before more is said.

        Errors are not dealt with: where there is one nothing was taken.
        """
        session = self.session
        if session is None or self.gone is not None:
            return None
        args = (count, self.shared.store.process)

        def orphaned(reply: Any) -> None:
            self.untake(reply, session)

        return ScriptCall(self.shared.script("take"), self.shared.key, args, session, orphaned=orphaned, slot=AHEAD)

    def untake(self, reply: Any, session: TubeSession | None = None) -> None:
        """Give back what was taken for somebody who is gone."""
        if reply.__class__ is bytes:
            id, _, _, take, _, _ = task_codec.parse(reply)
            self.shared.store.later(lambda: self.undo("untake", id, take, session=session))

    def _untake(self, id: int, take: int) -> Flow[None]:
        yield from self.undo("untake", id, take)

    def undo(self, verb: str, *args: Any, slot: str | None = None, session: TubeSession | None = None) -> Flow[None]:
        """Undo what was done for somebody who is gone; that the queue is closed or the tube dropped is no obstacle.

        `session`: by which it was done, if that is not certainly the port's.
        """
        known = self.shared.script(verb)
        if (by := session or self.session) is not None:  # Else it has ended, and what it had was released.
            for first in range(0, len(args), _UNDONE):
                some = args[first : first + _UNDONE]
                yield ScriptCall(known, self.shared.key, some, by, self.connection.store.now(), slot=slot)

    # -- what the taker does -------------------------------------------------------------------------------------------

    def _refer(self, task: Any) -> tuple[int, int | str, Any]:
        """The id that a caller means, which take of it or which put of it if that is known, and the data if that is."""
        if not isinstance(task, TaskView):
            return whole("task", task), "", None
        origin: Any = task._tube
        if origin is not self.tube and origin.name != self.tube.name:
            raise InvalidOption(option="task", value=task, rule=f"is not of tube {self.tube.name!r}")
        if origin is not self.tube and origin._port.shared is not self.shared:
            return -1, "", None  # Of another tube that had the same name: no task here.
        return task._record.id, task._turn if task._state is State.TAKEN else task_codec.put_of(task), task._record.data

    @staticmethod
    def _put_of(task: Any, by: int | str) -> int | str:
        """Of what `_refer` says, that which names a task in whatever state."""
        return task_codec.put_of(task) if by.__class__ is int else by

    def _about(self, verb: str, task: Any, *args: Any) -> Flow[F]:
        """Do something with a task."""
        id, by, known = self._refer(task)
        if verb in _LOOKING:  # Somebody may have updated it, or have it now.
            known, by = None, self._put_of(task, by)
        knows = "" if known is None else "1" if task.key is None else "2"
        reply = yield from self.ask(verb, id, by, knows, *args)
        if reply.__class__ is ErrorReply:
            missing = TaskNotFound if reply.code == "NOTFOUND" else TaskNotTaken
            raise missing(id=id, tube=self.shared.name)
        if reply.__class__ is int:  # The caller knows it.
            return task_codec.shown(self.kind, self.tube, task._record, State.DONE, task._attempts, NEVER)
        return self.show(task_codec.parse(reply), known)

    def _ack(self, task: Any) -> Flow[F]:
        """A held task is done."""
        done: F = yield from self._about("ack", task)
        task_codec.mark_finished(task)
        return done

    def _release(self, task: Any, delay: float | None, reason: str | None = None) -> Flow[F]:
        """Give a held task back."""
        if reason is not None:
            text("reason", reason)
        span = self.rest_word(delay)
        if delay is not None and "delay" not in self.shared.driver.options:
            yield from self._check_held(task)
            raise self.shared.driver.lacks("delay")
        released: F = yield from self._about("release", task, span, _raw(reason or ""))
        task_codec.mark_finished(task)
        return released

    def rest_word(self, delay: float | None) -> int | str:
        """For how long a task that is released rests, as scripts are told it."""
        if delay is not None:
            return micros("delay", delay)
        return "backoff" if "backoff" in self.shared.options else ""

    def _touch(self, task: Any, seconds: float) -> Flow[F]:
        """Prolong the time to run of a held task."""
        span = micros("seconds", seconds)
        if "ttr" not in self.shared.driver.options:
            yield from self._check_held(task)
            raise self.shared.driver.lacks("ttr")
        touched: F = yield from self._about("touch", task, span)
        return touched

    def _check_held(self, task: Any) -> Flow[None]:
        """Raise `TaskNotTaken` unless this session has the task: that is said before what the driver lacks."""
        yield from self._about("hold", task)

    # -- what anybody may do -------------------------------------------------------------------------------------------

    def _release_unfailed(self, task: Any) -> Flow[F]:
        """Give a held task back at once: nothing has failed."""
        released: F = yield from self._about("release", task, "")
        task_codec.mark_finished(task)
        return released

    def _bury(self, task: Any, reason: str | None) -> Flow[F]:
        """Put a task aside."""
        if reason is not None:
            reason = text("reason", reason)
        buried: F = yield from self._about("bury", task, _raw(reason or ""))
        task_codec.mark_finished(task)
        return buried

    def _delete(self, task: Any) -> Flow[F]:
        """Remove a task."""
        deleted: F = yield from self._about("delete", task)
        task_codec.mark_finished(task)
        return deleted

    def _peek(self, task: Any) -> Flow[F]:
        """Look at a task."""
        found: F = yield from self._about("peek", task)
        return found

    def _update(self, task: Any, changes: Mapping[str, Any]) -> Flow[F]:
        """Change a task."""
        id, by, _ = self._refer(task)
        check_listener = self.shared.driver.check_update(changes)
        if not check_listener:
            found: F = yield from self._peek(task)
            return found
        data = ("1", encode(self.codec, check_listener["data"])) if "data" in check_listener else ("", "")
        reply = yield from self.ask(
            "update", id, self._put_of(task, by), "", *data, *(check_listener.get(name, "") for name in _CHANGES)
        )
        if reply.__class__ is ErrorReply:
            if reply.code == "NOTFOUND":
                raise TaskNotFound(id=id, tube=self.shared.name)
            raise self.shared.driver.cannot_update(check_listener, State(str(reply).split()[1]))
        return self.show(task_codec.parse(reply))

    def _respawn(self, attempts: int | None, ttl: float | None) -> tuple[Any, ...]:
        return tuple("" if value is None else value for value in self.shared.driver.check_kick(attempts, ttl))

    def _kick(self, count: int, attempts: int | None, ttl: float | None) -> Flow[int]:
        """Make buried tasks ready."""
        left = whole("count", count)
        respawn = self._respawn(attempts, ttl)
        kicked = 0
        while True:
            some: int = yield from self.ask("kick", min(left - kicked, _KICKS), *respawn)
            kicked += some
            if some < _KICKS or kicked == left:
                return kicked

    def _kick_task(self, task: Any, attempts: int | None, ttl: float | None) -> Flow[F]:
        """Make one buried task ready."""
        kicked: F = yield from self._about("kick_task", task, *self._respawn(attempts, ttl))
        return kicked

    def _buried(self, limit: int) -> Flow[list[F]]:
        """The oldest buried tasks."""
        left = whole("limit", limit)
        driver = self.shared.driver
        # Where places are more than ids, the oldest may have any place.
        in_order = driver.signs == (0, 1) and driver.rank is None
        ids: list[int] = []
        place = b""
        while left and (not in_order or len(ids) < left):
            places: list[bytes] = yield from self.ask("buried", place, min(left, _PLACES) if in_order else _PLACES)
            # What is shorter than an id is nobody's: `repair` removes it.
            ids += (driver.id_at(one) for one in places if len(one) >= _PLACE)
            if not places or places[-1] == place:
                break
            place = places[-1] or _BEHIND_NONE
        wanted = sorted(ids)[:left]
        found: list[F] = list(self._show_each((yield from self.parsed(wanted, buried=True))))
        return found

    def parsed(self, ids: list[int], *, buried: bool = False) -> Flow[list[Any]]:
        """What is there of tasks with these ids, for `show`; `buried`: of those that are buried."""
        found: list[Any] = []
        at = 0
        while at < len(ids):
            seen, *replies = yield from self.ask("looks", "1" if buried else "", *ids[at : at + _LOOKS])
            found += map(task_codec.parse, replies)
            at += seen
        return found

    def _oldest_ready_age(self) -> Flow[float | None]:
        """How long ago the oldest ready task was put."""
        start: int | str = ""
        while True:
            reply = yield from self.ask("oldest", start)
            if reply.__class__ is not int:
                return None if reply is None else int(reply) / SECOND
            start = reply

    def _due_histogram(self, edges: Iterable[float]) -> Flow[list[int]]:
        """Count tasks by when they move by themselves."""
        counts: list[int] = yield from self.ask("due", *known_options.edges(edges))
        return counts

    def _release_all(self) -> Flow[None]:
        """Release whatever is taken."""
        yield from self.ask("release_all")

    def _truncate(self) -> Flow[None]:
        """Remove all tasks."""
        yield from self.ask("truncate")

    def _block(self, utube: Any, seconds: Any) -> Flow[None]:
        """No task of a lane starts for so long."""
        name, span = lane_of(self.shared.driver, utube), micros("seconds", seconds)
        yield from self.ask("pace", _raw(name), span)

    def _configure(self, utube: Any, interval: Any, max_in_flight: Any) -> Flow[None]:
        """A lane has limits of its own."""
        name, changes = lane_of(self.shared.driver, utube), changes_of(interval, max_in_flight)
        limits = [unset if changes.get(limit, "") is None else changes.get(limit, "") for limit, unset in _UNSET]
        yield from self.ask("pace", _raw(name), "", *limits)

    def _utubes(self, limit: int) -> Flow[list[Utube]]:
        """Look at the lanes: some at a time."""
        most = whole("limit", limit)
        lane_of(self.shared.driver, "")
        found: dict[str, Utube] = {}
        cursor: Any = 0
        while True:
            cursor, *seen = yield from self.ask("utubes", cursor)
            for name, ready, taken, rest, interval, in_flight in zip(*[iter(seen)] * 6, strict=True):
                try:
                    name = name.decode("utf-8", "surrogatepass")
                except UnicodeDecodeError as error:
                    self.shared.store.strangers.leave_out(f"the utubes of tube {self.shared.name!r}", {name: error})
                    continue
                found[name] = Utube(name, ready, taken, rest / SECOND if rest else None, interval / SECOND, in_flight)
            if int(cursor) == 0:
                return [found[name] for name in sorted(found)[:most]]

    def _pause(self, seconds: float | None) -> Flow[None]:
        """Let nothing be taken for a while, or until `resume`."""
        span = None if seconds is None else micros("seconds", seconds)
        if span == 0:
            yield from self._resume()
            return
        ends = yield from self.ask("pause", "" if span is None else span)
        if span is not None:
            self.shared.watch(int(ends))

    def _resume(self) -> Flow[None]:
        """Let tasks be taken again."""
        yield from self.ask("resume")

    def _statistics(self) -> Flow[Statistics]:
        """Count."""
        shared = self.shared
        reply = yield from self.ask("statistics")
        with validation.reading(f"tube {shared.name!r}"):
            return statistics_of(reply, shared.store.count_waiting(shared.name, reply[4]))

    def _tasks(self, start: int, limit: int) -> Flow[list[F]]:
        """The tasks from an id on."""
        first, left = whole("start", start), whole("limit", limit)
        found: list[F] = []
        while len(found) < left:
            first, *replies = yield from self.ask("tasks", first, min(left - len(found), _LOOKS))
            found += self._show_each(map(task_codec.parse, replies))
            if not first:
                break
        return found

    def _drop(self, force: bool) -> Flow[None]:
        """Remove the tube."""
        shared = self.shared
        flag("force", force)
        busy = yield from self.ask("drop", "1" if force else "", shared.store.process, shared.count_local())
        if busy is not None:
            raise TubeBusy(name=shared.name, taken=busy[0], waiting=busy[1])
        shared.vanish()
        yield from self.connection.forget_name(shared.name)

    def _listen(self, callback: Any, wrap: Callable[[Any], Listener] | None = None) -> Flow[Listener | None]:
        """Set or remove this connection's listener; `wrap`: what makes the face's listener of the user's."""
        listener = check_listener(callback, wrap)
        if self.gone is not None:
            raise self.gone()
        if listener is not None:
            yield from self.shared.subscription.open(self)
        before, self.listener = self.listener, listener
        self.shared.subscription.note(self)
        return before

    # -- waiting -------------------------------------------------------------------------------------------------------

    def request(self, data: Any, options: dict[str, Any]) -> tuple[int | None, tuple[Any, dict[str, Any]]]:
        """What a put that may wait asks for: its timeout, and what is to be put; checked and encoded."""
        options = self.shared.driver.check_put(options)
        return options.get("timeout"), (encode(self.codec, data), options)

    def enlist(self, waiter: Waiter) -> None:
        """Put the waiter at the end of the line."""
        waiter.owner = self
        if self.gone is not None:
            raise self.gone()
        if waiter.timeout is not None:
            waiter.deadline = self.clock.micros() + waiter.timeout
        self.shared.enlist(waiter)

    def withdraw(self, waiter: Waiter, *, undo: bool) -> Any:
        """Take the waiter out of the line and answer None, or what it was given meanwhile; `undo`: give that back."""
        return self.shared.withdraw(waiter, undo=undo)

    def keeps(self, waiter: Waiter) -> bool:
        """Whether its put is on its way: then it is woken soon, although its time is over."""
        return self.shared.keeps(waiter)

    def abandon(self, waiter: Waiter) -> None:
        """Withdraw and undo, a moment later: for finalizers, which may come in the middle of anything."""
        self.shared.store.later(lambda: self.shared.withdraw(waiter, undo=True))

    def release_later(self, task: Any) -> None:
        """Release a task that nobody works on any more; a moment later where the line is busy, or must not block."""
        if self.connection.may_run():
            with suppress(TubesError):
                self.connection.run(self._let_go(task))
        else:
            self.shared.store.later(lambda: self._let_go(task))

    def _let_go(self, task: Any) -> Flow[None]:
        id, take, _ = self._refer(task)
        yield from self.ask("release", id, take, "1", "")


def _raw(text: str) -> bytes:
    """A string as it is stored, whatever it is made of."""
    return text.encode("utf-8", "surrogatepass")


#: Those that may make something takeable, or make room.
_SERVING: Final = frozenset(
    {"put", "next", "ack", "release", "release_unfailed", "bury", "delete", "update", "kick", "kick_task"}
    | {"release_all", "truncate", "put_many", "ack_many", "release_many", "delete_many", "pause", "resume"}
    | {"block", "configure"}
)


def running(name: str, flow: Any) -> Any:
    """A verb of a port: its flow, run by the member; those who wait in this process are served then."""

    def verb(self: Any, *args: Any, **options: Any) -> Any:
        return self.connection.run(flow(self, *args, **options))

    def wait_loop(self: Any, *args: Any, **options: Any) -> Any:
        shared = self.shared
        # Else the thread that looks after them hears of it as soon.
        if shared.store.manual and (shared.takers or shared.putters):
            return self.connection.run(shared.after(flow(self, *args, **options)))
        return self.connection.run(flow(self, *args, **options))

    chosen = wait_loop if name in _SERVING else verb
    chosen.__doc__ = flow.__doc__
    return chosen


def _running(name: str) -> Any:
    return running(name, getattr(Port, f"_{name}"))


class AnyPort(Port[F]):
    """A port with its verbs: they answer in a thread, and are awaited in an event loop, as its member runs them."""

    put = _running("put")
    take = _running("take")
    next = _running("next")
    ack = _running("ack")
    release = _running("release")
    touch = _running("touch")
    release_unfailed = _running("release_unfailed")
    bury = _running("bury")
    update = _running("update")
    delete = _running("delete")
    peek = _running("peek")
    kick = _running("kick")
    kick_task = _running("kick_task")
    buried = _running("buried")
    oldest_ready_age = _running("oldest_ready_age")
    due_histogram = _running("due_histogram")
    release_all = _running("release_all")
    truncate = _running("truncate")
    block = _running("block")
    configure = _running("configure")
    utubes = _running("utubes")
    pause = _running("pause")
    resume = _running("resume")
    statistics = _running("statistics")
    tasks = _running("tasks")
    drop = _running("drop")
    listen = _running("listen")
