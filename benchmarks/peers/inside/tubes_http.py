"""tubes through its service over HTTP, with the requests of its guide: a put has a key, so that it can be repeated."""

import http.client
import json
import signal
import sys
import time
import uuid
from typing import Any

from benchmarks.peers.inside import notes, settings

_TUBE = "/v1/_/tubes/jobs"
#: Seconds for which a request is repeated, and to wait before.
PATIENCE = 30.0
PAUSE = 0.2
_connection = http.client.HTTPConnection(settings.HOST, settings.PORT, timeout=PATIENCE)


def _ask(method: str, path: str, body: Any = None, **headers: str) -> Any:
    """Send a request, again while the service has a problem. 409: the lease has ended, or a repeated ack was done."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            text = None if body is None else json.dumps(body)
            _connection.request(method, path, text, headers)
            reply = _connection.getresponse()
            data = reply.read()
            if reply.status < 500:
                if reply.status >= 400 and reply.status not in (404, 409):
                    raise ValueError(f"{method} {path}: {reply.status} {data[:200]!r}")
                return json.loads(data) if data else None
        except (OSError, http.client.HTTPException):
            _connection.close()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{method} {path}: no reply within {PATIENCE:g} s")
        time.sleep(PAUSE)


def start() -> None:
    """Create the tube."""
    _ask("PUT", _TUBE, {"options": {"ttr": settings.LEASE}})


def put(payload: str) -> None:
    """Put one task."""
    _ask("POST", f"{_TUBE}/tasks", {"data": payload}, **{"Idempotency-Key": uuid.uuid4().hex})


def work() -> None:
    """Take, handle and ack tasks. SIGTERM ends it between two tasks."""
    start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit() if waits else stop.append(True))
    waits, stop = True, list[bool]()
    while not stop:
        reply = _ask("POST", f"{_TUBE}/take", {"wait": 10})
        waits = False
        for task in reply["tasks"] if reply else ():
            notes.handle(task["data"])
            _ask("DELETE", f"/v1/_/leases/{task['lease']}")
        waits = True
