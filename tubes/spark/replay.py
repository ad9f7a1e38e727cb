"""Start a stream in the past: read the done tasks that a tube keeps, in pages, before any task is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from tubes.spark.server.bulk_read import BulkReader, Table

if TYPE_CHECKING:
    from tubes.sync import Tube

_NAME: Final = "replay"


class Replay(NamedTuple):
    """The position of a replay, stored in an offset as `replay`. Times are microseconds since 1970."""

    #: Replay the tasks that ended from `since` to `to`.
    since: int
    to: int
    #: Tasks whose keep_done ends by this time have been read; None: the replay is complete.
    read: int | None

    @classmethod
    def begin(cls, tube: Tube, since: int) -> Replay:
        """Start a replay of the tasks that ended since then, until now."""
        return cls(since, BulkReader(tube).now(), since)

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Replay | None:
        return cls(*offset[_NAME]) if _NAME in offset else None

    def page(self, tube: Tube, count: int) -> Replay:
        """Return the position after a page of `count` tasks. Tasks that ended in one call stay on one page."""
        assert self.read is not None
        return self._replace(read=BulkReader(tube).find_page_end(self.read, count))

    def ids(self, tube: Tube, start: Replay | None) -> list[int]:
        """Return the ids of the done tasks between two positions, with some that `tables` filters out."""
        # If Spark repeats its first batch, the replay starts again, perhaps from another time.
        read = self.since if start is None else start.read
        return [] if read is None else BulkReader(tube).list_kept_between(read, self.read)

    def to_offset(self) -> dict[str, object]:
        return {_NAME: list(self)}


@dataclass
class ReplayPartition(InputPartition):
    """A partition: done tasks of a replay."""

    replay: Replay
    ids: list[int]

    def tables(self, tube: Tube) -> Iterator[Table]:
        """Read the tasks that are still kept."""
        return BulkReader(tube).done(self.ids, data=True, since=self.replay.since - 1, to=self.replay.to)
