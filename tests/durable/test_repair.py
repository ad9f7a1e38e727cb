"""Check and repair of damaged files."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

import tubes
from tests.support.internals import port_of
from tubes.cli.app import app
from tubes.drivers.invariants import check_engine
from tubes.durable.repair import examine, repair
from tubes.errors import StoreFailed
from tubes.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

TASKS = 600
MANY = 4000


@pytest.fixture(scope="module")
def intact_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An intact folder."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    with tubes.connect(f"file:{folder}") as queue:
        mails = queue.create_tube("mails", "fifottl", max_attempts=3)
        mails.put_many(["x" * 100] * TASKS)
        mails.bury(7, "why")
        pages = queue.create_tube("pages", "utubettl", interval=5, key_ttl=50, keep_done=100)
        for number in range(60):
            pages.put(number, utube=str(number % 3), key=str(number), ttl=500)
        for task in pages.take_many(2, timeout=0):
            task.ack()
        pages.lane("0").block(100)
    return folder


@pytest.fixture
def folder(intact_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(intact_folder, tmp_path / "store")
    return tmp_path / "store"


def stored_data(folder: Path) -> dict[str, dict[int, object]]:
    """Check the indexes of all tubes; return the stored data of all tasks, by tube and id."""
    found: dict[str, dict[int, object]] = {}
    with tubes.connect(f"file:{folder}") as queue:
        for name in queue.tubes():
            engine = port_of(queue.tube(name)).shared.engine
            check_engine(engine)
            found[name] = {id: entry.data for id, entry in engine.tasks.items()}
    return found


def assert_intact(folder: Path, before: dict[str, dict[int, object]]) -> None:
    """Assert that all tasks that can be taken have the same data as before the damage."""
    with tubes.connect(f"file:{folder}") as queue:
        for name in queue.tubes():
            for id, entry in port_of(queue.tube(name)).shared.engine.tasks.items():
                assert entry.state == "buried" or entry.data == before[name][id]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose table of tasks has two levels of inner pages, overflow pages and free pages."""
    folder = tmp_path_factory.mktemp("large") / "store"
    with tubes.connect(f"file:{folder}") as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put_many(["z" * 300] * 1500)
        for task in tube.take_many(1500, timeout=0):
            task.ack()
        tube.put_many(["x" * 100] * MANY)
        tube.put_many(["y" * 5000] * 10)
        tube.update(1600, data="changed")
    return folder


def pages_of(folder: Path, kind: int) -> list[int]:
    """Return the offsets of the pages of this kind."""
    raw = (folder / "tubes.db").read_bytes()
    return [at for at in range(1024, len(raw), 1024) if raw[at] == kind]


def zero_page(folder: Path, at: int) -> None:
    with (folder / "tubes.db").open("r+b") as file:
        file.seek(at)
        file.write(bytes(1024))


@pytest.mark.sample(2)
@pytest.mark.parametrize("which", ["root", "inner", "all inner", "leaf"])
def test_leaves_below_damaged_pages_are_saved(large: Path, tmp_path: Path, which: str) -> None:
    folder = tmp_path / "store"
    shutil.copytree(large, folder)
    before = stored_data(folder)
    with closing(sqlite3.connect(folder / "tubes.db")) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name='tasks'").fetchone()
    inner = [at for at in pages_of(folder, 5) if at != (root - 1) * 1024]
    leaves = pages_of(folder, 13)
    damaged = {"root": [(root - 1) * 1024], "inner": inner[:1], "all inner": inner, "leaf": leaves[100:102]}[which]
    assert damaged
    for at in damaged:
        zero_page(folder, at)
    found = {problem.kind: problem.count for problem in repair(folder, "url")}
    assert examine(folder, "url") == []
    assert found["saved"] + found.get("lost", 0) == MANY + 10
    assert ("lost" in found) == (which == "leaf")
    assert "unreadable pages" in found
    after = stored_data(folder)
    assert len(after["t"]) == found["saved"]
    assert_intact(folder, before)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(12))
def test_repair_names_each_loss_of_random_damage(large: Path, tmp_path: Path, seed: int) -> None:
    folder, rng = tmp_path / "store", random.Random(seed)
    shutil.copytree(large, folder)
    before, file = stored_data(folder), folder / "tubes.db"
    raw = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 3, 30])):
        length = rng.choice([1, 2, 100, 1024])
        start = rng.randrange(1024, len(raw) - length) & (-1024 if length == 1024 else -1)
        raw[start : start + length] = bytes(length) if length == 1024 else rng.randbytes(length)
    file.write_bytes(raw)
    found = {problem.kind for problem in repair(folder, "url")}
    assert examine(folder, "url") == []
    after = stored_data(folder)
    saved = {id for name in after for id in after[name]}
    if not saved >= before["t"].keys():
        assert found & {"lost", "unreadable pages", "unreadable rows"}
    if after.keys() == before.keys():
        assert_intact(folder, before)


def change(folder: Path, at: int, new: bytes) -> None:
    with (folder / "tubes.db").open("r+b") as file:
        file.seek(at)
        file.write(new)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("at", "new"),
    [(30, b"\0"), (0, b"s"), (16, b"\x08"), (16, bytes(2)), (0, bytes(100)), (0, bytes(1024)), (0, bytes(4096))],
)
def test_damaged_header_hides_no_task(large: Path, tmp_path: Path, at: int, new: bytes) -> None:
    folder = tmp_path / "store"
    shutil.copytree(large, folder)
    (before,) = stored_data(folder).values()
    change(folder, at, new)
    with pytest.raises(StoreFailed, match="is damaged"):
        tubes.connect(f"file:{folder}")
    assert examine(folder, "url")[0].kind == "file"
    repair(folder, "url")
    assert examine(folder, "url") == []
    (after,) = stored_data(folder).values()
    assert after == before
    with tubes.connect(f"file:{folder}") as queue:
        assert queue.statistics(queue.tubes()[0]).tasks["ready"] == len(before)


@pytest.mark.parametrize("in_log", [True, False], ids=["schema in the log", "schema in the file"])
def test_log_is_read_if_the_header_is_damaged(intact_folder: Path, tmp_path: Path, in_log: bool) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(intact_folder, tmp_path / "store")
    with tubes.connect(f"file:{tmp_path / 'store'}") as queue:
        if in_log:  # A new page changes the first page.
            queue.tube("mails").put_many(["long" * 1000] * 3)
        queue.tube("mails").update(1, data="changed")
        shutil.copytree(tmp_path / "store", folder)
    change(folder, 0, bytes(16))
    repair(folder, "url")
    assert stored_data(folder) == stored_data(tmp_path / "store")


def test_repaired_file_can_be_repaired_again(large: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(large, folder)
    before = stored_data(folder)
    for _ in range(2):
        zero_page(folder, pages_of(folder, 5)[1])
        repair(folder, "url")
        assert stored_data(folder) == before


def test_old_copies_on_free_pages_do_not_come_back(large: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(large, folder)
    with closing(sqlite3.connect(folder / "tubes.db", isolation_level=None)) as database:
        database.execute("PRAGMA secure_delete=OFF")
        database.execute(f"DELETE FROM tasks WHERE key & 0xffffffff > {1500 + MANY // 2}")
        (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name='tasks'").fetchone()
    intact = stored_data(folder)
    zero_page(folder, (root - 1) * 1024)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    repair(folder, "url")
    assert stored_data(folder) == intact
    with (copy / "tubes.db").open("r+b") as file:
        file.seek(32)  # The offset of the first page in the list of free pages.
        file.write(bytes(4))
    zero_page(copy, pages_of(copy, 5)[0])
    assert {"file", "uncertain", "unreadable pages"} <= {problem.kind for problem in repair(copy, "url")}
    with tubes.connect(f"file:{copy}") as queue:
        assert queue.tube("t").statistics().tasks["ready"] == 0


def test_command_names_the_tube_of_lost_tasks_and_counts_pages(large: Path, tmp_path: Path) -> None:
    def run(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--url", f"file:{tmp_path / 'store'}"])

    shutil.copytree(large, tmp_path / "store")
    for at in pages_of(tmp_path / "store", 13)[100:105]:
        zero_page(tmp_path / "store", at)
    (lost,) = [json.loads(line) for line in run("check", "--json").stdout.splitlines() if '"lost"' in line]
    assert lost["tube"] == "t"
    repaired = run("repair")
    assert f"t: missing tasks: {lost['count']}; could not" in repaired.stdout
    assert "unreadable pages of the file: 5; left them out" in repaired.stdout
    assert "tasks are lost or uncertain" in repaired.stderr
    assert "the old files: damaged-1; kept them" in repaired.stdout


@pytest.mark.parametrize(("column", "harm"), [("data", "CAST(replace(data, 'xxx', 'xyx') AS BLOB)"), ("state", "4")])
def test_flipped_bit_of_a_task_is_found(folder: Path, column: str, harm: str) -> None:
    with closing(sqlite3.connect(folder / "tubes.db", isolation_level=None)) as database:
        database.execute(f"UPDATE tasks SET {column}={harm} WHERE key & 0xffff=5 AND key >> 40 = 1")
    with pytest.raises(StoreFailed, match="is damaged"):
        tubes.connect(f"file:{folder}")
    (problem,) = examine(folder, "url")
    assert (problem.kind, problem.tube, problem.examples) == ("uncertain", "mails", ("5",))
    repair(folder, "url")
    with tubes.connect(f"file:{folder}") as queue:
        assert queue.tube("mails").peek(5).state == "buried"


@pytest.mark.parametrize("harm", ["crc=1, dead=1", "more='{'", "dead='x', ttl=5", "lane=x'ff'"])
def test_uncertain_tasks_stay_buried_with_a_reason(folder: Path, harm: str) -> None:
    with closing(sqlite3.connect(folder / "tubes.db", isolation_level=None)) as database:
        database.execute(f"UPDATE tasks SET {harm} WHERE key & 0xffff=5 AND key >> 40 = 2")
    repair(folder, "url")
    with tubes.connect(f"file:{folder}") as queue:
        (task,) = queue.tube("pages").select("buried")
        assert (task.id, task.ttl, task.reason) == (5, None, "repair: the task may be damaged")


def test_damaged_row_of_a_deleted_task_stays_deleted(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "tubes.db", isolation_level=None)) as database:
        database.execute("UPDATE tasks SET data=NULL, crc=7, state=4 WHERE key & 0xffff=5 AND key >> 40 = 1")
    repair(folder, "url")
    assert examine(folder, "url") == []
    assert 5 not in stored_data(folder)["mails"]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_check_finds_nothing_after_random_calls(tmp_path: Path, seed: int) -> None:
    clock, rng, folder = ManualClock(), random.Random(seed), tmp_path / "store"
    for _ in range(3):
        with tubes.connect(f"file:{folder}", clock=clock) as queue:
            tube = queue.create_tube("t", "utubettl", if_exists="keep", keep_done=3, max_attempts=3)
            held: list[tubes.Task] = []
            for _ in range(150):
                call = rng.randrange(9)
                if call < 3:
                    tube.put("x", ttl=rng.choice([1, 5, 100]), delay=rng.choice([0, 2]), utube=str(call))
                elif call == 3:
                    tube.put_many(["y"] * rng.randrange(700), ttl=rng.choice([1, 5, 100]))
                elif call == 4:
                    held += tube.take_many(5, timeout=0)
                elif call == 5 and held:
                    with suppress(tubes.TaskNotTaken):
                        held.pop().ack()
                elif call == 6 and held:
                    with suppress(tubes.TaskNotTaken):
                        held.pop().release()
                elif call == 7:
                    clock.advance(rng.choice([0.5, 3]))
                elif call == 8 and not rng.randrange(8):
                    tube.truncate()
                if not rng.randrange(9):
                    assert examine(folder, "url") == []
        assert examine(folder, "url") == []


def test_repair_of_an_intact_store_does_nothing(folder: Path) -> None:
    before = (folder / "tubes.db").read_bytes()
    assert examine(folder, "url") == repair(folder, "url") == []
    assert (folder / "tubes.db").read_bytes() == before
    assert not list(folder.glob("damaged-*"))


@pytest.mark.parametrize(
    ("harm", "kind", "kept"),
    [
        ("UPDATE tasks SET state='no' WHERE key & 0xffff=5", "uncertain", TASKS),
        ("UPDATE tasks SET data=NULL WHERE key & 0xffff=5", "uncertain", TASKS - 1),
        ("UPDATE tasks SET more='{' WHERE key & 0xffff=7", "uncertain", TASKS),
        ("UPDATE tubes SET facts='{}'", "facts", TASKS),
        ("UPDATE tubes SET facts=json_set(facts, '$.pause', json('[]'))", "facts", TASKS),
        ("UPDATE tubes SET driver='{}', options=7", "facts", TASKS),
        ("DELETE FROM tubes WHERE name='mails'", "facts", TASKS),
        ("UPDATE lanes SET facts='[]'", "facts", TASKS),
        ("UPDATE done SET until='soon'", "facts", TASKS),
    ],
)
def test_invalid_rows_are_reported_and_repaired(folder: Path, harm: str, kind: str, kept: int) -> None:
    before = stored_data(folder)
    with closing(sqlite3.connect(folder / "tubes.db")) as database:
        database.execute(harm)
        database.commit()
    for mode in ("own", "read"):
        if "DELETE" not in harm:
            with pytest.raises(StoreFailed, match=r"its file 'tubes.db' is damaged .* 'tubes repair --url file:"):
                tubes.connect(f"file:{folder}?mode={mode}")
    damaged = (folder / "tubes.db").read_bytes()
    assert {problem.kind for problem in examine(folder, "url")} == {kind}
    found = repair(folder, "url")
    assert {problem.kind for problem in found} == {kind, "kept"}
    assert all(problem.repaired for problem in found)
    assert (folder / "damaged-1" / "tubes.db").read_bytes() == damaged
    assert examine(folder, "url") == []
    after = stored_data(folder)
    name = "recovered-1" if "DELETE" in harm else "mails"
    assert after[name].items() <= before["mails"].items()
    assert len(after[name]) == kept
    with tubes.connect(f"file:{folder}") as queue:
        tube = queue.tube(name)
        assert tube.put("new").id >= TASKS
        assert tube.take(0) is not None


@pytest.mark.parametrize(("old", "new"), [("crc)", "crb)"), ("result, until", "resulu, until")])
def test_damaged_definition_of_a_table_is_named_and_repaired(folder: Path, old: str, new: str) -> None:
    before = stored_data(folder)
    file = folder / "tubes.db"
    content = file.read_bytes()
    at = content.index(old.encode())
    file.write_bytes(content[:at] + new.encode() + content[at + len(new) :])
    (found, *_) = examine(folder, "url")
    assert found.kind == "file"
    assert found.examples
    checked = CliRunner().invoke(app, ["check", "--url", f"file:{folder}"])
    assert (checked.exit_code, "the file of the store is damaged" in checked.stdout) == (8, True)
    repair(folder, "url")
    assert examine(folder, "url") == []
    assert stored_data(folder) == before


@pytest.mark.sample(7)
@pytest.mark.parametrize("seed", range(16))
def test_readable_tasks_of_a_damaged_file_are_saved(folder: Path, seed: int) -> None:
    rng, file = random.Random(seed), folder / "tubes.db"
    before = stored_data(folder)
    raw = bytearray(file.read_bytes())
    if seed % 8 == 0:
        del raw[len(raw) * 9 // 10 :]
    else:
        for _ in range(1 + seed % 3):
            length = rng.choice([1, 4, 200])
            start = rng.randrange(1024 * 8, len(raw) - length)
            raw[start : start + length] = rng.randbytes(length)
    file.write_bytes(raw)
    found = examine(folder, "url")
    assert [problem.kind for problem in repair(folder, "url")][:1] == [problem.kind for problem in found][:1]
    assert examine(folder, "url") == []
    after = stored_data(folder)
    assert len(after["mails"]) > TASKS * 3 // 4
    assert_intact(folder, before)


def test_unrecoverable_file_is_left_unchanged(folder: Path) -> None:
    for content in (b"", b"garbage" * 999):
        (folder / "tubes.db").write_bytes(content)
        with pytest.raises(StoreFailed):
            tubes.connect(f"file:{folder}")
        with pytest.raises(StoreFailed):
            repair(folder, "url")
        assert (folder / "tubes.db").read_bytes() == content


def test_repair_creates_no_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "typo"):
        for command in ("check", "repair"):
            ended = CliRunner().invoke(app, [command, "--url", f"file:{tmp_path / name}"])
            assert ended.exit_code == 5
            assert "there is no store in this folder" in ended.stderr
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_directory_in_place_of_the_reserve_is_moved_away(folder: Path) -> None:
    (folder / "reserve").unlink()
    (folder / "reserve").mkdir()
    with pytest.raises(StoreFailed, match="'reserve' is damaged"):
        tubes.connect(f"file:{folder}")
    assert [problem.kind for problem in examine(folder, "url")] == ["reserve"]
    assert [problem.repaired for problem in repair(folder, "url")] == [True]
    assert len(stored_data(folder)["mails"]) == TASKS


def test_command_checks_an_open_store_and_repairs_a_free_one(folder: Path) -> None:
    def run(command: str) -> Result:
        return CliRunner().invoke(app, [command, "--url", f"file:{folder}"])

    with tubes.connect(f"file:{folder}"):
        assert run("check").stdout.splitlines() == ["mails: fine", "pages: fine"]
        words = [sys.executable, "-m", "tubes", "repair", "--url", f"file:{folder}"]
        busy = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert busy.returncode == 5
        assert f"process {os.getpid()} has" in busy.stderr
    with closing(sqlite3.connect(folder / "tubes.db")) as database:
        database.execute("UPDATE tasks SET attempts=-1 WHERE key & 0xffff=5")
        database.commit()
    checked = run("check")
    assert checked.exit_code == 8
    assert "mails: tasks that may be damaged: 5; repair buries them" in checked.stdout
    repaired = run("repair")
    assert repaired.exit_code == 8  # The checksum of a task is wrong.
    assert "buried them" in repaired.stdout
    assert run("check").stdout.splitlines()[-1] == "pages: fine"
    assert len(stored_data(folder)["mails"]) == TASKS
