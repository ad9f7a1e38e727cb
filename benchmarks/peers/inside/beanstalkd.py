"""beanstalkd, through greenstalk: reserve and delete. It has no batches."""

import signal
import sys
from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_greenstalk: Any = import_module("greenstalk")
_client: Any = None


def start() -> None:
    """Connect."""
    global _client
    _client = _greenstalk.Client((settings.HOST, settings.PORT))


def put(payload: str) -> None:
    """Put one job; connect again after an error, since the client does not."""
    global _client
    if _client is None:
        start()
    try:
        _client.put(payload, **({"ttr": settings.LEASE} if settings.LEASE else {}))
    except OSError:
        _client = None
        raise


def work() -> None:
    """Reserve, handle and delete jobs. SIGTERM ends it between two jobs."""
    start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit() if waits else stop.append(True))
    waits, stop = True, list[bool]()
    while not stop:
        job = _client.reserve()
        waits = False
        notes.handle(job.body)
        _client.delete(job)
        waits = True
