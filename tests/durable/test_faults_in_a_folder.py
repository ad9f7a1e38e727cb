"""What goes wrong with a folder: nothing that a method has returned is lost, and nothing is half done."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tubes
from tests.memory.test_interrupts import interrupted
from tests.support.internals import port_of
from tubes.drivers.invariants import check_engine
from tubes.errors import StoreFailed, StoreFull

#: The ledger of a program that is killed: a line for each call that has returned.
PROGRAM = """
import random, sys, tubes
url, seed = sys.argv[1:]
chance = random.Random(int(seed))
queue = tubes.connect(url)
tube = queue.create_tube("t", "fifottl", ttr=600, if_exists="keep")
other = queue.create_tube("other", "utube", max_in_flight=2, if_exists="keep")
def say(what, *ids):
    sys.stdout.write(f"{what} {' '.join(map(str, ids))}\\n")
    sys.stdout.flush()
number = 0
while True:
    number += 1
    way = chance.random()
    if way < 0.35:
        say("put", tube.put({"number": number}).id)
    elif way < 0.45:
        say("put", *(task.id for task in tube.put_many(range(chance.randrange(1, 40)))))
    elif way < 0.6:
        for task in tube.take_many(chance.randrange(1, 30), timeout=0):
            say("taken", task.id)
            tube.ack(task)
            say("ack", task.id)
    elif way < 0.8:
        if task := tube.take(0):
            say("taken", task.id)
            tube.ack(task)
            say("ack", task.id)
    elif way < 0.85:
        if task := tube.take(0):
            tube.bury(task, "why")
            say("bury", task.id)
    elif way < 0.9:
        if task := tube.take(0):
            tube.release(task, delay=chance.choice([0, 5]))
    elif way < 0.95:
        queue.create_tube(f"tube-{number}").put(1)
        queue.tube(f"tube-{number}").drop()
    else:
        other.put(number, utube=str(number % 3))
"""


def run_until_killed(url: str, seed: int) -> dict[str, set[int]]:
    """What a program says before it is killed, after some lines."""
    lines = random.Random(seed).randrange(1, 1200)
    heard: dict[str, set[int]] = {"put": set(), "ack": set(), "taken": set(), "bury": set()}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, str(seed)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if number == lines:
                process.kill()
            if line.endswith("\n"):
                what, *ids = line.split()
                heard[what] |= {int(id) for id in ids}
    assert process.returncode == -signal.SIGKILL
    return heard


@pytest.mark.parametrize("seed", range(3))
def test_what_was_returned_before_a_kill_is_there(tmp_path: Path, seed: int) -> None:
    url = f"file:{tmp_path}"
    put: set[int] = set()
    acked: set[int] = set()
    unknown: set[int] = set()
    for kill in range(3):
        heard = run_until_killed(url, 10 * seed + kill)
        assert not put & heard["put"], "an id was given again"
        put |= heard["put"]
        acked |= heard["ack"]
        # Of the one call that was killed nobody knows; a batch of puts is done or not.
        assert len(heard["taken"] - heard["ack"]) <= 1
        unknown |= heard["taken"] - heard["ack"]
        with tubes.connect(url) as queue:
            tube = queue.tube("t")
            check_engine(port_of(tube).shared.engine)
            there: dict[int, Any] = {}
            while tasks := tube.tasks(after=max(there, default=None)):
                there |= {task.id: task for task in tasks}
            counts, calls = tube.statistics().tasks, tube.statistics().calls
            assert not put - acked - unknown - there.keys(), "a task was lost"
            assert not acked & there.keys(), "an acked task is back"
            assert calls["put"] - calls["ack"] == counts["total"]
            assert all(there[id].state == "buried" for id in heard["bury"])
            assert counts["taken"] == 0


def used_up(url: str, tube: tubes.Tube) -> None:
    """The disk is full: the database may not grow."""
    database = port_of(tube).connection.store._files.database
    pages = database.number("PRAGMA page_count")
    database.execute(f"PRAGMA max_page_count={pages + 20}")


def refuse_room(file: int, start: int, size: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_refuses_puts_and_lets_tasks_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl")
        ids = [task.id for task in tube.put_many(["x" * 500] * 200)]
        used_up(url, tube)
        with pytest.raises(StoreFull):
            tube.put_many(["x" * 500] * 200)
        with suppress(StoreFull):
            for _ in range(1000):
                ids.append(tube.put("y" * 900).id)
        before = tube.statistics()
        with pytest.raises(StoreFull):
            tube.put("z" * 5000)
        assert tube.statistics() == before
        assert before.tasks["total"] == len(ids)
        *done, kept = tube.take_many(50, timeout=0)
        for task in done:
            task.ack()
            ids.remove(task.id)
        kept.release()
        check_engine(port_of(tube).shared.engine)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", refuse_room)
            # In place of those that are done.
            ids += [tube.put("y" * 400).id for _ in range(20)]
            with suppress(StoreFull):
                for _ in range(100):
                    ids.append(tube.put("y" * 400).id)
            assert before.tasks["total"] - 49 + 20 <= len(ids) < before.tasks["total"]
            with pytest.raises(StoreFull):
                tube.put_many(["y" * 400])
        check_engine(port_of(tube).shared.engine)
    with tubes.connect(url) as queue:
        tube = queue.tube("t")
        assert tube.statistics().tasks["ready"] == len(ids)
        # There is room again.
        assert tube.put("w").id > ids[-1]


def test_a_reserve_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    (tmp_path / "reserve").mkdir()
    for _ in range(2):
        with pytest.raises(StoreFailed, match="its file 'reserve' is damaged"):
            tubes.connect(f"file:{tmp_path}")


#: A disk of its own, which is full: what is done makes room, and the program is killed in the end.
FULL_DISK = """
import os, sys, tubes
tube = tubes.connect("file:" + sys.argv[1]).create_tube("t", "fifottl")
living = []
def fill():
    before = len(living)
    while True:
        try:
            living.append(tube.put("x" * 500).id)
        except tubes.StoreFull:
            return len(living) - before
first, more = fill(), []
for _ in range(3):
    for task in tube.take_many(first // 3, timeout=0):
        tube.ack(task)
    del living[:first // 3]
    more.append(fill())
tube.release(tube.take(0))
print([first, *more, living[0], living[-1], len(living)], flush=True)
os._exit(0)
"""


def on_a_small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees a file system of 12 MiB in a folder."""
    mount = 'mount -t tmpfs -o size=12m none "$0" && "$@" && cp -a "$0/." "$0-kept"'
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, folder, *command],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_on_a_full_disk_puts_go_on_when_tasks_are_done(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not shutil.which("unshare") or on_a_small_disk(folder, "true").returncode:
        pytest.skip("nothing can be mounted here")
    ended = on_a_small_disk(folder, sys.executable, "-c", FULL_DISK, str(folder / "jobs"))
    first, *more, oldest, newest, count = json.loads(ended.stdout)
    assert first > 3000
    assert all(put > first // 6 for put in more)
    with tubes.connect(f"file:{tmp_path / 'disk-kept' / 'jobs'}") as queue:
        check_engine(port_of(queue.tube("t")).shared.engine)
        ids = [task.id for task in queue.tube("t").tasks(limit=100_000)]
        assert (ids[0], ids[-1], len(ids)) == (oldest, newest, count)


FULL_FILE = """
import resource, signal, sys, tubes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tube = tubes.connect(sys.argv[1]).create_tube("t")
for number in range(100):
    print(tube.put(number).id)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
errors = 0
for act in (lambda: tube.put("lost"), lambda: tube.take(0), tube.statistics, lambda: tube.put("lost")):
    try:
        act()
    except tubes.StoreFailed as error:
        errors += 1
print("errors", errors)
"""


def test_after_an_error_of_the_disk_every_method_raises_until_it_is_opened_anew(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    ended = subprocess.run(
        [sys.executable, "-c", FULL_FILE, url], capture_output=True, text=True, check=True, timeout=60
    )
    *ids, last = ended.stdout.splitlines()
    assert last == "errors 4"
    with tubes.connect(url) as queue:
        assert [task.id for task in queue.tube("t").tasks(limit=1000)] == [int(id) for id in ids]


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match="its folder cannot be made"):
        tubes.connect(f"file:{tmp_path / 'file'}")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ("PRAGMA user_version=7", "a newer release wrote it"),
        ("PRAGMA application_id=7", "another program"),
        ("DROP TABLE tasks", "no such table"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_stays(tmp_path: Path, harm: str, why: str) -> None:
    url = f"file:{tmp_path}"
    with tubes.connect(url) as queue:
        queue.create_tube("t").put(1)
    with sqlite3.connect(tmp_path / "tubes.db") as database:
        database.execute(harm)
    database.close()
    for _ in range(2):
        with pytest.raises(StoreFailed, match=why):
            tubes.connect(url)


@pytest.mark.parametrize("harm", ["PRAGMA user_version=0", "PRAGMA application_id=7", "PRAGMA journal_mode=WAL"])
@pytest.mark.parametrize("mode", ["own", "read"])
def test_a_file_of_another_program_stays_byte_for_byte(tmp_path: Path, harm: str, mode: str) -> None:
    file = tmp_path / "tubes.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE tasks(id, title)")
        database.execute("PRAGMA user_version=3")
        database.commit()
        database.execute(harm)
    database.close()
    before = file.read_bytes()
    with pytest.raises(StoreFailed, match="another program"):
        tubes.connect(f"file:{tmp_path}?mode={mode}")
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["tubes.db"]


def test_a_file_of_garbage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tubes.db").write_bytes(b"garbage" * 999)
    with pytest.raises(StoreFailed, match="not a database"):
        tubes.connect(f"file:{tmp_path}")


def test_a_torn_end_of_the_log_is_left_out(tmp_path: Path) -> None:
    program = f"""
import os, tubes
tube = tubes.connect("file:{tmp_path}").create_tube("t")
for number in range(50):
    tube.put(number)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    log = tmp_path / "tubes.db-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 100)
    with tubes.connect(f"file:{tmp_path}") as queue:
        assert [task.data for task in queue.tube("t").tasks()] == list(range(49))


@pytest.mark.parametrize("verb", ["put", "put_many", "take", "ack", "release"])
def test_after_an_interrupt_memory_and_file_say_the_same(tmp_path: Path, verb: str) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    moment = -1
    going = True
    queue = tubes.connect(url)
    tube = queue.create_tube("t", "fifottl", ttr=100, max_attempts=1000)
    tube.put_many(range(3))
    while going:
        moment += 3
        task = tube.take(0)
        assert task is not None
        acts = {
            "put": lambda: tube.put("x"),
            "put_many": lambda: tube.put_many(["x", "y"]),
            "take": lambda: tube.take(0),
            "ack": lambda task=task: tube.ack(task),  # type: ignore[misc]
            "release": lambda task=task: tube.release(task),  # type: ignore[misc]
        }
        going = interrupted(acts[verb], moment)
        tube.put("y")
        with suppress(tubes.TaskNotTaken):
            tube.release(task)
        while going and (later := tube.take(0)):
            tube.delete(later.id)
        tube.put_many(range(3))
        check_engine(port_of(tube).shared.engine)
        engine = port_of(tube).shared.engine
        with sqlite3.connect(tmp_path / "jobs" / "tubes.db") as database:
            rows = database.execute(
                "SELECT key & 0xffffffffff, attempts FROM tasks WHERE state<4 ORDER BY key"
            ).fetchall()
        database.close()
        assert rows == [(entry.id, entry.attempts) for entry in engine.tasks.values()]
    before = tube.statistics()
    queue.close()
    with tubes.connect(url) as queue:
        after = queue.tube("t").statistics()
        assert {**after.calls, "release": 0} == {**before.calls, "release": 0}
        assert after.tasks["total"] == before.tasks["total"]
    assert moment > 20


def test_after_an_interrupt_while_a_waiter_is_served_all_is_written_again(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    going, moment = True, -1
    with tubes.connect(url) as queue, ThreadPoolExecutor() as threads:
        tube = queue.create_tube("t")
        while going:
            moment += 2
            waiting = threads.submit(tube.take)
            while not tube.statistics().waiting:
                pass
            going = interrupted(lambda: tube.put("x"), moment)
            if tube.statistics().waiting:
                tube.put("y")
            task = waiting.result(60)
            assert task is not None
            tube.ack(task.id)
            kept = tube.put("z").id
            with sqlite3.connect(tmp_path / "jobs" / "tubes.db") as database:
                found = database.execute("SELECT key & 0xffffffffff FROM tasks WHERE state<4").fetchall()
            database.close()
            assert found == [(kept,)]
            tube.delete(kept)
    assert moment > 20
