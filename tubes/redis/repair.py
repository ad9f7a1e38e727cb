"""Check and repair a tube on a server while programs use it.

**How it works.** Each call reads a part of the tube. A problem found by one call existed when it ran. A problem that
takes several calls to find (an order that lists a task another call did not see, a wrong count) is either confirmed by
a call that reads all of its facts, or counts only if nothing has changed meanwhile. The checks run in this order
because later ones rely on earlier ones: the meta hash, the ids, the lanes, the indexes, the tasks, the takes, the
counts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tubes.errors import TubeNotFound, Unreadable
from tubes.redis import validation
from tubes.redis.all_tubes import batches_of
from tubes.redis.library.functions import FUNCTIONS, LAYOUT, TAKES, is_timed, order_of
from tubes.redis.library.replies import bytes_of, list_of, number_of
from tubes.redis.transport.script_call import Flow, ScriptCall
from tubes.redis.transport.wire import ErrorReply, Reply, Word, error_of
from tubes.redis.validation import encode_lane_options
from tubes.values.problem import KINDS, UNREPAIRABLE, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.drivers.driver import Driver
    from tubes.redis.sessions.store import RedisStore
#: Tasks per call; each costs more in a tube with lanes.
_TASKS: Final = 200
_TASKS_OF_LANES: Final = 100
#: Names listed per kind of problem, and names remembered per kind, to count each once even if HSCAN returns it twice.
_MAX_LISTED, _MAX_NAMES = 10, 10_000
#: The maximum number of attempts to count the delayed tasks of a tube that keeps changing.
_COUNT_ATTEMPTS: Final = 3


def examine(store: RedisStore, name: str, *, repairs: bool) -> Flow[list[Problem]]:
    """Return the problems of a tube; `repairs`: repair them too."""
    stored = yield from store.run_plain_script("describe", store.key(name))
    if stored is None:
        raise TubeNotFound(name=name)
    found = _Problems(name, repairs=repairs)
    its_driver, its_options = list_of(stored)
    try:
        driver = store.driver_of(name, its_driver)
        options = validation.options(name, its_options, driver)
    except Unreadable:
        found.add(["tube", name])
        return found.problems()
    examination = _Examination(store, name, driver, found, repairs=repairs)
    yield from examination.run(options.get("capacity", 0), encode_lane_options(options))
    return found.problems()


def _session_of(score: Reply) -> int:
    """Return the number of the session that holds a taken task, from its score; -1 if the score is invalid."""
    return int(score) // TAKES if isinstance(score, bytes) and score.isdigit() else -1


class _Problems:
    """The problems found so far, by kind."""

    def __init__(self, tube: str, *, repairs: bool) -> None:
        self._tube: Final = tube
        self._repairs: Final = repairs
        self._known: Final[dict[str, set[str]]] = {}
        self._counts: Final[Counter[str]] = Counter()

    def add(self, reply: object) -> bool:
        """Record the problems in a function's reply; return True if there were any."""
        words = list_of(reply)
        for kind, subject in zip(*[map(_text, words)] * 2, strict=True):
            known = self._known.setdefault(kind, set())
            if subject not in known:
                self._counts[kind] += 1
                if len(known) < _MAX_NAMES:
                    known.add(subject)
        return bool(words)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def problems(self) -> list[Problem]:
        """Return the problems for users, in the order of `KINDS`."""
        return [self._problem(kind) for kind in KINDS if kind in self._counts]

    def _problem(self, kind: str) -> Problem:
        batch = sorted(self._known[kind], key=lambda subject: (len(subject), subject))[:_MAX_LISTED]
        return Problem(kind, self._counts[kind], tuple(batch), self._repairs and kind not in UNREPAIRABLE, self._tube)


def _text(word: Reply) -> str:
    return word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else str(word)


class _Examination:
    """One check of one tube."""

    def __init__(
        self,
        store: RedisStore,
        name: str,
        driver: Driver,
        found: _Problems,
        *,
        repairs: bool,
    ) -> None:
        self._store: Final = store
        self._name: Final = name
        self._driver: Final = driver
        self._found: Final = found
        self._repairs: Final = repairs

    def _ask(self, name: str, *args: Word) -> Flow[Reply]:
        words = ("1" if self._repairs else "", self._store.now(), *args)
        reply: Reply = yield ScriptCall(FUNCTIONS[name], self._store.key(self._name), words)
        if isinstance(reply, ErrorReply):
            raise TubeNotFound(name=self._name) if reply.code == "TUBEGONE" else error_of(reply, self._store.url)
        return reply

    def _scan(self, name: str, *args: Word) -> Flow[list[list[Reply]]]:
        """Call a function with its last cursor until it returns 0; return the rest of each reply."""
        pages: list[list[Reply]] = []
        cursor = 0
        while True:
            after, *page = list_of((yield from self._ask(name, *args, cursor)))
            pages.append(page)
            if (cursor := number_of(after)) == 0:
                return pages

    def run(self, capacity: int, lane_options: str) -> Flow[None]:
        """Check the whole tube, in the order that the module's docstring gives."""
        kind = "list" if order_of(self._driver) == "list" else "zset"
        meta = ("check_meta", kind, capacity, lane_options)
        others = TAKES, LAYOUT, uuid4().hex
        broken = self._found.add((yield from self._ask(*meta, "", *others)))
        if broken and not self._repairs:
            return  # Keys of a wrong type and invalid numbers make the other checks impossible.
        ids = yield from self._ids()
        if broken:
            yield from self._ask(*meta, max(ids, default=-1), *others)
        lanes: dict[bytes, int] = {}
        if self._driver.lane is not None:
            lanes = yield from self._lanes()
        disordered = yield from self._indexes(max(ids, default=-1) + 1)
        yield from self._tasks(ids, disordered=disordered)
        yield from self._check_takes(lanes)
        yield from self._sweep("meta")
        # A misplaced task makes counts wrong too, so an unrepaired tube is not counted.
        if self._repairs or not self._found:
            yield from self._counts()
        if self._repairs:
            yield ScriptCall(FUNCTIONS["damage"], self._store.key(self._name), ("",))
            for marker in ("marker", "room"):  # Waiters look again for tasks and room.
                yield ScriptCall(FUNCTIONS["wake"], self._store.key(self._name), (marker,))

    def _ids(self) -> Flow[set[int]]:
        """Return the ids of all tasks."""
        ids: set[int] = set()
        for batch, wrong in (yield from self._scan("check_ids")):
            ids.update(map(int, bytes_of(batch).split()))
            self._found.add(wrong)
        return ids

    def _sweep(self, index: str) -> Flow[list[Reply]]:
        """Check every entry of a key; return the facts that the function collects."""
        found: list[Reply] = []
        for wrong, batch in (yield from self._scan("check_index", index)):
            self._found.add(wrong)
            found += list_of(batch)
        return found

    def _lanes(self) -> Flow[dict[bytes, int]]:
        """Return the recorded number of taken tasks per lane; report lanes that share a number."""
        found = yield from self._sweep("lanes")
        taken: dict[bytes, int] = {}
        by_number: dict[bytes, bytes] = {}
        duplicates: set[bytes] = set()
        for lane, its_number, count in zip(*[iter(found)] * 3, strict=True):
            name, number = bytes_of(lane), bytes_of(its_number)
            taken[name] = number_of(count)
            if number and by_number.setdefault(number, name) != name:
                duplicates.add(name)
        for batch in batches_of(sorted(duplicates)):
            self._found.add((yield from self._ask("check_lanes", "1", *batch)))
        return taken

    def _indexes(self, next_id: int) -> Flow[bool]:
        """Check the keys that order tasks; return True if the list of ready tasks is out of order."""
        disordered = False
        if order_of(self._driver) == "list":
            disordered = yield from self._list(next_id)
        orders = {"list": ("back",), "lanes": ("offers", "behind", "cooldowns"), "set": ("ready",)}[
            order_of(self._driver)
        ]
        timed = ("due",) if is_timed(self._driver) else ()
        for index in (*orders, "buried", *timed, "keys", "known", "done", "ended", "waiting"):
            yield from self._sweep(index)
        return disordered

    def _list(self, next_id: int) -> Flow[bool]:
        cursor, last = 0, -1
        while True:
            after, wrong, batch = list_of((yield from self._ask("check_index", "ready", cursor, last, next_id)))
            cursor, (last,) = number_of(after), map(number_of, list_of(batch))
            if self._found.add(wrong) and not self._repairs:
                return True
            if cursor == 0:
                return False

    def _tasks(self, ids: Iterable[int], *, disordered: bool) -> Flow[None]:
        """Check all tasks, the newest first, so that the first call repairs the tube's next id."""
        left = sorted(ids)
        size = _TASKS_OF_LANES if self._driver.lane is not None else _TASKS
        while left:
            reply = yield from self._ask("check_tasks", "1" if disordered else "", *left[: -size - 1 : -1])
            checked, wrong = list_of(reply)
            self._found.add(wrong)
            del left[-number_of(checked) :]

    def _check_takes(self, lanes: dict[bytes, int]) -> Flow[None]:
        """Check that takes belong to living sessions, and that each lane records the right number of takes."""
        taken = yield from self._sweep("taken")
        # A session that lives now and lived when the takes were read is among these.
        live = set(map(number_of, (yield from self._sweep("leases"))))
        rows = list(zip(*[iter(taken)] * 4, strict=True))
        orphans = [word for id, score, _, _ in rows if _session_of(score) not in live for word in (id, score)]
        for batch in batches_of(orphans):
            self._found.add((yield from self._ask("check_takes", "orphan", *batch)))
        if any(timeless for *_, timeless in rows):
            streams = yield from self._streams()
            dues = [(id, score) for id, score, _, timeless in rows if timeless and _session_of(score) not in streams]
            for batch in batches_of([word for pair in dues for word in pair]):
                self._found.add((yield from self._ask("check_takes", "due", *batch)))
        if self._driver.lane is not None:
            counted = Counter(lane for _, _, lane, _ in rows)
            # Tasks may have moved meanwhile: one call recounts all takes of these lanes at one moment.
            doubtful = sorted(lane for lane in lanes.keys() | counted.keys() if lanes.get(lane, 0) != counted[lane])
            for batch in batches_of(doubtful):
                self._found.add((yield from self._ask("check_lanes", "", *batch)))

    def _streams(self) -> Flow[set[int]]:
        """Return the sessions that hold tasks for streams."""
        pages = yield from self._scan("check_streams")
        return {number_of(session) for (batch,) in pages for session in list_of(batch)}

    def _counts(self) -> Flow[None]:
        """Check the counts of the tube."""
        if order_of(self._driver) != "list" or not is_timed(self._driver):
            _, wrong = list_of((yield from self._ask("check_end", 0, "")))
            self._found.add(wrong)
            return
        for _ in range(_COUNT_ATTEMPTS):
            stamp, wrong = list_of((yield from self._ask("check_end", "", "")))
            self._found.add(wrong)
            delayed = set(map(number_of, (yield from self._sweep("due"))))
            same, wrong = list_of((yield from self._ask("check_end", len(delayed), bytes_of(stamp))))
            self._found.add(wrong)
            if same == stamp:
                return
