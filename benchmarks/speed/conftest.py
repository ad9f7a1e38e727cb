"""The options of a run and the table at its end."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from benchmarks.shared.arguments import new_file
from benchmarks.speed import table
from benchmarks.speed.table import SECTIONS, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_RESULTS: Final = pytest.StashKey[Results]()


@dataclass(frozen=True)
class Scale:
    """The extent of a run."""

    #: The number of passes; each measures both sides of a comparison in turn.
    passes: int
    #: Numbers of waiting tasks, from few to many.
    sizes: tuple[int, ...]
    #: Numbers of waiting tasks in each busy utube.
    busy_sizes: tuple[int, int]
    #: The number of tasks for measuring memory.
    memory_tasks: int
    #: Operations per round, and rounds per pass.
    operations: int
    rounds: int


FULL: Final = Scale(5, (1_000, 100_000, 1_000_000), (1_000, 150_000), 100_000, 1_000, 3)
QUICK: Final = Scale(3, (1_000, 100_000), (1_000, 10_000), 20_000, 500, 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tubes")
    group.addoption("--quick", action="store_true", help="fewer tasks and rounds, for a quick look")
    group.addoption("--ratios", metavar="FILE", type=new_file(), help="write all comparisons by name, as JSON")
    group.addoption("--write-readme", action="store_true", help="write the table into README.md")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick") and config.getoption("--write-readme"):
        raise pytest.UsageError("--write-readme requires a full run, without --quick")
    if config.getoption("keyword") and config.getoption("--write-readme"):
        raise pytest.UsageError("--write-readme requires all benchmarks, without -k")
    config.stash[_RESULTS] = Results()
    # One line per benchmark and pass would hide the table.
    config.option.benchmark_quiet = True


def scale_of(config: pytest.Config) -> Scale:
    """Return the extent of this run."""
    return QUICK if config.getoption("--quick") else FULL


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> Scale:
    return scale_of(pytestconfig)


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config) -> Results:
    return pytestconfig.stash[_RESULTS]


class Stopwatch:
    """Time rounds of a call with pytest-benchmark."""

    def __init__(self, benchmark: Any, scale: Scale) -> None:
        self._benchmark = benchmark
        self._rounds = scale.rounds

    def seconds(
        self,
        target: Callable[..., object],
        *args: object,
        before: Callable[[], object] | None = None,
        after: Callable[..., object] | None = None,
    ) -> float | None:
        """Return the median of the rounds; None with `--benchmark-disable`.

        `before` prepares each round; its result is the argument of `target` and `after`. Only `target` is timed.
        The first round does not count, because its caches are in the state of the previous benchmark.
        """

        def setup() -> tuple[tuple[object, ...], dict[str, object]]:
            return (args if before is None else (before(),)), {}

        self._benchmark.pedantic(target, setup=setup, teardown=after, rounds=self._rounds, warmup_rounds=1)
        if self._benchmark.stats is None:
            return None
        median: float = self._benchmark.stats.stats.median
        return median


@pytest.fixture
def stopwatch(benchmark: Any, scale: Scale) -> Stopwatch:
    return Stopwatch(benchmark, scale)


@pytest.fixture(autouse=True)
def _collect_garbage() -> None:
    """Start each benchmark without the garbage of the previous one."""
    gc.collect()


@pytest.fixture(scope="module")
def freeze_tasks() -> Generator[Callable[[], None]]:
    """Yield a function to call after filling a queue: the garbage collector then ignores its tasks.

    The collector stays on for every queue, as in a program. But the tasks of all queues in this process would
    make it slower than in a program with one queue.
    """

    def freeze() -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    yield freeze
    gc.unfreeze()
    gc.collect()


def pytest_terminal_summary(config: pytest.Config) -> None:
    results = config.stash[_RESULTS]
    if not results:
        return
    table.show(results)
    if file := config.getoption("--ratios"):
        Path(file).write_text(json.dumps(results.ratios()))
    if config.getoption("--write-readme"):
        if results.sections() != set(SECTIONS):
            raise pytest.UsageError("--write-readme requires all benchmarks; some were left out")
        table.write_readme(results)
