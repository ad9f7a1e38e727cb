"""Leases: the ownership of a taken task as text, for other sessions and processes."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

from tests.contract.bench import Bench, lacks, needs
from tubes import InvalidOption, Lease, OptionNotSupported, Task, TaskNotTaken, Tube

if TYPE_CHECKING:
    from collections.abc import Callable

#: All methods that accept a task.
METHODS: dict[str, Callable[[Tube, str], Task]] = {
    "ack": lambda tube, task: tube.ack(task),
    "release": lambda tube, task: tube.release(task),
    "bury": lambda tube, task: tube.bury(task, "by a lease"),
    "delete": lambda tube, task: tube.delete(task),
    "peek": lambda tube, task: tube.peek(task),
    "update": lambda tube, task: tube.update(task, data="by a lease"),
    "kick": lambda tube, task: tube.kick(task=task),
}
OF_MANY = ("ack_many", "release_many", "delete_many")


class Leases(Bench):
    """Leases."""

    def is_stale(self, tube: Tube, lease: str) -> bool:
        """Return True if every method refuses this lease."""
        for method in METHODS.values():
            with self.expect_error(TaskNotTaken, match="^the lease of task .* is over"):
                method(tube, lease)
        for name in OF_MANY:
            with self.expect_no_change():
                assert list(getattr(tube, name)([lease]).values()) == [False]
        return True

    def test_lease_works_in_another_session_like_the_task_in_its_own(self) -> None:
        states = {"ack": "done", "delete": "done", "release": "ready", "bury": "buried"}
        other = self.add_worker()
        for name, method in METHODS.items():
            task = self.put_and_take()
            done = method(other.tube, str(task.lease))
            assert (done.id, str(done.state)) == (task.id, states.get(name, "taken"))
            assert self.state(task) == states.get(name, "taken")
            self.tube.truncate()

    def test_lease_is_text_that_names_its_tube_and_task(self) -> None:
        task = self.put_and_take()
        lease = task.lease
        assert (lease.tube, lease.id) == (self.tube.name, task.id)
        assert str(lease).isascii()
        for copy in (Lease(str(lease)), json.loads(json.dumps(lease)), pickle.loads(pickle.dumps(lease))):
            assert (copy, Lease(copy).id, hash(copy)) == (lease, lease.id, hash(lease))
        assert self.tube.ack(json.loads(json.dumps(lease))).state == "done"

    def test_batch_calls_accept_leases_tasks_and_ids_together(self) -> None:
        first, second = self.add_worker(), self.add_worker()
        for name in OF_MANY:
            self.puts(3)
            by_first, by_second, mine = self.take(first.tube), self.take(second.tube), self.take()
            unknown_id = mine.id + 1000
            done = getattr(self.tube, name)([mine, by_second.lease, unknown_id, str(by_first.lease)])
            assert done == {mine.id: True, by_second.id: True, unknown_id: False, by_first.id: True}
            self.tube.truncate()

    @needs("ttr")
    def test_lease_allows_other_sessions_to_touch_and_renew(self) -> None:
        task, other = self.put_and_take(ttr=5), self.add_worker()
        assert other.tube.touch(task.lease, 5).ttr == 10
        assert other.tube.touch_many([task.lease], 60) == {task.id: True}
        self.clock.advance(59)
        assert self.state(task) == "taken"
        assert self.tube.ack(task).state == "done"

    @lacks("ttr")
    def test_touch_by_lease_is_refused_where_the_driver_has_no_ttr(self) -> None:
        lease, other = self.put_and_take().lease, self.add_worker()
        with self.expect_error(OptionNotSupported):
            other.tube.touch(lease, 5)

    @needs("delay")
    def test_lease_can_be_released_with_a_delay(self) -> None:
        lease, other = self.put_and_take().lease, self.add_worker()
        assert other.tube.release(lease, delay=5).state == "delayed"
        assert self.is_stale(other.tube, lease)

    def test_a_lease_ends_with_its_take(self) -> None:
        other = self.add_worker()
        for end in ("ack", "release", "bury", "delete", "release_all", "truncate"):
            task = self.put_and_take()
            lease = task.lease
            owner = self.tube.admin if end == "release_all" else self.tube
            getattr(owner, end)(*(() if end in ("release_all", "truncate") else (task,)))
            assert self.is_stale(other.tube, lease)
            self.tube.truncate()

    def test_stale_lease_is_refused_even_if_the_task_is_taken_again(self) -> None:
        task, other = self.put_and_take(), self.add_worker()
        lease = task.lease
        self.tube.release(task)
        again = self.take()
        assert again.id == lease.id
        assert self.is_stale(self.tube, lease)
        self.tube.release(again)
        theirs = self.take(other.tube)
        assert self.is_stale(self.tube, lease)
        assert other.tube.ack(theirs).state == "done"

    @needs("ttr")
    def test_a_lease_ends_with_the_ttr(self) -> None:
        lease = self.put_and_take(ttr=5).lease
        self.clock.advance(4.999)
        assert self.tube.peek(lease).state == "taken"
        self.clock.advance(0.001)
        assert self.is_stale(self.add_worker().tube, lease)

    def test_a_lease_ends_with_its_session(self) -> None:
        worker = self.add_worker()
        self.put()
        lease = self.take(worker.tube).lease
        worker.queue.close()
        assert self.is_stale(self.tube, lease)

    def test_lease_of_a_detached_session_is_valid_until_session_ttl(self) -> None:
        worker, heir = self.add_worker(), self.add_worker()
        tasks = self.puts(2)
        leases = [self.take(worker.tube).lease for _ in tasks]
        worker.queue.admin.detach()
        self.clock.advance(self.session_ttl - 0.1)
        assert heir.tube.ack(leases[0]).state == "done"
        self.clock.advance(0.1)
        assert self.is_stale(heir.tube, leases[1])

    def test_lease_is_valid_while_any_queue_shares_its_session(self) -> None:
        first, second = self.add_worker(), self.add_worker()
        uuid = "6f9e4c0a-3b1d-4e57-8c2f-0d9a7b6e5f41"
        assert first.queue.admin.identify(uuid, create=True) == second.queue.admin.identify(uuid, create=True)
        self.put()
        lease = self.take(first.tube).lease
        first.queue.close()
        self.clock.advance(2 * self.session_ttl)
        assert self.tube.update(lease, data="still").data == "still"
        assert second.tube.ack(lease).data == "still"

    def test_an_updated_task_keeps_its_lease(self) -> None:
        task = self.put_and_take()
        lease = task.lease
        self.tube.update(task.id, data="new")
        assert task.lease == lease
        assert self.add_worker().tube.ack(lease).data == "new"

    def test_only_a_task_that_was_taken_has_a_lease(self) -> None:
        put = self.put()
        task = self.take()
        acked = self.tube.ack(task)
        buried = self.put_and_bury()
        for other in (put, acked, buried, self.tube.peek(buried.id), task):
            with self.expect_error(TaskNotTaken):
                other.lease  # noqa: B018

    def test_lease_of_a_task_peeked_by_another_session_is_refused(self) -> None:
        task, other = self.put_and_take(), self.add_worker()
        seen = other.tube.peek(task.id)
        with self.expect_error(TaskNotTaken):
            other.tube.ack(seen.lease)
        assert self.tube.ack(task).state == "done"

    def test_a_lease_of_another_tube_is_refused(self) -> None:
        elsewhere = self.create("elsewhere")
        self.put(tube=elsewhere)
        lease = self.take(elsewhere).lease
        self.put_and_take()
        assert self.refuses(lambda name: METHODS[name](self.tube, lease), *METHODS)
        assert self.refuses(lambda name: getattr(self.tube, name)([lease]), *OF_MANY)

    def test_a_lease_of_a_dropped_tube_is_refused_by_its_successor(self) -> None:
        lease = self.put_and_take().lease
        self.tube.drop(force=True)
        self.tube = self.create("contract")
        assert self.put_and_take().id == lease.id
        assert self.refuses(lambda name: METHODS[name](self.tube, lease), *METHODS)

    def test_malformed_lease_text_is_refused(self) -> None:
        lease = str(self.put_and_take().lease)
        middle = len(lease) // 2
        swapped = "A" if lease[middle] != "A" else "B"
        cut = (lease[:-1], lease[1:], lease[:middle], lease + "A", lease + "=", f" {lease}", lease.swapcase())
        damaged = (lease[:middle] + swapped + lease[middle + 1 :], f"{lease[:middle]}é{lease[middle + 1 :]}")
        for text in (*cut, *damaged, "2" + lease[1:], "", "0", "1", "lease", "1" + "A" * 60):
            with self.expect_error(InvalidOption, match="lease"):
                self.tube.ack(text)
            with self.expect_error(InvalidOption, match="lease"):
                Lease(text)
        for id in ("7", "17", "1", "9" * 20):
            with self.expect_error(InvalidOption, match="an id must be an int"):
                self.tube.ack(id)
        assert self.tube.ack(lease).state == "done"
