"""Unique keys: the keys of living tasks, and known keys, which are remembered after their task has ended."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry


# A known key is a record in a bucket: its expiry, its digest, and the id of its task.
_RECORD: Final = Struct(">QqQ")
_END: Final = Struct(">Q")
_SIZE: Final = _RECORD.size
_DIGEST: Final = Struct(">q")
# The number of buckets: the last 16 bits of a digest are the number of its bucket.
_BUCKETS: Final = 1 << 16


@lru_cache(maxsize=1024)  # A folder needs it twice: to remember the key, and to write it.
def stable_digest(key: str) -> int:
    """Return the 64-bit digest of a known key, the same in each process."""
    found: int
    (found,) = _DIGEST.unpack(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return found


#: A digest that is the same within one process only, and faster. Some builds of Python have hashes of 32 bits.
quick_digest: Final[Callable[[str], int]] = hash if sys.hash_info.width >= 64 else stable_digest


class Keys:
    """The keys of one tube. Expired keys do not count, and are removed bucket by bucket.

    At a million known keys each takes 40 bytes; as a string, an integer and a tuple it would take 350.
    """

    def __init__(self, digest_of: Callable[[str], int]) -> None:
        self.living: Final[dict[str, Entry]] = {}
        self._digest_of: Final = digest_of
        # The records of each bucket, ordered by their expiry. A bucket is replaced in one step.
        self._known: Final[dict[int, bytes]] = {}

    def find(self, now: int, key: str) -> Entry | int | None:
        """Return the task with this key, or the id of the ended task whose key is remembered, or None. Cost: O(1)."""
        if (living := self.living.get(key)) is not None:
            return living
        known = self.find_known(self._digest_of(key)) if self._known else None
        return known[0] if known is not None and known[1] > now else None

    def add(self, key: str, entry: Entry) -> None:
        self.living[key] = entry

    def leave(self, now: int, entry: Entry, *, remember: bool = True) -> None:
        """Remove the key of a task that ends, and remember it for its `key_ttl`."""
        extras = entry.extras
        if extras is None or (key := extras.key) is None or self.living.get(key) is not entry:
            return
        if extras.key_ttl and remember:
            self.remember(now, self._digest_of(key), entry.id, now + extras.key_ttl)
        elif self._known:
            self._remove(now, self._digest_of(key))
        del self.living[key]

    def find_known(self, digest: int) -> tuple[int, int] | None:
        """Return the id of the task and the expiry of a known key."""
        bucket = self._known.get(digest % _BUCKETS)
        if bucket is None or (at := _find(bucket, digest)) < 0:
            return None
        until, _, id = _RECORD.unpack_from(bucket, at)
        return id, until

    def all_known(self) -> Iterator[int]:
        """Return the digests of all known keys. Cost: O(n)."""
        return (digest for bucket in self._known.values() for _, digest, _ in _RECORD.iter_unpack(bucket))

    def remember(self, now: int, digest: int, id: int, until: int) -> None:
        """Remember the key with this digest until `until`, and remove the expired keys of its bucket."""
        record = _RECORD.pack(until, digest, id)
        bucket = self._known.get(digest % _BUCKETS)
        if bucket is not None:
            if (at := _find(bucket, digest)) >= 0:
                bucket = bucket[:at] + bucket[at + _SIZE :]
            at = len(bucket) if bucket[-_SIZE:] < record else _offset_after(bucket, until)
            record = bucket[_offset_after(bucket, now) : at] + record + bucket[at:]
        self._known[digest % _BUCKETS] = record

    def forget(self, now: int, key: str) -> bool:
        """Forget a known key; return whether it was known."""
        is_known = isinstance(self.find(now, key), int)
        if is_known:
            self._remove(now, self._digest_of(key))
        return is_known

    def _remove(self, now: int, digest: int) -> None:
        """Remove the record of a digest, and the expired records of its bucket."""
        number = digest % _BUCKETS
        bucket = self._known.get(number, b"")
        if (at := _find(bucket, digest)) >= 0:
            bucket = bucket[:at] + bucket[at + _SIZE :]
        if bucket := bucket[_offset_after(bucket, now) :]:
            self._known[number] = bucket
        else:
            self._known.pop(number, None)


def _find(bucket: bytes, digest: int) -> int:
    """Return the offset of the record of a digest, or a negative number if it is not in the bucket."""
    packed = _DIGEST.pack(digest)
    at = bucket.find(packed)
    while at >= 0 and at % _SIZE != _END.size:
        at = bucket.find(packed, at + 1)
    return at - _END.size


def _offset_after(bucket: bytes, moment: int) -> int:
    """Return the offset of the first record that expires after a moment."""
    if not bucket or _END.unpack_from(bucket)[0] > moment:
        return 0
    records = range(0, len(bucket), _SIZE)
    return _SIZE * bisect_right(records, moment, key=lambda at: int(_END.unpack_from(bucket, at)[0]))
