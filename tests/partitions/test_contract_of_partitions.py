"""The contract of tubes with partitions.

One partition keeps all rules. Several have no common order, and share a capacity and a rate, so the tests of these
subjects run with one partition only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import pytest

from tests.contract.bench import Bench
from tests.contract.cancelling import Cancelling
from tests.contract.checkpoints import Checkpoints
from tests.contract.contract import Contract
from tests.contract.events import Events
from tests.contract.lanes import Lanes
from tests.contract.leases import Leases
from tests.contract.loops import Loops
from tests.contract.ownership import Ownership
from tests.contract.pause import Pauses
from tests.contract.queues import Queues
from tests.contract.sessions import Sessions
from tests.contract.throttle import Blocks, Bursts, IntervalsFromAcks, Limits
from tests.contract.ttl import TimeToLive
from tests.contract.ttr import TimeToRun
from tests.contract.waking import Waking

pytestmark = pytest.mark.full
B = TypeVar("B", bound=Bench)


def without(*tests: str) -> Callable[[type[B]], type[B]]:
    """Remove tests from a class."""

    def remove(kind: type[B]) -> type[B]:
        for test in tests:
            assert hasattr(kind, test), f"there is no test {test}"
            setattr(kind, test, None)
        return kind

    return remove


@without(
    "test_alter_adds_and_removes_a_capacity",
    "test_backoff_jitter_shortens_delays_reproducibly",
    "test_done_tasks_can_be_listed_page_by_page",
    "test_jitter_lengthens_intervals_reproducibly",
    "test_lanes_are_listed_by_name",
    "test_put_into_a_full_lane_is_refused_and_changes_nothing",
    "test_put_many_returns_tasks_in_order",
    "test_put_many_returns_the_errors_of_bad_items_if_asked",
    "test_put_that_replaces_needs_no_room_in_the_same_lane",
    "test_refused_put_uses_no_id",
    "test_selection_of_done_tasks_can_be_deleted",
    "test_waiting_put_gets_room_when_the_capacity_grows",
)
class OnePartition(Contract):
    """The contract with one partition, without tests of the ids of a tube without partitions."""

    options: ClassVar = {"partitions": 1}


class TestFifoWithOnePartition(OnePartition):
    driver = "fifo"


class TestFifottlWithOnePartition(OnePartition):
    driver = "fifottl"


class TestUtubettlWithOnePartition(OnePartition):
    driver = "utubettl"


@without(
    "test_cancel_makes_room",
    "test_a_closed_session_releases_its_tasks_in_the_order_of_their_ids",
    "test_a_lease_of_a_dropped_tube_is_refused_by_its_successor",
    "test_cancel_frees_the_key",
    "test_kicked_tasks_are_handed_out_in_their_order",
    "test_loop_acks_each_task_before_taking_the_next",
    "test_loop_continues_after_the_pause",
    "test_tasks_ready_together_are_handed_out_in_order",
)
class Unordered(
    Ownership, Cancelling, Leases, TimeToLive, TimeToRun, Sessions, Pauses, Events, Checkpoints, Loops, Queues, Waking
):
    """The subjects of the contract that hold across partitions.

    The tests that are left out compare the order of tasks, keys in different lanes, or ids, or need a capacity of one.
    """


class TestFifottlWithThreePartitions(Unordered):
    driver = "fifottl"
    options: ClassVar = {"partitions": 3}


class TestFifottlWith16Partitions(Unordered):
    driver = "fifottl"
    options: ClassVar = {"partitions": 16}


@without(
    "test_tasks_of_all_lanes_follow_one_order",
    "test_take_many_gives_each_lane_its_turn",
    "test_take_many_takes_tasks_of_many_lanes_in_order",
    "test_jitter_lengthens_the_cooldown",
)
class UnorderedLanes(Unordered, Lanes, Limits, Bursts, IntervalsFromAcks, Blocks):
    """The subjects of the contract that hold across partitions, with the rules of lanes."""


class TestUtubettlWithThreePartitions(UnorderedLanes):
    driver = "utubettl"
    options: ClassVar = {"partitions": 3}


class TestUtubettlWith16Partitions(UnorderedLanes):
    driver = "utubettl"
    options: ClassVar = {"partitions": 16}
