"""Faults of a folder: completed calls are kept, and failed calls have no effect."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.durable.kills import Kills
from tests.memory.test_interrupts import interrupt
from tests.support.internals import port_of
from tests.support.taking import take_task
from tubes.drivers.invariants import check_engine
from tubes.durable import database
from tubes.errors import StoreFailed, StoreFull
from tubes.testing import ManualClock


@pytest.mark.full
def test_returned_calls_survive_a_kill(tmp_path: Path) -> None:
    kills = Kills(tmp_path, seed=1)
    for _ in range(6):
        kills.kill()
    assert kills.put > 500


if TYPE_CHECKING:
    from collections.abc import Callable

    RunOnDisk = Callable[[str, str], subprocess.CompletedProcess[str]]


def fill_disk(url: str, tube: tubes.Tube) -> None:
    """Simulate a full disk: keep the database from growing."""
    file = port_of(tube).connection.store._files.database
    pages = file.read_number("PRAGMA page_count")
    file.execute(f"PRAGMA max_page_count={pages + 20}")


def refuse_room(file: int, start: int, size: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_refuses_puts_but_allows_acks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl")
        ids = [task.id for task in tube.put_many(["x" * 500] * 200)]
        fill_disk(url, tube)
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
            # The room of the acked tasks is reused.
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
        # The disk has room again.
        assert tube.put("w").id > ids[-1]


def test_refused_put_leaves_a_taken_task_with_its_holder(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl")
        tube.put("x")
        taken = take_task(tube)
        fill_disk(url, tube)
        with pytest.raises(StoreFull):
            tube.put_many(["y" * 500] * 200)
        assert taken.ack().state == "done"


def test_unusable_reserve_is_named(tmp_path: Path) -> None:
    (tmp_path / "reserve").mkdir()
    for _ in range(2):
        with pytest.raises(StoreFailed, match="its file 'reserve' is damaged"):
            tubes.connect(f"file:{tmp_path}")


#: Fills a disk; acked tasks make room for new ones. Ends like a killed process.
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


@pytest.fixture
def run_on_small_disk(tmp_path: Path) -> RunOnDisk:
    """Run a program for the store `disk/jobs` on a file system of this size, which is kept in `disk-kept`."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def run(size: str, *command: str) -> subprocess.CompletedProcess[str]:
        mount = f'mount -t tmpfs -o size={size} none "$0" && "$@" && cp -a "$0/." "$0-kept"'
        command = ("unshare", "-rm", "sh", "-c", mount, str(folder), *command)
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    if not shutil.which("unshare") or run("16m", "true").returncode:
        pytest.skip("nothing can be mounted here")
    return lambda program, size: run(size, sys.executable, "-c", program, str(folder / "jobs"))


@pytest.mark.full
def test_full_disk_accepts_puts_again_after_acks(tmp_path: Path, run_on_small_disk: RunOnDisk) -> None:
    ended = run_on_small_disk(FULL_DISK, "16m")
    first, *more, oldest, newest, count = json.loads(ended.stdout)
    assert first > 3000
    assert all(put > first // 6 for put in more)
    with tubes.connect(f"file:{tmp_path / 'disk-kept' / 'jobs'}") as queue:
        check_engine(port_of(queue.tube("t")).shared.engine)
        ids = [task.id for task in queue.tube("t").select(limit=100_000)]
        assert (ids[0], ids[-1], len(ids)) == (oldest, newest, count)


#: Fills a disk. Calls that need more room than the reserve are undone, and all other calls succeed.
BATCHES = """
import json, os, sys, tubes
from concurrent.futures import ThreadPoolExecutor
from tests.durable.test_faults_in_a_folder import state_of
queue = tubes.connect("file:" + sys.argv[1])
tube = queue.create_tube("t", "utubettl", max_in_flight=10**6)
other, kept = queue.create_tube("other"), queue.create_tube("kept", keep_done=1000)
waits = queue.create_tube("waits", "limfifottl", capacity=1)
waits.put("x")
known = [task.id for task in tube.put_many(["x" * 900] * 300, utube="a")]
held = tube.take_many(200, timeout=0)
for number in range(9):
    kept.put(number)
    other.put_many(["x" * 900] * 500)
events = []
for size in (500, 1):
    try:
        while True:
            known += [task.id for task in tube.put_many(["x" * 900] * size)]
    except tubes.StoreFull:
        pass

def look():
    tasks, numbers, *others = state_of(tube)
    return tasks, others, other.statistics(), queue.tubes()

most = len(known)
tube.on_task_change(lambda task, event: events.append(event))
for name, act in {
    "take_many": lambda: tube.take_many(most, timeout=0),
    "delete_many": lambda: tube.delete_many(known),
    "update": lambda: tube.update(known[-1], data="y" * 10**7),
    "put_many": lambda: other.put_many(["z"] * 200_000),
    "create_tube": lambda: queue.create_tube("new"),
    "pause": lambda: tube.pause(9),
}.items():
    before = look()
    try:
        act()
        print(name, "is done")
    except tubes.StoreFull:
        print(name, "is refused" if look() == before and not events else "is half done")
    events.clear()
tube.pause(0)
tube.ack(held[0])
tube.release(tube.take(0))
other.truncate()
kept.drop()
tube.ack_many(held[1:])
print(tube.put("more").state, events[:4])
with ThreadPoolExecutor() as threads:
    waiting = threads.submit(waits.put, "y" * 10**7, timeout=60)
    while not waits.statistics().waiting:
        pass
    waits.ack(waits.take(0))
    print(type(waiting.exception()).__name__, waits.statistics().tasks["total"])
print(json.dumps([tube.statistics().tasks, queue.tubes()]), flush=True)
os._exit(0)
"""


@pytest.mark.full
def test_call_on_a_full_disk_is_done_or_undone(tmp_path: Path, run_on_small_disk: RunOnDisk) -> None:
    ended = run_on_small_disk(BATCHES, "28m")
    *statements, last = ended.stdout.splitlines()
    assert statements == [
        *(f"{name} is refused" for name in ("take_many", "delete_many", "update", "put_many")),
        "create_tube is refused",
        "pause is done",
        "ready ['delete', 'take', 'release', 'delete']",
        "StoreFull 0",
    ]
    with tubes.connect(f"file:{tmp_path / 'disk-kept' / 'jobs'}") as queue:
        check_engine(port_of(queue.tube("t")).shared.engine)
        assert [queue.tube("t").statistics().tasks, queue.tubes()] == json.loads(last)
        assert queue.tube("other").statistics().calls["put"] == 4500


#: Fills a disk so far that it has no room for a second copy of the tasks of one tube.
MOVES = """
import os, sys, tubes
from tests.durable.test_faults_in_a_folder import state_of
queue = tubes.connect("file:" + sys.argv[1])
here, there = queue.create_tube("here", "utubettl"), queue.create_tube("there", "utubettl")
here.put_many(["x" * 200_000] * 80)
there.put("y")

def look():
    return [(tasks, others) for tasks, numbers, *others in (state_of(here), state_of(there))]

before = look()
disk = os.statvfs(sys.argv[1])
with open(sys.argv[1] + "/else", "wb") as others:
    others.write(bytes(disk.f_bavail * disk.f_frsize - 2 * 2**20))
try:
    print("moved", here.select("ready").move_to(there))
except tubes.StoreFull:
    print("refused", look() == before)
os.unlink(sys.argv[1] + "/else")
print("moved", here.select("ready").move_to(there), there.put("z").state)
os._exit(0)
"""


@pytest.mark.full
def test_move_on_a_full_disk_is_all_or_nothing(tmp_path: Path, run_on_small_disk: RunOnDisk) -> None:
    ended = run_on_small_disk(MOVES, "80m")
    assert ended.stdout.splitlines() == ["refused True", "moved 80 ready"], ended.stderr
    with tubes.connect(f"file:{tmp_path / 'disk-kept' / 'jobs'}") as queue:
        assert [queue.tube(name).statistics().tasks["total"] for name in ("here", "there")] == [0, 82]


#: Thousands of tasks fall due together on a full disk: in the running program, and after it was killed.
DUE_TOGETHER = """
import json, os, subprocess, sys, tubes
from tests.durable.test_faults_in_a_folder import state_of
from tubes.testing import ManualClock
clock = ManualClock(1000)
queue, memory = tubes.connect("file:" + sys.argv[1], clock=clock), tubes.connect("memory://", clock=clock, codec="json")
options = {"max_in_flight": 10**6, "ttr": 30, "max_attempts": 2}
pairs = [
    [each.create_tube(name, "utubettl", keep_done=keep_done, **options) for each in (queue, memory)]
    for name, keep_done in (("plain", 0), ("kept", 10**6))
]
for pair in pairs:
    for tube in pair:
        for number in range(24):
            tube.put_many(["x" * 1000] * 400, ttl=50, utube="a")
            tube.put_many(["x" * 1000] * 50, delay=40, utube="a")
            tube.put_many(["x" * 1000] * 50, utube="a")
try:
    while True:
        pairs[0][0].put("y" * 1000, utube="a")
        pairs[0][1].put("y" * 1000, utube="a")
except tubes.StoreFull:
    pass
for pair in pairs:
    assert len({len(tube.take_many(99, timeout=0)) for tube in pair}) == 1
for seconds in (35, 10, 2, 20, 2):
    clock.advance(seconds)
    for pair in pairs:
        for tube in pair:
            for _ in range(5):
                tube.ack(tube.take(0))
        assert state_of(pair[0]) == state_of(pair[1])
statistics = [tube.statistics() for _, tube in pairs]
with tubes.connect("file:" + sys.argv[1], clock=clock) as other:
    for name in ("plain", "kept"):
        other.tube(name).take(0)
if os.fork():
    os._exit(0)  # Like a kill.
again = '''
import sys, time, tubes
from tests.durable.test_faults_in_a_folder import state_of
from tubes.testing import ManualClock
for _ in range(2):
    while True:
        try:
            queue = tubes.connect("file:" + sys.argv[1], clock=ManualClock(1200))
            break
        except tubes.StoreBusy:
            time.sleep(0.1)
    for name in queue.tubes():
        tube = queue.tube(name)
        state_of(tube)
        tube.ack(tube.take(0))
    queue.close()
queue = tubes.connect("file:" + sys.argv[1], clock=ManualClock(1200))
print([tuple(queue.tube(name).statistics().tasks[state] for state in ("done", "total")) for name in ("plain", "kept")])
queue.tube("kept").truncate()
queue.tube("plain").drop()
print(queue.tube("kept").put("z", utube="a").state)
'''
print([(each.tasks["done"] + 2, each.tasks["total"] - 2) for each in statistics])
sys.stdout.flush()
os.execv(sys.executable, [sys.executable, "-c", again, sys.argv[1]])
"""


@pytest.mark.full
def test_thousands_of_tasks_can_fall_due_together_on_a_full_disk(run_on_small_disk: RunOnDisk) -> None:
    ended = run_on_small_disk(DUE_TOGETHER, "48m")
    assert not ended.stderr
    counted, found, state = ended.stdout.splitlines()
    assert (counted, state) == (found, "ready")


#: Another program fills the disk while the folder is not open.
CLOSED = """
import sys, tubes
with tubes.connect("file:" + sys.argv[1]) as queue:
    queue.create_tube("t").put_many(["x"] * 9)
with open(sys.argv[1] + "/else", "wb", buffering=0) as others:
    for size in (4096, 1):
        try:
            while True:
                others.write(bytes(size))
        except OSError:
            pass
with tubes.connect("file:" + sys.argv[1]) as queue:
    tube = queue.tube("t")
    print(tube.ack(tube.take(0)).state, tube.statistics().tasks["ready"])
"""


def test_folder_can_be_opened_on_a_full_disk(run_on_small_disk: RunOnDisk) -> None:
    ended = run_on_small_disk(CLOSED, "16m")
    assert ended.stdout == "done 8\n", ended.stderr


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


def test_disk_error_fails_every_call_until_the_folder_is_reopened(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    ended = subprocess.run(
        [sys.executable, "-c", FULL_FILE, url], capture_output=True, text=True, check=True, timeout=60
    )
    *ids, last = ended.stdout.splitlines()
    assert last == "errors 4"
    with tubes.connect(url) as queue:
        assert [task.id for task in queue.tube("t").select(limit=1000)] == [int(id) for id in ids]


def test_url_of_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match="its folder cannot be made"):
        tubes.connect(f"file:{tmp_path / 'file'}")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ("PRAGMA user_version=7", "a newer release wrote it"),
        ("PRAGMA application_id=7", "another program"),
        ("DROP TABLE tasks", "no such table"),
    ],
)
def test_incompatible_file_is_refused_and_kept(tmp_path: Path, harm: str, why: str) -> None:
    url = f"file:{tmp_path}"
    with tubes.connect(url) as queue:
        queue.create_tube("t").put(1)
    with sqlite3.connect(tmp_path / "tubes.db") as database:
        database.execute(harm)
    database.close()
    for _ in range(2):
        with pytest.raises(StoreFailed, match=why):
            tubes.connect(url)


@pytest.mark.sample(2)
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


def test_torn_end_of_the_log_is_ignored(tmp_path: Path) -> None:
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
        assert [task.data for task in queue.tube("t").select()] == list(range(49))


def interrupt_at(line: int, act: Callable[[], object]) -> bool:
    """Raise a KeyboardInterrupt at a line of the journal, counted from 0; return False if `act` ends before it."""
    left = line

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    gc.disable()  # An interrupt in a finalizer would be ignored.
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


CODE = str(Path(tubes.__file__).parent / "durable")
WRITES: dict[str, Callable[[tubes.Tube, tubes.Task], object]] = {
    "put": lambda tube, task: tube.put("x", utube="a", ttl=50),
    "replace": lambda tube, task: tube.put("x", key="k", on_duplicate="replace"),
    "update by key": lambda tube, task: tube.put("x", key="k", on_duplicate="update"),
    "put_many": lambda tube, task: tube.put_many(["x", "y"]),
    "take": lambda tube, task: tube.take(0),
    "ack": lambda tube, task: tube.ack(task),
    "release": lambda tube, task: tube.release(task, delay=5),
    "checkpoint": lambda tube, task: task.checkpoint([7], progress=0.5, note="n"),
    "truncate": lambda tube, task: tube.truncate(),
}


def create_filled(queue: tubes.Queue) -> tuple[tubes.Tube, tubes.Task]:
    """Create a tube with tasks in several states, and return it with its taken task."""
    tube = queue.create_tube("t", "utubettl", ttr=100, key_ttl=50, max_in_flight=3, max_attempts=5)
    tube.put("first", key="k", utube="a")
    tube.put_many(["second", "third"], utube="b")
    tube.bury(tube.put("buried").id)
    return tube, take_task(tube)


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", WRITES)
def test_interrupt_leaves_memory_and_file_consistent(tmp_path: Path, method: str) -> None:
    clock = ManualClock()
    with tubes.connect(f"file:{tmp_path}", clock=clock) as queue:
        line, is_interrupted = -1, True
        while is_interrupted:
            line += 1
            tube, task = create_filled(queue)
            is_interrupted = interrupt_at(line, lambda tube=tube, task=task: WRITES[method](tube, task))  # type: ignore[misc]
            with tubes.connect(f"file:{tmp_path}?mode=read", clock=clock) as after_a_kill:
                assert state_of(after_a_kill.tube("t")) == state_of(tube)
            tube.drop(force=True)
    assert line > 20


@pytest.mark.full
def test_tasks_move_to_another_tube_in_one_transaction(tmp_path: Path) -> None:
    clock = ManualClock()
    with tubes.connect(f"file:{tmp_path}", clock=clock) as queue, queue.namespace("elsewhere") as elsewhere:
        here, there = queue.create_tube("t", "utubettl"), elsewhere.create_tube("other", "utubettl", max_in_flight=1)
        statements, whole = list[str](), ["BEGIN IMMEDIATE", "COMMIT"]
        port_of(here).shared._files.database.connection.set_trace_callback(statements.append)
        here.put_many(["x", "y"])
        assert [words for words in statements if words in whole] == whole
        statements.clear()
        assert here.select("ready").move_to(there) == 2
        assert [words for words in statements if words in whole] == whole
        assert "REPLACE" in statements[1]
        line, is_interrupted = -1, True
        while is_interrupted:
            line += 1
            there.truncate()
            here.truncate()
            here.put_many(["x", "y"])
            is_interrupted = interrupt_at(line, lambda: here.select("ready").move_to(there))
            with tubes.connect(f"file:{tmp_path}?mode=read", clock=clock) as after_a_kill:
                assert state_of(after_a_kill.tube("t")) == state_of(here)
                assert state_of(after_a_kill.namespace("elsewhere").tube("other")) == state_of(there)
            assert sorted(task.data for task in [*here.select(), *there.select()]) == ["x", "y"]
        assert line > 20


@pytest.mark.full
def test_interrupted_drop_is_all_or_nothing_in_memory_and_file(tmp_path: Path) -> None:
    url, line, is_interrupted, before = f"file:{tmp_path}", -1, True, object()
    with tubes.connect(url) as queue:
        while is_interrupted:
            line += 1
            tube = queue.create_tube("t", "utube", if_exists="keep")
            tube.put("x")
            is_interrupted = interrupt_at(line, tube.drop)
            if queue.tubes():
                tube.put("y")
                before = state_of(tube)
            with tubes.connect(f"{url}?mode=read") as after_a_kill:
                assert after_a_kill.tubes() == queue.tubes()
                assert not queue.tubes() or state_of(after_a_kill.tube("t")) == before
    assert line > 5


def state_of(tube: tubes.Tube) -> object:
    """Return the visible state of a tube, and True if its key is free."""
    engine = port_of(tube).shared.engine
    check_engine(engine)
    tasks = [(id, repr(entry.data), entry.state, entry.attempts, entry.utube) for id, entry in engine.tasks.items()]
    numbers = engine.next_id, engine.next_take, engine._keys.find(engine.pause.id, "k") is None
    return tasks, numbers, tube.statistics(), tube.lanes(), engine.options


def test_interrupt_while_serving_a_waiter_leaves_the_file_correct(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    is_interrupted, moment = True, -1
    with tubes.connect(url) as queue, ThreadPoolExecutor() as threads:
        tube = queue.create_tube("t")
        while is_interrupted:
            moment += 2
            waiting = threads.submit(tube.take)
            while not tube.statistics().waiting:
                pass
            is_interrupted = bool(interrupt(lambda: tube.put("x"), moment))
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


def test_too_large_task_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with tubes.connect(url) as queue:
        tube, full = queue.create_tube("t", "fifottl"), queue.create_tube("full", capacity=1)
        file = port_of(tube).connection.store._files.database
        limit = 100_000  # The default is 1,000,000,000.
        file.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
        tube.put("small")
        full.put("first")
        too_large = "x" * limit
        before = tube.statistics()
        calls: list[Callable[[], object]] = [
            lambda: tube.put(too_large),
            lambda: tube.put_many(["a", too_large, "b"]),
            lambda: tube.put("b", context={"more": too_large}),
            lambda: tube.update(0, data=too_large),
        ]
        for call in calls:
            with pytest.raises(StoreFull, match=f"may have at most {limit} bytes.*nothing was changed"):
                call()
            assert tube.statistics().tasks == before.tasks
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(full.put, too_large, timeout=60)
            while not full.statistics().waiting:
                pass
            take_task(full).ack()
            with pytest.raises(StoreFull):
                waiting.result(60)
        for number in range(3):
            assert tube.put(number).data == number
        check_engine(port_of(tube).shared.engine)
    with tubes.connect(url) as queue:
        assert [task.data for task in queue.tube("t").select()] == ["small", 0, 1, 2]


def test_task_of_more_than_2_gib_is_refused(tmp_path: Path) -> None:
    """`sqlite3` raises OverflowError for such data, before it calls SQLite."""
    url = f"file:{tmp_path / 'jobs'}"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        file: Any = port_of(tube).connection.store._files.database
        execute = file.execute

        def refuse(statement: str, values: Any = ()) -> Any:
            if b'"huge"' in values:
                raise OverflowError("string longer than INT_MAX bytes")
            return execute(statement, values)

        file.execute = refuse
        with pytest.raises(StoreFull, match="may have"):
            tube.put("huge")
        assert tube.put("small").data == "small"


def test_folder_is_locked_when_the_disk_has_no_room_for_the_process_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file:{tmp_path / 'jobs'}"

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with tubes.connect(url) as queue:
        assert queue.tubes() == []
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(database, "put_in_place", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreFailed, match="No space left"):
        tubes.connect(f"file:{tmp_path / 'new'}")
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.undo()
    tubes.connect(f"file:{tmp_path / 'new'}").close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", WRITES)
def test_interrupted_recovery_leaves_memory_and_file_consistent(tmp_path: Path, method: str) -> None:
    clock, rng = ManualClock(), random.Random(method)
    with tubes.connect(f"file:{tmp_path}", clock=clock) as queue:
        first, hits = -1, 1
        while hits:
            first += 1
            tube, task = create_filled(queue)
            moments = first, *(rng.randrange(rng.choice([30, 300])) for _ in range(2))
            hits = interrupt(lambda tube=tube, task=task: WRITES[method](tube, task), *moments)  # type: ignore[misc]
            counts = tube.statistics().tasks
            check_engine(port_of(tube).shared.engine)
            assert tube.select("ready").count() == counts["ready"]
            with tubes.connect(f"file:{tmp_path}?mode=read", clock=clock) as after_a_kill:
                assert state_of(after_a_kill.tube("t")) == state_of(tube), moments
            tube.drop(force=True)
    assert first > 20
