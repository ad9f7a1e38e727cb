"""Runs all benchmarks: `python -m benchmarks [--quick | --write-readme]`; what else is given goes to pytest."""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), *sys.argv[1:]]))
