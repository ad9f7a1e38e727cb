"""The example of a data pipeline on Spark, run as a program."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

parquet: Any = import_module("pyarrow.parquet")
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment with a new folder for temporary files."""
    scratch.mkdir()
    return os.environ | {"TMPDIR": str(scratch)}


def run(command: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment(scratch))


def processes_of(scratch: Path) -> Iterator[str]:
    """Yield the command lines of running processes that were started with this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={scratch}\0".encode() in (process / "environ").read_bytes():
                yield (process / "cmdline").read_text().replace("\0", " ")
        except OSError:  # The process has ended, or belongs to another user.
            continue


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait up to a minute for the condition. Return True if it holds."""
    ends = time.monotonic() + 60
    while not (true := condition()) and time.monotonic() < ends:
        time.sleep(0.02)
    return true


def test_killed_pipeline_resumes_and_leaves_only_its_parquet_files(tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    program = [sys.executable, str(EXAMPLES / "pipeline.py"), "--keep", str(kept), "--kill-at", "8"]
    ended = run([*program, "--pages", "24", "--hosts", "2", "--interval", "0.05", "--workers", "4"], scratch)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert ended.stdout.count(" yes ") == 6
    before, _, after = ended.stdout.partition("killed by SIGKILL, with ")
    assert " results saved in " in before
    assert ", again: the job ended before its commit\n" in after
    assert "; waiting for Spark to start" in before
    assert before.count("Spark has started") == after.count("Spark has started") == 1
    # The first run may be killed before it has printed its last batches. The second one repeats the killed batch.
    batches = {int(number) for number in re.findall(r"batch +(\d+) ", after)}
    assert batches == set(range(min(batches), max(batches) + 1)), "the killed batch has a line, too"
    # Other programs read the folder, too: an aborted batch must not leave files.
    pages = parquet.read_table(list((kept / "pages").glob("*/*.parquet")), columns=["url", "links"]).to_pylist()
    assert f"{len(pages)} URLs fetched once, 0 again" in ended.stdout
    assert len({page["url"] for page in pages}) == len(pages) > 12
    assert sorted(path.name for path in kept.iterdir()) == ["checkpoint", "pages"]
    assert list(scratch.iterdir()) == []
    assert list(processes_of(scratch)) == []


def test_sigterm_ends_all_started_processes(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    command = [sys.executable, str(EXAMPLES / "pipeline.py"), "--pages", "40", "--hosts", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(scratch)) as process:
        # The JVM of the job is started last.
        assert wait_until(lambda: any("/bin/java " in found for found in processes_of(scratch)))
        process.terminate()
        assert process.wait(60) == 143
    assert list(scratch.iterdir()) == []
    assert wait_until(lambda: not list(processes_of(scratch)))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tube-url", "memory://"], "--tube-url: 'memory://' belongs to one process, but Spark uses several"),
        (["--keep", "."], "--keep: '.' already exists"),
        (["--pages", "0"], "--pages: '0' must be a whole number, at least 1"),
    ],
)
def test_invalid_arguments_are_reported(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    ended = run([sys.executable, str(EXAMPLES / "pipeline.py"), *arguments], tmp_path / "scratch")
    assert ended.returncode == 2
    assert complaint in ended.stderr
