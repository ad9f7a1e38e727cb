"""Check the Python blocks of the pages with mypy: `check_examples.py FOLDER`, which gets the programs.

The blocks of a page are one program, as in the tests that run them. A block that begins with `# NAME.py` is a file of
its own. The pages in `STRICT`, with programs to copy, pass `mypy --strict`. In the others, functions may lack
annotations, and a task that was just put may be taken without a check for None.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "drivers/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
STRICT = {"fastapi", "throttling"}
SHORT = (
    "--allow-subclassing-any",
    *(f"--disable-error-code={code}" for code in ("no-untyped-def", "no-untyped-call", "union-attr", "var-annotated")),
)
ENVIRONMENT = {**os.environ, "MYPYPATH": str(ROOT)}
#: Names that programs expect.
GIVEN = dict.fromkeys(
    ("docs_howto_spark-production", "docs_howto_spark-kafka"),
    "from pyspark.sql import SparkSession\n\nspark: SparkSession\n",
)
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# ([\w/]+\.py)\n")


def write(page: Path, folder: Path) -> Path | None:
    """Write the programs of a page into a new folder; return it."""
    blocks = FENCE.findall(page.read_text())
    if not blocks:
        return None
    target = folder / str(page.relative_to(ROOT).with_suffix("")).replace("/", "_")
    for block in blocks:
        named = NAMED.match(block)
        path = target / (named[1] if named else f"{target.name.replace('-', '_')}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != target:
            (path.parent / "__init__.py").touch()
        text = path.read_text() if path.exists() else GIVEN.get(target.name, "")
        path.write_text(f"{text}\n{block}")
    return target


def check(folder: Path, names: list[str], *options: str) -> bool:
    """Check the programs in one folder, as seen from there; return True if they pass."""
    configuration = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    mypy = [sys.executable, "-m", "mypy", *configuration, "--allow-redefinition-new", "--local-partial-types"]
    silent = ["--follow-imports=silent", "--no-error-summary"]
    return subprocess.run([*mypy, *silent, *options, *names], cwd=folder, env=ENVIRONMENT).returncode == 0


def main(folder: Path) -> int:
    """Write and check all programs."""
    shutil.rmtree(folder, ignore_errors=True)
    short: list[str] = []
    passed = True
    for page in PAGES:
        target = write(page, folder)
        if target is None:
            continue
        names = [str(path.relative_to(folder)) for path in sorted(target.rglob("*.py"))]
        if page.stem in STRICT:
            passed &= check(target, ["."])
        elif len(names) > 1:
            passed &= check(target, ["."], *SHORT)
        else:
            short += names
    return 0 if check(folder, short, *SHORT) and passed else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
