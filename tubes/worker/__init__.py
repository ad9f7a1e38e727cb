"""Workers call functions with the tasks of tubes.

May import `tubes.sync`, `tubes.aio` and the packages that those import.

>>> import tubes
>>> from tubes.worker import Worker
>>> with tubes.connect() as queue:
...     _ = queue.create_tube("emails").put("ann")
...     worker = Worker(queue)
...     @worker.on("emails", concurrency=10)
...     def send(task):
...         print("to", task.data)
...     worker.run(burst=True).acked
to ann
1
"""

from tubes.worker.delays import retry_after
from tubes.worker.functions import current_task
from tubes.worker.outcomes import Bury, Interrupted, Retry, Summary
from tubes.worker.processes import ProcessDied, ProcessTask
from tubes.worker.worker import NoHandlers, Worker, WorkerBusy

__all__ = [
    "Bury",
    "Interrupted",
    "NoHandlers",
    "ProcessDied",
    "ProcessTask",
    "Retry",
    "Summary",
    "Worker",
    "WorkerBusy",
    "current_task",
    "retry_after",
]
