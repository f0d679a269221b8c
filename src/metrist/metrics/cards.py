"""Cards that describe metrics for their readers: what the number measures, its range, when not to trust it.

The cards of the catalog are TOML files in the folder `cards` beside this module, one file per family and one table per
card. `names` lists the metrics that share a card (by default the name of the table); `settings` describes each setting
that `settings.toml` does not describe for all metrics; `like` names a card from which missing entries are taken. Other
metrics are described by their docstring.

`title` is the metric's name in papers, with settings in braces; `titles` are those of single metrics of the card.
`cite` lists keys of `citations.bib`, `cite_with` those to cite only where a setting is not its default.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from textwrap import fill
from typing import Any, NamedTuple

from metrist._version import __version__
from metrist.errors import MetristError, install_command
from metrist.metrics import registry
from metrist.metrics.agreement import describe_direction, format_agreement, summarize_tasks
from metrist.metrics.base import Metric, PartMetric, iterate_nested
from metrist.models.devices import no_downloads

_SHARED_SETTINGS = "settings.toml"


class Advice(NamedTuple):
    """Which settings to use for which aspects, and why."""

    aspects: str
    use: str
    why: str


@dataclass(frozen=True, slots=True)
class Card:
    """The description of a metric, in the order in which it is shown."""

    measures: str
    range: str = ""
    reading: str = ""
    distrust: str = ""
    citation: str = ""
    title: str = ""
    titles: Mapping[str, str] = field(default_factory=dict)
    cite: tuple[str, ...] = ()
    cite_with: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    guidance: tuple[Advice, ...] = ()


def card(name: str) -> Card:
    """The card of the metric of that name; SpecError with the nearest names if there is none."""
    return _cards().get(name) or _from_docstring(registry.build(name))


def display_name(metric: Metric) -> str:
    """The metric's name in papers, such as ROUGE-L or chrF++; its text where the catalog knows none."""
    card = _cards().get(metric.name)
    if card is None:
        return metric.text
    title = card.titles.get(metric.name) or card.title
    if metric.name == "chrf":
        return title + "+" * getattr(metric, "word_order", 0)
    return title.format_map(vars(metric)) or metric.text


def name_in_papers(metric: Metric) -> str:
    """The metric's short name, or its name in papers; a part of its scores has the metric's name before its own."""
    if isinstance(metric, PartMetric):
        return f"{name_in_papers(metric.metric)} {metric.part}"
    return metric.short_name or display_name(metric)


def citation_keys(metric: Metric) -> list[str]:
    """The keys in `citations.bib` of what to cite for the metric and for metrics within it."""
    keys: dict[str, None] = {}
    for nested in iterate_nested(metric):
        if isinstance(nested, Metric) and (card := _cards().get(nested.name)):
            keys |= dict.fromkeys(card.cite)
            for setting, setting_keys in card.cite_with.items():
                if getattr(nested, setting) != getattr(type(nested), setting):
                    keys |= dict.fromkeys(setting_keys)
    return list(keys)


def short_citation(key: str) -> str:
    """An entry of `citations.bib` as a text cites it: Riezler and Maxwell, 2005."""
    entry = _bibliography()[key]
    authors, year = (re.search(rf"^  {name} = \{{(.*)\}},$", entry, re.MULTILINE) for name in ("author", "year"))
    assert authors
    assert year
    last_names = [author.split(",")[0] for author in authors[1].split(" and ")]
    combined = [_ACCENTED.sub(lambda match: match[2] + _ACCENTS[match[1]], name) for name in last_names]
    names = [unicodedata.normalize("NFC", name).strip("{}") for name in combined]
    shown = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{shown}, {year[1]}"


#: A letter with the accent that BibTeX writes before it, and the accents of Unicode.
_ACCENTED = re.compile(r"\{\\(['\"])(\w)\}")
_ACCENTS = {"'": "\u0301", '"': "\u0308"}


def format_bibliography(
    metrics: Iterable[Metric], methods: Mapping[str, str] | None = None, notes: Iterable[str] = ()
) -> str:
    """What to cite, as BibTeX: for the metrics, for `methods` (key: what it is for) and for metrist itself. A comment
    says what each entry is for, and which metrics have none; `notes` are comments above them."""
    uses: dict[str, list[str]] = {"metrist": ["the software"]}
    unknown = []
    for metric in metrics:
        keys = citation_keys(metric)
        for key in keys:
            uses.setdefault(key, []).append(metric.text)
        if not keys:
            unknown.append(metric.text)
    for key, use in (methods or {}).items():
        uses.setdefault(key, []).append(use)
    entries = _bibliography()
    parts = [f"% {_one_line(', '.join(use))}\n{entries[key]}" for key, use in uses.items()]
    if unknown:
        parts.append(f"% Nothing to cite is known for: {_one_line(', '.join(unknown))}")
    return "\n\n".join([*(f"% Note: {_one_line(note)}" for note in notes), *parts])


@cache
def _bibliography() -> Mapping[str, str]:
    text = (resources.files("metrist.metrics") / "citations.bib").read_text(encoding="utf-8")
    entries = {m[1]: m[0] for m in re.finditer(r"^@\w+\{([^,]+),\n.*?^\}", text, re.MULTILINE | re.DOTALL)}
    return {**entries, "metrist": entries["metrist"].replace("VERSION", __version__)}


def _one_line(text: str) -> str:
    """The text in a comment: whatever could end the line is escaped, and BibTeX would read an entry after an @."""
    text = text.replace("@", "(at)")
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode("ascii")


def describe(metric: Metric, width: int = 88) -> str:
    """The card, facts, settings and signature of a metric as plain text."""
    card = _cards().get(metric.name) or _from_docstring(metric)
    direction = "none: it describes and does not judge"
    if metric.higher_is_better is not None:
        direction = "higher is better" if metric.higher_is_better else "lower is better"
        if against := describe_direction(metric.name):
            direction += f", but the opposite on {against}"
    facts = {
        "Needs": ", ".join(("output", *metric.needs)),
        "Direction": direction,
        "Bounds": "{:g} to {:g}".format(*metric.bounds),
        **({"Extra": install_command(metric.extra)} if metric.extra else {}),
    }
    guidance = [
        f"  {entry.aspects}\n      {entry.use}\n{_indent(entry.why, width, indent=' ' * 6)}" for entry in card.guidance
    ]
    blocks = [
        metric.text,
        *_paragraph("What it measures", card.measures, width),
        *_paragraph("Range", card.range, width),
        *_paragraph("How to read it", card.reading, width),
        *_paragraph("When not to trust it", card.distrust, width),
        *(["\n".join(["What to use for which aspect", *guidance])] if guidance else []),
        *_agreement(metric, width),
        "\n".join(_indent(fact, width, f"{title + ':':<11}", " " * 11) for title, fact in facts.items()),
        *_settings(metric, card, width),
        *_paragraph("Signature", _signature(metric), width),
        *_paragraph("Citation", card.citation, width),
    ]
    return "\n\n".join(blocks) + "\n"


def _signature(metric: Metric) -> str:
    """The signature, or why it is unknown: it contains the hash of weights that may not be on this machine."""
    try:
        with no_downloads():
            return metric.signature
    except MetristError as error:
        return f"not known here: {str(error).splitlines()[0]}"


def _agreement(metric: Metric, width: int) -> Iterator[str]:
    """How far the metric agreed with people, task by task, if it was measured with these settings."""
    tasks = summarize_tasks(metric.name) if metric.text == metric.name else []
    if tasks:
        lines = ["Agreement with people, by task (docs/research/tables.md has all baselines)"]
        for task in tasks:
            lines.append(_indent(f"{task.task.replace('_', ' ')}: {task.verdict}", width))
            lines += [_indent(format_agreement(metric.name, row), width, indent=" " * 6) for row in task.rows]
        yield "\n".join(lines)


def _paragraph(title: str, text: str, width: int) -> Iterator[str]:
    if text:
        yield f"{title}\n{_indent(text, width)}"


def _indent(text: str, width: int, indent: str = "  ", following: str | None = None) -> str:
    """The text in lines of that width; `following` is the indent of all lines but the first, where it differs."""
    rest = indent if following is None else following
    return fill(
        text, width, initial_indent=indent, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _settings(metric: Metric, card: Card, width: int) -> Iterator[str]:
    declared: tuple[dataclasses.Field[Any], ...] = (
        dataclasses.fields(metric) if dataclasses.is_dataclass(metric) else ()
    )
    lines = ["Settings"]
    for setting in declared:
        if not setting.init or setting.name in metric.in_name:
            continue
        default = "required" if setting.default is dataclasses.MISSING else f"default {setting.default!r}"
        lines.append(f"  {setting.name} ({default})")
        if description := card.settings.get(setting.name):
            lines.append(_indent(description, width, indent=" " * 6))
    if len(lines) > 1:
        yield "\n".join(lines)


def _from_docstring(metric: Metric) -> Card:
    docstring = inspect.getdoc(type(metric)) or ""
    # A dataclass without a docstring gets its signature as one, which explains nothing.
    generated = docstring.startswith(f"{type(metric).__name__}(")
    return Card(measures="" if generated else _join_lines(docstring))


@cache
def _cards() -> Mapping[str, Card]:
    folder = resources.files("metrist.metrics") / "cards"
    shared = _read_toml(folder / _SHARED_SETTINGS)
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    tables = {
        key: table for name in names if name != _SHARED_SETTINGS for key, table in _read_toml(folder / name).items()
    }
    cards = {}
    for key, own in tables.items():
        table = own
        if "like" in own:
            parent = tables[own["like"]]
            table = {**parent, **own, "settings": {**parent.get("settings", {}), **own.get("settings", {})}}
        for name in own.get("names", [key]):
            cards[name] = _parse_card(table, shared)
    return cards


def _read_toml(file: Any) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _parse_card(table: Mapping[str, Any], shared: Mapping[str, str]) -> Card:
    def join_values(texts: Mapping[str, str]) -> dict[str, str]:
        return {key: _join_lines(text) for key, text in texts.items()}

    structured = ("names", "like", "settings", "guidance", "titles", "cite", "cite_with")
    texts = join_values({key: text for key, text in table.items() if key not in structured})
    guidance = tuple(Advice(**join_values(entry)) for entry in table.get("guidance", []))
    return Card(
        **texts,
        titles=table.get("titles", {}),
        cite=tuple(table.get("cite", ())),
        cite_with=table.get("cite_with", {}),
        settings=join_values({**shared, **table.get("settings", {})}),
        guidance=guidance,
    )


def _join_lines(text: str) -> str:
    return " ".join(text.split())
