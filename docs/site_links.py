"""Hooks of the documentation site: links to files of the repository that are not pages become plain text, and words
after the language of a block of code, such as `no-run`, are dropped: with them MkDocs sees no block."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s#]+)(?:#[^)\s]*)?\)")
_INFO = re.compile(r"^(```\w+) [^\n]*")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_unused: Any) -> str:
    """Bring the Markdown of a page into the form that MkDocs reads. It calls this for every page."""
    folder = (DOCS / page.file.src_uri).parent
    parts = _FENCE.split(markdown)
    # Every second part is a block of code.
    parts[::2] = [_LINK.sub(lambda match: _keep_or_unlink(match, folder), part) for part in parts[::2]]
    parts[1::2] = [_INFO.sub(r"\1", part, count=1) for part in parts[1::2]]
    return "".join(parts)


def _keep_or_unlink(match: re.Match[str], folder: Path) -> str:
    target = match["target"]
    if "://" in target or (folder / target).resolve().is_relative_to(DOCS):
        return match[0]
    return match["text"]


def on_post_page(output: str, **_unused: Any) -> str:
    """Name the dialog of the search, which the theme leaves without a name for screen readers."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')
