"""The two faces have the same names and signatures, but for being awaited."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import tubes
import tubes.aio
from tubes.aio import AsyncTask
from tubes.sync import Task

PAIRS = [(tubes.Queue, tubes.aio.AsyncQueue), (tubes.Tube, tubes.aio.AsyncTube), (Task, AsyncTask)]
AWAITED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}


def own(kind: type) -> dict[str, Any]:
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
    there = {AWAITED.get(name, name): shape(member) for name, member in own(sync).items()}
    assert there == {name: shape(member) for name, member in own(aio).items()}
    assert len(there) > 5


@pytest.mark.parametrize("aio", [pair[1] for pair in PAIRS], ids=lambda kind: kind.__name__)
def test_every_method_of_the_asyncio_face_is_awaited(aio: type) -> None:
    for name, member in own(aio).items():
        if isinstance(member, property):
            continue
        inner = inspect.unwrap(member)
        assert inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner), name


def test_connect_is_the_same_on_both_faces() -> None:
    assert shape(tubes.connect) == shape(tubes.aio.connect)


def sentence(doc: str | None) -> str:
    """The first one."""
    first = " ".join((doc or "").partition("\n\n")[0].split())
    found = re.match(r".*?\.(?= |$)", first)
    assert found is not None, doc
    return found[0]


@pytest.mark.parametrize(("sync", "aio"), PAIRS[:2], ids=lambda kind: kind.__name__)
def test_the_help_of_the_asyncio_face_begins_as_its_twins(sync: type, aio: type) -> None:
    there = {AWAITED.get(name, name): (name, member) for name, member in own(sync).items()}
    for name, member in own(aio).items():
        twin, twins = there[name]
        if isinstance(member, property) or name in ("__aenter__", "__aexit__"):
            continue
        wanted = f"{sentence(inspect.getdoc(twins))} See `{sync.__name__}.{twin}`."
        assert " ".join((inspect.getdoc(member) or "").split()) == wanted


def test_help_shows_what_may_be_left_out() -> None:
    assert str(inspect.signature(tubes.Tube.update)).count("<as it is>") == 4
    assert str(inspect.signature(tubes.aio.AsyncTube.configure)).count("<as it is>") == 2
