"""Labels of speakers before the turns of a dialogue, such as `User:` and `System:`. The shipped models learned from
dialogues without them, and judge replies worse beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from metrist.ratings import Error
from metrist.records import Record

DIALOGUE = "dialogue"
#: A label begins a line. Names of people are left: they may belong to what is said.
_LABEL = re.compile(
    r"^[ \t]*(?:(?i:user|system|human|assistant|bot|chatbot|agent|customer|(?:speaker|person) ?\w{1,2})|[AB]|P[12])"
    r"[ \t]*:[ \t]*",
    re.MULTILINE,
)


class PlainDialogue(NamedTuple):
    """A record without labels of speakers, and where they were cut: each place in the new output with the number of
    characters that are missing up to there."""

    record: Record
    cuts: tuple[tuple[int, int], ...]

    def restore(self, errors: Iterable[Error]) -> tuple[Error, ...]:
        """Errors of the new output at their places in the original one."""
        if not self.cuts:
            return tuple(errors)
        return tuple(
            replace(error, start=self._locate(error.start), end=self._locate(error.end, is_end=True))
            if error.side == "output" and error.start is not None and error.end is not None
            else error
            for error in errors
        )

    def _locate(self, offset: int | None, *, is_end: bool = False) -> int:
        assert offset is not None
        return offset + max((cut for place, cut in self.cuts if place < offset + (not is_end)), default=0)


def remove_speakers(record: Record) -> PlainDialogue:
    """The record without labels of speakers in source and output."""
    cuts, removed = [], 0
    for label in _LABEL.finditer(record.output):
        place = label.start() - removed
        removed += len(label[0])
        cuts.append((place, removed))
    source = record.source and _LABEL.sub("", record.source)
    if not cuts and source == record.source:
        return PlainDialogue(record, ())
    return PlainDialogue(replace(record, source=source, output=_LABEL.sub("", record.output)), tuple(cuts))
