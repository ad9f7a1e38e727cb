"""Taking a task that must be there."""

from __future__ import annotations

import tubes


def take_task(tube: tubes.Tube, timeout: float | None = 0) -> tubes.Task:
    """Take the first available task of a tube; fail if there is none."""
    task = tube.take(timeout)
    assert task is not None
    return task
