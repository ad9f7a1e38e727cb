"""tubes through its service over HTTP, as its guide shows: puts have keys; requests without a reply are repeated."""

import http.client
import json
import time
import uuid
from operator import itemgetter
from typing import Any

from benchmarks.peers.inside import notes, settings

#: Seconds for which a request is repeated, and to wait before.
PATIENCE = 30.0
PAUSE = 0.2
_TUBE = "/v1/_/tubes/jobs"
_connection = http.client.HTTPConnection(settings.HOST, settings.PORT, timeout=PATIENCE)


def _ask(method: str, path: str, body: Any = None, **headers: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            _connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = _connection.getresponse()
            data = reply.read()
            # 404 and 409: the lease has ended, or the task was acked by a request whose reply was lost.
            if reply.status < 400 or reply.status in (404, 409):
                return json.loads(data) if data else {}
        except (OSError, http.client.HTTPException):
            _connection.close()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{method} {path}: no success within {PATIENCE:g} s")
        time.sleep(PAUSE)


def start() -> None:
    """Create the tube."""
    _ask("PUT", _TUBE, {"options": {"ttr": settings.LEASE}})


def put(payload: str) -> None:
    """Put one task."""
    _ask("POST", f"{_TUBE}/tasks", {"data": payload}, **{"Idempotency-Key": uuid.uuid4().hex})


def _take() -> Any:
    while not (tasks := _ask("POST", f"{_TUBE}/take", {"wait": 10}).get("tasks")):
        pass
    return tasks[0]


def work() -> None:
    """Take, handle and ack tasks."""
    start()
    notes.work_until_stopped(_take, itemgetter("data"), lambda task: _ask("DELETE", f"/v1/_/leases/{task['lease']}"))
