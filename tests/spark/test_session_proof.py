"""The proof that the pipeline ends with: it sees what is wrong."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tubes

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

A, B = "http://h:1/a", "http://h:1/b"
#: A crawl of two pages that link to each other.
LINKS = {A: [B], B: [A]}


def fetches(proof: Any, *urls: str) -> list[Any]:
    """What the server of one host has seen."""
    seen = [proof.Fetch(url[-2:], 200, float(n), float(n), 0) for n, url in enumerate(urls)]
    return [proof.Record("http://h:1/", 1, seen)]


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
