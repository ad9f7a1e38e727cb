"""Leases between processes, servers and key spaces."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tubes import InvalidOption, SessionNotFound, TaskCancelled, TaskNotTaken

if TYPE_CHECKING:
    from tests.contract.faces import Face
    from tubes.testing import LocalServer


def take_one(face: Face, url: str, **options: Any) -> tuple[Any, Any, Any]:
    """Open a queue with a tube of two tasks and take one of them."""
    queue = face.connect(url)
    tube = queue.create_tube("load", "fifottl", **options)
    tube.put_many(["first", "second"])
    return queue, tube, tube.take(timeout=0)


def test_another_process_can_ack_by_the_lease_string(face: Face, url: str) -> None:
    queue, tube, task = take_one(face, url, ttr=60)
    program = "import sys, tubes\nprint(tubes.connect(sys.argv[1]).tube('load').ack(sys.argv[2]).data)"
    with queue:
        done = subprocess.run([sys.executable, "-c", program, url, task.lease], capture_output=True, check=True)
        assert done.stdout == b"first\n"
        with pytest.raises(TaskNotTaken):
            tube.ack(task)
        assert tube.statistics().tasks["done"] == 1


def test_a_lease_of_another_server_or_key_space_is_refused(face: Face, url: str, valkey: LocalServer) -> None:
    queue, _, task = take_one(face, url)
    other_queue, others, theirs = take_one(face, f"{valkey.url}?prefix={uuid4().hex}")
    memory_queue, in_memory, _ = take_one(face, "memory://")
    with queue, other_queue, memory_queue:
        assert theirs.id == task.id
        for tube in (others, in_memory):
            with pytest.raises(InvalidOption, match="another store"):
                tube.ack(task.lease)
            with pytest.raises(InvalidOption, match="another store"):
                tube.ack_many([theirs.id, task.lease])
        assert others.ack(theirs).state == "done"


def test_leases_stay_valid_after_an_alter(face: Face, url: str) -> None:
    """This includes a caller that does not know of the alter."""
    queue, tube, first = take_one(face, url, ttr=60)
    with queue, face.connect(url, session_ttl=31.0) as other:
        others = other.tube("load")
        second = tube.take(timeout=0)
        before = second.lease
        assert others.statistics().tasks["taken"] == 2
        tube.alter(ttr=30)
        assert second.lease == before
        assert others.ack(first.lease).state == "done"
        tube.alter(ttr=20)
        assert others.ack_many([before]) == {second.id: True}


def test_calls_by_lease_leave_no_fields_on_the_server(face: Face, url: str, valkey: LocalServer) -> None:
    queue, tube, task = take_one(face, url)
    key = port_of(tube).shared.key
    with face.connect(url, session_ttl=31.0) as other, valkey.client() as client:
        others = other.tube("load")
        others.update(task.lease, data="new")
        session = task.lease.session
        named = f"{session:016x}".encode()
        fields: Any = client.hkeys(key)
        assert any(field.startswith(b"a") and named in field for field in fields)
        queue.close()
        with pytest.raises(TaskNotTaken):
            others.ack(task.lease)
        others.statistics()
        fields = client.hkeys(key)
        assert not any(named in field for field in fields)


def test_checkpoint_by_the_lease_of_an_ended_session_tells_of_a_cancel(face: Face, url: str) -> None:
    queue, tube, task = take_one(face, url)
    leases = task.lease, tube.take(timeout=0).lease
    with face.connect(url) as other:
        tube.cancel(task, "not needed")
        queue.close()
        others = other.tube("load")
        with pytest.raises(TaskCancelled, match="not needed"):
            others._checkpoint(leases[0], 1)
        with pytest.raises(TaskNotTaken) as raised:
            others._checkpoint(leases[1], 1)
        assert raised.type is TaskNotTaken


def test_restarted_service_can_use_its_old_leases(face: Face, url: str) -> None:
    """All its processes are down for a while, as in a deploy."""
    uuid = uuid4()
    first = face.connect(url, session_ttl=60)
    first.admin.identify(uuid, create=True)
    tube = first.create_tube("load", "fifottl", ttr=300)
    tube.put("job")
    lease = str(tube.take(timeout=0).lease)
    first.admin.detach()
    with face.connect(url, session_ttl=60) as second:
        assert second.admin.identify(uuid, create=True) == uuid.hex
        assert second.tube("load").take(timeout=0) is None
        assert second.tube("load").ack(lease).data == "job"
    with face.connect(url) as third, pytest.raises(SessionNotFound):
        third.admin.identify(uuid)


def test_task_of_a_lost_session_still_has_a_lease(face: Face, url: str, valkey: LocalServer) -> None:
    """The lease is refused like the task."""
    queue, tube, task = take_one(face, url)
    with queue, valkey.client() as client:
        key = port_of(tube).shared.key
        client.zadd(f"{key}:leases", {port_of(tube).session[1]: 1})
        client.hset(key, "soonest", 1)
        assert tube.statistics().tasks["ready"] == 2
        with pytest.raises(TaskNotTaken):
            tube.ack(task.lease)


def test_the_session_of_a_lease_survives_an_error_of_the_caller(url: str) -> None:
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as other:
        tube = queue.create_tube("load", "fifottl")
        tube.put("job")
        task = tube.take(0)
        assert task is not None
        lease = task.lease
        others = other.tube("load")
        for _ in range(3):
            with pytest.raises(InvalidOption):
                others.update(lease, delay=5)
        others.put("more")
        assert others.ack(lease).state == "done"
        assert port_of(others).session[1] != f"s{lease.number}.{lease.born}.{lease.session:016x}"


def test_heartbeat_of_another_process_does_not_shorten_the_lease_of_a_shared_session(
    url: str, valkey: LocalServer
) -> None:
    def lease_of(tube: tubes.Tube) -> float:
        score = client.zscore(f"{port_of(tube).shared.key}:leases", port_of(tube).session[1])
        assert isinstance(score, float)
        return score

    with (
        tubes.connect(url, session_ttl=1000) as mine,
        tubes.connect(url, session_ttl=0.3) as theirs,
        theirs.session() as sibling,
        valkey.client() as client,
    ):
        tube = mine.create_tube("load")
        tube.put("job")
        assert tube.take(0) is not None
        before = lease_of(tube)
        theirs.admin.identify(mine.admin.identify())
        theirs.tube("load").put("more")
        witness = sibling.tube("load")
        witness.put("third")
        for _ in range(2):  # One call renews both.
            last = lease_of(witness)
            assert eventually(lambda last=last: lease_of(witness) > last)  # type: ignore[misc]
        assert lease_of(tube) >= before


def test_lease_that_ends_with_the_time_to_run_of_its_task_ends_second(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, queue.session() as other, valkey.client() as client:
        tube = queue.create_tube("load", "fifottl", ttr=1000, max_attempts=1)
        tube.put("job")
        theirs = other.tube("load")
        assert theirs.take(0) is not None
        key = port_of(tube).shared.key
        member: Any = client.zrange(f"{key}:due", 0, -1)[0]
        client.zadd(f"{key}:due", {member: 1000})
        client.zadd(f"{key}:leases", {port_of(theirs).session[1]: 1000})
        client.hset(key, "soonest", 1000)
        assert tube.peek(0).reason == "max_attempts: ttr"
