"""Both APIs have the same names and signatures, except for `async`: one is generated from the other."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest

import tubes
import tubes.aio
import tubes.sync

PAIRS = [
    (getattr(tubes.sync, name), getattr(tubes.aio, f"Async{name}"))
    for name in ("Queue", "QueueAdmin", "Tube", "TubeAdmin", "Lane", "Selection", "Task")
]
AWAITED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}
ROOT = Path(__file__).parent.parent.parent


def load_maker() -> Any:
    """Load the generator of `tubes/aio`."""
    spec: Any = importlib.util.spec_from_file_location("make_aio", ROOT / ".ci" / "make_aio.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def content(text: str) -> tuple[str, list[str]]:
    """Return the content of a file without its layout."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return ast.dump(ast.parse(text)), [token.string for token in tokens if token.type == tokenize.COMMENT]


def test_asyncio_api_is_generated_from_the_sync_api() -> None:
    """`make check` also compares the layout."""
    made = load_maker().generate()
    assert made.keys() == set((ROOT / "tubes/aio").glob("*.py"))
    for path, text in made.items():
        assert content(path.read_text()) == content(text)


@pytest.mark.parametrize(
    "body",
    [
        "return self._port.ack(task).id",
        "return self.peek(self._port.ack(task))",
        "for port in self._ports:\n            yield port.take()",
        "return self.take().data",
    ],
)
def test_generator_refuses_code_that_no_rule_translates(body: str) -> None:
    maker = load_maker()
    text = f"class Tube:\n    def take(self):\n        {body}\n    def peek(self): ...\n"
    with pytest.raises(SystemExit, match=r"separate statement|a name"):
        maker.await_calls(maker.wait(text, maker.awaited_names(text)))


def own_members(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(kind)
        if name in vars(kind) and (not name.startswith("_") or name in {*AWAITED, *AWAITED.values()})
    }


def shape(member: Any) -> str:
    if isinstance(member, property):
        return "property"
    return re.sub(r"Async", "", str(inspect.signature(member)))


@pytest.mark.parametrize(("sync", "aio"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_faces_have_the_same_signatures(sync: type, aio: type) -> None:
    there = {AWAITED.get(name, name): shape(member) for name, member in own_members(sync).items()}
    assert there == {name: shape(member) for name, member in own_members(aio).items()}
    assert len(there) > 2


@pytest.mark.parametrize("aio", [pair[1] for pair in PAIRS], ids=lambda kind: kind.__name__)
def test_every_method_of_the_asyncio_face_is_awaited(aio: type) -> None:
    for name, member in own_members(aio).items():
        if isinstance(member, property) or name in ("lane", "select", "enqueue_with"):  # They call nothing yet.
            continue
        inner = inspect.unwrap(member)
        assert inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner), name


def test_connect_is_the_same_on_both_faces() -> None:
    assert shape(tubes.connect) == shape(tubes.aio.connect)


def help_of(member: Any) -> tuple[list[str], bool]:
    """Return the words of a docstring without class names, and True if it has an example."""
    text, example, _ = (inspect.getdoc(member) or "").partition("\n\n>>> ")
    text, reference, _ = text.replace("Async", "").partition(" shows an example.")
    return text.rpartition("\n\n")[0].split() if reference else text.split(), bool(example or reference)


@pytest.mark.parametrize(("sync", "aio"), PAIRS, ids=lambda kind: kind.__name__)
def test_asyncio_docstrings_match_the_sync_api(sync: type, aio: type) -> None:
    others = {"take_any", "taking", "on_task_change"}
    members = own_members(aio)
    for name, member in own_members(sync).items():
        twin = members[AWAITED.get(name, name)]
        if name in others:
            assert help_of(twin) != help_of(member)
        else:
            assert help_of(twin) == help_of(member)


def test_signatures_show_which_arguments_may_be_left_out() -> None:
    assert str(inspect.signature(tubes.Tube.update)).count("<as it is>") == 4
    assert str(inspect.signature(tubes.aio.AsyncLane.configure)).count("<as it is>") == 7
