"""One run of a worker.

How a task passes through a run: a `Fetcher` takes it, and `_start` makes an `InFlight` entry for it, whose lease is
renewed by the `LeaseRenewer`. `_handle` calls the handler and gets a verdict; `_finish` replies to the caller and
carries out the verdict. A task is finished once, by the code that claims it from the lease renewer first: `_finish`, or
`_handle_timeout` when the handler exceeds its timeout.

If the worker loses a task, for example because it was cancelled, `_lose` claims it, and ends its handler: it cancels
an async handler and kills the process of a handler. A plain handler continues until its next checkpoint. The backend
reports a loss at once (`Port.on_loss`). After a lost connection, and if a lease cannot be renewed, `_find_loss` looks
at the task.

In a burst, a failed task without a limit of attempts is deferred: it is held until the burst ends, because it would
fail again and again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from operator import call
from typing import TYPE_CHECKING, Final

from tubes import sync
from tubes.backend.flow import run
from tubes.backend.port import connection_of, port_of
from tubes.calls import is_call, send_reply
from tubes.drivers.entry import Loss
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND, seconds
from tubes.errors import TaskCancelled, TaskNotFound, TubeNotFound, TubesError
from tubes.values.task import CANCELLED, FINISHED
from tubes.values.worker_info import MAX_LISTED_FUNCTIONS, MAX_LISTED_TASKS, HandlerInfo, HeldTask, UnknownFunction
from tubes.worker.fetcher import Fetcher
from tubes.worker.finishing import Acks, Finishing, carry_out
from tubes.worker.handling import Handling, Pool
from tubes.worker.in_flight import CANCEL_GRACE, NEVER, InFlight, Take
from tubes.worker.lease_renewer import LeaseRenewer
from tubes.worker.lifetime import RETRY, Lifetime
from tubes.worker.logs import log
from tubes.worker.outcomes import (
    AT_ONCE,
    CUT_OFF,
    DECLINED,
    Interrupted,
    Outcome,
    Summary,
    Verdict,
    log_verdict,
    name_of,
    one_line,
    reason_of,
    trace_of,
    verdict_of,
)
from tubes.worker.presence import Presence
from tubes.worker.processes import Processes
from tubes.worker.routes import UNKNOWN
from tubes.worker.scheduler import Scheduler
from tubes.worker.timekeeping import Timekeeper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from tubes.aio import AsyncTask, AsyncTube
    from tubes.values.worker_info import WorkerInfo
    from tubes.worker.connections import Connections
    from tubes.worker.functions import Hook
    from tubes.worker.routes import Route

#: Maximum losses that are kept until their takes arrive.
_MAX_UNMATCHED: Final = 10_000
# Seconds that a run which stops at once leaves to short handlers, and to those that have just returned.
_MOMENT: Final = 0.05
#: Seconds within which a call of the handler itself, such as a delete of its task, returns.
_OWN_CALL: Final = 0.2
#: How a task was lost, by its state.
_EVENTS: Final = {State.DONE: "delete", State.BURIED: "bury"}
#: What happened to a lost task, by the event.
_LOSSES: Final = {
    "delete": "was deleted",
    "bury": "was buried by another program",
    "release": "was released by another program",
}


class Run:
    """The state that exists only while a worker runs. Belongs to one event loop.

    One class, because all methods change the set of tasks in flight.
    """

    def __init__(self, connections: Connections, hooks: list[Hook], *, burst: bool, tracebacks: bool) -> None:
        self._connections: Final = connections
        self._burst: Final = burst
        self._summary: Final = Summary()
        self._lifetime: Final = Lifetime()
        self._pool: Final = Pool()
        self._processes: Final = Processes()
        self._renewer: Final = LeaseRenewer(connections.thread_tube, self._handle_lost, self._handle_timeout)
        self._handling: Final = Handling(connections, self._lifetime, self._pool, self._processes, hooks)
        self._finishing: Final = Finishing(connections.replies, self._lifetime, tracebacks=tracebacks)
        self._acks: Final = Acks(self._free, self._end, self._handle_failed_ack)
        self._fetchers: Final[dict[object, Fetcher]] = {}
        self._in_flight: Final[set[InFlight]] = set()
        # Tasks that failed in a burst and are released at its end.
        self._deferred: Final[list[tuple[InFlight, Verdict]]] = []
        # Tube and id of the tasks without `max_attempts` that failed in this burst.
        self._attempted: Final[set[tuple[str, int]]] = set()
        # The tasks in flight by their takes, and the last losses of takes that were not in flight, or not yet.
        self._takes: Final[dict[Take, InFlight]] = {}
        self._unmatched: Final[dict[Take, Loss]] = {}
        # The tubes whose losses are reported.
        self._watched: Final[set[AsyncTube]] = set()
        # Asyncio tasks that find out how tasks were lost.
        self._checks: Final[set[asyncio.Task[None]]] = set()
        self._changed: Final = asyncio.Event()
        self._scheduler: Final = Scheduler(connections.queue)
        self._timekeeper: Final = Timekeeper()
        self._presence: Final = Presence(connections.threads, self._describe, self._timekeeper.recent)

    def follow(self, routes: dict[Route, int]) -> None:
        """Switch to these routes. The values are the numbers of handlers that run at a time."""
        for key in self._fetchers.keys() - {route.key for route in routes}:
            self._fetchers.pop(key).halt()
        for route, concurrency in routes.items():
            fetcher = self._fetchers.get(route.key)
            if fetcher is None:
                fetcher = Fetcher(route, concurrency, self._connections.queue, self._lifetime, self._start)
                self._fetchers[route.key] = fetcher
                for entry in self._in_flight:
                    if entry.route.key is route.key and not entry.is_freed:
                        fetcher.occupy()
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
        """Stop taking tasks. `now`: do not wait for handlers either."""
        self._lifetime.stop(now=now)
        self._changed.set()

    async def work(self, grace: float) -> Summary:
        """Work until the run is stopped; in a burst, until no task is left."""
        connection_of(self._connections.threads).on_checkpoint = self._interrupt
        connection_of(self._connections.queue).on_checkpoint = self._interrupt
        for fetcher in self._fetchers.values():
            log.info("the worker takes tasks from %s, on %s", fetcher, connection_of(self._connections.threads).url)
        self._presence.begin(self._connections.session, at_once=not self._burst)
        try:
            if self._burst:
                await self._scheduler.plan()
                await self._run_burst()
            while not self._lifetime.is_stopping and not self._burst:
                await self._wait_for_change()
            self._halt()
            if self._in_flight:
                log.info("the worker waits up to %g s for unfinished tasks: %d", grace, len(self._in_flight))
            await self._wait_for_handlers(grace)
            if self._in_flight:
                await self._cut_off()
            else:
                await self._release_deferred()
            return self._summary
        finally:
            self._lifetime.end()
            self._halt()
            for entry in self._in_flight:
                if entry.runner is not None:
                    entry.runner.cancel()
            self._renewer.close()
            self._pool.close()
            self._processes.close()
            self._presence.end()

    def _halt(self) -> None:
        self._scheduler.end()
        for fetcher in self._fetchers.values():
            fetcher.halt()

    async def _run_burst(self) -> None:
        """Run a burst: until no tube has a task that may be taken, and no handler runs."""
        while not self._lifetime.is_stopping:
            self._changed.clear()
            # Fill one fetcher after the other; the next pass sees the tasks that handlers have put.
            found = [await fetcher.fill(0) for fetcher in list(self._fetchers.values())]
            if self._in_flight:
                await self._wait_for_change()
            # A handler that ended during this pass was busy when its fetcher was filled.
            elif not any(found) and not self._changed.is_set():
                return

    async def _wait_for_change(self) -> None:
        """Wait until a handler ends, the routes change, or the run is stopped."""
        await self._changed.wait()
        self._changed.clear()

    async def _wait_for_handlers(self, grace: float) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace
        while self._in_flight and not self._lifetime.at_once and (left := ends - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._wait_for_change()
            except TimeoutError:
                return

    async def _cut_off(self) -> None:
        """Cancel the handlers in flight, decline their tasks, which have not failed, and let finished tasks end."""
        if runners := [entry.runner for entry in self._in_flight if entry.runner is not None]:
            await asyncio.wait(runners, timeout=_MOMENT)
        self._lifetime.end()
        self._summary.exit_code = AT_ONCE if self._lifetime.at_once else CUT_OFF
        cut_off = [entry for entry in self._in_flight if entry.verdict is None and self._renewer.claim(entry)]
        self._summary.cut_off += len(cut_off)
        for entry in cut_off:
            log.warning("%s is released at shutdown: its handler did not end in time", name_of(entry.task))
        verdicts = {entry.runner: entry.verdict for entry in self._in_flight if entry.runner is not None}
        running = [runner for runner, verdict in verdicts.items() if verdict is None]
        for runner in running:
            runner.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_GRACE)
        work: list[Awaitable[object]] = [self._acks.join(), *(verdicts.keys() - running)]
        for entry in cut_off:
            self._processes.kill(entry.take)
            work.append(self._finishing.finish(entry.task, DECLINED))
        # The end of the session releases the other tasks, and counts their attempts.
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_GRACE):
                await asyncio.gather(*work, return_exceptions=True)

    async def _release_deferred(self) -> None:
        for entry, verdict in self._deferred:
            if self._renewer.claim(entry):
                self._count(entry, await self._finishing.finish(entry.task, verdict))

    # -- a task --------------------------------------------------------------------------------------------------------

    def _start(self, task: AsyncTask, route: Route) -> None:
        entry = InFlight(task, route, route.target_of(task))
        self._in_flight.add(entry)
        self._takes[entry.take] = entry
        self._renewer.add(entry)
        if task._tube not in self._watched:
            self._watch(task._tube)
        if (task.tube, task.id) in self._attempted:
            self._defer(entry, Verdict("release"))
        else:
            self._spawn(entry, self._handle(entry))
        if self._unmatched and (loss := self._unmatched.pop(entry.take, None)) and self._renewer.claim(entry):
            self._lose(entry, loss)

    def _spawn(self, entry: InFlight, work: Coroutine[object, object, None]) -> None:
        entry.runner = asyncio.get_running_loop().create_task(work)

    async def _handle(self, entry: InFlight) -> None:
        try:
            if entry.loss is not None:  # It was lost before this call.
                return
            target, verdict = entry.target, None
            if target.schedule is not None:
                verdict = await self._scheduler.put_next_or_skip(entry.task, target.schedule, target.options)
            if verdict is None:
                verdict = target.delay_retry(entry.task, await self._handling.handle(entry))
                if target is not UNKNOWN:
                    self._note_times(entry, comes_back=verdict.method == "decline")
            if _says_cancelled(verdict, entry.task):
                entry.verdict = verdict  # The handler has ended: a report of the loss has nothing to cancel.
                # The handler may have cancelled its own task.
                loss = await self._find_loss(entry, by_handler=True)
                is_lost = loss is not None and (loss.event == "cancel" or not entry.is_ended_by_handler)
                if loss is not None and is_lost and self._renewer.claim(entry):
                    self._note_loss(entry, loss)
                    self._end(entry, "cancelled")
                    return
            if (
                entry.is_timed_out
                or not self._renewer.holds(entry)
                or (verdict.is_cancelled and self._lifetime.has_ended())
            ):
                # The task was cut off, lost, or timed out, and is finished elsewhere.
                if entry.loss is not None and not (verdict.is_cancelled or entry.target.process):
                    entry.verdict = verdict
                    if not _says_cancelled(verdict, entry.task):
                        log_verdict(entry.task, verdict, "lost")
                if entry.is_timed_out and not verdict.is_cancelled:
                    log.warning("the handler of %s ended too late: its task was already finished", name_of(entry.task))
                return
            entry.verdict = verdict
            await self._finish(entry, verdict)
        except BaseException as error:
            self._recover(entry, error)

    def _note_times(self, entry: InFlight, *, comes_back: bool) -> None:
        """Count how long a task has waited and how long its handler took. `comes_back`: the attempt does not count."""
        task, run = entry.task, time.monotonic() - entry.started_at
        wait: float | None = None
        if task.attempts == 1 and not task.failures:
            begin = self._scheduler.time_of(task) if entry.target.schedule is not None else task.created
            wait = max(connection_of(self._connections.queue).micros() / SECOND - run - begin, 0.0)
        self._timekeeper.record(task.tube, entry.target.called, task.id, wait, run, comes_back=comes_back)

    async def _finish(self, entry: InFlight, verdict: Verdict) -> None:
        """Reply to the caller and finish the task, after its handler has ended."""
        task = entry.task
        has_replied = not (is_call(task) and verdict.is_last(task)) or await self._finishing.reply(task, verdict)
        if self._would_spin(task, verdict):
            # Hold the task while sleeping: other workers would also fail on it.
            entry.ends_at = NEVER
            delay = verdict.delay if verdict.method == "decline" else None
            await self._lifetime.sleep(RETRY.delay(task.attempts) if delay is None else seconds("delay", delay))
        if self._burst and verdict.is_endless(task):
            self._defer(entry, verdict)
        elif self._renewer.claim(entry):
            entry.is_finishing = True
            if verdict.method == "ack" and has_replied and task._take != FINISHED and not verdict.leaves_result(task):
                self._acks.add(entry)
                return
            outcome = None if task._take == FINISHED else await self._finishing.finish(task, verdict)
            if not has_replied:
                await self._finishing.reply(task, verdict, return_if_full=False)
            self._end(entry, outcome)

    def _handle_failed_ack(self, entry: InFlight, error: BaseException) -> None:
        """Ack a task alone, with retries, after an ack of several tasks failed."""
        if self._lifetime.has_ended():
            return
        fetcher = self._fetchers.get(entry.route.key)
        if entry.is_freed and fetcher is not None:
            entry.is_freed = False
            fetcher.occupy()
        self._spawn(
            entry, self._ack(entry) if isinstance(error, TubesError) else self._finish_after_error(entry, error)
        )

    async def _ack(self, entry: InFlight) -> None:
        try:
            self._end(entry, await self._finishing.finish(entry.task, Verdict("ack")))
        except BaseException as error:
            self._recover(entry, error)

    def _recover(self, entry: InFlight, error: BaseException) -> None:
        if self._lifetime.has_ended():
            raise error
        if entry in self._in_flight:
            # Use another asyncio task: this one may be cancelled again.
            self._spawn(entry, self._finish_after_error(entry, error))
        if not issubclass(type(error), Exception):
            raise error

    async def _finish_after_error(self, entry: InFlight, error: BaseException) -> None:
        """Finish a task after an unexpected error."""
        task = entry.task
        verdict = entry.verdict or Verdict("release", reason_of(error), error=error)
        log.error("%s of %s failed", verdict.method, name_of(task), exc_info=trace_of(error))
        outcome: Outcome | None = None
        try:
            if self._would_spin(task, verdict):
                await self._lifetime.sleep(RETRY.delay(task.attempts))
            if (entry.is_finishing or self._renewer.claim(entry)) and task._take != FINISHED:
                outcome = await self._finishing.finish(task, verdict)
        except Exception:
            log.exception("%s stays with this worker until the worker ends", name_of(task))
        finally:
            self._end(entry, outcome)

    def _would_spin(self, task: AsyncTask, verdict: Verdict) -> bool:
        """Return True if the task would be taken again at once, without end."""
        return not self._burst and verdict.is_endless(task) and not task._tube.options.get("backoff")

    def _defer(self, entry: InFlight, verdict: Verdict) -> None:
        """Hold a failed task until the end of the burst."""
        log_verdict(entry.task, verdict, "deferred")
        verdict = verdict._replace(is_logged=True)
        entry.ends_at = NEVER
        if entry.is_timed_out and entry.runner is not None:
            entry.runner.cancel()
        self._deferred.append((entry, verdict))
        self._end(entry, None)

    def _free(self, entry: InFlight) -> None:
        """Free the place of the handler for another task, once. The next take is sent right behind its ack."""
        fetcher = self._fetchers.get(entry.route.key)
        if fetcher is not None and not entry.is_freed:
            entry.is_freed = True
            fetcher.free()
            self._changed.set()

    def _end(self, entry: InFlight, outcome: Outcome | None) -> None:
        """Remove a task from the set in flight. `outcome`: how it was finished, if this run finished it."""
        if outcome == "lost" and entry.loss is None and not self._lifetime.has_ended():
            self._start_check(self._end_lost(entry))
        elif entry in self._in_flight:
            self._in_flight.discard(entry)
            self._takes.pop(entry.take, None)
            self._free(entry)
            if self._burst and entry.task.max_attempts is None and outcome not in ("acked", "buried"):
                self._attempted.add((entry.task.tube, entry.task.id))
            self._changed.set()
            self._count(entry, outcome)

    def _count(self, entry: InFlight, outcome: Outcome | None) -> None:
        # A call that is left to other workers is not counted.
        if outcome is not None and (entry.target is not UNKNOWN or outcome != "released"):
            setattr(self._summary, outcome, getattr(self._summary, outcome) + 1)
        if entry.target.schedule is not None:
            self._scheduler.note_end(entry.task, outcome)
        if outcome == "acked":
            # Ask the logger itself, because its adapter is slower: a handler may take only some microseconds.
            if log.logger.isEnabledFor(logging.INFO):
                span = _format_span(time.monotonic() - entry.started_at)
                log.info("%s was done in %s", name_of(entry.task, entry.target.called), span)
        elif outcome is None and entry.task._take == FINISHED:
            log.info("%s was finished by its handler", name_of(entry.task))
        elif outcome == "cancelled":
            reason = f": {one_line(entry.loss.reason)}" if entry.loss is not None and entry.loss.reason else ""
            span = _format_span(time.monotonic() - entry.lost_at)
            log.info("%s was cancelled, its handler ended %s later%s", name_of(entry.task), span, reason)
        elif outcome == "lost" and (entry.verdict is None or entry.verdict.method == "ack"):
            event = "" if entry.loss is None else entry.loss.event
            twice = "" if event in ("delete", "bury") else ", and may be done twice"
            is_ended = entry.verdict is None and (entry.target.is_async or entry.target.process)
            note = ", which is ended" if is_ended else ""
            text = "%s %s before the end of its handler%s%s"
            log.warning(text, name_of(entry.task), _LOSSES.get(event, "was lost"), note, twice)

    # -- the description of the worker ---------------------------------------------------------------------------------

    def _describe(self, info: WorkerInfo) -> WorkerInfo:
        """Add the current state of this worker to its description. Called in the thread of `Presence`."""
        queue, summary = self._connections.threads, self._summary
        # Converts monotonic times to the clock of the queue.
        offset = connection_of(queue).micros() / SECOND - time.monotonic()
        fetchers, in_flight = list(self._fetchers.values()), sorted(self._in_flight, key=lambda entry: entry.started_at)
        return replace(
            info,
            handlers=tuple(
                HandlerInfo(part.name, part.tubes, fetcher.concurrency, part.functions, fetcher.route.is_shared)
                for fetcher in fetchers
                for part in fetcher.route.parts
            ),
            in_hand=len(in_flight),
            tasks=tuple(
                HeldTask(
                    entry.task.tube,
                    entry.task.id,
                    entry.task.attempts,
                    round(entry.started_at + offset, 3),
                    entry.target.called,
                )
                for entry in in_flight[:MAX_LISTED_TASKS]
            ),
            acked=summary.acked,
            released=summary.released,
            buried=summary.buried,
            lost=summary.lost,
            stopping=self._lifetime.is_stopping,
            schedules=self._scheduler.describe(),
            unknown=tuple(starmap(UnknownFunction, self._handling.unknown.recent()[:MAX_LISTED_FUNCTIONS])),
        )

    # -- lost tasks ----------------------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        """Leave a handler at its checkpoint if the worker is shutting down."""
        if self._lifetime.is_stopping:
            raise Interrupted

    def _watch(self, tube: AsyncTube) -> None:
        """Let the backend report the tasks of a tube that this worker loses."""
        self._watched.add(tube)
        try:
            port_of(tube).on_loss(lambda loss: self._lifetime.call(self._handle_loss, tube, loss))
        except RuntimeError as error:
            self._watched.discard(tube)
            log.warning("cancelled tasks of tube %r are noticed late, no thread could be started: %s", tube.name, error)

    def _handle_loss(self, tube: AsyncTube, loss: Loss | None) -> None:
        """End the handler of a lost task. None: reports may be missing, so look at all tasks of the tube."""
        if loss is None:
            self._start_check(self._check_tube(tube))
            return
        take = tube.name, loss.id, loss.take
        entry = self._takes.get(take)
        if entry is None:
            # The take may still be on its way to this loop. A server also reports the takes of others.
            self._unmatched[take] = loss
            if len(self._unmatched) > _MAX_UNMATCHED:
                del self._unmatched[next(iter(self._unmatched))]
        elif self._renewer.claim(entry):
            self._lose(entry, loss)

    def _start_check(self, work: Coroutine[object, object, None]) -> None:
        check = asyncio.get_running_loop().create_task(work)
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _check_tube(self, tube: AsyncTube) -> None:
        """Look at all tasks of a tube; and once more at those whose take was still on its way to this loop."""
        seen = set[InFlight]()
        for _ in range(2):
            entries = [entry for entry in self._in_flight if entry.task._tube is tube and entry not in seen]
            seen.update(entries)
            await self._find_losses(entries)
            await asyncio.sleep(_OWN_CALL)

    async def _find_losses(self, entries: list[InFlight]) -> None:
        """Check each of these tasks, and end the handlers of the lost ones."""
        for entry in entries:
            loss = await self._find_loss(entry)
            if loss is not None and loss.event != "cancel":
                await asyncio.sleep(_OWN_CALL)
                loss = await self._find_loss(entry)
            if loss is not None and self._renewer.claim(entry):
                self._lose(entry, loss)

    @staticmethod
    async def _find_loss(entry: InFlight, *, by_handler: bool = False) -> Loss | None:
        """Return how a task was lost; None if it is held, or the backend is unreachable.

        None as well if its handler has ended it, unless `by_handler`.
        """
        task = entry.task
        if entry.is_ended_by_handler and not by_handler:
            return None
        try:
            seen: AsyncTask | None = await task._tube.peek(task.id)
        except (TaskNotFound, TubeNotFound):
            seen = None
        except TubesError:
            return None
        if seen is None or seen.created != task.created:
            return Loss(task.id, task._take, "delete")
        if seen.state is State.TAKEN and seen._take == task._take:
            return None
        if seen.cancelled:
            return Loss(task.id, task._take, "cancel", seen.reason)
        return Loss(task.id, task._take, _EVENTS.get(seen.state, ""))

    def _note_loss(self, entry: InFlight, loss: Loss) -> None:
        """Store the loss with the entry. The next checkpoint of the handler reports a cancellation."""
        entry.loss, entry.lost_at = loss, time.monotonic()
        if loss.event == "cancel":
            entry.task._take = CANCELLED
            if entry.plain_task is not None:
                entry.plain_task._take = CANCELLED

    def _lose(self, entry: InFlight, loss: Loss) -> None:
        """End the handler of a task that this worker has lost, and that was claimed."""
        if entry not in self._in_flight or entry.runner is None:
            return
        self._note_loss(entry, loss)
        self._processes.kill(entry.take)
        if loss.event in ("", "release") or (loss.event != "cancel" and entry.target.is_async):
            self._abandon(entry, "lost")
            return
        # The task counts as in flight until its handler has ended.
        outcome: Outcome = "cancelled" if loss.event == "cancel" else "lost"
        if entry.verdict is not None:  # The handler has ended: this is its reply, or the pause after its failure.
            self._abandon(entry, outcome)
            return
        entry.runner.add_done_callback(lambda _: self._end(entry, outcome))
        if entry.target.is_async:
            entry.runner.cancel()
        if entry.ends_at != NEVER:  # It may hang.
            asyncio.get_running_loop().call_later(entry.ends_at - time.monotonic(), self._abandon, entry, outcome)

    async def _lose_unreported(self, entry: InFlight) -> None:
        """End the handler of a task whose lease could not be renewed."""
        if entry.is_ended_by_handler and entry.runner is not None:
            entry.runner.add_done_callback(lambda _: self._end(entry, None))
            return
        loss = await self._find_loss(entry)
        self._lose(entry, loss or Loss(entry.task.id, entry.task._take, ""))

    async def _end_lost(self, entry: InFlight) -> None:
        """Find out why a task could not be finished, and end it."""
        loss = await self._find_loss(entry) or Loss(entry.task.id, entry.task._take, "")
        self._note_loss(entry, loss)
        self._end(entry, "cancelled" if loss.event == "cancel" else "lost")

    # -- callbacks of the lease renewer, in its thread -----------------------------------------------------------------

    def _handle_lost(self, entry: InFlight) -> None:
        self._lifetime.call(lambda: self._start_check(self._lose_unreported(entry)))

    def _handle_timeout(self, entry: InFlight) -> None:
        """Finish a task without its handler, which exceeded its timeout."""
        entry.is_timed_out, entry.ends_at = True, NEVER
        self._pool.submit(lambda: self._finish_without_handler(entry))

    def _finish_without_handler(self, entry: InFlight) -> None:
        task = entry.task
        verdict = entry.target.delay_retry(task, verdict_of(entry.target.timeout_error()))
        entry.verdict = verdict
        if self._burst and verdict.is_endless(task):
            self._renewer.add(entry)
            self._lifetime.call(self._defer, entry, verdict)
            return
        outcome: Outcome | None = None
        try:
            if is_call(task) and verdict.is_last(task):
                try:
                    with sync.connect(self._connections.threads) as queue:
                        send_reply(queue, task, why=verdict.reason)
                except Exception as lost:
                    log.warning("the reply to %s is lost: %s", name_of(task), lost)
            tube = self._connections.thread_tube(task._tube)
            outcome = run(carry_out(tube, task, verdict, self._lifetime.has_ended), call)
        finally:
            self._lifetime.call(self._abandon, entry, outcome)

    def _abandon(self, entry: InFlight, outcome: Outcome | None) -> None:
        self._end(entry, outcome)
        if entry.runner is not None:
            entry.runner.cancel()


def _says_cancelled(verdict: Verdict, task: AsyncTask) -> bool:
    """Return True if a handler ended because a checkpoint said that its task was cancelled."""
    error = verdict.error
    return isinstance(error, TaskCancelled) and (error.facts["id"], error.facts["tube"]) == (task.id, task.tube)


def _format_span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
