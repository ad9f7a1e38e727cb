"""Compare the results of a face with those of the original."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.golden.ids import Ledger, is_task, same, to_trace
from tubes import errors

from . import deviations
from .deviations import Deviation, Zombies, negative
from .stage import Call, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.faces import Face

    from .traces import Trace

Step = dict[str, Any]

ERRORS: dict[str, type[errors.TubesError]] = {
    "not_taken": errors.TaskNotTaken,
    "not_found": errors.TaskNotFound,
    "unsupported": errors.OptionNotSupported,
    "bad_argument": errors.InvalidOption,
    "has_taken": errors.TubeBusy,
    "has_consumers": errors.TubeBusy,
    "tube_exists": errors.TubeExists,
    "unknown_driver": errors.DriverNotFound,
    "no_tube": errors.TubeNotFound,
    "bad_uuid": errors.InvalidOption,
    "unknown_session": errors.SessionNotFound,
}


class MismatchError(AssertionError):
    """The result differs from that of the original."""

    def __init__(self, trace: Trace, number: int, wanted: Any, got: Any) -> None:
        step = trace.steps[number] if 0 <= number < len(trace.steps) else "final"
        super().__init__(f"{trace.name}, step {number}: {step}\n  wanted {wanted}\n  got    {got}")
        self.number = number


class Referee:
    """The shared state of all steps: the stage, the ledger and the deviations.

    `allowed`: the permitted deviations; `used`: the first step that used each of them.
    """

    def __init__(self, face: Face, trace: Trace, allowed: frozenset[Deviation]) -> None:
        self.trace = trace
        self.used: dict[Deviation, int] = {}
        self.allowed = allowed
        self.number = -1
        self.ledger = Ledger()
        self.stage = Stage(face, trace.lease, self.returned)
        self.zombies = Zombies(self.ledger.history)
        #: The number of touches that the original refused but counted.
        self.unsupported = 0
        #: The ids in the trace of waiting puts.
        self.expected: dict[Call, int] = {}

    def returned(self, call: Call) -> None:
        """Record the return of a waiting call."""
        failed = call.future.exception() is not None
        if call in self.expected and not failed and (task := call.future.result()) is not None:
            self.ledger.ids(call.tube).note(self.expected[call], task.id)
        call.ids = self.ledger.ids(call.tube).meaning()

    def use(self, deviation: Deviation, when: bool = True) -> bool:
        """Return True if this deviation applies here, and record its use."""
        if when and deviation in self.allowed:
            self.used.setdefault(deviation, self.number)
            return True
        return False

    def compare(self, wanted: Any, got: Any) -> None:
        """Raise `MismatchError` unless these are the same."""
        if not same(wanted, got):
            raise MismatchError(self.trace, self.number, wanted, got)

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Return the result of the call or the class of its error; check that an error changes nothing."""
        before = self.counts()
        try:
            return to_trace(call())
        except errors.TubesError as error:
            self.compare(before, self.counts())
            return type(error)

    def expect(self, step: Step, call: Callable[[], Any], ids: dict[int, int] | None = None) -> Any:
        """Compare the result of the call with the trace; `ids`: the meaning of its ids at that moment."""
        got = self.attempt(call)
        recorded = self.recorded_result(step, ids)
        if not self.use(Deviation.REPORTS_DONE, deviations.reports_done(step["op"], recorded, got)):
            self.compare(recorded, got)
        return got

    def recorded_result(self, step: Step, ids: dict[int, int] | None = None) -> Any:
        """Return the result in the trace with the ids and errors of tubes."""
        if "error" in step:
            return ERRORS[step["error"]]
        result = step.get("result")
        if is_task(result):
            return {**result, "id": self.ledger.ids(self.tube_name(step)).ours(result["id"], ids)}
        return result

    @staticmethod
    def tube_name(step: Step) -> str:
        """Return the name of the tube of a step."""
        name: str = step.get("tube", "@self")
        return name.removeprefix("@")

    def refused(self, deviation: Deviation, error: type[errors.TubesError], call: Callable[[], Any]) -> None:
        """Check that the call raises the error because of a deviation."""
        self.compare(error, self.attempt(call))
        self.use(deviation)

    def supported_options(
        self, options: dict[str, Any], known: frozenset[str], call: Callable[[dict[str, Any]], Any]
    ) -> dict[str, Any]:
        """Return the options that the original uses, with 0 for negative ones; check that others are refused."""
        unknown = {option: value for option, value in options.items() if option not in known}
        if unknown and Deviation.UNKNOWN_OPTION in self.allowed:
            self.refused(Deviation.UNKNOWN_OPTION, errors.OptionNotSupported, lambda: call(unknown))
            options = {option: value for option, value in options.items() if option in known}
        if any(map(negative, options.values())) and Deviation.NEGATIVE in self.allowed:
            bad = options
            self.refused(Deviation.NEGATIVE, errors.InvalidOption, lambda: call(bad))
            options = {option: 0 if negative(value) else value for option, value in options.items()}
        return options

    # -- the tube as a whole -------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, dict[str, int]] | None:
        """Return the statistics of the tube; None if it was dropped."""
        try:
            counts = self.stage.root.tube("self").statistics()
        except errors.TubeNotFound:
            return None
        return {"tasks": counts.tasks, "calls": counts.calls}

    def listen(self) -> None:
        """Make another call, after which a face with a loop has notified all listeners."""
        self.counts()

    def compare_counts(self, recorded: dict[str, dict[str, int]]) -> None:
        """Compare statistics."""
        calls = recorded["calls"]
        if self.use(Deviation.TOUCH_ONCE, calls["touch"] > 0):
            calls = deviations.touch_once(calls, self.unsupported)
        if self.use(Deviation.DELAY_NAME, "delayed" in calls):
            calls = deviations.delay_name(calls)
        recorded = recorded | {"calls": calls}
        if Deviation.NO_ZOMBIE in self.allowed:
            self.listen()
            recorded = self.zombies.without_zombies(recorded)
        self.compare(recorded, self.counts())

    def compare_events(self, recorded: list[dict[str, Any]]) -> None:
        """Compare the events of listeners since the last comparison."""
        for deviation, normalise in (
            (Deviation.NO_NEIGHBOUR_EVENT, deviations.without_neighbours),
            (Deviation.DELAY_NAME, deviations.named_delay),
            (Deviation.ONE_TTL_EVENT, deviations.one_ttl_event),
        ):
            if self.use(deviation, deviation in self.allowed and normalise(recorded) != recorded):
                recorded = normalise(recorded)
        self.listen()
        self.compare(recorded, self.ledger.pop_events())
