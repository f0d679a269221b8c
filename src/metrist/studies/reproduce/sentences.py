"""Sentences on lines of their own, as ROUGE-L over summaries wants them."""

from __future__ import annotations

import re

_END = re.compile(r"(?<=[.!?])\s+")


def by_sentence(text: str) -> str:
    """The text with a new line after each full stop, question or exclamation mark that white space follows."""
    return _END.sub("\n", text)
