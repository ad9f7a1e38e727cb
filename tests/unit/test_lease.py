"""Leases as text."""

from __future__ import annotations

import pytest

from tubes import InvalidOption, Lease
from tubes.serve.tokens import Leases


def test_lease_of_take_0_is_refused() -> None:
    text = str(Lease.of("mail", 1, 1, 0, 0, 0))
    with pytest.raises(InvalidOption, match="is not a lease"):
        Lease(text)


def test_signed_lease_is_accepted_only_in_its_namespace() -> None:
    leases, lease = Leases(b"secret"), str(Lease.of("mail", 1, 1, 1, 1, 1))
    signed = leases.sign("shop", lease)
    assert leases.read("shop", signed) == Lease(lease)
    for namespace, text in (("other", signed), ("shop", lease), ("shop", signed[:-1]), ("shop", f"{signed}A")):
        with pytest.raises(InvalidOption, match="is not a lease of this namespace"):
            leases.read(namespace, text)
