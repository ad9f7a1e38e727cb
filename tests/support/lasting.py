"""Settings of a server with persistent data."""

from typing import Any, Final

#: Settings of a server to be killed: writes reach the operating system before the reply. Calls do not wait for the
#: disk, which may be slower than a short lease.
OUTLIVES_KILLS: Final[dict[str, Any]] = {"appendonly": "yes", "appendfsync": "no"}
