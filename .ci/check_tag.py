"""Check that a tag is fit for a release: `check_tag.py v0.1.0`.

The tag must be "v" and the version in src/metrist/_version.py, and CHANGELOG.md must have a dated section for it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    text = (ROOT / "src" / "metrist" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if not found:
        sys.exit('src/metrist/_version.py has no line __version__ = "..."')
    return found[1]


def main(tag: str) -> None:
    if tag != f"v{version()}":
        sys.exit(f"tag {tag!r} does not match the version: expected 'v{version()}'")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[?{re.escape(version())}\]? - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no section '## {version()} - YYYY-MM-DD'")
    print(f"{tag} matches the version, and CHANGELOG.md has a dated section for it")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__))
