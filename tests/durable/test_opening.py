"""Opening a folder: locks, readers, and the state after reopening."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

import tubes
import tubes.aio
from tests.support.internals import port_of
from tests.support.stepping import SteppingClock
from tests.support.taking import take_task
from tubes import Driver
from tubes.cli.app import app
from tubes.durable.database import Database, back_up
from tubes.durable.repair import examine, repair
from tubes.errors import CodecError, DriverNotFound, InvalidOption, StoreFailed, TaskNotTaken

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'jobs'}"


def run_python(program: str) -> str:
    """Run a program in another process and return its output."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_all_forms_of_the_url_name_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tubes.connect("file:a%20b") as queue:
        queue.create_tube("t").put(1)
        for url in (f"file:{tmp_path}/a%20b", f"file://{tmp_path}/a%20b", "FILE:./a%20b?codec=json"):
            with tubes.connect(url) as other:
                assert other.tube("t").statistics().tasks["ready"] == 1
        assert repr(queue) == f"<Queue file:{tmp_path}/a b>"


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with tubes.connect("file:~/a%20b") as queue, tubes.connect(f"file:{tmp_path}/home/a%20b") as same:
        queue.create_tube("t").put(1)
        assert same.tube("t").statistics().tasks["ready"] == 1
    tubes.connect("file:./~/jobs").close()
    with pytest.raises(InvalidOption, match=r"an unknown user: write file:\./~"):
        tubes.connect("file:~no-such-user/jobs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "~"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("url", ["file:", "file://", "file://jobs", "file://host/jobs", "file:jobs?wal=1", "file:a#b"])
def test_a_url_that_names_no_folder_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        tubes.connect(url)
    assert refused.value.facts["value"].startswith(url.partition("?")[0])


def test_threads_and_event_loops_of_a_process_share_a_folder(url: str) -> None:
    async def put() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.tube("t")
            await tube.put("from a loop")

    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        asyncio.run(put())
        assert take_task(tube).data == "from a loop"


def test_release_is_counted_after_a_kill(url: str, tmp_path: Path) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put(1)
        take_task(tube).release()
        shutil.copytree(tmp_path / "jobs", tmp_path / "killed")
    with tubes.connect(f"file:{tmp_path / 'killed'}") as queue:
        assert queue.tube("t").statistics().calls["release"] == 1


@pytest.mark.full
def test_second_process_is_refused_with_the_pid_of_the_owner(url: str, tmp_path: Path) -> None:
    program = f"import tubes\ntry: tubes.connect({url!r})\nexcept tubes.StoreBusy as error: print(error)"
    with tubes.connect(url):
        # The lock survives a copy of the folder by its owner.
        shutil.copytree(tmp_path / "jobs", tmp_path / "copy")
        assert f"process {os.getpid()} has {url} open" in run_python(program)
    # The folder is unlocked again.
    assert run_python(f"import tubes\nprint(tubes.connect({url!r}).tubes())") == "[]"


def test_a_folder_that_was_renamed_is_not_opened_twice(url: str, tmp_path: Path) -> None:
    with tubes.connect(url):
        (tmp_path / "jobs").rename(tmp_path / "moved")
        with pytest.raises(tubes.StoreBusy, match=str(os.getpid())):
            tubes.connect(f"file:{tmp_path / 'moved'}")


@pytest.mark.full
def test_forked_child_can_neither_use_nor_lock_the_folder(url: str) -> None:
    program = f"""
import os, time, tubes
queue = tubes.connect({url!r})
tube = queue.create_tube("t")
if child := os.fork():
    tube.put("from the parent")
    print(child, flush=True)
    os._exit(0)
os.closerange(1, 3)
try:
    tube.put("from the child")
except tubes.QueueForked:
    time.sleep(60)
"""
    child = int(run_python(program))
    try:
        with tubes.connect(url) as queue:
            assert [task.data for task in queue.tube("t").select()] == ["from the parent"]
    finally:
        os.kill(child, 9)


@pytest.mark.full
def test_take_ends_with_the_process_that_made_it(url: str) -> None:
    program = f"""
import os, tubes
tube = tubes.connect({url!r}).create_tube("t", max_attempts=2)
tube.put("poison")
tube.take(0)
os._exit(9)
"""
    with pytest.raises(subprocess.CalledProcessError):
        run_python(program)
    with pytest.raises(subprocess.CalledProcessError):
        run_python(program.replace('.create_tube("t", max_attempts=2)', '.tube("t")').replace('tube.put("poison")', ""))
    with tubes.connect(url) as queue:
        (task,) = queue.tube("t").select("buried")
        assert (task.attempts, task.reason) == (2, "max_attempts: session")
        assert queue.statistics("t").calls["take"] == 2


def test_ids_are_not_reused_after_reopening(url: str) -> None:
    for expected in range(3):
        with tubes.connect(url) as queue:
            tube = queue.create_tube("t", if_exists="keep")
            assert tube.put(None).id == expected
            take_task(tube).ack()
            assert tube.statistics().calls["ack"] == expected + 1


def test_key_of_a_task_that_has_gone_is_remembered_after_opening(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", key_ttl=60)
        tube.delete(tube.put("first", key="k"))
    with tubes.connect(url) as queue:
        assert not queue.tube("mail").put("second", key="k").created_now


def test_forgotten_key_is_free_after_opening(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", key_ttl=60)
        tube.delete(tube.put("first", key="k"))
    for known in (True, False):
        with tubes.connect(url) as queue:
            assert queue.tube("mail").admin.forget_key("k") is known
    with tubes.connect(url) as queue:
        assert queue.tube("mail").put("second", key="k").created_now


def test_folder_refuses_another_codec(url: str) -> None:
    with tubes.connect(url) as queue, pytest.raises(CodecError):
        queue.create_tube("t").put(object())
    with pytest.raises(InvalidOption, match="must be 'json'"):
        tubes.connect(url, codec="raw")


def test_temporary_tubes_are_not_kept(url: str) -> None:
    with tubes.connect(url) as queue:
        queue.create_tube("kept")
        queue.create_tube("t", temporary=True).put(1)
    with tubes.connect(url) as queue:
        assert queue.tubes() == ["kept"]


def test_a_dropped_tube_stays_dropped(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(3))
        tube.drop()
        assert queue.create_tube("t").put("new").id == 0
    with tubes.connect(url) as queue:
        assert [task.data for task in queue.tube("t").select()] == ["new"]


def test_missing_driver_makes_only_its_own_tube_unusable(url: str) -> None:
    ranked = Driver("ranked", options={"pri"}, rank=lambda task: -task.pri)
    with tubes.connect(url) as queue:
        queue.create_tube("plain").put(1)
        tube = queue.create_tube("t", ranked)
        tube.put("low", pri=1)
        tube.put("high", pri=2)
    with tubes.connect(url) as queue:
        assert queue.tubes() == ["plain", "t"]
        assert queue.tube("plain").statistics().tasks["ready"] == 1
        with pytest.raises(DriverNotFound, match="ranked"):
            queue.tube("t")
        queue.admin.register_driver(ranked)
        task = take_task(queue.tube("t"))
        assert task.data == "high"


def test_reopened_store_keeps_the_time_left_after_a_clock_was_set_back(url: str) -> None:
    clock = SteppingClock(10_000)
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", "fifottl", key_ttl=50)
        tube.put("delayed", delay=10)
        tube.put("mortal", ttl=20, key="k")
        tube.delete(tube.put("gone", key="gone").id)
    later_clock = SteppingClock(2_000)
    with tubes.connect(url, clock=later_clock) as queue:
        tube = queue.tube("t")
        assert tube.peek(0).created == later_clock.now() == 2_000
        assert tube.put("again", key="gone").state == "done"
        later_clock.advance(9.9)
        assert tube.peek(0).state == "delayed"
        later_clock.advance(0.1)
        assert tube.peek(0).state == "ready"
        later_clock.advance(10)
        assert [task.data for task in tube.select()] == ["delayed"]
        later_clock.advance(30)
        assert tube.put("again", key="gone").state == "ready"
    with tubes.connect(url, clock=SteppingClock(3_000)) as queue:
        assert [task.data for task in queue.tube("t").select()] == ["delayed", "again"]


@pytest.mark.full
def test_clock_set_back_is_detected_if_the_last_change_was_a_take(tmp_path: Path) -> None:
    program = f"""
import os, tubes
from tubes.testing import ManualClock
clock = ManualClock(10_000)
queue = tubes.connect("file:{tmp_path}", clock=clock)
delayed, tube = queue.create_tube("delayed", "fifottl"), queue.create_tube("t")
delayed.put(1, delay=1000)
tube.put(2)
clock.advance(900)
tube.take(0)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with tubes.connect(f"file:{tmp_path}", clock=SteppingClock(2_000)) as queue:
        assert queue.tube("delayed").peek(0).due == 2_100


@pytest.mark.full
def test_clock_set_back_is_applied_once_if_a_driver_is_missing(url: str) -> None:
    ranked = Driver("ranked", options={"pri", "delay", "utube"}, lane="utube", rank=lambda task: -task.pri)
    with tubes.connect(url, clock=SteppingClock(10_000)) as queue:
        queue.create_tube("t", "fifottl").put("plain", delay=100)
        tube = queue.create_tube("ranked", ranked, interval=50)
        tube.put("ranked", delay=100)
        tube.put("now", utube="lane")
        task = take_task(tube)
        task.ack()
        tube.pause(100)
    for moment in (2_000, 2_010, 2_020):
        with tubes.connect(url, clock=SteppingClock(moment)) as queue:
            assert queue.tube("t").peek(0).due == 2_100
    with tubes.connect(url, clock=SteppingClock(2_030)) as queue:
        queue.admin.register_driver(ranked)
        tube = queue.tube("ranked")
        assert tube.peek(0).due == tube.statistics().paused == 2_100
        assert [(lane.name, lane.next_start) for lane in tube.lanes()] == [("lane", 2_050)]


def test_bucket_of_a_rate_is_restored_after_reopening(url: str) -> None:
    clock = SteppingClock(10_000)
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", rate="6/min", burst=2)
        tube.put_many(range(9))
        assert len(tube.take_many(9, 0)) == 2
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.tube("t")
        assert tube.take(0) is None
        clock.advance(10)
        assert len(tube.take_many(9, 0)) == 1
    with tubes.connect(url, clock=SteppingClock(2_000)) as queue:  # The clock was set back.
        assert queue.tube("t").take(0) is None
    with tubes.connect(url, clock=SteppingClock(2_010)) as queue:
        assert len(queue.tube("t").take_many(9, 0)) == 1


def test_weight_and_the_rest_of_a_turn_are_restored_after_reopening(url: str) -> None:
    with tubes.connect(url) as queue:
        tube: Any = queue.create_tube("t", "utube", order="round_robin")
        tube.lane("x").configure(weight=3)
        tube.put_many(tubes.Item(None, utube=lane) for lane in "xxxxxxyyy")
        taken = [tube.ack(tube.take()).utube for _ in range(2)]
    with tubes.connect(url) as queue:
        tube = queue.tube("t")
        assert tube.lane("x").info().weight == 3
        taken += [tube.ack(tube.take()).utube for _ in range(6)]
    assert taken == [*"xxxyxxxy"]


def test_lanes_are_restored_after_reopening(url: str) -> None:
    clock = SteppingClock(100)
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", "utubettl")
        tube.lane("gone").configure(interval=5)
        tube.put(1, utube="gone")
        tube.truncate()
        tube.put_many(range(2), utube="a")
        tube.lane("a").configure(max_in_flight=2, capacity=2)
        tube.lane("b").block(50, reason="\ud800 429")
        tube.take(0)
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.tube("t")
        assert [(lane.name, lane.next_start) for lane in tube.lanes()] == [("a", None), ("b", 150)]
        assert tube.lane("b").info()[-3:-1] == (150, "\ud800 429")
        assert tube.put(2, utube="a", timeout=0) is None
        # The interval counts from the last take.
        tube.lane("a").configure(interval=30)
        assert tube.lanes()[0].next_start == 130


def test_detached_queue_closes_the_store_when_its_lease_ends(url: str) -> None:
    clock = tubes.testing.ManualClock()
    queue = tubes.connect(url, clock=clock, session_ttl=5)
    store = port_of(queue.create_tube("t")).connection.store
    queue.admin.detach()
    assert store.is_open
    clock.advance(5)
    assert not store.is_open


@pytest.mark.full
def test_open_store_can_be_read_by_another_process(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", "fifottl", ttr=600)
        tube.put_many(["a", "b", "c"])
        task = take_task(tube)
        tube.bury(1, reason="no")
        program = f"""
import tubes
with tubes.connect({url + "?mode=read"!r}) as queue:
    tube = queue.tube("t")
    print(sorted(tube.statistics().tasks.items()))
    print([(task.data, str(task.state), task.reason) for task in tube.select()])
    print(tube.join(0))
"""
        counts, tasks, empty = run_python(program).splitlines()
        assert counts == str(sorted(tube.statistics().tasks.items()))
        assert tasks == str([("a", "taken", None), ("b", "buried", "no"), ("c", "ready", None)])
        assert empty == "False"
        task.ack()


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("is_open", [False, True])
def test_reader_changes_nothing_and_does_not_lock_the_store(url: str, tmp_path: Path, is_open: bool) -> None:
    program = f"""
import os, tubes
tube = tubes.connect({url!r}).create_tube("t", "fifottl", max_attempts=1)
tube.put("a")
tube.take(0)
tube.put("b")
os._exit(0)
"""

    async def refused() -> None:
        async with tubes.aio.connect(url + "?mode=read") as queue:
            tube = await queue.tube("t")
            for change in (tube.put, tube.take, tube.delete, tube.join):
                with pytest.raises(tubes.StoreReadOnly):
                    await change(1)

    folder = tmp_path / "jobs"
    run_python(program)
    owner = tubes.connect(url)
    if not is_open:
        owner.close()
    files = [folder / "tubes.db"] if is_open else sorted(folder.iterdir())
    before = [file.read_bytes() for file in files]
    with tubes.connect(url + "?mode=read") as queue:
        tube = queue.tube("t")
        changes: list[Callable[[], object]] = [
            lambda: tube.put(1),
            lambda: tube.put_many([1]),
            lambda: tube.take(0),
            lambda: tube.take(1),
            lambda: tube.delete(0),
            lambda: tube.select("buried", limit=1).kick(),
            lambda: tube.truncate(),
            lambda: tube.drop(),
            lambda: tube.pause(1),
            tube.join,
            lambda: tube.on_task_change(print),
            lambda: queue.admin.repair("t"),
            lambda: queue.create_tube("u"),
            lambda: queue.create_tube("u", temporary=True),
            lambda: queue.create_tube("t", "fifottl", ttr=3, max_attempts=1, if_exists="update"),
        ]
        for change in changes:
            with pytest.raises(tubes.StoreReadOnly):
                change()
        asyncio.run(refused())
        assert [task.data for task in tube.select("buried")] == ["a"]
        assert (queue.tubes(), queue.admin.check("t")) == (["t"], [])
        assert is_open or sorted(folder.iterdir()) == files
        assert [file.read_bytes() for file in files] == before
        run_python(f"import tubes\ntubes.connect({url!r})") if not is_open else owner.tube("t").put("c")
        assert tube.statistics().tasks["total"] == 2
    owner.close()


def test_tube_with_partitions_cannot_be_changed_in_read_mode(url: str) -> None:
    with tubes.connect(url) as owner:
        owner.create_tube("t", partitions=3).put("a")  # Two of its partitions are not used yet.
    with tubes.connect(url + "?mode=read") as queue:
        tube = queue.tube("t")
        assert [task.data for task in tube.select()] == ["a"]
        assert tube.statistics().tasks["ready"] == 1
        changes: list[Callable[[], object]] = [
            lambda: tube.put(1),
            lambda: tube.put_many([1]),
            lambda: tube.take(0),
            lambda: tube.take(1),
            tube.select().delete,
            tube.truncate,
            tube.drop,
            lambda: tube.pause(1),
            lambda: tube.on_task_change(print),
        ]
        for change in changes:
            with pytest.raises(tubes.StoreReadOnly):
                change()
        assert tube.statistics().tasks["ready"] == 1


@pytest.mark.full
def test_reader_after_a_kill_ends_no_session(url: str) -> None:
    program = f"""
import os, tubes
tube = tubes.connect({url!r}).create_tube("t", max_attempts=1)
tube.put("a")
tube.take(0)
os._exit(0)
"""
    run_python(program)
    for _ in range(2):
        with tubes.connect(url + "?mode=read") as queue:
            assert queue.statistics("t").tasks["taken"] == 1
    with tubes.connect(url) as queue:
        assert queue.statistics("t").tasks["buried"] == 1


def test_read_mode_does_not_create_a_store(url: str, tmp_path: Path) -> None:
    for mode in ("read", "own&mode=read"):
        with pytest.raises(tubes.StoreFailed, match="there is no store in this folder"):
            tubes.connect(f"{url}?mode={mode}")
    for command in ("stats", "top"):
        ended = CliRunner().invoke(app, [command, "--url", url])
        assert ended.exit_code == 5
        assert "there is no store in this folder" in ended.stderr
    assert not list(tmp_path.iterdir())


#: Opens a store repeatedly, and prints the ids of tasks that it puts and acks.
BUSY = """
import sys, tubes
while True:
    with tubes.connect(sys.argv[1]) as queue:
        tube = queue.create_tube("t", "fifottl", if_exists="keep")
        for number in range(30):
            print("put", *(task.id for task in tube.put_many(["x" * 300] * 5)), flush=True)
            for task in tube.take_many(4, timeout=0):
                print("acking", task.id, flush=True)
                print("acked", task.ack().id, flush=True)
"""


@pytest.mark.full
def test_copies_and_readers_see_a_consistent_snapshot(url: str, tmp_path: Path) -> None:
    reported: dict[str, set[int]] = {"put": set(), "acking": set(), "acked": set()}

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            what, *ids = line.split()
            reported[what] |= set(map(int, ids))

    with subprocess.Popen([sys.executable, "-c", BUSY, url], stdout=subprocess.PIPE, text=True) as process:
        hearing = threading.Thread(target=listen)
        hearing.start()
        looks: list[tuple[set[int], set[int], set[int]]] = []
        while len(looks) < 24:
            put, acked = set(reported["put"]), set(reported["acked"])
            if not put:
                continue
            place = f"{url}?mode=read"
            if len(looks) % 2:
                place = f"file:{tmp_path / str(len(looks))}"
                back_up(tmp_path / "jobs", tmp_path / str(len(looks)), url)
            with tubes.connect(place) as queue:
                tube = queue.tube("t")
                there = {task.id for task in tube.select(limit=100_000)}
                calls, counts = tube.statistics().calls, tube.statistics().tasks
                assert calls["put"] - calls["ack"] == counts["total"] == len(there)
            looks.append((put, acked, there))
        process.kill()
        hearing.join()
    assert len({len(put) for put, _, _ in looks}) > 5
    for put, acked, there in looks:
        assert not acked & there
        assert put - there <= reported["acking"]


@pytest.mark.full
def test_top_shows_the_current_state_of_the_folder(url: str) -> None:
    command = [sys.executable, "-m", "tubes", "top", "--json", "--interval", "0.1", "--url", url]
    with tubes.connect(url) as queue, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        tube = queue.create_tube("t")
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["tasks"]["ready"] == 3:
                break
            if not tube.statistics().tasks["ready"]:
                tube.put_many(range(3))
        process.terminate()


@pytest.mark.full
def test_commands_can_read_and_copy_a_store_in_use(url: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--url", url])

    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(3))
        assert "t " in run("stats").stdout
        assert len(run("export", "t").stdout.splitlines()) == 3
        copy = tmp_path / "copy"
        nowhere = CliRunner().invoke(app, ["backup", str(copy), "--url", f"file:{tmp_path / 'typo'}"])
        assert nowhere.exit_code == 5
        assert not copy.exists()
        assert run("backup", str(copy)).exit_code == 0
        assert run("backup", str(copy)).exit_code == 5
        with tubes.connect(f"file:{copy}") as copied:
            assert copied.statistics("t").tasks["ready"] == 3
        command = [sys.executable, "-m", "tubes", "put", "t", "1", "--url", url]
        put = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert put.returncode == 5
        assert f"process {os.getpid()} has" in put.stderr
        assert tube.statistics().tasks["ready"] == 3
    assert run("put", "t", "1").exit_code == 0
    with tubes.connect(url) as queue:
        assert queue.statistics("t").tasks["ready"] == 4


def test_a_closed_store_has_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with tubes.connect(f"file:{tmp_path}") as queue, queue.session() as other:
        queue.create_tube("t").put_many(range(3))
        assert len(other.tube("t").take_many(2, timeout=0)) == 2
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before


def test_lease_ends_when_the_store_is_reopened(tmp_path: Path) -> None:
    """Even if the file has lost the take, and a new take has its number."""
    with tubes.connect(f"file:{tmp_path / 'store'}") as queue:
        tube = queue.create_tube("t")
        tube.put("job")
        shutil.copytree(tmp_path / "store", tmp_path / "before")
        task = take_task(tube)
        lease = task.lease
    with tubes.connect(f"file:{tmp_path / 'before'}") as queue:
        tube = queue.tube("t")
        task = take_task(tube)
        with pytest.raises(TaskNotTaken):
            tube.ack(lease)
        assert tube.ack(task.lease).data == "job"


@pytest.mark.full
def test_closed_store_is_garbage_collected(tmp_path: Path) -> None:
    with tubes.connect(f"file:{tmp_path}") as queue:
        queue.create_tube("mail").put(1)
        store = weakref.ref(port_of(queue.tube("mail")).connection.store)
    del queue
    gc.collect()
    assert store() is None


@pytest.mark.full
def test_unreferenced_store_stays_open(tmp_path: Path) -> None:
    tubes.connect(f"file:{tmp_path}").create_tube("mail")
    gc.collect()
    with tubes.connect(f"file:{tmp_path}") as queue:
        assert queue.tubes() == ["mail"]


def facts_of(tube: tubes.Tube) -> list[tuple[object, ...]]:
    """Return the attributes of the kept done tasks."""
    done = [*tube.select("done")]
    return [(task.id, repr(task), task.result, task.why, task.ended, task.ttl, task.created) for task in done]


def test_done_tasks_are_kept_with_their_results(url: str) -> None:
    clock = SteppingClock()
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.create_tube("t", "utubettl", keep_done=60)
        options: Any = {"pri": 3, "ttl": 90, "utube": "\ud800", "context": {"a": "b"}}
        for number, keep_done in enumerate((60, 10, 60)):
            tube.put(number, keep_done=keep_done, **options)
            clock.advance(1)
            tube.take(0).ack({"result": number})  # type: ignore[union-attr]
        tube.delete(tube.put("deleted"))
        tube.delete(2)
        before = facts_of(tube)
        assert [id for id, *_ in before] == [3, 0, 1]
    clock.advance(10)
    with tubes.connect(url, clock=clock) as queue:
        tube = queue.tube("t")
        assert facts_of(tube) == before[:2]
        again = tube.kick(task=0)
        assert (again.id, again.pri, again.utube, again.context) == (4, 3, "\ud800", {"a": "b"})
        clock.advance(60)
    with tubes.connect(url, clock=clock) as queue:
        assert queue.tube("t").statistics().kept == 0


@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_facts_of_checkpoints_survive_reopening(url: str, driver: str) -> None:
    saved = {"page": 7, "\ud800": ["ü", None]}
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t", driver)
        tube.put("film")
        with tube.taking(0) as task:
            task.checkpoint(saved, progress=0.5, note="\ud800")
            task.release()
        take_task(tube).checkpoint(progress=0.75)
    with tubes.connect(url) as queue:
        again = take_task(queue.tube("t"))
        assert (again.saved, again.progress, again.note, again.attempts) == (saved, 0.75, "\ud800", 3)


#: Puts a task, starts a child that runs until it is notified, and closes the store.
LEAVES_A_CHILD = """
import os, sys, tubes
queue = tubes.connect(sys.argv[1])
queue.create_tube("mail").put(0)
if not os.fork():
    os.close(1)
    sys.stdin.read()
    sys.exit()
queue.close()
print("closed", flush=True)
"""
KILLED = """
import os, sys, tubes
tube = tubes.connect(sys.argv[1]).tube("mail")
for number in range(20):
    tube.put(number)
os.kill(os.getpid(), 9)
"""


@pytest.mark.full
def test_child_that_outlives_its_parent_does_not_harm_the_next_owner(url: str) -> None:
    leaving = [sys.executable, "-c", LEAVES_A_CHILD, url]
    with subprocess.Popen(leaving, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.read() == b"closed\n"
        subprocess.run([sys.executable, "-c", KILLED, url], check=False)
        assert first.stdin is not None
        first.stdin.close()
        assert first.stderr is not None
        assert first.stderr.read() == b""  # The child has ended.
    with tubes.connect(url) as queue:
        assert queue.tube("mail").statistics().tasks["total"] == 21


@pytest.mark.parametrize("path", ["a%00b", "a%FFb"])
def test_path_that_is_not_a_file_name_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption, match="its path must"):
        tubes.connect(f"file:{path}")
    assert not list(tmp_path.iterdir())


def test_connect_waits_while_the_last_queue_closes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = tubes.connect(url)
    queue.create_tube("t").put(1)
    closing, go = threading.Event(), threading.Event()
    close = Database.close

    def slow(database: Database) -> None:
        closing.set()
        assert go.wait(60)
        close(database)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(Database, "close", slow)
        closed = threads.submit(queue.close)
        assert closing.wait(60)
        opened = threads.submit(tubes.connect, url)
        with pytest.raises(TimeoutError):
            opened.result(0.05)
        go.set()
        closed.result(60)
        with opened.result(60) as again:
            assert again.statistics("t").tasks["ready"] == 1


@pytest.mark.full
def test_owner_survives_readers_after_it_has_copied_its_folder(url: str, tmp_path: Path) -> None:
    """Closing a descriptor of `tubes.db-shm` drops the locks of the process: the next reader finds it unlocked."""
    owner = textwrap.dedent(
        """
        import shutil, subprocess, sys, tubes
        url, folder, copy, reader = sys.argv[1:]
        with tubes.connect(url) as queue:
            tube = queue.create_tube("t")
            tube.put_many(range(5000))
            shutil.copytree(folder, copy)
            reading = subprocess.Popen([sys.executable, "-c", reader, url])
            while reading.poll() is None:
                tube.put_many(range(50))
            assert reading.returncode == 0
            tube.put("last")
            print(tube.statistics().tasks["ready"])
        """
    )
    reader = textwrap.dedent(
        """
        import sys, tubes
        counts = []
        for _ in range(10):
            with tubes.connect(f"{sys.argv[1]}?mode=read") as queue:
                counts.append(queue.statistics("t").tasks["ready"])
        assert counts == sorted(counts)
        assert all(count % 50 == 0 and count >= 5000 for count in counts)
        """
    )
    words = [sys.executable, "-c", owner, url, str(tmp_path / "jobs"), str(tmp_path / "copy"), reader]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with tubes.connect(url) as queue:
        assert queue.statistics("t").tasks["ready"] == int(done.stdout)


def test_log_of_another_file_is_refused(url: str, tmp_path: Path) -> None:
    """SQLite would apply the log to any file next to it."""
    folder = tmp_path / "jobs"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(10))
        back_up(folder, tmp_path / "copy", url)
        tube.put("later")
        shutil.copytree(folder, tmp_path / "killed")
    file, log = (tmp_path / "killed" / name for name in ("tubes.db", "tubes.db-wal"))
    assert log.stat().st_size
    killed, reported = f"file:{tmp_path / 'killed'}", file.read_bytes()
    file.unlink()
    with pytest.raises(StoreFailed, match=r"restore the file, or remove 'tubes.db-wal'"):
        tubes.connect(killed)
    file.write_bytes(b"")
    with pytest.raises(StoreFailed, match="is empty"):
        tubes.connect(killed)
    shutil.copy(tmp_path / "copy" / "tubes.db", file)
    with pytest.raises(StoreFailed, match="restore it to an empty folder"):
        tubes.connect(killed)
    for use in (
        lambda: tubes.connect(f"{killed}?mode=read"),
        lambda: back_up(tmp_path / "killed", tmp_path / "other", killed),
        lambda: examine(tmp_path / "killed", killed),
        lambda: repair(tmp_path / "killed", killed),
    ):
        with pytest.raises(StoreFailed, match="restore it to an empty folder"):
            use()
    file.write_bytes(reported)
    with tubes.connect(killed) as queue:
        assert queue.statistics("t").tasks["ready"] == 11
    with tubes.connect(f"file:{tmp_path / 'copy'}") as queue:
        assert queue.statistics("t").tasks["ready"] == 10


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", ["stats", "check", "repair"])
def test_refusal_of_an_older_format_says_how_to_move_its_tasks(url: str, tmp_path: Path, command: str) -> None:
    tubes.connect(url).close()
    with closing(sqlite3.connect(tmp_path / "jobs" / "tubes.db")) as file:
        file.execute("PRAGMA user_version=1")
    ended = CliRunner().invoke(app, [command, "--url", url])
    assert ended.exit_code == 5
    assert "export its tasks with that release, and import them with this one" in ended.stderr


def test_symbolic_link_to_the_file_is_refused(url: str, tmp_path: Path) -> None:
    tubes.connect(url).close()
    (tmp_path / "jobs" / "tubes.db").rename(tmp_path / "elsewhere")
    (tmp_path / "jobs" / "tubes.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreFailed, match="link the folder instead"):
        tubes.connect(url)


def test_failed_backup_leaves_no_file_and_open_store_is_refused(url: str, tmp_path: Path) -> None:
    with tubes.connect(url) as queue:
        queue.create_tube("t").put(1)
        with tubes.connect(f"file:{tmp_path / 'open'}"), pytest.raises(tubes.StoreBusy):
            back_up(tmp_path / "jobs", tmp_path / "open", url)
        (tmp_path / "copy" / "tubes.db").mkdir(parents=True)
        with pytest.raises(StoreFailed, match="cannot be copied"):
            back_up(tmp_path / "jobs", tmp_path / "copy", url)
        assert not (tmp_path / "copy" / "tubes.new").exists()
