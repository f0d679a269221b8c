"""The heat map of tokens as one HTML page: no script, nothing loaded from elsewhere, light or dark as the reader is."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from metrist.report.cells import fixed, visible
from metrist.report.heat import READINGS, STEPS, Heat, Output, Reading, probability

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
    return f"<p>{_MEANING}</p>\n{_legend()}{notes}" + "".join(map(_article, heat.outputs))


def _legend() -> str:
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
