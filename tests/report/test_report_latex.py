"""LaTeX tables compile, whatever names they hold."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from metrist.metrics.cards import name_in_papers
from metrist.metrics.registry import build
from metrist.report.scores import score_column
from metrist.report.tables import (
    Change,
    Column,
    Estimate,
    Marked,
    MetricSignature,
    NameCell,
    Number,
    PValue,
    Share,
    Table,
    TableLayout,
    escape_latex,
)

NAMES = [
    r"a|b_ *x* [red]<b>\\ & 50% $x^2$ #1 {~} ^ \input{x} %",
    "[1]",
    "*",
    "-- --- '' `` ?` !` << >> \"quoted\" ~tilde",
    "line\nbreak\x1b[31m \u202e",
    "é ü ß ñ œ … \u2013 \u2014 † ‡ ± ×",
    "",
]


def compile_page(table: str, folder: Path, columns: str = "") -> str:
    """What pdflatex says of a page with a table."""
    page = rf"\documentclass{columns}{{article}}\usepackage{{booktabs}}\begin{{document}}{table}\end{{document}}"
    (folder / "a.tex").write_text(page, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    said = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, said[-2000:]
    return said


def test_dashes_and_quotes_are_not_joined() -> None:
    assert escape_latex("a--b---c ''d'' ``e``") == "a-{}-b-{}-{}-c '{}'d'{}' `{}`e`{}`"


PAIRS = Table(
    title="Pairs",
    columns=[
        *map(Column, ("metric", "A", "B")),
        Column("items", "right", in_latex=False),
        *(Column(name, "right") for name in ("A - B", "p boot", "p rand")),
    ],
    rows=[
        [
            NameCell(text, column=score_column(build(text), name_in_papers)),
            NameCell("bleurt_bestmbr"),
            NameCell("M2M100_1.2B-B4", strong=text == "ter"),
            150,
            Change(-7.9, -10.8, -5.2, 1),
            PValue(0.0),
            PValue(0.5),
        ]
        for text in ("bleu", "chrf", "chrf(char_order=3)", "ter")
    ],
    notes=["Lower is better: ter."],
)


def test_a_list_of_pairs_has_names_of_papers_arrows_and_the_better_system_in_bold() -> None:
    latex = PAIRS.render("latex")
    assert r"metric & A & B & A - B & p boot & p rand \\" in latex
    assert r"BLEU $\uparrow$ & bleurt\_bestmbr & M2M100\_1.2B-B4 & " in latex
    assert r"TER $\downarrow$ & bleurt\_bestmbr & \textbf{M2M100\_1.2B-B4} & " in latex
    # Two settings of one metric have the same name in papers.
    assert r"chrf(char\_order=3) $\uparrow$ & " in latex
    assert "Lower is better" not in latex
    assert r"\par\footnotesize The better system is in bold." in latex
    renamed = PAIRS.render("latex", TableLayout(rename={"ter": "T_R", "M2M100_1.2B-B4": "Ours"}))
    assert r"T\_R & bleurt\_bestmbr & \textbf{Ours} & " in renamed
    assert "| ter | bleurt_bestmbr | M2M100_1.2B-B4 | 150 |" in PAIRS.render("markdown")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("columns", ["", "[twocolumn]"])
def test_a_list_of_pairs_fits_the_page(columns: str, tmp_path: Path) -> None:
    table = PAIRS.render("latex", TableLayout(rename={"chrf(char_order=3)": "chrF3"}))
    assert "Overfull" not in compile_page(f"\n{table}\n", tmp_path, columns)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_pdflatex_compiles_any_name(tmp_path: Path) -> None:
    estimate = Marked(Estimate(-1.5, -2, 1, 1, "plusminus"), "†‡")
    table = Table(
        title=NAMES[0],
        columns=[Column("system"), score_column(build("bleu"), name_in_papers), *map(Column, NAMES[:4])],
        rows=[[name, estimate, Marked(Number(2), "ab"), PValue(0), Share(0.5), "%"] for name in NAMES],
        notes=NAMES,
        signatures=[MetricSignature(name, name, name) for name in NAMES],
    )
    compile_page(f"\n{table.render('latex')}\n", tmp_path)
