"""The rules of the guard of the benchmarks."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="needs the extra `bench`")

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks.guard import __main__ as guard
from benchmarks.guard.__main__ import Baseline


@pytest.mark.parametrize(
    ("now", "outcome"),
    [(1.0, "same"), (1.14, "same"), (1.16, "worse"), (9.0, "worse"), (0.88, "same"), (0.86, "better"), (0.1, "better")],
)
def test_a_row_is_worse_or_better_beyond_its_tolerance(now: float, outcome: str) -> None:
    (row,) = guard.compare({"put": Baseline(1.0, 0.15)}, {"put": now})
    assert row.outcome == outcome
    assert guard.has_failed([row]) == (outcome == "worse")


def test_missing_row_fails_and_new_row_does_not() -> None:
    rows = guard.compare({"put": Baseline(1.0, 0.15), "take": Baseline(2.0, 0.15)}, {"ack": 1.0, "put": 1.0})
    assert [(row.name, row.outcome) for row in rows] == [("put", "same"), ("take", "missing"), ("ack", "new")]
    assert guard.has_failed(rows)
    assert not guard.has_failed(row for row in rows if row.outcome != "missing")


@pytest.mark.parametrize("now", [float("nan"), float("inf"), 0.0, -5.0])
def test_ratio_that_is_not_a_positive_number_is_worse(now: float) -> None:
    (row,) = guard.compare({"put": Baseline(1.0, 0.15)}, {"put": now})
    assert row.outcome == "worse"


def test_guard_fails_when_nothing_is_compared() -> None:
    assert guard.has_failed(guard.compare({}, {"put": 1.0}))
    assert guard.has_failed([])


@pytest.mark.parametrize(
    "text", [None, "", "{}", '{"rows": {"put": 1}}', '{"rows": {"put": {"ratio": 0, "tolerance": 1}}}']
)
def test_unreadable_file_is_reported(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "ratios.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match="cannot be read"):
        guard.load(path)


def test_noisy_rows_are_reported() -> None:
    baselines = guard.derive_baselines(
        [{"put": 1.0, "take": 1.0}, {"put": 1.05, "take": 5.0}, {"put": 0.97, "take": 1.0}]
    )
    assert guard.find_noisy_rows(baselines) == ["take"]


def test_one_noisy_run_of_four_is_tolerated_and_two_are_not() -> None:
    runs = [{"put": 1.0, "take": 1.0}, {"put": 1.1, "take": 9.0}, {"put": 7.0, "take": 1.0}, {"put": 1.0, "take": 9.0}]
    baselines = guard.derive_baselines(runs)
    assert guard.find_noisy_rows(baselines) == ["take"]
    assert baselines["put"].tolerance < 0.2


def test_a_wide_tolerance_lets_a_row_that_always_differs_pass() -> None:
    runs = [{"put": 1.0, "take": 1.0}, {"put": 1.02, "take": 1.2}, {"put": 0.99, "take": 0.9}]
    baselines = guard.derive_baselines(runs)
    assert baselines == {"put": Baseline(1.0, 0.15), "take": Baseline(1.0, 0.6)}
    rows = guard.compare(baselines, {"put": 1.5, "take": 1.5})
    assert [row.outcome for row in rows] == ["worse", "same"]


def test_tolerance_of_bytes_is_smaller_than_of_times() -> None:
    baselines = guard.derive_baselines([{"fifo: a waiting task": 0.5, "fifo: cycle": 0.5}])
    assert [row.tolerance for row in baselines.values()] == [0.03, 0.15]


def test_best_keeps_the_better_run_of_each_row() -> None:
    assert guard.find_best([{"put": 3.0, "take": 1.0}, {"put": 2.0, "take": 5.0, "ack": 1.0}]) == {
        "put": 2.0, "take": 1.0, "ack": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "worse", "output"),
    [
        ([{"put": 1.0, "take": 1.0}] * 2, False, ""),
        ([{"put": 1.0}] * 2, False, "these rows are worse or missing (use --worse to accept them): take"),
        ([{"put": 1.0}] * 2, True, ""),
        ([{"put": 3.0, "take": 1.0}] * 2, False, "these rows are worse or missing (use --worse to accept them): put"),
        ([{"put": 1.0, "take": 1.0}, {"put": 1.0}], True, "take: must be a number above 0, got nan"),
        ([{"put": float("inf"), "take": 1.0}] * 2, True, "put: must be a number above 0, got inf"),
        (
            [{"put": 1.0, "take": 0.5}, {"put": 1.0, "take": 3.0}],
            True,
            "vary too much between runs (is the machine busy?): take",
        ),
    ],
)
def test_update_accepts_worse_rows_only_on_request(
    runs: list[dict[str, float]],
    worse: bool,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, left = tmp_path / "ratios.json", iter(runs)
    before = {"put": Baseline(1.0, 0.15), "take": Baseline(1.0, 0.15)}
    guard.save(before, path)
    monkeypatch.setattr(guard, "_FILE", path)
    monkeypatch.setattr(guard, "measure", lambda: next(left))
    load, save = guard.load, guard.save
    monkeypatch.setattr(guard, "load", partial(load, path))
    monkeypatch.setattr(guard, "save", partial(save, path=path))
    assert guard.update(len(runs), worse=worse) == bool(output)
    assert output in capsys.readouterr().out
    assert (load(path) == before) == (bool(output) or runs[0] == {"put": 1.0, "take": 1.0})


def test_saved_ratios_are_loaded(tmp_path: Path) -> None:
    baselines = {"put": Baseline(1.25, 0.2), "a task: bytes": Baseline(0.5, 0.03)}
    guard.save(baselines, tmp_path / "ratios.json")
    assert guard.load(tmp_path / "ratios.json") == baselines


def test_scale_is_the_mean_of_put_take_and_ack_at_the_largest_size() -> None:
    def row(subject: str, method: str, size: int, ratio: float) -> dict[str, object]:
        return {"place": "memory", "subject": subject, "method": method, "size": size, "ratio": ratio}

    rows = [
        row("fifo", method, size, ratio) for method in ("put", "take", "ack") for size, ratio in ((1, 1.0), (9, 2.0))
    ]
    rows += [row("fifo", "peek", 9, 50.0), row("fifottl, delayed", "take", 1, 1.0)]
    # A missing measurement does not count as an improvement.
    rows += [row("utube", "put", 9, 1.0), row("utube", "take", 9, 1.0), row("utube", "ack", 1, 1.0)]
    assert guard.of_scale(rows) == {"memory, fifo: put, take and ack where many wait": 2.0}


def test_committed_ratios_can_be_compared() -> None:
    baselines = guard.load()
    assert len(baselines) > 20
    assert all(row.ratio > 0 and row.tolerance >= 0.03 for row in baselines.values())
