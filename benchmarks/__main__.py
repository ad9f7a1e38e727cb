"""Run all benchmarks or some of them. pytest gets the arguments:

    python -m benchmarks                   all benchmarks
    python -m benchmarks --quick           a quick look: fewer tasks and rounds
    python -m benchmarks --write-readme    all benchmarks, with the result written into benchmarks/speed/README.md
    python -m benchmarks --ratios FILE     all comparisons by name, as JSON
    python -m benchmarks -k wake           the files and tests whose names match

`python -m pytest --help` lists the other options.
"""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    if {"-h", "--help"}.intersection(sys.argv):
        print(__doc__)
        sys.exit()
    # Ignore this warning: the package is already imported, and pytest finds it among installed files.
    spared = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    sys.exit(pytest.main([str(Path(__file__).parent / "speed"), "-W", spared, *sys.argv[1:]]))
