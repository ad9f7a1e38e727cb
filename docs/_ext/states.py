"""Replace the mermaid diagram of the states, which the forge draws, by a drawing of `MOVES`."""

from __future__ import annotations

from docutils import nodes
from drawing import draw
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Mermaid(SphinxDirective):
    """A mermaid diagram, drawn from the table `MOVES`. Tests compare its text with the table."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", draw(), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
