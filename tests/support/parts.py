"""Parts of the contract, for drivers that share their knobs with one that keeps the whole."""

from tubes.conformance.altering import Altering
from tubes.conformance.any import TakeAny
from tubes.conformance.batches import Batches
from tubes.conformance.capacity import Capacity
from tubes.conformance.context import Context
from tubes.conformance.delay import Delay
from tubes.conformance.events import Events
from tubes.conformance.failures import Failures
from tubes.conformance.keys import UniqueKeys
from tubes.conformance.looking import Looking
from tubes.conformance.loops import Loops
from tubes.conformance.options import Options
from tubes.conformance.order import Order
from tubes.conformance.ownership import Ownership
from tubes.conformance.sessions import Sessions
from tubes.conformance.ttl import TimeToLive
from tubes.conformance.updates import Updates
from tubes.conformance.verbs import Verbs
from tubes.conformance.waiting import Waiting
from tubes.conformance.waking import Waking


class OfOrder(Order, Verbs, Ownership, Waking, Batches, Sessions, Updates, Altering):
    """The rules in which the order of tasks has a part."""


class OfRank(Order, Verbs, TimeToLive, Delay, Batches, Failures, Updates, Altering):
    """The rules in which a rank has a part that tasks keep while they are delayed, or change."""


class OfCapacity(Capacity, Batches, Verbs, Options, Altering):
    """The rules in which room has a part."""


class OfCodec(Verbs, Waiting, TakeAny, Batches, Failures, UniqueKeys, Context, Updates, Looking, Events, Loops):
    """The rules in which data come back."""
