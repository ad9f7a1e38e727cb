"""The keys of a tube besides its meta hash, and which layout of them this version reads and writes."""

from typing import Final

PARTS: Final = (
    *("tasks", "ready", "taken", "due", "buried", "back", "offers", "behind", "lanes", "rests"),
    *("keys", "seen"),
    *("leases", "waiting", "wanting", "marker", "room", "sealed", "broken"),
)

#: Made otherwise a tube is refused: the meta hash says which layout it has.
LAYOUT: Final = 2
