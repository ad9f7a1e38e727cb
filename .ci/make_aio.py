"""Generate `tubes/aio`, the API for asyncio, from `tubes/sync`, the API for threads, file by file: `make aio`.

The rules, in this order:

1. Replace names by `NAMES`: `Tube` becomes `AsyncTube`, and vice versa.
2. Make all methods of classes `async`, except those in `PLAIN` and properties.
3. Await their calls and `wait`; `with` becomes `async with`, except with `suppress`.
4. A method of a backend (`_connection`, `_port` or `port`) returns a value or a coroutine. Each call must be a separate
   statement, which becomes two: the call, and an `await` if it returned a coroutine. Those in `AT_ONCE` never do.
5. Rename in docstrings too, replace `TEXTS` where asyncio differs, and omit examples.

`--check` writes nothing, and fails if the files differ from the generated ones.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tubes" / "sync"
TARGET = ROOT / "tubes" / "aio"
WIDTH = 120

_TWINS = {
    **{
        kind: f"Async{kind}"
        for kind in (
            "Queue",
            "Enqueuer",
            "QueueAdmin",
            "Tube",
            "Lane",
            "Selection",
            "TubeAdmin",
            "Task",
            "Port",
            "Connection",
            "Generator",
        )
    },
    "contextmanager": "asynccontextmanager",
    "ThreadWaiter": "LoopWaiter",
    "thread_listener": "LoopListener",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
}
NAMES = _TWINS | {twin: name for name, twin in _TWINS.items()}
PLAIN = {"__init__", "__repr__", "__await__", "lane", "select", "enqueue_with"}
BACKEND = {"_connection", "_port", "port"}
AT_ONCE = {
    "check",
    "folder_usage",
    "full_error",
    "gather",
    "micros",
    "relay_limit",
    "prepare",
    "register",
    "release_later",
    "on_loss",
}
AT_ONCE |= {"sibling"}
CONNECTS = """\
    def __enter__(self) -> Self:
        self._connection.ensure_connected()
        return self
"""
CHECKPOINT = """\
        if check is not None:
            check()
"""
PART = '        """Return the next part: tasks, or the `Seen` of each without `with_data`."""\n'
CODE = {
    "calls.call(": "calls.call_async(",
    "calls.tell_caller(": "calls.tell_caller_async(",
    "awaited=False": "awaited=True",
    CHECKPOINT: CHECKPOINT.replace(
        "check()", "await asyncio.sleep(0)  # Signals and cancels arrive here.\n            check()"
    ),
    PART: f"{PART}        await asyncio.sleep(0)  # In memory a part does not wait. Others may run before it.\n",
    CONNECTS: f"""{CONNECTS}
    def __await__(self) -> AsyncGenerator[Any, Any, Self]:
        return self.__enter__().__await__()
""",
}
TEXTS = {
    "Safe to share between threads.": "Safe to share between event loops.",
    "A `with` block": "An `async with` block",
    " With threads on a server a waiting call uses a thread for each tube.": "",
    "in a thread that makes changes": "in the event loop that registered it",
    "`if task := tube.take(5):` and then `with task:`": "`if task := await tube.take(5):` and then `async with task:`",
}
HEADER = "# Generated from {} by .ci/make_aio.py (`make aio`): change that file, or the rules.\n"
PACKAGE = '''\
"""The API for asyncio: `connect`, `AsyncQueue`, `AsyncTube` and `AsyncTask`. The same names as for threads, awaited.

Waiting never blocks the event loop, and a cancelled take loses nothing. Threads and event loops may share one store:
each wakes the other.

>>> import asyncio, tubes.aio
>>> async def main():
...     async with tubes.aio.connect() as queue:
...         tube = await queue.create_tube("mail")
...         await tube.put("hello")
...         async with tube.taking(timeout=0) as task:
...             print(task.data)
>>> asyncio.run(main())
hello
"""
'''

_Span = tuple[int, int, str]


class Text:
    """A source text, and the positions of its nodes and names."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.AST) -> int:
        """Return the position at which a node begins."""
        return self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        """Return the position at which a node ends."""
        return self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        """Return the text of a node."""
        return self.text[self.start(node) : self.end(node)]

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield the position of each name and keyword, and the name."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.NAME:
                yield self._starts[token.start[0] - 1] + token.start[1], token.string

    def replaced(self, spans: Iterable[_Span]) -> str:
        """Return the text with these spans replaced."""
        text = self.text
        for start, end, new in sorted(spans, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def rename(text: str) -> str:
    """Apply rule 1, and the replacements of `CODE`."""
    for old, new in CODE.items():
        text = text.replace(old, new)
    source = Text(text)
    text = source.replaced((at, at + len(name), NAMES[name]) for at, name in source.names() if name in NAMES)
    text = re.sub(r"\btubes\.(sync|aio)\b", lambda api: "tubes.aio" if api[1] == "sync" else "tubes.sync", text)
    return re.sub(r"(?m)^__all__ = .*$", lambda names: re.sub(r"\b[A-Z]", r"Async\g<0>", names[0]), text)


def _sorted_import(line: re.Match[str]) -> str:
    return line[1] + ", ".join(sorted(line[2].split(", "), key=lambda name: (not name.isupper(), name.islower(), name)))


def awaited_names(*texts: str) -> set[str]:
    """Return the names of the functions and methods whose calls are awaited."""
    methods = {method.name for text in texts for method in _async_methods(ast.parse(text))}
    return methods | {"wait", "call_async", "tell_caller_async"}


def wait(text: str, names: set[str]) -> str:
    """Apply rules 2 and 3. `names`: the methods to await."""
    source = Text(text)
    spans: list[_Span] = []
    for method in _async_methods(source.tree):
        spans.append((source.start(method), source.start(method), "async "))
        for node in ast.walk(method):
            if isinstance(node, ast.With) and not ast.unparse(node.items[0]).startswith("suppress("):
                spans.append((source.start(node), source.start(node), "async "))
            if isinstance(node, ast.Attribute) and _is_call(node.value, names):
                raise SystemExit(f"{SOURCE}: first give the awaited value a name: {ast.unparse(node)}")
            if _is_call(node, names):
                spans.append((source.start(node), source.start(node), "await "))
    return source.replaced(spans)


def _async_methods(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for kind in tree.body:
        for each in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef) and each.name not in PLAIN and not _is_property(each):
                yield each


def _is_property(method: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "property" for each in method.decorator_list)


def _is_call(node: ast.AST, names: set[str]) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
    return is_method and not _calls_backend(node)


def _calls_backend(node: ast.AST | None) -> bool:
    """True if this node calls a method of a backend that may return a coroutine."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr in AT_ONCE:
        return False
    return ast.unparse(node.func.value).rpartition(".")[2] in BACKEND


def await_calls(text: str) -> str:
    """Apply rule 4."""
    source = Text(text)
    spans: list[_Span] = []
    nested = 0
    for node in ast.walk(source.tree):
        nested += _calls_backend(node)
        value = node.value if isinstance(node, (ast.Return, ast.Assign, ast.AnnAssign, ast.Expr)) else None
        if value is not None and _calls_backend(value):
            nested -= 1
            start, end = source.start(node), source.end(node)
            indent = " " * (start - text.rfind("\n", 0, start) - 1)
            before = text[start : source.start(value)]
            last = f"{before}await reply if type(reply) is CoroutineType else reply"
            if isinstance(node, ast.Expr):
                last = f"if type(reply) is CoroutineType:\n{indent}    await reply"
            spans.append((start, end, f"reply = {source.of(value)}\n{indent}{last}"))
    if nested:
        raise SystemExit(f"{SOURCE}: a call of a backend must be a separate statement")
    return source.replaced(spans)


def explain(text: str, name: str) -> str:
    """Apply rule 5. `name`: of the file."""
    source = Text(text)
    top: Any = source.tree.body[0]
    head = PACKAGE if name == "__init__.py" else _translated(name, top.value) + "\n"
    spans: list[_Span] = [(0, source.end(top) + 1, HEADER.format(f"tubes/sync/{name}") + head)]
    for twin, node in _docstrings(source.tree):
        spans.append((source.start(node), source.end(node), _translated(twin, node)))
    return source.replaced(spans)


def arrange_imports(text: str) -> str:
    """Import the names that the rules add, and sort the imports by their new names."""
    if "await asyncio." in text:
        text = text.replace("annotations\n\n", "annotations\n\nimport asyncio\n", 1)
    for module, name in (("collections.abc", "Generator"), ("types", "CoroutineType")):
        if name in re.findall(r"\w+", re.sub(rf"(?m)^from {module} import .*", "", text)):
            line = f"from {module} import "
            text = text.replace("from typing", f"{line}\nfrom typing", 1) if line not in text else text
            text = text.replace(line, f"{line}{name}, ", 1).replace(", \n", "\n", 1)
    inner = r"(?m)^from tubes\.aio\..*\n"
    before, first, after = re.sub(inner, "", text).partition("from tubes.backend")
    text = before + "".join(re.findall(inner, text)) + first + after if first else text
    return re.sub(r"(?m)^( *from [\w.]+ import )(\w+(?:, \w+)*)$", _sorted_import, text)


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Yield the docstrings of functions, classes and methods, each with the name of its twin in `tubes/sync`."""
    for top in tree.body:
        members = top.body if isinstance(top, ast.ClassDef) else []
        kind = NAMES[top.name] if isinstance(top, ast.ClassDef) else "tubes"
        for node in [top, *members]:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node):
                first: Any = node.body[0]
                yield (
                    kind if isinstance(node, ast.ClassDef) else f"{kind}.{NAMES.get(node.name, node.name)}",
                    first.value,
                )


def _translated(name: str, node: ast.Constant) -> str:
    """Return the renamed docstring without its example."""
    text, has_example, _ = inspect.cleandoc(str(node.value)).partition("\n\n>>> ")
    width = WIDTH - node.col_offset
    whole = "\n\n".join(_filled(paragraph, width) for paragraph in f'"""{text}'.split("\n\n"))
    if has_example:
        whole += f"\n\n`{name}` shows an example."
    fits = "\n" not in whole and len(whole) + 3 <= width
    whole += '"""' if fits else '\n"""'
    return textwrap.indent(whole, " " * node.col_offset).lstrip()


def _filled(paragraph: str, width: int) -> str:
    """Return a renamed paragraph, wrapped again; a line break after a short line is kept."""
    parts: list[list[str]] = []
    room = -1
    for line in paragraph.split("\n"):
        if not parts or len(line.split(" ")[0]) < room or re.match(r"`\w+`(, `\w+`)*: ", line):
            parts.append([])
        parts[-1].append(line)
        room = width - len(line)
    return "\n".join(_wrapped(" ".join(part), width) for part in parts)


def _wrapped(text: str, width: int) -> str:
    text = re.sub(r"\b(Queue|Tube|Task|Selection)\b(?!Admin)", r"Async\1", text)
    text = re.sub(r"\b([Aa]) `Async", r"\1n `Async", text)
    for old, new in TEXTS.items():
        text = text.replace(old, new)
    # Keep code on one line.
    text = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def generate() -> dict[Path, str]:
    """Return the unformatted text of each file of `tubes/aio`."""
    sources = {path.name: path.read_text() for path in sorted(SOURCE.glob("*.py"))}
    whole = "".join(sources.values())
    missing = [code for code in CODE if code not in whole] + [
        text for text in TEXTS if text not in " ".join(whole.split())
    ]
    if missing:
        raise SystemExit(f"{SOURCE}: does not contain {missing}, which the rules replace")
    renamed = {name: rename(text) for name, text in sources.items()}
    names = awaited_names(*renamed.values())
    return {
        TARGET / name: arrange_imports(explain(await_calls(wait(text, names)), name)) for name, text in renamed.items()
    }


def format_code(text: str, path: Path) -> str:
    """Return the text, formatted by ruff."""
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Write the files, or compare them with `--check`."""
    made = {path: format_code(text, path) for path, text in generate().items()}
    if "--check" not in sys.argv[1:]:
        for path, text in made.items():
            path.write_text(text)
    elif made != {path: path.read_text() for path in TARGET.glob("*.py")}:
        raise SystemExit(f"{TARGET.relative_to(ROOT)} differs from the files generated from tubes/sync: run make aio")


if __name__ == "__main__":
    main()
