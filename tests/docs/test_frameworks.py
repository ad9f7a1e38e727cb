"""The pages for web developers: their files are written and tested with the real frameworks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```python\n# ([\w/]+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PYTEST = ("pytest", "-p", "no:cacheprovider", "-p", "tubes_pytest")


@pytest.mark.parametrize(
    ("framework", "command"),
    [
        ("fastapi", (*PYTEST, "test_app.py")),
        ("fastapi", (*PYTEST, "--tubes-url=redis", "test_app.py")),
        ("flask", (*PYTEST, "test_shop.py")),
        ("flask", (*PYTEST, "--tubes-url=redis", "test_shop.py")),
        ("django", ("django", "test", "--settings", "settings")),
    ],
)
def test_framework_page_example_runs(framework: str, command: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip(framework, reason="needs the extra `test`")
    text = (ROOT / f"docs/howto/{framework}.md").read_text()
    files = BLOCK.findall(text)
    assert len(files) == text.count("```python") >= 2
    for name, block in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block)
        if path.parent != tmp_path:  # Like those of `startapp`.
            (path.parent / "__init__.py").touch()
    paths = [tmp_path, ROOT, ROOT / "tubes/testing/discovery", os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"2 passed|3 passed|Ran 2 tests", done.stdout + done.stderr)
