"""What is said where an extra is not installed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Generator[None]:
    """A package of this extra that is not there: the `ModuleNotFoundError` says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        what = f"tubes.metrics.{extra} needs {error.name}: pip install 'tubes-queue[{extra}]'"
        raise ModuleNotFoundError(what, name=error.name, path=error.path) from error
