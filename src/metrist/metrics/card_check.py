"""Checks of metric cards: of a file, and of a package whose metrics must be as its cards say."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

from metrist.errors import MetristError, describe_exception, unknown_name
from metrist.metrics import registry
from metrist.metrics.base import Metric
from metrist.metrics.card_format import CARD_FILE, Card
from metrist.metrics.cards import direction_name, package_cards, read_cards


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
    points = [point for point in registry.list_entry_points() if _normalize(target) in _package_names(point)]
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


def _package_names(point: EntryPoint) -> set[str]:
    """The names of the package that users know: that of its distribution and that of its module."""
    return {_normalize(registry.package_name(point)), _normalize(_top_package(point))}


def _check_metric(point: EntryPoint) -> Iterator[str]:
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
        if isinstance(card, Card):
            yield from _compare(card, metric)
    except MetristError as error:
        yield str(error)
    except Exception as error:
        yield f"the metric cannot be built: {describe_exception(error)}"


def _compare(card: Card, metric: Metric) -> Iterator[str]:
    """What the card says otherwise than the metric with its default settings."""
    facts: dict[str, tuple[Any, Any]] = {
        "needs": (list(card.needs), list(metric.needs)),
        "better": (card.better, direction_name(metric)),
        "bounds": (list(card.bounds), [float(bound) for bound in metric.bounds]),
    }
    for name, (written, found) in facts.items():
        if written != found:
            yield f"{name} is {found} in the class, {written} in the card"
    declared: Any = metric
    fields = dataclasses.fields(declared) if dataclasses.is_dataclass(declared) else ()
    settings = [field.name for field in fields if field.init and field.name not in metric.in_name]
    for setting in settings:
        if setting not in card.settings:
            yield f"the setting {setting!r} has no description"
