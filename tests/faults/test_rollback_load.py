"""Processes that continue while their server loses its latest writes: later confirmed puts exist exactly once."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

import tubes
from tests.support.rollback_actors import Actors
from tests.support.rollbacks import Promoted, keep, log_of, roll_back
from tests.support.sentinel import Watched
from tubes.testing import LocalServer

pytestmark = pytest.mark.full


def make(url: str) -> None:
    with tubes.connect(url) as queue:
        queue.create_tube("load")


def go_on_and_check(actors: Actors, url: str) -> None:
    """Continue after the restart of the server, with new processes, and check the journals."""
    since = time.monotonic_ns()
    actors.start(1, 1)
    actors.wait_for_lines(200)
    actors.stop(every=2)
    actors.wait_for_lines(100)
    actors.stop()
    with tubes.connect(url) as queue:
        actors.check(queue.tube("load"), since)


def test_load_survives_a_restart_from_a_snapshot(own_server: LocalServer) -> None:
    make(own_server.url)
    with Actors(own_server.url) as actors:
        actors.start(2, 2)
        actors.wait_for_lines(100)
        keep(own_server)
        actors.start(2, 2)
        actors.wait_for_lines(200)
        roll_back(own_server)
        go_on_and_check(actors, own_server.url)


def test_load_survives_a_truncated_append_only_file(seed: int) -> None:
    rng = random.Random(seed)
    with LocalServer(appendonly="yes", appendfsync="everysec") as server:
        make(server.url)
        log = log_of(server)
        empty = log.stat().st_size
        with Actors(server.url) as actors:
            actors.start(3, 3)
            actors.wait_for_lines(rng.randrange(200))
            actors.start(3, 3)
            actors.wait_for_lines(rng.randrange(300))
            server.kill()
            os.truncate(log, rng.randrange(empty, log.stat().st_size))
            server.start()
            go_on_and_check(actors, server.url)


def lag_and_take_over(pair: Promoted | Watched, take_over: Callable[[], object]) -> None:
    """Promote a lagging replica to master while actors continue."""
    make(pair.url)
    with Actors(pair.url) as actors:
        actors.start(2, 2)
        actors.wait_for_lines(100)
        pair.replicate()
        pair.stall()
        actors.start(2, 2)
        actors.wait_for_lines(200)
        take_over()
        go_on_and_check(actors, pair.url)


def test_load_survives_promotion_of_a_lagging_replica() -> None:
    with Promoted() as pair:
        lag_and_take_over(pair, pair.promote)


def test_load_survives_sentinel_promotion_of_a_lagging_replica() -> None:
    with Watched(is_linked=True) as watched:
        lag_and_take_over(watched, watched.fail_over)
