"""Damaged tubes: `check` reports the damage, `repair` fixes it, and no readable task is lost."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest

import tubes
from tests.on_redis.test_twin import DRIVERS
from tests.support import indexes
from tests.support.internals import PARTS
from tests.support.refusals import Refusals
from tests.support.taking import take_task
from tubes.redis import task_codec
from tubes.redis.library.functions import TAKES
from tubes.spark.server.streams import Stream
from tubes.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tubes.testing import LocalServer

#: Rounds of random damage for each driver.
ROUNDS = int(os.environ.get("R", 6))


class Patient:
    """A tube with tasks in all states, and a client that can write into its keys."""

    def __init__(self, server: LocalServer, name: str, tasks: int = 40, seed: int = 1) -> None:
        driver, options = DRIVERS[name]
        self.random = random.Random(f"{name} {seed}")
        self.clock = ManualClock()
        self.client: Any = server.client()
        self.queue = tubes.connect(f"{server.url}?prefix={uuid4().hex}", clock=self.clock)
        self.tube = self.queue.create_tube("patient", driver, **{**options, **ROOM.get(name, {})})
        self.others = [self.queue.session() for _ in range(3)]
        port: Any = self.tube._port
        self.key: str = port.shared.key
        self._fill(tasks)

    def _fill(self, tasks: int) -> None:
        driver = self.tube.driver
        for number in range(tasks):
            options: dict[str, Any] = {}
            if driver.lane is not None:
                options[driver.lane] = self.random.choice(["a", "b", "ü", "nil", "e"])
            if "pri" in driver.options:
                options["pri"] = self.random.choice([0, 1, 300, 70_000])
            if "ttl" in driver.options:
                options["ttl"] = 10_000
            if "delay" in driver.options and number % 5 == 0:
                options["delay"] = 1000
            if number % 3 == 0:
                options["key"] = f"key {number}"
            self.tube.put(number, key_ttl=100 if number % 6 == 0 else None, **options)
            if number % 7 == 3:
                taken = self.random.choice(self.others).tube("patient").take(timeout=0)
                if taken is not None:
                    acts: list[Callable[[], object]] = [taken.bury, taken.release, taken.ack, taken.peek]
                    self.random.choice(acts)()
        lane: dict[str, Any] = {} if driver.lane is None else {driver.lane: "a"}
        buried = self.tube.put("buried", **lane)
        assert buried is not None
        buried.bury()

    def key_of(self, part: str) -> str:
        return f"{self.key}:{part}" if part else self.key

    def first(self, part: str) -> Any:
        """Return the first member of a sorted set."""
        return self.client.zrange(self.key_of(part), 0, 0)[0]

    def id_of(self, state: str) -> int:
        """Return the id of the first task in this state."""
        return next(task.id for task in self.tube.select() if task.state == state)

    def readable(self) -> dict[int, bytes]:
        """Return the data of all tasks."""
        found: dict[int, bytes] = {}
        for id, raw in self.client.hgetall(self.key_of("tasks")).items():
            _, at = task_codec.read(int(id), raw)
            found[int(id)] = raw[at:]
        return found

    def kinds(self) -> dict[str, int]:
        """Return the numbers of problems by kind."""
        return {problem.kind: problem.count for problem in self.queue.admin.check("patient")}

    def heal(self) -> list[tubes.Problem]:
        """Repair the tube and check that it is consistent."""
        found = self.queue.admin.repair("patient")
        assert all(problem.repaired for problem in found)
        assert self.queue.admin.check("patient") == []
        assert self.queue.admin.repair("patient") == []
        indexes.check(self.client, self.queue.tube("patient"))
        return found

    def drain(self) -> list[int]:
        """Take and ack all tasks that can be taken; return their ids."""
        tube = self.queue.tube("patient")
        if self.tube.driver.lane is not None:
            for utube in tube.lanes():
                tube.lane(utube.name).configure(interval=0)
                tube.lane(utube.name).block(0)
        if "rate" in tube.options:
            tube.alter(rate=None)
            if tube.driver.lane is not None:  # Lanes without ready tasks have an interval, too.
                tube.alter(interval=0)
        for other in self.others:
            other.close()
        tube.admin.release_all()
        tube.select("buried", limit=1000).kick()
        for one in tube.select():
            if one.state == "delayed":
                one.update(delay=0)
        done: list[int] = []
        while (task := tube.take(timeout=0)) is not None:
            done.append(task.ack().id)
        return done

    def close(self) -> None:
        for queue in (*self.others, self.queue):
            queue.close()


ROOM: dict[str, dict[str, Any]] = {
    "limfifottl": {"capacity": 1000},
    "everything": {"capacity": 1000},
    "retries": {"capacity": 1000, "max_attempts": 100},
    "crowded lanes": {"lane_capacity": 1000},
    "retries of a fifo": {"max_attempts": 100},
    "retries by ttr": {"max_attempts": 100},
}


def _damage(patient: Patient) -> str:
    """Cause random damage and return its description for failure messages. The tasks and their data stay."""
    rng, client = patient.random, patient.client
    part = rng.choice([part for part in PARTS if part != "tasks"])
    key = patient.key_of(part)
    kind = client.type(key)
    how = rng.choice(["delete", "type", "remove", "remove", "remove", "add", "add", "field"])
    if how == "delete":
        client.delete(key)
    elif how == "type":
        client.delete(key)
        client.set(key, "something else")
    elif how == "remove" and kind == b"zset":
        client.zrem(key, *rng.choices(client.zrange(key, 0, -1), k=3))
    elif how == "remove" and kind == b"hash":
        client.hdel(key, *rng.choices(client.hkeys(key), k=3))
    elif how == "remove" and kind == b"list":
        client.lrem(key, 0, rng.choice(client.lrange(key, 0, -1)))
    elif how == "add" and kind == b"zset":
        member = rng.choice([b"", b"x", b"7", (3).to_bytes(6, "big"), b"\0" + (2).to_bytes(6, "big"), b"\xff" * 6])
        client.zadd(key, {member: rng.choice([0, 1, 1e20])})
    elif how == "add" and kind == b"hash":
        client.hset(key, rng.choice(["x", "7", "key 3", "a"]), rng.choice(["", "x", "7", "99 5"]))
    elif how == "add" and kind == b"list":
        client.lpush(key, rng.choice(["x", "3", "7", "999999", "-1", "01"]))
    elif how == "field":
        name = rng.choice(
            ["delayed", "strays", "oldest", "soonest", "next", "takes", "lanes", "rate_limits", "calls:put"]
        )
        value = rng.choice([None, "", "x", "3", "-7", "1e300"])
        part = name
        if value is None or (name == "lanes" and value in ("3", "-7")):
            client.hdel(patient.key, name)
        elif name != "next" or value in ("", "x"):
            client.hset(patient.key, name, value)
    return f"{how} {part}"


def _act(tube: tubes.Tube, rng: random.Random) -> None:
    """Put a task, take one and make a random call with it."""
    driver = tube.driver
    options: dict[str, Any] = {}
    if driver.lane is not None:
        options[driver.lane] = rng.choice("abcdefgh")
    if "delay" in driver.options:
        options["delay"] = rng.choice([0, 0, 0.001, 0.01, 1])
    if "ttl" in driver.options:
        options["ttl"] = rng.choice([0.05, 10])
    if rng.random() < 0.3:
        options["key"] = str(rng.randrange(20))
        options["on_duplicate"] = rng.choice(["keep", "replace"])
    tube.put("x", **options)
    task = tube.take(timeout=0)
    if task is not None:
        acts: list[Callable[[], object]] = [
            task.ack,
            task.ack,
            task.release,
            task.bury,
            lambda: tube.select("buried", limit=3).kick(),
        ]
        with suppress(tubes.TubesError):
            rng.choice(acts)()


@pytest.fixture
def patients(valkey: LocalServer) -> Iterator[Callable[..., Patient]]:
    """Return a function that creates patients."""
    made: list[Patient] = []

    def make(name: str, **options: Any) -> Patient:
        made.append(Patient(valkey, name, **options))
        return made[-1]

    yield make
    for patient in made:
        patient.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", DRIVERS)
def test_repair_fixes_random_damage_without_losing_tasks(patients: Callable[..., Patient], name: str) -> None:
    for seed in range(ROUNDS):
        patient = patients(name, seed=seed)
        before = patient.readable()
        assert patient.kinds() == {}
        damages = [_damage(patient) for _ in range(1 + seed % 6)]
        try:
            patient.heal()
            assert patient.readable() == before
            assert sorted(patient.drain()) == sorted(before)
        except BaseException as error:
            error.add_note(f"seed {seed}: {damages}")
            raise


@pytest.mark.parametrize("name", DRIVERS)
def test_repair_keeps_or_sets_aside_corrupted_tasks(patients: Callable[..., Patient], name: str) -> None:
    patient = patients(name)
    tasks, rng = patient.key_of("tasks"), patient.random
    before: dict[bytes, bytes] = patient.client.hgetall(tasks)
    for id in rng.sample(sorted(before), 12):
        value = bytearray(before[id])
        at = rng.randrange(len(value))
        if rng.random() < 0.3:
            del value[at:]
        else:
            value[at] = rng.choice([value[at] ^ 1 << rng.randrange(8), 0, 195, 255])
        patient.client.hset(tasks, id, bytes(value))
    patient.queue.admin.repair("patient")
    assert patient.queue.admin.check("patient") == []
    left, broken = (patient.client.hkeys(patient.key_of(part)) for part in ("tasks", "broken"))
    assert sorted(left + broken) == sorted(before)
    assert [task.id for task in patient.tube.select()] == sorted(map(int, left))


class Damage(NamedTuple):
    """Damage to tubes of these drivers, and the kinds of problems that it causes."""

    drivers: tuple[str, ...]
    kinds: str
    act: Callable[[Patient], Any]


def remove_first(part: str) -> Callable[[Patient], Any]:
    return lambda patient: patient.client.zrem(patient.key_of(part), patient.first(part))


def add(part: str, member: Any, score: float = 0) -> Callable[[Patient], Any]:
    return lambda patient: patient.client.zadd(patient.key_of(part), {member: score})


def write(part: str, field: str, value: Any) -> Callable[[Patient], Any]:
    return lambda patient: patient.client.hset(patient.key_of(part), field, value)


def forget(field: str) -> Callable[[Patient], Any]:
    return lambda patient: patient.client.hdel(patient.key, field)


def lose_due(state: str) -> Callable[[Patient], Any]:
    return lambda patient: patient.client.zrem(patient.key_of("due"), patient.id_of(state).to_bytes(6, "big"))


def take_without_session(state: str, score: float) -> Callable[[Patient], Any]:
    return lambda patient: patient.client.zadd(patient.key_of("taken"), {str(patient.id_of(state)): score})


def lose_lane(patient: Patient) -> None:
    """Remove the record of a lane with an available task."""
    lane = patient.tube.peek(patient.tube.driver.id_at(patient.first("offers"))).utube
    assert patient.client.hdel(patient.key_of("lanes"), "nil" if lane is None else lane)


def lose_count(patient: Patient) -> None:
    take_task(patient.tube).release()
    patient.client.hset(patient.key, "strays", 0)


def mark_as_taken(patient: Patient) -> None:
    """Mark a lane as taken although none of its tasks is taken."""
    lanes = patient.key_of("lanes")
    name, lane = next((name, lane) for name, lane in patient.client.hgetall(lanes).items() if len(lane) > 5)
    patient.client.hset(lanes, name, lane[:5])
    patient.client.zrem(patient.key_of("offers"), lane[5:])
    patient.client.zadd(patient.key_of("behind"), {lane: 0})


def share_number(patient: Patient) -> None:
    """Give two lanes the same number."""
    lanes = patient.key_of("lanes")
    (one, lane), (_, other), *_ = patient.client.hgetall(lanes).items()
    patient.client.hset(lanes, one, other[:5] + lane[5:])


def end_session(patient: Patient, *parts: str) -> None:
    """Remove the session of the first take from these keys."""
    ((_, score),) = patient.client.zrange(patient.key_of("taken"), 0, 0, withscores=True)
    fields = patient.client.hkeys(patient.key)
    (token,) = (name for name in fields if name.startswith(b"s%d." % (int(score) // TAKES)))
    if "leases" in parts:
        patient.client.zrem(patient.key_of("leases"), token)
    if "meta" in parts:
        patient.client.hdel(patient.key, token)


def steal_key(patient: Patient) -> None:
    """Point a key to another task."""
    key = patient.client.hkeys(patient.key_of("keys"))[0]
    patient.client.hset(patient.key_of("keys"), key, [*patient.tube.select("buried")][-1].id)


def swap(patient: Patient) -> None:
    """Swap two ids of the list."""
    ready = patient.key_of("ready")
    first, second = patient.client.lrange(ready, 0, 1)
    patient.client.lset(ready, 0, second)
    patient.client.lset(ready, 1, first)


ALL = ("fifo", "fifottl", "lifo", "utube", "utubettl", "rounds", "rank", "everything")
TIMED = ("fifottl", "timed fifo", "utubettl", "retries")
LISTS = ("fifo", "lifo", "timed fifo")
LANES = ("utube", "utubettl", "rounds")
DAMAGES = {
    "the order is missing": Damage(
        (*LISTS, "fifottl", "rank"), "stranded", lambda tube: tube.client.delete(tube.key_of("ready"))
    ),
    "an id is listed twice": Damage(LISTS, "entry", lambda tube: tube.client.rpush(tube.key_of("ready"), "2")),
    "the list has an invalid id": Damage(LISTS, "entry", lambda tube: tube.client.lpush(tube.key_of("ready"), "x")),
    "the list is unordered": Damage(LISTS, "entry", swap),
    "too many stale ids are counted": Damage(LISTS, "counter", write("", "strays", 30)),
    "returned tasks are not counted": Damage(LISTS, "counter", lose_count),
    "a ready task has lost its place": Damage(("rank",), "stranded", remove_first("ready")),
    "a buried task is in the ready index": Damage(
        ("rank",), "entry", lambda tube: add("ready", tube.first("buried"))(tube)
    ),
    "a place is invalid": Damage(("rank",), "entry", add("ready", b"x")),
    "a place has a wrong score": Damage(("rank",), "entry", add("ready", b"x", 5)),
    "a buried task has lost its place": Damage(ALL, "stranded", remove_first("buried")),
    "a place belongs to a missing task": Damage(ALL, "entry", add("buried", b"\0\0\0\1\0\0\0")),
    "a taken task is not in the index": Damage(("fifo", "lifo", "rank"), "stranded", remove_first("taken")),
    "a missing task is taken": Damage(ALL, "entry", add("taken", "123456", TAKES)),
    "a buried task is taken": Damage(ALL, "entry", take_without_session("!", TAKES)),
    "a take has an impossible number": Damage(("fifo", "lifo", "rank"), "entry+orphan", take_without_session("t", 0.5)),
    "a missing session has tasks": Damage(
        ALL, "answer+orphan+session", lambda tube: end_session(tube, "leases", "meta")
    ),
    "a session with tasks lacks a lease": Damage(ALL, "orphan+session", lambda tube: end_session(tube, "leases")),
    "a lease belongs to a missing session": Damage(ALL, "answer+session", lambda tube: end_session(tube, "meta")),
    "a lease is invalid": Damage(ALL, "session", add("leases", "x", 1e18)),
    "a reply belongs to a missing session": Damage(ALL, "answer", write("", "as77.1.ab.0.0", "x")),
    "a uuid leads to a missing session": Damage(ALL, "session", write("", "u77", "s77.1.ab")),
    "numbers of sessions restart": Damage(ALL, "field", write("", "sessions", 1)),
    "numbers of sessions are lost": Damage(ALL, "field", forget("sessions")),
    "the end of a delay is missing": Damage(TIMED, "due", lose_due("~")),
    "the end of a ttl is missing": Damage(TIMED, "due", lose_due("r")),
    "the end of a ttr is missing": Damage(("fifottl", "utubettl", "retries"), "due", lose_due("t")),
    "the end of a ttl is wrong": Damage(
        TIMED, "due", lambda tube: add("due", tube.id_of("r").to_bytes(6, "big"), 1e15)(tube)
    ),
    "a missing task is due": Damage(TIMED, "entry", add("due", b"\0\0\0\7\7\7", 1e18)),
    "the next due time is missing": Damage(TIMED, "counter", forget("soonest")),
    "delayed tasks are not counted": Damage(TIMED, "counter", forget("delayed")),
    "a key names another task": Damage(ALL, "key", steal_key),
    "a key names a missing task": Damage(ALL, "key", write("keys", "x", "123456")),
    "a known key has half a record": Damage(ALL, "entry", write("known", "7", "123456789")),
    "ids start again": Damage(ALL, "next", write("", "next", 20)),
    "the next id is missing": Damage(ALL, "field", forget("next")),
    "the next id is invalid": Damage(ALL, "field", write("", "next", "-1")),
    "the oldest task is wrong": Damage(ALL, "oldest", write("", "oldest", 35)),
    "a count is not a number": Damage(ALL, "field", write("", "takes", "many")),
    "the number of waiters is invalid": Damage(ALL, "waiting", write("waiting", "some process", "x")),
    "a key has another type": Damage(ALL, "type", lambda tube: tube.client.set(tube.key_of("marker"), "x")),
    "a lane is missing": Damage(LANES, "entry+stranded", lose_lane),
    "a lane seems to be taken": Damage(("utube",), "lane", mark_as_taken),
    "two lanes have one number": Damage(("utube",), "lane+stranded+entry", share_number),
    "a lane cannot be read": Damage(LANES, "lane+stranded+entry", write("lanes", "a", b"x")),
    "an available task is not offered": Damage(LANES, "lane+stranded", remove_first("offers")),
    "a waiting task of a lane is missing": Damage(LANES, "stranded", remove_first("behind")),
    "a lane has an unknown cooldown": Damage(("rounds",), "lane", add("cooldowns", "a", 1e18)),
    "the bucket of a rate is not a bucket": Damage(ALL, "field", write("", "bucket", "many")),
    "the limits of lanes are missing": Damage(("rounds",), "field", forget("rate_limits")),
    "the creation time is missing": Damage(ALL, "field", forget("born")),
    "numbers of lanes are lost": Damage(LANES, "field", forget("lanes")),
    "numbers of lanes restart": Damage(LANES, "field", write("", "lanes", 0)),
}


#: Each kind of damage on one driver in turn; other drivers are marked `full`.
CASES = [
    pytest.param(what, name, marks=() if place == number % len(damage.drivers) else pytest.mark.full)
    for number, (what, damage) in enumerate(DAMAGES.items())
    for place, name in enumerate(damage.drivers)
]


@pytest.mark.sample(25)
@pytest.mark.parametrize(("what", "name"), CASES)
def test_repair_identifies_and_fixes_each_kind_of_damage(
    patients: Callable[..., Patient], what: str, name: str
) -> None:
    patient = patients(name)
    before = patient.readable()
    DAMAGES[what].act(patient)
    assert set(patient.kinds()) == set(DAMAGES[what].kinds.split("+"))
    assert patient.heal()
    assert patient.readable() == before
    assert sorted(patient.drain()) == sorted(before)


@pytest.mark.parametrize("name", ["fifo", "utubettl", "rank"])
def test_repair_sets_unreadable_tasks_aside(patients: Callable[..., Patient], name: str) -> None:
    patient = patients(name)
    before = patient.readable()
    broken = {
        str(patient.id_of("!")).encode(): b"",
        str(patient.id_of("r")).encode(): b"\x03" + b"\0" * 20,
        str(patient.id_of("t")).encode(): b"\xff\0",
        b"no id": b"\0" * 9,
        b"007": b"\0" * 9,
    }
    patient.client.hset(patient.key_of("tasks"), mapping=broken)
    assert patient.kinds()["unreadable"] == len(broken)
    patient.heal()
    assert patient.client.hgetall(patient.key_of("broken")) == broken
    left = {id: data for id, data in before.items() if b"%d" % id not in broken}
    assert patient.readable() == left
    assert sorted(patient.drain()) == sorted(left)


def test_repair_leaves_a_duplicate_key_to_one_task(patients: Callable[..., Patient]) -> None:
    patient = patients("fifo")
    patient.client.hset(patient.key_of("tasks"), "3", patient.client.hget(patient.key_of("tasks"), "0"))
    assert patient.tube.peek(3).key == patient.tube.peek(0).key == "key 0"
    assert "key" in patient.kinds()
    patient.heal()
    assert [patient.tube.peek(id).key for id in (0, 3)] == ["key 0", None]


def test_repair_never_reuses_existing_ids(patients: Callable[..., Patient]) -> None:
    patient = patients("utubettl")
    patient.client.hdel(patient.key, "next")
    patient.queue.admin.repair("patient")
    assert patient.tube.put("new").id == 41


def test_repair_cannot_fix_a_tube_without_valid_options_or_driver(patients: Callable[..., Patient]) -> None:
    patient = patients("fifo")
    before = patient.readable()
    for field, value in (("options", "{"), ("driver", "x"), ("driver", None)):
        if value is None:
            patient.client.hdel(patient.key, field)
        else:
            patient.client.hset(patient.key, field, value)
        for examine in (patient.queue.admin.check, patient.queue.admin.repair):
            (problem,) = examine("patient")
            assert (problem.kind, problem.repaired) == ("tube", False)
    assert patient.readable() == before


def test_a_tube_of_another_layout_is_refused(patients: Callable[..., Patient]) -> None:
    patient = patients("fifo")
    patient.client.hset(patient.key, "layout", 99)
    for examine in (patient.queue.admin.check, patient.queue.admin.repair):
        with pytest.raises(tubes.ServerRefused, match="another version"):
            examine("patient")


def test_check_needs_the_custom_driver_to_be_registered(valkey: LocalServer, patients: Callable[..., Patient]) -> None:
    patient = patients("rank")
    with tubes.connect(patient.queue._connection.url) as queue, pytest.raises(tubes.DriverNotFound):
        queue.admin.check("patient")


def test_tasks_taken_by_a_stream_need_no_due_entry(valkey: LocalServer) -> None:
    with tubes.connect(f"{valkey.url}?prefix={uuid4().hex}") as queue:
        tube = queue.create_tube("mail", "fifottl", ttr=60)
        tube.put_many(range(3))
        stream = Stream.open(queue.session(), "mail", "s")
        stream.take(1, 2)
        assert queue.admin.check("mail") == []


def test_check_and_repair_process_many_tasks_in_parts(valkey: LocalServer) -> None:
    with tubes.connect(f"{valkey.url}?prefix={uuid4().hex}") as queue:
        for driver in ("fifo", "utube"):
            tube = queue.create_tube(driver, driver)
            tube.put_many(
                tubes.Item(number) if driver == "fifo" else tubes.Item(number, utube=str(number % 600))
                for number in range(3000)
            )
            tube.delete_many(range(0, 3000, 3))
            port: Any = tube._port
            client: Any = valkey.client()
            assert queue.admin.check(driver) == []
            for part in ("ready", "behind"):
                client.delete(f"{port.shared.key}:{part}")
            (problem,) = [problem for problem in queue.admin.repair(driver) if problem.kind == "stranded"]
            assert (problem.count, len(problem.examples)) == (2000 if driver == "fifo" else 1600, 10)
            indexes.check(client, tube)
            assert len(tube.take_many(3000)) == (2000 if driver == "fifo" else 400)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["fifottl", "polite utube", "everything", "rank"])
def test_check_finds_no_problem_in_a_busy_tube(valkey: LocalServer, name: str) -> None:
    driver, options = DRIVERS[name]
    url = f"{valkey.url}?prefix={uuid4().hex}"
    stop = threading.Event()

    def work(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            with tubes.connect(url) as mine:  # Open a new session each time.
                tube = mine.tube("busy")
                mine.admin.register_driver(tube.driver)
                for _ in range(rng.randrange(50)):
                    _act(tube, rng)

    with tubes.connect(url) as queue:
        tube = queue.create_tube("busy", driver, **{**options, **ROOM.get(name, {})})
        workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        try:
            found = [problem for _ in range(30) for problem in queue.admin.check("busy")]
            repaired = [problem for _ in range(5) for problem in queue.admin.repair("busy")]
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        assert (found, repaired) == ([], [])
        assert tube.statistics().calls["take"] > 0


@pytest.mark.parametrize("name", ["timed fifo", "polite utube", "everything"])
def test_repair_can_be_repeated_after_it_was_refused(
    valkey: LocalServer, patients: Callable[..., Patient], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of each function is refused in turn."""
    client: Any = valkey.client()
    client.flushall()
    patient = patients(name, tasks=8)
    before = patient.readable()
    for part in ("ready", "behind", "due", "keys", "leases"):
        client.delete(patient.key_of(part))
    client.hset(patient.key_of("tasks"), "no id", "x")
    client.hset(patient.key, "as77.1.ab.0.0", "x")
    client.hdel(patient.key, "next", "delayed", "sessions")
    client.set(patient.key_of("marker"), "x")
    with monkeypatch.context() as patch:
        refusals = Refusals(valkey, patch, patient.queue, "patient")
        try:
            assert patient.queue.admin.repair("patient")
        finally:
            refusals.close()
    assert refusals.harm == []
    assert refusals.refused["HSET"]
    assert refusals.refused["ZADD"]
    patient.heal()
    assert patient.readable() == before
