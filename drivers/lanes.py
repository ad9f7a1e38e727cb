"""Lanes: of each one, at most one task is taken at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.drivers.ready import Ready

if TYPE_CHECKING:
    from tubes.drivers.entry import Entry


class Lanes:
    """The lanes of a tube. The best ready task of every free lane is on offer, the others stand behind it.

    So a take looks only at what may be taken, however many tasks wait behind busy lanes.
    """

    def __init__(self, offers: Ready, *, newest_first: bool) -> None:
        self.offers: Final = offers
        self.newest_first: Final = newest_first
        self.by_name: Final[dict[str, Lane]] = {}
        # The lane that was forgotten last: many lanes are made for one task each.
        self._spare: Lane | None = None

    def make(self, name: str) -> Lane:
        """A new lane."""
        lane = self._spare or Lane(self)
        self._spare = None
        lane.name = name
        self.by_name[name] = lane
        return lane

    def forget(self, lane: Lane) -> None:
        """Leave nothing of a lane without tasks."""
        del self.by_name[lane.name]
        lane.behind = None
        self._spare = lane


class Lane:
    """One lane: how many of its tasks live, whether one is taken, which one is on offer, what stands behind it."""

    __slots__ = ("behind", "head", "lanes", "living", "name", "taken")

    def __init__(self, lanes: Lanes) -> None:
        self.name = ""
        self.lanes: Final = lanes
        self.living = 0
        self.taken = False
        self.head: Entry | None = None
        self.behind: Ready | None = None

    def push(self, entry: Entry) -> None:
        """A task of the lane is ready: on offer if it is plainly the best one of a free lane, else behind.

        Where others stand behind a lane that has just become free, whoever is best among all of them is up to `offer`.
        """
        head = self.head
        if self.taken or (head.rank < entry.rank if head is not None else self.behind is not None):
            self._stand_behind(entry)
            return
        if head is not None:
            self.lanes.offers.discard(head)
            self._stand_behind(head)
        self.head = entry
        self.lanes.offers.push(entry)

    def offer(self) -> None:
        """Put the best task that stands behind on offer. For a free lane that has none there."""
        if self.behind is not None:
            self.head = self.behind.pop()
            if self.head is None:
                self.behind = None
            else:
                self.lanes.offers.push(self.head)

    def _stand_behind(self, entry: Entry) -> None:
        if self.behind is None:
            self.behind = Ready(newest_first=self.lanes.newest_first, short=True)
        self.behind.push(entry)
