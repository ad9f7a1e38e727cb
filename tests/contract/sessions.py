"""Sessions: their ends, sharing them, and the tasks that they leave."""

from __future__ import annotations

from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from tests.contract.bench import Bench, Worker, needs
from tubes import QueueClosed, SessionNotFound, Task, TaskNotTaken


class Sessions(Bench):
    """Sessions."""

    def worker(self, **options: object) -> tuple[Worker, Task]:
        """Open another session; return it with a new task that it has taken."""
        worker = self.add_worker()
        self.put(**options)
        return worker, self.take(worker.tube)

    def test_a_closed_session_releases_its_tasks_and_no_others(self) -> None:
        mine = self.put_and_take()
        worker, theirs = self.worker()
        buried = self.put_and_bury()
        worker.queue.close()
        assert [self.state(task) for task in (mine, theirs, buried)] == ["taken", "ready", "buried"]
        assert [self.count(name) for name in ("release", "ttr")] == [1, 0]

    def test_a_closed_session_releases_its_tasks_in_every_tube(self) -> None:
        worker, task = self.worker()
        other_tube = self.create("elsewhere")
        other = other_tube.put(0)
        worker.queue.tube("elsewhere").take(timeout=0)
        worker.queue.close()
        assert self.state(task) == "ready"
        assert other_tube.peek(other).state == "ready"

    def test_a_closed_session_releases_its_tasks_in_the_order_of_their_ids(self) -> None:
        worker, tasks = self.add_worker(), self.puts(3)
        for _ in tasks:
            self.take(worker.tube)
        events = self.listen()
        worker.queue.close()
        assert self.has_received(events, [("release", id, "ready") for id in sorted(task.id for task in tasks)])

    def test_leaving_the_block_of_a_queue_closes_it(self) -> None:
        worker, task = self.worker()
        with worker.queue:
            assert not worker.queue.closed
        assert worker.queue.closed
        assert self.state(task) == "ready"

    def test_closing_a_queue_twice_has_no_effect(self) -> None:
        worker = self.add_worker()
        worker.queue.close()
        worker.queue.close()
        worker.queue.admin.detach()
        assert worker.queue.closed

    def test_closed_queue_refuses_all_calls(self) -> None:
        worker, task = self.worker()
        worker.queue.close()
        queue, tube = worker
        calls = [
            (queue.tube, "contract"),
            (queue.tubes,),
            (queue.session,),
            (queue.admin.identify,),
            (queue.statistics,),
            (queue.create_tube, "more"),
            (tube.put, "data"),
            (tube.take, 0),
            (tube.take,),
            (tube.peek, task.id),
            (tube.ack, task.id),
            (tube.ack, task),
            (tube.kick, 1),
            (tube.select().count,),
            (tube.select().kick,),
            (tube.statistics,),
            (tube.drop,),
        ]
        assert self.refuses(lambda call: call[0](*call[1:]), *calls, error=QueueClosed)

    def test_session_uuid_is_stable_and_unique(self) -> None:
        uuid = self.queue.admin.identify()
        assert UUID(uuid).hex == uuid == self.queue.admin.identify()
        assert self.add_worker().queue.admin.identify() != uuid

    def test_identify_with_the_current_uuid_changes_nothing(self) -> None:
        task = self.put_and_take()
        uuid = self.queue.admin.identify()
        assert self.queue.admin.identify(uuid) == uuid
        assert self.tube.ack(task).state == "done"

    def test_queues_of_one_session_share_its_tasks(self) -> None:
        worker, task = self.worker()
        assert self.queue.admin.identify(worker.queue.admin.identify()) == worker.queue.admin.identify()
        assert self.tube.ack(task.id).state == "done"
        mine = self.put_and_take()
        assert worker.tube.release(mine).state == "ready"

    def test_identify_accepts_a_uuid_in_all_forms(self) -> None:
        worker = self.add_worker()
        uuid = UUID(worker.queue.admin.identify())
        for form in (uuid, str(uuid), uuid.hex.upper()):
            assert self.add_worker().queue.admin.identify(form) == uuid.hex

    def test_a_shared_session_ends_with_its_last_connection(self) -> None:
        worker, task = self.worker()
        third = self.add_worker()
        third.queue.admin.identify(worker.queue.admin.identify())
        worker.queue.close()
        assert self.state(task) == "taken"
        third.queue.close()
        assert self.state(task) == "ready"

    def test_joining_a_session_ends_the_previous_one(self) -> None:
        worker, task = self.worker()
        left = worker.queue.admin.identify()
        worker.queue.admin.identify(self.queue.admin.identify())
        assert self.state(task) == "ready"
        with self.expect_error(TaskNotTaken):
            worker.tube.ack(task)
        with self.expect_error(SessionNotFound):
            self.queue.admin.identify(left)

    def test_leaving_a_shared_session_does_not_end_it(self) -> None:
        worker, task = self.worker()
        third = self.add_worker()
        third.queue.admin.identify(worker.queue.admin.identify())
        worker.queue.admin.identify(self.queue.admin.identify())
        assert self.state(task) == "taken"
        assert third.tube.ack(task).state == "done"

    def test_a_session_that_ended_is_not_found(self) -> None:
        worker = self.add_worker()
        uuid = worker.queue.admin.identify()
        worker.queue.close()
        assert self.refuses(self.queue.admin.identify, uuid, "0" * 32, error=SessionNotFound)

    def test_malformed_uuid_is_refused(self) -> None:
        assert self.refuses(self.queue.admin.identify, "", "00", "x" * 32, 7, b"0" * 16)

    def test_identify_with_create_starts_or_joins_a_session(self) -> None:
        worker, other, uuid = self.add_worker(), self.add_worker(), uuid4()
        assert worker.queue.admin.identify(uuid, create=True) == uuid.hex
        assert other.queue.admin.identify(uuid, create=True) == uuid.hex
        self.put()
        task = self.take(worker.tube)
        worker.queue.close()
        assert other.tube.ack(task.id).state == "done"
        other.queue.close()
        with self.expect_error(SessionNotFound):
            self.queue.admin.identify(uuid)

    def test_identify_with_create_refuses_non_random_uuids(self) -> None:
        uuids = (None, "0" * 32, uuid5(NAMESPACE_URL, "service"), "x")
        assert self.refuses(lambda uuid: self.queue.admin.identify(uuid, create=True), *uuids)
        assert self.refuses(lambda create: self.queue.admin.identify(uuid4(), create=create), 1, None, "yes")

    def test_detached_session_keeps_its_tasks_until_session_ttl(self) -> None:
        worker, task = self.worker()
        worker.queue.admin.detach()
        assert self.changes_state(task, "taken", "ready", after=self.session_ttl)
        assert self.count("release") == 1

    def test_detached_queue_refuses_all_calls(self) -> None:
        worker, task = self.worker()
        worker.queue.admin.detach()
        assert worker.queue.closed
        with self.expect_error(QueueClosed):
            worker.tube.ack(task)

    def test_detached_session_can_be_resumed(self) -> None:
        worker, task = self.worker()
        uuid = worker.queue.admin.identify()
        worker.queue.admin.detach()
        self.clock.advance(self.session_ttl - 0.1)
        heir = self.add_worker()
        assert heir.queue.admin.identify(uuid) == uuid
        self.clock.advance(2 * self.session_ttl)
        assert heir.tube.ack(task.id).state == "done"

    def test_detached_session_past_its_lease_is_not_found(self) -> None:
        worker = self.add_worker()
        uuid = worker.queue.admin.identify()
        worker.queue.admin.detach()
        self.clock.advance(self.session_ttl)
        with self.expect_error(SessionNotFound):
            self.queue.admin.identify(uuid)

    def test_a_shared_session_outlives_one_connection_that_was_lost(self) -> None:
        worker, task = self.worker()
        third = self.add_worker()
        third.queue.admin.identify(worker.queue.admin.identify())
        worker.queue.admin.detach()
        self.clock.advance(2 * self.session_ttl)
        assert self.state(task) == "taken"
        third.queue.close()
        assert self.state(task) == "ready"

    def test_task_can_be_taken_through_a_shared_session_after_release_all(self) -> None:
        worker, task = self.worker()
        self.queue.admin.identify(worker.queue.admin.identify())
        self.tube.admin.release_all()
        assert self.state(task) == "ready"
        assert self.tube.ack(self.take()).id == task.id

    @needs("ttr")
    def test_ttr_runs_on_in_a_detached_session(self) -> None:
        worker, task = self.worker(ttr=self.session_ttl / 2)
        worker.queue.admin.detach()
        self.clock.advance(self.session_ttl / 2)
        assert (self.state(task), self.count("ttr")) == ("ready", 1)

    @needs("ttl")
    def test_the_end_of_a_session_does_not_renew_a_ttl(self) -> None:
        worker, task = self.worker(ttl=5)
        self.clock.advance(3)
        worker.queue.close()
        assert self.state(task) == "ready"
        self.clock.advance(2)
        assert self.state(task) == "done"
