"""All subjects in one class."""

from __future__ import annotations

from tests.contract.altering import Altering
from tests.contract.any import TakeAny
from tests.contract.batches import Batches
from tests.contract.cancelling import Cancelling, Losses
from tests.contract.capacity import Capacity, LaneCapacity
from tests.contract.checkpoints import Checkpoints
from tests.contract.context import Context
from tests.contract.delay import Delay
from tests.contract.done import DoneTasks
from tests.contract.emptiness import Emptiness
from tests.contract.events import Events
from tests.contract.failures import Failures
from tests.contract.keys import UniqueKeys
from tests.contract.lanes import Lanes
from tests.contract.leases import Leases
from tests.contract.looking import Looking
from tests.contract.loops import Loops
from tests.contract.methods import Methods
from tests.contract.moving import Moving
from tests.contract.options import Options
from tests.contract.order import Order
from tests.contract.ownership import Ownership
from tests.contract.pause import Pauses
from tests.contract.queues import Queues
from tests.contract.rates import Rates
from tests.contract.selecting import Selections
from tests.contract.sessions import Sessions
from tests.contract.throttle import Blocks, Bursts, Intervals, IntervalsFromAcks, Limits, RoundRobin
from tests.contract.ttl import TimeToLive
from tests.contract.ttr import TimeToRun
from tests.contract.updates import Updates
from tests.contract.waiting import Waiting
from tests.contract.waking import Waking


class Contract(
    Methods,
    Ownership,
    Cancelling,
    Losses,
    Leases,
    Order,
    Lanes,
    Limits,
    Intervals,
    Bursts,
    IntervalsFromAcks,
    Blocks,
    RoundRobin,
    TimeToLive,
    TimeToRun,
    Delay,
    Waiting,
    Waking,
    Emptiness,
    TakeAny,
    Pauses,
    Rates,
    Capacity,
    LaneCapacity,
    Batches,
    Failures,
    UniqueKeys,
    Context,
    Checkpoints,
    Updates,
    Looking,
    DoneTasks,
    Moving,
    Selections,
    Sessions,
    Events,
    Loops,
    Options,
    Queues,
    Altering,
):
    """All rules for any driver on any backend: subclass it and set `driver`. See `Bench` for other attributes.

    >>> from tubes import Driver
    >>> class TestLifo(Contract):
    ...     driver = Driver("lifo", order="-id")
    """
