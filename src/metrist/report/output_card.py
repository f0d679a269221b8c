"""One output with all that is known about it: scores, marked errors, reasons, references and source.

`OutputCard` is the data. `card_text` draws it as plain text, Markdown and on a terminal, the macros of
`templates/output_card.html` draw it on pages and in notebooks, and `OutputCard.for_script` is what
`static/output_card.js` draws in the viewer, the playground and the explorer of a report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal

from metrist.errors import escape_controls, format_count, label_item
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.cells import format_number, or_none
from metrist.report.heat import Reading, find_step, format_probability
from metrist.scores import Score

#: From the worst on; where errors overlap, the worst gives the colour. An unknown severity is shown as the last.
SEVERITIES = ("critical", "major", "minor", "neutral")
#: The name of people where metrics are named.
PEOPLE = "people"
#: More characters of one text are not put on a page.
MAX_CHARACTERS = 20_000
#: Characters shown of a passage of the source.
_MAX_PASSAGE = 300
#: What an explanation says about places in the source.
_PLACES = re.compile(r" ?The nearest passage, characters \d+ to \d+ of the source: “[^”]*”| \(characters \d+ to \d+\)")
#: Readings shown per output; a set of seventy prompts gives seventy.
MAX_READINGS = 6
#: A stretch without errors of more lines than this is left out, except for its ends.
_LONG_LINES = 20
#: How many characters more the end of a gap takes at most to reach the end of a word.
_MAX_WORD = 30
#: Texts with more words are not compared word by word.
_MAX_WORDS = 1500
#: A word, a space, or one character of a script that is written without spaces.
_WORDS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+|\s+|[^\w\s]")

NumberedError = tuple[int, Error]
TextName = Literal["instruction", "source", "output"]


def identify_error(error: Error, finder: str) -> Error:
    """What tells an error from others: metrics that say the same of the same words found one error; people are told
    apart."""
    return error if finder == PEOPLE else replace(error, rater=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCard:
    """One output with all that is known about it. `record` is None where its texts could not be read.

    `percentiles` are its ranks by the metrics, and by people, that it was selected for. `ratings` are the mean and the
    number of people's ratings by aspect. `errors` are those that people marked or, where the card is about one metric,
    those that the metric `by` found; `note` is a remark on its answer. `run` names the run where there are two.
    `number` is the position of the item among those of its run, counted from 1. `readings` are the probabilities of the
    words behind the score by the metric `by`.
    """

    item: str
    system: str
    scores: Mapping[str, Score] = field(default_factory=dict)
    record: Record | None = None
    percentiles: Mapping[str, float] = field(default_factory=dict)
    ratings: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    errors: tuple[Error, ...] = ()
    run: str | None = None
    number: int | None = None
    by: str | None = None
    note: str | None = None
    readings: Sequence[Reading] = ()

    @property
    def shown_item(self) -> str:
        return f"item {label_item(self.item, self.number)}"

    @property
    def shown_system(self) -> str:
        """The system, and the run where there are two."""
        return self.system if self.run is None else f"{self.system} · {self.run}"

    @property
    def output(self) -> str | None:
        return self.record.output if self.record else None

    @property
    def value(self) -> float | None:
        """The score by the metric that the card is about; None without one."""
        return self.scores[self.by].value if self.by is not None else None

    @property
    def shown_value(self) -> str:
        """The metric that the card is about, with its score."""
        return f"{self.by}: {format_number(math.nan if self.value is None else self.value, 3)}"

    @property
    def failure(self) -> str | None:
        """Why the metric that the card is about has no score."""
        return self.scores[self.by].failure if self.by is not None else None

    @property
    def reasons(self) -> dict[str, str]:
        """What metrics say about the output, by their names."""
        return {name: score.explanation for name, score in self.scores.items() if score.explanation}

    def number_errors(self) -> tuple[list[NumberedError], dict[int, str]]:
        """The errors of all metrics and of people, each once, counted through; and who found each."""
        found: dict[Error, tuple[Error, list[str]]] = {}
        for name, score in self.scores.items():
            for error in score.errors:
                found.setdefault(identify_error(error, name), (error, []))[1].append(name)
        for error in self.errors:
            found.setdefault(identify_error(error, PEOPLE), (error, []))[1].append(self.by or PEOPLE)
        names = {number: ", ".join(dict.fromkeys(own)) for number, (_, own) in enumerate(found.values(), 1)}
        return list(enumerate((error for error, _ in found.values()), 1)), names

    def list_passages(self) -> list[tuple[str, str]]:
        """The passages of the source that errors are about, each once: the numbers of the errors, and the words."""
        source = (self.record.source if self.record else None) or ""
        passages: dict[str, list[int]] = {}
        for number, error in self.number_errors()[0]:
            if error.source_start is not None and error.side == "output":
                words = " ".join(source[error.source_start : error.source_end].split())
                passages.setdefault(words, []).append(number)
        return [
            (", ".join(map(str, own)), cut_end(words, _MAX_PASSAGE) or "") for words, own in passages.items() if words
        ]

    def list_scores(self, decimals: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:
        """Name and value of each metric's score, with the percentile that matters here; then people's mean ratings."""
        ranks = {name: f"percentile {rank:.0f}" for name, rank in self.percentiles.items()}
        for name, score in self.scores.items():
            yield name, format_number(score.value, decimals.get(name, 3)), ranks.get(name, "")
        for aspect, (mean, count) in self.ratings.items():
            yield f"{PEOPLE}: {aspect}", f"{mean:.3g}", format_count(count, "rating")
        if PEOPLE in ranks:
            yield PEOPLE, "", ranks[PEOPLE]

    def mark_text(self, name: TextName, changes: Sequence[tuple[int, int]] = (), **cut: Any) -> MarkedText | None:
        """The instruction, the source or the output with the errors in it, and the words that another one does not
        have; None without that text. `cut` is for `MarkedText`."""
        text = getattr(self.record, name, None)
        if text is None or not (text or name == "output"):
            return None
        errors, names = self.number_errors()
        located = locate_errors(errors, name)
        return MarkedText(name=name, text=text, errors=located, by=names, changes=changes, **cut)

    def list_context(self, **cut: Any) -> list[MarkedText]:
        """What the output answers: instruction and source."""
        texts = (self.mark_text("instruction", **cut), self.mark_text("source", **cut))
        return [text for text in texts if text is not None]

    def list_references(self, count: int | None, **cut: Any) -> tuple[list[MarkedText], str]:
        """The first `count` references, since there may be many, and how many more there are, in words."""
        references = self.record.references if self.record else ()
        texts = []
        for number, reference in enumerate(references[:count], 1):
            name = "reference" if len(references) == 1 else f"reference {number}"
            texts.append(MarkedText(name=name, text=reference, **cut))
        left = len(references) - len(texts)
        return texts, f"… and {format_count(left, 'more reference')}" if left else ""

    def list_readings(self, *, by_piece: bool) -> tuple[list[ReadText], str]:
        """The first readings of the output, word by word or piece by piece, and how many more there are, in words."""
        left = len(self.readings) - MAX_READINGS
        more = f"… and {left:,} more readings of this output" if left > 0 else ""
        return [ReadText(reading, by_piece) for reading in self.readings[:MAX_READINGS]], more

    def describe_failure(self) -> str:
        """Why metrics have no score of the output."""
        reasons = "; ".join(f"{name}: {score.failure}" for name, score in self.scores.items() if score.failure)
        return f"{self.shown_item} · system {self.shown_system}: {reasons}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data; NaN is None."""
        record = self.record
        names = ("instruction", "source", "references", "output")
        texts = {} if record is None else {name: getattr(record, name) for name in names}
        failures = {name: score.failure for name, score in self.scores.items() if score.failure}
        errors = {name: score.errors for name, score in self.scores.items() if score.errors}
        if self.errors:
            errors[PEOPLE] = self.errors
        return {
            "item": self.item,
            "system": self.system,
            **({"run": self.run} if self.run is not None else {}),
            "scores": {name: or_none(score.value) for name, score in self.scores.items()},
            **({"failures": failures} if failures else {}),
            **({"percentiles": dict(self.percentiles)} if self.percentiles else {}),
            **({"ratings": {name: mean for name, (mean, _) in self.ratings.items()}} if self.ratings else {}),
            "explanations": self.reasons,
            "errors": {name: [error_row(error) for error in listed] for name, listed in errors.items()},
            **{name: list(text) if name == "references" else text for name, text in texts.items() if text is not None},
        }

    def for_script(self, most: int = MAX_CHARACTERS) -> dict[str, Any]:
        """What a page's script draws: texts of at most `most` characters, errors with places counted as JavaScript
        counts them, and what metrics say. Nothing is escaped: the script sets text, never HTML."""
        record = self.record
        numbered, names = self.number_errors()
        said = [
            {
                "by": name,
                **({"failure": score.failure} if score.failure else {}),
                **({"explanation": cut_end(score.explanation, most)} if score.explanation else {}),
                **({"raw": cut_end(score.raw, most)} if score.raw and score.failure else {}),
            }
            for name, score in self.scores.items()
            if score.failure or score.explanation
        ]
        return {
            "output": cut_end(record.output, most) if record else None,
            "source": cut_end(record.source, most) if record else None,
            "instruction": cut_end(record.instruction, most) if record else None,
            "references": [cut_end(text, most) for text in record.references] if record else [],
            "errors": [list_error(number, error, names[number], record, brief=True) for number, error in numbered],
            "passages": self.list_passages(),
            "said": said,
            "readings": [reading.for_script() for reading in self.readings[:MAX_READINGS]],
        }


def list_error(number: int, error: Error, by: str, record: Record | None, *, brief: bool = False) -> dict[str, Any]:
    """An error as a script draws it, with its place in UTF-16 units; `brief` is that of `describe_error`."""
    text = (record.source if error.side == "source" else record.output) if record else None
    places = {}
    if text is not None and error.start is not None and error.end is not None:
        start, end = (len(text[:place].encode("utf-16-le", "surrogatepass")) // 2 for place in (error.start, error.end))
        places = {"start": start, "end": end}
    facts = {"number": number, "severity": severity_of(error), "text": describe_error(error, brief=brief), "by": by}
    return {**facts, "side": error.side, **places}


def severity_of(error: Error) -> str:
    return SEVERITIES[rank_severity(error)]


def rank_severity(error: Error) -> int:
    """The error's index in `SEVERITIES`, 0 being the worst."""
    severity = (error.severity or "").lower()
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES) - 1


def error_row(error: Error) -> dict[str, Any]:
    """An error as plain data, without what it does not say."""
    required = ("aspect", "severity", "penalty", "text", "start", "end")
    row = {f.name: getattr(error, f.name) for f in fields(error)}
    return {name: value for name, value in row.items() if name in required or value not in ("", None, "output")}


def describe_error(error: Error, *, brief: bool = False) -> str:
    """An error in one line; `brief` for pages, which show the passages of the source beside it."""
    if brief:
        error = replace(error, penalty=None, explanation=_PLACES.sub("", error.explanation).strip())
    parts = [
        escape_controls(error.severity or "error"),
        f" -{error.penalty:g}" if error.penalty is not None else "",
        f" {escape_controls(error.aspect)}",
        f" by {escape_controls(error.rater)}" if error.rater else "",
        f" “{escape_controls(error.text)}”" if error.text else "",
        f": {escape_controls(error.explanation)}" if error.explanation else "",
        f" → {escape_controls(error.revision)}" if error.revision else "",
    ]
    return "".join(parts)


def locate_errors(errors: Iterable[NumberedError], side: str) -> list[NumberedError]:
    """The errors with offsets in the output, or in the source."""
    return [(number, error) for number, error in errors if error.start is not None and error.side == side]


# ---- Texts in pieces


def clean_text(text: str) -> str:
    """A text with its line breaks, and all other control characters made visible."""
    return "\n".join(escape_controls(line.replace("\t", "    ")) for line in text.split("\n"))


def cut_end(text: str | None, most: int) -> str | None:
    """A text up to a limit, with a remark on what is left out."""
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}\n[… {len(text) - most:,} more characters]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a text: `severity` is that of the worst error in it, `notes` say what its errors are, `ends` are the
    numbers of the errors that end with it, and `changed` says that the other text does not have it. A `gap` stands for
    what is left out. `logprob` is how likely a model found it, where that is shown."""

    text: str
    severity: str = ""
    notes: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    changed: bool = False
    gap: bool = False
    logprob: float | None = None

    @property
    def step(self) -> int:
        """The step of the colour scale."""
        return 0 if self.logprob is None else find_step(self.logprob)

    @property
    def likelihood(self) -> str:
        """Log-probability and probability in words; empty where they are not shown."""
        if self.logprob is None:
            return ""
        return f"log-probability {format_number(self.logprob, 2)}, probability {format_probability(self.logprob)}"


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text as a model read it, in words or in the pieces that the model knows."""

    reading: Reading
    by_piece: bool

    @property
    def name(self) -> str:
        return self.reading.label

    def pieces(self) -> Iterator[Piece]:
        """Words with their log-probabilities, and the spaces between them, where a line can break."""
        for text, logprob in self.reading.units(by_piece=self.by_piece):
            word = text.lstrip() or text
            if len(word) < len(text):
                yield Piece(text[: len(text) - len(word)])
            yield Piece(word, logprob=logprob)

    def list_worst(self) -> list[tuple[str, str, str]]:
        """The least likely words, their log-probabilities and probabilities."""
        worst = self.reading.worst(by_piece=self.by_piece)
        return [(text, format_number(logprob, 2), format_probability(logprob)) for text, logprob in worst]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText:
    """A text with the errors to mark in it, who found them (`by` their numbers), and the stretches that another text
    does not have. `context` and `longest` are those of `split_text`; at most `most` characters are shown."""

    name: str
    text: str
    errors: Sequence[NumberedError] = ()
    by: Mapping[int, str] = field(default_factory=dict)
    changes: Sequence[tuple[int, int]] = ()
    context: int = 0
    longest: int | None = None
    most: int | None = None

    def pieces(self) -> Iterator[Piece]:
        """The text cut where errors and changes begin and end."""
        shown = self.text[: self.most]
        located = [(n, e) for n, e in self.errors if (e.start or 0) <= len(shown)]
        spans = [*((e.start or 0, min(e.end or 0, len(shown))) for _, e in located), *self.changes]
        borders = {border for span in spans for border in span}
        for part in split_text(shown, spans, longest=self.longest, context=self.context):
            if not part.shown:
                yield Piece(part.placeholder, gap=True)
                continue
            if ends := tuple(n for n, e in located if e.end == part.start):  # An empty span has no piece of its own.
                yield Piece("", ends=ends)
            cuts = sorted({part.start, part.end, *(border for border in borders if part.start < border < part.end)})
            for start, end in pairwise(cuts):
                inside = [(n, e) for n, e in located if (e.start or 0) <= start < end <= (e.end or 0)]
                yield Piece(
                    shown[start:end],
                    SEVERITIES[min(rank_severity(error) for _, error in inside)] if inside else "",
                    tuple(
                        f"{n}. {describe_error(e, brief=True)}{f' ({self.by[n]})' if n in self.by else ''}"
                        for n, e in inside
                    ),
                    tuple(n for n, e in located if e.end == end),
                    changed=any(first <= start < end <= last for first, last in self.changes),
                )
        if len(self.text) > len(shown):
            yield Piece(f"… {len(self.text) - len(shown):,} more characters are not shown", gap=True)


@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of a text, shown or left out."""

    start: int
    end: int
    shown: bool

    @property
    def placeholder(self) -> str:
        """Shown in place of a stretch that is left out."""
        return f"… {self.end - self.start:,} characters …"


def split_text(text: str, spans: Iterable[tuple[int, int]], *, longest: int | None, context: int) -> Iterator[TextPart]:
    """Split a text into parts to show and long parts without a span to leave out. Spans, and both ends of the text, are
    shown with `context` characters; what lies between is left out where it has more than `longest` characters, or many
    lines. None leaves out nothing."""
    shown_from = covered = 0
    gaps = []
    for start, end in sorted(spans) if longest is not None else ():
        gaps.append((covered, start))
        covered = max(covered, end)
    gaps.append((covered, len(text)))
    for start, end in gaps if longest is not None else ():
        # The gap begins behind a word and ends before one, where a space is near.
        cut_from, cut_to = start + context, end - context
        behind = range(cut_from, min(cut_from + _MAX_WORD, len(text)))
        before = range(cut_to, max(cut_to - _MAX_WORD, 0), -1)
        cut_from = next((place for place in behind if text[place].isspace()), cut_from)
        cut_to = next((place for place in before if text[place - 1].isspace()), cut_to)
        if cut_from < cut_to:
            gap = text[cut_from:cut_to]
            if len(gap) > (longest or 0) or gap.count("\n") > _LONG_LINES:
                yield TextPart(shown_from, cut_from, shown=True)
                yield TextPart(cut_from, cut_to, shown=False)
                shown_from = cut_to
    yield TextPart(shown_from, len(text), shown=True)


def find_changes(first: str, second: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The stretches of each text that the other does not have, word by word; none for very long texts."""
    from difflib import SequenceMatcher

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
