"""Cards that describe metrics for their readers: what the number measures, its range, when not to trust it.

The cards of the catalog are TOML files in the folder `cards` beside this module, one file per family and one table per
card. `names` lists the metrics that share a card (by default the name of the table); `settings` describes each setting
that `settings.toml` does not describe for all metrics; `like` names a card from which missing entries are taken. Other
metrics are described by their docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from textwrap import fill
from typing import Any, NamedTuple

from metrist.errors import MetristError
from metrist.metrics import registry
from metrist.metrics.base import Metric
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
    settings: Mapping[str, str] = field(default_factory=dict)
    guidance: tuple[Advice, ...] = ()


def card(name: str) -> Card:
    """The card of the metric of that name; SpecError with the nearest names if there is none."""
    return _cards().get(name) or _from_docstring(registry.build(name))


def describe(metric: Metric, width: int = 88) -> str:
    """The card, facts, settings and signature of a metric as plain text."""
    card = _cards().get(metric.name) or _from_docstring(metric)
    facts = {
        "Needs": ", ".join(("output", *metric.needs)),
        "Direction": _direction(metric),
        "Bounds": "{:g} to {:g}".format(*metric.bounds),
        **({"Extra": f"pip install 'metrist[{metric.extra}]'"} if metric.extra else {}),
    }
    blocks = [
        metric.text,
        *_paragraph("What it measures", card.measures, width),
        *_paragraph("Range", card.range, width),
        *_paragraph("How to read it", card.reading, width),
        *_paragraph("When not to trust it", card.distrust, width),
        *_guidance(card.guidance, width),
        "\n".join(f"{title + ':':<11}{fact}" for title, fact in facts.items()),
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


def _direction(metric: Metric) -> str:
    if metric.higher_is_better is None:
        return "none: it describes and does not judge"
    return "higher is better" if metric.higher_is_better else "lower is better"


def _paragraph(title: str, text: str, width: int) -> Iterator[str]:
    if text:
        yield f"{title}\n{_indent(text, width)}"


def _indent(text: str, width: int, indent: str = "  ") -> str:
    return fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _guidance(advice: Sequence[Advice], width: int) -> Iterator[str]:
    if advice:
        entries = (
            f"  {entry.aspects}\n      {entry.use}\n{_indent(entry.why, width, indent=' ' * 6)}" for entry in advice
        )
        yield "\n".join(["What to use for which aspect", *entries])


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
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    tables = {key: table for file in files if file.name != _SHARED_SETTINGS for key, table in _read_toml(file).items()}
    complete = {key: _inherit(table, tables) for key, table in tables.items()}
    return {name: _parse_card(table, shared) for key, table in complete.items() for name in table.get("names", [key])}


def _inherit(table: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The table, completed from the one that its `like` names."""
    if "like" not in table:
        return table
    parent = {key: value for key, value in tables[table["like"]].items() if key != "names"}
    own = {key: value for key, value in table.items() if key != "like"}
    return {**parent, **own, "settings": {**parent.get("settings", {}), **own.get("settings", {})}}


def _read_toml(file: Any) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _parse_card(table: Mapping[str, Any], shared: Mapping[str, str]) -> Card:
    def join_values(texts: Mapping[str, str]) -> dict[str, str]:
        return {key: _join_lines(text) for key, text in texts.items()}

    texts = join_values({key: text for key, text in table.items() if key not in ("names", "settings", "guidance")})
    guidance = tuple(Advice(**join_values(entry)) for entry in table.get("guidance", []))
    return Card(**texts, settings=join_values({**shared, **table.get("settings", {})}), guidance=guidance)


def _join_lines(text: str) -> str:
    return " ".join(text.split())
