"""Run the suite on every Python of this machine, each in an environment of its own: `make matrix`.

A plain script and not nox, because interpreters are asked what they are: a shim of pyenv bears a version's name whether
it leads somewhere or not.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".matrix"
#: What is looked for; what else is found and new enough is run too. `t`: free-threaded.
WANTED = ("3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
OLDEST = (3, 11)
ASK = """
import sys, sysconfig
print(sys.implementation.name, *sys.version_info[:3], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
"""


class Python(NamedTuple):
    """An interpreter."""

    name: str
    version: tuple[int, int, int]
    path: Path


def candidates(path: str, home: Path) -> Iterator[Path]:
    """What may be an interpreter, by its name: on the PATH, and where pyenv keeps its own."""
    for folder in map(Path, path.split(os.pathsep)):
        if folder.is_dir():
            yield from sorted(file for file in folder.iterdir() if re.fullmatch(r"python3(\.\d+t?)?", file.name))
    yield from sorted((home / ".pyenv/versions").glob("*/bin/python"))


def ask(path: Path) -> Python | None:
    """What an interpreter says that it is; None: it does not run, or is not a CPython that is new enough."""
    try:
        said = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor, micro = map(int, said[1:4])
    if said[0] != "cpython" or (major, minor) < OLDEST:
        return None
    return Python(f"{major}.{minor}{''.join(said[4:])}", (major, minor, micro), path)


def find(path: str, home: Path) -> dict[str, Python]:
    """By name the newest of each version."""
    found: dict[str, Python] = {}
    for candidate in candidates(path, home):
        python = ask(candidate)
        if python is not None and (python.name not in found or python.version > found[python.name].version):
            found[python.name] = python
    return dict(sorted(found.items(), key=lambda item: (item[1].version, item[0])))


def run(python: Python, extras: list[str], arguments: list[str]) -> str:
    """How the suite went: "passed", or what went wrong."""
    folder = ENVIRONMENTS / python.name
    inside = folder / "bin/python"
    is_there = ask(inside) == python._replace(path=inside)  # Of the same patch version.
    if not is_there and subprocess.run([python.path, "-m", "venv", "--clear", folder], check=False).returncode:
        return "could not make an environment"
    install = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*install, "--editable", f"{ROOT}[{','.join(extras)}]"], check=False).returncode:
        return "could not install what the tests need"
    code = subprocess.run([inside, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode
    return "passed" if code == 0 else f"failed: pytest ended with {code}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="test", help="which extras the tests need, with blanks between")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    asked = parser.parse_args()
    found = find(os.environ.get("PATH", ""), Path.home())
    for name in [*WANTED, *(name for name in found if name not in WANTED)]:
        python = found.get(name)
        where = "not found" if python is None else f"{'.'.join(map(str, python.version))} at {python.path}"
        print(f"{name:6} {where}")
    results: dict[str, str] = {}
    for name, python in found.items():
        print(f"\n== {name} ==", flush=True)
        began = time.monotonic()
        results[name] = f"{run(python, asked.extras.split(), asked.arguments)} ({time.monotonic() - began:.0f} s)"
    print()
    for name in [*WANTED, *(name for name in found if name not in WANTED)]:
        print(f"{name:6} {results.get(name, 'not found: not run')}")
    return 0 if results and all(result.startswith("passed") for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
