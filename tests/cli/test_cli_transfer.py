"""`tubes export` and `tubes import`: an import restores the exported tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

import tubes
from tubes.cli.app import app
from tubes.cli.exits import Exit


@pytest.fixture(params=["memory", "valkey"])
def place(request: pytest.FixtureRequest) -> str:
    if request.param == "valkey":
        found: str = request.getfixturevalue("url")
        return found
    return f"memory://{uuid4().hex}"


@pytest.fixture
def queue(place: str) -> Iterator[tubes.Queue]:
    with tubes.connect(place, codec="json") as queue:
        yield queue


def run(place: str, *words: object, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin, env={"TUBES_URL": place})
    assert result.exit_code == code, result.output
    return result


def records(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_tilde_in_paths_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run("file:~/jobs", "create", "t")
    run("file:~/jobs", "export", "t", "~/tasks")
    run("file:~/jobs", "import", "t", "~/tasks")
    run("file:~/jobs", "backup", "~/copy")
    (tmp_path / "serve.toml").write_text("tokens = '~/tokens.json'")
    missing = run("file:~/jobs", "serve", "--config", "serve.toml", code=2)
    assert f"{tmp_path}/home/tokens.json does not exist" in missing.stderr
    for words, why in [("file:~/copy", "must be a path, not a URL"), ("~no-such-user/x", "an unknown user")]:
        assert why in run("file:~/jobs", "backup", words, code=2).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "serve.toml"]
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["copy", "jobs", "tasks"]


def test_import_restores_exported_tasks(place: str, queue: tubes.Queue, tmp_path: Path) -> None:
    tube = queue.create_tube("crawl", "utubettl")
    tube.put({"a": [1, None]}, utube="example.com", pri=3, key="k", ttl=1000, ttr=60, max_attempts=4)
    tube.put("later", utube="b", delay=500, ttl=1000)
    tube.put("dead", utube="c").bury("no such address")
    tube.put("taken", utube="d", pri=0)
    tube.take(timeout=0)
    run(place, "export", "crawl", tmp_path / "tasks")
    assert tube.statistics().tasks["total"] == 4
    run(place, "import", "copy", tmp_path / "tasks", "--create", "utubettl")
    copy = queue.tube("copy")
    first, later, dead, taken = copy.select()
    assert (first.data, first.utube, first.pri, first.key) == ({"a": [1, None]}, "example.com", 3, "k")
    assert (first.ttr, first.max_attempts, first.state) == (60, 4, "r")
    assert first.expires is not None
    assert first.expires - first.created == pytest.approx(1000, abs=20)
    assert (later.data, later.state) == ("later", "~")
    assert later.due is not None
    assert later.due - later.created == pytest.approx(500, abs=20)
    assert later.expires is not None
    assert later.expires - later.created == pytest.approx(1500, abs=20)
    assert (dead.data, dead.state, dead.reason) == ("dead", "!", "no such address")
    assert (taken.data, taken.state, taken.utube) == ("taken", "r", "d")


def test_done_tasks_are_exported_and_imported_with_their_results(
    place: str, queue: tubes.Queue, tmp_path: Path
) -> None:
    tube = queue.create_tube("mail", keep_done=60)
    tube.put_many(["to ann", "to bob"])
    ann = tube.take(0)
    assert ann is not None
    ann.ack({"sent": True})
    result = run(place, "export", "mail", tmp_path / "done", "--state", "done")
    assert "exported 1 task of mail" in result.stderr
    (record,) = records((tmp_path / "done").read_text())
    assert [record[name] for name in ("id", "state", "why", "result")] == [ann.id, "done", "ack", {"sent": True}]
    assert record["ended"] >= record["created"]
    run(place, "import", "copy", tmp_path / "done", "--create", "fifo")
    assert [(task.state, task.data) for task in queue.tube("copy").select()] == [("r", "to ann")]
    assert [record["id"] for record in records(run(place, "export", "mail", "--state", "ready").stdout)] == [1]


def test_facts_of_checkpoints_are_exported_and_imported(place: str, queue: tubes.Queue, tmp_path: Path) -> None:
    tube = queue.create_tube("mail")
    tube.put_many([1, 2], context={"trace": "1"})
    with tube.taking(0) as task:
        task.checkpoint({"page": ["\ud800ü"]}, progress=0.5, note="n")
        task.release()
    run(place, "export", "mail", tmp_path / "tasks")
    run(place, "import", "copy", tmp_path / "tasks", "--create", "fifo")
    facts = [(task.saved, task.progress, task.note, task.context) for task in queue.tube("copy").select()]
    assert facts == [({"page": ["\ud800ü"]}, 0.5, "n", {"trace": "1"}), (None, None, None, {"trace": "1"})]


def test_several_pages_are_exported_and_imported_in_order(place: str, queue: tubes.Queue, tmp_path: Path) -> None:
    queue.create_tube("many").put_many(range(1203))
    run(place, "export", "many", tmp_path / "tasks")
    run(place, "import", "copy", tmp_path / "tasks", "--create", "fifo")
    assert [task.data for task in queue.tube("copy").take_many(2000)] == list(range(1203))


def test_export_with_drain_removes_ready_tasks(place: str, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl")
    tube.put_many(range(600))
    tube.put("later", delay=100)
    drained = records(run(place, "export", "mail", "--drain").stdout)
    assert [record["data"] for record in drained] == list(range(600))
    assert tube.statistics().tasks | {"done": 0} == {
        "ready": 0, "taken": 0, "buried": 0, "delayed": 1, "done": 0, "total": 1,
    }  # fmt: skip


def test_bytes_are_exported_through_base64(place: str) -> None:
    with tubes.connect(place, codec="raw") as queue:
        queue.create_tube("bytes").put(b"\x00\xff")
        exported = run(place, "export", "bytes", "--codec", "raw").stdout
        assert records(exported)[0]["data_base64"] == "AP8="
        run(place, "import", "copy", "--create", "fifo", "--codec", "raw", stdin=exported)
        (task,) = queue.tube("copy").select()
        assert task.data == b"\x00\xff"


def test_import_reports_options_not_supported_by_driver(place: str, queue: tubes.Queue) -> None:
    lines = '{"data": 1, "ttl": 5, "utube": "a", "pri": 2}\n\n{"data": 2, "key": "k"}\n{"data": 3, "key": "k"}\n'
    message = run(place, "import", "plain", "--create", "fifo", stdin=lines).stderr
    assert (
        "imported 2 tasks into plain, 1 keys were in use, without pri, ttl, utube, which fifo does not support"
        in message
    )
    assert [task.data for task in queue.tube("plain").select()] == [1, 2]


@pytest.mark.parametrize("line", ["nonsense", "[1]", "{}", '{"data_base64": "?"}'])
def test_import_reports_number_of_invalid_line(place: str, queue: tubes.Queue, line: str) -> None:
    queue.create_tube("mail")
    message = run(place, "import", "mail", code=Exit.USAGE, stdin=f'{{"data": 1}}\n{line}\n').stderr
    assert message.startswith("tubes: line 2: ")
    assert [*queue.tube("mail").select()] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"ttl": "long"', "ttl='long': must be a number of seconds;"),
        ('"ttl": 5, "delay": [1]', "delay=[1]: must be a number of seconds;"),
        ('"pri": 1.5', "pri=1.5: must be a whole number;"),
        ('"key": 7', "key=7: must be a non-empty string"),
        ('"context": {"a": 1}', "context"),
        ('"note": "n", "context": {"a": 1}', "context"),
        ('"note": "n", "context": {"tubes.call": "a"}', "reserved"),
        ('"progress": 2', "progress=2: must be a number from 0 to 1;"),
        ('"state": "buried", "delay": "x"', "delay='x': must be a number of seconds;"),
        ('"state": "buried", "reason": 7', "reason must be a string, not 7"),
    ],
)
def test_invalid_option_is_reported_by_line_and_its_page_is_not_put(
    place: str, queue: tubes.Queue, line: str, message: str
) -> None:
    queue.create_tube("mail", "utubettl")
    good = '{"data": 1}\n' * 501
    stderr = run(place, "import", "mail", code=Exit.USAGE, stdin=f'{good}{{"data": 2, {line}}}\n').stderr
    assert stderr.startswith("tubes: line 502: ")
    assert message in stderr
    assert stderr.endswith("; 500 tasks were imported, up to line 500\n")
    assert queue.tube("mail").select().count() == 500


def test_export_overwrites_file_only_with_force(place: str, queue: tubes.Queue, tmp_path: Path) -> None:
    queue.create_tube("mail").put(1)
    (tmp_path / "tasks").write_text("precious")
    run(place, "export", "mail", tmp_path / "tasks", code=Exit.USAGE)
    assert (tmp_path / "tasks").read_text() == "precious"
    run(place, "export", "mail", tmp_path / "tasks", "--force")
    assert records((tmp_path / "tasks").read_text())[0]["data"] == 1


def test_full_tube_stops_import_and_reports_progress(
    place: str, queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubes.cli.transfer.PUT_TIMEOUT", 0)
    queue.create_tube("small", capacity=500)
    lines = "".join(f'{{"data": {number}}}\n' for number in range(700))
    message = run(place, "import", "small", code=Exit.NOTHING, stdin=lines).stderr
    assert "500 tasks were imported, up to line 500" in message


@pytest.mark.parametrize(
    ("line", "options"), [('"ttl": 100, ', {}), ("", {"ttl": 100}), ('"ttl": 100, "delay": 50, ', {})]
)
def test_imported_buried_task_keeps_remaining_ttl(
    place: str, queue: tubes.Queue, line: str, options: dict[str, Any]
) -> None:
    tube = queue.create_tube("mail", "fifottl", **options)
    run(place, "import", "mail", stdin=f'{{"data": 1, {line}"state": "buried", "reason": "no"}}')
    (buried,) = tube.select("buried")
    assert buried.expires is not None
    assert buried.expires - buried.created == pytest.approx(100, abs=5)


def test_import_counts_buried_tasks_that_expired(place: str, queue: tubes.Queue) -> None:
    queue.create_tube("mail", "fifottl")
    message = run(place, "import", "mail", stdin='{"data": 1, "ttl": 0, "state": "buried"}\n{"data": 2}\n').stderr
    assert "imported 2 tasks into mail, 1 disappeared before they could be buried" in message
    assert [task.data for task in queue.tube("mail").select()] == [2]


def test_import_continues_if_worker_removes_task_before_bury(
    place: str, queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("plain")
    bury = tubes.Tube.bury

    def delete_then_bury(self: tubes.Tube, task: tubes.Task, reason: str | None = None) -> tubes.Task:
        if task.id == 0:
            tube.delete(task.id)
        return bury(self, task, reason)

    monkeypatch.setattr(tubes.Tube, "bury", delete_then_bury)
    message = run(
        place, "import", "plain", stdin='{"data": 0, "state": "buried"}\n{"data": 1, "state": "buried"}\n'
    ).stderr
    assert "imported 2 tasks into plain, 1 disappeared before they could be buried" in message
    assert [(task.data, task.state) for task in tube.select()] == [(1, "!")]


@pytest.mark.parametrize(
    ("error", "code", "prefix"),
    [
        (KeyboardInterrupt(), Exit.INTERRUPTED, "tubes: interrupted: "),
        (tubes.ConnectionLost(url="x", why="y"), Exit.UNREACHABLE, "tubes: "),
    ],
    ids=["ctrl-c", "lost"],
)
def test_failed_import_reports_progress(
    place: str, queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, prefix: str
) -> None:
    queue.create_tube("mail", "fifottl")
    lines = "".join(
        f'{{"data": {number}, "state": "{"buried" if number % 500 > 497 else "ready"}"}}\n' for number in range(2000)
    )
    put_many, bury, calls = tubes.Tube.put_many, tubes.Tube.bury, list[str]()

    def fail_on_call(method: str, number: int) -> Any:
        def call(tube: tubes.Tube, *args: Any, **options: Any) -> Any:
            calls.append(method)
            if calls.count(method) == number:
                raise error
            return (put_many if method == "put_many" else bury)(tube, *args, **options)

        return call

    monkeypatch.setattr(tubes.Tube, "put_many", fail_on_call("put_many", 3))
    message = run(place, "import", "mail", code=code, stdin=lines).stderr
    assert message.startswith(
        prefix + "1000 tasks were imported, up to line 1000; lines up to 1500 may also be imported\n"
    )
    calls.clear()
    monkeypatch.setattr(tubes.Tube, "put_many", put_many)
    monkeypatch.setattr(tubes.Tube, "bury", fail_on_call("bury", 4))
    message = run(place, "import", "mail", code=code, stdin=lines).stderr
    assert message.startswith(prefix + "1000 tasks were imported, up to line 1000, but 1 of them are not buried yet\n")
