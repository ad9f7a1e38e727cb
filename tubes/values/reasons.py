"""Kinds of reasons for which tasks are buried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The maximum length of a kind in characters, and the first characters of a reason, in which it is looked for.
_KIND_LENGTH: Final = 60
_SEARCHED: Final = 1000


def kind_of(reason: str | None) -> str:
    """Return the kind of a reason: the text before the first colon. `max_attempts: ttr` is a kind of its own.

    >>> kind_of("ValueError: no such address: x@y"), kind_of("max_attempts: ttr"), kind_of(None)
    ('ValueError', 'max_attempts: ttr', 'none')
    """
    if reason is None:
        return "none"
    head = reason[:_SEARCHED]
    if head.startswith("max_attempts: "):
        return " ".join(head.split()[:2])[:_KIND_LENGTH]
    return head.partition(":")[0].strip()[:_KIND_LENGTH] or "none"


def most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort counts of kinds: the largest first, then by name."""
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def has_reason(reason: str | None, wanted: str) -> bool:
    """Return True if a reason, or its kind, is the wanted one."""
    return reason == wanted or kind_of(reason) == wanted
