"""The machine: states and moves, drivers, and the engine that executes any driver in memory.

It has no I/O, no clock and no threads; `drivers/README.md` is the contract on one page. Imports only `tubes.errors` of
tubes.
"""

if not __name__.startswith("tubes."):
    raise ImportError("this folder is the package tubes.drivers: import tubes.drivers, not drivers")

from tubes.drivers.driver import Driver, Ranked
from tubes.drivers.moves import CALLS, MOVES, Move, State
from tubes.drivers.registry import Registry

__all__ = ["CALLS", "MOVES", "Driver", "Move", "Ranked", "Registry", "State"]
