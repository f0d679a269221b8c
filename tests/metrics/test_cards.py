from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from metrist import __version__
from metrist.errors import SpecError
from metrist.metrics import registry
from metrist.metrics.base import Metric
from metrist.metrics.cards import card, describe


@dataclass(frozen=True)
class Documented(Metric):
    """Counts how often
    the output says please."""

    language: str
    politely: bool = True


@dataclass(frozen=True)
class Silent(Metric):
    pass


@pytest.mark.parametrize("name", registry.names())
def test_every_metric_of_the_catalog_answers_every_question(name):
    found = card(name)
    for question in ("measures", "range", "reading", "distrust", "citation"):
        assert len(getattr(found, question)) > 15, question
    metric = registry.example(name)
    settings = {field.name for field in dataclasses.fields(metric)} - set(metric.in_name)
    assert settings <= found.settings.keys()


@pytest.mark.parametrize("name", registry.names())
def test_every_description_is_plain_text_of_lines_that_fit(name):
    metric = registry.example(name)
    text = describe(metric)
    assert text.startswith(name)
    for title in ("What it measures", "How to read it", "When not to trust it", "Needs:", "Signature", "Citation"):
        assert title in text
    assert f" | metrist {__version__}" in " ".join(text.split()) or "Signature\n  not known here: " in text
    # Code to copy is not folded.
    assert all(len(line) <= 88 or "_" in line or "(" in line for line in text.splitlines())


def test_a_description_names_needs_direction_bounds_and_settings():
    text = describe(registry.build("copy_rate(order=4)"))
    assert text.startswith("copy_rate(order=4)\n")
    assert "Needs:     output, source\n" in text
    assert "Direction: none: it describes and does not judge\n" in text
    assert "Bounds:    0 to 1\n" in text
    assert "  order (default 2)\n      How many words in a row" in text
    assert "Direction: higher is better" in describe(registry.build("rougeL"))
    assert "Direction: lower is better" in describe(registry.build("ter"))


def test_orders_of_rouge_share_a_card():
    assert card("rouge1") == card("rouge9")
    assert "  order (" not in describe(registry.build("rouge2"))


def test_a_metric_from_outside_is_described_by_its_docstring():
    text = describe(Documented(language="en"))
    assert "What it measures\n  Counts how often the output says please.\n" in text
    assert "  language (required)\n  politely (default True)\n" in text
    assert "Citation" not in text
    assert "What it measures" not in describe(Silent())
    assert card("test_cards.Silent").measures == ""


def test_a_name_without_a_metric_is_refused():
    with pytest.raises(SpecError, match=r"no metric named 'rougeX'; did you mean"):
        card("rougeX")
