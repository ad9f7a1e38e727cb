"""Altering a tube on a server: other processes, repeated calls and prepared requests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.contract.bench import eventually
from tests.support.internals import port_of
from tests.support.processes import python
from tubes.redis.port import batch, puts
from tubes.redis.transport.script_call import ScriptCall
from tubes.redis.transport.server import locate
from tubes.redis.transport.wire import ErrorReply, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.testing import LocalServer

#: A version of a program: it opens its tube with the given options and puts on request.
PROGRAM = """
import json, sys
import tubes

with tubes.connect(sys.argv[1]) as queue:
    jobs = queue.create_tube("jobs", "fifottl", if_exists="update", **json.loads(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        task = jobs.put(line.strip())
        print(json.dumps([task.ttr, task.max_attempts, dict(jobs.options)]), flush=True)
"""


class Version:
    """A process of the program."""

    def __init__(self, url: str, **options: Any) -> None:
        self._process = python("-c", PROGRAM, url, json.dumps(options), stdin=PIPE, stdout=PIPE, text=True)
        assert self._say() == "ready"

    def _say(self) -> str:
        assert self._process.stdout is not None
        return str(self._process.stdout.readline()).strip()

    def put(self) -> Any:
        """Put a task; return its ttr, its max_attempts, and the options of the tube known to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write("x\n")
        self._process.stdin.flush()
        return json.loads(self._say())

    def stop(self) -> None:
        """End the process and wait for its end."""
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


@pytest.mark.full
def test_alter_reaches_processes_of_two_program_versions(url: str) -> None:
    old = Version(url, ttr=60, max_attempts=3)
    assert old.put() == [60, 3, {"max_attempts": 3, "ttr": 60}]
    new = Version(url, ttr=120)
    assert new.put() == [120, None, {"ttr": 120}]
    assert old.put() == [120, None, {"ttr": 120}]
    with tubes.connect(url) as queue:
        queue.tube("jobs").alter(ttr=None, capacity=9)
        assert old.put() == [None, None, {"capacity": 9}]
        assert new.put() == [None, None, {"capacity": 9}]
        restarted = Version(url, ttr=60, max_attempts=3)  # The last start wins.
        assert [version.put()[:2] for version in (old, new, restarted)] == [[60, 3]] * 3
        tasks = [*queue.tube("jobs").select()]
        assert [task.ttr for task in tasks] == [60, 120, 120, None, None, 60, 60, 60]
        assert queue.admin.check("jobs") == []
    for version in (old, new, restarted):
        version.stop()


def test_resent_call_gets_its_first_reply_after_an_alter(url: str) -> None:
    """A call whose reply was lost is not repeated, and a call that was not executed is refused."""
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        tube = queue.create_tube("t", "fifottl", ttr=60)
        port = port_of(tube)
        session, wire = port.session, Wire(locate(url)[0], "")
        version = session.version

        def request() -> bytes:
            words = puts.put_words(port, version, version.plain, b"1")
            call = ScriptCall(version.function("put"), port.shared.key, words, session)
            call.begin(0)
            return call.pack(port.connection.store.server)

        done, pending = request(), request()
        first_reply = wire.call(done)
        other.tube("t").alter(ttr=5)
        assert wire.call(done) == first_reply
        refused = wire.call(pending)
        assert isinstance(refused, ErrorReply)
        assert refused.code == "ALTERED"
        other.tube("t").alter(ttr=60)  # The same options as before, but a new version.
        assert isinstance(wire.call(pending), ErrorReply)
        wire.close()
        assert tube.statistics().calls["put"] == 1
        assert tube.put(2).ttr == 60


def test_waiting_staged_batch_gets_the_new_defaults(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "PUTS", 2)
    with tubes.connect(url) as queue, queue.session() as other, ThreadPoolExecutor() as pool:
        tube = queue.create_tube("t", capacity=3)
        tube.put_many([1, 2])
        putting = pool.submit(other.tube("t").put_many, [3, 4, 5], timeout=30)
        while not tube.statistics().waiting:
            pass
        tube.alter(max_attempts=7, capacity=5)
        assert [task.max_attempts for task in putting.result()] == [7, 7, 7]
        assert [task.data for task in tube.select()] == [1, 2, 3, 4, 5]

        assert other.tube("t").options == {"capacity": 5, "max_attempts": 7}


def test_a_session_that_ends_after_an_alter_releases_its_tasks_at_once(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put_many(range(3))
        with tubes.connect(url) as other:
            assert len(other.tube("t").take_many(2, timeout=0)) == 2
            tube.alter(backoff=[60], max_attempts=2)
        assert [task.data for task in tube.take_many(3, timeout=0)] == [0, 1, 2]


def test_alter_updates_many_lanes_in_parts(url: str, valkey: LocalServer) -> None:
    with tubes.connect(url) as queue, queue.session() as other:
        tube, there = queue.create_tube("t", "utube"), other.create_tube("t", "utube", if_not_exists=True)
        count = 1500
        tube.put_many([tubes.Item(number, utube=str(number % count)) for number in range(2 * count)])
        assert len(there.take_many(2 * count, timeout=0)) == count
        tube.alter(max_in_flight=2)
        client: Any = valkey.client()
        assert not client.hexists(port_of(tube).shared.key, "reapply")
        assert len(there.take_many(2 * count, timeout=0)) == count
        tube.alter(max_in_flight=None, interval=1000)
        there.admin.release_all()
        taken = tube.take_many(2 * count, timeout=0)
        assert len(taken) == count
        assert len({task.utube for task in taken}) == count
        assert queue.admin.check("t") == []


@pytest.mark.parametrize("written", ["", "soon", "1e18 x", "0 zz", f"0 {'a' * 40}"])
def test_repair_fixes_the_field_that_names_the_options(url: str, valkey: LocalServer, written: str) -> None:
    client: Any = valkey.client()
    with tubes.connect(url) as queue, queue.session() as other:
        tube, there = queue.create_tube("t", "fifottl"), other.create_tube("t", "fifottl", if_not_exists=True)
        tube.alter(ttr=5)
        key = port_of(tube).shared.key
        options = client.hget(key, "options").replace(b"5000000", b"7000000")
        client.hset(key, mapping={"listening": written, "options": options})
        assert [problem.kind for problem in queue.admin.check("t")] == ["field"]
        assert [problem.examples for problem in queue.admin.repair("t")] == [("listening",)]
        assert queue.admin.check("t") == []
        assert tube.put(1).ttr == there.put(2).ttr == 7


def test_listener_still_receives_events_after_an_alter(url: str) -> None:
    with tubes.connect(url, session_ttl=0.5) as queue, tubes.connect(url) as other:
        events: list[str] = []
        tube = queue.create_tube("t")
        tube.on_task_change(lambda task, event: events.append(event))
        there = other.tube("t")
        there.alter(max_attempts=3)
        assert there.put(1).max_attempts == 3
        with ThreadPoolExecutor() as pool:  # Longer than the lease of a listener.
            assert pool.submit(there.take).result().ack()  # type: ignore[union-attr]
            assert pool.submit(there.take, 1.5).result() is None
        there.put(2)
        assert there.options == {"max_attempts": 3}
        assert eventually(lambda: events.count("put") == 2)


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("call", ["put", "put_many", "move_to", "cancel", "cancel_selected", "configure"])
def test_calls_that_need_an_option_do_not_reset_it(url: str, call: str, is_fresh: bool) -> None:
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        there, source = queue.create_tube("t", "utubettl"), other.create_tube("source", "utubettl")
        tube: Any = other.tube("t")
        tube.put(1)
        task = tube.take(timeout=0)
        source.put(2, keep_done=5)
        there.alter(keep_done=3600, lane_capacity=50)
        if is_fresh:
            tube.put(3)
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: tube.put(4, keep_done=5),
            "put_many": lambda: tube.put_many([4], keep_done=5),
            "move_to": lambda: source.select().move_to(tube),
            "cancel": lambda: tube.cancel(task),
            "cancel_selected": lambda: tube.select("taken").cancel(),
            "configure": lambda: tube.lane("vip").configure(capacity=2),
        }
        calls[call]()
        assert queue.tube("t").options == tube.options == {"keep_done": 3600, "lane_capacity": 50}
        assert there.put(5).keep_done == 3600


def test_other_session_respects_the_first_limit_of_a_lane(url: str) -> None:
    with tubes.connect(url) as queue, tubes.connect(url) as other:
        mine: Any = queue.create_tube("jobs", "utubettl")
        theirs = other.tube("jobs")
        for lane in ("a", "b"):
            mine.put(lane, utube=lane)
            mine.put(lane, utube=lane)
        held = mine.take(timeout=0)
        assert held.utube == "a"
        theirs.lane("b").block(1000)
        assert mine.take(timeout=0) is None
        held.ack()
        assert mine.put("more", utube="b") is not None
        assert [task.utube for task in mine.take_many(9)] == ["a"]
        assert {lane.name: (lane.ready, lane.taken) for lane in theirs.lanes()} == {"a": (0, 1), "b": (3, 0)}
        theirs.lane("b").block(0)
        assert mine.take(timeout=0).utube == "b"
