"""Which tasks a read is about: those of the option `state`, and of the filters that Spark leaves to the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource

from tubes.drivers.moves import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import Filter

    from tubes.spark.server.bulk_read import Table

_STATES: Final = frozenset(state.value for state in State if state is not State.DONE)
#: Ids have 6 bytes: the first number that is none.
_NO_ID: Final = 1 << 48


@dataclass(frozen=True)
class Selection:
    """Tasks in these states, with ids from `first` to before `end`, with these ids, in these lanes; None: whichever."""

    states: frozenset[str] = _STATES
    first: int = 0
    end: int = _NO_ID
    ids: frozenset[int] | None = None
    utubes: frozenset[str] | None = None

    @property
    def is_by_id(self) -> bool:
        """Whether one need not look at a task to know whether it is among them."""
        return self.states == _STATES and self.utubes is None

    def narrowed(self, filter: Filter) -> Selection | None:
        """Those for which this is true, too; None: it is not known here, and left to Spark."""
        match filter:
            case datasource.EqualTo(("id",), int(id)):
                return self._of_ids({id})
            case datasource.In(("id",), values):
                return self._of_ids(value for value in values if isinstance(value, int))
            case datasource.GreaterThanOrEqual(("id",), int(first)):
                return replace(self, first=max(self.first, first))
            case datasource.GreaterThan(("id",), int(before)):
                return replace(self, first=max(self.first, before + 1))
            case datasource.LessThan(("id",), int(end)):
                return replace(self, end=min(self.end, end))
            case datasource.LessThanOrEqual(("id",), int(last)):
                return replace(self, end=min(self.end, last + 1))
            case datasource.EqualTo(("state",), str(state)):
                return replace(self, states=self.states & {state})
            case datasource.In(("state",), values):
                return replace(self, states=self.states.intersection(values))
            case datasource.Not(datasource.EqualTo(("state",), str(state))):
                return replace(self, states=self.states - {state})
            case datasource.EqualTo(("utube",), str(utube)):
                return self._of_lanes({utube})
            case datasource.In(("utube",), values):
                return self._of_lanes(value for value in values if value is not None)
            case datasource.IsNotNull(("id",) | ("state",)):
                return self
            case _:
                return None

    def _of_ids(self, ids: Iterable[int]) -> Selection:
        return replace(self, ids=frozenset(ids) if self.ids is None else self.ids.intersection(ids))

    def _of_lanes(self, utubes: Iterable[str]) -> Selection:
        return replace(self, utubes=frozenset(utubes) if self.utubes is None else self.utubes.intersection(utubes))

    def within(self, ids: Sequence[int]) -> list[int]:
        """Those of these ids, in ascending order, that it may have."""
        return [id for id in ids if self.first <= id < self.end]

    def of(self, table: Table) -> Table:
        """Those of these tasks, whose ids it has, that are in its states and lanes."""
        found = table.having("state", self.states)
        return found if self.utubes is None else found.having("utube", self.utubes)
