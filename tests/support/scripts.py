"""All scripts that a server may get."""

from __future__ import annotations

from collections.abc import Iterator

from tubes import Driver
from tubes.drivers import Ranked, fifo, fifottl, limfifottl, utube, utubettl
from tubes.redis.scripts.assembly import PLAIN, TubeSettings, assembled
from tubes.redis.scripts.lines import LUA, Line

#: All calls, and the calls of drivers with lanes only.
METHODS = sorted(path.name.removesuffix(".lua") for path in (LUA / "verbs").iterdir())
LANE_METHODS = ("pace", "restart_cooldowns", "lanes", "check_lanes")
_BACKOFF = TubeSettings(((500_000,), 0.1, 7))

#: A rank that uses all available fields.
_RANK = "0 * (pri + created) - id"


def _newest(task: Ranked) -> float:
    return -task.id


DRIVERS = {
    "fifo": (fifo.Fifo, TubeSettings()),
    "bounded": (fifo.Fifo, TubeSettings(bounded=True)),
    "lifo": (Driver("lifo", order="-id"), TubeSettings()),
    "fifottl": (fifottl.FifoTtl, TubeSettings()),
    "fifottl that keeps dead letters": (fifottl.FifoTtl, TubeSettings(buried_ttl=5_000_000)),
    "fifottl with a backoff": (fifottl.FifoTtl, _BACKOFF),
    "fifo that keeps done tasks": (fifo.Fifo, TubeSettings(keeps=True)),
    "utubettl that keeps some done tasks": (utubettl.UtubeTtl, TubeSettings(keeps=True, keeps_most=5)),
    "limfifottl": (limfifottl.LimFifoTtl, TubeSettings(idle=60_000, bounded=True)),
    "utube": (utube.Utube, TubeSettings()),
    "utubettl": (utubettl.UtubeTtl, TubeSettings()),
    "utubettl with a backoff": (utubettl.UtubeTtl, _BACKOFF),
    "utubettl with limits": (utubettl.UtubeTtl, TubeSettings(paced=True)),
    "utubettl with room in lanes": (utubettl.UtubeTtl, TubeSettings(bounded=True, lane_capacity=5)),
    "utubettl with limits and room in lanes": (
        utubettl.UtubeTtl,
        TubeSettings(bounded=True, paced=True, lane_capacity=0),
    ),
    "plain, by rank": (Driver("plain-rank", options={"pri"}, rank=_newest, rank_lua=_RANK), TubeSettings()),
    "timed, by rank": (Driver("rank", options={"pri", "ttl"}, rank=_newest, rank_lua=_RANK), TubeSettings()),
    "lanes, by rank": (
        Driver("lanes-by-rank", options={"lane"}, lane="lane", rank=_newest, rank_lua=_RANK),
        TubeSettings(),
    ),
}


def methods_of(driver: Driver) -> list[str]:
    """Return the calls of a driver."""
    return [method for method in METHODS if method in PLAIN or driver.lane or method not in LANE_METHODS]


def every_script() -> Iterator[list[Line]]:
    """Yield the lines of each script."""
    for driver, settings in DRIVERS.values():
        for method in methods_of(driver):
            yield assembled(method, driver, settings)
