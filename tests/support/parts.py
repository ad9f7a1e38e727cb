"""Parts of the contract, for drivers that share their knobs with a driver that runs all of it."""

from collections.abc import Iterable

from tubes.conformance import Contract
from tubes.conformance.altering import Altering
from tubes.conformance.any import TakeAny
from tubes.conformance.batches import Batches
from tubes.conformance.bench import skip_reason
from tubes.conformance.capacity import Capacity
from tubes.conformance.context import Context
from tubes.conformance.delay import Delay
from tubes.conformance.events import Events
from tubes.conformance.failures import Failures
from tubes.conformance.keys import UniqueKeys
from tubes.conformance.looking import Looking
from tubes.conformance.loops import Loops
from tubes.conformance.methods import Methods
from tubes.conformance.options import Options
from tubes.conformance.order import Order
from tubes.conformance.ownership import Ownership
from tubes.conformance.sessions import Sessions
from tubes.conformance.ttl import TimeToLive
from tubes.conformance.updates import Updates
from tubes.conformance.waiting import Waiting
from tubes.conformance.waking import Waking
from tubes.drivers.driver import Driver
from tubes.drivers.registry import Registry

#: A driver with all knobs: greatest priority first, newest first among equals, one task per tenant.
TENANTS = Driver(
    "tenants",
    options={"tenant", "pri", "ttl", "ttr", "delay", "capacity", "timeout"},
    order="-pri,-id",
    lane="tenant",
)

#: The rules of the contract, by name.
RULES = {name: getattr(Contract, name) for name in dir(Contract) if name.startswith("test_")}


def rules_of(driver: Driver | str, names: Iterable[str] = RULES) -> set[str]:
    """Return the rules that a driver does not skip."""
    known = Registry().find(driver) if isinstance(driver, str) else driver
    return {name for name in names if not skip_reason(known, RULES[name])}


class RareRules(Contract):
    """The rules that `utubettl` skips, about drivers that lack a feature or have a capacity."""

    for _name in rules_of("utubettl"):
        locals()[_name] = None  # This keeps pytest from collecting the test.


class OfOrder(Order, Methods, Ownership, Waking, Batches, Sessions, Updates, Altering):
    """The rules that involve the order of tasks."""


class OfRank(Order, Methods, TimeToLive, Delay, Batches, Failures, Updates, Altering):
    """The rules that involve a rank, which tasks keep while delayed, or change."""


class OfCapacity(Capacity, Batches, Methods, Options, Altering):
    """The rules that involve capacity."""


class OfCodec(Methods, Waiting, TakeAny, Batches, Failures, UniqueKeys, Context, Updates, Looking, Events, Loops):
    """The rules that involve returned data."""
