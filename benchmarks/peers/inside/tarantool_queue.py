"""Tarantool's own queue, a temporary fifo, through its Python client: take and ack."""

from importlib import import_module
from typing import Any

from benchmarks.peers.inside import notes, settings

_tarantool: Any = import_module("tarantool")
_client = _tarantool.connect(settings.HOST, settings.PORT)


def put(payload: str) -> None:
    """Put one task."""
    _client.call("queue.tube.jobs:put", (payload,))


def work() -> None:
    """Take, handle and ack tasks."""
    while True:
        task = _client.call("queue.tube.jobs:take", ()).data[0]
        notes.handle(task[2])
        _client.call("queue.tube.jobs:ack", (task[0],))
