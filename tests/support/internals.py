"""Access to internals for tests."""

from __future__ import annotations

from typing import Any

import tubes


def port_of(tube: tubes.Tube | tubes.AsyncTube) -> Any:
    """Return the port of a tube, with the state of its backend."""
    return tube._port
