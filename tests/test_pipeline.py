"""The data pipeline on Spark, as a user runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("spark")
parquet: Any = import_module("pyarrow.parquet")
EXAMPLES = Path(__file__).parent.parent / "examples"


def run(command: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run it with a folder of its own for what is temporary."""
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def processes_of(scratch: Path) -> Iterator[str]:
    """What still runs of all that was started with this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={scratch}\0".encode() in (process / "environ").read_bytes():
                yield (process / "cmdline").read_text().replace("\0", " ")
        except OSError:  # It has ended meanwhile, or is not ours.
            continue


def test_the_pipeline_proves_its_point_and_leaves_nothing_but_its_parquet(tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    program = [sys.executable, str(EXAMPLES / "pipeline.py"), "--keep", str(kept)]
    ended = run([*program, "--pages", "40", "--hosts", "2", "--interval", "0.05", "--workers", "4"], scratch)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert ended.stdout.count(" yes ") == 8
    # Files that are not in `_spark_metadata` would be of batches that were broken off: here there were none.
    pages = parquet.read_table(list((kept / "pages").glob("*.parquet")), columns=["url", "links"]).to_pylist()
    assert f"{len(pages)} URLs answered once, 0 again" in ended.stdout
    assert len({page["url"] for page in pages}) == len(pages) > 20
    assert parquet.read_table(list((kept / "links").glob("*.parquet"))).num_rows > len(pages)
    assert sorted(path.name for path in (kept / "checkpoints").iterdir()) == ["frontier", "links", "pages"]
    assert list(scratch.iterdir()) == []
    assert list(processes_of(scratch)) == []


#: Findings on a crawl of two pages that link to each other, of which one thing is not as it should be.
WRONG = """
import asyncio, sys
from pathlib import Path
import local_spark, proof
from findings import Findings
from page_stream import PAGE, PageStream, links_of
import tubes

A, B = "http://h:1/a", "http://h:1/b"
LINKS = {A: [B], B: [A]}

def fetches(*urls):
    seen = [proof.Fetch(url[-2:], 200, float(n), float(n), 0) for n, url in enumerate(urls)]
    return [proof.Record("http://h:1/", 1, seen)]

async def main(folder):
    with tubes.testing.LocalServer() as server, tubes.connect(server.url) as queue:
        queue.create_tube("frontier", "utubettl")
        async with local_spark.running(folder) as spark:
            def verdicts(name, stored, requests, plain, linked=LINKS):
                stream = PageStream(spark, server.url, "frontier", "results", folder / name)
                for path, urls in ((stream.pages, stored), (stream.links, linked)):
                    rows = [(url, 200, 0.0, 0.0, 1, LINKS.get(url, [url]), "h:1") for url in urls]
                    frame = spark.createDataFrame(rows, PAGE)
                    (frame if path == stream.pages else links_of(frame, ["h:1"])).write.parquet(path)
                findings = Findings(stream, fetches(*requests), dict.fromkeys(plain, 200))
                print(name, *(check.kept for check in findings.checks(0, 5)))
                spark.catalog.clearCache()
            verdicts("right", [A, B], [A, B], [A, B])
            verdicts("stored-twice", [A, B, B], [A, B], [A, B])
            verdicts("fetched-twice", [A, B], [A, B, B], [A, B])
            verdicts("lost", [A], [A, B], [A, B])
            verdicts("not-followed", [A], [A], [A])
            verdicts("invented", [A, B], [A], [A])

asyncio.run(main(Path(sys.argv[1])))
"""


def test_the_proof_sees_what_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n{WRONG}", str(folder)]
    ended = run(command, tmp_path / "scratch")
    assert (ended.returncode, ended.stderr) == (0, "")
    # Fetched once; stored once; none lost of the hosts', of the plain crawl's; links followed; buried; one in flight.
    assert ended.stdout.splitlines() == [
        "right True True True True True None True",
        "stored-twice True False True True True None True",
        "fetched-twice False True True True True None True",
        "lost True True False False False None True",
        "not-followed True True True True False None True",
        "invented True True False False True None True",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tube-url", "memory://"], "--tube-url: 'memory://' is one process's own, and Spark is others"),
        (["--keep", "."], "--keep: '.' is there already"),
        (["--pages", "0"], "--pages: '0' must be a whole number, at least 1"),
    ],
)
def test_the_command_line_says_what_is_wrong_with_it(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    ended = run([sys.executable, str(EXAMPLES / "pipeline.py"), *arguments], tmp_path / "scratch")
    assert ended.returncode == 2
    assert complaint in ended.stderr
