"""All tests on every Python of this machine, each in an environment of its own: `make matrix`."""

import os
from pathlib import Path

import nox

ROOT = Path(__file__).parent.parent
#: With a `t`: free-threaded.
PYTHONS = ("3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
#: Tools of a developer, which no test needs.
TOOLS = {"check", "docs"}

# Shims of pyenv lead to some versions only; nox asks what it finds what it is.
os.environ["PATH"] = os.pathsep.join([*map(str, Path.home().glob(".pyenv/versions/*/bin")), os.environ["PATH"]])

nox.needs_version = ">=2026.10"
nox.options.envdir = str(ROOT / ".matrix")
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests; what stands behind `--` goes to pytest."""
    session.chdir(ROOT)
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"].keys() - TOOLS
    session.install("--editable", f".[{','.join(sorted(extras))}]")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "auto"]))
