"""One run of a worker: its fetchers, its tasks in flight, the ends of handlers, and its own end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from operator import call
from typing import TYPE_CHECKING, Final

from tubes import sync
from tubes.backend.flow import run
from tubes.calls import answer, is_call
from tubes.drivers.options import SECOND, seconds
from tubes.errors import TubesError
from tubes.values.task import FINISHED
from tubes.values.worker_info import NAMED, HandlerInfo, HeldTask
from tubes.worker.acks import Acks
from tubes.worker.fetcher import Fetcher
from tubes.worker.finishing import Finishing, carry_out
from tubes.worker.handling import Handling, overtime
from tubes.worker.in_flight import NEVER, InFlight
from tubes.worker.lease_renewer import LeaseRenewer
from tubes.worker.lifetime import RETRY, Lifetime
from tubes.worker.logs import log
from tubes.worker.outcomes import Outcome, Verdict, log_verdict, name_of, reason_of, trace_of, verdict_of
from tubes.worker.pool import Pool
from tubes.worker.presence import Presence
from tubes.worker.processes import Processes
from tubes.worker.scheduler import Scheduler
from tubes.worker.summary import AT_ONCE, CUT_OFF, Summary

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tubes.aio import AsyncTask
    from tubes.values.worker_info import WorkerInfo
    from tubes.worker.connections import Connections
    from tubes.worker.hooks import Hook
    from tubes.worker.routes import Route

#: Seconds that handlers get to end, once they were cancelled.
_MOMENT: Final = 1.0


class Run:
    """Everything that exists only while a worker runs. It lives in one event loop."""

    def __init__(self, connections: Connections, hooks: list[Hook], *, burst: bool) -> None:
        self._connections: Final = connections
        self._burst: Final = burst
        self._summary: Final = Summary()
        self._lifetime: Final = Lifetime()
        self._pool: Final = Pool()
        self._processes: Final = Processes()
        self._renewer: Final = LeaseRenewer(connections.thread_tube, self._lost, self._late)
        self._handling: Final = Handling(connections, self._lifetime, self._pool, self._processes, hooks)
        self._finishing: Final = Finishing(connections.replies, self._lifetime)
        self._acks: Final = Acks(self._end, self._not_acked)
        self._fetchers: Final[dict[object, Fetcher]] = {}
        self._in_flight: Final[set[InFlight]] = set()
        # Tasks that have failed in a burst, and are not tried again in it.
        self._aside: Final[list[tuple[InFlight, Verdict]]] = []
        # Tasks without `max_attempts` that a handler of this burst had, and that still exist.
        self._tried: Final[set[tuple[str, int]]] = set()
        self._changed: Final = asyncio.Event()
        self._scheduler: Final = Scheduler(connections.queue)
        self._presence: Final = Presence(connections.threads, self._described)

    def follow(self, routes: dict[Route, int]) -> None:
        """Work on these routes from now on, each with so many handlers at a time."""
        for gone in self._fetchers.keys() - {route.key for route in routes}:
            self._fetchers.pop(gone).halt()
        for route, concurrency in routes.items():
            fetcher = self._fetchers.get(route.key)
            if fetcher is None:
                fetcher = Fetcher(route, concurrency, self._connections.queue, self._lifetime, self._start)
                self._fetchers[route.key] = fetcher
            elif fetcher.route == route:
                continue
            if self._burst:
                fetcher.route = route
            elif not self._lifetime.is_stopping:
                fetcher.begin(route)
        self._scheduler.follow(routes)
        if not self._burst and not self._lifetime.is_stopping:
            self._scheduler.begin()
        self._changed.set()

    def stop(self, *, now: bool) -> None:
        """Take no more tasks; `now`: and do not wait for handlers."""
        self._lifetime.stop(now=now)
        self._changed.set()

    async def work(self, grace: float) -> Summary:
        """Work until it is stopped; in a burst until nothing is left."""
        for fetcher in self._fetchers.values():
            log.info("works on %s", fetcher)
        self._presence.begin(self._connections.session, at_once=not self._burst)
        try:
            if self._burst:
                await self._scheduler.plan()
                await self._work_off()
            while not self._lifetime.is_stopping and not self._burst:
                await self._change()
            self._halt()
            if self._in_flight:
                log.info("takes no more tasks, and holds %d", len(self._in_flight))
            await self._wait_for_handlers(grace)
            if self._in_flight:
                await self._cut_off()
            else:
                await self._release_aside()
            return self._summary
        finally:
            self._lifetime.end()
            self._halt()
            for one in self._in_flight:
                if one.runner is not None:
                    one.runner.cancel()
            self._renewer.close()
            self._pool.close()
            self._processes.close()
            self._presence.end()

    def _halt(self) -> None:
        self._scheduler.end()
        for fetcher in self._fetchers.values():
            fetcher.halt()

    async def _work_off(self) -> None:
        """A burst: until no tube has a task that may be taken, and no handler runs."""
        while not self._lifetime.is_stopping:
            # One after the other: the next round sees the tasks that handlers put meanwhile.
            found = [await fetcher.fill(0) for fetcher in list(self._fetchers.values())]
            if self._in_flight:
                await self._change()
            elif not any(found):
                return

    async def _change(self) -> None:
        """Wait until a handler has ended, or somebody wants something."""
        await self._changed.wait()
        self._changed.clear()

    async def _wait_for_handlers(self, grace: float) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace
        while self._in_flight and not self._lifetime.at_once and (left := ends - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._change()
            except TimeoutError:
                return

    async def _cut_off(self) -> None:
        """Release the tasks in flight, at the end of the session: they have not failed."""
        self._lifetime.end()
        self._summary.exit_code = AT_ONCE if self._lifetime.at_once else CUT_OFF
        for one in self._in_flight:
            if self._renewer.claim(one):
                self._summary.cut_off += 1
                log.warning("the handler of %s is cut off, and its task released", name_of(one.task))
        runners = [one.runner for one in self._in_flight if one.runner is not None]
        for runner in runners:
            runner.cancel()
        if runners:
            await asyncio.wait(runners, timeout=_MOMENT)

    async def _release_aside(self) -> None:
        for one, verdict in self._aside:
            if self._renewer.claim(one):
                self._count(one, await self._finishing.finish(one.task, verdict))

    # -- a task --------------------------------------------------------------------------------------------------------

    def _start(self, task: AsyncTask, route: Route) -> None:
        """A task was taken: have its handler called."""
        one = InFlight(task, route, route.target_of(task))
        self._in_flight.add(one)
        self._renewer.add(one)
        if (task.tube, task.id) in self._tried:
            self._set_aside(one, Verdict("release"))
        else:
            self._go_on(one, self._handle(one))

    def _go_on(self, one: InFlight, work: Coroutine[object, object, None]) -> None:
        one.runner = asyncio.get_running_loop().create_task(work)

    async def _handle(self, one: InFlight) -> None:
        """All work on a task, from its take to its end."""
        try:
            schedule = one.target.schedule
            skipped = None if schedule is None else await self._scheduler.skips(one.task, schedule)
            verdict = skipped or await self._handling.handle(one.task, one.target)
            if one.given_up or not self._renewer.is_kept(one) or (verdict.is_cancelled and self._lifetime.has_ended()):
                # It was cut off, lost or given up, and finished there.
                if one.given_up and not verdict.is_cancelled:
                    log.warning("the handler of %s has ended too late: its task was released before", name_of(one.task))
                return
            one.verdict = verdict
            await self._finish(one, verdict)
        except BaseException as unforeseen:
            self._go_on_after(one, unforeseen)

    async def _finish(self, one: InFlight, verdict: Verdict) -> None:
        """A handler has ended: reply to the caller, and finish the task."""
        task = one.task
        told = not (is_call(task) and verdict.is_last(task)) or await self._finishing.tell_caller(task, verdict)
        if self._would_spin(task, verdict):
            # Hold it meanwhile: other workers would fail, too.
            one.ends_at = NEVER
            asked = verdict.delay if verdict.verb == "decline" else None
            await self._lifetime.rest(RETRY.delay(task.attempts) if asked is None else seconds("delay", asked))
        if self._burst and verdict.is_endless(task):
            self._set_aside(one, verdict)
        elif self._renewer.claim(one):
            one.is_finishing = True
            if verdict.verb == "ack" and told and task._take != FINISHED and not verdict.leaves_result(task):
                self._acks.add(one)
                if one.target.is_async:
                    # The next take goes out right behind the ack: one trip for both. With threads it gains nothing.
                    self._free(one)
                    self._changed.set()
                return
            outcome = None if task._take == FINISHED else await self._finishing.finish(task, verdict)
            if not told:
                await self._finishing.tell_caller(task, verdict, if_full=False)
            self._end(one, outcome)

    def _not_acked(self, one: InFlight, error: BaseException) -> None:
        """An ack with others has failed: ack the task alone, as long as that takes."""
        if self._lifetime.has_ended():
            return
        fetcher = self._fetchers.get(one.route.key)
        if one.is_freed and fetcher is not None:
            one.is_freed = False
            fetcher.occupy()
        self._go_on(one, self._ack(one) if isinstance(error, TubesError) else self._rescue(one, error))

    async def _ack(self, one: InFlight) -> None:
        try:
            self._end(one, await self._finishing.finish(one.task, Verdict("ack")))
        except BaseException as unforeseen:
            self._go_on_after(one, unforeseen)

    def _go_on_after(self, one: InFlight, error: BaseException) -> None:
        if self._lifetime.has_ended():
            raise error
        if one in self._in_flight:
            # In an asyncio task of its own: this one may be cancelled once more.
            self._go_on(one, self._rescue(one, error))
        if not issubclass(type(error), Exception):
            raise error

    async def _rescue(self, one: InFlight, error: BaseException) -> None:
        """Finish a task after an unexpected error."""
        task = one.task
        verdict = one.verdict or Verdict("release", reason_of(error), error=error)
        log.error("%s of %s failed", verdict.verb, name_of(task), exc_info=trace_of(error))
        outcome: Outcome | None = None
        try:
            if self._would_spin(task, verdict):
                await self._lifetime.rest(RETRY.delay(task.attempts))
            if (one.is_finishing or self._renewer.claim(one)) and task._take != FINISHED:
                outcome = await self._finishing.finish(task, verdict)
        except Exception:
            log.exception("%s stays with this worker until the worker ends", name_of(task))
        finally:
            self._end(one, outcome)

    def _would_spin(self, task: AsyncTask, verdict: Verdict) -> bool:
        """Whether a task would come again and again without a pause."""
        return not self._burst and verdict.is_endless(task) and not task._tube._port.shared.options.get("backoff")

    def _set_aside(self, one: InFlight, verdict: Verdict) -> None:
        """Hold a failed task until the end of the burst, in which it would fail again and again."""
        log_verdict(one.task, verdict, "aside")
        verdict = verdict._replace(is_logged=True)
        one.ends_at = NEVER
        if one.given_up and one.runner is not None:
            one.runner.cancel()
        self._aside.append((one, verdict))
        self._end(one, None)

    def _free(self, one: InFlight) -> None:
        """Let its handler have another task, if it has not been let yet."""
        fetcher = self._fetchers.get(one.route.key)
        if fetcher is not None and not one.is_freed:
            one.is_freed = True
            fetcher.free()

    def _end(self, one: InFlight, outcome: Outcome | None) -> None:
        """The work on a task is over. `outcome`: that of its task, if it was finished here."""
        if one in self._in_flight:
            self._in_flight.discard(one)
            self._free(one)
            if self._burst and one.task.max_attempts is None and outcome not in ("acked", "buried"):
                self._tried.add((one.task.tube, one.task.id))
            self._changed.set()
            self._count(one, outcome)

    def _count(self, one: InFlight, outcome: Outcome | None) -> None:
        if outcome is not None:
            setattr(self._summary, outcome, getattr(self._summary, outcome) + 1)
        if outcome == "lost":
            log.warning("%s was finished too late, and may be done twice", name_of(one.task))

    # -- what it tells of itself ---------------------------------------------------------------------------------------

    def _described(self, info: WorkerInfo) -> WorkerInfo:
        """Describe this worker now. In the thread of `Presence`."""
        queue, summary = self._connections.threads, self._summary
        # By the clock of the queue, which goes on as the monotonic one does.
        ahead = queue._connection.micros() / SECOND - time.monotonic()
        fetchers, in_flight = list(self._fetchers.values()), sorted(self._in_flight, key=lambda one: one.began)
        return replace(
            info,
            handlers=tuple(
                HandlerInfo(fetcher.route.name, fetcher.route.tubes, fetcher.concurrency) for fetcher in fetchers
            ),
            in_hand=len(in_flight),
            tasks=tuple(
                HeldTask(one.task.tube, one.task.id, one.task.attempts, round(one.began + ahead, 3))
                for one in in_flight[:NAMED]
            ),
            acked=summary.acked,
            released=summary.released,
            buried=summary.buried,
            lost=summary.lost,
            stopping=self._lifetime.is_stopping,
        )

    # -- what the lease renewer finds, in its thread -------------------------------------------------------------------

    def _lost(self, one: InFlight) -> None:
        """This worker does not hold a task any more: cancel its handler."""
        self._lifetime.call(self._abandon, one, "lost")

    def _late(self, one: InFlight) -> None:
        """A handler does not end in time: finish its task without it."""
        one.given_up, one.ends_at = True, NEVER
        log.error("given up: the handler of %s has not ended after %s s", name_of(one.task), one.target.timeout)
        self._pool.submit(lambda: self._give_up(one))

    def _give_up(self, one: InFlight) -> None:
        task, verdict = one.task, verdict_of(overtime(one.target))
        if self._burst and verdict.is_endless(task):
            self._renewer.add(one)
            self._lifetime.call(self._set_aside, one, verdict)
            return
        outcome: Outcome | None = None
        try:
            if is_call(task) and verdict.is_last(task):
                try:
                    with sync.connect(self._connections.threads) as queue:
                        answer(queue, task, why=verdict.reason)
                except Exception as lost:
                    log.warning("the reply to %s is lost: %s", name_of(task), lost)
            tube = self._connections.thread_tube(task._tube)
            outcome = run(carry_out(tube, task, verdict, self._lifetime.has_ended), call)
        finally:
            self._lifetime.call(self._abandon, one, outcome)

    def _abandon(self, one: InFlight, outcome: Outcome | None) -> None:
        if one.runner is not None:
            one.runner.cancel()
        self._end(one, outcome)
