"""Check that a tag is fit for a release: `check_tag.py v0.1.0`.

The tag must be "v" and the version in src/metrist/_version.py. CHANGELOG.md must have a dated section for that version
as its newest, with nothing left under "Unreleased".
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


def sections() -> dict[str, str]:
    """The changelog's sections by their title, newest first."""
    pieces = re.split(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def main(tag: str) -> None:
    if tag != f"v{version()}":
        sys.exit(f"tag {tag!r} does not match the version: expected 'v{version()}'")
    found = sections()
    if found.pop("Unreleased", "").strip():
        sys.exit(f"CHANGELOG.md has changes under 'Unreleased': move them to '## {version()} - YYYY-MM-DD'")
    newest = next(iter(found), "")
    if not re.fullmatch(rf"{re.escape(version())} - \d{{4}}-\d\d-\d\d", newest):
        sys.exit(f"CHANGELOG.md begins with '## {newest}': expected '## {version()} - YYYY-MM-DD'")
    print(f"{tag} matches the version and the newest section of CHANGELOG.md")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__))
