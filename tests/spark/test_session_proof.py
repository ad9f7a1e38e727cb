"""The final proof of the pipeline detects errors, and its job sorts results."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tubes

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

A, B = "http://h:1/a", "http://h:1/b"
#: A crawl of two pages that link to each other.
LINKS = {A: [B], B: [A]}


def request_log(proof: Any, *urls: str) -> list[Any]:
    """Return the request log of the server of one host."""
    seen = [proof.Fetch(url[-2:], 200, float(n), float(n), 0) for n, url in enumerate(urls)]
    return [proof.Record("http://h:1/", 1, seen)]


@pytest.mark.parametrize(
    ("stored", "requests", "dead", "verdicts"),
    [
        ([A, B], [A, B], [], "True True True True None True"),
        ([A, B, B], [A, B], [], "True False True True None True"),
        ([A, B], [A, B, B], [], "False True True True None True"),
        ([A], [A, B], [], "True True False False None True"),
        ([A], [A], [], "True True True False None True"),
        ([A, B], [A], [], "True True False True None True"),
        ([A], [A], [B], "True True True True False True"),
    ],
    ids=["right", "stored twice", "fetched twice", "lost", "not followed", "invented", "given up untried"],
)
def test_proof_detects_violations(
    stored: list[str],
    requests: list[str],
    dead: list[str],
    verdicts: str,
    spark: Any,
    queue: tubes.Queue,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The verdicts: fetched once, stored once, no page lost, links followed, dead pages given up, one in flight."""
    monkeypatch.syspath_prepend(EXAMPLES)
    findings, page_stream, proof = (import_module(name) for name in ("findings", "page_stream", "proof"))
    queue.create_tube("dead").put_many({"url": page, "attempt": 5, "outcome": "503"} for page in dead)
    pages = [(page, 1, 200, "200 OK", False, 0.0, 0.0, LINKS.get(page, [page])) for page in stored]
    spark.createDataFrame(pages, page_stream.RESULT).write.parquet(str(tmp_path / "pages"))
    checks = findings.Findings(spark, url, tmp_path, request_log(proof, *requests)).checks(5)
    assert " ".join(str(check.kept) for check in checks) == verdicts
    spark.catalog.clearCache()


def test_streaming_job_separates_pages_retries_and_dead_results(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    page_stream = import_module("page_stream")

    def result(number: int, **other: Any) -> str:
        facts = {"url": f"http://h:1/{number}", "attempt": 1, "status": 200, "final": False, "links": []}
        return json.dumps({**facts, **other})

    results = [
        result(1, links=["http://h:1/9", "http://h:1/9", "http://elsewhere/", "mailto:me", "http://h:1/ "]),
        result(2, status=503),
        result(3, status=503, attempt=2),
        result(4, status=0, attempt=page_stream.ATTEMPTS),
        result(5, status=404, final=True),
        "no JSON",
        "[]",
    ]
    rows = page_stream.classify(spark.createDataFrame([(text,) for text in results], "data string")).cache()
    kinds = ["page", "retry", "retry", "dead", "dead", "dead", "dead"]
    assert [row.kind for row in rows.collect()] == kinds
    links = page_stream.links_of(rows.where("kind = 'page'"), ["h:1"]).collect()
    assert [tuple(link) for link in links] == [("http://h:1/9", 1, "1 http://h:1/9", "h:1", None)]
    retries = page_stream.retries_of(rows.where("kind = 'retry'")).collect()
    assert [(task.key, task.utube, task.delay) for task in retries] == [
        ("2 http://h:1/2", "h:1", page_stream.RETRY_DELAY),
        ("3 http://h:1/3", "h:1", page_stream.RETRY_DELAY * 2),
    ]
    spark.catalog.clearCache()
