"""How a server is set up whose data outlives it."""

from typing import Any, Final

#: For a server that is killed: the system has what it wrote before it answered. No call waits for a slow disk, which
#: may take longer than a short lease lasts.
OUTLIVES_KILLS: Final[dict[str, Any]] = {"appendonly": "yes", "appendfsync": "no"}
