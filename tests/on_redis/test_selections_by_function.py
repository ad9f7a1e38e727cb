"""Selections by the function that tasks call: the same tasks as in memory, however their data are written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import tubes

if TYPE_CHECKING:
    from tubes.testing import LocalServer

_CALL = {"task": "resize", "args": ["a\n", 1.5, None]}
#: JSON, and whether it calls `resize`.
_TEXTS = [
    *((json.dumps(_CALL), True), (json.dumps(_CALL, indent=2), True), (" \t\r\n" + json.dumps(_CALL), True)),
    *((r'{"task":"re\u0073ize"}', True), (r'{"t\u0061sk":"resize"}', True), ('{"args":[],"task":"resize"}', True)),
    *(('{"task":"a","task":"resize"}', True), ('{"task":"resize","task":"a"}', False)),
    *(('{"task":"resizes"}', False), ('{"Task":"resize"}', False), ('{"args":[{"task":"resize"}]}', False)),
    *(('[{"task":"resize"}]', False), ('["task","resize"]', False), ('"resize"', False), ("5", False), ("null", False)),
    *(('{"task":["resize"]}', False), ('{"task":null,"a":"resize"}', False)),
    *((f'{{"task":"resize","args":["{"x" * 2**size}"]}}', size < 20) for size in (19, 20)),
    *(('{"task":"resize"', False), ('{"task":"resize"} x', False), ("resize", False), ("", False)),
]  # fmt: skip
_ODD = ['größe "😀"\\/', "\ud83d", "a/b", "é", "task", "x" * 256]
#: Data as MessagePack, and whether they call `resize`.
_PACKED = [
    *((_CALL, True), ({"args": [2], "task": "resize"}, True), (_CALL | {"kwargs": {"at": datetime.now(UTC)}}, True)),
    *(({"task": "resizes"}, False), ({"args": ["resize"]}, False), ({"args": [_CALL]}, False), ([_CALL], False)),
    *(({"task": b"resize"}, False), ({"kwargs": {"at": datetime.now(UTC), **_CALL}}, False), ("resize", False)),
    ({**{str(n): n for n in range(20)}, **_CALL}, True),
    ({"task": "resize", **{str(n): datetime.now(UTC) for n in range(20)}}, True),
]  # fmt: skip


def selected(url: str, codec: str, data: list[Any], function: str) -> list[bool]:
    """Put these data, and return for each whether the selection has it."""
    with tubes.connect(url, codec=codec) as queue:
        tube: tubes.Tube[Any] = queue.create_tube("work", if_exists="keep")
        tasks = tube.put_many(data)
        found = {task.id for task in tube.select(function=function)}
        assert tube.select(function=function).count() == len(found)
        return [task.id in found for task in tasks]


@pytest.mark.parametrize("place", ["memory", "server"])
def test_selection_by_function_reads_any_json(server: LocalServer, place: str) -> None:
    url = "memory://" if place == "memory" else server.url
    texts, expected = zip(*_TEXTS, strict=True)
    assert selected(url, "raw", [text.encode() for text in texts], "resize") == [*expected]


@pytest.mark.parametrize("place", ["memory", "server"])
@pytest.mark.parametrize("name", _ODD)
def test_selection_by_function_finds_any_name(server: LocalServer, place: str, name: str) -> None:
    url = "memory://" if place == "memory" else server.url
    texts = [json.dumps({"task": one}, ensure_ascii=False).encode("utf-8", "surrogatepass") for one in _ODD]
    assert selected(url, "raw", texts, name) == [one == name for one in _ODD]
    escaped = [json.dumps({"task": one}).replace("/", r"\/").encode() for one in _ODD if one != "\ud83d"]
    assert selected(url, "raw", escaped, name) == [one == name for one in _ODD if one != "\ud83d"]


@pytest.mark.parametrize("place", ["memory", "server"])
def test_selection_by_function_reads_msgpack(server: LocalServer, place: str) -> None:
    url = "memory://" if place == "memory" else server.url
    data, expected = zip(*_PACKED, strict=True)
    assert selected(url, "msgpack", [*data], "resize") == [*expected]
    if place == "server":
        broken = [msgspec.msgpack.encode(_CALL)[:-1], msgspec.msgpack.encode(_CALL) + b"\0"]
        assert selected(url, "raw", broken, "resize") == [False, False]


def test_selection_by_function_decodes_a_bounded_number_of_bytes(server: LocalServer) -> None:
    large = {"args": ["resize", "x" * 200_000]}
    with tubes.connect(server.url) as queue, server.client() as client:
        tube: tubes.Tube[Any] = queue.create_tube("work", if_exists="keep")
        tube.put_many([large] * 24)
        client.config_resetstat()
        assert tube.select(function="resize").count() == 0
        # To decode a byte may cost twenty times as much as to read it.
        assert client.info("commandstats")["cmdstat_fcall"]["calls"] >= 24
