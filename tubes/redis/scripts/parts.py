"""The keys of a tube besides its meta hash, and which layout of them this version reads and writes."""

from typing import Final

PARTS: Final = (
    *("tasks", "ready", "taken", "due", "buried", "back", "offers", "behind", "lanes", "rests", "fill", "crowded"),
    *("keys", "known", "done", "ended"),
    *("leases", "waiting", "wanting", "marker", "room", "sealed", "broken"),
)

#: The layout of the keys of tubes without lanes, and with: the meta hash says which one a tube has.
LAYOUTS: Final = (2, 3)
