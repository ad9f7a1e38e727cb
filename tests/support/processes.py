"""Starting processes of tests with this Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent.parent


def python(*arguments: object, cwd: Path = ROOT, prefix: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[Any]:
    """Start a Python process with the module path of this process.

    `prefix` is a command that starts it; `env` adds variables; other options are those of `subprocess.Popen`.
    """
    command = [*prefix, sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, cwd=cwd, env=environment | options.pop("env", {}), **options)
