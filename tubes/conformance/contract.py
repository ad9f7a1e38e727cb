"""All subjects in one class."""

from __future__ import annotations

from tubes.conformance.altering import Altering
from tubes.conformance.any import TakeAny
from tubes.conformance.batches import Batches
from tubes.conformance.cancelling import Cancelling, Losses
from tubes.conformance.capacity import Capacity, LaneCapacity
from tubes.conformance.checkpoints import Checkpoints
from tubes.conformance.context import Context
from tubes.conformance.delay import Delay
from tubes.conformance.done import DoneTasks
from tubes.conformance.emptiness import Emptiness
from tubes.conformance.events import Events
from tubes.conformance.failures import Failures
from tubes.conformance.keys import UniqueKeys
from tubes.conformance.lanes import Lanes
from tubes.conformance.leases import Leases
from tubes.conformance.looking import Looking
from tubes.conformance.loops import Loops
from tubes.conformance.methods import Methods
from tubes.conformance.moving import Moving
from tubes.conformance.options import Options
from tubes.conformance.order import Order
from tubes.conformance.ownership import Ownership
from tubes.conformance.pause import Pauses
from tubes.conformance.queues import Queues
from tubes.conformance.rates import Rates
from tubes.conformance.selecting import Selections
from tubes.conformance.sessions import Sessions
from tubes.conformance.throttle import Blocks, Bursts, Intervals, IntervalsFromAcks, Limits, RoundRobin
from tubes.conformance.ttl import TimeToLive
from tubes.conformance.ttr import TimeToRun
from tubes.conformance.updates import Updates
from tubes.conformance.waiting import Waiting
from tubes.conformance.waking import Waking


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
