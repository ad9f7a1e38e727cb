"""Replay all steps of a trace on a face and compare the final state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tubes import errors

from .deviations import TUBE_OPTIONS, Deviation
from .referee import ERRORS, Step
from .verbs import Verbs

if TYPE_CHECKING:
    from tests.contract.faces import Face

    from .traces import Trace


class Replay(Verbs):
    """One replay of one trace."""

    def __init__(self, face: Face, trace: Trace, allowed: frozenset[Deviation]) -> None:
        super().__init__(face, trace, allowed)
        self.made = {}
        self.refs = {}
        self._uuids: dict[str, str] = {}

    def run(self) -> Replay:
        """Replay the trace to its end; raise `MismatchError` at the first different step."""
        try:
            self._create(self.stage.root, "self", self.trace.driver, self.trace.create)
            if self.trace.records_events or Deviation.NO_ZOMBIE in self.allowed:
                self.stage.root.tube("self").on_task_change(self.ledger.record_event)
            for number, step in enumerate(self.trace.steps):
                self.number = number
                getattr(self, f"do_{step['op']}")(step)
                self.stage.wait_for_served()
            self.number = len(self.trace.steps)
            self._finally()
        finally:
            self.stage.close()
        return self

    def _finally(self) -> None:
        if self.trace.final.get("dropped"):
            self.compare(None, self.counts())
            return
        for recorded in self.trace.final.get("peek", []):
            outcome = {"error": recorded["error"]} if "error" in recorded else {"result": recorded}
            self.do_peek({"op": "peek", "session": "root", "args": {"id": recorded["id"]}} | outcome)
        if "statistics" in self.trace.final:
            self.compare_counts(self.trace.final["statistics"])

    def do_sleep(self, step: Step) -> None:
        self.stage.sleep(step["seconds"], watch=self.trace.tells_time)

    def do_statistics(self, step: Step) -> None:
        self.compare_counts(step["result"])

    def do_events(self, step: Step) -> None:
        self.compare_events(step["result"])

    # -- sessions ------------------------------------------------------------------------------------------------------

    def do_disconnect(self, step: Step) -> None:
        for call in self.stage.disconnect(step["session"]):
            # Later steps use the task of this put: put it from another session.
            if self.use(Deviation.NO_GHOST, call.verb == "put"):
                left = call.left(self.stage.clock.now())
                ghost = self.stage.begin("ghost", call.tube, "put", *call.args, **call.options, **left)
                self.expect_put(ghost)

    def do_identify(self, step: Step) -> None:
        uuid = step.get("args", {}).get("uuid")
        if uuid is not None and uuid.startswith("$"):
            uuid = self._uuids[uuid[1:]]
        got = self.attempt(lambda: self.stage.queue(step["session"]).admin.identify(uuid))
        if "error" in step:
            self.compare(ERRORS[step["error"]], got)
            return
        if "save" in step:
            self._uuids[step["save"]] = got
        names = {f"${name}" for name, saved in self._uuids.items() if saved == got} or {"new"}
        self.compare(step["result"], step["result"] if step["result"] in names else sorted(names))

    # -- tubes ---------------------------------------------------------------------------------------------------------

    def _create(self, queue: Any, name: str, driver: str, options: dict[str, Any]) -> Any:
        """Create a tube; return True or the class of the error."""
        general = {option: options[option] for option in ("temporary", "if_not_exists") if option in options}
        options = {option: value for option, value in options.items() if option not in general}

        def create(options: dict[str, Any]) -> bool:
            queue.create_tube(name, driver, **general, **options)
            return True

        if driver in TUBE_OPTIONS:
            options = self.supported_options(options, TUBE_OPTIONS[driver], create)
        got = self.attempt(lambda: create(options))
        if got is True:
            self.made[name] = driver, options
        return got

    def do_create_tube(self, step: Step) -> None:
        name, driver = step["args"]["name"].removeprefix("@"), step["args"]["driver"]
        options: dict[str, Any] = step["args"].get("opts") or {}
        living = self.made.get(name)
        got = self._create(self.stage.queue(step["session"]), name, driver, options)
        if step.get("result") is True and options.get("if_not_exists") and got is errors.TubeExists:
            options_used = {option: options[option] for option in options.keys() & TUBE_OPTIONS[driver]}
            got = self.use(Deviation.SAME_TUBE, living != (driver, options_used))
        self.compare(self.recorded_result(step), got)

    def do_drop(self, step: Step) -> None:
        name = self.tube_name(step)

        def drop() -> bool:
            self.stage.tube(step["session"], name).drop()
            self.stage.forget(name)
            self.ledger.forget(name)
            return True

        if self.use(Deviation.TRUNCATE, step.get("error") == "has_taken" and self.truncated()):
            # Later steps use the tube: create it again.
            self.compare(True, self.attempt(drop))
            self._create(self.stage.root, name, *self.made[name])
            return
        self.expect(step, drop)
