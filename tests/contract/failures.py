"""Failed work: attempts, dead letters and their reasons, and backoff."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.bench import Bench, lacks, needs
from tubes import Backoff, InvalidOption, OptionNotSupported, TaskNotFound, TaskNotTaken
from tubes.errors import Facts

if TYPE_CHECKING:
    from tubes import Task


def facts_of(task: Task) -> list[tuple[int, str | None, str | None]]:
    """Return the failures of a task without their times."""
    return [(one.attempt, one.worker, one.error) for one in task.failures]


class Failures(Bench):
    """Attempts, dead letters and backoff."""

    # -- what is stored of failures -----------------------------------------------------------------------------------

    def test_failures_of_all_attempts_are_stored(self) -> None:
        self.put(max_attempts=2, context={"trace": "4bf9"})
        assert (self.tube.peek(0).failures, self.tube.peek(0).traceback, self.tube.peek(0).buried_at) == (
            (),
            None,
            None,
        )
        self.take().release(reason="ValueError: a\nb", traceback="File first", worker="web1:4711")
        first = self.tube.peek(0)
        assert facts_of(first) == [(1, "web1:4711", "ValueError: a b")]
        assert (first.traceback, first.buried_at, first.context) == ("File first", None, {"trace": "4bf9"})
        self.clock.advance(10)
        dead = self.take().release(reason="KeyError: 'x'", traceback="File last\n\nKeyError", worker="web2:5")
        for seen in (dead, self.tube.peek(0), *self.tube.select("buried")):
            assert facts_of(seen) == [(1, "web1:4711", "ValueError: a b"), (2, "web2:5", "KeyError: 'x'")]
            assert seen.failures[0] == first.failures[0]
            assert (seen.traceback, seen.buried_at) == ("File last\n\nKeyError", seen.failures[1].time)
            assert seen.failures[1].time - seen.failures[0].time == pytest.approx(10)
        kicked = self.tube.kick(task=dead)
        assert (kicked.failures, kicked.traceback, kicked.buried_at) == (dead.failures, dead.traceback, None)

    def test_each_burial_is_a_failure(self) -> None:
        task = self.put()
        assert facts_of(self.tube.bury(task)) == [(0, None, None)]
        self.tube.kick(task=task)
        dead = self.take().bury("why", traceback="File", worker="web1:1")
        assert facts_of(dead) == [
            (0, None, None),
            (1, "web1:1", "why"),
        ]
        assert (dead.traceback, dead.buried_at) == ("File", dead.failures[1].time)
        self.tube.kick(task=task)
        self.tube.select("ready").bury("late")
        (dead,) = self.tube.select("buried")
        assert ([one.error for one in dead.failures], dead.traceback) == ([None, "why", "late"], None)
        assert self.tube.bury(dead, "again", traceback="other") == dead

    @needs("ttr")
    def test_end_of_the_last_ttr_is_a_failure(self) -> None:
        self.put_and_take(ttr=5, max_attempts=1)
        self.clock.advance(5)
        dead = self.tube.peek(0)
        assert [(one.attempt, one.error) for one in dead.failures] == [(1, "max_attempts: ttr")]
        assert dead.buried_at == pytest.approx(dead.created + 5)

    def test_release_without_a_reason_is_no_failure(self) -> None:
        assert self.put_and_take().release().failures == ()
        assert self.tube._decline(self.take(), 0).failures == ()

    def test_stored_failures_are_limited(self) -> None:
        task = self.put()
        for number in range(7):
            self.take().release(reason=f"{number}" + "ü" * 1000, traceback="é" * 5000 + "!", worker="w\t\n" + "ü" * 100)
        found = self.tube.peek(task)
        assert [one.attempt for one in found.failures] == [3, 4, 5, 6, 7]
        assert [one.error for one in found.failures] == [f"{number}" + "ü" * 149 for number in range(2, 7)]
        assert [one.worker for one in found.failures] == ["w  " + "ü" * 48] * 5
        assert found.traceback == "é" * 2047 + "!"

    @pytest.mark.parametrize("words", ["\ud800\0\x85\u2028x", "\n\nx", " \U0001f600"])
    def test_texts_of_failures_may_have_any_characters(self, words: str) -> None:
        task = self.put()
        dead = self.take().bury(words, traceback=words, worker=words)
        expected = "".join(" " if letter in "\0\n" else letter for letter in words)
        assert (dead.failures[0].error, dead.failures[0].worker, dead.traceback) == (expected, expected, words)
        assert self.tube.peek(task) == dead

    @pytest.mark.parametrize("value", ["", 1, b"x"])
    def test_texts_of_failures_are_checked(self, value: object) -> None:
        task: Any = self.put_and_take()
        for end in (task.release, task.bury):
            for name in ("traceback", "worker"):
                with pytest.raises(InvalidOption):
                    end(**{name: value})

    def test_failures_survive_a_move(self) -> None:
        dead = self.put_and_take().bury("why", traceback="File")
        other = self.queue.create_tube("other", self.driver, **self.options)
        self.tube.select("buried").move_to(other)
        (moved,) = other.select()
        assert (moved.failures, moved.traceback, moved.buried_at) == (dead.failures, "File", None)

    def test_a_done_task_keeps_its_failures_and_starts_again_without_them(self) -> None:
        self.put_and_take(keep_done=60).release(reason="why", traceback="File")
        done = self.tube.peek(self.take().ack())
        assert ([one.error for one in done.failures], done.traceback) == (["why"], "File")
        again = self.tube.kick(task=done)
        assert (again.failures, again.traceback) == ((), None)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def test_kick_takes_the_number_of_buried_tasks(self) -> None:
        buried = self.sort_as_taken([self.put_and_bury() for _ in range(3)])
        assert self.tube.kick(2) == 2
        assert [self.state(task) for task in buried] == ["ready", "ready", "buried"]
        assert (self.tube.kick(0), self.tube.kick(), self.tube.kick()) == (0, 1, 0)
        assert self.refuses(self.tube.kick, -1, "1", 1.5, buried[0])
        assert self.refuses(lambda value: self.tube.kick(1, attempts=value), 1)

    def test_each_take_is_an_attempt(self) -> None:
        self.put()
        for attempt in (1, 2, 3):
            task = self.take()
            assert task.attempts == attempt
            assert self.tube.release(task).attempts == attempt

    def test_task_released_after_its_last_attempt_is_buried(self) -> None:
        task = self.put(max_attempts=2)
        assert task.max_attempts == 2
        assert self.tube.release(self.take()).state == "ready"
        released = self.tube.release(self.take())
        assert (released.state, released.reason, released.attempts) == ("buried", "max_attempts: release", 2)
        assert (self.count("release"), self.count("bury"), self.count("buried")) == (2, 1, 1)
        assert self.tube.take(timeout=0) is None

    def test_declined_take_does_not_count_as_an_attempt(self) -> None:
        self.put(max_attempts=1)
        for _ in range(3):
            left = self.tube._decline(self.take(), 0)
            assert (left.state, left.attempts) == ("ready", 0)
        task = self.take()
        assert task.attempts == 1
        self.tube._decline(task, 0)
        with pytest.raises(TaskNotTaken):
            self.tube._decline(task, 0)
        assert self.count("release") == 0
        assert self.tube.release(self.take()).state == "buried"

    @needs("delay", "ttl")
    def test_declined_task_may_be_delayed_but_keeps_its_ttl(self) -> None:
        self.put(ttl=10)
        left = self.tube._decline(self.take(), 5)
        assert (left.state, left.attempts, left.ttl) == ("delayed", 0, 10)
        assert self.count("release") == 0
        self.clock.advance(4)
        assert self.tube.take(timeout=0) is None
        self.clock.advance(2)
        self.tube._decline(self.take(), 5)
        self.clock.advance(5)
        assert self.tube.take(timeout=0) is None
        assert self.count("total") == 0

    @needs("delay")
    def test_release_with_delay_still_buries_after_the_last_attempt(self) -> None:
        self.put(max_attempts=1)
        assert self.tube.release(self.take(), delay=5).state == "buried"

    @needs("ttr")
    def test_ttr_expiry_of_the_last_attempt_buries_the_task(self) -> None:
        task = self.put_and_take(ttr=2, max_attempts=1)
        self.clock.advance(2)
        found = self.tube.peek(task.id)
        assert (found.state, found.reason) == ("buried", "max_attempts: ttr")
        assert (self.count("ttr"), self.count("bury")) == (1, 1)
        with pytest.raises(TaskNotTaken):
            self.tube.ack(task)

    def test_session_end_in_the_last_attempt_buries_the_task(self) -> None:
        task = self.put(max_attempts=1)
        other = self.add_worker()
        self.take(other.tube)
        other.queue.close()
        found = self.tube.peek(task.id)
        assert (found.state, found.reason) == ("buried", "max_attempts: session")

    def test_release_reason_becomes_the_burial_reason(self) -> None:
        self.put(max_attempts=2)
        assert self.tube.release(self.take(), reason="first").reason is None
        assert self.take().release(reason="ValueError: ü").state == "buried"
        assert next(iter(self.tube.select("buried"))).reason == "ValueError: ü"
        with self.expect_error(InvalidOption):
            self.tube.release(next(iter(self.tube.select("buried"))), reason=7)

    def test_release_all_buries_tasks_after_their_last_attempt(self) -> None:
        last, other = self.put_and_take(max_attempts=1), self.put_and_take(max_attempts=2)
        self.tube.admin.release_all()
        assert (self.state(last), self.state(other)) == ("buried", "ready")
        assert self.tube.peek(last.id).reason == "max_attempts: release"

    def test_tube_max_attempts_is_the_default_for_its_tasks(self) -> None:
        self.tube = self.create("few", max_attempts=1)
        own, others = self.put(max_attempts=2), self.put()
        assert (own.max_attempts, others.max_attempts) == (2, 1)
        self.drain()
        self.tube.admin.release_all()
        assert (self.state(own), self.state(others)) == ("ready", "buried")

    def test_task_can_be_acked_in_its_last_attempt(self) -> None:
        self.put(max_attempts=1)
        assert self.tube.ack(self.take()).state == "done"

    def test_max_attempts_must_be_at_least_one(self) -> None:
        bad = (0, -1, 0.5, True, "3", 2**20)
        assert self.refuses(lambda value: self.tube.put(0, max_attempts=value), *bad)
        assert self.refuses(lambda value: self.create("other", max_attempts=value), *bad)

    def test_final_release_is_reported_as_one_bury_event(self) -> None:
        task = self.put(max_attempts=1)
        events = self.listen()
        self.tube.release(self.take())
        assert self.has_received(events, [("take", task.id, "taken"), ("bury", task.id, "buried")])

    # -- the history of a task -----------------------------------------------------------------------------------------

    def test_task_calls_count_releases_burials_and_kicks(self) -> None:
        task = self.put()
        assert task.calls == {"release": 0, "ttr": 0, "bury": 0, "kick": 0}
        self.tube.release(self.take())
        assert self.tube.bury(self.take()).calls == {"release": 1, "ttr": 0, "bury": 1, "kick": 0}
        self.tube.select("buried", limit=1).kick()
        self.tube._decline(self.take(), 0)
        self.tube.bury(task.id)
        assert self.tube.kick(task=task.id).calls == {"release": 1, "ttr": 0, "bury": 2, "kick": 2}
        held = self.take()
        assert held.calls == self.tube.peek(task.id).calls == {"release": 1, "ttr": 0, "bury": 2, "kick": 2}
        assert self.tube.release(held).calls == {"release": 2, "ttr": 0, "bury": 2, "kick": 2}
        assert self.tube.ack(self.take()).calls == {"release": 2, "ttr": 0, "bury": 2, "kick": 2}

    @needs("ttr", "delay")
    def test_task_calls_count_ttr_expiries(self) -> None:
        task = self.put_and_take(ttr=2, max_attempts=3)
        self.clock.advance(2)
        assert self.tube.peek(task.id).calls == {"release": 0, "ttr": 1, "bury": 0, "kick": 0}
        self.tube.release(self.take(), delay=5)
        assert self.tube.select("delayed", limit=1).kick() == 1
        self.take()
        self.clock.advance(2)
        assert self.tube.peek(task.id).calls == {"release": 1, "ttr": 2, "bury": 1, "kick": 1}

    def test_session_end_and_final_release_count_as_releases(self) -> None:
        task = self.put(max_attempts=2)
        other = self.add_worker()
        self.take(other.tube)
        other.queue.close()
        assert self.tube.peek(task.id).calls["release"] == 1
        assert self.tube.release(self.take()).calls == {"release": 2, "ttr": 0, "bury": 1, "kick": 0}

    # -- dead letters --------------------------------------------------------------------------------------------------

    def test_bury_accepts_a_reason(self) -> None:
        task = self.tube.bury(self.put(), "no such host")
        assert (task.state, task.reason) == ("buried", "no such host")
        assert self.tube.bury(task, "other").reason == "no such host"
        assert self.put_and_bury().reason is None
        assert self.refuses(lambda value: self.tube.bury(task, value), "", 5, b"why")

    def test_a_kick_forgets_the_reason(self) -> None:
        task = self.tube.bury(self.put(), "no such host")
        self.tube.select("buried", limit=1).kick()
        assert self.tube.peek(task).reason is None

    def test_buried_lists_tasks_in_kick_order(self) -> None:
        tasks = self.sort_as_taken([self.put(number) for number in range(5)])
        data = [task.data for task in tasks]
        for number in (3, 0, 4, 1):
            self.tube.bury(tasks[number], f"because of {number}")
        listed = [*self.tube.select("buried")]
        assert [task.data for task in listed] == [data[number] for number in (0, 1, 3, 4)]
        assert [task.reason for task in listed] == [f"because of {number}" for number in (0, 1, 3, 4)]
        assert [task.data for task in self.tube.select("buried", limit=2)] == data[:2]
        assert [*self.tube.select("buried", limit=0)] == []
        assert self.refuses(lambda limit: [*self.tube.select("buried", limit=limit)], -1, 0.5, "1")

    def test_reasons_counts_buried_tasks_by_kind(self) -> None:
        assert self.tube.admin.reasons() == {}
        for reason in ("ValueError: 1", "late", "ValueError: b: c", None, "max_attempts: ttr"):
            self.tube.bury(self.put().id, reason)
        self.put_and_take(max_attempts=1).release()
        kicked = self.put_and_bury()
        self.tube.kick(task=kicked.id)
        found = {"ValueError": 2, "late": 1, "max_attempts: release": 1, "max_attempts: ttr": 1, "none": 1}
        assert list(self.tube.admin.reasons().items()) == list(found.items())

    @lacks("capacity")
    def test_reasons_counts_all_of_many_buried_tasks(self) -> None:
        for task in self.tube.put_many(range(260)):
            self.tube.bury(task.id, "even" if task.id % 2 else "odd")
        assert sum(self.tube.admin.reasons().values()) == 260

    def test_one_buried_task_can_be_kicked_or_deleted(self) -> None:
        first, second, third = (self.put_and_bury() for _ in range(3))
        assert self.tube.kick(task=second).state == "ready"
        assert self.tube.delete(third.id).state == "done"
        assert [self.state(task) for task in (first, second, third)] == ["buried", "ready", "done"]
        assert self.count("kick") == 1
        assert self.tube.kick(task=second.id).state == "ready"
        assert self.count("kick") == 1
        with self.expect_error(TaskNotFound):
            self.tube.kick(task=third)

    def test_kick_gives_one_more_attempt_after_the_last(self) -> None:
        task = self.put(max_attempts=1)
        for attempt in (1, 2, 3):
            taken = self.take()
            assert (taken.id, taken.attempts) == (task.id, attempt)
            assert self.tube.release(taken).state == "buried"
            self.tube.select("buried", limit=1).kick()

    def test_kick_may_add_attempts(self) -> None:
        task = self.put(max_attempts=1)
        self.tube.release(self.take())
        assert self.tube.select("buried", limit=1).kick(attempts=2) == 1
        assert self.tube.peek(task).max_attempts == 3
        assert self.tube.release(self.take()).state == "ready"
        assert self.tube.release(self.take()).state == "buried"
        assert self.tube.kick(task=task, attempts=1).max_attempts == 4
        assert self.refuses(lambda value: self.tube.select("buried", limit=1).kick(attempts=value), 0, -1, "1")
        assert self.refuses(lambda value: self.tube.kick(task=task, attempts=value), 0, -1, "1")

    @needs("ttl")
    def test_a_kick_may_give_a_new_ttl(self) -> None:
        task = self.put_and_bury(ttl=10)
        self.clock.advance(9)
        assert self.tube.select("buried", limit=1).kick(ttl=5) == 1
        found = self.tube.peek(task)
        assert (found.ttl, found.expires) == (14, 14)
        assert self.changes_state(task, "ready", "done", after=5)
        unlimited = self.tube.kick(task=self.put_and_bury(), ttl=1)
        self.clock.advance(1)
        assert self.state(unlimited) == "done"

    @lacks("ttl")
    def test_kick_with_ttl_is_refused_where_the_driver_has_no_ttl(self) -> None:
        task = self.put_and_bury()
        with self.expect_error(OptionNotSupported):
            self.tube.select("buried", limit=1).kick(ttl=1)
        with self.expect_error(OptionNotSupported):
            self.tube.kick(task=task, ttl=1)

    @needs("ttl")
    def test_ttl_runs_on_after_the_last_attempt_failed(self) -> None:
        task = self.put(ttl=5, max_attempts=1)
        self.tube.release(self.take())
        assert self.changes_state(task, "buried", "done", after=5)

    @needs("ttl", "ttr")
    def test_task_that_expires_while_taken_is_not_buried(self) -> None:
        task = self.put_and_take(ttl=5, ttr=9, max_attempts=1)
        self.clock.advance(5)
        assert self.state(task) == ("taken" if self.knobs.ttl_spares_taken else "done")
        assert self.count("bury") == 0
        if self.knobs.ttl_spares_taken:
            self.clock.advance(4)
            assert self.state(task) == "done"

    # -- backoff -------------------------------------------------------------------------------------------------------

    @needs("delay")
    def test_release_delays_the_task_by_the_backoff(self) -> None:
        self.tube = self.create("resting", backoff=Backoff(1, factor=3, cap=5))
        task = self.put()
        for seconds in (1, 3, 5, 5):
            released = self.tube.release(self.take())
            assert (released.state, released.due) == ("delayed", self.clock.now() + seconds)
            self.clock.advance(seconds - 0.001)
            assert self.tube.take(timeout=0) is None
            self.clock.advance(0.001)
        assert self.take().id == task.id

    @needs("delay")
    def test_a_backoff_may_be_a_list(self) -> None:
        self.tube = self.create("resting", backoff=[2, 0, 1])
        self.put()
        assert self.tube.release(self.take()).state == "delayed"
        self.clock.advance(2)
        assert self.tube.release(self.take()).state == "ready"
        for _ in range(2):
            assert self.tube.release(self.take()).due == self.clock.now() + 1
            self.clock.advance(1)

    @needs("delay")
    def test_release_delay_overrides_the_backoff(self) -> None:
        self.tube = self.create("resting", backoff=[9])
        self.put()
        assert self.tube.release(self.take(), delay=0).state == "ready"
        assert self.tube.release(self.take(), delay=2).due == self.clock.now() + 2

    @needs("delay", "ttr")
    def test_backoff_applies_after_ttr_expiry(self) -> None:
        self.tube = self.create("resting", backoff=[4])
        task = self.put_and_take(ttr=2)
        events = self.listen()
        self.clock.advance(2)
        assert (self.state(task), self.count("ttr")) == ("delayed", 1)
        assert self.changes_state(task, "delayed", "ready", after=4)
        assert self.has_received(events, [("ttr", task.id, "delayed"), ("delay", task.id, "ready")])

    @needs("delay", "ttr")
    def test_backoff_counts_from_the_ttr_expiry_not_from_the_next_call(self) -> None:
        self.tube = self.create("resting", backoff=[5, 50])
        late = self.put_and_take(ttr=1)
        self.pass_time(100)
        assert self.drain() == [late.id]
        assert self.tube.peek(late.id).due == self.clock.now() + 1
        assert self.changes_state(late, "delayed", "ready", after=51)

    @needs("ttr")
    def test_earlier_session_end_is_the_burial_reason_not_the_later_ttr(self) -> None:
        """The session is lost before the time to run is over: the loss does not count as a failure."""
        other = self.add_worker()
        task = self.put(ttr=self.session_ttl + 1, max_attempts=1)
        self.take(other.tube)
        other.queue.admin.detach()
        self.pass_time(self.session_ttl + 2)
        assert self.tube.peek(task.id).reason == "max_attempts: session"

    @needs("delay", "ttl")
    def test_backoff_extends_the_ttl(self) -> None:
        self.tube = self.create("resting", backoff=[4])
        task = self.put_and_take(ttl=10)
        assert self.tube.release(task).ttl == 14

    @needs("delay")
    def test_backoff_does_not_apply_to_session_end_or_release_all(self) -> None:
        self.tube = self.create("resting", backoff=[9])
        task = self.put()
        other = self.add_worker()
        self.take(other.tube)
        other.queue.close()
        assert self.state(task) == "ready"
        self.take()
        self.tube.admin.release_all()
        assert self.state(task) == "ready"

    @needs("delay")
    def test_backoff_jitter_shortens_delays_reproducibly(self) -> None:
        backoff = Backoff(10, jitter=0.5, seed=7)
        self.tube = self.create("resting", backoff=backoff)
        spans: list[float] = []
        for _ in range(5):
            task = self.tube.release(self.put_and_take())
            spans.append(task.due - self.clock.now())
            assert spans[-1] == pytest.approx(backoff.delay(1, task.id), abs=2e-6)
            self.clock.advance(10)
            self.tube.ack(self.take())
        assert all(5 <= span <= 10 for span in spans)
        assert len(set(spans)) == 5

    @needs("delay")
    def test_backoff_with_bad_values_is_refused(self) -> None:
        bad: list[object] = [5, "1", [], [-1], [None], [1] * 1001, {"first": None}]
        assert self.refuses(lambda value: self.create("other", backoff=value), *bad)
        wrongs: list[Facts] = [
            {"factor": 0.5},
            {"jitter": 2},
            {"cap": -1},
            {"seed": "x"},
            {"factor": 1.0001},
            {"factor": 10**400},
        ]
        for wrong in wrongs:
            with pytest.raises(InvalidOption):
                Backoff(1, **wrong)
        with pytest.raises(InvalidOption):
            Backoff(-1)
        for attempts in (-1, "1", None):
            with pytest.raises(InvalidOption):
                Backoff(1).delay(attempts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    @needs("ttl", "ttr", "delay")
    def test_buried_ttl_limits_how_long_buried_tasks_live(self) -> None:
        tube = self.create("letters", ttl=60, buried_ttl=5, max_attempts=1)
        self.tube = tube
        by_hand, released, late = (self.put(ttr=1) for _ in range(3))
        self.pass_time(10)
        by_hand = tube.bury(by_hand.id)
        for _ in range(2):
            self.take()
        tube.release(released.id)
        self.pass_time(1)
        late = tube.peek(late.id)
        assert [str(task.state) for task in (by_hand, late)] == ["buried", "buried"]
        assert (by_hand.ttl, late.expires) == (15, self.clock.now() + 5)
        assert self.changes_state(by_hand, "buried", "done", after=4)
        assert self.state(released) == "done"
        tube.kick(task=late, ttl=60)
        assert self.changes_state(late, "ready", "done", after=60)

    @needs("ttl")
    def test_infinite_buried_ttl_keeps_buried_tasks(self) -> None:
        self.tube = self.create("letters", ttl=5, buried_ttl=math.inf)
        assert self.tube.options["buried_ttl"] == math.inf
        task, ready = self.put(), self.put()
        buried = self.tube.bury(task.id)
        assert (buried.ttl, buried.expires, buried.due) == (None, None, None)
        self.pass_time(1000)
        assert [self.state(task), self.state(ready)] == ["buried", "done"]
        assert self.tube.kick(task=task.id).due is None
        self.tube.alter(buried_ttl=None)
        last = self.put()
        self.tube.bury(last.id)
        assert self.changes_state(last, "buried", "done", after=5)
        assert self.refuses(lambda span: self.create("bad", buried_ttl=span), -1, math.nan, "x", -math.inf)

    @lacks("ttl")
    def test_buried_ttl_is_refused_where_the_driver_has_no_ttl(self) -> None:
        assert self.refuses(lambda span: self.create("bad", buried_ttl=span), 5, error=OptionNotSupported)
