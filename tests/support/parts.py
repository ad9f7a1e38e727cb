"""Parts of the contract, for drivers that share their knobs with a driver that runs all of it."""

from collections.abc import Iterable

from tests.contract import Contract
from tests.contract.altering import Altering
from tests.contract.any import TakeAny
from tests.contract.batches import Batches
from tests.contract.bench import skip_reason
from tests.contract.capacity import Capacity
from tests.contract.context import Context
from tests.contract.delay import Delay
from tests.contract.events import Events
from tests.contract.failures import Failures
from tests.contract.keys import UniqueKeys
from tests.contract.looking import Looking
from tests.contract.loops import Loops
from tests.contract.methods import Methods
from tests.contract.options import Options
from tests.contract.order import Order
from tests.contract.ownership import Ownership
from tests.contract.sessions import Sessions
from tests.contract.ttl import TimeToLive
from tests.contract.updates import Updates
from tests.contract.waiting import Waiting
from tests.contract.waking import Waking
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
