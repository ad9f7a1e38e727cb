"""The keys of a tube in addition to its meta hash, and the layouts that this version reads and writes."""

from typing import Final

PARTS: Final = (
    *("tasks", "ready", "taken", "due", "buried", "back", "offers", "behind", "lanes", "rests", "fill", "crowded"),
    *("keys", "known", "done", "ended"),
    *("leases", "waiting", "wanting", "marker", "room", "sealed", "broken"),
)

#: The layout of tubes without lanes, and of tubes with lanes. The meta hash names the layout of a tube.
LAYOUTS: Final = (2, 3)
