"""A worker process with a schedule that prints starts and ends: `python -m tests.support.scheduled URL`."""

from __future__ import annotations

import logging
import os
import sys
import time

import tubes
from tests.support.handlers import say
from tubes.worker import Worker, current_task

#: Seconds between two calls, duration of a call, and lease of a session.
INTERVAL, WORK, LEASE = 2, 0.5, 1.0


class Left(logging.Handler):
    """A log handler that prints skipped calls."""

    def emit(self, record: logging.LogRecord) -> None:
        if "is not called for" in record.getMessage():
            say("left", *record.args[1:2] if isinstance(record.args, tuple) else ())


def main(url: str) -> None:
    """Work until it is killed."""
    logging.getLogger("tubes.worker").setLevel(logging.INFO)
    logging.getLogger("tubes.worker").addHandler(Left())
    worker = Worker(tubes.connect(url, session_ttl=LEASE), concurrency=2)

    @worker.every(INTERVAL)
    def tick() -> None:
        at, attempts = current_task().data["at"], current_task().attempts
        say("begins", os.getpid(), at, attempts, time.time())
        time.sleep(WORK)
        say("ends", os.getpid(), at, attempts, time.time())

    say("ready")
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1])
