"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any
from uuid import uuid4
from zlib import crc32

import pytest
import typer.testing

import tubes
from tubes.conformance.bench import why_not
from tubes.conformance.faces import AioFace, Face, SyncFace
from tubes.drivers.registry import BUILT_IN
from tubes.testing import LocalServer


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than there are cores: many tests wait for others to do something."""
    return (os.cpu_count() or 1) + 2


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """What a test, or a program on a page, sets up for logs ends with it."""
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    yield
    root.handlers[:] = handlers
    if root.level != logging.WARNING:
        root.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("tubes") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.NOTSET)
            logger.disabled, logger.propagate = False, True


@pytest.fixture(autouse=True)
def _others_have_gone(request: pytest.FixtureRequest) -> None:
    """A test that collects garbage looks at its own: what others have left is collected before, and then left alone."""
    if hasattr(request.module, "gc"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        gc.freeze()


#: Files of which one process runs all, the longest first: they share what is slow to start, or start a Spark each.
_TOGETHER = (
    "tests/spark/test_programs",
    "tests/spark/test_session",
    "tests/faults/test_cluster",
    "tests/docs/test_examples",
    "tests/serve/",
    "tests/docs/test_packaging",
    "tests/faults/test_refused_waits",
    "tests/faults/test_first_processes",
    "tests/faults/test_tls",
)


#: Those that are shipped, by name.
_DRIVERS = {driver.name: driver for driver in BUILT_IN}


def _place(nodeid: str) -> int:
    return next((place for place, files in enumerate(_TOGETHER) if nodeid.startswith(files)), len(_TOGETHER))


def _part_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return str(place) if (place := _place(nodeid)) < len(_TOGETHER) else f"{file} {crc32(nodeid.encode()) % 100}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out tests by the hundred: for each that it gives out the scheduler looks at all that it has given out.

    By their names, not by xdist's groups: those are lost with pytest 9.2.
    """
    config.option.loadscopereorder = False
    scheduler: Any = import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    scheduler._split_scope = _part_of
    return scheduler


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those first that stay together in one process: the others are spread meanwhile.

    Several processes get the others mixed: while one waits for something, the next one computes.
    """
    is_one_of_several = hasattr(config, "workerinput")

    def place(item: pytest.Item) -> tuple[int, int]:
        return _place(item.nodeid), crc32(_part_of(item.nodeid).encode()) if is_one_of_several else 0

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: object, name: str, obj: object) -> list[pytest.Item] | None:
    """Of the contract no tests are made that the driver of a class would skip: it would be every eighth."""
    driver: object = getattr(getattr(collector, "obj", None), "driver", None)
    known = _DRIVERS.get(driver) if isinstance(driver, str) else driver
    return [] if isinstance(known, tubes.Driver) and name.startswith("test_") and why_not(known, obj) else None


# The runner puts all commands together anew for every call that a test makes, which takes longer than the call.
typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]

# Until then all that is made stays, and to look at it again and again takes a sixth of the time.
gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays: tests that run the garbage collector need not look at it."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock() -> tubes.testing.ManualClock:
    return tubes.testing.ManualClock()


@pytest.fixture
def queue(clock: tubes.testing.ManualClock) -> Iterator[tubes.Queue]:
    with tubes.connect(clock=clock) as queue:
        yield queue


@pytest.fixture(params=[SyncFace, pytest.param(AioFace, marks=pytest.mark.full)], ids=["sync", "aio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made: Face = request.param()
    yield made
    made.close()


@pytest.fixture(scope="session")
def valkey() -> Iterator[LocalServer]:
    """A Valkey, from the wheel, that no test harms: one per test process."""
    with LocalServer() as server:
        yield server


@pytest.fixture
def url(valkey: LocalServer) -> str:
    """An empty key space of one's own."""
    return f"{valkey.url}?prefix={uuid4().hex}"
