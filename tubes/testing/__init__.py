"""Helpers for tests of programs that use tubes: a manual clock, a private server, asserts.

May import `tubes.sync`, `tubes.aio`, `tubes.worker` and the packages that those import.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tubes.testing.clock import ManualClock

if TYPE_CHECKING:
    from tubes.testing.asserts import assert_buried, assert_counts, assert_empty, assert_put, run_until_empty
    from tubes.testing.isolation import isolated
    from tubes.testing.java import java_home
    from tubes.testing.server import LocalServer, server_program

__all__ = [
    "LocalServer",
    "ManualClock",
    "assert_buried",
    "assert_counts",
    "assert_empty",
    "assert_put",
    "isolated",
    "java_home",
    "run_until_empty",
    "server_program",
]
#: Names that are imported on first use, by module: redis-py, for example, takes longer to import than tubes.
_LAZY = {
    "server": ("LocalServer", "server_program"),
    "asserts": ("assert_buried", "assert_counts", "assert_empty", "assert_put", "run_until_empty"),
    "isolation": ("isolated",),
    "java": ("java_home",),
}


def __getattr__(name: str) -> object:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"tubes.testing.{module}"), name)
    raise AttributeError(name)
