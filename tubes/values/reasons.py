"""Kinds of reasons for which tasks are buried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

#: The maximum length of a kind in characters.
KIND_LENGTH: Final = 60


def kind_of(reason: str | None) -> str:
    """Return the kind of a reason: the text before the first colon. `max_attempts: ttr` is a kind of its own.

    >>> kind_of("ValueError: no such address: x@y"), kind_of("max_attempts: ttr"), kind_of(None)
    ('ValueError', 'max_attempts: ttr', 'none')
    """
    if reason is None:
        return "none"
    if reason.startswith("max_attempts: "):
        return " ".join(reason.split()[:2])
    return reason.partition(":")[0].strip()[:KIND_LENGTH] or "none"


def by_kind(counts: Mapping[str | None, int]) -> dict[str, int]:
    """Sum counts of reasons by kind; sort by count, largest first, then by name."""
    found: Counter[str] = Counter()
    for reason, count in counts.items():
        found[kind_of(reason)] += count
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def has_reason(reason: str | None, wanted: str) -> bool:
    """Return True if a reason, or its kind, is the wanted one."""
    return reason == wanted or kind_of(reason) == wanted
