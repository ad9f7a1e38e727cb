"""Handlers that run in processes, which import this module."""

import os
import time

from tubes.worker import ProcessTask


def sleep_in_process(task: ProcessTask) -> None:
    """Open a pipe, which the kernel closes when the process ends, and sleep."""
    pipe = os.open(task.data, os.O_WRONLY)
    os.write(pipe, b"x")
    time.sleep(3600)
