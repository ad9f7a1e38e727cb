"""The simulation of clusters runs the policy of partitions without a clock."""

from __future__ import annotations

from benchmarks.scale.cluster import Setting, World


def test_idle_processes_need_three_calls_and_one_wakeup_per_task() -> None:
    found = World(Setting(1, 16, 0.01, processes=8, callers=1, tasks=100)).run()
    assert len(found.waits) == 100
    assert found.left == 0
    assert 3 <= found.calls <= 4
    assert 0.9 <= found.wakeups <= 1.2


def test_each_process_asks_each_partition_under_load() -> None:
    found = World(Setting(2, 6, 0.9, processes=4, callers=6, tasks=2000)).run()
    assert found.asked == [set(range(6))] * 4
