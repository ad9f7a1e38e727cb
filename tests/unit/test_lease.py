"""Leases as text."""

from __future__ import annotations

import pytest

from tubes import InvalidOption, Lease


def test_lease_of_take_0_is_refused() -> None:
    text = str(Lease.of("mail", 1, 1, 0, 0, 0))
    with pytest.raises(InvalidOption, match="is no lease"):
        Lease(text)
