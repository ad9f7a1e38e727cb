"""Runs all benchmarks, or a part of them. What is given goes to pytest:

    python -m benchmarks                   all of it
    python -m benchmarks --quick           a first look: fewer tasks and rounds
    python -m benchmarks --write-readme    all of it, and the result goes into benchmarks/speed/README.md
    python -m benchmarks --ratios FILE     what was compared, by name, as JSON
    python -m benchmarks -k wake           a part, by the names of its files and tests

`python -m pytest --help` tells what else there is.
"""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    if {"-h", "--help"}.intersection(sys.argv):
        print(__doc__)
        sys.exit()
    # This package is imported by now, and pytest finds it among the files of an installed one: no matter.
    spared = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    sys.exit(pytest.main([str(Path(__file__).parent / "speed"), "-W", spared, *sys.argv[1:]]))
