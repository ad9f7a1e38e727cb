"""The API for threads: `connect`, `Queue`, `Tube` and `Task`, each class in the file of its name.

`.ci/make_aio.py` generates `tubes/aio`, the API for asyncio, from these files. Two of its rules are visible here: each
call of the backend is a separate statement, and the result of a method is assigned to a name before it is used. Modules
here may import `tubes.backend`, `tubes.calls`, `tubes.connecting` and the packages that those import.
"""

from tubes.sync.lane import Lane
from tubes.sync.queue import Enqueuer, Queue, QueueAdmin, connect
from tubes.sync.selection import Selection
from tubes.sync.task import Task
from tubes.sync.tube import Tube, TubeAdmin

__all__ = ["Enqueuer", "Lane", "Queue", "QueueAdmin", "Selection", "Task", "Tube", "TubeAdmin", "connect"]
