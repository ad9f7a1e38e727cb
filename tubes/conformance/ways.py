"""How a task that a worker has comes back, or makes way: what must not depend on which of these it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tubes import Task
from tubes.conformance.bench import Bench, Worker


@dataclass(frozen=True)
class Way:
    """What happens to the task of a worker, what the driver needs for that, and with which options the task is put."""

    go: Callable[[Bench, Worker, Task], object]
    needs: str = ""
    options: Mapping[str, object] = field(default_factory=dict[str, object])


#: The task is ready again.
RETURNING: dict[str, Way] = {
    "release": Way(lambda bench, worker, task: worker.tube.release(task)),
    "bury and kick": Way(lambda bench, worker, task: (bench.tube.bury(task), bench.tube.kick())),
    "release_all": Way(lambda bench, worker, task: bench.tube.release_all()),
    "end of session": Way(lambda bench, worker, task: worker.queue.close()),
    "end of a detached session": Way(
        lambda bench, worker, task: (worker.queue.detach(), bench.pass_time(bench.session_ttl))
    ),
    "ttr": Way(lambda bench, worker, task: bench.pass_time(9), "ttr", {"ttr": 9}),
    "end of delay": Way(lambda bench, worker, task: (worker.tube.release(task, delay=1), bench.pass_time(1)), "delay"),
}
#: It leaves its lane to its neighbours.
LEAVING: dict[str, Way] = {
    "ack": Way(lambda bench, worker, task: worker.tube.ack(task)),
    "bury": Way(lambda bench, worker, task: bench.tube.bury(task)),
    "delete": Way(lambda bench, worker, task: bench.tube.delete(task)),
    "delayed release": Way(lambda bench, worker, task: worker.tube.release(task, delay=99), "delay"),
}
