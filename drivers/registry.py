"""Drivers by name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from tubes.drivers.driver import Driver, check_name
from tubes.drivers.fifo import Fifo
from tubes.drivers.fifottl import FifoTtl
from tubes.drivers.limfifottl import LimFifoTtl
from tubes.drivers.utube import Utube
from tubes.drivers.utubettl import UtubeTtl
from tubes.errors import DriverExists, DriverNotFound, InvalidOption, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The drivers of every queue.
BUILT_IN: Final = (Fifo, FifoTtl, LimFifoTtl, Utube, UtubeTtl)


class Registry:
    """The drivers of one store: built-in, from entry points `tubes.drivers`, and registered."""

    def __init__(self) -> None:
        self._drivers = {driver.name: driver for driver in BUILT_IN}

    def register(self, driver: Driver) -> None:
        """Add a driver. Raises `DriverExists` if a different driver has its name."""
        self.check_new(driver)
        # In one step: another thread may register a driver after a lookup.
        if self._drivers.setdefault(driver.name, driver) != driver:
            raise DriverExists(name=driver.name)

    def check_new(self, driver: Driver) -> None:
        """Raise the error that `register` would raise, without adding the driver."""
        if not isinstance(driver, Driver):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="driver", value=driver, rule="must be a Driver")
        check_name("driver", driver.name)
        present = self._lookup(driver.name)
        if present is not None and present != driver:
            raise DriverExists(name=driver.name)

    def find(self, name: str) -> Driver:
        check_name("driver", name)
        found = self._lookup(name)
        if found is None:
            _points.cache_clear()  # The driver may have been installed since.
            found = self._lookup(name)
        if found is None:
            known = sorted(_points().keys() | self._drivers.keys())
            raise DriverNotFound(name=name, known=f"{', '.join(known)}{did_you_mean(name, known)}")
        return found

    def _lookup(self, name: str) -> Driver | None:
        found = self._drivers.get(name)
        if found is None and (point := _points().get(name)) is not None:
            found = self._drivers.setdefault(name, _load(point))
        return found


def known_drivers() -> list[str]:
    """List the names of the built-in and installed drivers."""
    return sorted({driver.name for driver in BUILT_IN} | _points().keys())


@cache
def _points() -> dict[str, EntryPoint]:
    """Return the entry points by name; the first one wins.

    Read once, and only for drivers that are not built in, since reading and importing take milliseconds.
    """
    from importlib.metadata import entry_points

    return {point.name: point for point in reversed(tuple(entry_points(group="tubes.drivers")))}


def _load(point: EntryPoint) -> Driver:
    """Load an entry point, which must be a driver with its name."""
    rule = f"its entry point {point.value!r} must refer to a Driver of this name"
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise InvalidOption(option="driver", value=point.name, rule=f"{rule}: {error}") from error
    if not isinstance(found, Driver) or found.name != point.name:
        raise InvalidOption(option="driver", value=point.name, rule=f"{rule}, not {found!r}")
    return found
