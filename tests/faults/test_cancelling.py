"""Cancels that race with other calls: one call wins, and callers, listeners, the holder and the store agree on it."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import PATIENCE, eventually
from tubes import TaskCancelled, TaskNotFound, TaskNotTaken
from tubes.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.contract.faces import Face
    from tubes.testing import LocalServer


#: The number of tasks in one race.
TASKS = 20
#: The ttr of tasks whose takes end by it during a race, in seconds.
TTR = 0.05
#: The reason of the caller that cancels a selection.
ALL = "all of them"
#: The methods of the callers of each race, by the name of the race. All act on the same tasks, each in its own order.
RACES = {
    "ack": ("cancel", "cancel", "ack"),
    "delete": ("cancel", "cancel", "delete", "ack"),
    "checkpoint": ("cancel", "checkpoint", "checkpoint", "touch"),
    "release": ("cancel", "cancel", "release", "take"),
    "ttr": ("cancel", "cancel", "take", "take"),
    "bury and kick": ("cancel", "cancel", "bury", "kick", "kick"),
    "move": ("cancel", "cancel", "move"),
    "selection": ("cancel", "cancel all", "ack", "release"),
    "all": ("cancel", "cancel", "release", "take", "bury", "kick", "move", "cancel all", "checkpoint", "ack"),
}
#: The event of each method that acts on one task.
EVENTS = {
    "cancel": "cancel",
    "ack": "delete",
    "delete": "delete",
    "checkpoint": "touch",
    "touch": "touch",
    "release": "release",
    "bury": "bury",
    "take": "take",
}


class Outcome(NamedTuple):
    """The result of one call; `id` is None for a call on many tasks, whose `result` is their number."""

    id: int | None
    method: str
    #: "ok", the name of the exception, or "forgotten": a delete removed the record of a done task.
    result: str | int
    #: Of the cancel that a caller made, or that another caller learned of.
    reason: str | None = None


def act(tube: Any, method: str, id: int, lease: str | int, reason: str) -> Outcome:
    """Make one call on one task."""
    call: Callable[[], Any] = {
        "cancel": lambda: tube.cancel(id, reason),
        "delete": lambda: tube.delete(id),
        "ack": lambda: tube.ack(lease),
        "release": lambda: tube.release(lease),
        "bury": lambda: tube.bury(lease),
        "touch": lambda: tube.touch(lease, 60),
        "checkpoint": lambda: tube._checkpoint(lease, id, 0.5),
    }[method]
    try:
        task = call()
    except TaskCancelled as error:
        return Outcome(id, method, "TaskCancelled", error.facts["reason"])
    except (TaskNotTaken, TaskNotFound) as error:
        return Outcome(id, method, type(error).__name__)
    if method == "delete" and task.ended is not None:
        return Outcome(id, method, "forgotten")
    return Outcome(id, method, "ok", reason if method == "cancel" else None)


def perform(
    queue: Any, name: str, number: int, leases: dict[int, str | int], seed: str, wait: Callable[[], object]
) -> list[Outcome]:
    """Make the calls of one caller of a race, after all callers are ready."""
    method = RACES[name][number]
    reason = ALL if method == "cancel all" else f"caller {number}"
    rng = random.Random(f"{seed} {number}")
    tube, other = queue.tube("load"), queue.tube("other")
    wait()
    if method in ("kick", "move", "cancel all"):
        outcomes: list[Outcome] = []
        for _ in range(6):
            if method == "kick":
                count = tube.select("buried").kick()
            elif method == "move":
                count = tube.select("ready").move_to(other)
            else:
                count = tube.select().cancel(reason)
            outcomes.append(Outcome(None, method, count))
            time.sleep(rng.random() * 0.002)
        return outcomes
    outcomes, end = [], time.monotonic() + 3 * TTR
    for id in rng.sample([*leases], len(leases)):
        if method == "take":
            # A take that waits may get a task too late, and give it back.
            while (task := tube.take(timeout=0)) is None and time.monotonic() < end:
                time.sleep(0.001)
            if task is not None:
                outcomes.append(Outcome(task.id, "take", "ok"))
                outcomes.append(act(tube, "ack", task.id, task.lease, reason))
        else:
            outcomes.append(act(tube, method, id, leases[id], reason))
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.002)
    return outcomes


def perform_in_process(
    url: str, name: str, number: int, leases: dict[int, str | int], seed: str, start: float
) -> list[Outcome]:
    """Make the calls of one caller in a process of its own."""
    with tubes.connect(url, session_ttl=30) as queue:
        return perform(queue, name, number, leases, seed, lambda: time.sleep(max(0.0, start - time.time())))


class Race:
    """A tube with a listener and a holder, and the ledger of a race on its tasks."""

    def __init__(self, queue: Any, keep_done: int) -> None:
        self.tube = queue.create_tube("load", "fifottl", keep_done=keep_done)
        self.other = queue.create_tube("other", "fifottl", keep_done=keep_done)
        self._keep_done = keep_done
        self._events: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        self._losses: dict[int, list[Any]] = defaultdict(list)
        self.tube.on_task_change(lambda task, event: self._events[task.id].append((event, str(task.state))))
        port = getattr(self.tube, "inner", self.tube)._port
        subscribed = threading.Event()
        port.on_loss(lambda loss: subscribed.set() if loss is None else self._losses[loss.id].append(loss))
        if port.connection.is_remote:  # Losses before the subscription are not reported.
            assert subscribed.wait(PATIENCE)
        #: The numbers of the takes of the holder, by id.
        self._held: dict[int, int] = {}
        self.leases: dict[int, str | int] = {}

    def begin(self, name: str) -> None:
        """Put the tasks, and take all or half of them."""
        self.tube.put_many(range(TASKS), ttr=TTR if name in ("ttr", "all") else 60)
        tasks = self.tube.take_many(TASKS // 2 if name in ("move", "all") else TASKS, timeout=0)
        self._held = {task.id: task._take for task in tasks}
        self.leases = {task.id: task.id for task in self.tube.select()} | {task.id: task.lease for task in tasks}
        if name == "ttr":
            time.sleep(TTR * 0.8)

    def check(self, outcomes: list[Outcome]) -> None:
        """Compare the results of all callers, the events, the losses of the holder, and the stored tasks."""
        assert len(self.leases) == TASKS
        counts = self._count(outcomes)
        expected = Counter[str]()
        for (_, method), number in counts.items():
            expected[EVENTS[method]] += number
        expected["take"] += len(self._held)
        many = Counter[str]()
        for outcome in outcomes:
            if outcome.id is None:
                many[outcome.method] += int(outcome.result)
        expected += Counter(kick=many["kick"], delete=many["move"], cancel=many["cancel all"], put=TASKS)

        def seen() -> Counter[str]:
            events = Counter(event for id in self.leases for event, _ in self._events[id])
            del events["ttr"]
            return +events

        assert eventually(lambda: seen() == expected), (seen(), expected)
        cancels = {outcome.id: outcome.reason for outcome in outcomes if outcome[1:3] == ("cancel", "ok")}
        everywhere = many["move"]
        for id in self.leases:
            is_forgotten = any(outcome[:3] == (id, "delete", "forgotten") for outcome in outcomes)
            everywhere += self._check_task(id, counts, cancels, many, is_forgotten)
        assert many["move"] == sum(1 for _ in self.other.select())
        for outcome in outcomes:
            if outcome.result == "TaskCancelled":
                assert outcome.reason == cancels.get(outcome.id, ALL)
        # Each task ended once, lives here, or lives in the other tube.
        assert everywhere == TASKS

    @staticmethod
    def _count(outcomes: list[Outcome]) -> Counter[tuple[int, str]]:
        """Count the calls that succeeded, by task and method."""
        return Counter(
            (outcome.id, outcome.method) for outcome in outcomes if outcome.id is not None and outcome.result == "ok"
        )

    def _cancels(self, id: int) -> list[str | None]:
        """Return the reasons of the cancels that were reported to the holder."""
        losses = self._losses[id]
        return [loss.reason for loss in losses if loss.event == "cancel" and loss.take == self._held.get(id)]

    def _check_task(
        self,
        id: int,
        counts: Counter[tuple[int, str]],
        cancels: dict[int | None, str | None],
        many: Counter[str],
        is_forgotten: bool,
    ) -> int:
        """Check one task, and return 1 unless it was moved."""
        cancels_all, moves = bool(many["cancel all"]), bool(many["move"])
        events = self._events[id]
        states = ["", *(state for _, state in events)]
        names = [name for name, _ in events]
        ends = [name for name in names if name in ("cancel", "delete")]
        assert states.count("done") == len(ends) <= 1, events
        assert not ends or names[-1] == ends[0], events
        ended = counts[id, "cancel"] + counts[id, "ack"] + counts[id, "delete"]
        assert ended == len(ends) or (ended == 0 and (cancels_all or moves)), (events, counts)
        assert counts[id, "cancel"] == names.count("cancel") or cancels_all, (events, counts)
        for method in ("release", "bury", "take"):
            started = method == "take" and id in self._held
            assert counts[id, method] + started == names.count(method), (method, events, counts)
        is_moved = moves and ends == ["delete"] and not ended
        was_held = ends == ["cancel"] and states[-2] == "taken" and names.count("take") == 1 and id in self._held
        reason = cancels.get(id, ALL)
        # The holder is notified once of the loss of its take, with the reason of the caller that succeeded.
        assert eventually(lambda: self._cancels(id) == ([reason] if was_held else [])), (id, self._cancels(id), events)
        try:
            task = self.tube.peek(id)
        except TaskNotFound:
            assert ends, events
            assert is_moved or is_forgotten or not (self._keep_done or was_held), (events, self._keep_done)
        else:
            assert str(task.state) == states[-1], events
            if ends:
                assert (task.why == "cancelled") == task.cancelled == (ends == ["cancel"]), events
                assert task.reason == (reason if task.cancelled else None)
        return 0 if is_moved else 1


@pytest.fixture(params=["memory", "folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty store."""
    if request.param == "server":
        yield request.getfixturevalue("url")
    else:
        yield f"memory://{uuid4().hex}" if request.param == "memory" else f"file:{tmp_path}"


@pytest.mark.sample(6)
@pytest.mark.parametrize("keep_done", [0, 60], ids=["", "kept"])
@pytest.mark.parametrize("name", RACES)
def test_one_of_racing_threads_wins(place: str, face: Face, name: str, keep_done: int, seed: int, factor: int) -> None:
    for round in range(5 * factor):
        with face.connect(place) as queue, ThreadPoolExecutor(len(RACES[name])) as pool:
            race = Race(queue, keep_done)
            sessions = [queue.session() if number % 2 else face.connect(place) for number in range(len(RACES[name]))]
            race.begin(name)
            together = threading.Barrier(len(sessions))

            calls = [
                pool.submit(perform, session, name, number, race.leases, f"{seed} {round}", together.wait)
                for number, session in enumerate(sessions)
            ]
            race.check([outcome for call in calls for outcome in call.result()])
            for session in sessions:
                session.close()
            for tube in (race.tube, race.other):
                tube.admin.release_all()
                tube.drop()


@pytest.mark.full
@pytest.mark.parametrize("keep_done", [0, 60], ids=["", "kept"])
def test_one_of_racing_processes_wins(url: str, keep_done: int, seed: int, factor: int) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in [*RACES] * factor:
            with tubes.connect(url) as queue:
                race = Race(queue, keep_done)
                race.begin(name)
                start = time.time() + 0.1
                calls = [
                    pool.submit(perform_in_process, url, name, number, race.leases, f"{seed}", start)
                    for number in range(len(RACES[name]))
                ]
                race.check([outcome for call in calls for outcome in call.result()])
                for tube in (race.tube, race.other):
                    tube.admin.release_all()
                    tube.drop()


def test_cancels_while_the_subscription_is_cut_end_their_handlers(own_server: LocalServer, factor: int) -> None:
    begun, ends = set[int](), list[tuple[int, bool]]()
    with tubes.connect(own_server.url) as queue, own_server.client() as client:
        tube = queue.create_tube("load")
        worker = Worker(queue)

        @worker.on(tube, concurrency=5)
        async def work(task: tubes.AsyncTask) -> None:
            begun.add(task.id)
            try:
                await asyncio.sleep(3600)
            finally:
                ends.append((task.id, task.cancelled))

        thread = threading.Thread(target=worker.run)
        thread.start()
        for _ in range(10 * factor):
            tasks = tube.put_many(range(5))
            assert eventually(lambda ids={task.id for task in tasks}: ids <= begun)  # type: ignore[misc]
            for task in tasks:
                client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                tube.cancel(task)
            assert eventually(lambda: len(ends) == len(begun)), begun - {id for id, _ in ends}
        worker.stop()
        thread.join()
    assert ends == [(id, True) for id, _ in ends]
    assert len({id for id, _ in ends}) == 50 * factor
