"""A worker process with tasks that kill it: `python -m tests.support.poison URL MODE JOURNAL`.

It writes each started task into the journal: the id, the attempts, and its own process id.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tubes
from tests.support.processes import python
from tubes.worker import Worker

#: The lease of a process's session.
LEASE: Final = 1.0
#: The data of tasks that kill their process.
DEADLY: Final = ("segfault", "exit", "kill", "abort")
#: The memory limit of a process in bytes.
_MEMORY: Final = 4 << 30


def act(data: Any) -> None:
    """Die in the way named by the data, or work for a while."""
    if data == "segfault":
        ctypes.string_at(0)
    elif data == "exit":
        os._exit(0)
    elif data == "kill":  # Like the kernel's out-of-memory killer.
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    elif data == "abort":
        os.abort()
    elif data == "memory":
        bytearray(_MEMORY)
    else:
        time.sleep(0.01)


def main(url: str, mode: str, journal: str) -> None:
    """Work in this mode until killed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    written = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(task: Any) -> None:
        os.write(written, f"{task.id} {task.attempts} {os.getpid()}\n".encode())
        act(task.data)

    async def handle_async(task: Any) -> None:
        handle(task)

    async def loop() -> None:
        async with tubes.aio.connect(url, session_ttl=LEASE) as queue:
            async for task in await queue.tube("jobs"):
                handle(task)

    if mode == "async for":
        asyncio.run(loop())
    with tubes.connect(url, session_ttl=LEASE) as queue:
        jobs = queue.tube("jobs")
        if mode == "for":
            for task in jobs:
                handle(task)
        elif mode == "take":
            while (taken := jobs.take()) is not None:
                with taken:
                    handle(taken)
        elif mode == "take_many":
            while True:
                for task in jobs.take_many(10, 60):
                    handle(task)
                    task.ack()
        else:
            kind, _, concurrency = mode.partition(" ")
            worker = Worker(queue, concurrency=int(concurrency))
            worker.on(jobs, handle if kind == "threads" else handle_async)
            worker.run()


@contextmanager
def run_supervised(url: str, mode: str, journal: Path) -> Generator[None]:
    """Run such a process and restart it whenever it dies."""
    ending = threading.Event()
    alive: list[subprocess.Popen[bytes]] = []

    def supervise() -> None:
        while not ending.is_set():
            process = python("-m", "tests.support.poison", url, mode, journal, stderr=subprocess.DEVNULL)
            alive[:] = [process]
            process.wait()

    thread = threading.Thread(target=supervise)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        while thread.is_alive():  # Another process may just have started.
            for process in alive:
                process.kill()
            thread.join(0.1)


def started_attempts(journal: Path) -> dict[int, list[int]]:
    """Return the started attempts by task id."""
    found: dict[int, list[int]] = {}
    for line in journal.read_text().splitlines():
        id, attempts, _ = map(int, line.split())
        found.setdefault(id, []).append(attempts)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
