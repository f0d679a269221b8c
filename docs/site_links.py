"""A hook of the documentation site: links to files of the repository that are not pages become plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s#]+)(?:#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_unused: Any) -> str:
    """Replace links that lead out of the folder of pages. MkDocs calls this for every page."""
    folder = (DOCS / page.file.src_uri).parent
    parts = _FENCE.split(markdown)
    # Every second part is a block of code.
    parts[::2] = [_LINK.sub(lambda match: _keep_or_unlink(match, folder), part) for part in parts[::2]]
    return "".join(parts)


def _keep_or_unlink(match: re.Match[str], folder: Path) -> str:
    target = match["target"]
    if "://" in target or (folder / target).resolve().is_relative_to(DOCS):
        return match[0]
    return match["text"]
