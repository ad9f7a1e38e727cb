"""One environment per peer, in `.peers`: the peers require incompatible versions of redis-py."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import distributions
from typing import Final

from benchmarks.peers.processes import ROOT

FOLDER: Final = ROOT / ".peers"


class CannotInstall(Exception):
    """pip could not install a peer; the message says why."""


def python_of(packages: tuple[str, ...]) -> str:
    """Return a Python with these packages, after installing missing ones; our own without packages.

    Installed packages are kept: remove the folder to get newer versions.
    """
    if not packages:
        return sys.executable
    folder = FOLDER / packages[0].partition("[")[0]
    python = folder / "bin" / "python"
    ready = folder / "ready"
    requirements = "\n".join(packages)
    if ready.exists() and ready.read_text() == requirements:
        return str(python)
    venv.create(folder, clear=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise CannotInstall((errors or done.stderr.splitlines() or ["pip failed"])[-1])
    ready.write_text(requirements)
    return str(python)


def installed() -> dict[str, str]:
    """Return the versions of the installed peers."""
    folders = {str(folder): folder.parents[2].name for folder in FOLDER.glob("*/lib/python*/site-packages")}
    return {
        found.name: found.version
        for path, name in sorted(folders.items())
        for found in distributions(path=[path])
        if found.name == name
    }
