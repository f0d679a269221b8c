"""Cards that describe metrics for their readers: what the number measures, its range, when not to trust it.

The cards of metrist's own metrics are the files in the folder `cards` beside this module; `settings.toml` there
describes settings that several share. A package that adds metrics has its cards in `card.toml`. `card_format` has the
format. A metric without a card is described by its docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import msgspec

from metrist._version import __version__
from metrist.errors import MetristError, SpecError, describe_exception, install_command, unknown_name
from metrist.metrics import registry
from metrist.metrics.agreement import (
    describe_direction,
    export_agreement,
    format_agreement,
    list_agreements,
    summarize_tasks,
)
from metrist.metrics.base import Metric, PartMetric, iterate_nested
from metrist.metrics.card_format import CARD_FILE, Agreement, Better, Card, parse_cards, read_tables
from metrist.models.devices import no_downloads

_FOLDER = Path(__file__).parent / "cards"
_SHARED_SETTINGS = "settings.toml"


def card(name: str) -> Card:
    """The card of the metric of that name; SpecError with the nearest names if there is none."""
    return find_card(name) or _from_docstring(registry.build(name))


def metric_card(metric: Metric) -> Card:
    """The card of a metric; one from its docstring where it has none."""
    return find_card(metric.name) or _from_docstring(metric)


def find_card(name: str) -> Card | None:
    """The card of a metric of the catalog; None if it has none, or one with errors."""
    found = _find(name)
    return found if isinstance(found, Card) else None


def display_name(metric: Metric) -> str:
    """The metric's name in papers, such as ROUGE-L or chrF++; its text where the catalog knows none."""
    card = find_card(metric.name)
    if card is None:
        return metric.text
    title = card.titles.get(metric.name) or card.title
    if metric.name == "chrf":
        return title + "+" * getattr(metric, "word_order", 0)
    try:
        return title.format_map(vars(metric)) or metric.text
    except (AttributeError, LookupError, ValueError):  # Another package's card names what its metric does not have.
        return metric.text


def name_in_papers(metric: Metric) -> str:
    """The metric's short name, or its name in papers; a part of its scores has the metric's name before its own."""
    if isinstance(metric, PartMetric):
        return f"{name_in_papers(metric.metric)} {metric.part}"
    return metric.short_name or display_name(metric)


def citation_keys(metric: Metric) -> list[str]:
    """The keys in `citations.bib` of what to cite for the metric and for metrics within it."""
    keys: dict[str, None] = {}
    for nested in iterate_nested(metric):
        if isinstance(nested, Metric) and (card := find_card(nested.name)):
            keys |= dict.fromkeys(card.cite)
            for setting, setting_keys in card.cite_with.items():
                if getattr(nested, setting, None) != getattr(type(nested), setting, None):
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
    found = _find(metric.name)
    card = found if isinstance(found, Card) else _from_docstring(metric)
    try:
        with no_downloads():
            signature = metric.signature
    except MetristError as error:  # It contains the hash of weights that may not be on this machine.
        signature = f"not known here: {str(error).splitlines()[0]}"
    direction = "none: it describes and does not judge"
    if metric.higher_is_better is not None:
        direction = "higher is better" if metric.higher_is_better else "lower is better"
        if against := describe_direction(metric.name):
            direction += f", but the opposite on {against}"
    facts = {
        "Needs": ", ".join(("output", *metric.needs)),
        "Direction": direction,
        "Bounds": "{:g} to {:g}".format(*metric.bounds),
        **({"Licence": card.licence} if card.licence else {}),
        **({"Extra": install_command(metric.extra)} if metric.extra else {}),
    }
    opening = {"Good for": card.good_for, "Beaten by": card.beaten_by, "Instead": card.instead}
    guidance = [
        f"  {entry.aspects}\n      {entry.use}\n{_indent(entry.why, width, indent=' ' * 6)}" for entry in card.guidance
    ]
    learned = [f"{data.name}{data.use and f': {data.use}'} ({data.licence})" for data in card.training_data]
    blocks = [
        metric.text,
        *_facts({title: text for title, text in opening.items() if text}, width),
        *(_paragraph("The card cannot be used", str(found), width) if isinstance(found, MetristError) else []),
        *_paragraph("What it measures", card.measures, width),
        *_paragraph("Range", card.range, width),
        *_paragraph("How to read it", card.reading, width),
        *_paragraph("When not to trust it", card.distrust, width),
        *(["\n".join(["What to use for which aspect", *guidance])] if guidance else []),
        *(_agreement(metric.name, card, width) if metric.text == metric.name else []),
        *_paragraph("Training data, with licences", "; ".join(learned), width),
        *_facts(facts, width),
        *_settings(metric, card, width),
        *_paragraph("Signature", signature, width),
        *_paragraph("Citation", card.citation, width),
    ]
    return "\n\n".join(blocks) + "\n"


def export_card(metric: Metric) -> Card:
    """The card of a metric with what it needs as it is set, and with the published figures of one that ships."""
    own = metric_card(metric)
    published = tuple(export_agreement(metric.name, row) for row in list_agreements(metric.name))
    return msgspec.structs.replace(
        own,
        needs=metric.needs,
        better=direction_name(metric),
        bounds=metric.bounds,
        agreement=own.agreement or published,
    )


def direction_name(metric: Metric) -> Better:
    """Which values of the metric are better, as a card says it."""
    return "neither" if metric.higher_is_better is None else "higher" if metric.higher_is_better else "lower"


def _agreement(name: str, card: Card, width: int) -> Iterator[str]:
    """How far the metric agreed with people, task by task, if it was measured with these settings."""
    title = "Agreement with people, by task"
    tasks: dict[str, list[Agreement]] = {}
    for row in card.agreement:
        tasks.setdefault(row.task, []).append(row)
    if not tasks and (published := summarize_tasks(name)):
        title += " (docs/research/tables.md has all baselines)"
        for known in published:
            tasks[f"{known.task}: {known.verdict}"] = [export_agreement(name, row) for row in known.rows]
    if tasks:
        lines = [title]
        for task, rows in tasks.items():
            lines.append(_indent(task.replace("_", " "), width))
            lines += [_indent(format_agreement(row), width, indent=" " * 6) for row in rows]
        yield "\n".join(lines)


def _facts(facts: Mapping[str, str], width: int) -> Iterator[str]:
    if facts:
        yield "\n".join(_indent(fact, width, f"{title + ':':<11}", " " * 11) for title, fact in facts.items())


def _paragraph(title: str, text: str, width: int) -> Iterator[str]:
    if text:
        yield f"{title}\n{_indent(text, width)}"


def _indent(text: str, width: int, indent: str = "  ", following: str | None = None) -> str:
    """The text in lines of that width; `following` is the indent of all lines but the first, where it differs."""
    rest = indent if following is None else following
    return fill(
        text, width, initial_indent=indent, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _list_settings(metric: Metric) -> list[dataclasses.Field[Any]]:
    declared: Any = metric
    fields = dataclasses.fields(declared) if dataclasses.is_dataclass(declared) else ()
    return [field for field in fields if field.init and field.name not in metric.in_name]


def _settings(metric: Metric, card: Card, width: int) -> Iterator[str]:
    lines = ["Settings"]
    for setting in _list_settings(metric):
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
    return Card(
        measures="" if generated else " ".join(docstring.split()),
        needs=metric.needs,
        better=direction_name(metric),
        bounds=metric.bounds,
        distrust="",
        licence="",
    )


# --- Files of cards


def _find(name: str) -> Card | MetristError | None:
    """The card of a metric of the catalog, or what is wrong with it."""
    if shipped := _shipped_cards().get(name):
        return shipped
    # The names of metrics outside the catalog are import paths.
    point = None if "." in name else registry.entry_point(name)
    try:
        return package_cards(point.module.partition(".")[0]).get(name) if point else None
    except MetristError as error:
        return error


@cache
def _shipped_cards() -> Mapping[str, Card | MetristError]:
    settings = read_tables(_FOLDER / _SHARED_SETTINGS)
    paths = sorted(path for path in _FOLDER.glob("*.toml") if path.name != _SHARED_SETTINGS)
    return {name: card for path in paths for name, card in read_cards(path, settings).items()}


@cache
def package_cards(package: str) -> Mapping[str, Card | MetristError]:
    """The cards of a top-level package, by metric; the package is not imported."""
    if package == "metrist":
        return _shipped_cards()
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return {}
    folders = (spec.submodule_search_locations if spec else None) or []
    paths = [path for folder in folders if (path := Path(folder, CARD_FILE)).is_file()]
    return {name: card for path in paths for name, card in read_cards(path).items()}


def read_cards(path: Path, settings: Mapping[str, str] | None = None) -> dict[str, Card | MetristError]:
    """Read a file of cards: each metric's card, or what is wrong with it."""
    cards = dict(parse_cards(read_tables(path), path, settings))
    for name, card in cards.items():
        keys = () if isinstance(card, MetristError) else (*card.cite, *(k for v in card.cite_with.values() for k in v))
        if unknown := [key for key in keys if key not in _bibliography()]:
            cards[name] = unknown_name(f"[{name}]: citation", unknown[0], _bibliography(), SpecError)
    return cards


# --- Checking cards


class CardProblem(NamedTuple):
    """What is wrong with the card of a metric."""

    metric: str
    problem: str


class CardCheck(NamedTuple):
    """The metrics whose cards were checked, and what is wrong with them."""

    metrics: list[str]
    problems: list[CardProblem]


def check_cards(target: str) -> CardCheck:
    """Check a file of cards, a folder with one, also in `src/*`, or an installed package; `metrist` is one, too."""
    path = Path(target)
    if path.is_dir() and (path / CARD_FILE).is_file():
        path /= CARD_FILE
    # The name of a package may also be that of a folder beside it.
    if path.is_file() or path.suffix == ".toml":
        cards = read_cards(path)
        broken = [CardProblem(name, str(card)) for name, card in cards.items() if isinstance(card, MetristError)]
        return CardCheck(list(cards), broken)
    # A package is named by its distribution or by its module.
    points = [
        point
        for point in registry.list_entry_points()
        if _normalize(target) in map(_normalize, (registry.package_name(point), _top_package(point)))
    ]
    if not points:
        if nested := sorted(path.glob(f"src/*/{CARD_FILE}")):  # The folder of a package that is not installed.
            return check_cards(str(nested[0]))
        packages = sorted({registry.package_name(point) for point in registry.list_entry_points()})
        raise unknown_name("package with metrics", target, packages)
    problems = [CardProblem(point.name, problem) for point in points for problem in _check_metric(point)]
    names = [point.name for point in points]
    for package in {_top_package(point) for point in points}:
        try:
            unregistered = [name for name in package_cards(package) if name not in registry.names()]
        except MetristError:  # The metrics of the package say why.
            continue
        problems += [
            CardProblem(name, f"the package has no metric of that name in its entry points {registry.ENTRY_POINTS!r}")
            for name in unregistered
        ]
    return CardCheck(names, problems)


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _top_package(point: EntryPoint) -> str:
    return point.module.partition(".")[0]


def _check_metric(point: EntryPoint) -> Iterator[str]:
    """What is wrong with the card of a metric, or else what it says otherwise than the metric with its defaults."""
    card: Card | MetristError | None
    try:
        card = package_cards(_top_package(point)).get(point.name)
    except MetristError as error:
        card = error
    if card is None:
        yield f"no card: add [{point.name}] to {CARD_FILE} in the folder of the package {_top_package(point)}"
    elif isinstance(card, MetristError):
        yield str(card)
    try:
        metric = registry.example(point.name)
        if metric.name != point.name:
            yield f"the class is called {metric.name}: expected catalog_name = {point.name!r}"
        if not isinstance(card, Card):
            return
        facts: dict[str, tuple[Any, Any]] = {
            "needs": (list(card.needs), list(metric.needs)),
            "better": (card.better, direction_name(metric)),
            "bounds": (list(card.bounds), [float(bound) for bound in metric.bounds]),
        }
        for name, (written, found) in facts.items():
            if written != found:
                yield f"{name} is {found} in the class, {written} in the card"
        for setting in _list_settings(metric):
            if setting.name not in card.settings:
                yield f"the setting {setting.name!r} has no description"
    except MetristError as error:
        yield str(error)
    except Exception as error:
        yield f"the metric cannot be built: {describe_exception(error)}"
