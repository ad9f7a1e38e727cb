"""All tests on every Python of this machine, and batches on old versions of Spark: `make matrix`.

Each run has its own environment.
"""

import os
from pathlib import Path

import nox

ROOT = Path(__file__).parent.parent
#: Versions of Python; a `t` means free-threaded.
PYTHONS = ("3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
#: Versions of Spark besides the newest.
OLD_SPARKS = ("4.0", "4.1")
#: Extras that no test needs.
TOOLS = {"check", "docs"}

# The shims of pyenv find only the selected versions, so add the folders of all versions. Nox asks each for its version.
os.environ["PATH"] = os.pathsep.join([*map(str, Path.home().glob(".pyenv/versions/*/bin")), os.environ["PATH"]])

nox.needs_version = ">=2026.10"
nox.options.envdir = str(ROOT / ".matrix")
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after `--` are passed to pytest."""
    session.chdir(ROOT)
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"].keys() - TOOLS
    session.install("--editable", f".[{','.join(sorted(extras))}]")
    parallel = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
    session.run("python", "-m", "pytest", *(session.posargs or parallel))


@nox.session(python=PYTHONS[1])
@nox.parametrize("pyspark", OLD_SPARKS)
def spark(session: nox.Session, pyspark: str) -> None:
    """Run the tests for old versions of Spark; `tests` runs all tests on the newest."""
    if session.posargs:
        session.skip("only the tests after -- are requested")
    session.chdir(ROOT)
    session.install(
        "--editable",
        ".[cli,hiredis,java,test-server]",
        "pytest>=9",
        "pytest-timeout>=2.3",
        "pyarrow>=18",
        f"pyspark=={pyspark}.*",
    )
    # Old versions do not close their sockets.
    session.run("python", "-m", "pytest", "-W", "ignore::ResourceWarning", "tests/spark/test_session_versions.py")
