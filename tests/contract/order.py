"""The order of tasks: the driver's order gives each task its place for life."""

from __future__ import annotations

import pytest

from tests.contract.bench import Bench, needs
from tests.contract.ways import RETURNING, Way
from tubes import Task


class Order(Bench):
    """Places."""

    def test_tasks_come_in_the_drivers_order(self) -> None:
        assert self.drain_all(self.puts(7))

    @needs("pri")
    def test_tasks_of_many_priorities_come_in_the_drivers_order(self) -> None:
        pris = [3, 1, 2, 3, 0, 2, 1, 4294967295, 0, 7]
        assert self.drain_all(self.sort_as_taken([self.put(pri=pri) for pri in pris]))

    @needs("pri")
    def test_tasks_of_a_hundred_priorities_come_in_the_drivers_order(self) -> None:
        assert self.drain_all(self.sort_as_taken([self.put(pri=number * 37 % 101) for number in range(101)]))

    @needs("pri")
    def test_tube_pri_is_the_default_for_its_tasks(self) -> None:
        self.tube = self.create("prior", pri=2)
        tasks = [self.put(pri=1), self.put(), self.put(pri=3), self.put(pri=2)]
        assert [task.pri for task in tasks] == [1, 2, 3, 2]
        assert self.drain_all(self.sort_as_taken(tasks))

    @pytest.mark.parametrize("way", RETURNING.values(), ids=RETURNING)
    def test_a_task_returns_to_its_own_place(self, way: Way) -> None:
        self.require(way.needs)
        tasks = self.sort_as_taken([self.put(**way.options) for _ in range(4)])
        worker = self.add_worker()
        held = self.take(worker.tube)
        assert held.id == tasks[0].id
        way.go(self, worker, held)
        assert self.drain_all(tasks)

    def test_tasks_regain_their_places_in_any_order_of_return(self) -> None:
        tasks = self.puts(5)
        held = [self.take() for _ in range(4)]
        for index in (2, 0, 3, 1):
            self.tube.release(held[index])
        assert self.drain_all(tasks)

    @needs("pri")
    def test_released_task_is_placed_by_its_priority(self) -> None:
        first = self.put_and_take(pri=5)
        others = [self.put(pri=pri) for pri in (4, 6, 5)]
        self.tube.release(first)
        assert self.drain_all(self.sort_as_taken([first, *others]))

    def test_kick_takes_buried_tasks_in_queue_order(self) -> None:
        tasks = self.puts(6)
        for index in (4, 0, 5, 2, 1, 3):
            self.tube.bury(tasks[index])
        self.tube.select("buried", limit=2).kick()
        assert [self.state(task) for task in tasks] == ["ready", "ready", "buried", "buried", "buried", "buried"]
        self.tube.select("buried", limit=9).kick()
        assert self.drain_all(tasks)

    def test_task_kicked_many_times_is_taken_once(self) -> None:
        tasks = self.puts(3)
        for _ in range(5):
            self.tube.bury(tasks[1])
            self.tube.select("buried", limit=1).kick()
        assert self.drain_all(tasks)

    def test_a_deleted_task_leaves_no_gap(self) -> None:
        tasks = self.puts(5)
        for index in (0, 2, 4):
            self.tube.delete(tasks[index])
        assert self.drain_all([tasks[1], tasks[3]])

    def test_order_holds_while_tasks_come_and_go(self) -> None:
        expected = self.puts(4)
        for round in range(30):
            first = self.take()
            assert first.id == expected[0].id
            if round % 3 == 0:
                self.tube.release(first)
            else:
                self.tube.ack(first)
                del expected[0]
            expected = self.sort_as_taken([*expected, self.put(**({"pri": round % 4} if self.knows("pri") else {}))])
        assert self.drain_all(expected)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def drain_all(self, tasks: list[Task]) -> bool:
        """Return True if exactly these tasks can be taken, in this order."""
        drained, expected = self.drain(), [task.id for task in tasks]
        assert drained == expected
        return True
