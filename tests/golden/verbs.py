"""The steps of a trace that are calls of a tube."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.golden.ids import is_task, same
from tubes import errors

from .deviations import PUT_OPTIONS, Deviation, negative
from .referee import MismatchError, Referee, Step
from .stage import PATIENCE, Call

if TYPE_CHECKING:
    from collections.abc import Callable


class Verbs(Referee):
    """One method per call, `do_` and its name."""

    #: The driver and the options of every tube.
    made: dict[str, tuple[str, dict[str, Any]]]
    #: The waiting calls, by their names in the trace.
    refs: dict[str, Call]

    def verb(self, step: Step, verb: str, *args: Any, **options: Any) -> Callable[[], Any]:
        """Return a call of a method by the session of the step."""
        return lambda: getattr(self.stage.tube(step["session"], self.tube_name(step)), verb)(*args, **options)

    def id(self, step: Step) -> Any:
        """Return the id in tubes for the id of a step."""
        return self.ledger.ids(self.tube_name(step)).ours(step["args"].get("id"))

    def truncated(self) -> bool:
        """Return True if the tube was truncated."""
        return any(step["op"] == "truncate" for step in self.trace.steps[: self.number])

    def do_put(self, step: Step) -> None:
        data = step["args"].get("data")
        options: dict[str, Any] = step["args"].get("opts") or {}
        known = PUT_OPTIONS[self.made[self.tube_name(step)][0]]
        if "result" in step:
            options = self.supported_options(options, known, lambda some: self.verb(step, "put", data, **some)())
        elif step["error"] == "no_tube":
            options = {option: value for option, value in options.items() if option in known}
        # Without room the original returns nil, like tubes after a timeout.
        got = self.attempt(self.verb(step, "put", data, **{"timeout": 0, **options}))
        if is_task(got) and step.get("result"):
            self.ledger.ids(self.tube_name(step)).note(step["result"]["id"], got["id"])
        self.compare(self.recorded_result(step), got)
        if Deviation.ARRIVAL in self.allowed and is_task(got) and self.stage.waiting():
            self.note_useless_wake(got["id"])

    def note_useless_wake(self, id: int) -> None:
        """Repeat the useless wake of a put whose task cannot be taken or ends at once."""
        peeked = self.attempt(lambda: self.stage.root.tube("self").peek(id))
        if not is_task(peeked) or peeked["state"] == "r":
            self.stage.repeat_useless_wake()

    def do_take(self, step: Step) -> None:
        self.note_take(step, self.expect(step, self.verb(step, "take", **step.get("args", {}))))

    def note_take(self, step: Step, got: Any) -> None:
        """Record the holder of a taken task."""
        if is_task(got):
            takers = self.ledger.ids(self.tube_name(step)).takers
            takers[got["id"]] = self.stage.queue(step["session"]).admin.identify()

    def do_release(self, step: Step) -> None:
        id = self.id(step)
        options: dict[str, Any] = step["args"].get("opts") or {}
        if "result" in step or any(map(negative, options.values())):
            known = PUT_OPTIONS[self.trace.driver] & {"delay"}
            options = self.supported_options(options, known, lambda some: self.verb(step, "release", id, **some)())
        self.expect(step, self.verb(step, "release", id, **options))

    def do_touch(self, step: Step) -> None:
        id, delta = self.id(step), step["args"].get("delta")
        touch = self.verb(step, "touch", id, delta)
        idle = "result" in step and step["result"] is None
        if self.use(Deviation.IDLE_TOUCH, idle):
            self.touch_without_effect(step, id, delta, touch)
            return
        if step.get("error") == "unsupported":
            self.unsupported += 1
        self.expect(step, touch)

    def touch_without_effect(self, step: Step, id: int, delta: float | None, touch: Callable[[], Any]) -> None:
        """Check a touch without effect: without a number, by less than 0, by 0."""
        peeked = self.attempt(self.verb(step, "peek", id))
        mine = (
            self.ledger.ids(self.tube_name(step)).takers.get(id) == self.stage.queue(step["session"]).admin.identify()
        )
        wanted = peeked
        if delta is None or delta < 0:
            wanted = errors.InvalidOption
        elif not (mine and is_task(peeked) and peeked["state"] == "t"):
            wanted = errors.TaskNotTaken
        elif "ttr" not in PUT_OPTIONS[self.trace.driver]:
            wanted = errors.OptionNotSupported
        before = self.counts()
        self.compare(wanted, self.attempt(touch))
        self.compare(before, self.counts())

    def do_kick(self, step: Step) -> None:
        count = step.get("args", {}).get("count", 1)

        def kick() -> Any:
            tube = self.stage.tube(step["session"], self.tube_name(step))
            return tube.kick(count)

        if negative(count) and Deviation.NEGATIVE in self.allowed:
            self.refused(Deviation.NEGATIVE, errors.InvalidOption, kick)
            return
        self.expect(step, kick)

    def do_release_all(self, step: Step) -> None:
        self.expect(step, lambda: self.stage.tube(step["session"], self.tube_name(step)).admin.release_all())

    def do_truncate(self, step: Step) -> None:
        self.expect(step, self.verb(step, "truncate"))

    def do_ack(self, step: Step) -> None:
        if self.use(Deviation.TRUNCATE, step.get("error") == "not_found" and self.truncated()):
            step = step | {"error": "not_taken"}
        self.do_by_id(step)

    def do_by_id(self, step: Step) -> None:
        """ack, bury, delete, peek."""
        verb, id = step["op"], self.id(step)
        call = self.verb(step, verb, id)
        if Deviation.NO_ZOMBIE in self.allowed:
            self.listen()
            if verb != "ack" and self.zombies.is_shown(id):
                self.compare(step["result"]["state"], self.zombies.seen(verb, id))
                self.refused(Deviation.NO_ZOMBIE, errors.TaskNotFound, call)
                return
        self.expect(step, call)

    do_bury = do_delete = do_peek = do_by_id

    # -- waiting calls -------------------------------------------------------------------------------------------------

    def do_take_begin(self, step: Step) -> None:
        where, options = (step["session"], self.tube_name(step)), step.get("args", {})
        if Deviation.ARRIVAL in self.allowed:
            call, overtook = self.stage.begin_by_timeout(*where, **options)
            self.use(Deviation.ARRIVAL, overtook)
        else:
            call = self.stage.begin(*where, "take", **options)
        self.refs[step["ref"]] = call

    def do_put_begin(self, step: Step) -> None:
        data = step["args"]["data"]
        options: dict[str, Any] = step["args"].get("opts") or {}
        call = self.stage.begin(step["session"], self.tube_name(step), "put", data, **options)
        self.refs[step["ref"]] = call
        self.expect_put(call)

    def expect_put(self, call: Call) -> None:
        """Find the id of this put's task in the rest of the trace."""
        for step in self.trace.steps[self.number :]:
            recorded = step.get("result")
            if is_task(recorded) and same(recorded["data"], call.args[0]):
                self.expected[call] = recorded["id"]
                return

    def do_pending(self, step: Step) -> None:
        self.stage.wait_for_served()
        self.compare(step["result"], not self.refs[step["ref"]].future.done())

    def do_take_end(self, step: Step) -> None:
        call = self.refs[step["ref"]]
        self.stage.wait_for_served()
        if not call.future.done():
            raise MismatchError(self.trace, self.number, step, "it waits")
        self.stage.finish(call)
        got = self.expect(step, lambda: call.future.result(PATIENCE), call.ids)
        if "after" in step and abs((call.took or 0.0) - step["after"]) > 0.11:
            raise MismatchError(self.trace, self.number, step["after"], call.took)
        if call.verb == "take":
            self.note_take(step, got)

    do_put_end = do_take_end
