"""Where the forge draws a mermaid diagram of the states, pages have the one that is drawn from `MOVES`."""

from __future__ import annotations

from docutils import nodes
from drawing import draw
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Mermaid(SphinxDirective):
    """A mermaid diagram: what is drawn is the table, which tests compare with the diagram's text."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", draw(), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
