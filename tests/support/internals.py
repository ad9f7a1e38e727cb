"""The insides that tests look at."""

from __future__ import annotations

from typing import Any

import tubes


def port_of(tube: tubes.Tube | tubes.AsyncTube) -> Any:
    """What a tube works through, with all that its backend knows."""
    return tube._port
