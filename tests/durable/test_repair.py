"""Files that are damaged: what is said of them, and what is saved."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

import tubes
from tests.support.internals import port_of
from tubes.cli.app import app
from tubes.drivers.invariants import check_engine
from tubes.durable.repair import examine, repair
from tubes.errors import StoreFailed

if TYPE_CHECKING:
    from pathlib import Path

TASKS = 600


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which nothing is damaged."""
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
        pages.block("0", 100)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "store")
    return tmp_path / "store"


def there(folder: Path) -> dict[str, dict[int, object]]:
    """The data of all tasks as it is stored, by tube and id, once their indexes were found to be in order."""
    found: dict[str, dict[int, object]] = {}
    with tubes.connect(f"file:{folder}") as queue:
        for name in queue.tubes():
            engine = port_of(queue.tube(name)).shared.engine
            check_engine(engine)
            found[name] = {id: entry.data for id, entry in engine.tasks.items()}
    return found


def test_where_nothing_is_damaged_nothing_is_done(folder: Path) -> None:
    before = (folder / "tubes.db").read_bytes()
    assert examine(folder, "url") == repair(folder, "url") == []
    assert (folder / "tubes.db").read_bytes() == before
    assert not list(folder.glob("damaged-*"))


@pytest.mark.parametrize(
    ("harm", "kind", "kept"),
    [
        ("UPDATE tasks SET state='no' WHERE key & 0xffff=5", "row", TASKS),
        ("UPDATE tasks SET data=NULL WHERE key & 0xffff=5", "row", TASKS - 1),
        ("UPDATE tasks SET more='{' WHERE key & 0xffff=7", "row", TASKS),
        ("UPDATE tubes SET facts='{}'", "facts", TASKS),
        ("UPDATE tubes SET facts=json_set(facts, '$.pause', json('[]'))", "facts", TASKS),
        ("UPDATE tubes SET driver='{}', options=7", "facts", TASKS),
        ("DELETE FROM tubes WHERE name='mails'", "facts", TASKS),
        ("UPDATE lanes SET facts='[]'", "facts", TASKS),
        ("UPDATE done SET until='soon'", "facts", TASKS),
    ],
)
def test_rows_that_make_no_sense_are_named_and_made_anew(folder: Path, harm: str, kind: str, kept: int) -> None:
    before = there(folder)
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
    assert {problem.kind for problem in found} == {kind}
    assert all(problem.mended for problem in found)
    assert (folder / "damaged-1" / "tubes.db").read_bytes() == damaged
    assert examine(folder, "url") == []
    after = there(folder)
    name = "recovered-1" if "DELETE" in harm else "mails"
    assert after[name].items() <= before["mails"].items()
    assert len(after[name]) == kept
    with tubes.connect(f"file:{folder}") as queue:
        tube = queue.tube(name)
        assert tube.put("new").id >= TASKS
        assert tube.take(0) is not None


@pytest.mark.parametrize("seed", range(16))
def test_what_can_be_read_of_a_damaged_file_is_saved(folder: Path, seed: int) -> None:
    chance, file = random.Random(seed), folder / "tubes.db"
    before = there(folder)
    raw = bytearray(file.read_bytes())
    if seed % 8 == 0:
        del raw[len(raw) * 9 // 10 :]
    else:
        for _ in range(1 + seed % 3):
            length = chance.choice([1, 4, 200])
            start = chance.randrange(1024 * 8, len(raw) - length)
            raw[start : start + length] = chance.randbytes(length)
    file.write_bytes(raw)
    found = examine(folder, "url")
    if not found:  # Nothing tells that a letter of the data was another one.
        there(folder)
    assert [problem.kind for problem in repair(folder, "url")][:1] == [problem.kind for problem in found][:1]
    assert examine(folder, "url") == []
    after = there(folder)
    assert len(after["mails"]) > TASKS * 3 // 4
    wrong = [id for id, data in after["mails"].items() if before["mails"].get(id) != data]
    assert len(wrong) < 10


def test_what_cannot_be_saved_stays_as_it_is(folder: Path) -> None:
    for content in (b"", b"garbage" * 999):
        (folder / "tubes.db").write_bytes(content)
        with pytest.raises(StoreFailed):
            tubes.connect(f"file:{folder}")
        with pytest.raises(StoreFailed):
            repair(folder, "url")
        assert (folder / "tubes.db").read_bytes() == content


def test_what_stands_in_place_of_the_reserve_is_moved_away(folder: Path) -> None:
    (folder / "reserve").unlink()
    (folder / "reserve").mkdir()
    with pytest.raises(StoreFailed, match="'reserve' is damaged"):
        tubes.connect(f"file:{folder}")
    assert [problem.kind for problem in examine(folder, "url")] == ["reserve"]
    assert [problem.mended for problem in repair(folder, "url")] == [True]
    assert len(there(folder)["mails"]) == TASKS


def test_the_command_checks_a_store_beside_its_process_and_repairs_one_that_is_free(folder: Path) -> None:
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
    assert "1/5" in checked.stdout
    repaired = run("repair")
    assert repaired.exit_code == 0
    assert repaired.stdout.splitlines()[-1] == "pages: fine"
    assert len(there(folder)["mails"]) == TASKS
