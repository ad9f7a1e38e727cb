"""Context: strings that travel with a task."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, needs
from tubes import InvalidOption, Item

TRACE = {"trace": "4bf92f35", "": "", "ü" * 300: "x" * 70_000, "lone": "\ud800"}


class Context(Bench):
    """Context."""

    def test_a_context_travels_with_its_task(self) -> None:
        task = self.put(context=TRACE)
        assert task.context == TRACE
        assert self.tube.peek(task).context == TRACE
        taken = self.take()
        assert taken.context == TRACE
        assert taken.ack().context == TRACE

    def test_task_without_context_has_an_empty_one(self) -> None:
        assert self.put().context == {}
        assert self.put(context={}).context == {}
        assert self.put(context=None).context == {}

    def test_context_survives_release_bury_kick_and_update(self) -> None:
        task = self.put(context=TRACE, max_attempts=2, key="k")
        self.take().release()
        assert self.take().context == TRACE
        self.tube.bury(task.id, "why")
        assert next(iter(self.tube.select("buried"))).context == TRACE
        assert next(iter(self.tube.select("buried"))).reason == "why"
        self.tube.select("buried", limit=1).kick()
        self.tube.update(task.id, data="other")
        taken = self.take()
        assert (taken.context, taken.data, taken.key) == (TRACE, "other", "k")

    @needs("delay")
    def test_context_survives_a_delay(self) -> None:
        self.put(context=TRACE, delay=5)
        self.clock.advance(5)
        self.take().release(delay=5)
        self.clock.advance(5)
        assert self.take().context == TRACE

    @needs("ttr")
    def test_context_survives_a_touch(self) -> None:
        assert self.put_and_take(context=TRACE, ttr=5).touch(1).context == TRACE

    def test_batch_items_may_have_their_own_context(self) -> None:
        items = [Item(0, **self.lane("a")), Item(1, context={"n": "1"}, **self.lane("b"))]
        put = self.tube.put_many(items, context=TRACE)
        assert [task.context for task in put] == [TRACE, {"n": "1"}]
        found = {task.id: task.context for task in self.tube.take_many(2, timeout=0)}
        assert found == {put[0].id: TRACE, put[1].id: {"n": "1"}}

    def test_put_with_existing_key_returns_the_context_of_that_task(self) -> None:
        self.put(key="k", context={"n": "1"})
        assert self.put(key="k", context={"n": "2"}).context == {"n": "1"}

    def test_changing_a_returned_context_changes_a_copy(self) -> None:
        settings = {"n": "1"}
        task = self.put(context=settings)
        settings["n"] = "2"
        task.context["n"] = "3"
        assert task.context == self.take().context == {"n": "1"}

    @pytest.mark.parametrize("bad", ["trace", 7, ["trace"], {"trace": 1}, {1: "trace"}, {"trace": None}, {"b": b"b"}])
    def test_context_that_is_not_a_mapping_of_strings_is_refused(self, bad: object) -> None:
        with self.expect_error(InvalidOption):
            self.tube.put(0, context=bad)
