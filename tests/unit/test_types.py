"""What editors and type checkers are told of the API is what it does."""

from __future__ import annotations

from typing import Any

import pytest

import tubes
from tubes.drivers.options import OF_TASKS
from tubes.drivers.tube_options import OF_TUBES


@pytest.mark.parametrize(
    ("told", "checked"),
    [
        # A timeout is a parameter of its own: it says what `put` returns.
        (tubes.PutOptions, OF_TASKS.keys() - {"timeout"}),
        # A call has no key.
        (tubes.TaskOptions, OF_TASKS.keys() - {"timeout", "key", "on_duplicate", "key_ttl"}),
        (tubes.TubeOptions, OF_TUBES.keys()),
    ],
)
def test_the_options_of_type_checkers_are_those_that_are_checked(told: Any, checked: set[str]) -> None:
    assert told.__annotations__.keys() == checked
    assert told.__required_keys__ == set()
