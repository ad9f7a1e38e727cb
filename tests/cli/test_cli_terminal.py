"""The command `tubes` in a real terminal, with a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.console import Console

import tubes
from tubes.cli.columns import Column, fit
from tubes.cli.exits import Exit
from tubes.cli.look import lanes_table
from tubes.testing import LocalServer

COMMAND = [sys.executable, "-m", "tubes"]
#: Seconds to wait for output of the terminal.
PATIENCE = 30


@pytest.fixture
def queue(url: str) -> Iterator[tubes.Queue]:
    with tubes.connect(url) as queue:
        yield queue


def environment(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return kept | {"TUBES_URL": url, "TERM": "xterm-256color"}


def terminal(url: str, *words: str, rows: int = 24, columns: int = 120) -> Any:
    return spawn(url, *COMMAND, *words, rows=rows, columns=columns)


def spawn(url: str, *words: str, rows: int = 24, columns: int = 120) -> Any:
    size = (rows, columns)
    program, *rest = words
    return pexpect.spawn(program, rest, env=environment(url), timeout=PATIENCE, dimensions=size, encoding="utf-8")


def wait_for_end(process: Any) -> int:
    process.expect(pexpect.EOF)
    process.close()
    code: int = process.exitstatus
    return code


@pytest.mark.full
def test_top_updates_until_q_is_pressed(url: str, queue: tubes.Queue) -> None:
    mail = queue.create_tube("mail")
    crawl = queue.create_tube("crawl", "utube")
    mail.put_many(range(41))
    crawl.put("/", utube="example.com")
    top = terminal(url, "top", "--interval", "0.1")
    top.expect("tubes top")
    top.expect(r"mail\b.*?\b41\b")
    top.expect("busiest lanes of crawl")
    top.expect("example.com")
    mail.take(timeout=0)
    mail.bury(40, "no such address")
    top.expect(r"mail\b.*?\b39\b.*?\b1\b.*?\b1\b")
    mail.pause()
    top.expect("paused")
    top.send("q")
    assert wait_for_end(top) == Exit.DONE


@pytest.mark.full
def test_ctrl_c_ends_top_and_restores_terminal(url: str, queue: tubes.Queue) -> None:
    queue.create_tube("mail")
    shell = spawn(url, "/bin/sh", "-i")
    shell.sendline(f"{' '.join(COMMAND)} top; echo code=$?")
    shell.expect("tubes top")
    shell.expect("mail")
    shell.sendintr()
    shell.expect(r"code=(\d+)")
    assert shell.match.group(1) == "0"
    shell.sendline("stty -a | tr ' ' '\\n' | grep icanon | sed s/^/mode:/")
    shell.expect(r"mode:(-?icanon)")
    assert shell.match.group(1) == "icanon"
    shell.sendline("exit")
    assert wait_for_end(shell) == 0


@pytest.mark.full
def test_top_shows_as_many_tubes_as_fit(url: str, queue: tubes.Queue) -> None:
    for number in range(30):
        queue.create_tube(f"tube-{number}")
    top = terminal(url, "top", rows=20)
    top.expect("and 16 tubes with fewer tasks")
    top.send("q")
    assert wait_for_end(top) == Exit.DONE


@pytest.mark.full
def test_top_continues_after_server_restart() -> None:
    with LocalServer() as server:
        with tubes.connect(server.url) as queue:
            queue.create_tube("mail").put(1)
        top = terminal(server.url, "top", "--interval", "0.1")
        top.expect("mail")
        server.kill()
        top.expect("no reply for")
        server.start()
        with tubes.connect(server.url) as queue:
            queue.create_tube("anew")
        top.expect("anew")
        top.send("q")
        assert wait_for_end(top) == Exit.DONE


@pytest.mark.full
def test_top_shows_how_long_server_has_not_responded() -> None:
    with LocalServer() as server:
        with tubes.connect(server.url) as queue:
            queue.create_tube("mail").put(1)
        top = terminal(server.url, "top", "--interval", "0.1")
        top.expect("mail")
        server.signal(signal.SIGSTOP)
        try:
            top.expect(r"mail.*no reply for \d\.\ds")  # The last data stay on the screen.
            top.expect(r"no reply for [2-9]\.\ds")
            top.send("q")
            assert wait_for_end(top) == Exit.DONE
        finally:
            server.signal(signal.SIGCONT)


@pytest.mark.full
def test_ctrl_c_ends_waiting_take(url: str, queue: tubes.Queue) -> None:
    mail = queue.create_tube("mail")
    take = terminal(url, "take", "mail", "--timeout", "60")
    while not mail.statistics().waiting:
        assert take.isalive()
    take.sendintr()
    take.expect("tubes: interrupted")
    assert wait_for_end(take) == Exit.INTERRUPTED
    assert "Traceback" not in take.before


@pytest.mark.full
def test_drop_does_nothing_if_not_confirmed(url: str, queue: tubes.Queue) -> None:
    mail = queue.create_tube("mail")
    mail.put(1)
    drop = terminal(url, "drop", "mail")
    drop.expect("drop tube 'mail' with 1 tasks. Continue?")
    drop.sendline("n")
    drop.expect("nothing was done")
    assert wait_for_end(drop) == Exit.NOTHING
    assert queue.tubes() == ["mail"]
    drop = terminal(url, "drop", "mail")
    drop.expect("Continue?")
    drop.sendline("y")
    assert wait_for_end(drop) == Exit.DONE
    assert queue.tubes() == []


@pytest.mark.full
def test_export_and_import_show_progress(url: str, queue: tubes.Queue, tmp_path: Path) -> None:
    queue.create_tube("many").put_many(range(2000))
    file = str(tmp_path / "tasks")
    export = terminal(url, "export", "many", file)
    export.expect("export many")
    export.expect("100%")
    export.expect("exported 2000 tasks of many")
    assert wait_for_end(export) == Exit.DONE
    back = terminal(url, "import", "copy", file, "--create", "fifo")
    back.expect("100%")
    back.expect("imported 2000 tasks into copy")
    assert wait_for_end(back) == Exit.DONE


@pytest.mark.full
def test_change_shows_progress_and_is_stopped_by_ctrl_c(url: str, queue: tubes.Queue) -> None:
    tube = queue.create_tube("many")
    for _ in range(10):
        tube.put_many(range(10_000))
    delete = terminal(url, "delete", "many")
    delete.expect("This will delete 100000 tasks of tube 'many'. Continue")
    delete.sendline("y")
    delete.expect(r"delete many: \d+ tasks deleted")
    delete.sendintr()
    delete.expect(r"tubes: interrupted: (\d+) tasks were deleted")
    deleted = int(delete.match[1])
    assert wait_for_end(delete) == Exit.INTERRUPTED
    assert tube.statistics().tasks["ready"] == 100_000 - deleted > 0


@pytest.mark.full
def test_terminal_shows_that_server_does_not_respond() -> None:
    stats = terminal("redis://127.0.0.1:1", "stats")
    stats.expect("no reply from 127.0.0.1:1 yet|no reply from redis://127.0.0.1:1 yet")
    stats.sendintr()
    assert wait_for_end(stats) == Exit.INTERRUPTED


@pytest.mark.full
def test_unreachable_server_is_reported_in_one_line() -> None:
    words = [*COMMAND, "stats", "--url", "redis://127.0.0.1:1"]
    run = subprocess.run(words, capture_output=True, text=True, check=False, env=environment(""))
    assert (run.returncode, run.stdout, len(run.stderr.splitlines())) == (Exit.UNREACHABLE, "", 1)
    assert run.stderr.startswith("tubes: there is no connection to redis://127.0.0.1:1")


@pytest.mark.full
def test_closed_output_pipe_ends_command_quietly(url: str, queue: tubes.Queue) -> None:
    queue.create_tube("many").put_many(["x" * 1000] * 6000)
    for words in (["export", "many"], ["peek", "many", "-n", "6000", "--json"]):
        command = subprocess.Popen(
            [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(url), text=True
        )
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.read(1)
        command.stdout.close()
        message = command.stderr.read()
        command.stderr.close()
        assert (command.wait(), message) == (Exit.BROKEN_PIPE, "")


@pytest.mark.full
def test_take_releases_tasks_that_could_not_be_printed(url: str, queue: tubes.Queue) -> None:
    many = queue.create_tube("many")
    many.put_many(["x" * 1000] * 1000)
    command = subprocess.Popen([*COMMAND, "take", "many", "-n", "1000"], stdout=subprocess.PIPE, env=environment(url))
    assert command.stdout is not None
    command.stdout.read(5000)
    command.stdout.close()
    assert command.wait() == Exit.BROKEN_PIPE
    tasks = many.statistics().tasks
    assert tasks["taken"] == 0
    assert 5 <= tasks["done"] < 1000
    assert tasks["ready"] + tasks["done"] == 1000


@pytest.mark.full
def test_shell_completes_tube_names(url: str, queue: tubes.Queue) -> None:
    for name in ("mail", "main", "other"):
        queue.create_tube(name)
    variables = environment(url) | {
        "_TUBES_COMPLETE": "complete_bash",
        "COMP_WORDS": "tubes stats ma",
        "COMP_CWORD": "2",
    }
    run = subprocess.run(COMMAND, env=variables, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["mail", "main"]
    variables |= {"COMP_WORDS": "tubes peek mail --state b", "COMP_CWORD": "4"}
    run = subprocess.run(COMMAND, env=variables, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["buried"]
    queue.create_tube("crawl", "utube").put_many([tubes.Item(0, utube=name) for name in ("ann", "bob")])
    variables |= {"COMP_WORDS": "tubes lane block crawl a", "COMP_CWORD": "4"}
    run = subprocess.run(COMMAND, env=variables, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["ann"]


@pytest.mark.full
def test_interrupted_take_leaves_no_task_taken(url: str, queue: tubes.Queue) -> None:
    mail = queue.create_tube("mail")
    words = [*COMMAND, "take", "mail", "--timeout", "60"]
    process = subprocess.Popen(words, env=environment(url), stderr=subprocess.PIPE)
    while not mail.statistics().waiting:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.read() == b"tubes: interrupted\n"
    process.stderr.close()
    assert process.wait() == Exit.INTERRUPTED
    mail.put(1)
    assert mail.statistics().tasks["ready"] == 1


#: Runs several commands in one process. Its stderr goes to the same terminal.
SEVERAL = """
import sys
from tubes.cli.app import app
for words in sys.argv[1:]:
    try:
        app(words.split())
    except SystemExit as end:
        assert not end.code, end.code
"""


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_ids_and_numbers_are_never_truncated(url: str, queue: tubes.Queue, columns: int) -> None:
    name = "a-tube-with-a-name-of-32-letters"
    tube = queue.create_tube(name, "utubettl", ttr=60, max_attempts=5)
    assert len(name) == 32
    tube.put_many([tubes.Item("d" * 70, utube="www.some-long-host-name.example.com", pri=1) for _ in range(10_000)])
    for number in (9_998, 9_999):
        tube.bury(number, "ValueError: there is no such address, and there never was one")
    queue.create_tube("paused").pause(1000)
    commands = [f"buried {name}", f"peek {name} 9997 9998", "stats", f"stats {name}", f"lanes {name}", "top --count 1"]
    screen = spawn(url, sys.executable, "-c", SEVERAL, *commands, columns=columns)
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen.before.splitlines()]
    message = [
        line for line in lines if not line.startswith("tubes: ")
    ]  # Without the notice that a busy machine prints.
    assert max(map(len, message)) <= columns
    rows = [line.split() for line in message]
    assert [row[0] for row in rows if "buried" in row[1:2]] == ["9998", "9999", "9998"]
    assert ["9997", "ready"] in [row[:2] for row in rows]
    assert ["total", "10000"] in rows
    # The tube occurs in `stats` and `top`, the lane in `lanes` and `top`.
    visible = [row for row in rows if row[0].startswith(("a-tube-with-", "www.some-long-"))]
    assert len(visible) == 4
    assert all("9998" in row for row in visible)
    words = [word for row in rows for word in row if not name.startswith(word.rstrip("…"))]
    assert not any(re.search(r"\d…", word) for word in words)


@pytest.mark.parametrize(
    ("width", "widths"),
    [
        (40, {0: 4, 1: 10, 2: 12, 3: 3}),
        (30, {0: 4, 1: 10, 2: 12}),  # Empty columns are dropped first.
        (24, {0: 4, 1: 10, 2: 6}),  # Then cells are truncated,
        (22, {0: 4, 2: 12}),  # down to a minimum width; then the least important column is dropped.
        (12, {0: 4, 2: 6}),
        (5, {0: 4, 2: 5}),  # narrower than any real terminal
    ],
)
def test_narrow_table_drops_columns_before_truncating_numbers(width: int, widths: dict[int, int]) -> None:
    columns = [
        Column("id", right=True),
        Column("why", drop_order=1),
        Column("data", min_width=5),
        Column("sec", drop_order=2),
    ]
    assert fit(columns, [4, 10, 12, 0], width) == widths


def test_passed_next_start_of_a_lane_is_now() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("crawl", "utube", interval=60)
        tube.put_many([1, 2], utube="a")
        tube.take()
        (lane,) = tube.lanes()
        assert lane.next_start is not None
        console = Console(width=120)
        with console.capture() as captured:
            console.print(lanes_table([lane], lane.next_start + 1.1))
        assert re.search(r"\bnow\b", captured.get())
        assert "ago" not in captured.get().splitlines()[-1]
