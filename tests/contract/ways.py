"""The ways in which a taken task returns or leaves its lane. Tests use all of them, with equal results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.contract.bench import Bench, Worker
from tubes import Task


@dataclass(frozen=True)
class Way:
    """A call on the task of a worker, the knob that the driver needs for it, and the put options of the task."""

    go: Callable[[Bench, Worker, Task], object]
    needs: str = ""
    options: Mapping[str, object] = field(default_factory=dict[str, object])


#: Ways that make the task ready again.
RETURNING: dict[str, Way] = {
    "release": Way(lambda bench, worker, task: worker.tube.release(task)),
    "bury and kick": Way(
        lambda bench, worker, task: (bench.tube.bury(task), bench.tube.select("buried", limit=1).kick())
    ),
    "release_all": Way(lambda bench, worker, task: bench.tube.admin.release_all()),
    "end of session": Way(lambda bench, worker, task: worker.queue.close()),
    "end of a detached session": Way(
        lambda bench, worker, task: (worker.queue.admin.detach(), bench.pass_time(bench.session_ttl))
    ),
    "ttr": Way(lambda bench, worker, task: bench.pass_time(9), "ttr", {"ttr": 9}),
    "end of delay": Way(lambda bench, worker, task: (worker.tube.release(task, delay=1), bench.pass_time(1)), "delay"),
}
#: Ways that free the lane for other tasks.
LEAVING: dict[str, Way] = {
    "ack": Way(lambda bench, worker, task: worker.tube.ack(task)),
    "bury": Way(lambda bench, worker, task: bench.tube.bury(task)),
    "delete": Way(lambda bench, worker, task: bench.tube.delete(task)),
    "cancel": Way(lambda bench, worker, task: bench.tube.cancel(task)),
    "delayed release": Way(lambda bench, worker, task: worker.tube.release(task, delay=99), "delay"),
}
