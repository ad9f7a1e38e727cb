"""Names on the pages exist, and existing names are documented. `make docs` checks links and anchors."""

from __future__ import annotations

import re
import tomllib
from html import unescape
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tubes
from tubes.cli.app import app
from tubes.drivers.moves import MOVES
from tubes.drivers.options import OF_TASKS
from tubes.drivers.tube_options import OF_TUBES

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for pattern in ("*.md", "*/README.md", "benchmarks/*/README.md", "docs/**/*.md")
    for page in ROOT.glob(pattern)
}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
GROUPS = [group.typer_instance.info.name for group in app.registered_groups if group.typer_instance]
COMMANDS = {str(name) for name in (*GROUPS, *(command.name for command in app.registered_commands))}
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
MODULES = ("tubes", "tubes.push", "tubes.testing", "tubes.worker")
#: Shell commands: in indented blocks, in `console` blocks after the prompt, between backticks.
TYPED = r"(?:^ {4}|^ {4}.*\* |^\$ |`|\$\()"


def typed(program: str) -> set[str]:
    """Return the first words after the name of a program on the pages."""
    first = re.compile(rf"{TYPED}{program} ([a-z][a-z-]*)", re.MULTILINE)
    return {word for text in PAGES.values() for word in first.findall(text)}


def test_make_targets_in_pages_exist() -> None:
    named = typed("make")
    assert {"demo", "test", "docs", "matrix"} <= named
    assert named - TARGETS == set()


def test_commands_in_pages_exist() -> None:
    named = typed("tubes")
    assert {"put", "top", "stats", "buried"} <= named
    assert named - COMMANDS == set()


def test_all_commands_are_in_the_manual() -> None:
    assert {name for name in COMMANDS if f"`tubes {name}" not in PAGES["docs/cli.md"]} == set()


def test_extras_in_pages_exist() -> None:
    named = {
        name
        for text in PAGES.values()
        for names in re.findall(r"pip install '[\w.-]+\[([\w,-]+)\]'", text)
        for name in names.split(",")
    }
    assert {"hiredis", "msgpack", "test-server", "cli"} <= named
    assert named - EXTRAS.keys() == set()


def test_table_of_extras_lists_their_packages() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| (.*) \|$", PAGES["docs/install.md"], re.MULTILINE)
    listed = {extra: packages.split(", ") for extra, packages in rows}
    assert listed == {
        extra: sorted(re.split(r"[^\w-]", text)[0] for text in requirements if "== 'win32'" not in text)
        for extra, requirements in EXTRAS.items()
        if extra not in ("examples", "bench", "test", "docs", "check")
    }


def test_makefile_installs_existing_extras() -> None:
    (for_tests,) = re.findall(r"^TEST := (.*)$", MAKEFILE, re.MULTILINE)
    stamps = dict(re.findall(r"^(\.venv/\w+): EXTRAS := (.*)$", MAKEFILE, re.MULTILINE))
    installed = {stamp: set(extras.replace("$(TEST)", for_tests).split()) for stamp, extras in stamps.items()}
    assert installed[".venv/check"] == EXTRAS.keys()
    assert {stamp for stamp, extras in installed.items() if extras - EXTRAS.keys()} == set()
    # The demo is the first thing to try, so it must not install Spark and a browser.
    assert installed[".venv/demo"] == {"examples"}


def test_all_public_names_are_in_the_reference() -> None:
    text = "".join(text for name, text in PAGES.items() if name.startswith("docs/reference/"))
    documented = set(re.findall(r"^\.\. (?:auto\w+|py:\w+):: ([\w.]+)", text, re.MULTILINE))
    public_names = {f"{module.__name__}.{name}" for module in map(import_module, MODULES) for name in public(module)}
    assert public_names - documented == set()


def test_all_methods_and_options_are_in_the_tables() -> None:
    methods, options = PAGES["docs/reference/api.md"], PAGES["docs/reference/options.md"]
    public = {name for kind in (tubes.Queue, tubes.Tube) for name in dir(kind) if not name.startswith("_")}
    assert {name for name in public if f"`{name}" not in methods} == set()
    assert {name for name in OF_TASKS.keys() | OF_TUBES.keys() if f"`{name}`" not in options} == set()


def public(module: ModuleType) -> list[str]:
    names: list[str] = module.__all__
    return [name for name in names if not isinstance(getattr(module, name), ModuleType)]


def test_table_of_contents_lists_all_pages() -> None:
    listed = re.findall(r"^ *(?:- file|root): (.*)$", (ROOT / "docs/_toc.yml").read_text(), re.MULTILINE)
    # The README is for the forge and the package index; the site begins with docs/index.md.
    assert sorted(f"{name}.md" for name in listed) == sorted(PAGES.keys() - {"README.md"})


def test_sidebar_has_few_entries_on_its_first_level() -> None:
    assert len(re.findall(r"^ {6}- file: ", (ROOT / "docs/_toc.yml").read_text(), re.MULTILINE)) <= 12


def test_no_two_pages_have_one_title() -> None:
    titles = [text.partition("\n")[0] for name, text in PAGES.items() if name != "README.md"]
    assert sorted(title for title in titles if titles.count(title) > 1) == []


def extension(name: str) -> Any:
    """Import a module of `docs/_ext`."""
    spec = spec_from_file_location(name, ROOT / f"docs/_ext/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: The pages that once existed in docs/howto; a name is never removed from this list.
GUIDES = """
batches cancel crawlee dead-letters deployment django drivers fastapi flask from-later from-lmstfy from-queue
from-rq-celery from-scrapy-redis from-tarantool in-process inspecting leases logging long-jobs namespaces on-call
pauses periodic permissions rate-limits repair results rolling-deploys scrapy serving several-tubes shutdown sizing
spark-production throttling time-in-tests tokens troubleshooting types unique-keys without-python
"""


def sections(page: str) -> set[str]:
    """Return the anchors of the headings of a page, as the built page has them."""
    headings = re.findall(r"^#{1,3} (.*)$", FENCED.sub("", PAGES[page]), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_old_addresses_lead_to_existing_sections() -> None:
    new_addresses: dict[str, str] = extension("moved").NEW_ADDRESSES
    assert {f"{old}.md" for old in new_addresses} & PAGES.keys() == set()
    for old, new in new_addresses.items():
        page, _, section = new.partition("#")
        assert f"{page}.md" in PAGES, old
        assert not section or section in sections(f"{page}.md"), old


def test_each_page_that_once_existed_has_an_address() -> None:
    known = PAGES.keys() | {f"{old}.md" for old in extension("moved").NEW_ADDRESSES}
    assert {f"docs/howto/{name}.md" for name in GUIDES.split()} - known == set()


@pytest.fixture(scope="module")
def drawing() -> Any:
    return extension("drawing")


def test_drawn_diagram_matches_transition_table(drawing: Any) -> None:
    drawn: list[tuple[str | None, str, str]] = []
    for way, lines in re.findall(r'<text class="why" data-way="([^"]*)"[^>]*>(.*?)</text>', drawing.draw()):
        was, to = unescape(way).split(">")
        drawn += [(was or None, to, why) for why in re.findall(r">(\w+)</tspan>", lines)]
    table = [(was and was.letter, move.to.letter, why) for why, rows in MOVES.items() for was, move in rows.items()]
    assert sorted(drawn, key=str) == sorted(table, key=str)


def test_diagram_arrows_touch_boxes_of_their_states(drawing: Any) -> None:
    for was in drawing._POSITIONS:
        for to in drawing._POSITIONS:
            if was is not to:
                start = drawing._border(drawing._POSITIONS[was], drawing._POSITIONS[to])
                off = [
                    abs(a - b) / half for a, b, half in zip(start, drawing._POSITIONS[was], drawing._BOX, strict=True)
                ]
                assert max(off) == pytest.approx(1)


def test_contributing_lists_existing_paths_and_all_packages() -> None:
    block = PAGES["CONTRIBUTING.md"].partition("## Where things are")[2].partition("\n## ")[0]
    named = set(re.findall(r"^    (\S+)", block, re.MULTILINE))
    assert [path for path in named if not (ROOT / path).exists()] == []
    folders = {
        f"{folder.relative_to(ROOT)}/"
        for inside in ("tubes", "tests")
        for folder in (ROOT / inside).glob("*")
        if (folder / "__init__.py").exists() and not folder.is_symlink()
    }
    assert folders - named == set()
