"""How long a worker rests after an error of the backend, and keeps a task that would fail again at once."""

from __future__ import annotations

from typing import Final

from tubes.backend.retry import RetryPolicy

#: No two workers rest equally long: a server that comes back is not overrun.
RETRY: Final = RetryPolicy.growing(0.1, 15.0, jitter=0.5)
