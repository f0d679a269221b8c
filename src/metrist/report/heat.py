"""Tokens coloured by how little a model expected them: on a terminal, as plain text, and as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metrist.report.cells import NOTHING, fixed, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text
from html import escape

#: How many of a reading's least likely tokens are listed by name.
WORST = 5
#: Readings drawn of one output: a set of seventy prompts gives seventy, which nobody reads.
READINGS = 6
#: A token that is nothing but a space, where it is named or marked.
SPACE = "␣"


# Below this a probability is not written out.
_LEAST = math.log(0.0001)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the scale: what it says, and the least log-probability that belongs to it."""

    words: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a model said of one text, token by token; `label` says which text, given which."""

    label: str
    pieces: tuple[str, ...]
    logprobs: tuple[float, ...]

    def tokens(self) -> Iterator[tuple[str, float, int]]:
        """Each token as it is shown, its log-probability, and its step."""
        for piece, logprob in zip(_spaced(self.pieces), self.logprobs, strict=True):
            yield visible(piece), logprob, step_of(logprob)

    def worst(self) -> list[tuple[str, float]]:
        """The least likely tokens, the least likely first."""
        known = [(token.strip() or SPACE, logprob) for token, logprob, _ in self.tokens() if not math.isnan(logprob)]
        return sorted(known, key=lambda token: token[1])[:WORST]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output with the readings behind its score."""

    item: str
    system: str
    metric: str
    value: float
    readings: tuple[Reading, ...]

    @property
    def title(self) -> str:
        return f"item {visible(self.item)} · system {visible(self.system)}"

    @property
    def score(self) -> str:
        return f"{visible(self.metric)}: {fixed(self.value, 3)}"

    @property
    def left_out(self) -> str:
        """What is said of the readings that are not drawn."""
        more = len(self.readings) - READINGS
        return f"… and {more:,} more readings of this output" if more > 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heat:
    """Outputs to be drawn, and notes on what is shown."""

    outputs: Sequence[Output]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Plain characters: a token below .01 stands in brackets, with its log-probability."""
        return "\n\n".join([*map(_plain, self.outputs), "\n".join([*self.notes, _PLAIN_LEGEND])])

    def page(self) -> str:
        """One self-contained HTML page."""

        return page(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:

        return fragment(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield _legend()
        for output in self.outputs:
            yield Text(f"\n{output.title}", style="bold")
            yield Text(output.score)
            for reading in output.readings[:READINGS]:
                yield _drawn(reading)
            if output.left_out:
                yield Text(output.left_out, style="italic")
        yield Text("\n" + "\n".join(self.notes))


def _spaced(pieces: Sequence[str]) -> Sequence[str]:
    """Pieces with the spaces that stand before words. Some tokenizers keep none, and mark by ## what goes on with the
    word before."""
    if any(piece[:1].isspace() for piece in pieces):
        return pieces
    return [
        piece.removeprefix("##") if piece.startswith("##") or not n else f" {piece}" for n, piece in enumerate(pieces)
    ]


def step_of(logprob: float) -> int:
    """Which step a log-probability belongs to; one that is not known belongs to the first."""
    return 0 if math.isnan(logprob) else next(n for n, step in enumerate(STEPS) if logprob >= step.least)


def probability(logprob: float) -> str:
    """A log-probability as a probability, to two digits."""
    if math.isnan(logprob):
        return NOTHING
    return f"{math.exp(logprob):.2g}" if logprob >= _LEAST else "below 0.0001"


# The first step whose tokens plain text marks, as the legend says.
_MARKED = 3
_PLAIN_LEGEND = "In brackets: tokens with a probability below .01, and their log-probability."


def _plain(output: Output) -> str:
    lines = [output.title, output.score]
    for reading in output.readings[:READINGS]:
        tokens = "".join(_marked(*token) for token in reading.tokens())
        lines += [f"{visible(reading.label)}:", f"  {tokens}", f"  {_worst(reading)}"]
    return "\n".join([*lines, *([output.left_out] if output.left_out else [])])


def _marked(token: str, logprob: float, step: int) -> str:
    if step < _MARKED:
        return token
    word = token.lstrip()
    return f"{token[: len(token) - len(word)]}[{word or SPACE} {fixed(logprob, 1)}]"


def _worst(reading: Reading) -> str:
    return "least likely: " + ", ".join(f"'{token}' {fixed(logprob, 2)}" for token, logprob in reading.worst())


def _legend() -> Text:
    from rich.text import Text

    legend = Text()
    for step in STEPS:
        legend.append(f" {step.words} ", style=step.style)
        legend.append("  ")
    return legend


def _drawn(reading: Reading) -> Text:
    from rich.text import Text

    # Pieces of a Text object, not a string: a token such as [red] is no markup.
    drawn = Text(f"{visible(reading.label)}:\n", style="")
    for token, _, step in reading.tokens():
        word = token.lstrip()
        drawn.append(token[: len(token) - len(word)])
        drawn.append(word, style=STEPS[step].style)
    drawn.append(f"\n{_worst(reading)}", style="dim")
    return drawn


# The heat map of tokens as one HTML page: no script, nothing loaded from elsewhere, light or dark as the reader is.


# Each step has its own line beneath the token too: colour alone is not seen by everybody.
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
    "text: the stronger the colour, the less it was expected. Rest the pointer on a token for its numbers."
)


def page(heat: Heat) -> str:
    """The whole page."""
    title = "Tokens by how little they were expected"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}{_PAGE_STYLE}</style>\n</head>\n"
    )
    return f'{head}<body>\n<main class="metrist-heat">\n<h1>{title}</h1>\n{_body(heat)}</main>\n</body>\n</html>\n'


def fragment(heat: Heat) -> str:
    """The same as a part of another page, such as a notebook."""
    return f'<style>{_STYLE}</style>\n<div class="metrist-heat">\n{_body(heat)}</div>\n'


def _body(heat: Heat) -> str:
    notes = "".join(f'<p class="soft">{escape(visible(note))}</p>\n' for note in heat.notes)
    return f"<p>{_MEANING}</p>\n{_legend_heat_page()}{notes}" + "".join(map(_article, heat.outputs))


def _legend_heat_page() -> str:
    steps = "".join(f'<li><span class="t s{n}">{escape(step.words)}</span></li>' for n, step in enumerate(STEPS))
    return f'<ul aria-label="What the colours mean">{steps}</ul>\n'


def _article(output: Output) -> str:
    readings = "".join(part for reading in output.readings[:READINGS] for part in _reading(reading))
    more = f'<p class="soft">{escape(output.left_out)}</p>\n' if output.left_out else ""
    head = f"<h2>{escape(output.title)}</h2>\n<p>{escape(output.score)}</p>\n"
    return f"<article>\n{head}{readings}{more}</article>\n"


def _reading(reading: Reading) -> Iterator[str]:
    yield f'<p class="soft">{escape(visible(reading.label))}</p>\n'
    # The browser sets each text in its own direction.
    yield f'<p class="tokens" dir="auto">{"".join(_token(*token) for token in reading.tokens())}</p>\n'
    worst = ", ".join(
        f"<code>{escape(token)}</code> {fixed(logprob, 2)} (p {probability(logprob)})"
        for token, logprob in reading.worst()
    )
    yield f'<p class="soft">Least likely: {worst}</p>\n'


def _token(token: str, logprob: float, step: int) -> str:
    numbers = f"log-probability {fixed(logprob, 2)}, probability {probability(logprob)}"
    # The space before a word belongs to its token, but a line may break there.
    word = token.lstrip() or token
    return f'{token[: len(token) - len(word)]}<span class="t s{step}" title="{numbers}">{escape(word)}</span>'
