"""How a stream starts in the past: with the done tasks that a tube keeps, page by page, before it takes any."""

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
    """How far it has come. An offset has it as `replay`, with moments in microseconds since 1970."""

    #: The tasks that ended from this moment on, and up to that one.
    since: int
    to: int
    #: All that are forgotten up to this moment were read; None: it is over.
    read: int | None

    @classmethod
    def begin(cls, tube: Tube, since: int) -> Replay:
        """What has ended since then, and until now."""
        return cls(since, BulkReader(tube).now(), since)

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Replay | None:
        """That of an offset; None: it has none."""
        return cls(*offset[_NAME]) if _NAME in offset else None

    def page(self, tube: Tube, most: int) -> Replay:
        """Where a page of so many tasks ends; tasks that one call has ended stay together."""
        assert self.read is not None
        return self._replace(read=BulkReader(tube).kept_page(self.read, most))

    def ids(self, tube: Tube, start: Replay | None) -> list[int]:
        """The ids of the done tasks between two places, and of some that `tables` leaves out."""
        # If Spark repeats its first batch, that begins anew at another moment, or with another option.
        read = self.since if start is None else start.read
        return [] if read is None else BulkReader(tube).kept_between(read, self.read)

    def named(self) -> dict[str, Any]:
        """What an offset has of it."""
        return {_NAME: list(self)}


@dataclass
class Kept(InputPartition):
    """Done tasks of a replay."""

    replay: Replay
    ids: list[int]

    def tables(self, tube: Tube) -> Iterator[Table]:
        """Those of them that are still kept."""
        return BulkReader(tube).done(self.ids, data=True, since=self.replay.since - 1, to=self.replay.to)
