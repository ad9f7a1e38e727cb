"""One run of a worker: who takes, what is in hand, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tubes import sync
from tubes.calls import answer, is_call
from tubes.worker.fetcher import Taker
from tubes.worker.finishing import settle
from tubes.worker.handling import Handling
from tubes.worker.in_flight import NEVER, Flight
from tubes.worker.lease_renewer import Keeper
from tubes.worker.logs import log
from tubes.worker.outcomes import Verdict, reason_of
from tubes.worker.pool import Pool
from tubes.worker.summary import AT_ONCE, CUT_OFF, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tubes.aio import AsyncQueue, AsyncTube
    from tubes.sync import Queue, Tube
    from tubes.worker.hooks import Hook
    from tubes.worker.routes import Post

#: Seconds that handlers get to end, once they were cancelled.
_MOMENT: Final = 1.0


class Crew:
    """Everything that exists only while a worker runs. It lives in one event loop."""

    def __init__(
        self, queue: AsyncQueue, threads: Queue, replies: AsyncQueue, hooks: list[Hook], *, burst: bool
    ) -> None:
        #: The same session twice: for the event loop, and for threads.
        self.queue: Final = queue
        self.threads: Final = threads
        #: A session of its own for replies: the tubes in which it was open come and go.
        self.reply_queue: Final = replies
        self.burst: Final = burst
        self.summary: Final = Summary()
        self.pool: Final = Pool()
        self.keeper: Final = Keeper(self.thread_tube, self._lost, self._late)
        self._loop: Final = asyncio.get_running_loop()
        self._handling: Final = Handling(self, hooks)
        self._takers: Final[dict[object, Taker]] = {}
        self._flights: Final[set[Flight]] = set()
        self._tubes: Final[dict[str, Tube]] = {}
        #: Those of a burst that have failed, and are not tried again in it.
        self._aside: Final[list[tuple[Flight, Verdict]]] = []
        #: Tasks without a last attempt that this burst has given to a handler, and that are still there.
        self._tried: Final[set[tuple[str, int]]] = set()
        self._changed: Final = asyncio.Event()
        self._stopping = False
        self._stopped: Final = asyncio.Event()
        self._at_once = False
        # Asked by threads too.
        self._ended: Final = threading.Event()

    # -- who works on what ---------------------------------------------------------------------------------------------

    def employ(self, posts: dict[Post, int]) -> None:
        """Work on these posts from now on, each with so many handlers at a time."""
        for gone in self._takers.keys() - {post.key for post in posts}:
            self._takers.pop(gone).halt()
        for post, concurrency in posts.items():
            taker = self._takers.get(post.key)
            if taker is None:
                taker = self._takers[post.key] = Taker(self, post, concurrency)
            elif taker.post == post:
                continue
            if self.burst:
                taker.post = post
            elif not self._stopping:
                taker.begin(post)
        self._changed.set()

    def stop(self, *, now: bool) -> None:
        """Take no more; `now`: and wait for nothing."""
        self._stopping = True
        self._stopped.set()
        self._at_once = self._at_once or now
        self._changed.set()

    def has_ended(self) -> bool:
        """Whether nobody waits for what is still on its way."""
        return self._ended.is_set()

    # -- a run ---------------------------------------------------------------------------------------------------------

    async def run(self, grace: float) -> Summary:
        """Until it is stopped; in a burst until nothing is left."""
        try:
            if self.burst:
                await self._work_off()
            while not self._stopping and not self.burst:
                await self._change()
            for taker in self._takers.values():
                taker.halt()
            await self._wait_for_flights(grace)
            if self._flights:
                await self._cut_off()
            else:
                await self._release_aside()
            return self.summary
        finally:
            self._ended.set()
            for taker in self._takers.values():
                taker.halt()
            for flight in self._flights:
                if flight.runner is not None:
                    flight.runner.cancel()
            self.keeper.close()
            self.pool.close()

    async def _work_off(self) -> None:
        """A burst: until no tube has a task that may be taken, and no handler runs."""
        while not self._stopping:
            # One after the other: what a handler puts meanwhile is seen in the next round.
            found = [await taker.fill(0) for taker in list(self._takers.values())]
            if self._flights:
                await self._change()
            elif not any(found):
                return

    async def _change(self) -> None:
        """Until a handler has ended, or somebody wants something."""
        await self._changed.wait()
        self._changed.clear()

    async def _wait_for_flights(self, grace: float) -> None:
        ends = self._loop.time() + grace
        while self._flights and not self._at_once and (left := ends - self._loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._change()
            except TimeoutError:
                return

    async def _cut_off(self) -> None:
        """What is still in hand goes back, at the end of the session: it has not failed."""
        self._ended.set()
        self.summary.exit_code = AT_ONCE if self._at_once else CUT_OFF
        cut_off = [flight for flight in self._flights if self.keeper.claim(flight)]
        self.summary.cut_off += len(cut_off)
        for flight in cut_off:
            log.warning("cut off: the handler of %r, which goes back", flight.task)
        runners = [flight.runner for flight in self._flights if flight.runner is not None]
        for runner in runners:
            runner.cancel()
        if runners:
            await asyncio.wait(runners, timeout=_MOMENT)

    async def _release_aside(self) -> None:
        for flight, verdict in self._aside:
            if self.keeper.claim(flight):
                self.count(await self._handling.settle(flight, verdict), flight)

    # -- flights -------------------------------------------------------------------------------------------------------

    def start(self, flight: Flight) -> None:
        """A task was taken: call its handler."""
        self._flights.add(flight)
        self.keeper.add(flight)
        if (flight.task.tube, flight.task.id) in self._tried:
            self.set_aside(flight, Verdict("release"))
            return
        flight.runner = self._loop.create_task(self._handling.run(flight))

    def run_later(self, flight: Flight, way: Coroutine[Any, Any, None]) -> None:
        """Go this way with a flight."""
        flight.runner = self._loop.create_task(way)

    def is_in_hand(self, flight: Flight) -> bool:
        """Whether nobody has ended it yet."""
        return flight in self._flights

    def end(self, flight: Flight, outcome: str = "") -> None:
        """A handler is free again; `outcome`: what became of its task, if that was settled here."""
        if flight in self._flights:
            self._flights.discard(flight)
            flight.taker.free()
            if self.burst and flight.task.max_attempts is None and outcome not in ("acked", "buried"):
                self._tried.add((flight.task.tube, flight.task.id))
            self._changed.set()
            self.count(outcome, flight)

    def count(self, outcome: str, flight: Flight) -> None:
        """Count what became of a task."""
        if outcome:
            setattr(self.summary, outcome, getattr(self.summary, outcome) + 1)
        if outcome == "lost":
            log.warning("the work on a task ended too late, it may be done twice: %r", flight.task)

    def set_aside(self, flight: Flight, verdict: Verdict) -> None:
        """It has failed, and is released when the burst ends; until then the keeper keeps it."""
        flight.ends_at = NEVER
        if flight.given_up and flight.runner is not None:
            flight.runner.cancel()
        self._aside.append((flight, verdict))
        self.end(flight)

    async def rest(self, span: float) -> None:
        """Rest for so many seconds, but not when it is time to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(span):
                await self._stopped.wait()

    def call(self, act: Callable[..., object], *args: Any) -> None:
        """Do this in the event loop, if there is still one."""
        try:
            self._loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            log.debug("a worker has ended before its handler")

    def thread_tube(self, tube: AsyncTube) -> Tube:
        """The same tube, for threads."""
        known = self._tubes.get(tube.name)
        if known is None or known._port.shared is not tube._port.shared:
            known = self._tubes[tube.name] = self.threads.tube(tube.name)
        return known

    # -- what the keeper finds -----------------------------------------------------------------------------------------

    def _lost(self, flight: Flight) -> None:
        """A task is not this worker's any more: its handler works for nothing."""
        self.call(self._abandon, flight, "lost")

    def _late(self, flight: Flight) -> None:
        """A handler does not end: its task goes back without it."""
        flight.given_up, flight.ends_at = True, NEVER
        log.error("given up: the handler of %r has not ended after %s s", flight.task, flight.taker.post.timeout)
        self.pool.submit(lambda: self._give_up(flight))

    def _give_up(self, flight: Flight) -> None:
        task, error = flight.task, self._handling.overtime(flight)
        verdict = Verdict("release", reason_of(error), error=error)
        if self._handling.is_set_aside(flight, verdict):
            self.keeper.add(flight)
            self.call(self.set_aside, flight, verdict)
            return
        try:
            if is_call(task) and self._handling.is_last(task, "release"):
                try:
                    with sync.connect(self.threads) as queue:
                        answer(queue, task, why=reason_of(error))
                except Exception as lost:
                    log.warning("the reply to task %d of tube %r is lost: %s", task.id, task.tube, lost)
            outcome = settle(self.thread_tube(task._tube), task, verdict, self.has_ended)
        finally:
            self.call(self._abandon, flight, "")
        self.call(self.count, outcome, flight)

    def _abandon(self, flight: Flight, outcome: str) -> None:
        if flight.runner is not None:
            flight.runner.cancel()
        self.end(flight, outcome)
