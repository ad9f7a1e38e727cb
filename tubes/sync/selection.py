"""Tasks with some properties: `Selection`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic

from tubes import calls
from tubes.backend.interface import Port
from tubes.backend.moving import MOVE_BATCH, check_target, items_of, smaller_batch_size
from tubes.backend.port import check_reason
from tubes.backend.selecting import (
    Filters,
    Scan,
    cancelled_tasks,
    changeable,
    changeable_tasks,
    check_progress,
    narrowed,
    part_size,
    remaining,
    see_all,
)
from tubes.drivers.options import Seconds
from tubes.errors import TubesError
from tubes.values.task import T

if TYPE_CHECKING:
    from tubes.sync.task import Task
    from tubes.sync.tube import Tube


class Selection(Generic[T]):
    """Tasks of a tube with some properties: `Tube.select`. Nothing is read before it is used, and each use reads again.

    Iterate over it, `count` its tasks, or change them. All of that works in parts of at most 250 tasks, and each part
    takes a few milliseconds: other programs use the tube meanwhile. Tasks that are put after the start are left out.
    Each task is returned, counted or changed once, so that a change ends even if workers bury the same tasks again.

    A change reads tasks without their data, then changes some of them in each step. A task that has changed since it
    was read, or is in a state to which the change does not apply, stays as it is. If the program stops, some parts are
    changed and the others are not.

    `on_progress`: called after each part, also if nothing in it changed, with the number of tasks changed so far. If it
    returns False, the change stops and returns this number; if it raises, the change stops, too.

    The cost is O(1) for each task in the selected state; in a selection without a state, of ready tasks in a tube with
    lanes, or with `newest_first` in memory, O(1) for each task in the tube, and on a server for each id that no longer
    exists. With a key it is O(1), except for done tasks. Delayed tasks also cost O(1) per earlier end of ttr or ttl.
    """

    def __init__(self, port: Port[Task[T]], filters: Filters) -> None:
        self._port = port
        self._filters = filters

    def __iter__(self) -> Generator[Task[T]]:
        """Yield the tasks without taking them. Each part of at most 250 is consistent, but not all parts together."""
        scan, returned = Scan(self._filters), 0
        while not scan.ended and (size := part_size(self._filters, returned)):
            tasks = self._part(scan, self._filters, size, with_data=True)
            for task in tasks[: remaining(self._filters, returned)]:
                returned += 1
                yield task

    def _part(self, scan: Scan, filters: Filters, size: int, *, with_data: bool = False) -> list[Any]:
        """Return the next part: tasks, or the `Seen` of each without `with_data`."""
        return self._port.select(filters, scan, size, with_data)

    def _evict(self, tasks: list[Task[T]]) -> list[bool]:
        """Remove these tasks unless they have changed; return whether each was removed."""
        return self._port.evict(tasks)

    def count(self) -> int:
        """Count the tasks. On a server their data stay there."""
        scan, counted = Scan(self._filters), 0
        while not scan.ended and (size := part_size(self._filters, counted)):
            seen = self._part(scan, self._filters, size)
            counted += len(seen[: remaining(self._filters, counted)])
        return counted

    def kick(
        self,
        *,
        attempts: int | None = None,
        ttl: Seconds | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Make the buried and delayed tasks ready, and return their number. O(log n) each.

        `attempts`, `ttl`: as for `Tube.kick`. Raises `OptionNotSupported` for a ttl if the driver has none.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("mail", max_attempts=1)
        ...     _ = tube.put("hello")
        ...     tube.take(timeout=0).release()
        ...     tube.select("buried", limit=10).kick(attempts=3)
        Task(id=0, state='buried', data='hello', tube='mail', attempts=1, reason='max_attempts: release')
        1
        """
        arguments = self._port.shared.driver.check_kick(attempts, ttl)
        return self._change("kick", arguments, on_progress)

    def release(self, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Release the taken tasks, of any session, and return their number. O(log n) each.

        Each counts as a release, and its last attempt buries it. Its holder gets `TaskNotTaken` from now on, but may
        still be at work.
        """
        return self._change("release", (), on_progress)

    def bury(self, reason: str | None = None, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Bury the ready, delayed and taken tasks, and return their number. `reason`: as for `Tube.bury`. O(log n)."""
        return self._change("bury", (check_reason(reason),), on_progress)

    def delete(self, *, on_progress: Callable[[int], object] | None = None) -> int:
        """Remove the tasks, each as `Tube.delete` does, and return their number. O(log n) each.

        With `state="done"` kept done tasks are forgotten.
        """
        return self._change("delete", (), on_progress)

    def cancel(self, reason: str | None = None, *, on_progress: Callable[[int], object] | None = None) -> int:
        """End the ready, delayed, taken and buried tasks, each as `Tube.cancel` does, and return their number.

        `reason`: as for `Tube.cancel`. O(log n) each. It reads the tasks with their data.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     tube = queue.create_tube("videos")
        ...     _ = tube.put_many([{"film": 1}, {"film": 2}])
        ...     tube.select(contains='"film":2').cancel("wrong file"), tube.select().count()
        (1, 1)
        """
        why = check_reason(reason)
        check_progress(on_progress)
        filters = narrowed(self._filters, "cancel")
        scan, cancelled = Scan(filters), 0
        while not scan.ended and (size := part_size(filters, cancelled)):
            found = self._part(scan, filters, size, with_data=True)
            left = changeable_tasks("cancel", found)
            while tasks := left[: remaining(filters, cancelled)]:
                left = left[len(tasks) :]
                done = self._port.change_seen("cancel", see_all(tasks), (why,))
                cancelled += sum(done)
                for task in cancelled_tasks(tasks, done, why):
                    calls.tell_caller(task)
            if on_progress is not None and on_progress(cancelled) is False:
                break
        return cancelled

    def _change(self, act: str, arguments: tuple[object, ...], on_progress: Callable[[int], object] | None) -> int:
        check_progress(on_progress)
        filters = narrowed(self._filters, act)
        scan, changed = Scan(filters), 0
        while not scan.ended and (size := part_size(filters, changed)):
            found = self._part(scan, filters, size)
            left = changeable(act, found)
            while seen := left[: remaining(filters, changed)]:
                left = left[len(seen) :]
                done = self._port.change_seen(act, seen, arguments)
                changed += sum(done)
            if on_progress is not None and on_progress(changed) is False:
                break
        return changed

    def move_to(self, tube: Tube[T, Any], *, on_progress: Callable[[int], object] | None = None) -> int:
        """Move the ready, delayed and buried tasks to another tube, and return their number.

        `tube`: any other tube, of this queue or of another one, in another namespace or on another server.

        Delayed tasks stay delayed, all others become ready. A task keeps its data, priority, lane, context, ttr,
        max_attempts and keep_done, its key with its key_ttl, and the rest of its delay and its ttl. Of the defaults of
        the other tube it gets only the ttl, ttr and max_attempts that it lacks. It gets a new id and a new time of put
        (`created`), its attempts start at 0, and it loses its reason. The old task is removed: it is not kept as a done
        task, and its key is free. Listeners get a put in the other tube and a delete in this one.

        In memory, in one folder and on one server each task moves in one step: whatever fails, it is in exactly one of
        the tubes. In a cluster, and from one store to another, 250 tasks at a time are
        first put into the other tube and then removed here; if a task has changed meanwhile, its copy is removed
        instead. So no task is lost. If this call is interrupted or cancelled in between, or the connection is lost, up
        to 250 tasks may be in both tubes; and if other programs take tasks meanwhile, a task may be taken from both.
        O(log n) per task.

        Raises `OptionNotSupported` for an option that the driver of the other tube lacks, `DuplicateKey` for a key that
        is in use there, `TubeFull` if it has no room, and `CodecError` for data that its codec cannot encode. Tasks
        that were moved before the error stay moved.

        >>> import tubes
        >>> with tubes.connect() as queue:
        ...     mail, dead = queue.create_tube("mail"), queue.create_tube("dead")
        ...     _ = mail.put("to ann").bury("no such address"), mail.put("to bob")
        ...     print(mail.select("buried").move_to(dead), [task.data for task in mail.select()])
        ...     [*dead.select()]
        1 ['to bob']
        [Task(id=0, state='ready', data='to ann', tube='dead')]
        """
        check_target(self._port, tube)
        check_progress(on_progress)
        filters = narrowed(self._filters, "move")
        together = self._port.relay_limit(tube._port)
        scan, moved, at_once = Scan(filters), 0, together or (1 if tube.partitions else MOVE_BATCH)
        copies: list[Task[T]] = []
        waiting: list[Task[T]] = []
        while waiting or not scan.ended:
            if not waiting:
                size = part_size(filters, moved)
                if not size:
                    break
                found = self._part(scan, filters, size, with_data=True)
                waiting = changeable_tasks("move", found)
                if not waiting and on_progress is not None and on_progress(moved) is False:
                    break
                continue
            tasks = waiting[: remaining(filters, moved)][:at_once]
            if not tasks:
                break
            items = items_of(tasks, self._port.connection.micros(), self._port.shared.driver, tube.driver)
            try:
                if together:
                    relayed = self._port.relay(tube._port, tasks, tube._port.gather(items, {}))
                    if relayed is None:
                        raise tube._port.full_error(len(tasks))
                    moved += sum(relayed)
                    del waiting[: len(relayed)]
                else:
                    copies = tube.put_many(items)
            except TubesError as error:
                at_once = smaller_batch_size(error, tasks, tube.name)
                continue
            if not together:
                removed = self._evict(tasks)
                strays = [copy.id for copy, is_gone in zip(copies, removed, strict=True) if not is_gone]
                if strays:
                    tube.delete_many(strays, state=("ready", "delayed"))
                moved += len(tasks) - len(strays)
                del waiting[: len(tasks)]
            if on_progress is not None and on_progress(moved) is False:
                break
        return moved

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._port.tube!r}>"
