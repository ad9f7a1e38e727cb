"""Random runs of every driver and of an independent model (`model.py`)."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.lockstep import Lockstep
from tubes import Driver
from tubes.drivers.fifo import Fifo
from tubes.drivers.fifottl import FifoTtl
from tubes.drivers.limfifottl import LimFifoTtl
from tubes.drivers.options import WITH_LANE
from tubes.drivers.utube import Utube
from tubes.drivers.utubettl import UtubeTtl

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.drivers import Ranked


def zigzag(task: Ranked) -> float:
    """An order without a knob."""
    return (task.id * 7 + task.pri) % 5


DRIVERS = {
    driver.name: driver
    for driver in (
        Fifo,
        FifoTtl,
        LimFifoTtl,
        Utube,
        UtubeTtl,
        Driver("lifo", order="-id"),
        Driver("zigzag", options={"pri", "ttl", "utube"}, lane="utube", rank=zigzag),
        Driver(
            "tenants",
            options={"tenant", "pri", "ttl", "ttr", "delay", "capacity", "timeout"},
            order="-pri,-id",
            lane="tenant",
        ),
    )
}
every_driver = pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)

SPANS = [None, None, 0.1, 0.3, 0.5, 1, 2.5, 4]
VALUES: dict[str, list[Any]] = {
    "pri": [None, None, 0, 1, 2, 3],
    "ttl": [*SPANS, 0],
    "ttr": [*SPANS, 0],
    "delay": [None, None, None, 0, 0.2, 0.7, 1],
    "timeout": [None, 0, 0.4, 2],
    "utube": [None, "a", "b", "c", "nil"],
    "tenant": ["x", "y", None],
    "keep_done": [None, None, 0, 0.4, 2],
}
OF_TUBES: dict[str, list[Any]] = {
    "pri": [None, 1],
    "ttl": [None, None, 0.9, 3, 60],
    "ttr": [None, None, 0.4, 2],
    "capacity": [None, 1, 3, 5],
    "lane_capacity": [None, None, None, 1, 2, 4],
    "max_in_flight": [None, None, 1, 2, 3],
    "interval": [None, None, 0, 0.3, 1],
    "interval_from": [None, "take", "ack"],
    "jitter": [None, 0.5, 1],
    "lane_burst": [None, None, 1, 3],
    "order": [None, "fifo", "round_robin"],
    "keep_done": [None, None, 0.7],
    "keep_done_max": [None, None, 1, 3],
}
#: The limits of a lane and their values.
OF_LANES: dict[str, list[Any]] = {
    "interval": [None, 0, 0.2, 1.5],
    "max_in_flight": [None, 1, 2, 4],
    "interval_from": [None, "take", "ack"],
    "capacity": [None, 0, 1, 3],
    "burst": [None, 1, 2, 4],
    "weight": [None, 1, 2, 5],
}
LANES = ["a", "b", "x", "nil"]
BLOCKS = [0, 0, 0.1, 0.5, 2]
REASONS = [None, "429", "down"]
NUMBERS = st.integers(0, 63)
TENTHS = [1, 1, 2, 3, 5, 10, 40]


class Machine(RuleBasedStateMachine):
    """Rules for hypothesis, which shrinks failures to the shortest run."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.driver = driver

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        options = {name: data.draw(st.sampled_from(OF_TUBES[name]), name) for name in mine(self.driver, OF_TUBES)}
        self.run = Lockstep(self.driver, drop_omitted(options))

    @rule(worker=NUMBERS, data=st.data())
    def put(self, worker: int, data: st.DataObject) -> None:
        options = {name: data.draw(st.sampled_from(VALUES[name]), name) for name in mine(self.driver, VALUES)}
        self.run.put(worker, drop_omitted(options))

    @rule(worker=NUMBERS, option=st.sampled_from([*VALUES, "capacity", "colour"]))
    def put_with_an_option(self, worker: int, option: str) -> None:
        if option not in (self.driver.options - {"capacity"}) | {"timeout", "keep_done", self.driver.lane and "utube"}:
            self.run.put(worker, {option: 1})

    @rule(worker=NUMBERS, count=st.integers(0, 3), timeout=st.sampled_from([None, 0.4, 2]), data=st.data())
    def put_many(self, worker: int, count: int, timeout: float | None, data: st.DataObject) -> None:
        names = [name for name in mine(self.driver, VALUES) if name != "timeout"]
        drawn = [{name: data.draw(st.sampled_from(VALUES[name]), name) for name in names} for _ in range(count)]
        self.run.put_many(worker, [drop_omitted(options) for options in drawn], timeout)

    @rule(worker=NUMBERS, limit=st.integers(1, 4))
    def take_many(self, worker: int, limit: int) -> None:
        self.run.take_many(worker, limit)

    @rule(worker=NUMBERS, tasks=st.lists(NUMBERS, max_size=4), method=st.sampled_from(["ack_many", "delete_many"]))
    def do_to_many(self, worker: int, tasks: list[int], method: str) -> None:
        getattr(self.run, method)(worker, tasks)

    @rule(worker=NUMBERS, tasks=st.lists(NUMBERS, max_size=4), delay=st.sampled_from([None, None, 0, 0.3, 1]))
    def release_many(self, worker: int, tasks: list[int], delay: float | None) -> None:
        self.run.release_many(worker, tasks, delay)

    @rule(worker=NUMBERS)
    def take(self, worker: int) -> None:
        self.run.take(worker)

    @rule(worker=NUMBERS, timeout=st.sampled_from([None, 0.1, 0.5, 1, 3]))
    def wait(self, worker: int, timeout: float | None) -> None:
        self.run.wait(worker, timeout)

    @rule(worker=NUMBERS, task=NUMBERS)
    def ack(self, worker: int, task: int) -> None:
        self.run.ack(worker, task)

    @rule(worker=NUMBERS, task=NUMBERS, delay=st.sampled_from([None, None, 0, 0.3, 1]))
    def release(self, worker: int, task: int, delay: float | None) -> None:
        self.run.release(worker, task, delay)

    @rule(worker=NUMBERS, task=NUMBERS, seconds=st.sampled_from([0, 0.2, 1]))
    def touch(self, worker: int, task: int, seconds: float) -> None:
        self.run.touch(worker, task, seconds)

    @rule(worker=NUMBERS, task=NUMBERS, method=st.sampled_from(["bury", "delete", "cancel", "peek"]))
    def do(self, worker: int, task: int, method: str) -> None:
        getattr(self.run, method)(worker, task)

    @rule(worker=NUMBERS, count=st.integers(0, 4))
    def kick(self, worker: int, count: int) -> None:
        self.run.kick(worker, count)

    @precondition(lambda self: self.driver.lane)
    @rule(
        worker=NUMBERS,
        name=st.sampled_from(LANES),
        seconds=st.sampled_from(BLOCKS),
        extend=st.booleans(),
        reason=st.sampled_from(REASONS),
    )
    def block(self, worker: int, name: str, seconds: float, extend: bool, reason: str | None) -> None:
        self.run.block(worker, name, seconds, extend, reason)

    @precondition(lambda self: self.driver.lane)
    @rule(worker=NUMBERS, name=st.sampled_from(LANES), limit=st.sampled_from([*OF_LANES]), data=st.data())
    def configure(self, worker: int, name: str, limit: str, data: st.DataObject) -> None:
        self.run.configure(worker, name, {limit: data.draw(st.sampled_from(OF_LANES[limit]), limit)})

    @rule(tenths=st.sampled_from(TENTHS))
    def advance(self, tenths: int) -> None:
        self.run.advance(tenths)

    @rule(worker=NUMBERS, lost=st.booleans())
    def leave(self, worker: int, lost: bool) -> None:
        self.run.leave(worker, lost)

    @rule(worker=NUMBERS, session=NUMBERS)
    def identify(self, worker: int, session: int) -> None:
        self.run.identify(worker, session)

    @rule(worker=NUMBERS, seconds=st.sampled_from([None, 0, 0.2, 1]))
    def pause(self, worker: int, seconds: float | None) -> None:
        self.run.pause(worker, seconds)

    @rule(worker=NUMBERS)
    def resume(self, worker: int) -> None:
        self.run.resume(worker)

    @rule(worker=NUMBERS, method=st.sampled_from(["release_all", "truncate"]))
    def do_to_all(self, worker: int, method: str) -> None:
        getattr(self.run, method)(worker)

    @rule(worker=NUMBERS, force=st.booleans())
    def drop(self, worker: int, force: bool) -> None:
        self.run.drop(worker, force)

    @invariant()
    def store_equals_model(self) -> None:
        self.run.compare()

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.close()


@pytest.mark.full
@every_driver
def test_short_random_runs_match_the_model(driver: Driver) -> None:
    run_state_machine_as_test(
        cast(Any, lambda: Machine(driver)),
        settings=settings(
            max_examples=50,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


#: The number of calls in a long run, and their weights.
CALLS = 2_000
#: `make soak-faults` uses other seeds in each round.
SEEDS = [int(os.environ.get("TUBES_SEED", "1"))]
WEIGHTS: dict[str, tuple[int, Callable[[Lockstep, Random], object]]] = {
    "take": (22, lambda run, rng: run.take(rng.randrange(64))),
    "take_many": (2, lambda run, rng: run.take_many(rng.randrange(64), rng.randrange(1, 5))),
    "ack_many": (1, lambda run, rng: run.ack_many(rng.randrange(64), some(rng))),
    "release_many": (1, lambda run, rng: run.release_many(rng.randrange(64), some(rng), rng.choice([None, 0, 0.3, 1]))),
    "delete_many": (1, lambda run, rng: run.delete_many(rng.randrange(64), some(rng)[:2])),
    "wait": (4, lambda run, rng: run.wait(rng.randrange(64), rng.choice([None, 0.1, 0.5, 1, 3]))),
    "ack": (14, lambda run, rng: run.ack(rng.randrange(64), rng.randrange(256))),
    "release": (10, lambda run, rng: run.release(rng.randrange(64), rng.randrange(256), rng.choice([None, 0, 0.3, 1]))),
    "touch": (4, lambda run, rng: run.touch(rng.randrange(64), rng.randrange(256), rng.choice([0, 0.2, 1]))),
    "bury": (8, lambda run, rng: run.bury(rng.randrange(64), rng.randrange(256))),
    "kick": (5, lambda run, rng: run.kick(rng.randrange(64), rng.randrange(4))),
    "delete": (4, lambda run, rng: run.delete(rng.randrange(64), rng.randrange(256))),
    "cancel": (2, lambda run, rng: run.cancel(rng.randrange(64), rng.randrange(256))),
    "peek": (2, lambda run, rng: run.peek(rng.randrange(64), rng.randrange(256))),
    "advance": (12, lambda run, rng: run.advance(rng.choice(TENTHS))),
    "leave": (1, lambda run, rng: run.leave(rng.randrange(64), rng.random() < 0.5)),
    "identify": (1, lambda run, rng: run.identify(rng.randrange(64), rng.randrange(64))),
    "pause": (1, lambda run, rng: run.pause(rng.randrange(64), rng.choice([None, 0, 0.2, 0.5, 1]))),
    "resume": (1, lambda run, rng: run.resume(rng.randrange(64))),
    "release_all": (1, lambda run, rng: run.release_all(rng.randrange(64))),
}  # fmt: skip
OF_LANES_TOO: list[Callable[[Lockstep, Random], object]] = [
    lambda run, rng: run.block(
        rng.randrange(64), rng.choice(LANES), rng.choice(BLOCKS), rng.random() < 0.5, rng.choice(REASONS)
    ),
    lambda run, rng: run.configure(
        rng.randrange(64),
        rng.choice(LANES),
        {name: rng.choice(values) for name, values in OF_LANES.items() if rng.random() < 0.6},
    ),
]
SELDOM: list[Callable[[Lockstep, Random], object]] = [
    lambda run, rng: run.truncate(rng.randrange(64)),
    lambda run, rng: run.drop(rng.randrange(64), rng.random() < 0.5),
]


@pytest.mark.sample(1)
@every_driver
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_long_random_runs_match_the_model(driver: Driver, seed: int) -> None:
    run_with_model(driver, seed, "memory://", CALLS)


def run_with_model(driver: Driver, seed: int, url: str, calls: int) -> None:
    """Run random calls on a store and on the model."""
    rng = Random(seed)
    run = Lockstep(driver, drop_omitted({name: rng.choice(OF_TUBES[name]) for name in mine(driver, OF_TUBES)}), url)
    # The number of tasks and priorities differs between runs.
    crowd = rng.choice([4, 12, 40, 120])
    values = {**VALUES, "pri": rng.choice([VALUES["pri"], [None, *range(100)]])}
    names, weights = list(WEIGHTS), [weight for weight, _ in WEIGHTS.values()]
    try:
        for number in range(calls):
            if rng.random() < 0.5 * (1 - len(run.model.tasks) / crowd):
                run.put(
                    rng.randrange(64), drop_omitted({name: rng.choice(values[name]) for name in mine(driver, values)})
                )
            elif rng.random() < 0.05 * (1 - len(run.model.tasks) / crowd):
                names_of_put = [name for name in mine(driver, values) if name != "timeout"]
                batch = [
                    drop_omitted({name: rng.choice(values[name]) for name in names_of_put})
                    for _ in range(rng.randrange(4))
                ]
                run.put_many(rng.randrange(64), batch, rng.choice([None, 0.4, 2]))
            elif rng.random() < 0.002:
                rng.choice(SELDOM)(run, rng)
            elif driver.lane and rng.random() < 0.04:
                rng.choice(OF_LANES_TOO)(run, rng)
            else:
                WEIGHTS[rng.choices(names, weights)[0]][1](run, rng)
            run.compare(all_tasks=len(run.model.tasks) < 10 or number % 5 == 0)
    finally:
        run.close()


def some(rng: Random) -> list[int]:
    """Return the numbers of some tasks."""
    return [rng.randrange(256) for _ in range(rng.randrange(5))]


def mine(driver: Driver, values: dict[str, list[Any]]) -> list[str]:
    """Return the options that the driver supports."""
    known = driver.options | (WITH_LANE if driver.lane else frozenset()) | {"keep_done", "keep_done_max"}
    return [name for name in values if name in known]


def drop_omitted(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without omitted ones; None counts as omitted too, and a burst without an interval."""
    omitted = {"lane_burst"} if not options.get("interval") else set[str]()
    return {
        name: value for name, value in options.items() if (value is not None or name == "utube") and name not in omitted
    }
