"""Writing plots."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image


def save(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib as a PNG of 64 colours, small enough to commit."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
