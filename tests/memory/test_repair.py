"""Repairing tubes, in memory and from a shell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

import tubes
from tubes.cli.app import app
from tubes.cli.exits import Exit
from tubes.values.problem import KINDS, UNREPAIRABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.testing import LocalServer


def test_repair_fixes_a_damaged_tube_in_memory(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(["to ann", "to bob"])
    shared: Any = tube._port.shared
    shared.engine._delayed = 1
    assert tube.statistics().tasks["ready"] == 1
    assert queue.admin.check("mail") == [tubes.Problem("memory", 1, ("mail",), repaired=False, tube="mail")]
    assert queue.admin.repair("mail") == [tubes.Problem("memory", 1, ("mail",), repaired=True, tube="mail")]
    assert queue.admin.check("mail") == []
    assert tube.statistics().tasks["ready"] == 2
    assert [task.data for task in tube.take_many(3)] == ["to ann", "to bob"]


def test_problem_describes_itself_and_its_remedy() -> None:
    for kind in KINDS:
        problem = tubes.Problem(kind, 12, ("a", "b"), repaired=kind not in UNREPAIRABLE)
        assert problem.what.endswith(": a, b and 10 more") == ("{}" in KINDS[kind][0])
        assert problem.remedy
    assert tubes.Problem("key", 1, ("a",), repaired=True).what.endswith(": a")


@pytest.fixture
def shell(url: str) -> Callable[..., Result]:
    def run(*words: str, code: int = Exit.DONE) -> Result:
        result = CliRunner().invoke(app, words, env={"TUBES_URL": url})
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


@pytest.fixture
def damaged_tube(url: str, valkey: LocalServer) -> None:
    """Create two tubes, one of which has lost its index of ready tasks."""
    with tubes.connect(url) as queue:
        queue.create_tube("fine").put("hello")
        tube = queue.create_tube("mail")
        tube.put_many(range(3))
        port: Any = tube._port
        client: Any = valkey.client()
        client.delete(f"{port.shared.key}:ready")


@pytest.mark.usefixtures("damaged_tube")
def test_check_command_reports_damage_by_its_exit_code(shell: Callable[..., Result]) -> None:
    for words in (("check",), ("check", "mail"), ("repair", "--dry-run"), ("repair", "mail", "--dry-run")):
        result = shell(*words, code=Exit.DAMAGED)
        assert "mail: tasks that are in no index and cannot be taken: 0, 1, 2; repair adds them" in result.stdout
        assert result.stderr == "tubes: this tube is damaged: mail; `tubes repair` repairs as much as possible\n"
    assert shell("check", "fine").stdout == "fine: fine\n"
    assert shell("check", "nowhere", code=Exit.NOT_FOUND).stdout == ""


@pytest.mark.usefixtures("damaged_tube")
def test_repair_command_fixes_and_reports_problems(shell: Callable[..., Result]) -> None:
    lines = shell("repair").stdout.splitlines()
    assert lines[0] == "fine: fine"
    assert lines[1] == "mail: tasks that are in no index and cannot be taken: 0, 1, 2; added them to their indexes"
    assert shell("check").stdout == "fine: fine\nmail: fine\n"
    assert shell("take", "mail", "-n", "3").stdout == "0\n1\n2\n"


@pytest.mark.usefixtures("damaged_tube")
def test_check_and_repair_commands_print_json(shell: Callable[..., Result]) -> None:
    found = json.loads(shell("check", "--json", code=Exit.DAMAGED).stdout)
    assert (found["tube"], found["kind"], found["count"], found["repaired"]) == ("mail", "stranded", 3, False)
    assert found["examples"] == ["0", "1", "2"]
    assert json.loads(shell("repair", "--json").stdout) == {
        **found,
        "repaired": True,
        "remedy": "added them to their indexes",
    }
    assert shell("check", "--json").stdout == ""


def test_repair_command_reports_unrepairable_damage_by_its_exit_code(
    shell: Callable[..., Result], url: str, valkey: LocalServer
) -> None:
    with tubes.connect(url) as queue:
        port: Any = queue.create_tube("mail")._port
        client: Any = valkey.client()
        client.hset(port.shared.key, "driver", "?")
    result = shell("repair", "mail", code=Exit.DAMAGED)
    assert result.stderr == "tubes: this tube is damaged: mail; it cannot be repaired\n"


def test_long_calls_repair_a_tube_first() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("mail", "utube")
        tube.put_many([tubes.Item(number, utube=str(number)) for number in range(3)])
        assert len(tube.take_many(3)) == 3
        engine: Any = tube._port.shared.engine  # pyright: ignore[reportPrivateUsage]
        for act, expected in (tube.lanes, 3), (tube.admin.release_all, 3):
            # An interrupted repair leaves the tube like this.
            engine.busy = engine.next_take
            for hold in engine.holds:
                hold.clear()
            engine._lanes.by_name.clear()
            act()
            assert len(tube.lanes()) == expected
        assert tube.statistics().tasks["taken"] == 0
