"""Output and exit codes of the command `tubes`, run in this process."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

import tubes
from tests.contract.bench import eventually
from tests.support.rights import users_of
from tests.support.taking import take_task
from tubes import task_data
from tubes.cli.app import app
from tubes.cli.exits import Exit
from tubes.cli.show import short_span, span
from tubes.cli.streams import printable
from tubes.sync import Selection
from tubes.values.timings import Timings
from tubes.values.worker_info import HandlerInfo, HeldTask, UnknownFunction, WorkerInfo
from tubes.worker import Worker


class Shell:
    """Runs commands with the URL of one server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = CliRunner()

    def __call__(self, *words: object, code: int = 0, stdin: str | bytes | None = None) -> Result:
        result = self._runner.invoke(app, [str(word) for word in words], input=stdin, env={"TUBES_URL": self.url})
        assert result.exit_code == code, (words, result.output, result.exception)
        assert "Traceback" not in result.output
        if code:
            assert len(result.stderr.splitlines()) == 1
            assert result.stderr.startswith("tubes: ")
        return result

    def lines(self, *words: object) -> list[str]:
        return self(*words).stdout.splitlines()

    def json(self, *words: object) -> list[Any]:
        return [json.loads(line) for line in self.lines(*words, "--json")]


@pytest.fixture(params=["memory", "valkey"])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    if request.param == "memory":
        name = uuid4().hex
        tubes.connect(f"memory://{name}", codec="json")  # A named store outlives its connections, and keeps its codec.
        yield Shell(f"memory://{name}")
    else:  # As a user with the rights that docs recommend for a program.
        users = users_of(request.getfixturevalue("valkey"))
        users.forget()
        yield Shell(f"{users.url('app')}?prefix={uuid4().hex}")
        assert users.refusals() == []


@pytest.fixture
def queue(shell: Shell) -> Iterator[tubes.Queue]:
    with tubes.connect(shell.url, codec="json") as queue:
        yield queue


def test_put_task_can_be_taken_once(shell: Shell) -> None:
    shell("create", "mail", "fifottl", "-o", "ttr=60")
    assert shell.lines("put", "mail", '{"to": "ann"}', "5", "five words are a string", "--pri", 1) == ["0", "1", "2"]
    assert shell.lines("take", "mail", "-n", 2) == ['{"to": "ann"}', "5"]
    (task,) = shell.json("take", "mail")
    assert (task["id"], task["data"], task["pri"], task["ttr"]) == (2, "five words are a string", 1, 60)
    assert "no task of tube 'mail' is ready" in shell("take", "mail", code=Exit.NOTHING).stderr


def test_data_is_read_from_stdin_line_by_line(shell: Shell) -> None:
    shell("put", "pages", "-", "--create", "utube", "--utube", "a", stdin='1\n"two"\nthree\n')
    assert [task["data"] for task in shell.json("peek", "pages")] == [1, "two", "three"]
    assert {task["utube"] for task in shell.json("peek", "pages")} == {"a"}


def test_text_option_puts_data_as_string(shell: Shell) -> None:
    shell("put", "mail", "5", "--text", "--create", "fifo")
    assert shell.json("take", "mail")[0]["data"] == "5"


def test_strict_option_refuses_data_that_is_not_json(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    assert shell.lines("put", "mail", '{"to": "ann"}', "5", "--strict") == ["0", "1"]
    for data in ("{bad json", "hello", '["a",]'):
        message = shell("put", "mail", "6", data, "--strict", code=Exit.USAGE).stderr
        assert f"{data!r} is not JSON: " in message
        assert "--text puts it as a string" in message
    assert "line 2 of stdin: 'x...' is not JSON" in shell(
        "put", "mail", "--strict", stdin=f"1\n{'x' * 100}\n", code=Exit.USAGE
    ).stderr.replace("x" * 80, "x")
    for excluded in (["--text"], ["--codec", "raw"]):
        shell("put", "mail", "5", "--strict", *excluded, code=Exit.USAGE)
    assert tube.statistics().tasks["total"] == 2


@pytest.mark.parametrize(
    ("word", "backoff"),
    [
        ("1,5", [1, 5]),
        ("0.5", [0.5]),
        ("[1, 5]", [1, 5]),
        ('{"first": 1}', tubes.Backoff(1)),
        ('{"first": 1, "factor": 3, "cap": 60, "jitter": 0.5, "seed": 7}', tubes.Backoff(1, 3, 60, 0.5, 7)),
    ],
)
def test_create_accepts_backoff_as_delays_or_rule(
    shell: Shell, queue: tubes.Queue, word: str, backoff: tubes.Backoff | list[float]
) -> None:
    shell("create", "mail", "fifottl", "-o", f"backoff={word}")
    queue.create_tube("mail", "fifottl", backoff=backoff, if_not_exists=True)  # This fails if the options differ.


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("soon", "--option backoff=soon: must be 1,5 or [1, 5] (seconds), or"),
        ('{"frist": 1}', "only first is required"),
        ('{"first": -1}', "first=-1: must be"),
        ("1,-5", "backoff=-5.0: must be"),
        ("[]", "backoff=[]: must have 1 to 1000 delays"),
        ("true", "backoff=True: must"),
    ],
)
def test_create_refuses_invalid_backoff(shell: Shell, queue: tubes.Queue, word: str, message: str) -> None:
    assert message in shell("create", "mail", "fifottl", "-o", f"backoff={word}", code=Exit.USAGE).stderr
    assert queue.tubes() == []


def test_take_with_release_or_hold_keeps_task_in_tube(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put("hello")
    assert shell.lines("take", "mail", "--release") == ["hello"]
    assert tube.peek(0).state == "ready"
    (held,) = shell.json("take", "mail", "--hold", 60)
    assert tube.peek(0).state == "taken"
    shell("release", "mail", 0, "--session", held["session"])
    (held,) = shell.json("take", "mail", "--hold", 60)
    shell("ack", "mail", 0, "--session", held["session"])
    assert tube.statistics().calls["ack"] == 1
    assert "does not hold task 0" in shell("ack", "mail", 0, "--session", held["session"], code=Exit.REFUSED).stderr
    shell("ack", "mail", 0, "--session", "0" * 32, code=Exit.NOT_FOUND)
    shell("ack", "mail", 0, code=Exit.USAGE)


def test_release_all_releases_tasks_of_other_sessions(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put("hello")
    tube.take(timeout=0)
    shell("release", "mail", code=Exit.USAGE)
    assert shell.lines("release", "mail", "--yes") == ["released 1 task"]
    assert tube.peek(0).state == "ready"


def test_dead_letters_are_listed_with_reasons_and_kicked(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(["a", "b", "c"])
    shell("bury", "mail", 0, 2, "--because", "no such address")
    tube.bury(1)
    output = shell("buried", "mail").stdout
    assert "2 of them: no such address" in output
    assert "1 of them: no reason" in output
    assert [task["reason"] for task in shell.json("buried", "mail")] == ["no such address", None, "no such address"]
    footer = ["1 of 3 are listed", "2 of 3: no such address", "1 of 3: no reason"]
    assert shell.lines("buried", "mail", "--limit", 1)[-3:] == footer
    footer = ["1 of 2 are listed", "1 of them: no such address"]
    assert shell.lines("buried", "mail", "--reason", "no such address", "--limit", 1)[-2:] == footer
    assert shell.lines("kick", "mail", 2) == ["kicked 1 task"]
    assert "kick 2 buried tasks of tube 'mail': pass --yes" in shell("kick", "mail", code=Exit.USAGE).stderr
    assert shell.lines("kick", "mail", "--yes") == ["kicked 2 tasks"]
    assert shell("kick", "mail", "--yes", code=Exit.NOTHING).stdout == "kicked 0 tasks\n"
    assert shell("kick", "mail", code=Exit.NOTHING).stderr == "tubes: tube 'mail' has no buried tasks to kick\n"


def test_peek_shows_first_tasks_or_selects_by_id_or_state(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl")
    tube.put_many(range(20))
    tube.put("later", delay=100)
    tube.take(timeout=0)
    assert [task["id"] for task in shell.json("peek", "mail")] == list(range(10))
    assert [task["state"] for task in shell.json("peek", "mail", 0, 20)] == ["taken", "delayed"]
    assert [task["data"] for task in shell.json("peek", "mail", "--state", "delayed")] == ["later"]
    assert "in 1m" in shell("peek", "mail", 20).stdout
    shell("peek", "mail", 99, code=Exit.NOT_FOUND)
    shell("peek", "mail", "--state", "buried", code=Exit.NOTHING)
    shell("peek", "mail", "--state", "lost", code=Exit.USAGE)
    assert "did you mean 'buried'?" in shell("peek", "mail", "--state", "burried", code=Exit.USAGE).stderr
    assert [task["id"] for task in shell.json("peek", "mail", "--newest-first", "-n", 2)] == [20, 19]


def test_failures_of_a_task_are_shown(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", max_attempts=2)
    tube.put("ann")
    take_task(tube).release(reason="timeout", worker="web1:4711")
    take_task(tube).release(reason="KeyError: 1", traceback="File [bold]a\nKeyError: 1")
    lines = shell.lines("peek", "mail", 0)
    assert lines[-4].startswith("task 0, attempt 1, ")
    assert lines[-4].endswith(" ago on web1:4711: timeout")
    assert lines[-3].endswith(" ago: KeyError: 1")
    assert lines[-2:] == ["File [bold]a", "KeyError: 1"]
    (shown,) = shell.json("buried", "mail")
    assert [(one["attempt"], one["worker"], one["error"]) for one in shown["failures"]] == [
        (1, "web1:4711", "timeout"),
        (2, None, "KeyError: 1"),
    ]
    assert (shown["traceback"], shown["buried_at"]) == ("File [bold]a\nKeyError: 1", shown["failures"][1]["time"])
    assert "buried" in shell.lines("buried", "mail")[0].split()
    assert json.loads(shell.lines("export", "mail")[0])["traceback"] == shown["traceback"]


def test_done_tasks_and_their_results_are_shown(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", keep_done=60)
    tube.put_many(["a", "b", "c"])
    for outcome in ({"sent": True}, "text"):
        task = take_task(tube)
        task.ack(outcome)
    assert shell.lines("result", "mail", 0) == ['{"sent": true}']
    peeked = shell("peek", "mail", "--state", "done").stdout.splitlines()
    assert peeked[0].split() == ["id", "state", "pri", "utube", "attempts", "age", "why", "result", "data"]
    assert [row.split()[-3:] for row in peeked[1:]] == [["ack", "text", "b"], ['{"sent":', "true}", "a"]]
    assert shell.lines("result", "mail", 1, "--timeout", 5) == ["text"]
    assert shell.json("result", "mail", 0) == [{"tube": "mail", "id": 0, "result": {"sent": True}}]
    shell("result", "mail", 2, "--timeout", 0, code=Exit.NOTHING)
    shell("result", "mail", 99, code=Exit.NOT_FOUND)
    forgotten = queue.create_tube("forgotten").put(1)
    assert "keep_done" in shell("result", "forgotten", forgotten.id, code=Exit.USAGE).stderr
    tube.bury(2)
    shell("result", "mail", 2, code=Exit.REFUSED)
    queue.create_tube("plain")
    (id,) = shell.lines("put", "plain", "x", "--keep-done", 60)
    queue.tube("plain").take(0).ack("done")  # type: ignore[union-attr]
    assert shell.lines("result", "plain", id) == ["done"]
    (row,) = shell.json("peek", "mail", 0)
    assert (row["state"], row["why"], row["result"], row["keep_done"]) == ("done", "ack", {"sent": True}, 60)
    assert {task["id"] for task in shell.json("peek", "mail", "--state", "done")} == {0, 1}
    assert shell.json("stats", "mail")[0]["kept"] == 2
    assert ["kept", "2"] in [row.split() for row in shell("stats", "mail").stdout.splitlines()]
    head, *rows = (row.split() for row in shell("stats").stdout.splitlines())
    assert {row[0]: (row[head.index("done")], row[head.index("kept")]) for row in rows} == {
        "forgotten": ("0", "0"),
        "mail": ("2", "2"),
        "plain": ("1", "1"),
    }


def test_done_tasks_are_put_again(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", keep_done=60)
    tube.put_many(["a", "b", "c", "d"])
    tube.ack_many(tube.take_many(4))
    assert shell.lines("kick", "mail", 1, 0) == ["kicked 2 tasks"]
    assert shell.json("kick", "mail", 3) == [{"tube": "mail", "kicked": 1}]
    assert [(task.id, task.data) for task in tube.select("ready")] == [(4, "b"), (5, "a"), (6, "d")]
    assert [task.id for task in tube.select("done")] == [2]
    assert shell("kick", "mail", 2, 0, code=Exit.NOT_FOUND).stderr.endswith("; kicked: 2\n")


def test_deleted_tasks_are_counted_and_missing_ones_named(shell: Shell, queue: tubes.Queue) -> None:
    queue.create_tube("mail").put_many(range(3))
    assert shell.lines("delete", "mail", 0, 1) == ["deleted 2 tasks"]
    result = shell("delete", "mail", 2, 77, code=Exit.NOT_FOUND)
    assert result.stdout == "deleted 1 task\n"
    assert "there is no task 77 in tube 'mail'; deleted: 2\n" in result.stderr


def test_measure_option_reports_waiting_and_holding_times(shell: Shell, queue: tubes.Queue) -> None:
    tube, finished = queue.create_tube("mail"), threading.Event()

    def work() -> None:
        while not finished.wait(0.01):
            tube.put("to ann")
            with tube.taking(timeout=0):
                pass

    worker = threading.Thread(target=work)
    worker.start()
    try:
        (row,) = shell.json("stats", "mail", "--measure", 0.5)
        report = shell("stats", "mail", "--measure", 0.2).stdout
    finally:
        finished.set()
        worker.join()
    for times in (row["waited"], row["held"]):
        assert times["count"] > 0
        assert 0 <= times["median"] <= times["p99"] <= times["max"] <= times["sum"] < 10
    assert re.search(r"^waited +[1-9]\d* times  sum ", report, re.MULTILINE)
    idle = queue.create_tube("idle").name
    (row,) = shell.json("stats", idle, "--measure", 0)
    assert row["held"] == {"count": 0, "sum": 0, "median": None, "p99": None, "max": None}
    shell("stats", "--measure", 1, code=Exit.USAGE)
    shell("stats", "mail", "--measure", -1, code=Exit.USAGE)


def test_task_commands_accept_state_filter(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl")
    tube.put_many(range(5), delay=60)
    assert shell.lines("kick", "mail", "--state", "delayed", "--limit", 1) == ["kicked 1 task"]
    assert shell.lines("kick", "mail", 0, 1) == ["kicked 1 task"]
    missing = shell("delete", "mail", 0, 2, "--state", "delayed", code=Exit.NOT_FOUND).stderr
    assert missing == "tubes: there is no delayed task 0 in tube 'mail'; deleted: 2\n"
    assert "delete 4 tasks" in shell("delete", "mail", code=Exit.USAGE).stderr
    assert shell.json("delete", "mail", "--state", "delayed") == [{"tube": "mail", "deleted": 2}]
    assert [str(task.state) for task in tube.select()] == ["ready", "ready"]
    assert shell("kick", "mail", "--state", "delayed", code=Exit.NOTHING).stderr.endswith("has no such tasks\n")
    for command in (("kick", "mail"), ("cancel", "mail"), ("delete", "mail", 0)):
        shell(*command, "--state", "lost", code=Exit.USAGE)
    assert "must be 'buried' or 'delayed'" in shell("kick", "mail", "--state", "ready", code=Exit.USAGE).stderr
    assert tube.statistics().tasks["total"] == 2


@pytest.fixture
def dead_letters(queue: tubes.Queue) -> tubes.Tube:
    """A tube with seven buried tasks, five of them for one reason, and a ready one."""
    tube = queue.create_tube("mail", "utubettl")
    for number in range(7):
        name = "bob" if number == 3 else "ann"
        lane = "a" if number < 2 else "b"
        tube.put({"to": name, "n": number}, utube=lane).bury("ValueError: no address" if number < 5 else "late")
    tube.put("ready", key="k")
    return tube


def test_options_select_tasks_to_show(shell: Shell, dead_letters: tubes.Tube) -> None:
    for words, ids in (
        (("--reason", "ValueError", "--lane", "a"), [0, 1]),
        (("--reason", "late"), [5, 6]),
        (("--contains", '"to":"bob"'), [3]),
        (("--state", "buried", "--newest-first", "--limit", 2), [6, 5]),
        (("--key", "k", "--older-than", "0s"), [7]),
    ):
        assert [task["id"] for task in shell.json("peek", "mail", *words)] == ids, words
    assert [task["id"] for task in shell.json("buried", "mail", "--lane", "a")] == [0, 1]
    for option, value in (("--older-than", "2h"), ("--attempts", "1"), ("--reason", "other")):
        shell("peek", "mail", option, value, code=Exit.NOTHING)
        shell("buried", "mail", option, value, code=Exit.NOTHING)
    message = shell("peek", "mail", "--reason", "ValeError", code=Exit.NOTHING).stderr
    assert message == "tubes: tube 'mail' has no such tasks; did you mean 'ValueError'?\n"
    assert "of at most 256 characters" in shell("kick", "mail", "--contains", "b" * 257, code=Exit.USAGE).stderr
    message = shell("peek", "mail", "--contains", '"to": "bob"', code=Exit.NOTHING).stderr
    assert message.endswith("searches the data as stored: JSON without spaces after its commas and colons\n")


def test_tasks_are_shown_and_selected_by_function(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "utubettl")
    tube.put(task_data("send", "ann", text="resize")).bury("late")
    tube.put(task_data("resize", "a.png")).bury("late")
    tube.put("resize").bury("late")
    for command in ("peek", "buried"):
        assert [task["id"] for task in shell.json(command, "mail", "--function", "resize")] == [1]
        lines = shell.lines(command, "mail")
        column = lines[0].index("function")
        assert [line[column:].split("  ")[0].strip() for line in lines[1:4]] == ["send", "resize", ""]
    assert "function" not in shell.lines("peek", "mail", 2)[0]
    assert shell.json("kick", "mail", "--function", "resize") == [{"tube": "mail", "kicked": 1}]
    assert shell.lines("delete", "mail", "--function", "send") == ["deleted 1 task"]
    shell("delete", "mail", "--function", "send", code=Exit.NOTHING)


def test_options_select_tasks_to_change(shell: Shell, queue: tubes.Queue, dead_letters: tubes.Tube) -> None:
    queue.create_tube("other", "utubettl")
    assert shell.json("kick", "mail", "--reason", "ValueError", "--lane", "a") == [{"tube": "mail", "kicked": 2}]
    assert shell.lines("move", "mail", "other", "--contains", "bob") == ["moved 1 task"]
    assert shell.lines("delete", "mail", "--reason", "late", "--limit", 1) == ["deleted 1 task"]
    assert shell.lines("bury", "mail", "--state", "ready", "--lane", "a", "--because", "wrong") == ["buried 2 tasks"]
    assert dead_letters.admin.reasons() == {"ValueError": 2, "wrong": 2, "late": 1}
    assert shell.json("cancel", "mail", "--reason", "wrong", "--because", "obsolete") == [
        {"tube": "mail", "cancelled": 2}
    ]
    dead_letters.take_many(5)
    assert shell.lines("release", "mail", "--key", "k") == ["released 1 task"]
    shell("release", "mail", "--older-than", "1h", code=Exit.NOTHING)
    assert dead_letters.statistics().tasks["total"] == 4
    assert shell.lines("cancel", "mail", "--yes") == ["cancelled 4 tasks"]
    shell("cancel", "mail", "--yes", code=Exit.NOTHING)
    assert shell("cancel", "mail", code=Exit.NOTHING).stderr == "tubes: tube 'mail' has no tasks to cancel\n"


def test_state_option_lists_accepted_states(shell: Shell) -> None:
    assert "in this state: buried or delayed." in shell("kick", "--help").stdout
    assert "done (kept tasks)" in shell("peek", "--help").stdout


def test_dry_run_shows_what_would_change(shell: Shell, dead_letters: tubes.Tube) -> None:
    lines = shell.lines("kick", "mail", "--dry-run")
    assert (len(lines), lines[-1]) == (7, "7 would be kicked")
    assert shell.lines("delete", "mail", "--dry-run")[-1] == "8 would be deleted"
    assert shell.lines("bury", "mail", "--dry-run")[-1] == "1 would be buried"
    (found,) = shell.json("cancel", "mail", "--reason", "late", "--limit", 1, "--dry-run")
    assert (found["dry_run"], found["cancelled"], [task["id"] for task in found["tasks"]]) == (True, 1, [5])
    shell("release", "mail", "--dry-run", code=Exit.NOTHING)
    shell("kick", "mail", "--more-attempts", 0, "--dry-run", code=Exit.USAGE)
    shell("move", "mail", "mail", "--dry-run", code=Exit.USAGE)
    assert dead_letters.statistics().tasks == {"ready": 1, "taken": 0, "delayed": 0, "buried": 7, "total": 8, "done": 0}


@pytest.mark.parametrize("order", [[], ["--newest-first"]])
def test_dry_run_shows_the_tasks_that_a_limit_selects(shell: Shell, dead_letters: tubes.Tube, order: list[str]) -> None:
    (found,) = shell.json("delete", "mail", "--limit", 3, *order, "--dry-run")
    shown = [task["id"] for task in found["tasks"]]
    before = {task.id for task in dead_letters.select()}
    shell("delete", "mail", "--limit", 3, *order)
    assert sorted(shown) == sorted(before - {task.id for task in dead_letters.select()})


def test_ids_and_filters_are_not_combined(shell: Shell, dead_letters: tubes.Tube) -> None:
    for command in (("peek", "--state", "ready"), ("kick", "--reason", "x"), ("cancel", "--dry-run")):
        name, *words = command
        message = shell(name, "mail", 0, *words, code=Exit.USAGE).stderr
        assert f"ids of tasks and {words[0]} cannot be used together" in message
    assert dead_letters.statistics().tasks["buried"] == 7


def test_cancelled_tasks_and_checkpoints_are_shown(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(range(3))
    task = take_task(tube)
    task.checkpoint({"row": 7}, progress=0.42, note="step 3 of 7")
    head, row, *_ = shell("peek", "mail").stdout.splitlines()
    assert (head.split()[-2:], "42 %  step 3 of 7" in row) == (["progress", "data"], True)
    (seen,) = shell.json("peek", "mail", 0)
    assert (seen["saved"], seen["progress"], seen["note"]) == ({"row": 7}, 0.42, "step 3 of 7")
    assert shell.json("cancel", "mail", 0, 1, "--because", "wrong file") == [{"tube": "mail", "cancelled": [0, 1]}]
    with pytest.raises(tubes.TaskCancelled):
        task.checkpoint()
    (seen,) = shell.json("peek", "mail", 0)
    assert (seen["state"], seen["cancelled"], seen["why"], seen["reason"]) == ("done", True, "cancelled", "wrong file")
    dead = tube.put("dead").bury("no such address")
    head, *rows = shell("peek", "mail", 0, dead.id).stdout.splitlines()
    assert head.split()[-4:] == ["why", "result", "progress", "data"]
    assert ("cancelled: wrong file" in rows[0], "no such address" in rows[1]) == (True, True)
    assert "no such address" in shell("peek", "mail", dead.id).stdout
    assert "; cancelled: 2\n" in shell("cancel", "mail", 2, 0, code=Exit.NOT_FOUND).stderr


def test_interrupted_change_reports_how_many_tasks_were_changed(
    shell: Shell, queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(range(600))
    before, change = signal.getsignal(signal.SIGINT), Selection.delete

    def delete(found: Any, *, on_progress: Any) -> int:
        def interrupt(count: int) -> object:
            os.kill(os.getpid(), signal.SIGINT)
            return on_progress(count)

        return change(found, on_progress=interrupt)

    monkeypatch.setattr("tubes.sync.Selection.delete", delete)
    result = shell("delete", "mail", "--state", "ready", code=Exit.INTERRUPTED)
    assert (result.stdout, result.stderr) == ("", "tubes: interrupted: 250 tasks were deleted\n")
    assert tube.statistics().tasks["ready"] == 350
    assert signal.getsignal(signal.SIGINT) is before


def test_error_halfway_reports_how_many_tasks_were_moved(shell: Shell, queue: tubes.Queue) -> None:
    mail, other = queue.create_tube("mail", "limfifottl"), queue.create_tube("other", "limfifottl", capacity=120)
    mail.put_many(range(300))
    message = shell("move", "mail", "other", "--state", "ready", code=Exit.REFUSED).stderr
    moved = other.statistics().tasks["ready"]
    assert message.endswith(f"; moved before: {moved}\n")


def test_selection_in_folder_is_changed(tmp_path: Path) -> None:
    shell = Shell(f"file:{tmp_path}/jobs")
    shell("put", "mail", "a", "b", "c", "--create", "fifo")
    assert shell.lines("bury", "mail", "--contains", "b", "--because", "late") == ["buried 1 task"]
    assert shell.lines("buried", "mail", "--reason", "late")[-1] == "1 of them: late"
    assert "did you mean 'late'?" in shell("peek", "mail", "--reason", "lat", code=Exit.NOTHING).stderr
    assert shell.lines("cancel", "mail", "--reason", "late", "--dry-run")[-1] == "1 would be cancelled"
    assert shell.lines("cancel", "mail", 1) == ["cancelled 1 task"]
    assert shell.lines("delete", "mail", "--yes") == ["deleted 2 tasks"]


def test_error_message_lists_tasks_already_processed(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(range(4))
    message = shell("bury", "mail", 0, 1, 99, 2, code=Exit.NOT_FOUND).stderr
    assert message == "tubes: there is no task 99 in tube 'mail': it never existed, or it is done; buried: 0, 1\n"
    assert tube.statistics().tasks["buried"] == 2
    assert "; kicked: 1\n" in shell("kick", "mail", 1, 99, code=Exit.NOT_FOUND).stderr
    (held,) = shell.json("take", "mail", "--hold", 60)
    message = shell("ack", "mail", held["id"], 99, "--session", held["session"], code=Exit.REFUSED).stderr
    assert f"; acked: {held['id']}\n" in message


def test_json_output_reports_effect_of_each_command(shell: Shell, queue: tubes.Queue) -> None:
    assert shell.json("create", "mail", "fifottl") == [{"tube": "mail", "driver": "fifottl"}]
    tube = queue.tube("mail")
    tube.put_many(range(4))
    assert shell.json("bury", "mail", 0, 1) == [{"tube": "mail", "buried": [0, 1]}]
    assert shell.json("kick", "mail", "--yes") == [{"tube": "mail", "kicked": 2}]
    assert shell.json("delete", "mail", 3) == [{"tube": "mail", "deleted": [3]}]
    (held,) = shell.json("take", "mail", "--hold", 60)
    assert shell.json("release", "mail", 0, "--session", held["session"]) == [{"tube": "mail", "released": [0]}]
    (held,) = shell.json("take", "mail", "--hold", 60)
    assert shell.json("ack", "mail", 0, "--session", held["session"]) == [{"tube": "mail", "acked": [0]}]
    tube.take(timeout=0)
    assert shell.json("release", "mail", "--yes") == [{"tube": "mail", "released": 1}]
    assert shell.json("pause", "mail") == [{"tube": "mail", "paused": "for ever"}]
    (paused,) = shell.json("pause", "mail", 60)
    assert paused["paused"] == tube.statistics().paused
    assert shell.json("resume", "mail") == [{"tube": "mail", "paused": None}]
    assert shell.json("truncate", "mail", "--yes") == [{"tube": "mail", "removed": 2}]
    assert shell.json("drop", "mail", "--yes") == [{"tube": "mail", "dropped": True, "removed": 0}]


def test_json_task_has_all_fields_even_if_unset(shell: Shell) -> None:
    shell("put", "mail", 1, "--create", "fifo")
    shell("put", "mail", 2, "--context", "trace=4bf9")
    unset, set_ = shell.json("peek", "mail")
    assert unset.keys() == set_.keys()
    assert (unset["context"], set_["context"]) == (None, {"trace": "4bf9"})
    assert unset["calls"] == {"release": 0, "ttr": 0, "bury": 0, "kick": 0}


def test_take_with_hold_reports_lease_duration(shell: Shell, queue: tubes.Queue) -> None:
    queue.create_tube("mail", "fifottl", ttr=60).put_many([1, 2])
    assert "holds 1 for 60 s (their ttr, shorter than 300 s): 0" in shell("take", "mail", "--hold", 300).stderr
    assert "holds 1 for 30 s: 1" in shell("take", "mail", "--hold", 30).stderr


def test_create_accepts_existing_tube_with_if_not_exists(shell: Shell) -> None:
    shell("create", "mail")
    hint = "exists already: --if-not-exists uses it, `tubes alter mail` changes its options"
    assert hint in shell("create", "mail", code=Exit.REFUSED).stderr
    shell("create", "mail", "--if-not-exists")


def test_tasks_are_moved_to_another_tube(shell: Shell, queue: tubes.Queue) -> None:
    mail, dead = queue.create_tube("mail"), queue.create_tube("dead")
    for name in ("ann", "bob"):
        mail.put(name).bury()
    assert shell.json("move", "mail", "dead", "--limit", 1) == [{"tube": "mail", "to": "dead", "moved": 1}]
    assert shell.lines("move", "dead", "mail", "--state", "ready") == ["moved 1 task"]
    assert [(task.data, task.state) for task in mail.select()] == [("bob", "buried"), ("ann", "ready")]
    assert [*dead.select()] == []
    shell("move", "dead", "mail", "--yes", code=Exit.NOTHING)
    shell("move", "dead", "mail", "--state", "taken", code=Exit.USAGE)
    shell("move", "dead", "nowhere", code=Exit.NOT_FOUND)
    assert "tube='mail': must be another tube" in shell("move", "mail", "mail", "--yes", code=Exit.USAGE).stderr


def test_url_selects_namespace(shell: Shell, queue: tubes.Queue) -> None:
    team = Shell(f"{shell.url}{'&' if '?' in shell.url else '?'}namespace=the%2Bteam")
    team("put", "mail", "to ann", "--create", "fifo")
    with queue.namespace("the+team") as namespace:
        assert repr(namespace).endswith("namespace=the%2Bteam>")
        assert (namespace.tubes(), queue.tubes()) == (["mail"], [])
    for shell_ in (shell, team):
        assert shell_.lines("namespaces") == ["the+team"]
        assert shell_.json("namespaces") == [{"namespace": "the+team"}]
    assert team.lines("take", "mail") == ["to ann"]
    shell("stats", "mail", code=Exit.NOT_FOUND)


def test_stats_match_queue_statistics(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", ttr=100)
    tube.put_many(range(3))
    tube.take(timeout=0)
    queue.create_tube("crawl", "utube").put("/", utube="example.com")
    assert shell.lines("tubes") == ["crawl", "mail"]
    assert shell.json("tubes") == [{"tube": "crawl", "driver": "utube"}, {"tube": "mail", "driver": "fifottl"}]
    (mail,) = shell.json("stats", "mail")
    assert (mail["tasks"], mail["calls"]) == (tube.statistics().tasks, tube.statistics().calls)
    assert [one["tube"] for one in shell.json("stats")] == ["crawl", "mail"]
    for words in (("stats",), ("stats", "mail"), ("top", "--count", "1")):
        assert "ready" in shell(*words).stdout
    assert "example.com" in shell("lanes", "crawl").stdout
    assert shell.json("lanes", "crawl")[0]["ready"] == 1
    shell("lanes", "mail", code=Exit.USAGE)
    shell("stats", "nosuch", code=Exit.NOT_FOUND)


def test_lane_is_blocked_and_configured(shell: Shell, queue: tubes.Queue) -> None:
    crawl = queue.create_tube("crawl", "utube")
    crawl.put("/", utube="example.com")
    (blocked,) = shell.json("lane", "block", "crawl", "example.com", 60, "--because", "overloaded")
    assert blocked == crawl.lane("example.com").info()._asdict()
    assert blocked["blocked_reason"] == "overloaded"
    assert shell.json("lane", "info", "crawl", "example.com") == [blocked]
    assert "overloaded" in shell("lane", "info", "crawl", "example.com").stdout
    assert "overloaded" in shell("lanes", "crawl").stdout
    assert crawl.take(timeout=0) is None
    shell("lane", "block", "crawl", "example.com", 1, "--extend")
    (info,) = crawl.lanes()
    assert info.next_start is not None
    assert info.next_start > time.time() + 30
    assert shell.json("lane", "unblock", "crawl", "example.com")[0]["blocked_until"] is None
    assert crawl.lanes()[0].next_start is None
    limits = ["--interval", 2.5, "--max-in-flight", 3, "--interval-from", "ack", "--capacity", 9]
    shell("lane", "configure", "crawl", "example.com", *limits)
    assert crawl.lanes()[0][4:7] == (2.5, 3, 9)
    (changed,) = shell.json("lane", "configure", "crawl", "example.com", "--interval", "default")
    assert changed["interval"] == 0
    (changed,) = shell.json("lane", "configure", "crawl", "a", "--interval", "10/s", "--burst", 4)
    assert (changed["interval"], changed["burst"]) == (0.1, 4)
    (changed,) = shell.json("lane", "configure", "crawl", "a", "--interval", 0.25, "--burst", "default")
    assert (changed["interval"], changed["burst"]) == (0.25, 1)
    assert crawl.lanes()[-1][4:7] == (0, 3, 9)
    queue.create_tube("mail")
    shell("lane", "block", "mail", "a", 5, code=Exit.USAGE)
    shell("lane", "block", "crawl", "a", 5, "--because", "", code=Exit.USAGE)
    shell("lane", "configure", "crawl", "a", "--max-in-flight", 0, code=Exit.USAGE)


def test_take_from_paused_tube_gets_nothing_until_resume(shell: Shell, queue: tubes.Queue) -> None:
    queue.create_tube("mail").put("hello")
    shell("pause", "mail")
    message = shell("take", "mail", code=Exit.NOTHING).stderr
    assert "tube 'mail' is paused until it is resumed, and 1 tasks are ready: `tubes resume mail`" in message
    assert "paused" in shell("stats").stdout
    assert shell.json("stats")[0]["paused"] == "for ever"
    shell("resume", "mail")
    shell("pause", "mail", 3700)
    assert "tube 'mail' is paused for 1h01m more" in shell("take", "mail", code=Exit.NOTHING).stderr
    shell("pause", "mail", 60)
    assert "paused 1m00s" in shell("top", "--count", "1").stdout.replace("60s", "1m00s").replace("59s", "1m00s")
    shell("resume", "mail")
    assert shell.lines("take", "mail") == ["hello"]


def test_destructive_commands_require_confirmation(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(range(3))
    shell("truncate", "mail", code=Exit.USAGE)
    shell("drop", "mail", code=Exit.USAGE)
    assert tube.statistics().tasks["total"] == 3
    shell("truncate", "mail", "--yes")
    assert tube.statistics().tasks["total"] == 0
    tube.put(1)
    tube.take(timeout=0)
    assert "cannot be dropped" in shell("drop", "mail", "--yes", code=Exit.REFUSED).stderr
    shell("drop", "mail", "--yes", "--force")
    assert queue.tubes() == []


def test_workers_command_is_refused_for_folder(shell: Shell, tmp_path: Path) -> None:
    tubes.connect(f"file:{tmp_path}").close()
    with tubes.connect(f"file:{tmp_path}?mode=read") as read, pytest.raises(tubes.StoreReadOnly):
        read.admin.workers()
    refused = shell("workers", "--url", f"file:{tmp_path}", code=Exit.REFUSED)
    assert "without workers" in refused.stderr


@pytest.mark.sample(1)
def test_workers_command_lists_running_workers_and_their_tasks(shell: Shell, queue: tubes.Queue) -> None:
    assert shell("workers", code=Exit.NOTHING).stderr == "tubes: no worker runs\n"
    worker, go, started = Worker(queue, concurrency=2), threading.Event(), threading.Event()

    @worker.on(queue.create_tube("mail"))
    def send(task: tubes.Task) -> None:
        task.checkpoint(progress=0.5, note="half")
        started.set()
        go.wait()

    queue.tube("mail").put(1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert started.wait(60)
        assert eventually(lambda: any(one.in_hand for one in queue.admin.workers()))
        (line,) = shell.lines("workers")[1:]
        assert re.search(rf"\b{os.getpid()} .*\bmail +1/2 +0 +0 +0 +mail 0, for \d", line)
        assert line.rstrip().endswith("50 %  half")
        (found,) = shell.json("workers")
        assert (found["tasks"][0]["progress"], found["tasks"][0]["note"]) == (0.5, "half")
        assert (found["pid"], found["in_hand"], found["stopping"]) == (os.getpid(), 1, False)
        assert [(task["tube"], task["id"]) for task in found["tasks"]] == [("mail", 0)]
    finally:
        go.set()
        worker.stop()
        thread.join()
    assert shell("workers", "--json", code=Exit.NOTHING).stdout == ""


@pytest.mark.sample(1)
def test_workers_command_names_functions(shell: Shell, queue: tubes.Queue) -> None:
    handlers = (HandlerInfo("send, resize", ("tasks",), 1, ("send", "resize")),)
    held, unknown = (HeldTask("tasks", 4, 1, 5.0, "send"),), (UnknownFunction("tasks", "resiez"),)
    info = WorkerInfo("1", "web1", 7, 1.0, 1.0, handlers, 1, held, unknown=unknown)
    queue.create_tube("tasks")
    assert shell.json("stats", "tasks")[0]["durations"] == []
    queue.admin._workers_tube().put(asdict(info) | {"timings": [Timings("tasks", "send", {}, {60: 3}).fields]})
    line, footer = shell.lines("workers")[1:]
    assert "tasks (send, resize)" in line
    assert "tasks 4 (send), for" in line
    assert re.search(r"run of send +p50 29ms  p95 29ms  p99 29ms", "\n".join(shell.lines("stats", "tasks")))
    every, durations = shell.json("stats", "tasks")[0]["durations"]
    assert every == durations | {"function": None}
    assert (durations["function"], durations["count"], durations["wait_p50"]) == ("send", 3, None)
    assert footer == "no running worker has the function 'resiez', which tasks of tube 'tasks' call"


def test_top_honors_count_and_interval(shell: Shell, queue: tubes.Queue) -> None:
    queue.create_tube("mail").put(1)
    looks = shell.json("top", "--count", 3, "--interval", 0.1)
    assert [(look["tube"], look["tasks"]["ready"]) for look in looks] == [("mail", 1)] * 3
    assert len(shell.lines("top", "--count", 2, "--interval", 0.1)) == 4
    shell("top", "--count", 0, code=Exit.USAGE)


def test_put_into_full_tube_is_refused(shell: Shell, queue: tubes.Queue) -> None:
    queue.create_tube("small", capacity=1)
    shell("put", "small", 1)
    assert "full" in shell("put", "small", 2, code=Exit.NOTHING).stderr


def test_key_is_put_only_once(shell: Shell) -> None:
    shell("create", "mail")
    assert shell.json("put", "mail", 1, "--key", "a")[0]["created_now"]
    assert not shell.json("put", "mail", 2, "--key", "a")[0]["created_now"]
    shell("put", "mail", 3, "--key", "a", "--on-duplicate", "raise", code=Exit.REFUSED)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["stats", "--url", "nonsense"], Exit.USAGE, "must be memory://"),
        (["stats", "--url", "redsi://localhost"], Exit.USAGE, "redis+cluster://; did you mean 'redis'?"),
        (["stats", "--url", "memory://"], Exit.USAGE, "the URL of a server"),
        (
            ["stats", "--url", "memory://unknown"],
            Exit.USAGE,
            "memory://unknown is empty in every new process",
        ),
        (["take", "nosuch"], Exit.NOT_FOUND, "`tubes create nosuch` creates it"),
        (["take", "mail", "--hold", "-1"], Exit.USAGE, "--hold=-1.0: must"),
        (["create", "mail", "nosuch"], Exit.NOT_FOUND, "no driver"),
        (["create", "a tube"], Exit.USAGE, "must be 1 to 255"),
        (["create", "mail", "-o", "ttr"], Exit.USAGE, "name=value"),
        (["create", "mail", "fifo", "-o", "ttr=5"], Exit.USAGE, "no option"),
        (["take", "mail", "--timeout", "soon"], Exit.USAGE, "--timeout"),
        (["take", "mail", "--release", "--hold", "5"], Exit.USAGE, "cannot be used together"),
        (["nosuch"], Exit.USAGE, "No such command"),
        (["list"], Exit.USAGE, "did you mean `tubes tubes`?"),
        (["retry", "mail"], Exit.USAGE, "did you mean `tubes kick`?"),
        (["nosuch"], Exit.USAGE, "(tubes --help)"),
        (["put"], Exit.USAGE, "TUBE"),
        (["lane", "block", "mail", "a", "soon"], Exit.USAGE, "SECONDS"),
        (["lane", "block", "nosuch", "a", "5"], Exit.NOT_FOUND, "nosuch"),
        (["lane", "configure", "mail", "a"], Exit.USAGE, "give at least one of --interval"),
        (["lane", "configure", "mail", "a", "--interval", "soon"], Exit.USAGE, "must be a number or default"),
        (["put"], Exit.USAGE, "(tubes put --help)"),
        (["kick", "mail", "--older-than", "soon"], Exit.USAGE, "must be seconds, or a number with s, m, h or d"),
        (["cancel", "mail", "7", "--reason", "late"], Exit.NOT_FOUND, "no tube"),
        (["bury", "mail", "7", "--reason", "late"], Exit.USAGE, "--reason"),
        (["cancell", "mail"], Exit.USAGE, "'cancel'"),
        (["peek", "mail", "--codec", "nosuch"], Exit.USAGE, "codec"),
        (["import", "mail", "/nosuch/file"], Exit.NOT_FOUND, "mail"),
    ],
)
def test_usage_error_is_reported_in_one_line(shell: Shell, words: list[str], code: int, message: str) -> None:
    assert message in shell(*words, code=code).stderr


def test_missing_url_is_usage_error() -> None:
    result = CliRunner().invoke(app, ["stats"], env={"TUBES_URL": ""})
    assert (result.exit_code, "TUBES_URL" in result.stderr) == (Exit.USAGE, True)


@pytest.mark.full
def test_command_gives_up_quickly_on_unreachable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubes.redis.transport.attempt.PATIENCE", 60.0)
    for words in (["stats"], ["bench", "-n", "1"]):
        start = time.monotonic()
        result = CliRunner().invoke(app, words, env={"TUBES_URL": "redis://127.0.0.1:1"})
        assert result.exit_code == Exit.UNREACHABLE
        assert time.monotonic() - start < 30
        assert "there is no connection to redis://127.0.0.1:1" in result.stderr


def test_missing_command_shows_help() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == Exit.USAGE
    for code in Exit:
        assert f"{code.value} {code.name.lower().replace('_', ' ')}" in " ".join(result.stderr.split())


def test_manual_lists_all_commands_and_exit_codes() -> None:
    manual = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text()
    names = {
        command.name or command.callback.__name__.strip("_") for command in app.registered_commands if command.callback
    }
    assert {name for name in names if f"`tubes {name}" not in manual} == set()
    assert {code for code in Exit if f"| {code.value} |" not in manual} == set()


def test_unexpected_error_is_reported_in_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr("tubes.connect", fail)
    assert "out of luck" in shell("stats", code=Exit.INTERNAL).stderr
    monkeypatch.setattr("tubes.connect", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    shell("stats", code=Exit.INTERRUPTED)


def test_bench_measures_in_temporary_tube(shell: Shell, queue: tubes.Queue) -> None:
    results = [json.loads(line) for line in shell.lines("bench", "-n", 20, "--json", "--driver", "utube")]
    assert [result["method"].split()[0] for result in results] == [
        "put",
        "take",
        "ack",
        "put_many",
        "take_many",
        "ack_many",
    ]
    assert all(result["per_second"] > 0 and result["p99_ms"] >= result["median_ms"] for result in results)
    assert "tasks/s" in shell("bench", "-n", 5).stdout
    assert queue.tubes() == []


@pytest.fixture
def mixed_tube(url: str) -> Iterator[tubes.Tube]:
    """A tube with three tasks. The data of the second one are JSON, those of the others are not."""
    with tubes.connect(url, codec="raw") as queue:
        tube = queue.create_tube("bytes")
        tube.put_many([b"\xff1", b"5", b"\xff2"])
        yield tube


@pytest.mark.parametrize("words", [[], ["--json"], ["--release"]])
def test_take_releases_undecodable_task(url: str, mixed_tube: tubes.Tube, words: list[str]) -> None:
    result = Shell(url)("take", "bytes", "-n", 3, *words, code=Exit.USAGE)
    assert "task 0 was released (2 tasks in all): codec 'json' cannot decode" in result.stderr
    assert (len(result.stdout.splitlines()), "xff" in result.stdout) == (1, False)
    assert mixed_tube.statistics().tasks["taken"] == 0
    assert [task.data for task in mixed_tube.take_many(3)][-1] == b"\xff2"
    assert mixed_tube.statistics().calls["ack"] == (words != ["--release"])
    assert mixed_tube.peek(0).data == b"\xff1"


def test_take_refuses_hold_of_zero_seconds(shell: Shell, queue: tubes.Queue) -> None:
    queue.create_tube("mail").put(1)
    assert "--hold 0: must be at least 0.1" in shell("take", "mail", "--hold", 0, code=Exit.USAGE).stderr
    assert queue.tube("mail").statistics().calls["take"] == 0


def test_take_with_hold_releases_undecodable_task(url: str, mixed_tube: tubes.Tube) -> None:
    result = CliRunner().invoke(app, ["take", "bytes", "-n", "3", "--hold", "60", "--url", url])
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "5\n")
    assert "holds 1 for 60 s: 1\n" in result.stderr
    assert [task.state for task in mixed_tube.select()] == ["r", "t", "r"]


def test_peek_marks_undecodable_data(url: str, mixed_tube: tubes.Tube) -> None:
    assert "<codec 'json' cannot decode" in Shell(url)("peek", "bytes", 0).stdout
    first, second, third = Shell(url).json("peek", "bytes")
    assert "cannot decode" in first["error"]
    assert second["data"] == 5
    assert "cannot decode" in third["error"]


def test_raw_bytes_are_put_unchanged(url: str) -> None:
    Shell(url)("put", "bytes", "--codec", "raw", "--create", "fifo", stdin=b"\xff\x00\r\n\n\x80")
    with tubes.connect(url, codec="raw") as queue:
        assert [task.data for task in queue.tube("bytes").select()] == [b"\xff\x00\r", b"", b"\x80"]


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        (("put", "mail"), b"1\n\xff\n", "line 2 of stdin: byte 0xff at 0 is not UTF-8"),
        (("put", "mail"), DEEP.encode(), "nested too deeply"),
        (("put", "mail", DEEP), None, "nested too deeply"),
        (("import", "mail"), b'{"data": 1}\n{"data": "\xff"}', "line 2: is not JSON: byte 0xff at 10 is not UTF-8"),
        (("import", "mail"), DEEP.encode(), "line 1: is not JSON: it is nested too deeply"),
        (("import", "mail"), b'{"data": ' + DEEP.encode() + b"]" * 200_000 + b"}", "nested too deeply"),
        (("bench", "--url", "memory://", "--size", "99999999999999"), None, "--size"),
        (("stats", "\x1b[2J\u202e"), None, "there is no tube"),
    ],
    ids=lambda value: str(value)[:50],  # pytest stores the id in the environment, which has a limited size.
)
def test_malformed_input_is_usage_error(
    shell: Shell, queue: tubes.Queue, words: list[str], stdin: bytes | None, message: str
) -> None:
    queue.create_tube("mail")
    code = Exit.NOT_FOUND if words[0] == "stats" else Exit.USAGE
    stderr = shell(*words, stdin=stdin, code=code).stderr
    assert message in stderr
    assert stderr.removesuffix("\n").isprintable()
    assert [*queue.tube("mail").select()] == []


def run_in_shell(url: str, words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell, with redirections of its streams."""
    command = f"exec {shlex.quote(sys.executable)} -m tubes {words}"
    known = {**os.environ, "TUBES_URL": url, **environment}
    return subprocess.run(["/bin/sh", "-c", command], env=known, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_closed_standard_stream_is_reported_without_losing_tasks(url: str) -> None:
    with tubes.connect(url) as queue:
        mail = queue.create_tube("mail")
        mail.put(5)
        taken = run_in_shell(url, "take mail >&-")
        assert (taken.returncode, taken.stderr.startswith("tubes: stdout is closed")) == (Exit.USAGE, True)
        put = run_in_shell(url, "put mail <&-")
        assert (put.returncode, put.stderr) == (Exit.USAGE, "tubes: stdin is closed\n")
        assert run_in_shell(url, "drop mail <&-").returncode == Exit.USAGE
        assert mail.statistics().tasks["ready"] == 1
        assert run_in_shell(url, "take nothing 2>&-").returncode == Exit.NOT_FOUND
        silent = run_in_shell(url, "take mail 2>&-")
        assert (silent.returncode, silent.stdout) == (Exit.DONE, "5\n")


@pytest.mark.full
def test_unencodable_output_does_not_lose_task(url: str) -> None:
    poor = {"PYTHONIOENCODING": "ascii:strict"}
    with tubes.connect(url) as queue:
        mail = queue.create_tube("mail")
        mail.put("Zo\xeb")
        taken = run_in_shell(url, "take mail", **poor)
        assert (taken.returncode, taken.stdout) == (Exit.USAGE, "")
        assert "the output is ascii" in taken.stderr
        assert "Zo\\xeb" in run_in_shell(url, "peek mail", **poor).stdout
        assert json.loads(run_in_shell(url, "export mail", **poor).stdout)["data"] == "Zo\xeb"
        assert json.loads(run_in_shell(url, "take mail --json", **poor).stdout)["data"] == "Zo\xeb"


def test_json_output_escapes_control_characters(shell: Shell, queue: tubes.Queue) -> None:
    queue.create_tube("mail").put("Zo\xeb \x9b31m \u202e")
    for words in (("peek", "mail", "--json"), ("export", "mail"), ("take", "mail", "--json")):
        printed = shell(*words).stdout
        assert '"Zo\xeb \\u009b31m \\u202e"' in printed
        assert json.loads(printed)["data"] == "Zo\xeb \x9b31m \u202e"


@pytest.mark.full
def test_terminated_bench_drops_its_tube(url: str) -> None:
    with tubes.connect(url) as queue:
        bench = subprocess.Popen([sys.executable, "-m", "tubes", "bench", "--url", url, "-n", "1000000"])
        while not queue.tubes():
            assert bench.poll() is None
        while not queue.admin.overview()[queue.tubes()[0]].statistics.calls["put"]:
            assert bench.poll() is None
        bench.terminate()
        assert bench.wait() == 128 + signal.SIGTERM
        assert queue.tubes() == []


@pytest.mark.parametrize("missing", ["tubes", "typer"])
def test_ctrl_c_during_import_prints_one_line(tmp_path: Path, missing: str) -> None:
    (tmp_path / f"{missing}.py").write_text("raise KeyboardInterrupt")
    root = Path(tubes.__file__).parent.parent
    path = f"{tmp_path}:{root}/tubes/cli/discovery:{root}"
    program = "from tubes_command import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (Exit.INTERRUPTED, "", "tubes: interrupted\n")


def test_data_cannot_inject_escape_sequences_or_markup(shell: Shell) -> None:
    shell("put", "mail", "\x1b[31mred [bold]bold", "--create", "fifo")
    row = shell("peek", "mail").stdout
    assert "\\x1b[31mred [bold]bold" in row
    assert "\x1b" not in row
    assert printable("a\tb\u202e") == "a\\tb\\u202e"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.24, "0.2s"), (45, "45s"), (192, "3m12s"), (18240, "5h04m"), (1047600, "12d03h"), (-1, "0.0s")],
)
def test_durations_are_formatted_for_people(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.0012, "1.2ms"), (0.034, "34ms"), (0.0994, "99ms"), (0.0996, "0.1s"), (2, "2.0s")],
)
def test_short_durations_are_formatted_in_milliseconds(seconds: float | None, text: str) -> None:
    assert short_span(seconds) == text


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_missing_cli_extra_names_package_to_install(module: str) -> None:
    program = f"import sys; sys.modules['{module}'] = None; from tubes.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == f"tubes: the command needs {module}: pip install 'tubes-queue[cli]'\n"


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_python_m_tubes_runs_command(words: list[str]) -> None:
    run = subprocess.run([sys.executable, "-m", "tubes", *words], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.split()[0], run.stderr) == (0, "tubes" if "--version" in words else "Usage:", "")


def test_import_tubes_does_not_load_cli_dependencies() -> None:
    program = "import sys, tubes; print([name for name in ('typer', 'rich', 'redis') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_options_are_altered_and_shown(shell: Shell, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl", ttr=60, capacity=9)
    (result,) = shell.json("alter", "mail", "-o", "ttr=120", "-o", "capacity=null", "-o", "backoff=1,5,30")
    assert result == {"tube": "mail", "options": {"backoff": [1.0, 5.0, 30.0], "ttr": 120.0}}
    assert tube.put("to ann").ttr == 120
    assert shell.json("stats", "mail")[0]["options"] == result["options"]
    assert "ttr=120.0" in shell("stats", "mail").stdout
    shell("alter", "mail", "-o", 'backoff={"first": 2, "cap": 60}')
    backoff = shell.json("stats", "mail")[0]["options"]["backoff"]
    assert backoff == {"first": 2.0, "factor": 2.0, "cap": 60.0, "jitter": 0.0, "seed": 0}
    shell("create", "copy", "fifottl", "-o", f"backoff={json.dumps(backoff)}")
    assert queue.tube("copy").options == {"backoff": tube.options["backoff"]}
    (result,) = shell.json("alter", "copy", "-o", "buried_ttl=inf", "-o", "backoff=null")
    assert (result["options"], queue.tube("copy").options) == ({"buried_ttl": "inf"}, {"buried_ttl": math.inf})
    assert shell.json("stats", "copy")[0]["options"] == result["options"]
    shell("alter", "mail", "-o", "backoff=null", "-o", "ttr=null")
    assert queue.tube("mail").options == {}


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["mail"], Exit.USAGE, "--option"),
        (["mail", "-o", "ttr"], Exit.USAGE, "must be name=value"),
        (["mail", "-o", "ttr=-1"], Exit.USAGE, "ttr=-1"),
        (["mail", "-o", "colour=red"], Exit.USAGE, "colour"),
        (["mail", "-o", "driver=fifo"], Exit.USAGE, "cannot change after creation"),
        (["other", "-o", "ttr=1"], Exit.NOT_FOUND, "no tube 'other'"),
    ],
)
def test_alter_reports_refused_option(shell: Shell, queue: tubes.Queue, words: list[str], code: Exit, why: str) -> None:
    tube = queue.create_tube("mail", "fifottl", capacity=3)
    assert why in shell("alter", *words, code=code).stderr
    assert tube.options == {"capacity": 3}
