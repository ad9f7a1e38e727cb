"""Waiters on a server change their states only by the table, for all events in any order."""

from __future__ import annotations

import random
from collections import Counter, deque
from itertools import count
from typing import Any

import pytest

from tests.support.interrupting import interrupt_twice
from tubes.backend.waiters import PENDING
from tubes.drivers.moves import State
from tubes.drivers.timers import NEVER
from tubes.errors import ConnectionLost, QueueClosed, ServerRefused, TubesError
from tubes.redis import task_codec
from tubes.redis.transport.script_call import WaitForLock
from tubes.redis.waiting.wait_loop import Serving
from tubes.redis.waiting.wait_queue import WAIT_MOVES, WaitMove, WaitQueue, WaitState
from tubes.values.task import TaskView

#: All rows of the table except the first, the arrival of a waiter.
ROWS = [(why, was, move) for why, moves in WAIT_MOVES.items() for was, move in moves.items() if was is not None]
#: The states of queued waiters.
IN_LINE = {*WaitState} - {WaitState.FINISHED, WaitState.WITHDRAWN}
#: The states in which it is uncertain whether an earlier put was executed.
DOUBTS = {WaitState.UNSURE, WaitState.SENT_AGAIN, WaitState.OVERDUE_AGAIN}


class Caller:
    """A waiter that counts its wake-ups."""

    timeout = span = None

    def __init__(self, owner: Any, request: Any = None) -> None:
        self.owner = owner
        self.request = request
        self.result: Any = PENDING
        self.deadline: int | None = None
        self.woken = 0
        #: True after cancellation, and True while it can be woken.
        self.cancelled = False
        self.hears = True

    def is_done(self) -> bool:
        return self.cancelled

    def has_left(self) -> bool:
        return self.cancelled

    def wake(self) -> bool:
        self.woken += 1
        return self.hears


def events_to(state: WaitState) -> list[str]:
    """Return the events that lead a queued waiter to a state."""
    paths: deque[tuple[WaitState, list[str]]] = deque([(WaitState.QUEUED, [])])
    seen = {WaitState.QUEUED}
    while paths:
        at, events = paths.popleft()
        if at is state:
            return events
        for why, was, move in ROWS:
            if was is at and move.to not in seen:
                seen.add(move.to)
                paths.append((move.to, [*events, why]))
    raise AssertionError(f"no way leads to {state}")


def waiter_in(queue: WaitQueue, state: WaitState) -> Caller:
    """Return a waiter in this state."""
    waiter = Caller(None, "a put")
    queue.enlist(waiter)
    for why in events_to(state):
        assert queue.move(waiter, why, "before")
    assert queue.state(waiter) is state
    waiter.woken = 0
    return waiter


def new_queue() -> WaitQueue:
    return WaitQueue(lambda: 0, "redis://here")


def test_each_row_of_the_table_moves_a_waiter(subtests: pytest.Subtests) -> None:
    for why, was, move in ROWS:
        with subtests.test(f"{why} {was}"):
            queue = new_queue()
            waiter = waiter_in(queue, was)
            assert queue.move(waiter, why, "a task") is True
            assert queue.state(waiter) is move.to
            assert (waiter in queue.put_waiters) is (move.to in IN_LINE)
            assert waiter.woken == move.wakes
            if move.warns:
                assert isinstance(waiter.result, ConnectionLost)
            else:
                assert waiter.result == ("a task" if move.to is WaitState.FINISHED else PENDING)


def test_event_outside_the_table_has_no_effect(subtests: pytest.Subtests) -> None:
    for why, moves in WAIT_MOVES.items():
        for state in {*WaitState} - moves.keys():
            with subtests.test(f"{why} {state}"):
                queue = new_queue()
                waiter = waiter_in(queue, state)
                result = waiter.result
                assert queue.move(waiter, why, "a task") is False
                assert (queue.state(waiter), waiter.result, waiter.woken) == (state, result, 0)


def test_waiter_that_cannot_be_woken_is_gone(subtests: pytest.Subtests) -> None:
    for why, was, move in ROWS:
        with subtests.test(f"{why} {was}"):
            queue = new_queue()
            waiter = waiter_in(queue, was)
            waiter.hears = False
            assert queue.move(waiter, why, "a task") is not move.wakes
            assert queue.state(waiter) is (WaitState.WITHDRAWN if move.wakes else move.to)


def test_uncertain_put_stays_uncertain_until_served_or_failed() -> None:
    """The uncertainty lasts until the waiter has a task or an error."""
    for why, was, move in ROWS:
        if was in DOUBTS:
            assert move.to in DOUBTS or move.to is WaitState.FINISHED, (why, was)
        elif why == "lose":
            assert move.to in DOUBTS or move.warns
        else:
            assert not move.warns


def test_waiter_that_left_is_not_woken_and_sleeping_waiter_is() -> None:
    for why, was, move in ROWS:
        assert was in IN_LINE or (why, was, move) == ("wake_failed", WaitState.FINISHED, WaitMove(WaitState.WITHDRAWN))
        # A waiter that continues to sleep after its timeout must be woken by this move.
        if was in {WaitState.OVERDUE, WaitState.OVERDUE_AGAIN} and move.to not in IN_LINE and why != "leave":
            assert move.wakes


def task_of(id: int) -> TaskView:
    """Return a put or taken task."""
    stored = task_codec.StoredTask()
    stored.id, stored.created, stored.data, stored.extras = id, 0, None, None
    stored.pri, stored.ttl, stored.ttr, stored.utube = 0, None, None, None
    nowhere: Any = None
    return task_codec.make_task(TaskView, nowhere, stored, State.READY, 0, NEVER, id)


class Server:
    """A port and its server: each request gets a reply, is refused, or is lost at random."""

    session = None

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ids = count()
        self.done: dict[int, str] = {}
        self.undone: Counter[int] = Counter()

    def _reply(self, method: str) -> Any:
        yield method
        what = self._rng.random()
        if what < 0.15:
            raise ConnectionLost(url="here", why="it was cut")
        if what < 0.2:
            raise ServerRefused(url="here", why="no rights")
        if what < 0.5:
            return None
        id = next(self._ids)
        self.done[id] = method
        return id

    def take_waiting(self, count: int, span: object, undo: object) -> Any:
        id = yield from self._reply("take")
        return 0 if id is None else (id, b"t", 1, id, -1, b"")

    def put_waiting(self, request: object) -> Any:
        id = yield from self._reply("put")
        return None if id is None else task_of(id)

    def decode(self, taken: Any) -> TaskView:
        return task_of(taken[0])

    def undo(self, method: str, *words: Any, **about: Any) -> Any:
        self.undone[words[0]] += 1
        yield method


class Recorded(WaitQueue):
    """A queue that checks each move and records the used rows."""

    def __init__(self) -> None:
        super().__init__(lambda: 0, "redis://here")
        self.used: set[tuple[str, WaitState]] = set()
        #: The state of each waiter according to the moves so far.
        self.known: dict[Any, WaitState] = {}

    def enlist(self, waiter: Any) -> bool:
        self.known[waiter] = WaitState.QUEUED
        return super().enlist(waiter)

    def move(self, waiter: Any, event: str, result: object = PENDING) -> bool:
        was = self.state(waiter)
        assert was is self.known[waiter], "the state was changed without a move"
        row = WAIT_MOVES[event].get(was)
        if row is not None:
            self.used.add((event, was))
            self.known[waiter] = row.to
        return super().move(waiter, event, result)

    def check(self) -> None:
        """Check that all states result from moves."""
        assert {waiter: self.state(waiter) for waiter in self.known} == self.known


def play(seed: int) -> Recorded:
    """Let callers arrive, leave, fail and be served in a random order, with random replies of the server."""
    rng = random.Random(seed)
    queue, server = Recorded(), Server(rng)
    serving = Serving(queue)

    def change_at_random() -> None:
        callers: list[Caller] = [*queue.known]
        what = rng.random()
        if what < 0.2 or not callers:
            new = Caller(server, "a put" if rng.random() < 0.6 else None)
            new.hears = rng.random() < 0.95
            queue.enlist(new)
            return
        line: list[Any] = [*rng.choice([queue.take_waiters, queue.put_waiters, callers])]
        caller = rng.choice(line[:4] or callers)
        if what < 0.6:
            queue.move(caller, "keep")
        elif what < 0.65:
            caller.cancelled = True
        elif what < 0.75:
            queue.move(caller, rng.choice(["leave", "end"]))
        elif what < 0.8:
            queue.move(caller, "dismiss", QueueClosed(why="it was closed"))
        elif what < 0.85:
            queue.move(caller, "refuse", ServerRefused(url="here", why="no rights"))
        elif caller.request is None:
            queue.move(caller, rng.choice(["arm", "disarm"]))

    def serve() -> None:
        flow: Any = serving.serve() if rng.random() < 0.5 else serving.serve_one()
        try:
            step = next(flow)
            while True:
                assert not isinstance(step, WaitForLock)
                for _ in range(rng.randrange(3)):
                    change_at_random()
                    queue.check()
                step = flow.throw(KeyboardInterrupt()) if rng.random() < 0.03 else flow.send(None)
        except (StopIteration, TubesError, KeyboardInterrupt):
            queue.check()

    for _ in range(60):
        change_at_random()
        serve()
        if rng.random() < 0.05:
            queue.begin_first_put(set())  # Then the serving thread is interrupted.
    check(queue, server)
    return queue


def check(queue: Recorded, server: Server) -> None:
    """Check that each take and put has one owner or was undone once, and that no waiter was woken twice."""
    callers: list[Caller] = [*queue.known]
    deliveries = Counter(caller.result.id for caller in callers if isinstance(caller.result, TaskView))
    for id in server.done:
        assert deliveries[id] + server.undone[id] == 1, (id, server.done[id])
    for caller in callers:
        assert caller.woken <= 1
        state = queue.state(caller)
        if state is WaitState.FINISHED:
            assert caller.result is not PENDING
        assert (caller in queue.waiters()) is (state in IN_LINE)
        assert caller.request is not None or state not in {*DOUBTS, WaitState.SENT, WaitState.OVERDUE}


def test_random_runs_deliver_or_undo_each_task() -> None:
    for seed in range(40):
        play(seed)


def test_waiter_whose_take_is_under_way_gets_no_other_take() -> None:
    queue = new_queue()
    callers: list[Any] = [Caller(None) for _ in range(2)]
    for caller in callers:
        queue.enlist(caller)
    queue.move(callers[0], "arm")
    assert queue.first(queue.take_waiters) == callers[1]
    queue.move(callers[1], "arm")
    assert queue.first(queue.take_waiters) is None
    queue.move(callers[0], "disarm")
    assert queue.first(queue.take_waiters) == callers[0]


def test_arriving_waiters_do_not_count() -> None:
    queue = new_queue()
    callers: list[Any] = [Caller(None), Caller(None, "a put"), Caller(None)]
    for caller in callers:
        queue.enlist(caller)
    assert queue.count() == 3
    queue.arriving.update(callers[:2])
    assert queue.count() == 1


@pytest.mark.full
def test_random_runs_use_every_row_of_the_table_and_no_other() -> None:
    used: set[tuple[str, WaitState]] = set()
    for seed in range(800):
        used |= play(seed).used
    assert used == {(why, was) for why, was, _ in ROWS}


def test_interrupted_serving_frees_its_lock() -> None:
    for moment in count():
        serving = Serving(WaitQueue(lambda: 0, "redis://x"))
        flow = serving.serve()
        hits = interrupt_twice(lambda flow=flow: list(flow), moment, NEVER)  # type: ignore[misc]
        assert not serving.lock.locked(), moment
        if not hits:
            assert moment > 4
            return
