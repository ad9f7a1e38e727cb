"""The data pipeline on Spark, as a user runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tubes

from .conftest import in_session, on_its_own, spark_home

parquet: Any = import_module("pyarrow.parquet")
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(command: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run it with a folder of its own for what is temporary."""
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "SPARK_HOME": spark_home().name}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def processes_of(scratch: Path) -> Iterator[str]:
    """What still runs of all that was started with this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={scratch}\0".encode() in (process / "environ").read_bytes():
                yield (process / "cmdline").read_text().replace("\0", " ")
        except OSError:  # It has ended meanwhile, or is not ours.
            continue


@on_its_own
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


A, B = "http://h:1/a", "http://h:1/b"
#: A crawl of two pages that link to each other.
LINKS = {A: [B], B: [A]}


def fetches(proof: Any, *urls: str) -> list[Any]:
    """What the server of one host has seen."""
    seen = [proof.Fetch(url[-2:], 200, float(n), float(n), 0) for n, url in enumerate(urls)]
    return [proof.Record("http://h:1/", 1, seen)]


@in_session
@pytest.mark.parametrize(
    ("stored", "requests", "plain", "verdicts"),
    [
        ([A, B], [A, B], [A, B], "True True True True True None True"),
        ([A, B, B], [A, B], [A, B], "True False True True True None True"),
        ([A, B], [A, B, B], [A, B], "False True True True True None True"),
        ([A], [A, B], [A, B], "True True False False False None True"),
        ([A], [A], [A], "True True True True False None True"),
        ([A, B], [A], [A], "True True False False True None True"),
    ],
    ids=["right", "stored twice", "fetched twice", "lost", "not followed", "invented"],
)
def test_the_proof_sees_what_is_wrong(
    stored: list[str],
    requests: list[str],
    plain: list[str],
    verdicts: str,
    spark: Any,
    queue: tubes.Queue,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fetched, stored once; none of the hosts', of the plain crawl's is lost; links followed; buried; one in flight."""
    monkeypatch.syspath_prepend(EXAMPLES)
    findings, page_stream, proof = (import_module(name) for name in ("findings", "page_stream", "proof"))
    queue.create_tube("frontier", "utubettl")
    stream = page_stream.PageStream(spark, url, "frontier", "results", tmp_path)
    for path, urls in ((stream.pages, stored), (stream.links, LINKS)):
        rows = [(page, 200, 0.0, 0.0, 1, LINKS.get(page, [page]), "h:1") for page in urls]
        frame = spark.createDataFrame(rows, page_stream.PAGE)
        (frame if path == stream.pages else page_stream.links_of(frame, ["h:1"])).write.parquet(path)
    checks = findings.Findings(stream, fetches(proof, *requests), dict.fromkeys(plain, 200)).checks(0, 5)
    assert " ".join(str(check.kept) for check in checks) == verdicts
    spark.catalog.clearCache()


@on_its_own
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
