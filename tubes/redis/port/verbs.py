"""The methods on one task or on the tube."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tubes.backend.listeners import Listener, check_listener
from tubes.backend.moving import item_of_done
from tubes.backend.port import check_reason, mark_finished
from tubes.drivers.engine import CANCELLED_KEPT
from tubes.drivers.entry import KEPT, NO_EXTRAS, Extras, Loss
from tubes.drivers.moves import State
from tubes.drivers.options import KEEP, MAX_WAITING, Seconds, flag, micros, text
from tubes.drivers.timers import NEVER
from tubes.drivers.tube_options import apply_changes
from tubes.errors import DuplicateKey, TaskCancelled, TaskNotFound, TaskNotTaken, TubeBusy, TubeFull
from tubes.redis import task_codec, validation
from tubes.redis.port.base import Port, Request, identity_of, lane_word, raw_text
from tubes.redis.scripts.replies import bytes_of, list_of, number_of
from tubes.redis.transport.script_call import SERVING, Flow, verb
from tubes.redis.transport.wire import ErrorReply, Reply, Word
from tubes.redis.validation import describe_options, encode_lane_options
from tubes.values.codecs import encode
from tubes.values.lane import check_lane_limits, lane_of
from tubes.values.lease import Lease
from tubes.values.options import put_options
from tubes.values.task import F, TaskView, log_lost_take, reserved_names

if TYPE_CHECKING:
    from tubes.backend.interface import Options, Wrap
    from tubes.redis.sessions.edition import Edition

#: Done tasks per call of `trim_done`.
_TRIMS_PER_CALL: Final = 500
#: The first byte of a reply of `next` if the acked task was not held.
_NOT_HELD: Final = b"0"[0]
#: A script's arguments for lane limits that are unset.
_UNSET: Final = (("interval", -1), ("max_in_flight", 0), ("interval_from", -1), ("capacity", -1), ("burst", 0))
#: A script's argument for the start of an interval.
_INTERVAL_STARTS: Final = {"take": 0, "ack": 1}
#: Options of a put that need another script or several scripts.
NEEDS_OTHER_SCRIPT: Final = frozenset({"key", "keep_done", MAX_WAITING})
#: Fields that an update may change, apart from the data.
_UPDATE_FIELDS: Final = ("pri", "delay", "ttl")


class CallPort(Port[F]):
    """A port with the methods on one task or on the tube."""

    # -- putting and taking --------------------------------------------------------------------------------------------

    def put(self, data: object, options: Options, *usual: Any) -> F | None:
        """Add a task; return None if the tube is full."""
        options = put_options(options, *usual)
        return self.change(self.put_encoded(*self.prepare(data, options), waits=False))

    def put_encoded(self, raw: bytes, options: Options, *, waits: bool, old: tuple[Word, ...] = ()) -> Flow[F | None]:
        """Put encoded data with checked options.

        `waits`: the caller then waits for room. `old`: the id and the put of the done task that this put replaces.
        """
        yield from self.require_keep_done(options)
        shared = self.shared
        limit: tuple[Any, ...] = (options[MAX_WAITING],) if MAX_WAITING in options else ()
        keyed = "key" in options or bool(old or limit)
        new: Any = None

        def words(edition: Edition) -> tuple[Word, ...]:
            nonlocal new
            new = edition.write(options)
            if not keyed:
                return self.put_words(edition, new, raw, waits=waits)
            item = self.item_words(new, raw, options)
            return 1, "", len(item), edition.room, *self.waiter_words(waits=waits), *item, *old, *limit

        verb = "again" if old else "put_limited" if limit else "put_keyed" if keyed else "put"
        reply = yield from self.ask_by_options(verb, words, slot=SERVING if waits else None)
        if type(reply) is ErrorReply:
            if reply.code == "NOTFOUND":
                raise TaskNotFound(id=old[0], tube=shared.name)
            if reply.code == "LANEFULL":
                raise self.lane_full(reply)
            if reply.code == "FULL":
                raise TubeFull(tube=shared.name, tasks=1, max_waiting=options[MAX_WAITING])
            raise DuplicateKey(key=options["key"], tube=shared.name, id=int(str(reply).split()[1]))
        if type(reply) is list:
            put, found = reply
            if found != b"":
                return self._show_existing(found, new, raw)
            reply = put
        return self.show_put(reply, new, raw) if type(reply) is bytes else None

    def again(self, task: object) -> F | None:
        """Put a done task again and forget the old one; return None if the tube is full."""
        self.resolve_untaken_task(task)
        return self.change(self._put_again(task))

    def _put_again(self, task: object) -> Flow[F | None]:
        done = yield from self.run_request("peek", self.request(task, looks=True))
        options = self._driver.check_put(item_of_done(done).options)
        old = done.id, f"c{done._record.created}"
        return (yield from self.put_encoded(done._record.data, options, waits=False, old=old))

    def require_keep_done(self, *options: Options) -> Flow[None]:
        """Alter the tube to keep done tasks if a put requires it and the tube does not yet."""
        if any(options_of_put.get("keep_done") for options_of_put in options):
            edition = yield from self.edition()
            if "keep_done" not in edition.options:
                yield from self.give_options({"keep_done": 0})

    def waiter_words(self, *, waits: bool) -> tuple[Word, Word]:
        """Return a put's arguments about this process: how many callers wait for room, and its name."""
        shared = self.shared
        return (shared.queue.count(), shared.store.process) if waits else ("", "")

    def put_words(
        self, edition: Edition, new: task_codec.NewTask, raw: bytes, *, waits: bool = False
    ) -> tuple[Word, ...]:
        """Return the arguments of the script `put` for a new task."""
        waiting = self.waiter_words(waits=waits)
        return new.flags, new.header + raw, new.due, new.pri, new.lane, edition.room, *waiting

    def item_words(self, new: task_codec.NewTask, raw: bytes, options: Options) -> tuple[Word, ...]:
        """Return the arguments of `put_keyed` for one task."""
        key = self._key_words(options) if "key" in options else ("", "")
        return 1, new.flags, new.due, new.pri, new.lane, new.header, *key, raw

    @staticmethod
    def _key_words(options: Mapping[str, Any]) -> tuple[bytes, str]:
        return raw_text(options["key"]), options.get("on_duplicate", "keep")

    def _show_existing(self, reply: Reply | task_codec.Parsed, new: task_codec.NewTask, raw: bytes) -> F:
        """Return the task that a put found by its key; it may have ended, with its key remembered."""
        if isinstance(reply, tuple):
            task = self.show(reply)
        elif isinstance(reply, bytes):
            task = self.show(task_codec.parse(reply))
        else:
            stored = self._stored(number_of(reply), self.clock.micros(), new, raw)
            task = task_codec.shown(self.kind, self.tube, stored, State.DONE, 0, NEVER)
            task._times = (None, None, NEVER, NEVER)
            task._extras = Extras(None if new.extras is None else new.extras.key)
        task._extras = (task._extras or NO_EXTRAS)._replace(key_effect=KEPT)
        return task

    def _stored(self, id: int, created: int, new: task_codec.NewTask, raw: bytes) -> task_codec.StoredTask:
        stored = task_codec.StoredTask()
        stored.id, stored.created, stored.data, stored.extras = id, created, raw, new.extras
        stored.pri, stored.ttl, stored.ttr, stored.utube = int(new.pri or 0), new.ttl, new.ttr, new.utube
        return stored

    def read_put(self, reply: bytes) -> tuple[int, int]:
        """Return the moment of a put and the id of its task."""
        try:
            return int.from_bytes(reply[:7], "big"), int(reply[7:])
        except ValueError as error:
            raise validation.unreadable(f"tube {self.shared.name!r}: the reply to a put", error) from error

    def show_put(self, reply: bytes, new: task_codec.NewTask, raw: bytes) -> F:
        """Return a new task for the user."""
        shared = self.shared
        created, id = self.read_put(reply)
        stored = self._stored(id, created, new, raw)
        due = NEVER
        if new.due != "":
            due = created + int(new.due)
            shared.watch(due)
        return task_codec.shown(self.kind, self.tube, stored, State.DELAYED if new.is_delayed else State.READY, 0, due)

    def take(self) -> F | None:
        """Take the first available task; return None if no task is available. Waiters of this process come first."""
        return self.run(self._take())

    def _take(self) -> Flow[F | None]:
        shared = self.shared
        while self.serves and shared.queue.has_unserved():
            if not (yield from shared.serving.serve_one()):
                return None
        reply = yield from self.ask("take", orphaned=self.untake)
        return self.show(task_codec.parse(reply)) if type(reply) is bytes else None

    def take_task(self, task: object, span: int | None) -> F | None:
        """Take this task, even before earlier ones; return None if it may not be taken now."""
        self.resolve_untaken_task(task)
        if span is not None:
            self.require_option("ttr")
        show, words, _ = self.request(task, "" if span is None else span, looks=True)
        return self.run(self._take_task(show, words))

    def _take_task(self, show: Callable[[Reply], F], words: tuple[Word, ...]) -> Flow[F | None]:
        reply = yield from self.ask("take_task", *words, orphaned=lambda reply: self.untake(reply or None))
        return show(reply) if reply else None

    def next(self, task: F) -> F | None:
        """Acknowledge a held task and take the next; return None if no task is available. A lost take is logged."""
        return self.change(self._next(task))

    def _next(self, task: F) -> Flow[F | None]:
        shared = self.shared
        if self.serves and shared.queue.has_take_waiter():
            try:
                yield from self.run_request("ack", self.ack_request(task))
            except TaskNotTaken as lost:
                log_lost_take(lost)
            return (yield from self._take())
        _, words, _ = self.ack_request(task)
        reply = yield from self.ask("next", *words, orphaned=self.undo_next)
        return self.show_next(task, bytes_of(reply))

    def show_next(self, task: F, reply: bytes) -> F | None:
        """Return the task in a reply of `next`."""
        mark_finished(task)
        if reply[0] == _NOT_HELD:
            log_lost_take(TaskNotTaken(id=task.id, tube=self.shared.name))
        return self.show(task_codec.parse(reply, 1)) if len(reply) > 1 else None

    def undo_next(self, reply: Reply) -> None:
        """Give back the task that `next` took for a caller that is gone."""
        if type(reply) is bytes and len(reply) > 1:
            self.untake(reply[1:])

    # -- held tasks ----------------------------------------------------------------------------------------------------

    def request(
        self, task: object, *words: Word, looks: bool = False, ends: bool = False, data: bytes | None = None
    ) -> Request[F]:
        """Return a request about a task; `words`: further arguments of its script.

        `looks`: the task may be held by any caller, and the reply contains it; otherwise its holder knows it. `ends`:
        the call ends the take. `data`: the new data of the task.
        """
        id, _, view = self.resolve_task(task)
        lease = view if isinstance(view, Lease) else None
        known = None if looks or view is None or isinstance(view, Lease) else view

        def show(reply: Reply) -> F:
            if type(reply) is ErrorReply:
                if lease is not None:
                    raise TaskNotTaken(id=id, tube=self.shared.name, leased=True)
                raise (TaskNotFound if reply.code == "NOTFOUND" else TaskNotTaken)(id=id, tube=self.shared.name)
            if type(reply) is bytes:
                known_data = data if known is None or data is not None else known._record.data
                shown = self.show(task_codec.parse(reply), known_data)
            else:
                assert known is not None
                shown = task_codec.shown(self.kind, self.tube, known._record, State.DONE, known._attempts, NEVER)
            if ends:
                mark_finished(task)
            return shown

        identity = identity_of(view, by_put=looks)
        return show, (id, identity, "" if known is None else self.known_word(known), *words), lease

    def ack(self, task: object) -> F:
        """Acknowledge a held task."""
        return self.call("ack", self.ack_request(task))

    def ack_with(self, task: object, result: object) -> F:
        """Acknowledge a held task, with a result."""
        assert self.codec is not None  # Data on a server is always encoded.
        return self.call("ack_with", self.request(task, encode(self.codec, result), ends=True))

    def ack_request(self, task: object) -> Request[F]:
        """Return a request to ack a task; with a known lane the server need not read the task."""
        _, _, view = self.resolve_task(task)
        lane = (lane_word(view),) if self._driver.lane is not None and isinstance(view, TaskView) else ()
        return self.request(task, *lane, ends=True)

    def release(
        self,
        task: object,
        delay: Seconds | None,
        reason: str | None = None,
        pri: int | None = None,
        data: object = KEEP,
    ) -> F:
        """Give a held task back; without `delay` it waits for the tube's backoff."""
        reason_word, delay_argument = check_reason(reason), self.delay_word(delay)
        changes: tuple[Word, ...] = () if pri is None else (self.check_pri(pri),)
        raw = None
        if data is not KEEP:
            assert self.codec is not None  # Data on a server is always encoded.
            raw = encode(self.codec, data)
            changes = (*(changes or ("",)), raw)
        if delay is not None and "delay" not in self._driver.options:
            return self.run(self._refuse(task, "delay"))
        return self.call(
            "release", self.request(task, delay_argument, raw_text(reason_word or ""), *changes, ends=True, data=raw)
        )

    def release_unfailed(self, task: object) -> F:
        """Give a held task back at once, without a failure."""
        return self.call("release", self.request(task, "", ends=True))

    def decline(self, task: object, delay: Seconds) -> F:
        """Give a held task back for another caller; the attempt does not count. Without a delay it is ready at once."""
        return self.call("decline", self.request(task, micros("delay", delay), ends=True))

    def delay_word(self, delay: Seconds | None) -> int | str:
        """Return the delay of a released task as an argument of scripts."""
        if delay is not None:
            return micros("delay", delay)
        return "backoff"

    def touch(self, task: object, seconds: Seconds) -> F:
        """Extend the time to run of a held task."""
        span = micros("seconds", seconds)
        if "ttr" not in self._driver.options:
            return self.run(self._refuse(task, "ttr"))
        return self.call("touch", self.request(task, span), changes=False)

    def set_ttr(self, task: object, span: int | None) -> F:
        """Set the time to run of a held task, from now; None: no limit."""
        if "ttr" not in self._driver.options:
            return self.run(self._refuse(task, "ttr"))
        return self.call("set_ttr", self.request(task, "" if span is None else span), changes=False)

    def checkpoint(self, task: object, changes: Mapping[str, str]) -> F:
        """Store facts in the context of a held task, and renew it."""
        facts = [raw_text(word) for pair in reserved_names(changes).items() for word in pair]
        put = ""
        if isinstance(task, TaskView):
            put = task_codec.put_of(task)  # pyright: ignore[reportUnknownArgumentType]
        show_task, words, lease = self.request(task, put, *facts)  # pyright: ignore[reportUnknownArgumentType]

        def show(reply: Reply) -> F:
            shown = show_task(reply)
            if shown._state is State.DONE:
                raise TaskCancelled(id=shown.id, tube=self.shared.name, reason=shown.reason)
            return shown

        return self.call("checkpoint", (show, words, lease), changes=False)

    def _refuse(self, task: object, option: str) -> Flow[F]:
        """Raise the error for an option that the driver lacks; an error about the task comes first."""
        yield from self.run_request("touch", self.request(task, 0))
        raise self._driver.make_option_error(option)

    # -- tasks in any state --------------------------------------------------------------------------------------------

    def bury(self, task: object, reason: str | None, pri: int | None = None) -> F:
        """Bury a task."""
        reason_word = raw_text(check_reason(reason) or "")
        pri_word = () if pri is None else (self.check_pri(pri),)
        return self.call("bury", self.request(task, reason_word, *pri_word, looks=True, ends=True))

    def delete(self, task: object, states: tuple[State, ...] = ()) -> F:
        """Remove a task; with `states` only in these states."""
        show_task, words, lease = self.request(task, letters_of(states), looks=True, ends=True)

        def show(reply: Reply) -> F:
            if type(reply) is ErrorReply and reply.code == "STATE":
                raise TaskNotFound(id=words[0], tube=self.shared.name, states=" or ".join(states))
            return show_task(reply)

        return self.call("delete", (show, words, lease))

    def cancel(self, task: object, reason: str | None) -> F:
        """End a task as cancelled."""
        return self.change(self._cancel(task, raw_text(check_reason(reason) or "")))

    def _cancel(self, task: object, reason: bytes) -> Flow[F]:
        show, words, lease = self.request(task, reason, CANCELLED_KEPT, looks=True, ends=True)
        reply = yield from self.ask_by_options("cancel", words, lease=lease)
        if type(reply) is ErrorReply and reply.code == "KEEP":
            yield from self.give_options({"keep_done": 0})
            reply = yield from self.ask_by_options("cancel", words, lease=lease)
        return show(reply)

    def on_loss(self, callback: Callable[[Loss | None], object] | None) -> None:
        """Call `callback` when this session loses a task of the tube."""
        self.shared.store.losses.set(self, callback)

    def peek(self, task: object) -> F:
        """Return a task without changing it."""
        return self.call("peek", self.request(task, looks=True), changes=False)

    def update(self, task: object, changes: Options) -> F:
        """Change a task."""
        checked = self.prepare_update(changes)
        if not checked:
            return self.peek(task)
        data = ("1", checked["data"]) if "data" in checked else ("", "")
        others = [checked.get(name, "") for name in _UPDATE_FIELDS]
        show_task, words, lease = self.request(task, *data, *others, looks=True)

        def show(reply: Reply) -> F:
            if type(reply) is ErrorReply and reply.code == "STATE":
                raise self._driver.make_update_error(checked, State(str(reply).split()[1]))
            return show_task(reply)

        return self.call("update", (show, words, lease))

    @verb
    def first(self) -> Flow[tuple[int, int] | None]:
        """Return the priority and the id of the first available task."""
        reply = bytes_of((yield from self.ask("first")))
        if not reply:
            return None
        pri, id = map(int, reply.split())
        return pri, id

    def kick_task(self, task: object, attempts: int | None, ttl: Seconds | None) -> F:
        """Make one buried task ready."""
        return self.call("kick_task", self.request(task, *self._kick_words(attempts, ttl), looks=True))

    def _kick_words(self, attempts: int | None, ttl: Seconds | None) -> tuple[int | str, ...]:
        most, span = self._driver.check_kick(attempts, ttl)
        return "" if most is None else most, "" if span is None else span

    # -- the tube ------------------------------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Return True if no task is ready, delayed or taken."""
        return self.run(self._is_empty())

    def _is_empty(self) -> Flow[bool]:
        return (yield from self.left()) == 0

    def left(self) -> Flow[int]:
        """Return the number of ready, delayed and taken tasks."""
        total, _, buried, *_ = list_of((yield from self.ask("statistics")))
        return number_of(total) - number_of(buried)

    def release_all(self) -> None:
        """Release all taken tasks."""
        return self.call("release_all", _NOTHING)

    def truncate(self) -> None:
        """Remove all tasks."""
        return self.call("truncate", _NOTHING)

    def forget_key(self, key: object) -> bool:
        """Forget a remembered key; return whether it was remembered."""
        return self.call("forget_key", (_is_one, (raw_text(text("key", key)),), None), changes=False)

    def block(self, lane: object, seconds: object, extend: object, reason: str | None) -> None:
        """Stop a lane for `seconds`: its tasks cannot be taken."""
        name, span, extends = lane_of(self._driver, lane), micros("seconds", seconds), flag("extend", extend)
        why = raw_text(check_reason(reason) or "")
        return self.call("pace", (_ignore, (raw_text(name), span, "", "", "", "1" if extends else "", "", why), None))

    def configure(self, lane: object, limits: Options) -> None:
        """Set limits of one lane."""
        name = lane_of(self._driver, lane)
        changes = check_lane_limits(limits)
        pairs = ((changes.get(limit, ""), unset) for limit, unset in _UNSET)
        given: list[Any] = [
            unset if wanted is None else _INTERVAL_STARTS.get(wanted, wanted) for wanted, unset in pairs
        ]
        *values, capacity, burst = given
        words: tuple[Word, ...] = (raw_text(name), "", *values, "", capacity, "", burst)
        if changes.get("capacity") is not None:
            return self.change(self._set_capacity(words))
        return self.call("pace", (_ignore, words, None))

    def _set_capacity(self, words: tuple[Word, ...]) -> Flow[None]:
        """Set limits of a lane; the first capacity alters the tube, so that it counts the tasks per lane."""
        if "lane_capacity" not in (yield from self.edition()).options:
            yield from self.give_options({"lane_capacity": 0})
        yield from self.ask("pace", *words)

    def alter(self, changes: Options) -> None:
        """Change the options of the tube."""
        return self.change(self.give_options(self._driver.check_alter(changes)))

    def give_options(self, changes: Options) -> Flow[None]:
        """Change the options of the tube; `changes` are checked."""

        def words(edition: Edition) -> tuple[Word, ...]:
            wanted = apply_changes(edition.options, changes)
            counts = "1" if "lane_capacity" in wanted and "lane_capacity" not in edition.options else ""
            ahead = (wanted.get("burst", 1) - 1) * wanted.get("rate", 0)
            limits = encode_lane_options(wanted), counts, ahead
            return uuid4().hex, describe_options(wanted), wanted.get("capacity", 0), *limits

        yield from self.ask_by_options("alter", words)
        yield from self.connection.enter(self)  # Afterwards `tube.options` is current.
        if changes.get("keep_done_max"):
            while number_of((yield from self.ask("trim_done", _TRIMS_PER_CALL))):
                pass
        # This call wakes waiters if the new options make tasks or room available.
        yield from self.ask("tick")

    def pause(self, seconds: Seconds | None) -> None:
        """Stop takes for a while; None: without an end, 0: end the pause."""
        span = None if seconds is None else micros("seconds", seconds)

        def watch(ends: Reply) -> None:
            if span is not None:
                self.shared.watch(number_of(ends))

        if span == 0:
            return self.call("resume", _NOTHING)
        return self.call("pause", (watch, ("" if span is None else span,), None))

    @verb
    def drop(self, force: bool) -> Flow[None]:
        """Remove the tube."""
        flag("force", force)
        shared = self.shared
        busy = yield from self.ask("drop", "1" if force else "", shared.store.process, shared.queue.count())
        if type(busy) is list:
            raise TubeBusy(name=shared.name, taken=busy[0], waiting=busy[1])
        shared.vanish()
        yield from self.connection.forget_name(shared.name)

    @verb
    def listen(self, callback: object, wrap: Wrap | None = None) -> Flow[Listener | None]:
        """Set or remove this connection's listener; `wrap` turns the user's callback into the API's listener."""
        listener = check_listener(callback, wrap)
        if self.closed_error is not None:
            raise self.closed_error()
        if listener is not None:
            yield from self.shared.subscription.open(self)
        before, self.listener = self.listener, listener
        self.shared.subscription.note(self)
        return before


def letters_of(states: tuple[State, ...]) -> str:
    """Return the letters of states as an argument of scripts."""
    return "".join([state.value for state in states])


def _ignore(reply: Reply) -> None:
    """Ignore a reply."""


def _is_one(reply: Reply) -> bool:
    """Return True if the reply is 1."""
    return number_of(reply) == 1


_NOTHING: Final[Request[None]] = (_ignore, (), None)
