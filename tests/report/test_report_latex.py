"""LaTeX tables compile, whatever names they hold."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from metrist.metrics.registry import build
from metrist.report.latex import escape_latex
from metrist.report.tables import Column, Estimate, Marked, Number, PValue, Share, Signature, Table
from metrist.run.results import score_column

NAMES = [
    r"a|b_ *x* [red]<b>\\ & 50% $x^2$ #1 {~} ^ \input{x} %",
    "[1]",
    "*",
    "-- --- '' `` ?` !` << >> \"quoted\" ~tilde",
    "line\nbreak\x1b[31m \u202e",
    "é ü ß ñ œ … \u2013 \u2014 † ‡ ± ×",
    "",
]
OPENING = r"""\documentclass{article}
\usepackage{booktabs}
\begin{document}
"""


def test_dashes_and_quotes_are_not_joined() -> None:
    assert escape_latex("a--b---c ''d'' ``e``") == "a-{}-b-{}-{}-c '{}'d'{}' `{}`e`{}`"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_pdflatex_compiles_any_name(tmp_path: Path) -> None:
    estimate = Marked(Estimate(-1.5, -2, 1, 1, "plusminus"), "†‡")
    table = Table(
        title=NAMES[0],
        columns=[Column("system"), score_column(build("bleu")), *map(Column, NAMES[:4])],
        rows=[[name, estimate, Marked(Number(2), "ab"), PValue(0), Share(0.5), "%"] for name in NAMES],
        notes=NAMES,
        signatures=[Signature(name, name, name) for name in NAMES],
    )
    page = OPENING + table.render("latex") + "\n\\end{document}\n"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode("utf-8", "replace")[-2000:]
