"""How `make docs` builds the pages.

Sphinx, because the reference is the docstrings that `help()` shows, by autodoc; with myst-parser, because the pages are
Markdown that reads as well on a forge; furo, because it reads well on a telephone and needs nothing from elsewhere.

The root of the repository is the source, so that pages link to the READMEs as on the forge.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_ext")]

from tubes import __version__  # noqa: E402

project = "tubes"
copyright = "the authors of tubes"
release = __version__

extensions = ["sphinx.ext.autodoc", "myst_parser", "sphinx_copybutton", "sphinx_external_toc"]
extensions += ["docstrings", "moved", "states"]  # in docs/_ext
external_toc_path = "docs/_toc.yml"
include_patterns = ["C*.md", "SECURITY.md", "*/README.md", "benchmarks/*/README.md", "docs/**.md"]
# Folders that are not even looked into.
exclude_patterns = [".*", "build", "dist", "tests", "tubes", "**/__pycache__"]

default_role = "name"
smartquotes = False  # Text in quotes is typed verbatim.
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 95
toc_object_entries_show_parents = "hide"

myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

nitpicky = True
# Pages are built offline, without inventories of other projects.
nitpick_ignore_regex = [
    ("py:obj", ".*"),  # Single backticks of docstrings: links where there is something to link to.
    (
        "py:class",
        r"(abc|aiohttp|asyncio|collections|concurrent|contextlib|datetime|opentelemetry|prometheus_client|pytest|redis)\..*"
        r"|(types|typing_extensions|uuid|yarl)\..*"
        r"|Future|Seconds|Mapping\[str|([\w.]+\.)?[A-Z](_co)?"  # Type variables.
        r"|tubes\.(backend\.(alarms|interface|selecting)|worker\.running)\.\w+"  # Internal types.
        r"|(Async)?Port|Filters",
    ),
]

html_theme = "furo"
html_title = f"tubes {release}"
html_static_path = ["_static"]
html_css_files = ["tubes.css"]
templates_path = ["_templates"]
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = "$ "  # From a console block only the commands are copied, without the prompt and the output.
