"""The public surface: signatures, commands, routes and the keys on a server, compared with `surface.txt`.

After a deliberate change write that file again: `python -m tests.api.test_surface`. Its diff shows what users notice.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, is_typeddict

import pytest
import typer

import tubes
import tubes.push
import tubes.serve
import tubes.sync
import tubes.testing
import tubes.worker
from tubes.cli.app import app
from tubes.serve.native import OPERATIONS
from tubes.serve.native.openapi import description
from tubes.testing import LocalServer, ManualClock

SNAPSHOT = Path(__file__).parent / "surface.txt"
#: Classes that are reached through public ones.
REACHED = (tubes.sync.Lane, tubes.sync.Selection, tubes.sync.QueueAdmin, tubes.sync.TubeAdmin)


def signature_of(thing: Any) -> str:
    try:
        signature = str(inspect.signature(thing))
    except ValueError:
        return "(...)"
    return re.sub(r"<[\w.]+ object at 0x\w+>", "<object>", signature)


def list_class(name: str, kind: type) -> Iterator[str]:
    is_made = not kind.__module__.startswith(("tubes.errors", "tubes.sync", "tubes.aio")) and "__init__" in vars(kind)
    yield f"class {name}{signature_of(kind) if is_made else ''}"
    if is_typeddict(kind):
        yield f"    {', '.join(sorted(inspect.get_annotations(kind)))}"
        return
    own = {name for base in kind.__mro__ if base.__module__.startswith("tubes.") for name in vars(base)}
    for member in sorted(name for name in own if not name.startswith("_")):
        found = inspect.getattr_static(kind, member)
        call = found.__func__ if isinstance(found, staticmethod | classmethod) else found
        yield f"    {member}{signature_of(call) if inspect.isfunction(call) else ''}"


def list_module(module: ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        thing, path = getattr(module, name), f"{module.__name__}.{name}"
        if isinstance(thing, type) and thing.__module__.startswith("tubes.aio."):
            yield f"class {path}"  # It has the methods of its twin for threads, as test_faces.py checks.
        elif isinstance(thing, type):
            yield from list_class(path, thing)
        elif inspect.isfunction(thing):
            yield f"def {path}{signature_of(thing)}"
        else:
            yield path


def list_commands(command: Any, path: str) -> Iterator[str]:
    names = sorted(" ".join(sorted(one.opts + one.secondary_opts)) for one in command.params if one.name != "help")
    yield f"$ {path}: {', '.join(names)}"
    for name, sub in sorted(getattr(command, "commands", {}).items()):
        yield from list_commands(sub, f"{path} {name}")


def without_texts(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: without_texts(value) for name, value in part.items() if name not in ("description", "summary")}
    return [without_texts(value) for value in part] if isinstance(part, list) else part


def list_operations() -> Iterator[str]:
    document = without_texts(description(OPERATIONS, ""))
    for path, operations in sorted(document["paths"].items()):
        for method, operation in sorted(operations.items()):
            yield f"{method.upper()} {path}: {json.dumps(operation, sort_keys=True)}"
    for kind, parts in sorted(document.get("components", {}).items()):
        for name, part in sorted(parts.items()):
            yield f"{kind} {name}: {json.dumps(part, sort_keys=True)}"


def list_keys(server: LocalServer) -> Iterator[str]:
    with tubes.connect(f"{server.url}?prefix=surface", clock=ManualClock()) as queue:
        options: dict[str, Any] = {"ttr": 60, "keep_done": 60, "key_ttl": 60, "max_attempts": 2, "backoff": [1]}
        for name, driver in (("timed", "fifottl"), ("lanes", "utubettl"), ("plain", "fifo")):
            given: Any = {} if driver == "fifo" else options
            tube = queue.create_tube(name, driver, **given)
            lane: dict[str, Any] = {"utube": "a"} if driver == "utubettl" else {}
            for key in ("done", "released", "buried", "taken"):
                tube.put(key, key=key, **lane)
                task = tube.take(0)
                assert task is not None
                end: dict[str, Any] = {"done": task.ack, "released": task.release, "buried": task.bury}
                if key in end:
                    end[key]()
            if lane:
                tube.lane("a").configure(interval=5)
                tube.lane("b").block(60)
    client: Any = server.client()
    for key in sorted(client.scan_iter("surface*")):
        kind = client.type(key).decode()
        fields: set[str] = set()
        if kind == "hash" and not key.endswith((b":tasks", b":keys", b":done")):
            fields = {re.sub(r"[0-9a-f]{8,}|\d+", "#", field.decode(errors="replace")) for field in client.hkeys(key)}
        yield f"key {re.sub(r'[0-9a-f]{8,}', '#', key.decode())} {kind} {' '.join(sorted(fields))}".rstrip()


def read_surface() -> list[str]:
    modules = (tubes, tubes.worker, tubes.push, tubes.serve, tubes.testing)
    lines = [line for module in modules for line in list_module(module)]
    lines += [line for kind in REACHED for line in list_class(f"tubes.sync.{kind.__name__}", kind)]
    lines += [*list_commands(typer.main.get_command(app), "tubes"), *list_operations()]
    with LocalServer() as server:
        return [*lines, *list_keys(server)]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="signatures are written in another way")
def test_public_surface_is_the_recorded_one() -> None:
    assert read_surface() == SNAPSHOT.read_text().splitlines()


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(read_surface()) + "\n")
