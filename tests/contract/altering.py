"""Changing the options of a tube in use (`alter`), and `create_tube` for an existing tube."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.bench import Bench, needs
from tubes import Backoff, Driver, InvalidOption, OptionNotSupported, QueueClosed, TubeExists, TubeNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes import Task, Tube


class Altering(Bench):
    """Options and their changes."""

    def options_of(self, tube: Tube) -> dict[str, object]:
        """Return the tube's options without the required options of the driver."""
        return {name: value for name, value in tube.options.items() if name not in self.options}

    def defaults(self) -> dict[str, int]:
        """Return the driver's options that are defaults for tasks, with a value for each."""
        settings = {"max_attempts": 7, "ttl": 100, "ttr": 50, "pri": 3}
        return {name: value for name, value in settings.items() if name == "max_attempts" or self.knows(name)}

    @staticmethod
    def facts(task: Task, names: Iterable[str]) -> dict[str, object]:
        """Return these attributes of a task."""
        return {name: getattr(task, name) for name in names}

    # -- reading options -----------------------------------------------------------------------------------------------

    def test_tube_options_equal_the_arguments(self) -> None:
        assert self.options_of(self.tube) == {}
        settings = {**self.defaults(), "capacity": 9, "key_ttl": 1.5}
        made = self.create("settings", **settings)
        assert self.options_of(made) == settings
        assert self.options_of(self.queue.tube("settings")) == settings

    def test_options_are_read_only(self) -> None:
        with pytest.raises(TypeError):
            self.tube.options["capacity"] = 5

    def test_a_tube_can_be_created_with_the_options_of_another(self) -> None:
        made = self.create("one", **self.defaults(), capacity=3)
        copy = self.queue.create_tube("copy", made.driver, **made.options)
        assert copy.options == made.options
        assert self.queue.create_tube("copy", made.driver, **made.options, if_not_exists=True).name == "copy"

    @needs("delay")
    @pytest.mark.parametrize(
        "option",
        [
            Backoff(1),
            Backoff(60, factor=1, jitter=0.5),
            Backoff(0.5, factor=1.7, cap=99, jitter=0.3, seed=7),
            Backoff(1, factor=3.14159, cap=1e9, jitter=1),
            [60.0],
            [1.0, 5.0],
            [1.0, 5.0, 25.0],
            [1.0, 2.0, 4.0, 8.0],
            [0.0, 1.0],
            [5.0, 1.0, 30.0],
        ],
    )
    def test_backoff_option_reads_back_as_passed(self, option: object) -> None:
        assert self.create("resting", backoff=option).options["backoff"] == option
        self.tube.alter(backoff=option)
        assert self.tube.options["backoff"] == option

    @needs("delay")
    @pytest.mark.parametrize("option", [Backoff(50, cap=60), Backoff(5, factor=1), Backoff(1, cap=2, seed=3), [1] * 9])
    def test_backoff_option_read_back_matches_the_tube(self, option: object) -> None:
        self.create("resting", backoff=option)
        backoff_option = self.queue.tube("resting").options["backoff"]
        assert self.create("resting", backoff=backoff_option, if_not_exists=True).options["backoff"] == backoff_option

    # -- the defaults of tasks -----------------------------------------------------------------------------------------

    def test_put_after_alter_uses_the_new_defaults(self) -> None:
        defaults = self.defaults()
        before = self.facts(self.put(), defaults)
        self.tube.alter(**defaults)
        assert self.facts(self.put(), defaults) == defaults
        assert self.facts(self.tube.put_many([1], **self.lane("batch"))[0], defaults) == defaults
        assert self.facts(self.put(key="k"), defaults) == defaults
        assert self.options_of(self.tube) == defaults
        self.tube.alter(**dict.fromkeys(defaults))
        assert self.facts(self.put(), defaults) == before
        assert self.options_of(self.tube) == {}

    def test_other_sessions_use_altered_defaults(self) -> None:
        other = self.add_worker()
        defaults = self.defaults()
        other.tube.put(0, **self.lane("before"))
        self.tube.alter(**defaults)
        assert self.facts(other.tube.put(1, **self.lane("after")), defaults) == defaults
        assert self.options_of(other.tube) == defaults
        late = self.add_worker()
        assert self.facts(late.tube.put(1, **self.lane("late")), defaults) == defaults

    def test_existing_tasks_keep_their_options_after_alter(self) -> None:
        defaults = self.defaults()
        old = self.put()
        before = self.facts(old, defaults)
        self.tube.alter(**defaults)
        assert self.facts(self.tube.peek(old), defaults) == before
        taken = self.take()
        assert taken.id == old.id
        assert self.facts(taken, defaults) == before
        for _ in range(8):  # More attempts than the new default allows.
            assert taken.release().state == "ready"
            taken = self.take()

    def test_put_options_override_altered_defaults(self) -> None:
        defaults = self.defaults()
        own = dict.fromkeys(defaults, 2)
        self.tube.alter(**defaults)
        assert self.facts(self.put(**own), defaults) == own

    def test_altered_max_attempts_applies_to_later_tasks(self) -> None:
        self.tube.alter(max_attempts=2)
        self.put()
        self.take().release()
        assert self.take().release().state == "buried"

    def test_holder_can_ack_after_alter(self) -> None:
        first, second = self.put_and_take(), self.put()
        self.tube.alter(**self.defaults())
        assert first.ack().state == "done"
        assert self.take().id == second.id

    def test_alter_keeps_options_that_are_left_out(self) -> None:
        self.tube.alter(capacity=5, max_attempts=3)
        self.tube.alter(key_ttl=9)
        self.tube.alter()
        assert self.options_of(self.tube) == {"capacity": 5, "max_attempts": 3, "key_ttl": 9.0}
        self.tube.alter(capacity=None)
        assert self.options_of(self.tube) == {"max_attempts": 3, "key_ttl": 9.0}

    def test_alter_to_the_same_value_changes_nothing(self) -> None:
        self.put()
        self.tube.alter(max_attempts=3)
        before = self.snapshot()
        self.tube.alter(max_attempts=3)
        self.queue.create_tube("contract", self.driver, if_exists="update", **{**self.options, "max_attempts": 3})
        assert self.snapshot() == before

    def test_altered_key_ttl_applies_only_to_later_puts(self) -> None:
        self.put(key="k")
        self.tube.alter(key_ttl=10)
        self.take().ack()
        new = self.put(key="k")
        assert new.created_now  # The first task was put before the change.
        self.take().ack()
        assert not self.put(key="k").created_now

    # -- backoff -------------------------------------------------------------------------------------------------------

    @needs("delay")
    def test_altered_backoff_applies_from_the_next_failure(self) -> None:
        task = self.put_and_take()
        self.tube.alter(backoff=[10, 60])
        assert task.release().state == "delayed"
        self.tube.alter(backoff=[1])
        self.pass_time(9)
        assert self.state(task) == "delayed"  # The delay that it already has does not change.
        self.pass_time(1)
        self.take().release()
        self.pass_time(1)
        again = self.take()
        self.tube.alter(backoff=None)
        assert again.release().state == "ready"

    @needs("delay", "ttr")
    def test_altered_backoff_applies_after_ttr_expiry(self) -> None:
        task = self.put_and_take(ttr=5)
        self.tube.alter(backoff=[10])
        self.pass_time(5)
        assert self.state(task) == "delayed"

    # -- capacity ------------------------------------------------------------------------------------------------------

    def test_alter_adds_and_removes_a_capacity(self) -> None:
        self.put()
        self.tube.alter(capacity=2)
        self.put()
        assert self.tube.put("none", timeout=0, **self.lane("none")) is None
        self.tube.alter(capacity=3)
        self.put()
        self.tube.alter(capacity=None)
        assert [self.put().id for _ in range(3)] == [3, 4, 5]

    def test_a_smaller_capacity_removes_nothing(self) -> None:
        tasks = self.puts(4)
        self.tube.alter(capacity=2)
        assert self.count("total") == 4
        taken = [self.take() for _ in range(3)]
        assert {task.id for task in taken} <= {task.id for task in tasks}
        for number, task in enumerate(taken):
            task.ack()
            assert (self.tube.put(number, timeout=0, **self.lane("more")) is None) == (number < 2)

    def test_waiting_put_gets_room_when_the_capacity_grows(self) -> None:
        self.tube.alter(capacity=1)
        self.put()
        other = self.add_worker()
        first = self.begin(None, "put", "first", timeout=60, **self.lane("x"))
        second = self.begin(other.tube, "put", "second", timeout=60, **self.lane("y"))
        self.tube.alter(capacity=2, max_attempts=4)
        assert (self.result_of(first).id, self.result_of(first).max_attempts) == (1, 4)
        assert self.has_waiters(1)
        self.tube.alter(capacity=None)
        assert self.result_of(second).data == "second"

    def test_waiting_batch_larger_than_the_new_capacity_is_refused(self) -> None:
        self.tube.alter(capacity=3)
        self.puts(3)
        call = self.begin(None, "put_many", [1, 2, 3], timeout=60, **self.lane("batch"))
        self.tube.alter(capacity=2)
        with pytest.raises(InvalidOption, match="items=3: must be at most 2"):
            self.result_of(call)
        assert self.has_waiters(0)
        with self.expect_error(InvalidOption):
            self.tube.put_many([1, 2, 3], **self.lane("batch"))

    # -- lanes ---------------------------------------------------------------------------------------------------------

    @needs("lane")
    def test_alter_can_raise_max_in_flight(self) -> None:
        for number in range(4):
            self.put(number, **self.lane("a"))
        self.take()
        other = self.add_worker()
        call = self.begin(other.tube, timeout=60)
        self.tube.alter(max_in_flight=3)
        assert self.result_of(call).state == "taken"
        assert len(self.drain()) == 1
        self.tube.alter(max_in_flight=None)
        assert self.drain() == []

    @needs("lane")
    def test_lane_starts_no_task_until_below_the_lowered_max_in_flight(self) -> None:
        self.tube.alter(max_in_flight=3)
        for number in range(5):
            self.put(number, **self.lane("a"))
        taken = [self.take() for _ in range(2)]
        self.tube.alter(max_in_flight=1)
        assert self.drain() == []
        taken[0].ack()
        assert self.drain() == []
        taken[1].ack()
        assert len(self.drain()) == 1

    @needs("lane")
    def test_a_shorter_interval_lets_lanes_start_sooner(self) -> None:
        self.tube.alter(interval=100)
        for number in range(3):
            self.put(number, **self.lane("a"))
        self.take().ack()
        self.pass_time(5)
        assert self.drain() == []
        self.tube.alter(interval=10)
        call = self.begin(None, timeout=60)
        self.pass_time(5)
        self.result_of(call).ack()
        assert self.drain() == []
        self.tube.alter(interval=None)
        assert len(self.drain()) == 1

    @needs("lane")
    def test_a_longer_interval_counts_from_the_last_start(self) -> None:
        self.tube.alter(interval=10)
        for number in range(2):
            self.put(number, **self.lane("a"))
        self.take().ack()
        self.tube.alter(interval=30, jitter=0)
        self.pass_time(29)
        assert self.drain() == []
        self.pass_time(1)
        assert len(self.drain()) == 1

    @needs("lane")
    def test_new_interval_applies_after_the_next_start_of_an_idle_lane(self) -> None:
        for number in range(3):
            self.put(number, **self.lane("a"))
        self.take().ack()
        self.tube.alter(interval=10)
        self.take().ack()
        assert self.drain() == []
        self.pass_time(10)
        assert len(self.drain()) == 1

    @needs("lane")
    def test_lane_limits_survive_an_alter_of_the_tube(self) -> None:
        self.tube.lane("own").configure(interval=50, max_in_flight=2)
        self.tube.alter(interval=10, max_in_flight=5)
        seen = {lane.name: (lane.interval, lane.max_in_flight) for lane in self.tube.lanes()}
        assert seen == {"own": (50.0, 2)}
        self.put(**self.lane("tubes"))
        self.take()
        seen = {lane.name: (lane.interval, lane.max_in_flight) for lane in self.tube.lanes()}
        assert seen == {"own": (50.0, 2), "tubes": (10.0, 5)}

    @needs("lane")
    def test_altered_max_in_flight_applies_to_many_lanes_at_once(self) -> None:
        for number in range(120):
            self.put(number, **self.lane(f"lane-{number % 60}"))
        assert len(self.drain()) == 60
        self.tube.alter(max_in_flight=2)
        assert len(self.drain()) == 60

    @needs("lane")
    def test_the_order_of_lanes_cannot_change(self) -> None:
        self.put()
        with self.expect_error(InvalidOption, match=r"order='round_robin': cannot change from 'fifo' after creation"):
            self.tube.alter(order="round_robin", interval=5)
        self.tube.alter(order="fifo")
        self.tube.alter(order=None)
        round_robin = self.create("rounds", order="round_robin")
        for order in ("fifo", None):
            with pytest.raises(InvalidOption, match="order="):
                round_robin.alter(order=order)
        round_robin.alter(order="round_robin", interval=1)
        assert round_robin.options["interval"] == 1.0

    # -- refused changes -----------------------------------------------------------------------------------------------

    def test_alter_checks_all_options_before_any_change(self) -> None:
        before = self.tube.options
        bad = {"capacity": -1, "key_ttl": "soon", "max_attempts": 0, "driver": "fifo", "temporary": True}
        for option, value in bad.items():
            with self.expect_error(InvalidOption, match=option):
                self.tube.alter(**{"max_attempts": 5, "capacity": 7, option: value})
        assert self.tube.options == before

    def test_alter_refuses_options_the_driver_lacks(self) -> None:
        for option in ("pri", "ttl", "ttr", "backoff", "interval", "max_in_flight", "jitter", "colour", "delay", "key"):
            if self.driver_takes(option):
                continue
            for value in (1, None):
                with self.expect_error(OptionNotSupported):
                    self.tube.alter(capacity=7, **{option: value})
        assert self.options_of(self.tube) == {}

    def driver_takes(self, option: str) -> bool:
        """Return True if a tube of this driver may have the option."""
        knob = {"backoff": "delay", "interval": "lane", "max_in_flight": "lane", "jitter": "lane"}.get(option, option)
        return option != "delay" and self.knows(knob)

    def test_a_tube_that_is_dropped_is_not_altered(self) -> None:
        other = self.add_worker()
        self.tube.drop()
        for tube in (self.tube, other.tube):
            with pytest.raises(TubeNotFound):
                tube.alter(capacity=5)
        assert self.create("contract").options == self.queue.create_tube("new", self.driver, **self.options).options

    def test_tube_of_a_closed_queue_cannot_be_altered(self) -> None:
        other = self.add_worker()
        other.queue.close()
        with pytest.raises(QueueClosed):
            other.tube.alter(capacity=5)
        assert self.options_of(self.tube) == {}

    # -- create_tube for an existing tube ------------------------------------------------------------------------------

    def test_create_of_an_existing_tube_raises_by_default(self) -> None:
        for options in ({}, {"if_exists": "raise"}):
            with self.expect_error(TubeExists):
                self.create("contract", **options)

    def test_if_exists_keep_returns_the_tube_unchanged(self) -> None:
        task = self.put()
        self.tube.alter(capacity=5)
        kept = self.create("contract", if_exists="keep", capacity=9, max_attempts=2)
        assert kept.peek(task.id) == task
        assert self.options_of(kept) == {"capacity": 5}

    def test_if_exists_update_sets_exactly_the_given_options(self) -> None:
        task = self.put()
        self.tube.alter(capacity=5, key_ttl=3)
        updated = self.create("contract", if_exists="update", max_attempts=2, capacity=8)
        assert updated.peek(task.id) == task
        assert self.options_of(updated) == {"capacity": 8, "max_attempts": 2}
        assert self.put().max_attempts == 2
        assert self.options_of(self.tube) == {"capacity": 8, "max_attempts": 2}
        assert self.options_of(self.create("contract", if_exists="update")) == {}

    def test_if_exists_keep_and_update_create_a_missing_tube(self) -> None:
        for how in ("keep", "update"):
            assert self.options_of(self.create(how, if_exists=how, capacity=3)) == {"capacity": 3}

    def test_if_exists_keep_and_update_refuse_another_driver(self) -> None:
        other = Driver("another", order="-id") if self.knobs.name == "fifo" else "fifo"
        for how in ("keep", "update"):
            with self.expect_error(TubeExists, match=f"with driver '{self.knobs.name}', not "):
                self.queue.create_tube("contract", other, if_exists=how)

    def test_if_not_exists_compares_the_current_options(self) -> None:
        self.tube.alter(capacity=5)
        assert self.create("contract", if_not_exists=True, capacity=5).name == "contract"
        with self.expect_error(TubeExists, match="with capacity=5, not None"):
            self.create("contract", if_not_exists=True)

    def test_if_exists_update_with_bad_option_changes_nothing(self) -> None:
        with self.expect_error(InvalidOption):
            self.create("contract", if_exists="update", capacity=5, max_attempts=0)
        with self.expect_error(OptionNotSupported):
            self.create("contract", if_exists="update", capacity=5, colour="red")
        assert self.options_of(self.tube) == {}

    @pytest.mark.parametrize("how", ["replace", "", True, 1, ["keep"]])
    def test_unknown_if_exists_value_is_refused(self, how: object) -> None:
        with self.expect_error(InvalidOption):
            self.create("contract", if_exists=how)

    def test_if_exists_and_if_not_exists_together_are_refused(self) -> None:
        for how in ("raise", "keep", "update"):
            with self.expect_error(InvalidOption):
                self.create("contract", if_exists=how, if_not_exists=True)
        assert self.create("contract", if_exists="keep", if_not_exists=False).name == "contract"

    def test_overview_includes_the_tube_options(self) -> None:
        self.tube.alter(capacity=5)
        seen = self.queue.admin.overview()["contract"].options
        assert {name: value for name, value in seen.items() if name not in self.options} == {"capacity": 5}
