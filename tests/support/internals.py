"""Access to internals for tests."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import tubes

_CALL = (files("tubes.drivers") / "lua" / "call.lua").read_text()
#: The keys of a tube on a server, without its meta hash.
PARTS = tuple(re.findall(r"'(\w+)'", _CALL.partition("Call.PARTS = {")[2].partition("}")[0]))


def port_of(tube: tubes.Tube | tubes.AsyncTube) -> Any:
    """Return the port of a tube, with the state of its backend."""
    return tube._port
