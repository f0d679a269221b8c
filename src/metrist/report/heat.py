"""Tokens coloured by how unlikely a model found them: on a terminal, as plain text, and as an HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from metrist.report.tables import NOT_AVAILABLE, escape_controls, format_number

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

#: How many of a reading's least likely tokens are listed.
WORST_TOKENS = 5
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
#: Plain text marks tokens from this step on, as its legend says.
_MARKED_STEP = 3
_PLAIN_LEGEND = "In brackets: tokens with a probability below .01, and their log-probability."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A model's log-probabilities of one text, token by token; `label` names the text and its condition."""

    label: str
    pieces: tuple[str, ...]
    logprobs: tuple[float, ...]

    def tokens(self) -> Iterator[tuple[str, float, int]]:
        """Each token as it is shown, its log-probability, and its step."""
        for piece, logprob in zip(_add_spaces(self.pieces), self.logprobs, strict=True):
            yield escape_controls(piece), logprob, find_step(logprob)

    def worst(self) -> list[tuple[str, float]]:
        """The least likely tokens, the least likely first."""
        known = [(token.strip() or SPACE, logprob) for token, logprob, _ in self.tokens() if not math.isnan(logprob)]
        return sorted(known, key=lambda token: token[1])[:WORST_TOKENS]


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
        return f"item {escape_controls(self.item)} · system {escape_controls(self.system)}"

    @property
    def score(self) -> str:
        return f"{escape_controls(self.metric)}: {format_number(self.value, 3)}"

    @property
    def left_out(self) -> str:
        """A note on the readings that are not shown, or an empty string."""
        more = len(self.readings) - MAX_READINGS
        return f"… and {more:,} more readings of this output" if more > 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heat:
    """Outputs with token probabilities, and notes on what is shown."""

    outputs: Sequence[HeatOutput]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Plain text: a token below .01 stands in brackets, with its log-probability."""
        return "\n\n".join([*map(_render_plain, self.outputs), "\n".join([*self.notes, _PLAIN_LEGEND])])

    def page(self) -> str:
        """One self-contained HTML page."""
        return _render_page(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f'<style>{_STYLE}</style>\n<div class="metrist-heat">\n{_render_body(self)}</div>\n'

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return _render_rich(self)


def _add_spaces(pieces: Sequence[str]) -> Sequence[str]:
    """Restore spaces between words for tokenizers that keep none and mark the continuation of a word with ##."""
    if any(piece[:1].isspace() for piece in pieces):
        return pieces
    return [
        piece.removeprefix("##") if piece.startswith("##") or not n else f" {piece}" for n, piece in enumerate(pieces)
    ]


def find_step(logprob: float) -> int:
    """The index of a log-probability's step; an unknown one belongs to the first."""
    return 0 if math.isnan(logprob) else next(n for n, step in enumerate(STEPS) if logprob >= step.least)


def format_probability(logprob: float) -> str:
    """A log-probability as a probability, to two digits."""
    if math.isnan(logprob):
        return NOT_AVAILABLE
    return f"{math.exp(logprob):.2g}" if logprob >= _LEAST_SHOWN else "below 0.0001"


def _split_space(token: str) -> tuple[str, str]:
    """A token's leading space and its word."""
    word = token.lstrip()
    return token[: len(token) - len(word)], word


def _list_worst(reading: Reading) -> str:
    tokens = (f"'{token}' {format_number(logprob, 2)}" for token, logprob in reading.worst())
    return "least likely: " + ", ".join(tokens)


def _render_plain(output: HeatOutput) -> str:
    lines = [output.title, output.score]
    for reading in output.readings[:MAX_READINGS]:
        tokens = []
        for token, logprob, step in reading.tokens():
            space, word = _split_space(token)
            marked = f"{space}[{word or SPACE} {format_number(logprob, 1)}]"
            tokens.append(marked if step >= _MARKED_STEP else token)
        lines += [f"{escape_controls(reading.label)}:", f"  {''.join(tokens)}", f"  {_list_worst(reading)}"]
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
        for reading in output.readings[:MAX_READINGS]:
            yield _draw_reading(reading)
        if output.left_out:
            yield Text(output.left_out, style="italic")
    yield Text("\n" + "\n".join(heat.notes))


def _draw_reading(reading: Reading) -> Text:
    from rich.text import Text

    # A Text object, not a string: rich would interpret a token such as [red] as markup.
    drawing = Text(f"{escape_controls(reading.label)}:\n", style="")
    for token, _, step in reading.tokens():
        space, word = _split_space(token)
        drawing.append(space)
        drawing.append(word, style=STEPS[step].style)
    drawing.append(f"\n{_list_worst(reading)}", style="dim")
    return drawing


# No script, nothing loaded from elsewhere, light or dark as the browser prefers. Each step also has its own underline,
# because not everybody sees colours.
_STYLE = """
.metrist-heat { --ink: #1c1c1e; --paper: #fff; --soft: #5b5b60; --rule: #d9d9de;
  --s1: #fff3c4; --s2: #ffd591; --s3: #ff9a62; --s4: #b3261e; --hot: #fff;
  color: var(--ink); background: var(--paper); font: 1rem/1.7 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { .metrist-heat { --ink: #ececf0; --paper: #17171a; --soft: #a5a5ad;
  --rule: #3a3a40; --s1: #3d3611; --s2: #5e3f0c; --s3: #8f3d12; --s4: #d32f2f; --hot: #fff; } }
.metrist-heat h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
.metrist-heat h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
.metrist-heat article { border-top: 1px solid var(--rule); padding: 1rem 0; }
.metrist-heat p { margin: .3rem 0; }
.metrist-heat .soft { color: var(--soft); font-size: .9rem; }
.metrist-heat .tokens { white-space: pre-wrap; overflow-wrap: anywhere; }
.metrist-heat .t { border-radius: 3px; margin: 0 1px; padding: 1px 0; border-bottom: 0 solid currentColor;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
.metrist-heat .s1 { background: var(--s1); border-bottom: 1px dotted; }
.metrist-heat .s2 { background: var(--s2); border-bottom: 1px dashed; }
.metrist-heat .s3 { background: var(--s3); border-bottom: 2px solid; }
.metrist-heat .s4 { background: var(--s4); color: var(--hot); border-bottom: 3px double; }
.metrist-heat ul { list-style: none; display: flex; flex-wrap: wrap; gap: .4rem 1rem; padding: 0; margin: .5rem 0; }
.metrist-heat ul .t { padding: 1px .4em; }
.metrist-heat code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
"""
_PAGE_STYLE = "body { margin: 0; } main.metrist-heat { min-height: 100vh; box-sizing: border-box; padding: 2rem 1rem; }"
_PAGE_STYLE += " main.metrist-heat > * { max-width: 60rem; margin-left: auto; margin-right: auto; }"
_MEANING = (
    "Each token is coloured by the probability that the model gave it, after the tokens before it and given the other "
    "text: the stronger the colour, the less likely the token. Rest the pointer on a token for its numbers."
)


def _render_page(heat: Heat) -> str:
    title = "Tokens by how unlikely they are"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}{_PAGE_STYLE}</style>\n</head>\n"
    )
    body = _render_body(heat)
    return f'{head}<body>\n<main class="metrist-heat">\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n'


def _render_body(heat: Heat) -> str:
    steps = "".join(f'<li><span class="t s{n}">{escape(step.label)}</span></li>' for n, step in enumerate(STEPS))
    legend = f'<ul aria-label="What the colours mean">{steps}</ul>\n'
    notes = "".join(f'<p class="soft">{escape(escape_controls(note))}</p>\n' for note in heat.notes)
    return f"<p>{_MEANING}</p>\n{legend}{notes}" + "".join(map(_render_article, heat.outputs))


def _render_article(output: HeatOutput) -> str:
    readings = "".join(map(_render_reading, output.readings[:MAX_READINGS]))
    more = f'<p class="soft">{escape(output.left_out)}</p>\n' if output.left_out else ""
    head = f"<h2>{escape(output.title)}</h2>\n<p>{escape(output.score)}</p>\n"
    return f"<article>\n{head}{readings}{more}</article>\n"


def _render_reading(reading: Reading) -> str:
    tokens = "".join(_render_token(*token) for token in reading.tokens())
    worst = ", ".join(
        f"<code>{escape(token)}</code> {format_number(logprob, 2)} (p {format_probability(logprob)})"
        for token, logprob in reading.worst()
    )
    # dir="auto" lets the browser set each text in its own direction.
    return (
        f'<p class="soft">{escape(escape_controls(reading.label))}</p>\n'
        f'<p class="tokens" dir="auto">{tokens}</p>\n'
        f'<p class="soft">Least likely: {worst}</p>\n'
    )


def _render_token(token: str, logprob: float, step: int) -> str:
    numbers = f"log-probability {format_number(logprob, 2)}, probability {format_probability(logprob)}"
    # The leading space stays outside the span, so that a line can break there.
    word = token.lstrip() or token
    return f'{token[: len(token) - len(word)]}<span class="t s{step}" title="{numbers}">{escape(word)}</span>'
