"""Read rows from the pages of a damaged SQLite file.

SQLite finds a row through the parents of its page: a damaged page hides all pages below it. This reader reads each page
of the file by itself, without its parents (https://sqlite.org/fileformat2.html).

- It skips the pages in the list of free pages, because they keep old copies of rows.
- The first byte of a page is 13 for a leaf of a table, 10 for a leaf of a table WITHOUT ROWID, and 2 for an inner page
  of such a table, which also has rows. The header of the page is followed by an array of offsets, one for each cell.
- A cell is the length of a record, its rowid (tables only) and the record. A long record continues on a chain of
  overflow pages.
- A record is a header, with one type for each column, and the values. The number of columns and the types of the first
  two identify the table.

If the list of free pages is damaged, any page may be an old copy. Then only pages that are part of a tree are certain.
The size of a page and the roots of the trees are constants, so a damaged header hides nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tubes.durable.database import PAGE

#: The first bytes of a file.
_MAGIC: Final = b"SQLite format 3\0"
#: The page of the schema, and the roots of the tables and of their index, in the order of `database.SCHEMA`.
_ROOTS: Final = range(1, 9)
_TABLE_LEAF: Final = 13
_TABLE_INNER: Final = 5
_KEY_LEAF: Final = 10
_KEY_INNER: Final = 2
#: Sizes in bytes of integers, by the type of a column.
_INTEGER_SIZES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
#: Values of types without data.
_CONSTANTS: Final = {0: None, 8: 0, 9: 1}
#: SQLite locks bytes of this page, and stores nothing in it.
_LOCK_PAGE: Final = (1 << 30) // PAGE + 1
#: Bytes before the first frame of a log, and before the page in each frame.
_LOG_HEADER, _FRAME_HEADER = 32, 24
#: Exceptions that damaged bytes raise.
_ERRORS: Final = (LookupError, ValueError, struct.error)


class Found(NamedTuple):
    """A row and its table."""

    table: str
    row: tuple[object, ...]
    #: True if the row is on a page in use.
    certain: bool


def read_image(path: Path) -> bytes:
    """Return the content of a file with all complete transactions of its log, ignoring the header of the file."""
    image, log, pages = bytearray(path.read_bytes()), Path(f"{path}-wal"), dict[int, bytes]()
    raw = log.read_bytes() if log.exists() else b""
    most = (len(image) + len(raw)) // PAGE
    for at in range(_LOG_HEADER, len(raw) - _FRAME_HEADER - PAGE + 1, _FRAME_HEADER + PAGE):
        number, is_last, salts = struct.unpack_from(">II8s", raw, at)
        if salts != raw[16:24] or not 0 < number <= most:  # The frame belongs to an older log, or is damaged.
            break
        pages[number] = raw[at + _FRAME_HEADER : at + _FRAME_HEADER + PAGE]
        if is_last:
            for number, page in pages.items():
                image += bytes(max(number * PAGE - len(image), 0))
                image[(number - 1) * PAGE : number * PAGE] = page
            pages.clear()
    return bytes(image)


class Pages:
    """The pages of a file. `rows` counts `lost_pages` and `lost_cells`."""

    def __init__(self, image: bytes) -> None:
        self._image: Final = image
        self._count: Final = len(image) // PAGE
        #: Pages in use that cannot be read.
        self.lost_pages = 0
        #: Rows of readable pages that cannot be read.
        self.lost_cells = 0

    def rows(self) -> Iterator[Found]:
        """Iterate over all readable rows. Cost: O(size of the file)."""
        free, complete = self._find_free()
        certain = None if complete else self._find_reachable()
        read = {_LOCK_PAGE}
        for number in range(1, self._count + 1):
            if number in free:
                continue
            kind, cells = self._cells(number)
            if not kind:
                continue
            read.add(number)
            if kind == _TABLE_INNER:
                continue
            for cell in cells:
                try:
                    overflow, row = self._row(number, kind, cell)
                    table = _table_of(row, has_key=kind == _TABLE_LEAF)
                except _ERRORS:
                    self.lost_cells += 1
                    continue
                read.update(overflow)
                if table:
                    yield Found(table, row, certain is None or number in certain)
        used = range(1, self._count + 1)
        self.lost_pages = sum(number not in read and number not in free for number in used)

    def _page(self, number: int) -> bytes:
        if not 0 < number <= self._count:
            raise ValueError(number)
        return self._image[(number - 1) * PAGE : number * PAGE]

    def _find_free(self) -> tuple[set[int], bool]:
        """Return the free pages, and True if their list is complete."""
        free: set[int] = set()
        if not self._image.startswith(_MAGIC):
            return free, False
        try:
            trunk, count = struct.unpack_from(">II", self._image, 32)
            while trunk and trunk not in free:
                page = self._page(trunk)
                after, length = struct.unpack_from(">II", page)
                leaves = struct.unpack_from(f">{length}I", page, 8)
                if not all(0 < leaf <= self._count for leaf in leaves):
                    raise ValueError(trunk)
                free |= {trunk, *leaves}
                trunk = after
        except _ERRORS:
            return free, False
        return free, len(free) == count

    def _find_reachable(self) -> set[int]:
        """Return the pages that are part of a tree."""
        found: set[int] = set()
        waiting = [*_ROOTS]
        while waiting:
            number = waiting.pop()
            if number in found or not 0 < number <= self._count:
                continue
            found.add(number)
            kind, cells = self._cells(number)
            page = self._page(number)
            if kind in (_TABLE_INNER, _KEY_INNER):
                start = 100 if number == 1 else 0
                waiting += [int.from_bytes(page[at : at + 4], "big") for at in (start + 8, *cells)]
        return found

    def _cells(self, number: int) -> tuple[int, tuple[int, ...]]:
        """Return the type of a page and the offsets of its cells; type 0 if it is not a page of a tree."""
        page, start = self._page(number), 100 if number == 1 else 0
        kind, _, count, content = struct.unpack_from(">BHHH", page, start)
        header = start + (12 if kind in (_TABLE_INNER, _KEY_INNER) else 8)
        end = header + 2 * count
        if kind not in (_TABLE_LEAF, _TABLE_INNER, _KEY_LEAF, _KEY_INNER) or not end <= (content or 65536):
            return 0, ()
        if end > len(page):
            return 0, ()
        return kind, struct.unpack_from(f">{count}H", page, header)

    def _row(self, number: int, kind: int, at: int) -> tuple[list[int], tuple[object, ...]]:
        """Return the overflow pages and the columns of a cell; in a table with rowids, the rowid comes first."""
        page = self._page(number)
        if kind == _KEY_INNER:
            at += 4
        length, at = _varint(page, at)
        key: tuple[int, ...] = ()
        if kind == _TABLE_LEAF:
            rowid, at = _varint(page, at)
            key = (rowid - (1 << 64) if rowid >> 63 else rowid,)
        most = PAGE - 35 if key else (PAGE - 12) * 64 // 255 - 23
        if length <= most:
            if at + length > len(page):
                raise ValueError(length)
            return [], key + _record(page[at : at + length], has_key=bool(key))
        least = (PAGE - 12) * 32 // 255 - 23
        local = least + (length - least) % (PAGE - 4)
        if local > most:
            local = least
        if length > len(self._image):
            raise ValueError(length)
        chain: list[int] = []
        parts, left = [page[at : at + local]], length - local
        after = int.from_bytes(page[at + local : at + local + 4], "big")
        while left > 0:
            part = self._page(after)
            chain.append(after)
            parts.append(part[4 : 4 + left])
            left -= len(parts[-1])
            after = int.from_bytes(part[:4], "big")
        if after:
            raise ValueError(after)
        return chain, key + _record(b"".join(parts), has_key=bool(key))


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number of 1 to 9 bytes, and the offset of the next byte."""
    value = 0
    for index in range(at, at + 8):
        value = value << 7 | raw[index] & 0x7F
        if raw[index] < 0x80:
            return value, index + 1
    return value << 8 | raw[at + 8], at + 9


def _record(raw: bytes, *, has_key: bool) -> tuple[object, ...]:
    """Return the columns of a record, except the column of the rowid, which the cell contains."""
    end, at = _varint(raw, 0)
    kinds: list[int] = []
    while at < end:
        kind, at = _varint(raw, at)
        kinds.append(kind)
    if at != end:
        raise ValueError(end)
    found: list[object] = []
    for kind in kinds:
        size = _INTEGER_SIZES.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        part = raw[at : at + size]
        if len(part) < size:
            raise ValueError(kind)
        at += size
        if kind in _INTEGER_SIZES:
            found.append(int.from_bytes(part, "big", signed=True))
        elif kind >= 12:
            found.append(part.decode("utf-8", "replace") if kind % 2 else part)
        else:
            found.append(struct.unpack(">d", part)[0] if kind == 7 else _CONSTANTS[kind])
    if at != len(raw):
        raise ValueError(at)
    return tuple(found[1:] if has_key and found and found[0] is None else found)


def _table_of(row: tuple[object, ...], *, has_key: bool) -> str:
    """Return the name of a row's table, or "" for another table."""
    first = row[0].__class__
    if has_key:
        return {14: "tasks", 7: "tubes", 5: "done"}.get(len(row), "")
    if first is str and len(row) == 2:
        return "store"
    if first is int and row[1].__class__ is bytes:
        return {4: "keys", 3: "lanes"}.get(len(row), "")
    return ""
