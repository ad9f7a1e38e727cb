"""Lanes: at most one task of a lane is taken at a time."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, Worker, needs
from tests.contract.ways import LEAVING, RETURNING, Way
from tubes import InvalidOption, Item, Task


@needs("lane")
class Lanes(Bench):
    """Lanes, for drivers that have them."""

    def pair(self, **options: object) -> tuple[Worker, Task, Task]:
        """Put two tasks into one lane; return a worker, the task that it has taken, and the other task."""
        tasks = self.sort_as_taken([self.put(**self.lane("x"), **options) for _ in range(2)])
        worker = self.add_worker()
        held = self.take(worker.tube)
        assert held.id == tasks[0].id
        return worker, held, tasks[1]

    def test_a_task_knows_its_lane(self) -> None:
        assert self.put(**self.lane("x")).utube == "x"
        assert self.take().utube == "x"

    def test_utube_option_names_the_lane_in_each_driver(self) -> None:
        assert self.tube.put(0, utube="x").utube == "x"
        many = self.tube.put_many([1, Item(2, utube="y"), Item(3, **self.lane("z"))], utube="x")
        assert [task.utube for task in many] == ["x", "y", "z"]
        assert self.tube.put(4, **{"utube": None, **self.lane("z")}).utube == "z"

    @pytest.mark.parametrize("method", ["put", "put_many", "waiting put"])
    def test_first_put_without_a_lane_is_logged(self, method: str, caplog: pytest.LogCaptureFixture) -> None:
        tube = self.create("new")
        tube.put(0, **self.lane("x"))
        tube.put_many([Item(0, **self.lane("x")), 1], **self.lane(""))
        assert not caplog.records
        for _ in range(2):
            if method == "put_many":
                tube.put_many([Item(0, **self.lane("x")), 1])
            else:
                tube.put(1, **({"timeout": 9} if method == "waiting put" else {}))
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert f"tube 'new' has lanes, but a task was put without {self.knobs.lane}=" in record.getMessage()

    def test_both_names_of_the_lane_option_together_are_refused(self) -> None:
        if self.knobs.lane == "utube":
            pytest.skip("the driver has no other name for it")
        with self.expect_error(InvalidOption):
            self.tube.put(0, utube="x", **self.lane("x"))

    def test_only_one_task_of_a_lane_is_taken(self) -> None:
        _, _, neighbour = self.pair()
        assert self.tube.take(timeout=0) is None
        assert (self.state(neighbour), self.count("ready")) == ("ready", 1)

    def test_a_busy_lane_is_busy_for_its_own_worker_too(self) -> None:
        worker, _, _ = self.pair()
        assert worker.tube.take(timeout=0) is None

    def test_busy_lane_does_not_hold_back_other_lanes(self) -> None:
        self.pair()
        other = self.put(**self.lane("y"))
        assert self.drain() == [other.id]

    @pytest.mark.parametrize("way", LEAVING.values(), ids=LEAVING)
    def test_task_that_leaves_its_lane_frees_the_next_task(self, way: Way) -> None:
        self.require(way.needs)
        worker, held, neighbour = self.pair()
        way.go(self, worker, held)
        assert self.drain() == [neighbour.id]

    @pytest.mark.parametrize("way", RETURNING.values(), ids=RETURNING)
    def test_returned_task_is_first_in_its_lane_again(self, way: Way) -> None:
        self.require(way.needs)
        worker, held, _ = self.pair(**way.options)
        way.go(self, worker, held)
        assert self.drain() == [held.id]

    def test_a_buried_task_does_not_hold_its_lane(self) -> None:
        self.put_and_bury(**self.lane("x"))
        task = self.put(**self.lane("x"))
        assert self.drain() == [task.id]

    @needs("delay")
    def test_a_delayed_task_does_not_hold_its_lane(self) -> None:
        self.put(**self.lane("x"), delay=5)
        task = self.put(**self.lane("x"))
        assert self.drain() == [task.id]

    def test_kicked_task_in_a_busy_lane_waits_as_ready(self) -> None:
        buried = self.put_and_bury(**self.lane("x"))
        held = self.put_and_take(**self.lane("x"))
        self.tube.select("buried", limit=1).kick()
        assert self.state(buried) == "ready"
        assert self.tube.take(timeout=0) is None
        self.tube.ack(held)
        assert self.drain() == [buried.id]

    @needs("pri")
    def test_better_task_put_meanwhile_precedes_the_returned_task(self) -> None:
        held = self.put_and_take(**self.lane("x"), pri=5)
        others = [self.put(**self.lane("x"), pri=pri) for pri in (1, 9)]
        self.tube.release(held)
        assert self.drain() == [self.sort_as_taken([held, *others])[0].id]

    def test_tasks_of_all_lanes_follow_one_order(self) -> None:
        tasks = self.sort_as_taken([self.put(**self.lane(name)) for name in "xxyxzyzz"])
        free = {name: next(task for task in tasks if task.utube == name) for name in "xyz"}
        assert self.drain() == [task.id for task in self.sort_as_taken(list(free.values()))]

    def test_lane_is_drained_in_order(self) -> None:
        tasks = self.sort_as_taken([self.put(**self.lane("x")) for _ in range(20)])
        assert [self.tube.ack(self.take()).id for _ in range(20)] == [task.id for task in tasks]

    def test_delete_inside_a_lane_keeps_the_order_of_other_tasks(self) -> None:
        tasks = self.sort_as_taken([self.put(**self.lane("x")) for _ in range(6)])
        for index in (0, 3, 4):
            self.tube.delete(tasks[index])
        assert [self.tube.ack(self.take()).id for _ in range(3)] == [tasks[index].id for index in (1, 2, 5)]

    def test_tasks_without_lane_share_the_lane_nil(self) -> None:
        tasks = [self.tube.put(0), self.tube.put(1), self.put(**self.lane("nil"))]
        assert [task.utube for task in tasks] == [None, None, "nil"]
        assert self.drain() == [self.sort_as_taken(tasks)[0].id]

    def test_null_lane_is_the_default_lane(self) -> None:
        first = self.sort_as_taken([self.tube.put(0), self.put(**self.lane(None))])[0]
        assert self.drain() == [first.id]

    def test_integer_and_boolean_lanes_become_strings(self) -> None:
        for lane, written in ((1, "1"), (-7, "-7"), (True, "true"), (False, "false")):
            assert self.put(**self.lane(lane)).utube == written
            self.put(**self.lane(written))
            assert len(self.drain()) == 1

    def test_any_string_names_a_lane(self) -> None:
        for lane in ("", "a b", "ä:{x}", "x" * 1000, "0"):
            tasks = [self.put(**self.lane(name)) for name in (lane, lane, lane + "'")]
            assert [task.utube for task in tasks] == [lane, lane, lane + "'"]
            assert len(self.drain()) == 2

    def test_lane_of_another_type_is_refused(self) -> None:
        assert self.refuses(lambda name: self.put(**self.lane(name)), 1.5, b"x", ["x"], ("x",))
