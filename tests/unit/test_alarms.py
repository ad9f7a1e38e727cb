"""Alarms: they fire even after earlier errors."""

from __future__ import annotations

import pytest

import tubes
from tests.support.taking import take_task
from tubes.backend import clock
from tubes.backend.alarms import AlarmThread


def test_alarms_fire_again_after_a_thread_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: object, arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(clock, "_ringer", AlarmThread(clock.system_clock.micros))
    with tubes.connect() as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put("later", delay=3600)
        with monkeypatch.context() as shortage:
            shortage.setattr("tubes.backend.alarms.start_new_thread", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                tube.take(30)
        assert tube.statistics().waiting == 0
        tube.put("soon", delay=0.05)
        assert take_task(tube, 30).data == "soon"
