"""Outputs with their texts as parts of a page: errors marked with their reasons on hover and focus, and two outputs of
an item side by side with the words that differ marked.

Every text is escaped, shown in a box of its own, and cut where it is very long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from itertools import count, pairwise
from typing import Any

from metrist.errors import format_count
from metrist.report.errors import SEVERITIES, NumberedError, describe_error, locate_errors, rank_severity, split_text
from metrist.report.tables import escape_controls, format_number
from metrist.report.worst import PEOPLE, ScoredOutput, WorstEntry, WorstOutputs

#: More characters of one text are not put on a page.
MAX_CHARACTERS = 20_000
#: Without errors, characters shown at either end of a long text, and the longest middle that is shown as well.
_CONTEXT, _LONGEST = 500, 400
#: Texts with more words are not compared word by word.
_MAX_WORDS = 1500
_MAX_REFERENCES = 3
#: A word, a space, or one character of a script that is written without spaces.
_WORDS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+|\s+|[^\w\s]")


def clean_text(text: str) -> str:
    """A text with its line breaks, and all other control characters made visible."""
    return "\n".join(escape_controls(line.replace("\t", "    ")) for line in text.split("\n"))


def html_text(text: str) -> str:
    """A text for a page, with its line breaks."""
    return escape(clean_text(text))


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a text: `severity` is that of the worst error in it, `notes` say what its errors are, and `changed`
    that the other text does not have it. A `gap` stands for what is left out."""

    text: str
    severity: str = ""
    notes: tuple[str, ...] = ()
    changed: bool = False
    gap: bool = False

    def plain(self) -> Any:
        """As data for the page's script: the text alone where there is nothing more to say."""
        return [self.text, self.severity, list(self.notes)] if self.severity else self.text


def cut_pieces(
    text: str,
    errors: Sequence[NumberedError] = (),
    changes: Sequence[tuple[int, int]] = (),
    *,
    names: Mapping[int, str] | None = None,
    whole: bool = False,
) -> Iterator[Piece]:
    """The text cut where errors and changes begin and end. `names` are those who found the errors, by their numbers."""
    shown = text[:MAX_CHARACTERS]
    spans = [(e.start or 0, min(e.end or 0, len(shown))) for _, e in errors if (e.start or 0) < len(shown)]
    borders = {border for span in (*spans, *changes) for border in span if border <= len(shown)}
    longest = None if whole else _LONGEST
    for part in split_text(shown, [*spans, *changes], longest=longest, context=_CONTEXT):
        if not part.shown:
            yield Piece(f" … {part.end - part.start:,} characters … ", gap=True)
            continue
        cuts = sorted({part.start, part.end, *(border for border in borders if part.start < border < part.end)})
        for start, end in pairwise(cuts):
            inside = [(n, e) for n, e in errors if (e.start or 0) <= start < end <= (e.end or 0)]
            ranks = [rank_severity(error) for _, error in inside]
            by = names or {}
            yield Piece(
                clean_text(shown[start:end]),
                SEVERITIES[min(ranks)] if ranks else "",
                tuple(f"{n}. {describe_error(e)}{f' ({by[n]})' if n in by else ''}" for n, e in inside),
                changed=any(first <= start < end <= last for first, last in changes),
            )
    if len(text) > len(shown):
        yield Piece(f" … {len(text) - len(shown):,} more characters are not shown", gap=True)


def find_changes(first: str, second: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The stretches of each text that the other does not have, word by word; none for very long texts."""
    words = [list(_WORDS.finditer(text[:MAX_CHARACTERS])) for text in (first, second)]
    if max(map(len, words)) > _MAX_WORDS:
        return [], []
    matcher = SequenceMatcher(None, [m.group() for m in words[0]], [m.group() for m in words[1]], autojunk=False)
    changes: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for kind, *limits in matcher.get_opcodes():
        if kind == "equal":
            continue
        for side, (start, end) in enumerate((limits[:2], limits[2:])):
            own = [match for match in words[side][start:end] if not match.group().isspace()]
            if own:
                changes[side].append((own[0].start(), own[-1].end()))
    return changes


class CardWriter:
    """Writes outputs as HTML; it counts, so that every tip on a page has an identifier of its own."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def write_entries(self, outputs: WorstOutputs) -> str:
        """All entries, one below the other, and the outputs without a score."""
        cards = [self.write_entry(rank, entry, outputs.decimals) for rank, entry in enumerate(outputs.entries, 1)]
        if outputs.failures:
            listed = "".join(f"<li>{html_text(failed.describe_failure())}</li>" for failed in outputs.failures)
            cards.append(
                f'<details class="fold"><summary>Not scored</summary><ul class="plain">{listed}</ul></details>'
            )
        return "\n".join(cards)

    def write_entry(self, rank: int, entry: WorstEntry, decimals: Mapping[str, int]) -> str:
        """One output, or two side by side."""
        first, *others = entry.outputs
        title = f"{rank}. {first.shown_item}" + ("" if others else f" · system {first.shown_system}")
        parts = [f"<h3>{html_text(title)}</h3>"]
        if entry.reason:
            parts.append(f'<p class="reason">{html_text(entry.reason)}</p>')
        changes: list[Sequence[tuple[int, int]]] = [() for _ in entry.outputs]
        if len(others) == 1 and first.record and others[0].record:
            changes = list(find_changes(first.record.output, others[0].record.output))
        columns = []
        for output, own in zip(entry.outputs, changes, strict=True):
            columns.append(self._write_output(output, own, decimals, output.shown_system if others else ""))
        parts.append(f'<div class="{"beside" if others else "single"}">{"".join(columns)}</div>')
        parts.append(self._write_context(first))
        return f'<article class="card">{"".join(parts)}</article>'

    def _write_output(
        self,
        output: ScoredOutput,
        changes: Sequence[tuple[int, int]],
        decimals: Mapping[str, int],
        heading: str,
    ) -> str:
        errors, names = output.number_errors()
        parts = [f"<h4>{html_text(heading)}</h4>" if heading else "", _write_scores(output, decimals)]
        if output.record:
            pieces = cut_pieces(output.record.output, locate_errors(errors, "output"), changes, names=names)
            parts.append(self.write_text(pieces, label="output"))
        if errors:
            lines = "".join(
                f'<li class="{SEVERITIES[rank_severity(error)]}" value="{number}">'
                f'{html_text(describe_error(error))} <span class="soft">({html_text(names[number])})</span></li>'
                for number, error in errors
            )
            parts.append(f'<ol class="errors">{lines}</ol>')
        for name, score in output.scores.items():
            if score.failure:
                parts.append(f'<p class="remark"><b>{html_text(name)}</b>: no score: {html_text(score.failure)}</p>')
            if score.explanation:
                said = self.write_text(cut_pieces(score.explanation), label=f"{name} says")
                parts.append(f'<div class="remark">{said}</div>')
        return f'<div class="output">{"".join(parts)}</div>'

    def write_text(self, pieces: Iterator[Piece] | Sequence[Piece], label: str) -> str:
        """A text under its name. dir="auto" lets the browser set each text in its own direction."""
        shown = "".join(map(self._write_piece, pieces))
        return f'<div class="text"><span class="label">{html_text(label)}</span><div dir="auto">{shown}</div></div>'

    def _write_piece(self, piece: Piece) -> str:
        text = escape(piece.text)
        if piece.gap:
            return f'<span class="gap">{text}</span>'
        if piece.changed:
            text = f'<b class="changed">{text}</b>'
        if not piece.severity:
            return text
        identifier = f"tip-{next(self._numbers)}"
        tips = "".join(f"<span>{html_text(note)}</span>" for note in piece.notes)
        return (
            f'<mark class="{piece.severity}" tabindex="0" aria-describedby="{identifier}">{text}'
            f'<span class="tip" role="tooltip" id="{identifier}">{tips}</span></mark>'
        )

    def _write_context(self, output: ScoredOutput) -> str:
        """References, then instruction and source, which are folded up."""
        record = output.record
        if record is None:
            return ""
        parts = []
        references = record.references[:_MAX_REFERENCES]
        for number, reference in enumerate(references, 1):
            label = "reference" if len(record.references) == 1 else f"reference {number}"
            parts.append(self.write_text(cut_pieces(reference), label))
        if len(record.references) > len(references):
            more = format_count(len(record.references) - len(references), "more reference")
            parts.append(f'<p class="soft">… and {more}</p>')
        if record.instruction:
            parts.append(self.write_text(cut_pieces(record.instruction), "instruction"))
        if record.source:
            errors, names = output.number_errors()
            pieces = cut_pieces(record.source, locate_errors(errors, "source"), names=names)
            parts.append(self.write_text(pieces, "source"))
        if not parts:
            return ""
        return f'<details class="context"><summary>References and source</summary>{"".join(parts)}</details>'


def _write_scores(output: ScoredOutput, decimals: Mapping[str, int]) -> str:
    """Each metric's score with the percentile that matters here, then people's mean ratings."""
    shown = [
        (name, format_number(score.value, decimals.get(name, 3)), output.percentiles.get(name))
        for name, score in output.scores.items()
    ]
    shown += [(f"{PEOPLE}: {aspect}", f"{mean:.3g}", None) for aspect, (mean, _) in output.ratings.items()]
    if PEOPLE in output.percentiles:
        shown.append((PEOPLE, "", output.percentiles[PEOPLE]))
    cells = "".join(
        f"<li>{html_text(name)} <b>{value}</b>{'' if rank is None else f' <i>percentile {rank:.0f}</i>'}</li>"
        for name, value, rank in shown
    )
    return f'<ul class="scores">{cells}</ul>' if cells else ""
