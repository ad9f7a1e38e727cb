"""A program with a worker whose handler runs in a separate process; its arguments are a URL and a file for pids."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import tubes
from tubes.worker import ProcessTask, Worker


def note_pid_and_sleep(task: ProcessTask) -> None:
    """Write the pid to the file named by the task, and sleep."""
    with Path(task.data).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(3600)


if __name__ == "__main__":
    with tubes.connect(sys.argv[1]) as queue:
        tube = queue.create_tube("frames", "fifottl", if_exists="keep")
        worker = Worker(queue, grace=0.1)
        worker.on(tube, note_pid_and_sleep, process=True)
        tube.put(sys.argv[2])
        worker.run()
elif __name__ == "__mp_main__" and len(sys.argv) > 3:  # A process of the handler imports this program and hangs.
    note_pid_and_sleep(ProcessTask(tube="", id=0, data=sys.argv[2]))
