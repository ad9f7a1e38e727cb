"""Built packages contain the imported modules: `drivers/` becomes `tubes.drivers`, without a top-level copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = {f"tubes/drivers/{path.relative_to(ROOT / 'drivers')}" for path in (ROOT / "drivers").rglob("*.py")}
LUA = {f"tubes/drivers/{path.relative_to(ROOT / 'drivers')}" for path in (ROOT / "drivers").rglob("*.lua")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist, and a wheel from it, in an environment that already has setuptools.

    The build uses a copy of the tree, because it writes next to its sources and parallel tests would collide.
    """
    copy = tmp_path_factory.mktemp("tree") / "tubes"
    leave_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=leave_out)
    shutil.copytree(ROOT / ".ci", copy / ".ci")
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    compiling = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(build, capture_output=True, text=True, check=False, env=compiling)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if "warning" in line.lower()] == []
    return out


@pytest.mark.full
def test_wheel_contains_drivers_only_inside_tubes_package(built: Path) -> None:
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    assert names >= SOURCES
    assert names >= LUA
    assert {"tubes/py.typed", "tubes/drivers/README.md"} <= names
    pages = {f"tubes/serve/ui/{path.name}" for path in (ROOT / "tubes/serve/ui").iterdir() if path.is_file()}
    assert pages <= names
    # Modules that Spark, pytest and a shell find by name are top-level.
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"pyspark_tubes", "tubes", "tubes_command", "tubes_pytest"}
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "tubes").rglob("__init__.py")}
    found = {f"{package}/__init__.py" for package in packages}
    assert {name.rpartition("/discovery/")[2] for name in found} <= names


@pytest.mark.full
def test_sdist_contains_drivers_and_test_files(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"drivers/{name.removeprefix('tubes/drivers/')}" for name in SOURCES | LUA} <= names
    for folder in ("tests", "examples", "benchmarks", "docs"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        assert {str(path.relative_to(ROOT)) for path in files} <= names


@pytest.mark.full
def test_installed_wheel_works_without_top_level_drivers_package(built: Path, tmp_path: Path) -> None:
    wheel = next(built.glob("*.whl"))
    target = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    installed = {path.name for path in target.iterdir() if not path.name.endswith(".dist-info")}
    assert installed - {"__pycache__"} == {"bin", "pyspark_tubes", "tubes", "tubes_command", "tubes_pytest"}
    program = f"""
import sys
sys.path.insert(0, {str(target)!r})
import tubes, importlib.metadata
assert tubes.__file__.startswith({str(target)!r}), tubes.__file__
assert tubes.__version__ == importlib.metadata.version("tubes-queue")
with tubes.connect() as queue:
    tube = queue.create_tube("t", "utubettl")
    tube.put("x", utube="a")
    print(tube.take(0).ack().data)
try:
    import drivers
except ImportError:
    print("no drivers")
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n") == ["x", "no drivers", ""]


def test_importing_drivers_folder_directly_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import drivers"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "import tubes.drivers, not drivers" in done.stderr


def test_a_driver_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "plates.py").write_text('import tubes\nLifo = tubes.Driver("plates", order="-id")\n')
    info = tmp_path / "plates-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plates\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tubes.drivers]\nplates = plates:Lifo\n")
    program = """
import tubes
with tubes.connect() as queue:
    tube = queue.create_tube("t", "plates")
    tube.put(1); tube.put(2)
    print(tube.take(0).data)
"""
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "2\n", run.stderr
