"""A worker process: `python -m tests.support.worker URL MODE`, where MODE is `sync`, `aio`, `puppet` or `batches`.

It writes a line before and after each call, so that a ledger can be kept even if it is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from subprocess import PIPE, Popen

import tubes
from tests.support.handlers import say
from tests.support.processes import python
from tubes import ConnectionLost, TaskNotTaken

#: The lease of a worker's session.
LEASE = 1.0


def work(url: str) -> None:
    """Take and ack until the end."""
    with tubes.connect(url, session_ttl=LEASE) as queue:
        tube = queue.tube("load")
        say("ready")
        while True:
            try:
                task = tube.take(timeout=5)
            except ConnectionLost:
                continue
            if task is None:
                continue
            say("took", task.id, task.attempts, task.data)
            time.sleep(random.random() * 0.004)
            say("acking", task.id, task.attempts)
            try:
                task.ack()
                say("acked", task.id, task.attempts)
            except TaskNotTaken:
                say("late", task.id, task.attempts)
            except ConnectionLost:
                pass


async def work_in_loop(url: str) -> None:
    """Take and ack with three tasks of an event loop."""

    async def one() -> None:
        while True:
            task = await tube.take()
            assert task is not None
            say("took", task.id, task.attempts, task.data)
            await asyncio.sleep(random.random() * 0.004)
            say("acking", task.id, task.attempts)
            try:
                await task.ack()
                say("acked", task.id, task.attempts)
            except TaskNotTaken:
                say("late", task.id, task.attempts)

    async with tubes.aio.connect(url, session_ttl=LEASE) as queue:
        tube = await queue.tube("load")
        say("ready")
        await asyncio.gather(one(), one(), one())


def play(url: str) -> None:
    """Execute the commands from stdin (`put`, `look`, `take`, `ack`, `open`) and print the results."""
    with tubes.connect(url, session_ttl=LEASE) as queue:
        tube = queue.tube("load")
        task: tubes.Task | None = None
        say("ready")
        for line in sys.stdin:
            if line.strip() == "open":
                tube = queue.tube("load")
                say("opened")
            elif line.strip() == "look":
                say(tube.statistics().tasks["total"], "tasks")
            elif line.startswith("put "):
                say("put", tube.put(line.strip().removeprefix("put ")).id)
            elif line.strip() == "take":
                task = tube.take(timeout=0)
                say("none") if task is None else say("took", task.id, task.attempts)
            elif task is not None:
                try:
                    task.ack()
                    say("acked", task.id, task.attempts)
                except TaskNotTaken:
                    say("late", task.id, task.attempts)


def put_batches(url: str) -> None:
    """Put batches that need several requests, until the end."""
    with tubes.connect(url, session_ttl=LEASE) as queue:
        tube = queue.tube("load")
        say("ready")
        while True:
            say("put", len(tube.put_many(range(Worker.BATCH))))


class Worker:
    """A worker in a separate process, controlled by its parent."""

    #: The number of tasks per batch of `put_batches`.
    BATCH = 12_000

    def __init__(self, url: str, mode: str, *more: str, module: str = "tests.support.worker") -> None:
        self.process: Popen[str] = python("-m", module, url, mode, *more, stdin=PIPE, stdout=PIPE, text=True, bufsize=1)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def read_line(self) -> str:
        """Read the next line of output."""
        return self._stdout.readline().strip()

    def send(self, word: str) -> str:
        """Send a command to a puppet and return its reply."""
        self._stdin.write(word + "\n")
        return self.read_line()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def kill(self) -> list[str]:
        """Kill the process with SIGKILL and return its unread output."""
        self.process.kill()
        lines = self._stdout.read().splitlines()
        self._stdin.close()
        self._stdout.close()
        self.process.wait()
        return lines


if __name__ == "__main__":
    url, mode = sys.argv[1:]
    if mode == "aio":
        asyncio.run(work_in_loop(url))
    else:
        {"sync": work, "puppet": play, "batches": put_batches}[mode](url)
