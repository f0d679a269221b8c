"""Where a model's tokens lie in the text they were made from.

Tokenizers mark beginnings and continuations of words in their own ways and may change letters; pieces that cannot be
found (added by the tokenizer, or changed beyond recognition) lie nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

#: How tokenizers write that a piece begins (BPE, SentencePiece) or goes on (WordPiece).
_MARKS = ("Ġ", "▁", "##")
#: A piece is looked for this many characters ahead, beyond white space, so that one piece that is not there does not
#: make all after it be taken from the wrong place.
_AHEAD = 12

Span = tuple[int, int] | None


def spans(text: str, pieces: Sequence[str]) -> list[Span]:
    """The start and end of each piece in the text, from left to right; None for a piece that lies nowhere."""
    lowered = _small(text)
    found: list[Span] = []
    place = 0
    for piece in pieces:
        span = _find(lowered, _bare(piece), place)
        found.append(span)
        place = span[1] if span else place
    return found


def _bare(piece: str) -> str:
    for mark in _MARKS:
        # A piece that is nothing but a mark may be that very character.
        if piece.startswith(mark) and len(piece) > len(mark):
            piece = piece[len(mark) :]
    return _small(piece.strip())


def _small(text: str) -> str:
    """Small letters, as many as there were: some letters have no single small one and stay."""
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)


def _find(text: str, piece: str, place: int) -> Span:
    if not piece:
        return None
    while place < len(text) and text[place].isspace():
        place += 1
    start = text.find(piece, place, place + len(piece) + _AHEAD)
    return None if start < 0 else (start, start + len(piece))
