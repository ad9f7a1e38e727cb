"""Docstrings are written for `help()`; this module turns them into pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sphinx.roles import code_role
from typing_extensions import is_protocol

import tubes
import tubes.aio
import tubes.sync

if TYPE_CHECKING:
    from docutils.nodes import Element, Node
    from docutils.parsers.rst.states import Inliner
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

# Characters. All lines are full, except the last line of a paragraph, and lines that introduce a list.
_FULL = 80
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_MADE_INSIDE = {
    getattr(module, prefix + name)
    for module, prefix in ((tubes.sync, ""), (tubes.aio, "Async"))
    for name in ("Queue", "QueueAdmin", "Tube", "TubeAdmin", "Lane", "Task")
}
# A line that says what an argument means.
_ARGUMENT = re.compile(r"`\w+`(, `\w+`)*: ")


def name_role(
    role: str, rawtext: str, text: str, lineno: int, inliner: Inliner, options: Any = None, content: Any = ()
) -> tuple[list[Node], list[Any]]:
    """Single backticks: a link, where it is a name that the pages have; code elsewhere."""
    if not _NAME.fullmatch(text):
        return code_role("code", rawtext, text, lineno, inliner, {}, content)
    role_of_names: Any = inliner.document.settings.env.get_domain("py").role("obj")
    found: tuple[list[Node], list[Any]] = role_of_names("py:obj", rawtext, text, lineno, inliner, {}, list(content))
    return found


def on_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Make a list of lines that each explain an argument; keep the first line of an error, which is its message."""
    if what == "exception" and lines:
        lines[0] = f":code:`{lines[0]}`"
    made: list[str] = []
    is_in_list = False
    for line in lines:
        if names := _ARGUMENT.match(line):
            if not is_in_list and made and made[-1]:
                made.append("")
            is_in_list = True
            made.append("- " + re.sub(r"`\w+`", r":code:\g<0>", names[0]) + line[names.end() :])
            continue
        if is_in_list and line.endswith(":") and len(line) < _FULL:
            made.append("")
            is_in_list = False
        is_in_list = is_in_list and bool(line)
        made.append(f"  {line}" if is_in_list else line)
    lines[:] = made


def on_signature(
    app: Sphinx, what: str, name: str, thing: object, options: object, signature: str | None, returns: str | None
) -> tuple[str, None] | None:
    """Hide the arguments of classes that users do not create."""
    if not isinstance(thing, type):
        return None
    kind: type[Any] = thing
    is_made = kind not in _MADE_INSIDE and not issubclass(kind, tubes.TubesError) and not is_protocol(kind)
    return None if is_made else ("", None)


def on_missing(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element) -> Node | None:
    """Resolve a reference to a public name: signatures name the module that defines it, pages have it in `tubes`."""
    target = str(node.get("reftarget", ""))
    first, last = target.partition(".")[0], target.rpartition(".")[2]
    if first == "tubes" and last in tubes.__all__:
        public = f"tubes.{last}"
    elif first in tubes.__all__:
        public = f"tubes.{target}"
    else:
        return None
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("name", name_role)
    app.connect("autodoc-process-docstring", on_docstring)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("missing-reference", on_missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
