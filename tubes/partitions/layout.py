"""Where the tasks of a partitioned tube are: the names of its partitions, their slots, the routes and the ids.

A partition is a tube with the name `TUBE#NUMBER.COUNT.SUFFIX`. On a cluster the name is the hash tag of its keys, and
the suffix gives it a slot. The partitions of a tube are spread evenly over all slots, from the slot of the tube on, so
each node has its share. With slots by name, of 64 nodes with 64 partitions one would get four times its share, and 28
would get none.
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import cache
from hashlib import blake2b
from itertools import product
from typing import Any, Final

from tubes.drivers.options import SECOND, interval_of_rate

#: The slots of a cluster.
SLOTS: Final = 16_384
#: The bits of an id that have the number of the partition. Ids do not depend on the number of partitions.
_BITS: Final = 14
_LETTERS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX: Final = 4


def slot_of(tag: bytes, start: int = 0) -> int:
    """Return the slot of a hash tag, as Redis Cluster defines it; `start`: the checksum of the text before it."""
    return crc_hqx(tag, start) % SLOTS


@cache
def _suffixes() -> dict[int, str]:
    """Return a suffix for each slot. It takes some 0.1 s, once."""
    found: dict[int, str] = {}
    for letters in product(_LETTERS, repeat=_SUFFIX):
        found.setdefault(slot_of(bytes(letters)), bytes(letters).decode())
        if len(found) == SLOTS:
            break
    return found


def name_of(tube: str, number: int, count: int, namespace: str) -> str:
    """Return the name of a partition."""
    scope = f"{namespace}@" if namespace else ""
    name = f"{tube}#{number}.{count}."
    wanted = (slot_of(f"{scope}{tube}".encode()) + number * SLOTS // count) % SLOTS
    # The checksum is linear: that of a text and a suffix is the checksum of the text and zeros, xor that of the suffix.
    base = slot_of(bytes(_SUFFIX), crc_hqx(f"{scope}{name}".encode(), 0))
    return name + _suffixes()[base ^ wanted]


def route(text: str, count: int) -> int:
    """Return the partition of a lane or a key."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count


def global_id(id: int, number: int) -> int:
    """Return the id of a task in the whole tube."""
    return id << _BITS | number


def local_id(id: int) -> tuple[int, int]:
    """Return the partition of a task, and its id there."""
    return id & (1 << _BITS) - 1, id >> _BITS


def local_range(ids: range, number: int, end: int) -> range:
    """Return the ids in a partition of the tasks with these ids in the whole tube. `end`: the end of an open range."""
    first, stop = (-((number - id) >> _BITS) for id in (ids.start, ids.stop))  # Rounded up.
    return range(first, end if ids.stop == end else stop)


def part_of(total: int, number: int, count: int) -> int:
    """Return the share of a partition of a number, at least 1."""
    return max(total // count + (number < total % count), 1)


def share(options: dict[str, Any], number: int, count: int) -> dict[str, Any]:
    """Return the options of a partition for the options of its tube: its share of the limits of the whole tube."""
    shared = {name: value for name, value in options.items() if name != "partitions"}
    for name in ("capacity", "keep_done_max", "burst"):
        if shared.get(name):
            shared[name] = part_of(shared[name], number, count)
    if shared.get("rate"):
        interval = interval_of_rate("rate", shared["rate"])
        shared["rate"] = SECOND / (interval or 1) / count
    return shared
