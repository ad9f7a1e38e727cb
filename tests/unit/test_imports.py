"""Imports lead to lower layers, even in functions, by calls or for types; modules of a cycle share a folder."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
#: The layers from bottom to top: a folder or single file imports itself and lower layers. `tubes`: its `__init__`.
LAYERS = [
    *("errors", "drivers", "values", "backend", "memory redis.library", "durable redis.transport"),
    *("redis.validation", "redis.task_codec", "redis.options_version"),
    *("redis.waiting", "redis.sessions", "redis.port", "redis"),
    *("calls connecting partitions", "sync aio", "metrics worker", "testing", "tubes push", "crawl serve"),
    *("cli spark.server", "spark __main__"),
]
LEVELS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms.split()}


def room_of(module: str) -> str:
    """Return the folder of a module, or its file."""
    name = module.removeprefix("tubes.")
    found = [room for room in (name, name.rpartition(".")[0], name.partition(".")[0]) if room in LEVELS]
    assert found, f"{name} belongs to no layer: add its folder to LAYERS"
    return found[0]


@cache
def modules() -> dict[str, ast.Module]:
    paths = [path for path in (ROOT / "tubes").rglob("*.py") if "discovery" not in path.parts]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    names |= {path: f"tubes.drivers.{path.stem}".removesuffix(".__init__") for path in ROOT.glob("drivers/*.py")}
    return {name: ast.parse(path.read_text()) for path, name in names.items()}


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            named |= {name if name in known else str(node.module) for name in inner}
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named |= called(node.args[0], known)
    return named & known


def called(name: ast.expr, known: set[str]) -> set[str]:
    """Return the modules that a call imports by this name; for an f-string, all modules with its prefix."""
    if isinstance(name, ast.Constant):
        return {str(name.value)}
    if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
        return {each for each in known if each.startswith(str(name.values[0].value))}
    return set()  # A variable holds a name from the user.


def circles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of modules that import each other, directly or indirectly."""
    reach = {name: set(found) for name, found in edges.items()}
    for middle in reach:
        for name, found in reach.items():
            if middle in found:
                reach[name] = found | reach[middle]
    return {frozenset(each for each in found if name in reach[each]) for name, found in reach.items() if name in found}


@cache
def edges() -> dict[str, set[str]]:
    """Return the imports of each module."""
    return {name: imports(tree, set(modules())) - {name} for name, tree in modules().items()}


@pytest.mark.full
def test_no_module_imports_from_a_higher_level() -> None:
    upward = {
        (name, other)
        for name, others in edges().items()
        for other in others
        if room_of(name) != room_of(other) and LEVELS[room_of(other)] >= LEVELS[room_of(name)]
    }
    assert upward == {("tubes.sync.queue", "tubes.aio.queue"), ("tubes.aio.queue", "tubes.sync.queue")}
    assert sum(map(len, edges().values())) > 300


@pytest.mark.full
def test_only_the_api_has_import_cycles() -> None:
    found = circles(edges())
    assert all(set(map(room_of, circle)) <= {"sync", "aio"} for circle in found)


#: Packages that use a backend only through the interface of `tubes.backend`.
CLIENTS = ("cli", "crawl", "metrics", "push", "serve", "spark", "worker")
BACKENDS = ("tubes.memory", "tubes.durable", "tubes.redis")
#: What else they import of one: bulk operations, the copy and the repair of a folder, the names of shared stores.
DOORS = {
    *(("spark", "tubes.redis.bulk"), ("cli", "tubes.durable.repair"), ("cli", "tubes.durable.database")),
    ("cli", "tubes.memory.store"),
    ("cli", "tubes.redis.administration"),
}


def client_of(module: str) -> str | None:
    name = module.removeprefix("tubes.").partition(".")[0]
    return name if name in CLIENTS else None


def test_clients_import_of_a_backend_only_its_doors() -> None:
    found = {
        (client, other)
        for name, others in edges().items()
        for other in others
        if (client := client_of(name)) and other.startswith(BACKENDS)
    }
    assert found == DOORS


def test_clients_do_not_reach_into_a_store() -> None:
    reached = {
        (name, ast.unparse(node))
        for name, tree in modules().items()
        if client_of(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "store" and "connection" in ast.unparse(node.value)
    }
    assert reached == set()


#: The API, the backends and the values of both. All others call `port_of` and `connection_of`.
CORE = tuple(
    f"tubes.{name}" for name in ("sync", "aio", "backend", "partitions", "memory", "durable", "redis", "values")
)


def test_only_the_core_reads_private_ports_and_connections() -> None:
    reached = {
        (name, ast.unparse(node))
        for name, tree in modules().items()
        if not name.startswith(CORE)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("_port", "_connection")
        if ast.unparse(node.value) != "self"
    }
    assert reached == set()


def test_few_modules_are_at_the_top_level() -> None:
    assert len(list((ROOT / "tubes").glob("*.py"))) <= 8


@pytest.mark.full
@pytest.mark.parametrize(
    ("use", "loaded"),
    [
        ("", set[str]()),
        ("tubes.connect('unix:///nonexistent', connect_timeout=0.01)", {"redis"}),
        ("tubes.connect()", {"memory", "drivers.engine"}),
        ("tubes.AsyncTask, tubes.aio.connect", {"aio"}),
        ("tubes.testing.ManualClock()", {"testing"}),
    ],
)
def test_program_imports_only_what_it_uses(use: str, loaded: set[str]) -> None:
    program = f"""import contextlib, sys, tubes
with contextlib.suppress(tubes.ConnectionLost):
    {use or "pass"}
print(*sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    parts = ("redis", "memory", "durable", "drivers.engine", "aio", "testing", "worker")
    assert {part for part in parts if f"tubes.{part}" in run.stdout.split()} == loaded


def test_imports_by_function_calls_are_detected() -> None:
    source = "a = importlib.import_module('tubes.sync')\nb = import_module(f'tubes.testing.{name}')\nimport_module(c)"
    assert imports(ast.parse(source), set(modules())) >= {"tubes.sync", "tubes.testing.clock", "tubes.testing.server"}
    assert "tubes.testing.server" in edges()["tubes.testing"]


def test_all_import_cycles_are_detected() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set[str](), "e": {"f"}, "f": {"e", "a"}}
    assert circles(edges) == {frozenset("abc"), frozenset("ef")}


def test_function_of_the_cli_has_at_most_ten_parameters() -> None:
    for path in (ROOT / "tubes" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = len(node.args.args) + len(node.args.kwonlyargs)
                assert count <= 10, f"{path.name}: {node.name}"


def test_large_class_says_why_it_is_one() -> None:
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
                is_large = methods > 40 or node.end_lineno - node.lineno > 500
                if is_large and node.name not in ("Tube", "AsyncTube", "Worker"):  # Classes that users know as one.
                    assert "One class" in (ast.get_docstring(node) or ""), f"{name}: {node.name}"
