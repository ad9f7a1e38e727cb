"""What tests of programs that use tubes need: time in their own hands, and a server of their own."""

from typing import TYPE_CHECKING, Any

from tubes.testing.clock import ManualClock

if TYPE_CHECKING:
    from tubes.testing.java import java_home
    from tubes.testing.server import LocalServer, server_program

__all__ = ["LocalServer", "ManualClock", "java_home", "server_program"]


def __getattr__(name: str) -> Any:
    # Servers need redis-py, whose import takes longer than that of tubes.
    if name in ("LocalServer", "server_program"):
        from tubes.testing import server

        return getattr(server, name)
    if name == "java_home":
        from tubes.testing import java

        return java.java_home
    raise AttributeError(name)
