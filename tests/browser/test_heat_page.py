"""The heat map of tokens in a real browser: colours in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metrist.report.heat import Reading
from metrist.report.output_card import OutputCard
from metrist.report.outputs import Heat
from metrist.scores import Score


@pytest.fixture
def address(tmp_path: Path) -> str:
    pieces = ("The", " cat", " sat", " on", " Bush")
    reading = Reading(label="output, given source", pieces=pieces, logprobs=(-0.1, -1.5, -3.0, -5.5, -9.0))
    scores = {"likelihood": Score(value=-3.2)}
    output = OutputCard(item="1", system="s", by="likelihood", scores=scores, readings=(reading,))
    (tmp_path / "page.html").write_text(Heat(outputs=[output], pieces=True).page(), encoding="utf-8")
    return (tmp_path / "page.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_step_has_its_own_colour_that_can_be_read(chromium: Any, address: str, scheme: str) -> None:
    page = chromium.new_page(color_scheme=scheme)
    page.goto(address)
    looks = page.locator(".tokens .t").evaluate_all(
        "all => all.map(e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color])"
    )
    paper = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    grounds = [paper if ground == "rgba(0, 0, 0, 0)" else ground for ground, _ in looks]
    assert len(set(grounds)) == 5
    # WCAG 2 asks for a contrast of at least 4.5 between text and ground.
    assert min(contrast(ink, ground) for ground, (_, ink) in zip(grounds, looks, strict=True)) >= 4.5
    page.close()


def contrast(first: str, second: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""
    darker, lighter = sorted(map(_luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
