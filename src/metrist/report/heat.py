"""Words coloured by how unlikely a model found them: on a terminal, as plain text, and as an HTML page.

Models read pieces of words. People read words, so pieces are put together: the probability of a word is the product of
those of its pieces. The pieces themselves are shown on request.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from metrist.errors import escape_controls, label_item
from metrist.report.cells import NOT_AVAILABLE, format_number
from metrist.report.html import render_fragment, render_page

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

#: How many of a reading's least likely words are listed.
WORST_WORDS = 5
#: Readings shown per output; a set of seventy prompts gives seventy.
MAX_READINGS = 6
#: Stands for a token that is only a space.
SPACE = "␣"
#: Smaller probabilities are not written out.
_LEAST_SHOWN = math.log(0.0001)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the colour scale, from its least log-probability up."""

    label: str
    least: float
    style: str


#: From likely to unlikely. Fixed, so that two pages can be compared.
STEPS = (
    Step("probability .5 or more", math.log(0.5), ""),
    Step(".1 to .5", math.log(0.1), "black on #fff3c4"),
    Step(".01 to .1", math.log(0.01), "black on #ffd591"),
    Step(".001 to .01", math.log(0.001), "black on #ff9a62"),
    Step("below .001", -math.inf, "bold white on #b3261e"),
)
#: Plain text marks words from this step on, as its legend says.
_MARKED_STEP = 3
_WORD_LEGEND = (
    "In brackets: words with a probability below .01, and their log-probability: the sum over the pieces that the "
    "model reads (--pieces shows them)."
)
_PIECE_LEGEND = "In brackets: pieces with a probability below .01, and their log-probability."
_MEANING = (
    "Each {unit} is coloured by the probability that the model gave it, after the {unit}s before it and given the "
    "other text: the stronger the colour, the less likely the {unit}.{sums} Rest the pointer on a {unit} for its "
    "numbers."
)
_SUMS = " Models read pieces of words: the probability of a word is the product of those of its pieces."
#: Tokens that mark the beginning or the end of a text, as tokenizers write them. They are no words.
_MARKER = re.compile(r"</?s>|<(?:pad|bos|eos)>|<\|[^|<>]*\|>|\[(?:CLS|SEP|PAD|BOS|EOS)\]")
#: Stands for the end of a text among the least likely words.
END = "(end of text)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A model's log-probabilities of one text, token by token; `label` names the text and its condition."""

    label: str
    pieces: tuple[str, ...]
    logprobs: tuple[float, ...]

    def units(self, *, pieces: bool = False) -> Iterator[tuple[str, float, int]]:
        """Each word, or each piece, as it is shown, its log-probability, and its step."""
        parts = list(zip(_add_spaces(self.pieces), self.logprobs, strict=True))
        if pieces:
            shown = ((escape_controls(piece), logprob) for piece, logprob in parts)
        else:
            first, last = _trim_markers(self.pieces)
            words = _join_words(parts[first:last])
            # Any white space before a word is shown as one space, and the first word begins the line.
            shown = (
                (f"{' ' if n and word[:1].isspace() else ''}{escape_controls(word.strip())}", logprob)
                for n, (word, logprob) in enumerate(words)
            )
        return ((text, logprob, find_step(logprob)) for text, logprob in shown)

    def mark_units(self, *, pieces: bool) -> Iterator[tuple[str, str, str, int]]:
        """Each word or piece as a page shows it: the space before it, where a line can break, the word, its numbers
        and its step."""
        for text, logprob, step in self.units(pieces=pieces):
            word = text.lstrip() or text
            numbers = f"log-probability {format_number(logprob, 2)}, probability {format_probability(logprob)}"
            yield text[: len(text) - len(word)], word, numbers, step

    def list_worst(self, *, pieces: bool) -> list[tuple[str, str]]:
        """The least likely words or pieces with their numbers, as a page shows them."""
        return [
            (text, f"{format_number(logprob, 2)} (p {format_probability(logprob)})")
            for text, logprob in self.worst(pieces=pieces)
        ]

    def worst(self, *, pieces: bool = False) -> list[tuple[str, float]]:
        """The least likely words or pieces, the least likely first; for words also the end of the text."""
        known = [(text.strip() or SPACE, logprob) for text, logprob, _ in self.units(pieces=pieces)]
        if not pieces and (last := _trim_markers(self.pieces)[1]) < len(self.pieces):
            known.append((END, _add_logprobs(self.logprobs[last:])))
        return sorted((unit for unit in known if not math.isnan(unit[1])), key=lambda unit: unit[1])[:WORST_WORDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatOutput:
    """One output with the readings behind its score."""

    item: str
    system: str
    metric: str
    value: float
    readings: tuple[Reading, ...]

    @property
    def title(self) -> str:
        return f"item {escape_controls(label_item(self.item))} · system {escape_controls(self.system)}"

    @property
    def score(self) -> str:
        return f"{escape_controls(self.metric)}: {format_number(self.value, 3)}"

    @property
    def shown_readings(self) -> tuple[Reading, ...]:
        return self.readings[:MAX_READINGS]

    def for_script(self) -> list[dict[str, Any]]:
        """The readings as a page's script draws them: words, log-probabilities and steps of the colour scale."""
        return [
            {
                "label": reading.label,
                "units": [
                    [text, None if math.isnan(logprob) else round(logprob, 4), step]
                    for text, logprob, step in reading.units()
                ],
            }
            for reading in self.shown_readings
        ]

    @property
    def left_out(self) -> str:
        """A note on the readings that are not shown, or an empty string."""
        more = len(self.readings) - MAX_READINGS
        return f"… and {more:,} more readings of this output" if more > 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heat:
    """Outputs with the probabilities of their words, or of their pieces as the model reads them; and notes."""

    outputs: Sequence[HeatOutput]
    notes: Sequence[str] = ()
    pieces: bool = False

    #: The scale of the colours.
    steps: ClassVar[Sequence[Step]] = STEPS

    def text(self) -> str:
        """Plain text: a word below .01 stands in brackets, with its log-probability."""
        outputs = (_render_plain(output, pieces=self.pieces) for output in self.outputs)
        return "\n\n".join([*outputs, "\n".join([*self.notes, _PIECE_LEGEND if self.pieces else _WORD_LEGEND])])

    def page(self) -> str:
        """One self-contained HTML page."""
        title = f"{'Pieces' if self.pieces else 'Words'} by how unlikely they are"
        return render_page("heat.html", title=title, heat=self)

    @property
    def meaning(self) -> str:
        """What the colours mean, in words."""
        return _MEANING.format(unit="piece" if self.pieces else "word", sums="" if self.pieces else _SUMS)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return render_fragment("heat.html", heat=self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _render_rich(self)


def _add_spaces(pieces: Sequence[str]) -> Sequence[str]:
    """Restore spaces between words for tokenizers that keep none and mark the continuation of a word with ##."""
    if any(piece[:1].isspace() for piece in pieces):
        return pieces
    spaced = []
    for before, piece in zip(("", *pieces), pieces, strict=False):
        joined = not before or piece.startswith("##") or _is_unspaced(before[-1:]) or _is_unspaced(piece[:1])
        spaced.append(f"{'' if joined else ' '}{piece.removeprefix('##')}")
    return spaced


def _trim_markers(pieces: Sequence[str]) -> tuple[int, int]:
    """Where the text begins and ends between markers such as <s> and </s>."""
    first, last = 0, len(pieces)
    while first < last and _MARKER.fullmatch(pieces[first].strip()):
        first += 1
    while last > first and _MARKER.fullmatch(pieces[last - 1].strip()):
        last -= 1
    return first, last


def _join_words(parts: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Put pieces together: what white space separates, without the punctuation around it; in scripts that are written
    without spaces every piece stays by itself."""
    word: list[tuple[str, float]] = []
    for piece, logprob in parts:
        before = word[-1][0] if word else ""
        if before.strip() and (piece[:1].isspace() or _is_unspaced(before[-1:]) or _is_unspaced(piece[:1])):
            yield from _split_punctuation(word)
            word = []
        word.append((piece, logprob))
    if word:
        yield from _split_punctuation(word)


def _split_punctuation(word: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """A word, and apart from it the pieces around it that have neither letters nor digits; those inside, as in "don't",
    belong to it."""
    letters = [n for n, (piece, _) in enumerate(word) if any(map(str.isalnum, piece))]
    first, last = (letters[0], letters[-1] + 1) if letters else (0, len(word))
    if not "".join(piece for piece, _ in word[:first]).strip():
        first = 0  # Only a space.
    if not "".join(piece for piece, _ in word[last:]).strip():
        last = len(word)
    for group in (word[:first], word[first:last], word[last:]):
        if group:
            yield "".join(piece for piece, _ in group), _add_logprobs(logprob for _, logprob in group)


def _add_logprobs(logprobs: Iterable[float]) -> float:
    """The sum of those that are known; NaN if none is."""
    known = [logprob for logprob in logprobs if not math.isnan(logprob)]
    return sum(known) if known else math.nan


def _is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that is written without spaces: Chinese, Japanese, Thai, Lao, Khmer,
    Burmese. Korean has spaces."""
    if not character or character < "\u0e00":
        return False
    if "\u0e00" <= character <= "\u0eff" or "\u1000" <= character <= "\u109f" or "\u1780" <= character <= "\u17ff":
        return True
    return unicodedata.east_asian_width(character) == "W" and not unicodedata.name(character, "").startswith("HANGUL")


def find_step(logprob: float) -> int:
    """The index of a log-probability's step; an unknown one belongs to the first."""
    return 0 if math.isnan(logprob) else next(n for n, step in enumerate(STEPS) if logprob >= step.least)


def format_probability(logprob: float) -> str:
    """A log-probability as a probability, to two digits."""
    if math.isnan(logprob):
        return NOT_AVAILABLE
    return f"{math.exp(logprob):.2g}" if logprob >= _LEAST_SHOWN else "below 0.0001"


def _split_space(text: str) -> tuple[str, str]:
    """The leading space and the word."""
    word = text.lstrip()
    return text[: len(text) - len(word)], word


def _list_worst(reading: Reading, *, pieces: bool) -> str:
    units = (f"'{text}' {format_number(logprob, 2)}" for text, logprob in reading.worst(pieces=pieces))
    return "least likely: " + ", ".join(units)


def _render_plain(output: HeatOutput, *, pieces: bool) -> str:
    lines = [output.title, output.score]
    for reading in output.shown_readings:
        units = []
        for text, logprob, step in reading.units(pieces=pieces):
            space, word = _split_space(text)
            marked = f"{space}[{word or SPACE} {format_number(logprob, 1)}]"
            units.append(marked if step >= _MARKED_STEP else text)
        worst = _list_worst(reading, pieces=pieces)
        lines += [f"{escape_controls(reading.label)}:", f"  {''.join(units)}", f"  {worst}"]
    return "\n".join([*lines, *([output.left_out] if output.left_out else [])])


def _render_rich(heat: Heat) -> RenderResult:
    from rich.text import Text

    legend = Text()
    for step in STEPS:
        legend.append(f" {step.label} ", style=step.style)
        legend.append("  ")
    yield legend
    for output in heat.outputs:
        yield Text(f"\n{output.title}", style="bold")
        yield Text(output.score)
        for reading in output.shown_readings:
            yield _draw_reading(reading, pieces=heat.pieces)
        if output.left_out:
            yield Text(output.left_out, style="italic")
    yield Text("\n" + "\n".join(heat.notes))


def _draw_reading(reading: Reading, *, pieces: bool) -> Text:
    from rich.text import Text

    # A Text object, not a string: rich would interpret a word such as [red] as markup.
    drawing = Text(f"{escape_controls(reading.label)}:\n", style="")
    for text, _, step in reading.units(pieces=pieces):
        space, word = _split_space(text)
        drawing.append(space)
        drawing.append(word, style=STEPS[step].style)
    drawing.append(f"\n{_list_worst(reading, pieces=pieces)}", style="dim")
    return drawing
