"""Processes that put and take on a server that loses its latest writes.

`python -m tests.support.rollback_actors URL FOLDER NAME…` starts them. Each writes a journal, a file in FOLDER named
NAME, with the start and end of each call. Processes named `put…` put until SIGTERM, those named `take…` take; every
second one uses asyncio. They are forked from one process, so that all their counters start equal. They end with this
process, which ends when its stdin ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest

import tubes
from tests.support.ledger import Ledger
from tests.support.processes import python
from tubes import ConnectionLost, TaskNotTaken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

#: The number of tasks of a batch.
_MANY = 3
#: Seconds to wait for processes on a busy machine.
_PATIENCE = 60


def becomes_true(question: Callable[[], bool]) -> bool:
    """Return True if the condition becomes true soon; sleep between checks to leave the CPU to the processes."""
    deadline = time.monotonic() + _PATIENCE
    while not question():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Actor:
    """One process and its journal."""

    def __init__(self, url: str, folder: str, name: str) -> None:
        self._url, self._name = url, name
        self._journal = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._is_over = False
        self._count = 0
        signal.signal(signal.SIGTERM, self._end)
        # Without a seed, all children of one process would behave the same.
        self._random = random.Random(name)

    def _end(self, number: int, frame: object) -> None:
        self._is_over = True

    def _write(self, *words: object) -> None:
        os.write(self._journal, (" ".join(map(str, words)) + "\n").encode())

    def _key(self) -> str:
        self._count += 1
        return f"{self._name}.{self._count}"

    def run(self, *, in_loop: bool) -> None:
        """Run until the end. Record errors other than lost connections and lost tasks in the journal, and stop."""
        try:
            act = self._put if self._name.startswith("put") else self._take
            act_in_loop = self._put_in_loop if self._name.startswith("put") else self._take_in_loop
            asyncio.run(act_in_loop()) if in_loop else act()
        except BaseException as error:
            self._write("error", repr(error).replace("\n", " "))
        self._write("end")

    # -- threads -------------------------------------------------------------------------------------------------------

    def _put(self) -> None:
        with tubes.connect(self._url) as queue:
            tube = queue.tube("load")
            while not self._is_over:
                keys = [self._key() for _ in range(_MANY if self._random.random() < 0.2 else 1)]
                began = time.monotonic_ns()
                try:
                    tasks = [tube.put(keys[0])] if len(keys) == 1 else tube.put_many(keys)
                except ConnectionLost:
                    continue
                self._was_put(began, keys, tasks)
                time.sleep(0.01)

    def _take(self) -> None:
        with tubes.connect(self._url) as queue:
            tube = queue.tube("load")
            while not self._is_over:
                began = time.monotonic_ns()
                with suppress(ConnectionLost):
                    task = tube.take(timeout=0.2)
                    if task is not None:
                        end = _End(self, task, began)
                        time.sleep(self._random.random() * 0.01)
                        with end as finish:
                            finish()

    # -- asyncio -------------------------------------------------------------------------------------------------------

    async def _put_in_loop(self) -> None:
        async def put() -> None:
            key, began = self._key(), time.monotonic_ns()
            with suppress(ConnectionLost):
                self._was_put(began, [key], [await tube.put(key)])

        async with tubes.aio.connect(self._url) as queue:
            tube = await queue.tube("load")
            while not self._is_over:
                await asyncio.gather(*(put() for _ in range(_MANY)))
                await asyncio.sleep(0.02)

    async def _take_in_loop(self) -> None:
        async def take() -> None:
            while not self._is_over:
                began = time.monotonic_ns()
                with suppress(ConnectionLost):
                    task = await tube.take(timeout=0.2)
                    if task is not None:
                        end = _End(self, task, began)
                        await asyncio.sleep(self._random.random() * 0.01)
                        with end as finish:
                            await finish()

        async with tubes.aio.connect(self._url) as queue:
            tube = await queue.tube("load")
            await asyncio.gather(take(), take())

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _was_put(self, began: int, keys: list[str], tasks: list[Any]) -> None:
        ended = time.monotonic_ns()
        for key, task in zip(keys, tasks, strict=True):
            self._write("put", key, task.id, began, ended)


class _End:
    """A context for the call that ends a take: it records the start, the end and the outcome of the call."""

    def __init__(self, actor: Actor, task: Any, began: int) -> None:
        self._actor, self._task = actor, task
        self._verb = "release" if actor._random.random() < 0.1 else "ack"
        self._took = (began, time.monotonic_ns())
        self._ending = 0

    def __enter__(self) -> Any:
        self._ending = time.monotonic_ns()
        return getattr(self._task, self._verb)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        how = self._verb
        if isinstance(error, TaskNotTaken):
            how = "late"
        elif isinstance(error, ConnectionLost):
            how = "unsure"
        elif error is not None:
            return False
        self._actor._write("held", self._task.data, *self._took, how, self._ending)
        return True


class Hold(NamedTuple):
    """A take: its process, the times of request and reply, its outcome, and the start of its end."""

    by: str
    began: int
    returned: int
    how: str
    ending: int


class Actors:
    """All such processes and their journals, for the test that starts them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parents: list[subprocess.Popen[str]] = []
        self._pids: dict[str, int] = {}
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="tubes-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parent in self._parents:
            parent.communicate()
        assert self._folder is not None
        shutil.rmtree(self._folder)

    def start(self, puts: int, takes: int) -> None:
        """Start more processes of each kind."""
        first = len(self._pids)
        names = [f"put{first + number}" for number in range(puts)]
        names += [f"take{first + puts + number}" for number in range(takes)]
        words = ("tests.support.rollback_actors", self._url, self._folder, *names)
        parent = python("-m", *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._parents.append(parent)
        assert parent.stdout is not None
        self._pids |= zip(names, map(int, parent.stdout.readline().split()), strict=True)

    def _lines(self, name: str) -> list[str]:
        assert self._folder is not None
        journal = self._folder / name
        return journal.read_text().splitlines() if journal.exists() else []

    def _count(self) -> int:
        return sum(len(self._lines(name)) for name in self._pids)

    def wait_for_lines(self, lines: int) -> None:
        """Wait until the journals have `lines` more lines in total, and each at least one."""
        before = {name: len(self._lines(name)) for name in self._pids if not self._has_ended(name)}
        least = self._count() + lines
        assert becomes_true(lambda: self._count() >= least), f"{least - lines} lines, and then {self._count()}"
        assert becomes_true(lambda: all(len(self._lines(name)) > count for name, count in before.items())), before

    def _has_ended(self, name: str) -> bool:
        return "end" in self._lines(name)[-1:]

    def stop(self, *, every: int = 1) -> None:
        """Have each process, or every `every`-th one, close its queue and end."""
        names = [name for name in list(self._pids)[::every] if not self._has_ended(name)]
        for name in names:
            os.kill(self._pids[name], signal.SIGTERM)
        assert becomes_true(lambda: all(map(self._has_ended, names))), [n for n in names if not self._has_ended(n)]

    # -- the journals --------------------------------------------------------------------------------------------------

    def check(self, tube: tubes.Tube, since: int) -> None:
        """Check that confirmed puts after this moment exist exactly once and that no process affected a held task."""
        if found := list(self._contradictions(tube, since)):
            pytest.fail("\n".join(found[:10]), pytrace=False)

    def _contradictions(self, tube: tubes.Tube, since: int) -> Iterator[str]:
        puts: dict[str, int] = {}
        holds: dict[str, list[Hold]] = defaultdict(list)
        for name in self._pids:
            for line in self._lines(name):
                word, *fields = line.split()
                if word == "error":
                    yield f"{name}: {line}"
                elif word == "put" and int(fields[2]) > since:
                    puts[fields[0]] = int(fields[1])
                elif word == "held":
                    key, began, returned, how, ending = fields
                    holds[key].append(Hold(name, int(began), int(returned), how, int(ending)))
        stored, expected = Ledger._drain(tube)
        if len(stored) != expected:
            yield f"{expected} tasks are counted, {len(stored)} are stored"
        there: dict[str, list[int]] = defaultdict(list)
        for id, key in stored.items():
            there[key].append(id)
        if len(set(puts.values())) != len(puts):
            yield "two puts returned the same id"
        for key, id in puts.items():
            if key in there and there[key] != [id]:
                yield f"{key} was put as task {id}, but is stored as {there[key]}"
        for key in puts.keys() | there.keys() | holds.keys():
            known = sorted(holds[key], key=lambda hold: hold.returned)
            acks = sum(hold.how == "ack" and hold.ending > since for hold in known)
            unsure = any(hold.how == "unsure" for hold in known)
            if acks + len(there[key]) > 1 or (key in puts and not unsure and acks + len(there[key]) != 1):
                yield f"{key} was acked {acks} times and is stored {len(there[key])} times: {known}"
            fresh = [hold for hold in known if hold.began > since]
            for hold in fresh:
                if hold.how == "late":
                    yield f"{key} was taken from its holder: {known}"
            for one, next_one in pairwise(fresh):
                if next_one.returned < one.ending:
                    yield f"{key} had two holders: {known}"
        if not any(began > since for each in holds.values() for _, began, *_ in each) or not puts:
            yield "nothing happened"


def main(url: str, folder: str, names: list[str]) -> None:
    """Run the parent of such processes."""
    children: list[int] = []
    for number, name in enumerate(names):
        child = os.fork()
        if child == 0:
            Actor(url, folder, name).run(in_loop=number % 2 == 1)
            os._exit(0)
        children.append(child)
    print(*children, flush=True)
    sys.stdin.read()
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
