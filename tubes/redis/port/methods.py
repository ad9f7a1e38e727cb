"""The methods of one connection on one tube, by subject."""

from __future__ import annotations

from typing import Any, TypeAlias

from tubes.redis.port import batch, ends, look, puts, takes, tube
from tubes.redis.port.base import Port
from tubes.values.task import F


class TubePort(Port[F]):
    """A port with all methods: each is a function with the port as its first parameter."""

    put = puts.put
    again = puts.again

    take = takes.take
    take_task = takes.take_task
    next = takes.take_next

    ack = ends.ack
    ack_with = ends.ack_with
    release = ends.release
    release_unfailed = ends.release_unfailed
    decline = ends.decline
    touch = ends.touch
    set_ttr = ends.set_ttr
    checkpoint = ends.checkpoint
    bury = ends.bury
    update = ends.update
    delete = ends.delete
    cancel = ends.cancel
    kick_task = ends.kick_task

    release_all = tube.release_all
    is_empty = tube.is_empty
    truncate = tube.truncate
    forget_key = tube.forget_key
    alter = tube.alter
    pause = tube.pause
    drop = tube.drop
    block = tube.block
    configure = tube.configure
    listen = tube.listen
    on_loss = tube.on_loss
    set_options = tube.set_options
    left = tube.left

    peek = look.peek
    first = look.first
    lanes = look.lanes
    lane_info = look.lane_info
    statistics = look.statistics
    tasks = look.tasks
    select = look.select
    reasons = look.reasons
    oldest_ready_age = look.oldest_ready_age
    due_histogram = look.due_histogram
    parsed = look.parsed

    put_many = batch.put_many
    take_many = batch.take_many
    top_up = batch.top_up
    ack_many = batch.ack_many
    release_many = batch.release_many
    renew_many = batch.renew_many
    delete_many = batch.delete_many
    evict = batch.evict
    relay_limit = batch.relay_limit
    relay = batch.relay
    change_seen = batch.change_seen
    put_waiting = batch.put_waiting


#: The port of any connection to a server.
RedisPort: TypeAlias = TubePort[Any]
