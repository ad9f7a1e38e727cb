"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from functools import cache
from uuid import uuid4

import pytest
import typer.testing

import tubes
from tests.contract.bench import skip_reason
from tests.contract.faces import AioFace, Face, SyncFace
from tubes.drivers.registry import BUILT_IN
from tubes.testing import LocalServer


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more processes than cores: many tests wait for other processes."""
    return (os.cpu_count() or 1) + 2


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Undo the changes that a test, or a program on a page, makes in the logging module."""
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    for handler in handlers:  # An interrupted call of an earlier test may have left a lock locked.
        handler.createLock()
    yield
    root.handlers[:] = handlers
    if root.level != logging.WARNING:
        root.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("tubes") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.NOTSET)
            logger.disabled, logger.propagate = False, True


@pytest.fixture(autouse=True)
def _collect_earlier_garbage(request: pytest.FixtureRequest) -> None:
    """Collect the garbage of earlier tests before a test that looks at garbage: only modules that import `gc` pay."""
    if hasattr(request.module, "gc"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


#: Slow files, which start first: each file runs in one process, and the others would wait for one that starts last.
_FIRST = (
    "tests/spark/test_session.py",
    "tests/spark/test_programs_pipeline.py",
    "tests/on_redis/test_contract_on_redis.py",
    "tests/docs/test_examples.py",
    "tests/faults/test_cluster.py",
)

_BUILT_IN = {driver.name: driver for driver in BUILT_IN}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases beyond a sample; run slow files first, so that no process has one left at the end."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None and item.get_closest_marker("full") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        mark = same[0].get_closest_marker("sample")
        assert mark is not None
        [count] = mark.args
        sample = {number * len(same) // count for number in range(count)}
        for number, item in enumerate(same):
            if number not in sample:
                item.add_marker(pytest.mark.full)
    items.sort(
        key=lambda item: _FIRST.index(file) if (file := item.nodeid.partition("::")[0]) in _FIRST else len(_FIRST)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Collect no test of the contract that its driver would skip, and no class of the matrix for the short suite.

    Each process of the short suite collects in 9 s rather than 21 s.
    """
    if collector.config.option.markexpr == "not full" and "full" in [
        mark.name for mark in getattr(obj, "pytestmark", ())
    ]:
        return []
    driver: object = getattr(getattr(collector, "obj", None), "driver", None)
    known = _BUILT_IN.get(driver) if isinstance(driver, str) else driver
    return [] if isinstance(known, tubes.Driver) and name.startswith("test_") and skip_reason(known, obj) else None


# Build the commands of the CLI once, rather than at each call: tests/cli takes 10 s of processor time rather than 50 s.
typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]


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
