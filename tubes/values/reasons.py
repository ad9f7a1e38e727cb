"""Why tasks are buried, by kinds of reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def kind_of(reason: str | None) -> str:
    """The kind of a reason: the text before the first colon; `max_attempts: ttr` stays whole.

    >>> kind_of("ValueError: no such address: x@y"), kind_of("max_attempts: ttr"), kind_of(None)
    ('ValueError', 'max_attempts: ttr', 'none')
    """
    if reason is None:
        return "none"
    if reason.startswith("max_attempts: "):
        return " ".join(reason.split()[:2])
    return reason.partition(":")[0].strip()[:60] or "none"


def by_kind(counts: Mapping[str | None, int]) -> dict[str, int]:
    """Counts of reasons as counts of their kinds, the most frequent first, equal ones by name."""
    found: Counter[str] = Counter()
    for reason, count in counts.items():
        found[kind_of(reason)] += count
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))
