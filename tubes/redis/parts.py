"""The keys of a tube besides its meta hash."""

from typing import Final

PARTS: Final = (
    *("tasks", "ready", "taken", "due", "buried", "back", "offers", "behind", "lanes", "rests"),
    *("keys", "seen"),
    *("leases", "waiting", "marker", "room", "sealed"),
)
