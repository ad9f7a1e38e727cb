"""Unique keys: which living task has which, and which are remembered after their task has gone."""

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


# A known key is a record in a bucket: until when it is remembered, its digest, and the id of its task.
_RECORD: Final = Struct(">QqQ")
_UNTIL: Final = Struct(">Q")
_SIZE: Final = _RECORD.size
_DIGEST: Final = Struct(">q")
# The number of buckets: the last 16 bits of a digest name one.
_BUCKETS: Final = 1 << 16


@lru_cache(maxsize=1024)  # A folder asks for it twice: to remember the key, and to write it.
def stable_digest(key: str) -> int:
    """Return the 64 bits by which a key is known after its task has gone, the same in each process."""
    found: int
    (found,) = _DIGEST.unpack(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return found


#: The same within one process, and quicker: a string keeps its hash. Some builds of Python have hashes of 32 bits.
quick_digest: Final[Callable[[str], int]] = hash if sys.hash_info.width >= 64 else stable_digest


class Keys:
    """The keys of one tube. Expired ones do not count, and are removed bucket by bucket.

    A known key takes 40 bytes where there are a million; with a string, an integer and a tuple each it would take 350.
    """

    def __init__(self, digest_of: Callable[[str], int]) -> None:
        self.living: Final[dict[str, Entry]] = {}
        self._digest_of: Final = digest_of
        # The records of each bucket, the first to expire in front. A bucket is replaced in one step.
        self._known: Final[dict[int, bytes]] = {}

    def find(self, now: int, key: str) -> Entry | int | None:
        """Find the task that has this key, or the id of the one that had it. Cost: O(1)."""
        if (living := self.living.get(key)) is not None:
            return living
        known = self.known(self._digest_of(key)) if self._known else None
        return known[0] if known is not None and known[1] > now else None

    def add(self, key: str, entry: Entry) -> None:
        """Note that a task of this key lives."""
        self.living[key] = entry

    def leave(self, now: int, entry: Entry, *, remember: bool = True) -> None:
        """Note that a task has gone, and remember its key for its `key_ttl`."""
        more = entry.more
        if more is None or (key := more.key) is None or self.living.get(key) is not entry:
            return
        if more.key_ttl and remember:
            self.remember(now, self._digest_of(key), entry.id, now + more.key_ttl)
        elif self._known:
            self._remove(now, self._digest_of(key))
        del self.living[key]

    def known(self, digest: int) -> tuple[int, int] | None:
        """Return the id of the task whose key has this digest, and until when the key is remembered."""
        bucket = self._known.get(digest % _BUCKETS)
        if bucket is None or (at := _find(bucket, digest)) < 0:
            return None
        until, _, id = _RECORD.unpack_from(bucket, at)
        return id, until

    def all_known(self) -> Iterator[int]:
        """Return the digests of all known keys. Cost: O(n)."""
        return (digest for bucket in self._known.values() for _, digest, _ in _RECORD.iter_unpack(bucket))

    def remember(self, now: int, digest: int, id: int, until: int) -> None:
        """Remember the key of this digest until a moment, and remove the expired ones of its bucket."""
        record = _RECORD.pack(until, digest, id)
        bucket = self._known.get(digest % _BUCKETS)
        if bucket is not None:
            if (at := _find(bucket, digest)) >= 0:
                bucket = bucket[:at] + bucket[at + _SIZE :]
            at = len(bucket) if bucket[-_SIZE:] < record else _after(bucket, until)
            record = bucket[_after(bucket, now) : at] + record + bucket[at:]
        self._known[digest % _BUCKETS] = record

    def forget(self, now: int, key: str) -> bool:
        """Forget a remembered key; return whether it was remembered."""
        is_known = isinstance(self.find(now, key), int)
        if is_known:
            self._remove(now, self._digest_of(key))
        return is_known

    def _remove(self, now: int, digest: int) -> None:
        """Remove the record of a digest, and the expired ones of its bucket."""
        number = digest % _BUCKETS
        bucket = self._known.get(number, b"")
        if (at := _find(bucket, digest)) >= 0:
            bucket = bucket[:at] + bucket[at + _SIZE :]
        if bucket := bucket[_after(bucket, now) :]:
            self._known[number] = bucket
        else:
            self._known.pop(number, None)


def _find(bucket: bytes, digest: int) -> int:
    """Return where the record of a digest begins, or a negative number if it is not in the bucket."""
    packed = _DIGEST.pack(digest)
    at = bucket.find(packed)
    while at >= 0 and at % _SIZE != _UNTIL.size:
        at = bucket.find(packed, at + 1)
    return at - _UNTIL.size


def _after(bucket: bytes, moment: int) -> int:
    """Return where the first record begins that expires after a moment."""
    if not bucket or _UNTIL.unpack_from(bucket)[0] > moment:
        return 0
    records = range(0, len(bucket), _SIZE)
    return _SIZE * bisect_right(records, moment, key=lambda at: int(_UNTIL.unpack_from(bucket, at)[0]))
