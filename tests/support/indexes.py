"""Checks of the indexes of a tube on a server against its stored tasks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tubes.redis import task_codec
from tubes.redis.library.functions import order_of

if TYPE_CHECKING:
    from tubes import Tube

_NEWEST = 2**48 - 1


class _Task(NamedTuple):
    """A stored task."""

    stored: task_codec.StoredTask
    state: str
    attempts: int
    lane: bytes


class Indexes:
    """All keys of a tube at one moment without running calls."""

    def __init__(self, client: Any, tube: Tube) -> None:
        port: Any = tube._port
        key: str = port.shared.key
        self.driver = tube.driver
        self.order = order_of(tube.driver)
        self.by_rank = tube.driver.rank is not None
        self.ends_taken = not tube.driver.ttl_spares_taken
        with client.pipeline(transaction=True) as pipe:
            for name in ("tasks", "keys", "known", "lanes", "fill"):
                pipe.hgetall(f"{key}:{name}")
            for name in ("taken", "due", "buried", "back", "offers", "behind"):
                pipe.zrange(f"{key}:{name}", 0, -1, withscores=True)
            pipe.hgetall(key)
            pipe.type(f"{key}:ready")
            tasks, self.keys, self.known, self.lanes, self.fill, *sets, meta, kind = pipe.execute()
        self.taken, self.due, self.buried, self.back, self.offers, self.behind = map(dict, sets)
        is_list = kind == b"list"
        ready = client.lrange(f"{key}:ready", 0, -1) if is_list else client.zrange(f"{key}:ready", 0, -1)
        self.ready: list[bytes] = ready
        self.meta = {name.decode(): value for name, value in meta.items() if name.isascii()}
        self.tasks = {int(id): self._read(int(id), raw) for id, raw in tasks.items()}

    def _read(self, id: int, raw: bytes) -> _Task:
        stored, _ = task_codec.read(id, raw)
        state = "delayed" if raw[0] & 1 else "buried" if raw[0] & 2 else "ready"
        attempts = int.from_bytes(raw[8:11], "big") if raw[0] & 4 else 0
        score = self.taken.get(b"%d" % id)
        if score is not None:
            assert state == "ready"
            state, attempts = "taken", attempts + 1
        lane = b"nil" if stored.utube is None else stored.utube.encode("utf-8", "surrogatepass")
        return _Task(stored, state, attempts, lane)

    def place(self, id: int) -> bytes:
        """Return the place of a task in an index."""
        end = (_NEWEST - id if self.driver.signs[1] < 0 else id).to_bytes(6, "big")
        pri = self.tasks[id].stored.pri
        if self.by_rank:
            return end  # The tests of places compare the bytes before it.
        if not self.driver.signs[0]:
            return end
        pri = 2**32 - 1 - pri if self.driver.signs[0] < 0 else pri
        size = 0 if not pri else 1 if pri < 256 else 2 if pri < 65536 else 4
        return bytes((size,)) + pri.to_bytes(size, "big") + end

    def _ids(self, places: Any, skip: int = 0) -> set[int]:
        """Return the ids at these places, after checking that they are the places of their tasks."""
        ids = [self.driver.id_at(place) for place in places]
        assert len(set(ids)) == len(ids)
        for id, place in zip(ids, places, strict=True):
            assert place[skip:].endswith(self.place(id))
            assert self.by_rank or place[skip:] == self.place(id)
        return set(ids)

    def ids_in(self, *states: str) -> set[int]:
        return {id for id, task in self.tasks.items() if task.state in states}

    def check(self) -> None:
        """Assert that all indexes are consistent."""
        assert {int(id) for id in self.taken} == self.ids_in("taken")
        assert self._ids(self.buried) == self.ids_in("buried")
        assert int(self.meta.get("delayed", 0)) == len(self.ids_in("delayed"))
        self._check_keys()
        self._check_due()
        if self.order == "list":
            self._check_list()
        elif self.order == "lanes":
            self._check_lanes()
            self._check_fill()
        else:
            assert self._ids(self.ready) == self.ids_in("ready")

    def _check_keys(self) -> None:
        named = {task.stored.extras.key: id for id, task in self.tasks.items() if task.stored.extras}
        expected = {key.encode("utf-8", "surrogatepass"): id for key, id in named.items() if key is not None}
        assert {key: int(value) for key, value in self.keys.items()} == expected
        for records in self.known.values():
            ends = [records[at : at + 7] for at in range(0, len(records), 21)]
            assert ends == sorted(ends)
        assert int(self.meta["next"]) > max(self.tasks, default=-1)
        for task in self.tasks.values():
            assert task.state == "buried" or task.stored.extras is None or task.stored.extras.reason is None

    def _check_due(self) -> None:
        due = {int.from_bytes(id, "big"): moment for id, moment in self.due.items()}
        assert due.keys() <= self.tasks.keys()
        for id, task in self.tasks.items():
            stored = task.stored
            dead = None if stored.ttl is None else stored.created + stored.ttl
            if task.state in ("ready", "buried"):
                assert due.get(id) == dead
            elif task.state == "delayed":
                assert id in due
            elif stored.ttr is not None:
                assert id in due
                assert not self.ends_taken or dead is None or due[id] <= dead
            else:
                assert due.get(id) == (dead if self.ends_taken else None)
        assert not due or float(self.meta["soonest"]) <= min(due.values())

    def _check_list(self) -> None:
        back, listed = self._ids(self.back), Counter(map(int, self.ready))
        assert not listed or listed.most_common(1)[0][1] == 1
        assert back <= self.ids_in("ready")
        assert self.ids_in("ready") <= back | listed.keys()
        stale = [id for id in listed if id not in self.ids_in("ready") or id in back]
        assert int(self.meta.get("strays", 0)) == len(stale) + len(back)

    def _check_fill(self) -> None:
        """Check the counters of tasks in lanes with a capacity."""
        if b'"lane_capacity"' in self.meta["options"] and "recount" not in self.meta:
            counted = Counter(task.lane for task in self.tasks.values())
            assert {lane: int(count) for lane, count in self.fill.items()} == counted

    def _check_lanes(self) -> None:
        offered, behind = self._ids(self.offers), self._ids(self.behind, 5)
        assert not offered & behind
        assert offered | behind == self.ids_in("ready")
        if "rate_limits" in self.meta:
            return  # The tasks alone do not determine the free lanes: `Tube.lanes` shows them.
        busy = {self.tasks[id].lane: id for id in self.ids_in("taken")}
        assert len(busy) == len(self.ids_in("taken"))
        heads = {self.tasks[id].lane: id for id in offered}
        assert len(heads) == len(offered)
        assert not busy.keys() & heads.keys()
        assert self.lanes.keys() == busy.keys() | heads.keys()
        numbers = {lane: known[:5] for lane, known in self.lanes.items() if known[:1] != b"\xfe"}
        assert len(set(numbers.values())) == len(numbers)
        for lane, known in self.lanes.items():
            head = known[5:] if lane in numbers else known[1:]
            assert head not in self.offers if lane in busy else head == self._place_of(self.offers, heads[lane])
        for place in self.behind:
            lane = self.tasks[self.driver.id_at(place)].lane
            assert place[:5] == numbers[lane]
            assert lane in busy or place[5:] > self._place_of(self.offers, heads[lane])

    def _place_of(self, places: Any, id: int) -> bytes:
        (place,) = [place for place in places if self.driver.id_at(place) == id]
        found: bytes = place
        return found


def check(client: Any, tube: Tube) -> None:
    """Assert the consistency that must hold between any two calls on a tube of a server."""
    Indexes(client, tube).check()
