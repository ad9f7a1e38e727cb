"""The type hints of the API match its behaviour."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict, assert_type

import msgspec
import pytest
from pydantic import TypeAdapter

import tubes
from tubes.drivers.options import OF_TASKS
from tubes.drivers.tube_options import OF_TUBES


@pytest.mark.parametrize(
    ("annotated", "checked"),
    [
        # The timeout is a separate parameter, because the return type of `put` depends on it.
        (tubes.PutOptions, OF_TASKS.keys() - {"timeout"}),
        # A call has no key.
        (tubes.TaskOptions, OF_TASKS.keys() - {"timeout", "key", "on_duplicate", "key_ttl"}),
        (tubes.TubeOptions, OF_TUBES.keys()),
    ],
)
def test_typed_options_match_the_checked_options(annotated: Any, checked: set[str]) -> None:
    assert annotated.__annotations__.keys() == checked
    assert annotated.__required_keys__ == set()


@pytest.mark.full
def test_examples_of_typed_tubes_pass_a_type_checker(tmp_path: Path) -> None:
    if find_spec("mypy") is None:
        pytest.skip("needs the extra `check`")
    page = (Path(__file__).parents[2] / "docs/reference/tasks.md").read_text()
    program = tmp_path / "types_page.py"
    program.write_text("".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)))
    # Use a separate process, because mypy raises the recursion limit permanently.
    command = [sys.executable, "-m", "mypy", str(program), "--strict", f"--cache-dir={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


class Mail(TypedDict):
    """The data of the tasks of a tube."""

    to: str


def test_type_checkers_know_the_data_and_options_of_a_typed_tube() -> None:
    """mypy and pyright check this, and fail if an expected error is missing."""
    with tubes.connect() as queue:
        mails: tubes.Tube[Mail, int] = queue.create_tube("mails", "fifottl", capacity=5)
        assert_type(mails.put({"to": "ann"}), tubes.Task[Mail])
        assert_type(mails.put({"to": "bob"}, timeout=0), tubes.Task[Mail] | None)
        assert_type(mails.put({"to": "eve"}, timeout=None), tubes.Task[Mail])
        assert_type(mails.put_many([{"to": "cid"}, tubes.Item[Mail]({"to": "dan"}, pri=1)]), list[tubes.Task[Mail]])
        if task := assert_type(mails.take(0), tubes.Task[Mail] | None):
            assert_type(task.data["to"], str)
            assert task.state == "taken"
            assert_type(task.ack(), tubes.Task[Mail])
        if one := assert_type(queue.take_any([mails, mails], 0), tubes.Task[Mail] | None):
            assert_type(one.release().data, Mail)
        untyped = queue.create_tube("any")
        assert_type(queue.take_any([mails, untyped, "any"], 0), tubes.Task | None)
        assert_type(untyped.put(5).data, Any)
        with pytest.raises(tubes.OptionNotSupported):
            mails.put({"to": "ann"}, prio=3)  # type: ignore[call-overload]
        with pytest.raises(tubes.InvalidOption):
            mails.put({"to": "ann"}, ttr="x")  # type: ignore[call-overload]
        with pytest.raises(tubes.OptionNotSupported):
            queue.create_tube("wrong", "fifo", prio=3)  # type: ignore[call-arg]
        with pytest.raises(tubes.TubeFull):
            mails.put_many([{"to": 5}] * 4)  # type: ignore[list-item]


def test_type_checkers_know_the_result_of_a_call() -> None:
    def ask(squares: tubes.Tube[int, float]) -> None:
        assert_type(squares.call(3), float)

    async def ask_async(queue: tubes.AsyncQueue, squares: tubes.AsyncTube[int, float]) -> None:
        assert_type(await squares.call(3), float)
        assert_type(await squares.put(3), tubes.AsyncTask[int])
        assert_type(await queue.take_any([squares]), tubes.AsyncTask[int] | None)
        async for task in squares:
            assert_type(task.data, int)

    assert callable(ask)
    assert callable(ask_async)


@pytest.mark.parametrize("state", list(tubes.State))
def test_every_encoder_writes_a_state_as_its_word(state: tubes.State) -> None:
    word = state.name.lower()
    assert {word: 1}[state] == 1
    assert (str(state), state.value, json.dumps(state)) == (word, word, f'"{word}"')
    assert msgspec.json.encode({state: state}) == f'{{"{word}":"{word}"}}'.encode()
    known = TypeAdapter(tubes.State)
    assert known.dump_json(state) == f'"{word}"'.encode()
    assert [known.validate_python(name) for name in (word, state.letter)] == [state, state]
    for found in (pickle.loads(pickle.dumps(state)), deepcopy(state), tubes.State(word), tubes.State(state.letter)):
        assert found is state


def test_name_of_another_module_is_imported_with_a_hint() -> None:
    for name in ("Worker", "Retry", "current_task"):
        with pytest.raises(ImportError, match=f"from tubes.worker import {name}$"):
            getattr(tubes, name)
    assert not hasattr(tubes, "nothing")
