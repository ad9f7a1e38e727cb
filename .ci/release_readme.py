"""Print the README of a release, whose links lead to the files of a tag: `release_readme.py REPOSITORY TAG <README.md`.

Package indexes do not resolve relative links.
"""

import re
import sys

repository, tag = sys.argv[1:]


def absolute(link: re.Match[str]) -> str:
    """Return the link with the address of its file; pictures need the file itself instead of its page."""
    kind = "raw" if link["picture"] else "blob"
    return f"{link['text']}({repository}/{kind}/{tag}/{link['path']})"


sys.stdout.write(re.sub(r"(?P<text>(?P<picture>!)?\[[^]]*\])\((?P<path>[^):]+)\)", absolute, sys.stdin.read()))
