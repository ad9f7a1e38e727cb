"""The keys of a tube in addition to its meta hash, and the version of their layout."""

from typing import Final

PARTS: Final = (
    *("tasks", "ready", "taken", "due", "buried", "back", "offers", "behind", "lanes", "rests", "fill", "crowded"),
    *("keys", "known", "done", "ended"),
    *("leases", "waiting", "wanting", "marker", "room", "sealed", "broken"),
)

#: The version of the layout of all keys. The meta hash names it, and a tube with another one is refused.
LAYOUT: Final = 1
