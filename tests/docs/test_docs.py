"""The documents are correct: their examples run, and their diagram equals the table."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tubes
from tests.support.internals import PARTS
from tubes.drivers.moves import MOVES
from tubes.testing import LocalServer

ROOT = Path(__file__).parent.parent.parent
#: All pages; the examples of pages outside `ELSEWHERE` run here.
DOCUMENTS = [
    "README.md",
    "drivers/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")),
]
#: Pages whose blocks run in other tests: one needs Spark, the others contain files and their tests.
ELSEWHERE = {
    "docs/spark.md": "spark/test_session.py",
    "docs/howto/spark-production.md": "spark/test_session.py",
    "docs/howto/spark-kafka.md": "spark/test_session.py",
    "docs/howto/crawlee.md": "crawl/test_crawlee.py",
    "docs/howto/scrapy.md": "crawl/test_scrapy.py",
    "docs/testing.md": "testing/test_pytest_plugin.py",
    "docs/dashboard.md": "serve/test_ui.py",
    **{f"docs/howto/{name}.md": "docs/test_frameworks.py" for name in ("django", "fastapi", "flask")},
}
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = [page for page in DOCUMENTS if page not in ELSEWHERE and FENCE.search((ROOT / page).read_text())]


def modules() -> list[ModuleType]:
    """Return the modules whose docstrings have examples."""
    names = [info.name for info in pkgutil.walk_packages(tubes.__path__, "tubes.")]
    found = [importlib.import_module(name) for name in ["tubes", *names]]
    return [module for module in found if ">>> " in inspect.getsource(module)]


@pytest.mark.sample(36)
@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_examples_in_docstrings_run(module: ModuleType, server: LocalServer) -> None:
    server.client().flushall()
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        for example in test.examples:
            example.source = example.source.replace("redis://localhost", server.url)
        runner.run(test)
    assert runner.failures == 0


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """Start the server that documents call `redis://localhost`."""
    with LocalServer() as server:
        yield server


@pytest.mark.full
@pytest.mark.parametrize("document", PROGRAMS)
def test_examples_in_documents_run(
    document: str, server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server.client().flushall()
    blocks = FENCE.findall((ROOT / document).read_text())
    names: dict[str, object] = {"__name__": document}
    for block in blocks:
        exec(compile(block.replace("redis://localhost", server.url), document, "exec"), names)


def test_the_tutorial_can_be_typed_into_a_prompt(server: LocalServer) -> None:
    server.client().flushall()
    page = (ROOT / "docs/tutorial.md").read_text()
    # The empty line after a block ends its indented code.
    typed = "".join(f"{block}\n" for block in FENCE.findall(page)).replace("redis://localhost", server.url)
    prompt = [sys.executable, "-i", "-q"]
    run = subprocess.run(prompt, input=typed, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert run.returncode == 0
    # Only the errors that the page announces.
    assert "a line for each failed first attempt, with its `OSError`" in page.partition("def welcome")[0]
    errors = re.findall(r"\b(\w*(?:Error|Exception|Warning)\b.*)", run.stderr)
    assert errors == ["OSError: the mail server is down"] * 2, run.stderr
    for expected in ("mail to ann", "resize cat.png to 200", "cid", "bob no such address", "{'order': 8}"):
        assert expected in run.stdout.splitlines()


@pytest.mark.parametrize(("document", "test"), ELSEWHERE.items())
def test_remaining_documents_are_covered_by_other_tests(document: str, test: str) -> None:
    assert Path(document).stem in (ROOT / "tests" / test).read_text()


def test_links_in_documents_lead_to_files() -> None:
    for document in (*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"):
        links = [link for link in re.findall(r"\]\(([^)]+)\)", (ROOT / document).read_text()) if "://" not in link]
        folder = (ROOT / document).parent
        assert [link for link in links if not folder.joinpath(link.partition("#")[0]).exists()] == [], document


def cells(heading: str) -> set[str]:
    """Return the code in the first column of the table under this heading cell."""
    table = (ROOT / "docs/redis.md").read_text().split(f"\n| {heading} |")[1].split("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_key_table_lists_all_keys_used_by_scripts() -> None:
    lua = "".join(path.read_text() for path in (ROOT / "drivers/lua").glob("*.lua"))
    named = set(re.findall(r"\b(?:K|Call\.keys)\.(\w+)", lua)) | {*PARTS}
    assert cells("key") == {f"tubes:{{name}}:{key}" for key in named} | {
        "tubes:names",
        "tubes:namespaces",
        "tubes:rate:<token>:<right>",
        "tubes:{name}:chunks:<write>",
        "tubes:{name}:skipped:<stream>",
        "tubes:{name}:staged:<batch>",
        "tubes:{name}:stream:<name>",
        "tubes:{name}:wake:<process>",
        "tubes:{name}:written:<writer>",
        "tubes:session:<uuid>",
        "tubes:{name}",
    }


def test_field_table_lists_all_fields_of_meta_hash(server: LocalServer) -> None:
    """Check the hash after all calls on a tube."""
    client: Any = server.client()
    client.flushall()
    driver = tubes.Driver("all", options={"lane", "ttl", "ttr", "delay", "pri", "capacity", "timeout"}, lane="lane")
    with tubes.connect(server.url) as queue, ThreadPoolExecutor() as pool:
        tube, list_tube = (
            queue.create_tube("all", driver, capacity=4, order="round_robin"),
            queue.create_tube("list", rate=1000),
        )
        tube.on_task_change(lambda task, event: None)
        for number in range(4):
            lane: dict[str, Any] = {"lane": str(number // 2)}
            tube.put(number, ttl=60, delay=number // 3, **lane)
        putting = pool.submit(tube.put, 4, timeout=9)
        while not client.hexists("tubes:{all}", "filling"):
            time.sleep(0.01)
        tube.take(timeout=0).ack()  # type: ignore[union-attr]
        assert putting.result() is not None
        tube.bury(1)
        tube.select("buried", limit=1).kick()
        taken = tube.take(timeout=0)
        assert taken is not None
        taken.touch(1)
        taken.release()
        tube.delete(taken)
        list_tube.put(1)
        list_tube.take(timeout=0).release()  # type: ignore[union-attr]
        list_tube.truncate()
        assert list_tube.take(timeout=0.1) is None
        list_tube.pause()
        tube.lane("0").configure(capacity=9)
        with tubes.connect(server.url) as joined:
            joined.admin.identify(queue.admin.identify())
            joined.tube("all").statistics()
        fields = {field.decode() for name in ("all", "list") for field in client.hkeys(f"tubes:{{{name}}}")}
    # A session's number, the tube's creation time, a caller and a slot; a uuid; a counted call.
    shapes = {
        r"s\d+\.\d+\.[0-9a-f]{16}": "s<number>.<born>.<uuid>",
        r"u[0-9a-f]{32}": "u<uuid>",
        r"calls:\w+": "calls:…",
    }
    shapes |= {r"as\d+\.\d+\.[0-9a-f]{16}\.\w+\.\w+": "as<number>.<born>.<uuid>.<caller>.<slot>"}
    for shape, documented in shapes.items():
        fields = {documented if re.fullmatch(shape, field) else field for field in fields}
    # `strays` is counted from the first task that comes back to its place, and not after a truncate; `oldest` is noted
    # where more than a thousand tasks are looked at; `late` where a ttl has spared a taken task; `reapply` and
    # `recount` go soon; `damaged` after a refused command.
    assert cells("field of the meta hash") == fields | {"strays", "oldest", "late", "reapply", "recount", "damaged"}


@pytest.mark.parametrize("kept", [True, False])
def test_appendonly_setting_decides_whether_crash_loses_tasks(kept: bool) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always"} if kept else {}
    with LocalServer(**settings) as server, tubes.connect(server.url) as queue:
        queue.create_tube("mail").put("to ann")
        server.kill()
        server.start()
        assert queue.tubes() == (["mail"] if kept else [])


@pytest.mark.parametrize("place", ["memory", "server"])
def test_readme_example_prints_stated_output_on_each_backend(
    place: str, server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.client().flushall()
    text = "".join(FENCE.findall((ROOT / "README.md").read_text()))
    url = repr(server.url) if place == "server" else ""
    exec(compile(text.replace("tubes.connect()", f"tubes.connect({url})"), "README.md", "exec"), {})
    stated = re.findall(r"print\(.*\)  # (.*)", text)
    assert len(stated) == 4
    assert capsys.readouterr().out.splitlines() == stated


def test_the_readme_is_short_and_shows_well_on_a_package_index() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 160
    # A package index shows no diagrams.
    assert "```mermaid" not in text
    # A release names the files by their addresses in the repository.
    script = [sys.executable, str(ROOT / ".ci/release_readme.py"), "https://example.com/tubes", "v1.2"]
    released = subprocess.run(script, input=text, capture_output=True, text=True, check=True).stdout
    links = re.findall(r"\]\(([^)]+)\)", released)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert "](https://example.com/tubes/blob/v1.2/docs/tutorial.md)" in released
    assert "](https://example.com/tubes/raw/v1.2/docs/_static/dashboard-lanes.png)" in released


def used_names(code: str) -> set[str]:
    """Return the imported names, attributes and keywords of a program, except keywords of its own functions."""
    nodes = list(ast.walk(ast.parse(code)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    own = {argument.arg for node in functions for argument in node.args.args}
    imported = {name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return imported | attributes | {str(node.arg) for node in nodes if isinstance(node, ast.keyword)} - own


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_first_pages_begin_with_the_names_of_one_table(document: str) -> None:
    before, _, after = (ROOT / "docs/tutorial.md").read_text().partition("| name | meaning |")
    table = {name.rpartition(".")[2] for name in re.findall(r"^\| `([\w.]+)` \|", after, re.MULTILINE)}
    assert len(table) <= 15
    page = before if document == "docs/tutorial.md" else (ROOT / document).read_text()
    missing, blocks = set(table), FENCE.findall(page)
    while missing and blocks:
        names = used_names(blocks.pop(0))
        assert names <= table
        missing -= names
    assert missing == set()


def test_state_diagram_matches_transition_table() -> None:
    text = (ROOT / "docs/explanation/states.md").read_text()
    drawn = re.findall(r"^    (\S+) --> (\S+): (\w+)$", text, re.MULTILINE)
    names = {None: "[*]", "r": "r", "t": "t", "!": "b", "~": "d", "-": "[*]"}
    table = [
        (names[was and was.letter], names[move.to.letter], why)
        for why, rows in MOVES.items()
        for was, move in rows.items()
    ]
    assert sorted(drawn) == sorted(table)
