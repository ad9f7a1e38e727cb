"""The pytest plugin: its fixtures on both backends, and the examples in its manual."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from unittest.mock import ANY

import pytest

import tubes
from tubes.testing import (
    LocalServer,
    ManualClock,
    assert_buried,
    assert_counts,
    assert_empty,
    assert_put,
    isolated,
    run_until_empty,
)
from tubes.worker import Worker

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent.parent
#: False if tubes is on the path but not installed: pytest does not find the plugin by itself then.
IS_INSTALLED = bool(entry_points(group="pytest11", name="tubes"))
PLUGIN = ("-p", "tubes_pytest")
STRICT = ("-p", "no:cacheprovider", "-W", "error")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(ROOT), str(ROOT / "tubes/testing/discovery"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    # Importing the other installed plugins would take longer than these tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *words: str, **outcomes: int) -> pytest.RunResult:
    result = pytester.runpytest_subprocess(*PLUGIN, *STRICT, *words)
    result.assert_outcomes(**outcomes)
    return result


@pytest.fixture
def page(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with the files that the manual shows."""
    text = (ROOT / "docs/testing.md").read_text()
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["mailer.py", "test_mailer.py", "test_aio.py", "test_retries.py"]
    assert len(blocks) == text.count("```python")
    for name, block in blocks:
        (pytester.path / name).write_text(block)
    return pytester


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["memory", "file", "server", "url", "configuration", "processes"])
def test_the_page_runs_as_a_test(page: pytest.Pytester, valkey: LocalServer, place: str) -> None:
    words = {
        "memory": ("--tubes-url=memory",),
        "file": ("--tubes-url=file",),
        "server": ("--tubes-url=server",),
        "url": (f"--tubes-url={valkey.url}?prefix=mine",),
        "configuration": (),
        "processes": ("-p", "xdist", "-n", "2", "--tubes-url=redis"),
    }[place]
    if place == "configuration":
        page.makeini("[pytest]\ntubes_url = server\n")
    run(page, *words, passed=9)
    assert valkey.client().keys("mine*") == []


def test_page_shows_actual_assertion_message() -> None:
    with tubes.connect() as queue:
        mail = queue.create_tube("mail")
        mail.put({"to": "ann"}, key="ann")
        with pytest.raises(AssertionError) as caught:
            assert_put(mail, {"to": "bob"})
    message = "AssertionError: " + str(caught.value)
    assert "\n".join(f"    {line}" for line in message.splitlines()) in (ROOT / "docs/testing.md").read_text()


def test_run_until_empty_waits_for_busy_lanes_and_reports_tasks_that_cannot_be_taken() -> None:
    clock = ManualClock()
    with tubes.connect(clock=clock) as queue:
        pages = queue.create_tube("pages", "utube", interval=10, max_attempts=2)
        worker = Worker(queue)
        worker.on(pages, lambda task: 1 / task.data)
        pages.put_many([1, 2, 0], utube="example.com")
        summary = run_until_empty(worker, pages, clock)
        assert (summary.acked, summary.released, summary.buried, clock.now()) == (2, 1, 1, 30)
        pages.put(1, utube="example.com")
        pages.pause()
        with pytest.raises(AssertionError, match="the worker cannot finish the tasks of tube 'pages'; there is:"):
            run_until_empty(worker, pages, clock)


def test_run_until_empty_gives_up_if_tasks_fail_or_wait_for_ever() -> None:
    clock = ManualClock()
    with tubes.connect(clock=clock) as queue:
        worker = Worker(queue)
        worker.on(queue.create_tube("mail"), lambda task: 1 / 0)
        queue.tube("mail").put("to ann")
        worker.task("resize")(lambda: None)
        queue.enqueue("resiez")
        for name in ("mail", "tasks"):
            with pytest.raises(AssertionError, match="cannot finish"):
                run_until_empty(worker, queue.tube(name), clock)


@pytest.mark.full
def test_tests_do_not_see_each_others_tubes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(3))
        def test(tubes_queue, number):
            assert tubes_queue.tubes() == []
            tubes_queue.create_tube("mail").put(number)
            tubes_queue.tube("mail").take(timeout=0)  # A tube that is busy is removed too.

        def test_that_closes_its_queue(tubes_queue):
            tubes_queue.create_tube("mail")
            tubes_queue.close()
        """
    )
    run(pytester, passed=4)
    run(pytester, "--tubes-url=server", passed=4)


@pytest.mark.full
def test_manual_clock_is_used_only_on_request(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import time

        import pytest

        @pytest.fixture
        def mail(tubes_queue):
            return tubes_queue.create_tube("mail", "fifottl")

        def test_without(mail):
            assert abs(mail.put(1).created - time.time()) < 60

        def test_with(mail, tubes_clock):
            assert mail.put(1).created == 0
            tubes_clock.advance(5)
            assert mail.put(2).created == 5

        def test_with_both_faces(tubes_aio_queue, tubes_clock, tubes_queue):
            tube = tubes_queue.create_tube("mail")
            tubes_clock.advance(5)
            assert tube.put(2).created == 5
        """
    )
    run(pytester, passed=3)
    run(pytester, "--tubes-url=server", passed=3)


@pytest.mark.full
def test_a_server_serves_the_whole_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test(tubes_server, number):
            assert tubes_server.client().incr("tests") == number + 1
        """
    )
    run(pytester, passed=2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("processes", [(), ("-p", "xdist", "-n", "2")], ids=["one", "several"])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("memroy", "ERROR: --tubes-url: url='memroy': must be one of memory, *"),
        ("redis://127.0.0.1:1", "ERROR: --tubes-url: there is no connection to redis://127.0.0.1:1*refused*"),
    ],
)
def test_unreachable_url_ends_session_with_one_line(
    pytester: pytest.Pytester, place: str, message: str, processes: tuple[str, ...]
) -> None:
    pytester.makepyfile("import pytest\n\n@pytest.mark.parametrize('_', range(3))\ndef test(tubes_queue, _): pass")
    result = pytester.runpytest_subprocess(*PLUGIN, *STRICT, f"--tubes-url={place}", *processes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    result.stderr.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


@pytest.mark.full
def test_configured_url_is_tried_once_and_only_on_demand(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntubes_url = redis://127.0.0.1:1\n")
    pytester.makeconftest(
        """
        import tubes

        tried, connect = [], tubes.connect

        def counting(url, **options):
            tried.append(url)
            return connect(url, **options)

        tubes.connect = counting
        """
    )
    pytester.makepyfile(
        """
        import pytest
        from conftest import tried

        def test_without(): assert not tried

        @pytest.mark.parametrize("_", range(3))
        def test_with(tubes_queue, _): pass

        def test_once(): assert len(tried) == 1
        """
    )
    result = run(pytester, passed=2, errors=3)
    result.stdout.fnmatch_lines(["tubes_url: there is no connection to redis://127.0.0.1:1*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_unused_plugin_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test():
            assert [name for name in sys.modules if name.partition(".")[0] in ("tubes", "redis")] == []
        """
    )
    run(pytester, passed=1)


@pytest.mark.full
def test_the_plugin_needs_no_redis_in_memory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test(tubes_queue, tubes_clock): assert 'redis' not in sys.modules")
    run(pytester, passed=1)


@pytest.mark.full
@pytest.mark.skipif(not IS_INSTALLED, reason="tubes is not installed")
def test_plugin_is_autoloaded_and_can_be_disabled(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile("def test(tubes_queue): pass")
    words = (*STRICT, "-p", "no:schemathesis")
    pytester.runpytest_subprocess(*words).assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess(*words, "-p", "no:tubes")
    result.stdout.fnmatch_lines(["*fixture 'tubes_queue' not found*"])


@pytest.mark.parametrize("place", ["memory://?codec=json", "server"])
def test_isolation_also_removes_namespaces(place: str, valkey: LocalServer) -> None:
    place = f"{valkey.url}?namespace=mine" if place == "server" else f"{place}&namespace=mine"
    with isolated(place) as url, tubes.connect(url) as queue, queue.namespace("other") as other:
        queue.create_tube("mail").put("to ann")
        other.create_tube("mail").put("to bob")
        assert queue.admin.namespaces() == ["mine", "other"]
    with tubes.connect(url) as queue:
        assert (queue.tubes(), queue.admin.namespaces()) == ([], [])


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("memory", "memory"), ("file", "file"), ("redis", "unix"), ("valkey", "unix"), ("server", "unix")],
)
def test_short_names_stand_for_temporary_stores(name: str, scheme: str) -> None:
    with isolated(name) as url, tubes.connect(url) as queue:
        assert url.startswith(f"{scheme}:")
        queue.create_tube("mail").put("to ann")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("valky", "'valky': must be one of memory"),
        ("rdis://localhost", "'rdis://localhost': must be memory://"),
        ("redis:localhost", "'redis:localhost': must have two slashes"),
        ("rdis://who:pw@localhost", r"'rdis://\*\*\*': must be memory://"),
        ("redis://localhost?pw", r"'redis://\*\*\*': cannot be read"),
    ],
)
def test_wrong_short_name_is_shown_as_typed_without_password(url: str, shown: str) -> None:
    with pytest.raises(tubes.InvalidOption, match=f"url={shown}"), isolated(url):
        pass


def test_isolation_extends_existing_prefix(url: str) -> None:
    with isolated(url) as own:
        assert own.startswith(f"{url}-test-")
        with tubes.connect(own) as queue:
            queue.create_tube("mail").put(1)
    with tubes.connect(own) as queue:
        assert queue.tubes() == []


def test_asserts_find_matching_tasks() -> None:
    with tubes.connect(codec="json") as queue:
        tube = queue.create_tube("crawl", "utubettl")
        tube.put("/", utube="a", pri=2)
        tube.put("/b", utube="b", delay=5)
        tube.put("/c", utube="c").bury("gone")
        assert assert_put(tube, "/", utube="a", pri=2).id == 0
        assert assert_put(tube, ANY, state="delayed").id == 1
        assert assert_put(tube, state="buried").id == 2
        assert assert_buried(tube, "/c", reason="gone").id == 2
        assert_counts(tube, ready=1, delayed=1, buried=1, taken=0, done=0, total=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tube: assert_put(tube, "/x"), "no task of tube 'mail' has data='/x'; there is:\n  0 ready '/' pri=3"),
        (lambda tube: assert_put(tube, "/", state="taken"), "no taken task of tube 'mail' has data='/'; there is:"),
        (lambda tube: assert_put(tube, state="taken"), "no taken task of tube 'mail' is there; there is:"),
        (lambda tube: assert_put(tube, "/", pri=4), "has data='/', pri=4"),
        (lambda tube: assert_empty(tube), "tube 'mail' is not empty; there is:\n  0 ready '/'"),
        (lambda tube: assert_counts(tube, ready=2, taken=0), "should have 2 ready, and has 1 ready; there is:"),
        (lambda tube: assert_buried(tube, reason="x"), "no buried task of tube 'mail' has reason='x'"),
    ],
)
def test_failed_asserts_show_actual_tasks(call: object, message: str) -> None:
    assert callable(call)
    with tubes.connect() as queue:
        tube = queue.create_tube("mail", "fifottl")
        tube.put("/", pri=3)
        with pytest.raises(AssertionError) as caught:
            call(tube)
        assert message in str(caught.value)


def test_failed_asserts_limit_shown_tasks() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("mail")
        with pytest.raises(AssertionError, match="it is empty"):
            assert_put(tube, 1)
        tube.put_many(range(2500))
        assert assert_put(tube, 2400).id == 2400
        with pytest.raises(AssertionError, match="… and 2480 more"):
            assert_empty(tube)


@pytest.mark.parametrize(
    "call",
    [
        lambda tube: assert_put(tube, 1, nonsense=1),
        lambda tube: assert_put(tube, 1, state="lost"),
        lambda tube: assert_counts(tube, lost=1),
    ],
)
def test_asserts_refuse_unknown_attributes(call: object) -> None:
    assert callable(call)
    with tubes.connect() as queue, pytest.raises(tubes.InvalidOption):
        call(queue.create_tube("mail"))


def test_asserts_are_imported_on_first_use() -> None:
    program = "import sys, tubes.testing; print([name for name in sys.modules if name.startswith('tubes.testing.')])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "['tubes.testing.clock']\n"
