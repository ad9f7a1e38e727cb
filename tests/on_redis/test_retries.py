"""A call that arrives twice is executed once, in either order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tubes
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes.redis import task_codec
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.port import puts
from tubes.redis.transport.script_call import AHEAD, ScriptCall
from tubes.redis.transport.server import locate
from tubes.redis.transport.wire import ErrorReply, Wire
from tubes.redis.validation import describe_options
from tubes.testing import LocalServer, ManualClock


class Repeater:
    """A tube whose calls can be sent repeatedly on a separate connection."""

    def __init__(self, queue: tubes.Queue, url: str) -> None:
        self.queue = queue
        self.tube = queue.create_tube("t", "fifottl")
        self.port: Any = self.tube._port
        self.wire: Any = Wire(locate(url)[0], "")

    def call(self, method: str, *args: Any) -> bytes:
        """Return a request with a new number."""
        call = ScriptCall(FUNCTIONS[method], self.port.shared.key, args, self.port.session)
        call.begin(0)
        return call.pack(self.port.connection.store.server)

    def put(self) -> bytes:
        version = self.port.session.version
        return self.call("put", *puts.put_words(self.port, version, version.plain, b"1"))


@pytest.fixture
def repeater(url: str) -> Iterator[Repeater]:
    with tubes.connect(url) as queue:
        repeater = Repeater(queue, url)
        yield repeater
        repeater.wire.close()


def test_resent_call_keeps_its_slot_and_number(repeater: Repeater) -> None:
    call = ScriptCall(FUNCTIONS["pause"], repeater.port.shared.key, ("",), repeater.port.session)
    call.begin(0)
    first = call.pack(repeater.port.connection.store.server)
    call.resent = True
    call.begin(1)
    assert call.pack(repeater.port.connection.store.server) == first


def test_resent_call_gets_the_first_reply(repeater: Repeater) -> None:
    put = repeater.put()
    assert repeater.wire.call(put) == repeater.wire.call(put)
    take = repeater.call("take", "", "")
    taken = repeater.wire.call(take)
    assert taken == repeater.wire.call(take)
    id, _, _, number, _, _ = task_codec.parse(taken)
    ack = repeater.call("ack", id, number, "")
    assert repeater.wire.call(ack) == repeater.wire.call(ack)
    counted = repeater.tube.statistics().calls
    assert (counted["put"], counted["take"], counted["ack"]) == (1, 1, 1)


def test_resent_change_is_applied_once(repeater: Repeater) -> None:
    tube = repeater.tube
    for number in range(3):
        tube.put(number, key=str(number))
    tube.bury(0)
    version = repeater.port.session.version
    new = version.write({"key": "1"})
    words = (1, "", 9, "", "", "", 1, new.flags, new.due, new.pri, new.lane, new.header, b"1", "replace", b"1")
    changes: dict[str, bytes] = {
        "update": repeater.call("update", 2, "", "", "1", b'"new"', 3, 5_000_000, 9_000_000),
        "bury": repeater.call("bury", 2, "", "", b"why"),
        "kick_task": repeater.call("kick_task", 2, "", "", 2, 7_000_000),
        "kick": repeater.call("act_some", "kick", 1, "", 0, f"c{tube.peek(0)._record.created}", "!", 0, 0),
        "put": repeater.call("put_keyed", *words),
        "alter": repeater.call("alter", "a1", describe_options({"max_attempts": 5}), 0, ""),
    }
    for method, request in changes.items():
        first, before = repeater.wire.call(request), tube.statistics()
        assert repeater.wire.call(request) == first, method
        assert tube.statistics() == before, method
        assert not isinstance(first, ErrorReply), first
    calls = tube.statistics().calls
    assert [calls[name] for name in ("put", "bury", "kick", "delete")] == [4, 2, 2, 1]
    assert tube.peek(2).max_attempts == 2
    assert tube.peek(3).key == "1"


def test_a_put_that_has_replaced_a_task_is_not_undone(repeater: Repeater) -> None:
    tube = repeater.tube
    first = tube.put("first", key="k")
    second, *_, fourth = tube.put_many([tubes.Item(n, key=key, on_duplicate="replace") for n, key in enumerate("kll")])
    other = tube.put("other", key="o")
    for task in (first, second, fourth, other):
        repeater.port.connection.run(repeater.port.undo("undo_put", task.id, task_codec.put_of(task)))
    assert [tube.peek(task).key for task in (second, fourth)] == ["k", "l"]
    assert tube.statistics().tasks["total"] == 2


def test_put_whose_task_was_taken_meanwhile_is_not_undone(repeater: Repeater) -> None:
    task = repeater.tube.put("x")
    with repeater.queue.session() as other:
        take_task(other.tube("t")).release()
    repeater.port.connection.run(repeater.port.undo("undo_put", task.id, task_codec.put_of(task)))
    assert repeater.tube.peek(task).state == "ready"


def test_take_that_is_disarmed_after_it_was_done_counts_no_attempt(repeater: Repeater) -> None:
    task = repeater.tube.put("x")
    session = repeater.port.session
    call = ScriptCall(FUNCTIONS["take"], repeater.port.shared.key, ("", ""), session, slot=AHEAD)
    call.begin(AHEAD)
    repeater.wire.call(call.pack(repeater.port.connection.store.server))
    assert repeater.tube.peek(task).state == "taken"
    repeater.port.connection.run(repeater.port.undo("disarm", call.number, slot=AHEAD, session=session))
    seen = repeater.tube.peek(task)
    assert (seen.state, seen.attempts) == ("ready", 0)


def test_process_that_leaves_does_not_shorten_the_lease_of_a_shared_session(
    repeater: Repeater, valkey: LocalServer
) -> None:
    repeater.tube.put("x")
    with valkey.client() as client:
        lease = client.zscore(f"{repeater.port.shared.key}:leases", repeater.port.session[1])
        repeater.wire.call(repeater.call("leave", 1, "process"))
        assert client.zscore(f"{repeater.port.shared.key}:leases", repeater.port.session[1]) == lease


def test_resent_call_is_refused_after_a_later_call(repeater: Repeater) -> None:
    first, second = repeater.put(), repeater.put()
    repeater.wire.call(first)
    repeater.wire.call(second)
    reply = repeater.wire.call(first)
    assert isinstance(reply, ErrorReply)
    assert reply.code == "LATE"
    assert repeater.tube.statistics().calls["put"] == 2


def test_resent_take_takes_again_after_a_release(repeater: Repeater) -> None:
    repeater.wire.call(repeater.put())
    take = repeater.call("take", "", "")
    first = task_codec.parse(repeater.wire.call(take))
    with repeater.queue.session() as other:
        other.tube("t").admin.release_all()
    again = task_codec.parse(repeater.wire.call(take))
    assert (first[0], first[2], again[0], again[2]) == (0, 1, 0, 2)


@pytest.mark.parametrize("forgotten", [False, True], ids=["", "and the script is forgotten"])
def test_put_with_an_ended_session_opens_a_new_one(url: str, valkey: LocalServer, *, forgotten: bool) -> None:
    """No call was executed so far, so no result is uncertain."""
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("t")
        tube.put(0)
        key = port_of(tube).shared.key
        leases: list[Any] = client.zrange(f"{key}:leases", 0, -1)
        for session in leases:
            client.zadd(f"{key}:leases", {session: 1})
        client.hset(key, "soonest", 1)
        if forgotten:
            client.script_flush()
        assert tube.put(1).id == 1
        assert tube.statistics().tasks["total"] == 2


def test_undone_take_gives_back_the_start_of_its_lane(url: str) -> None:
    with tubes.connect(url, clock=ManualClock()) as queue:
        tube = queue.create_tube("mail", "utubettl", interval=5)
        tube.put("x", utube="x")
        task, port = tube.take(timeout=0), port_of(tube)
        assert task is not None
        port.connection.run(port.undo("undo_take", task.id, task._take))
        assert take_task(tube).attempts == 1


def test_session_that_only_moved_tasks_leaves_no_reply(url: str) -> None:
    with tubes.connect(url) as queue:
        source, target = queue.create_tube("source"), queue.create_tube("target")
        source.put(1).bury()
        with queue.session() as other:
            assert other.tube("source").select("buried").move_to(other.tube("target")) == 1
        assert target.statistics().tasks["total"] == 1
        assert queue.admin.check("source") == []
