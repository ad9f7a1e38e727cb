"""Check that the short suite fails for each mutant in `mutants.py`: `python -m tests.mutants`.

A mutant is a copy of the project with one fault. The tests listed for it run first, and if they pass, the whole short
suite.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.table import write_row

_ROOT: Final = Path(__file__).parents[2]
#: Files of the project that no test needs.
_UNUSED: Final = shutil.ignore_patterns(
    ".git", ".venv", ".matrix", ".peers", ".hypothesis", "__pycache__", "build", "dist"
)
#: The timeouts in seconds of the tests of a mutant and of the short suite.
_TIMEOUT: Final = 300
_LONG_TIMEOUT: Final = 1800
#: The result of `Copy.run` for tests that did not end.
_HUNG: Final = "timeout"


class Copy:
    """A copy of the project in which tests run."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder / "project"
        self._output: Final = folder / "output"
        shutil.copytree(_ROOT, self._folder, symlinks=True, ignore=_UNUSED)
        forks = [sys.executable, str(Path(__file__).with_name("forks.py"))]
        self._forks: Final = subprocess.Popen(forks, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, tests: Sequence[str], *options: str, timeout: int = _TIMEOUT) -> str | None:
        """Run tests of the short suite; return the first failed test, `_HUNG`, or None."""
        # Modules imported before pytest cannot be rewritten.
        rewritten = "-Wignore::pytest.PytestAssertRewriteWarning"
        arguments = ["-x", "-q", "-m", "not full", rewritten, *options, *tests]
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        print(
            json.dumps((str(self._folder), timeout, str(self._output), arguments)), file=self._forks.stdin, flush=True
        )
        code = int(self._forks.stdout.readline())
        if code <= 0:
            return _HUNG if code else None
        output = self._output.read_text(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", output, re.MULTILINE)
        if failed is None:
            raise SystemExit(f"pytest failed, but no test did:\n{output[-3000:]}")
        return failed[1]

    def find_killer(self, mutant: Mutant) -> str | None:
        """Run the tests of a mutant, then the whole short suite; return the first failed test, `_HUNG`, or None."""
        path = self._folder / mutant.path
        text = path.read_text()
        path.write_text(mutant.apply(text))
        try:
            for test in mutant.tests:
                killer = self.run([test], "-n0")
                if killer == _HUNG:
                    path.write_text(text)
                    if self.run([test], "-n0") == _HUNG:
                        raise SystemExit(f"{test} also takes more than {_TIMEOUT} s without a mutant")
                if killer is not None:
                    return killer
            short_suite = "-nauto", "--dist=loadscope", "--ignore=tests/mutants"
            return self.run([], *short_suite, timeout=_LONG_TIMEOUT)
        finally:
            path.write_text(text)

    def close(self) -> None:
        """End the program that runs the tests."""
        self._forks.communicate()


def main() -> int:
    """Run the selected mutants and record in the table which test killed each of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("-k", default="", metavar="REGEX", help="only mutants whose paths or names match")
    parser.add_argument("--list", action="store_true", help="list the mutants without running them")
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if re.search(args.k, f"{mutant.path} {mutant.name}")]
    for mutant in chosen:
        mutant.apply((_ROOT / mutant.path).read_text())
    if args.list:
        print(*(f"{mutant.path}: {mutant.name}" for mutant in chosen), sep="\n")
        return 0
    killers: list[str | None] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        try:
            for mutant in chosen:
                killers.append(copy.find_killer(mutant))
                print(f"{mutant.name}: {killers[-1] or 'SURVIVED'}", flush=True)
                write_row(mutant, killers[-1])
            # A test that also fails without a mutant does not count.
            tests = sorted({killer for killer in killers if killer is not None and killer != _HUNG})
            failed = copy.run(tests, "-n0", timeout=_LONG_TIMEOUT) if tests else None
        finally:
            copy.close()
    if failed is not None:
        print(f"fails without a mutant: {failed}")
    return 1 if None in killers or failed is not None else 0


if __name__ == "__main__":
    sys.exit(main())
