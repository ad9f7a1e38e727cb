"""Checks and repairs a tube on a server: by scripts that read a part of it each, while programs use it.

A problem that one script finds was there at that moment. One that takes several scripts to find is confirmed by a
script that reads all of it, or counts only if nothing has changed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from tubes.errors import TubeNotFound, Unreadable
from tubes.redis import validation
from tubes.redis.scripts.assembly import TAKES, knobs_of, script
from tubes.redis.scripts.parts import LAYOUT, PARTS
from tubes.redis.task_codec import ScriptReply
from tubes.redis.transport.script_call import Flow, ScriptCall
from tubes.redis.transport.wire import ErrorReply, Word, error_of
from tubes.redis.validation import asked_of_lanes
from tubes.values.problem import BEYOND, KINDS, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.drivers.driver import Driver
    from tubes.redis.store import RedisStore

T = TypeVar("T")
#: How many tasks one call looks at: with lanes each costs more.
_TASKS: Final = 200
_TASKS_OF_LANES: Final = 100
#: How many problems of a kind are listed; how many are kept by name, so that what HSCAN returns twice counts once.
_NAMED, _KNOWN = 10, 10_000
#: How often delayed tasks are counted in a tube that changes all the time.
_TRIES: Final = 3


def examine(store: RedisStore, name: str, *, repairs: bool) -> Flow[list[Problem]]:
    """The problems of a tube; `repairs`: repair them."""
    about = yield from store.ask("there", store.key(name))
    if about is None:
        raise TubeNotFound(name=name)
    found = _Found(repairs=repairs)
    try:
        driver = store.driver_of(name, about[0])
        options = validation.options(name, about[1], driver)
    except Unreadable:
        found.add(["tube", name])
        return found.problems()
    examination = _Examination(store, name, driver, found, repairs=repairs)
    yield from examination.run(options.get("capacity", 0), asked_of_lanes(options))
    return found.problems()


def _session_of(score: ScriptReply) -> int:
    """The number of the session that has a taken task, by its score; -1: that is none."""
    return int(score) // TAKES if score.isdigit() else -1


class _Found:
    """What was found so far, by kind."""

    def __init__(self, *, repairs: bool) -> None:
        self._mends: Final = repairs
        self._known: Final[dict[str, set[str]]] = {}
        self._counts: Final[Counter[str]] = Counter()

    def add(self, words: list[ScriptReply]) -> bool:
        """Kinds, and what each is about, as scripts answer them; whether there were any."""
        for kind, about in zip(*[map(_text, words)] * 2, strict=True):
            known = self._known.setdefault(kind, set())
            if about not in known:
                self._counts[kind] += 1
                if len(known) < _KNOWN:
                    known.add(about)
        return bool(words)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def problems(self) -> list[Problem]:
        """Give what was found as users see it, in the order of the kinds."""
        return [self._problem(kind) for kind in KINDS if kind in self._counts]

    def _problem(self, kind: str) -> Problem:
        some = sorted(self._known[kind], key=lambda about: (len(about), about))[:_NAMED]
        return Problem(kind, self._counts[kind], tuple(some), self._mends and kind not in BEYOND)


def _text(word: ScriptReply) -> str:
    return word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else str(word)


class _Examination:
    """One tube, looked at once."""

    def __init__(self, store: RedisStore, name: str, driver: Driver, found: _Found, *, repairs: bool) -> None:
        self._store: Final = store
        self._name: Final = name
        self._driver: Final = driver
        self._knobs: Final = knobs_of(driver)
        self._found: Final = found
        self._mends: Final = repairs

    def _ask(self, verb: str, *args: Word) -> Flow[ScriptReply]:
        words = ("1" if self._mends else "", self._store.now(), *args)
        reply: ScriptReply = yield ScriptCall(
            script(verb, self._driver), self._store.key(self._name), words, parts=PARTS
        )
        if isinstance(reply, ErrorReply):
            raise TubeNotFound(name=self._name) if reply.code == "TUBEGONE" else error_of(reply, self._store.url)
        return reply

    def run(self, capacity: int, asked: str) -> Flow[None]:
        """Look at all of it: first at what the rest is seen through."""
        kind = "list" if "LIST" in self._knobs else "zset"
        meta = ("check_meta", kind, capacity, asked)
        others = TAKES, LAYOUT, uuid4().hex
        broken = self._found.add((yield from self._ask(*meta, "", *others)))
        if broken and not self._mends:
            return  # What stands in keys of other types, or counts in no numbers, cannot be looked at.
        ids = yield from self._ids()
        if broken:
            yield from self._ask(*meta, max(ids, default=-1), *others)
        lanes: dict[str, int] = {}
        if "LANE" in self._knobs:
            lanes = yield from self._lanes()
        disordered = yield from self._indexes(max(ids, default=-1) + 1)
        yield from self._tasks(ids, disordered=disordered)
        yield from self._holders(lanes)
        yield from self._sweep("meta")
        # Where something stands wrong the counts are wrong as well, and no news.
        if self._mends or not self._found:
            yield from self._counts()
        if self._mends:
            for marker in ("marker", "room"):  # Whoever waits looks again.
                yield ScriptCall(script("mark"), self._store.key(self._name), (marker,), parts=(marker,))

    def _ids(self) -> Flow[set[int]]:
        """The ids of all tasks."""
        ids: set[int] = set()
        cursor: ScriptReply = 0
        while True:
            cursor, some, wrong = yield from self._ask("check_ids", cursor)
            ids.update(map(int, some.split()))
            self._found.add(wrong)
            if int(cursor) == 0:
                return ids

    def _sweep(self, which: str) -> Flow[list[ScriptReply]]:
        """Look at all that a key names; returns what the script tells."""
        found: list[ScriptReply] = []
        cursor: ScriptReply = 0
        while True:
            cursor, wrong, some = yield from self._ask("check_index", which, cursor)
            self._found.add(wrong)
            found += some
            if int(cursor) == 0:
                return found

    def _lanes(self) -> Flow[dict[str, int]]:
        """How many tasks of each lane are taken by what is noted; no two have one number."""
        found = yield from self._sweep("lanes")
        taken: dict[ScriptReply, int] = {}
        named: dict[bytes, ScriptReply] = {}
        twice: set[ScriptReply] = set()
        for name, number, count in zip(*[iter(found)] * 3, strict=True):
            taken[name] = count
            if number and named.setdefault(number, name) != name:
                twice.add(name)
        for some in _batches(sorted(twice)):
            self._found.add((yield from self._ask("check_lanes", "1", *some)))
        return taken

    def _indexes(self, next_id: int) -> Flow[bool]:
        """Look at what has tasks in order; returns whether the list of ready tasks is in none."""
        disordered = False
        if "LIST" in self._knobs:
            disordered = yield from self._list(next_id)
        of_order = {"LIST": ("back",), "LANE": ("offers", "behind", "rests")}
        orders = next((keys for knob, keys in of_order.items() if knob in self._knobs), ("ready",))
        timed = ("due",) if "TIMED" in self._knobs else ()
        for which in (*orders, "buried", *timed, "keys", "waiting"):
            yield from self._sweep(which)
        return disordered

    def _list(self, next_id: int) -> Flow[bool]:
        cursor, last = b"0", b"-1"
        while True:
            cursor, wrong, (last,) = yield from self._ask("check_index", "ready", cursor, last, next_id)
            if self._found.add(wrong) and not self._mends:
                return True
            if int(cursor) == 0:
                return False

    def _tasks(self, ids: Iterable[int], *, disordered: bool) -> Flow[None]:
        """Look at all tasks, the newest first: their ids must not be given again."""
        left = sorted(ids)
        size = _TASKS_OF_LANES if "LANE" in self._knobs else _TASKS
        while left:
            looked, wrong = yield from self._ask("check_tasks", "1" if disordered else "", *left[: -size - 1 : -1])
            self._found.add(wrong)
            del left[-looked:]

    def _holders(self, lanes: dict[str, int]) -> Flow[None]:
        """Look at who has taken what: sessions that live; of each lane as many as are noted."""
        taken = yield from self._sweep("taken")
        # Sessions that live now and did then are all among these.
        living = set((yield from self._sweep("leases")))
        rows = list(zip(*[iter(taken)] * 4, strict=True))
        orphans = [word for id, score, _, _ in rows if _session_of(score) not in living for word in (id, score)]
        for some in _batches(orphans):
            self._found.add((yield from self._ask("check_takes", "orphan", *some)))
        if any(timeless for *_, timeless in rows):
            streams = yield from self._streams()
            dues = [(id, score) for id, score, _, timeless in rows if timeless and _session_of(score) not in streams]
            for some in _batches([word for pair in dues for word in pair]):
                self._found.add((yield from self._ask("check_takes", "due", *some)))
        if "LANE" in self._knobs:
            counted = Counter(lane for _, _, lane, _ in rows)
            # Some may have come or gone since: one script sees all that are taken at one moment.
            doubtful = sorted(lane for lane in lanes.keys() | counted.keys() if lanes.get(lane, 0) != counted[lane])
            for some in _batches(doubtful):
                self._found.add((yield from self._ask("check_lanes", "", *some)))

    def _streams(self) -> Flow[set[int]]:
        """The sessions that have tasks for streams."""
        sessions: set[int] = set()
        cursor: ScriptReply = 0
        while True:
            cursor, some = yield from self._ask("check_streams", cursor)
            sessions.update(some)
            if int(cursor) == 0:
                return sessions

    def _counts(self) -> Flow[None]:
        """Look at what the tube counts."""
        if not {"LIST", "TIMED"} <= self._knobs:
            _, wrong = yield from self._ask("check_end", 0, "")
            self._found.add(wrong)
            return
        for _ in range(_TRIES):
            stamp, wrong = yield from self._ask("check_end", "", "")
            self._found.add(wrong)
            delayed = set((yield from self._sweep("due")))
            same, wrong = yield from self._ask("check_end", len(delayed), stamp)
            self._found.add(wrong)
            if same == stamp:
                return


def _batches(words: list[T], size: int = 1000) -> Iterable[list[T]]:
    return (words[start : start + size] for start in range(0, len(words), size))
