"""The methods of one connection on one tube, by subject."""

from __future__ import annotations

from tubes.redis.port import batch, ends, puts, reads, takes, tube
from tubes.redis.port.base import RedisPort, change_method
from tubes.redis.transport.script_call import flow_method
from tubes.values.task import F


class TubePort(RedisPort[F]):
    """A port with all methods: each is a function over a port, or a flow that `run` or `change` runs."""

    put = puts.put
    put_again = change_method(puts.put_again)

    take = flow_method(takes.take)
    take_standing = flow_method(takes.take_standing)
    take_task = flow_method(takes.take_task)
    next = change_method(takes.take_next)

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
    is_empty = flow_method(tube.is_empty)
    truncate = tube.truncate
    forget_key = tube.forget_key
    alter = tube.alter
    pause = tube.pause
    drop = flow_method(tube.drop)
    block = tube.block
    configure = tube.configure
    listen = flow_method(tube.listen)
    on_loss = tube.on_loss
    set_options = tube.set_options
    count_unfinished = tube.count_unfinished

    peek = reads.peek
    first = flow_method(reads.first)
    lanes = flow_method(reads.lanes)
    lane_info = reads.lane_info
    statistics = reads.statistics
    select = flow_method(reads.select)
    reasons = flow_method(reads.reasons)
    oldest_ready_age = flow_method(reads.oldest_ready_age)
    due_histogram = flow_method(reads.due_histogram)
    parsed = reads.parsed

    put_many = change_method(batch.put_many)
    take_many = flow_method(batch.take_many)
    ack_many = batch.ack_many
    release_many = batch.release_many
    renew_many = batch.renew_many
    delete_many = batch.delete_many
    evict = change_method(batch.evict)
    relay_limit = batch.relay_limit
    relay = batch.relay
    change_seen = change_method(batch.change_seen)
    put_waiting = batch.put_waiting
