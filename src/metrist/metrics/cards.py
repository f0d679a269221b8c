"""What a metric's number means: one card per metric, written for those who read the number.

The cards of the catalog are TOML files in the folder `cards` beside this module, one file per family and one table per
card. `names` lists the metrics that share a card (by default the table's own name); `settings` says what each setting
does, unless `settings.toml` already says it for all metrics; `like` names a card that answers what this one leaves
open. A metric from outside is described by its docstring.
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
    """Which settings suit what a reader wants to judge, and why."""

    aspects: str
    use: str
    why: str


@dataclass(frozen=True, slots=True)
class Card:
    """What a reader of a number asks, in the order in which it is asked."""

    measures: str
    range: str = ""
    reading: str = ""
    distrust: str = ""
    citation: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    guidance: tuple[Advice, ...] = ()


def card(name: str) -> Card:
    """The card of the metric that a spec calls `name`; an unknown name is refused with the nearest ones."""
    return _cards().get(name) or _from_docstring(registry.build(name))


def describe(metric: Metric, width: int = 88) -> str:
    """All that is known of a metric, as plain text."""
    found = _cards().get(metric.name) or _from_docstring(metric)
    facts = {
        "Needs": ", ".join(("output", *metric.needs)),
        "Direction": _direction(metric),
        "Bounds": "{:g} to {:g}".format(*metric.bounds),
        **({"Extra": f"pip install 'metrist[{metric.extra}]'"} if metric.extra else {}),
    }
    blocks = [
        metric.text,
        *_paragraph("What it measures", found.measures, width),
        *_paragraph("Range", found.range, width),
        *_paragraph("How to read it", found.reading, width),
        *_paragraph("When not to trust it", found.distrust, width),
        *_guidance(found.guidance, width),
        "\n".join(f"{title + ':':<11}{fact}" for title, fact in facts.items()),
        *_settings(metric, found, width),
        *_paragraph("Signature", _signature(metric), width),
        *_paragraph("Citation", found.citation, width),
    ]
    return "\n\n".join(blocks) + "\n"


def _signature(metric: Metric) -> str:
    """The signature, or why it cannot be told: it names the weights' hash, and they may not be at hand."""
    try:
        with no_downloads():
            return metric.signature
    except MetristError as fault:
        return f"not known here: {str(fault).splitlines()[0]}"


def _direction(metric: Metric) -> str:
    if metric.higher_is_better is None:
        return "none: it describes and does not judge"
    return "higher is better" if metric.higher_is_better else "lower is better"


def _paragraph(title: str, text: str, width: int) -> Iterator[str]:
    if text:
        yield f"{title}\n{_indented(text, width)}"


def _indented(text: str, width: int, by: str = "  ") -> str:
    return fill(text, width, initial_indent=by, subsequent_indent=by, break_long_words=False, break_on_hyphens=False)


def _guidance(advice: Sequence[Advice], width: int) -> Iterator[str]:
    if advice:
        said = (f"  {one.aspects}\n      {one.use}\n{_indented(one.why, width, by=' ' * 6)}" for one in advice)
        yield "\n".join(["What to use for which aspect", *said])


def _settings(metric: Metric, found: Card, width: int) -> Iterator[str]:
    declared: tuple[dataclasses.Field[Any], ...] = (
        dataclasses.fields(metric) if dataclasses.is_dataclass(metric) else ()
    )
    lines = ["Settings"]
    for setting in declared:
        if not setting.init or setting.name in metric.in_name:
            continue
        given = "required" if setting.default is dataclasses.MISSING else f"default {setting.default!r}"
        lines.append(f"  {setting.name} ({given})")
        if said := found.settings.get(setting.name):
            lines.append(_indented(said, width, by=" " * 6))
    if len(lines) > 1:
        yield "\n".join(lines)


def _from_docstring(metric: Metric) -> Card:
    # A dataclass without a docstring is given its signature as one, which explains nothing.
    written = inspect.getdoc(type(metric)) or ""
    generated = written.startswith(f"{type(metric).__name__}(")
    return Card(measures="" if generated else " ".join(written.split()))


@cache
def _cards() -> Mapping[str, Card]:
    folder = resources.files("metrist.metrics") / "cards"
    shared = _table(folder / _SHARED_SETTINGS)
    families = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda file: file.name)
    tables = {key: table for file in families if file.name != _SHARED_SETTINGS for key, table in _table(file).items()}
    whole = {key: _with_model(table, tables) for key, table in tables.items()}
    return {name: _card(table, shared) for key, table in whole.items() for name in table.get("names", [key])}


def _with_model(table: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The table, with what it leaves open from the one that it is like."""
    if "like" not in table:
        return table
    model = {key: said for key, said in tables[table["like"]].items() if key != "names"}
    own = {key: said for key, said in table.items() if key != "like"}
    return {**model, **own, "settings": {**model.get("settings", {}), **own.get("settings", {})}}


def _table(file: Any) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _card(table: Mapping[str, Any], shared: Mapping[str, str]) -> Card:
    said = {key: _one_line(text) for key, text in {**shared, **table.get("settings", {})}.items()}
    guidance = tuple(Advice(**{key: _one_line(text) for key, text in one.items()}) for one in table.get("guidance", []))
    plain = {key: _one_line(text) for key, text in table.items() if key not in ("names", "settings", "guidance")}
    return Card(**plain, settings=said, guidance=guidance)


def _one_line(text: str) -> str:
    return " ".join(text.split())
