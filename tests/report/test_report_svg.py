"""Drawings: valid SVG with colours for paper, PDF with embedded fonts, names that could be markup."""

from __future__ import annotations

import math
import re
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import MissingExtra, RunError
from metrist.report.figures import PlotValue, draw_bars, draw_distributions, draw_matrix, draw_scores
from metrist.report.meta_figures import (
    AgreementBar,
    Curve,
    LevelColumn,
    ScatterPanel,
    draw_agreement,
    draw_curves,
    draw_levels,
    draw_scatter,
)
from metrist.report.svg import (
    COLUMN,
    PHONE,
    Circle,
    Drawing,
    Label,
    Style,
    choose_ticks,
    cut_text,
    format_tick,
    place,
    text_length,
)

ATTACK = "<script>alert(1)</script>\x00\u202e"
SVG = "{http://www.w3.org/2000/svg}"


def parse(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.svg())


def draw_all(style: Style = COLUMN) -> dict[str, Drawing]:
    """One drawing of each kind, with names that could be markup."""
    rng = np.random.default_rng(0)
    interval = PlotValue(value=0.5, low=0.4, high=0.6)
    scores = {"chrf": {ATTACK: interval, "b": PlotValue(value=0.3)}, "ter": {"b": PlotValue(value=math.nan)}}
    values = {"chrf": {ATTACK: rng.random(50), "b": rng.random(50)}, "ter": {"b": np.full(3, np.nan)}}
    curve = Curve(epsilons=[0, 1], accuracies=[0.4, 0.2], tie_shares=[0, 1])
    levels = [
        LevelColumn(task=task, language=language, agreement=interval, people=0.4, metric=0.6, outputs=9)
        for task in ("qa", ATTACK)
        for language in ("en", "sv")
    ]
    bar = AgreementBar(agreement=interval, chance=0.33, all_ties=0.2)
    few = ScatterPanel(
        title=ATTACK, scores=rng.random(9), ratings=rng.random(9), systems={"b": (0.5, 0.5)}, note="ρ .1"
    )
    many = ScatterPanel(title="chrf", scores=rng.random(900), ratings=rng.random(900), systems={})
    return {
        "scores": draw_scores(scores, {"chrf": True}, style),
        "differences": draw_scores(scores, {"chrf": True}, style, zero=True),
        "distributions": draw_distributions(values, {"ter": False}, style),
        "matrix": draw_matrix(
            [ATTACK, "b"], ["x", "y" * 40], np.array([[1, 2], [np.nan, 4.0]]), title=ATTACK, style=style
        ),
        "bars": draw_bars(
            {ATTACK: {"major": 3, "minor": 2}}, ["major", "minor"], ["major", "minor"], title="t", style=style
        ),
        "agreement": draw_agreement({"fluency": {ATTACK: bar}}, {"fluency": interval}, measure="acc_eq", style=style),
        "scatter": draw_scatter([few, many], aspect="fluency", style=style),
        "curves": draw_curves({f"m{n}": curve for n in range(10)}, aspect="fluency", style=style),
        "levels": draw_levels(levels, metric="rougeL", measure="acc_eq", aspect=ATTACK, style=style),
    }


@pytest.mark.parametrize("kind", draw_all())
def test_every_kind_of_figure_is_valid_svg_and_stays_on_its_surface(kind: str) -> None:
    for style in (COLUMN, Style(720, 12)):
        drawing = draw_all(style)[kind]
        root = parse(drawing)
        assert (root.tag, root.get("width")) == (f"{SVG}svg", f"{style.width:g}pt")
        assert root.find(f"{SVG}title") is not None
        assert not root.findall(f".//{SVG}script")
        assert drawing.height > 20
        texts = [element.text or "" for element in root.iter(f"{SVG}text")]
        assert not any("\u202e" in text or "\x00" in text for text in texts)
        for element in root.iter(f"{SVG}rect"):
            assert float(element.get("x") or 0) >= 0
            assert float(element.get("x") or 0) + float(element.get("width") or 0) <= style.width + 1
            assert float(element.get("y") or 0) + float(element.get("height") or 0) <= drawing.height + 1


def test_a_tip_holds_the_numbers() -> None:
    drawing = draw_all()["scores"]
    tips = [element.text for element in parse(drawing).iter(f"{SVG}title")]
    assert any(tip and tip.endswith("chrf: 0.500 [0.400, 0.600]") for tip in tips)


def test_the_legend_of_curves_has_their_colours_and_dashes() -> None:
    root = parse(draw_all()["curves"])

    def looks(tag: str) -> list[tuple[str | None, str | None]]:
        lines = [element for element in root.iter(f"{SVG}{tag}") if "f-c" in (element.get("class") or "")]
        return [(line.get("stroke"), line.get("stroke-dasharray")) for line in lines]

    assert looks("line") == looks("polyline")
    assert len(set(looks("line"))) == 10


def test_no_bar_of_agreement_ends_beyond_the_last_number() -> None:
    for value, last in ((0.71, ".8"), (0.34, ".4"), (0.93, "1"), (1.0, "1")):
        bar = AgreementBar(agreement=PlotValue(value=value))
        drawing = draw_agreement({"fluency": {"chrf": bar, "ter": bar}}, {}, measure="acc_eq", style=COLUMN)
        assert last in [element.text for element in parse(drawing).iter(f"{SVG}text")]


@pytest.mark.parametrize("style", [PHONE, COLUMN, Style(720, 12)])
def test_turned_names_of_columns_are_whole_and_stay_on_the_surface(style: Style) -> None:
    names = [f"accuracy, task={task}" for task in ("weight", "price", "colour", "return")] * 3
    matrix = draw_matrix(["chrf", "rougeL"], names, np.full((2, 12), 0.5), title="t", style=style)
    labels = [shape for shape in matrix.shapes if isinstance(shape, Label) and shape.angle]
    assert [label.text for label in labels] == names
    for label in labels:
        length = text_length(label.text, style.font)
        assert label.x + length * math.cos(math.radians(label.angle)) <= style.width
        assert label.y + length * math.sin(math.radians(label.angle)) >= 0


def test_names_that_do_not_fit_beside_bars_stand_above_them() -> None:
    names = ["consistency: Fact Consistency", "errors: Fact Consistency"]
    bars = draw_bars({name: {"major": 3} for name in names}, ["major"], ["major"], title="t", style=PHONE)
    assert [element.text for element in parse(bars).iter(f"{SVG}text")] == [names[0], "3", names[1], "3"]


def test_an_svg_for_a_page_has_no_size_of_its_own() -> None:
    text = draw_all()["bars"].svg(identifier="figure-3")
    assert 'id="figure-3-title"' in text
    assert "width=" not in text.partition(">")[0]


@pytest.mark.parametrize("kind", ["scores", "levels", "scatter"])
def test_a_pdf_embeds_its_fonts_and_has_no_date(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert is not installed")
    path = tmp_path / "figure.pdf"
    draw_all()[kind].write(path)
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    assert b"/FontFile2" in data
    assert b"Date" not in data
    box = re.search(rb"/MediaBox \[ ?0 0 ([0-9.]+)", data)
    assert box is not None
    assert float(box[1]) == pytest.approx(240)


def test_files_are_written_by_their_suffix(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="vl-convert is not installed")
    drawing = draw_all()["bars"]
    drawing.write(tmp_path / "figure.png")
    drawing.write(tmp_path / "again.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    drawing.write(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8").startswith("<svg ")
    with raises_code(RunError, "cannot_write", ".svg", ".pdf", ".png"):
        drawing.write(tmp_path / "figure.jpg")


def test_pdf_and_png_need_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with raises_code(MissingExtra, "missing_dependency", "plots"):
        draw_all()["bars"].write(tmp_path / "figure.pdf")
    assert not list(tmp_path.iterdir())


def test_ticks_are_round_numbers() -> None:
    assert choose_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert choose_ticks(97, 152, 4) == [100, 120, 140]
    assert choose_ticks(3, 3) == [3]
    assert choose_ticks(math.nan, 1) == []
    assert [format_tick(tick) for tick in (0, 0.5, -0.25, 1200)] == ["0", ".5", "-.25", "1,200"]


def test_places_and_lengths() -> None:
    assert place(5, (0, 10), (100, 200)) == 150
    assert place(1, (1, 1), (0, 10)) == 5
    assert text_length("中文", 10) > text_length("ab", 10)
    assert text_length(cut_text("x" * 500, 10, 80), 10) <= 80
    assert cut_text("abc", 10, 80) == "abc"


@pytest.mark.parametrize("metric", [0.41, 0.9])
def test_the_levels_of_a_task_never_hide_each_other(metric: float) -> None:
    interval = PlotValue(value=0.5, low=0.4, high=0.6)
    columns = [
        LevelColumn(task=task, language=language, agreement=interval, people=0.4, metric=metric, outputs=9)
        for task in ("qa", "data2text")
        for language in ("en", "sv")
    ]
    drawing = draw_levels(columns, metric="rougeL", measure="acc_eq", aspect="fluency")
    dots = [shape for shape in drawing.shapes if isinstance(shape, Circle)]
    assert len(dots) == 2 + 2 * len(columns)  # Two of the legend.
    assert all(math.hypot(a.x - b.x, a.y - b.y) >= 2 * a.radius for a, b in combinations(dots, 2))


def test_few_columns_leave_room_for_the_names_of_rows() -> None:
    name = "accuracy, task=translation"
    drawing = draw_matrix([name], ["a", "b", "c"], np.ones((1, 3)), title="t", style=PHONE)
    assert name in [shape.text for shape in drawing.shapes if isinstance(shape, Label)]
