"""`metrist meta`, called as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from metrist.errors import format_path


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    """Three systems on 12 items with ratings by two people and the scores of two metrics."""
    rng = np.random.default_rng(0)
    lines = []
    for item in range(12):
        for quality, system in enumerate(("bad", "fair", "good")):
            truth = quality + rng.normal(0, 0.4)
            row = {
                "item": str(item),
                "system": system,
                "output": f"the answer {item} {system}",
                "references": [f"the answer {item}"],
                "task": "long" if item % 2 else "short",
                "ratings": {"quality": [round(truth), round(truth + rng.normal(0, 0.3))]},
                "raters": ["r1", "r2"],
                "scores": {"close": truth, "random": rng.normal()},
            }
            lines.append(json.dumps(row) + "\n")
    path = tmp_path / "rated.jsonl"
    path.write_text("".join(lines))
    return path


def test_meta_joins_a_run_with_the_ratings(metrist, rated: Path, tmp_path: Path) -> None:
    assert metrist("score", rated, "-m", "rouge1", "-m", "ter", "-o", tmp_path / "run").code == 0
    answer = metrist(
        "meta", tmp_path / "run", rated, "-a", "quality", "--part", "recall", "--slice", "task", "--draws", 50
    )
    assert answer.code == 0
    assert "rouge1:recall" in answer.out
    assert "task=long" in answer.out
    assert "task: macro mean" in answer.out


def test_meta_writes_all_figures_as_json(metrist, rated: Path, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    answer = metrist("meta", rated, "--json", out, "--draws", 50, "--show", "matrix", "--format", "markdown")
    assert answer.code == 0
    assert "| metric |" in answer.out
    written = json.loads(out.read_text())
    columns = {"metric", "aspect", "measure", "group", "slice", "value", "low", "high", "n", "coverage", "epsilon"}
    columns |= {"chance", "all_ties"}
    assert columns <= set(written["rows"][0])
    assert written["tables"][0]["title"] == "acc_eq with quality, metric by slice"
    printed = json.loads(metrist("meta", rated, "--draws", 50, "--format", "json").out)
    assert printed["rows"] == written["rows"]


def test_meta_shows_the_requested_analyses(metrist, rated: Path) -> None:
    answer = metrist(
        "meta", rated, "--draws", 50, "--show", "advice", "--agreement", "--show", "bias", "--format", "latex"
    )
    assert answer.code == 0
    for title in ("Which metric to trust", "Agreement among raters", "Bias by quality"):
        assert title in answer.out


def test_meta_takes_preferences_where_there_are_no_ratings(metrist, tmp_path: Path) -> None:
    rows = [
        {"item": str(n), "systems": ["a", "b"], "outputs": ["x", "y"], "ratings": {"better": [1]}, "scores": {"j": 1}}
        for n in range(5)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assumed, named = metrist("meta", path, "--draws", 20), metrist("meta", path, "--draws", 20, "--preferences")
    assert assumed.code == named.code == 0
    assert assumed.out == named.out
    assert "--preferences is assumed" in assumed.err
    assert "assumed" not in named.err


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table as annotators keep it: no column has metrist's name, and `mqm` and `da` are plain numbers."""
    rng = np.random.default_rng(5)
    lines = ["seg,model,mt,ref,mqm,da,year"]
    for item in range(12):
        for quality, model in enumerate(("bad", "fair", "good", "best")):
            wrong = " ".join(f"w{rng.integers(9)}" for _ in range(4 - quality))
            text = f"the answer {item}"
            lines.append(f"{item},{model},{text} {wrong},{text},{quality - 4 + rng.normal():.2f},{quality},2020")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_column_of_numbers_is_suggested_as_a_rating(metrist, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert metrist("score", table, "-m", "chrf++", "-m", "ter", "--field", "item=seg", "-o", run).code == 0
    refusal = metrist("meta", run)
    assert refusal.code != 0
    assert "no ratings" in refusal.err
    assert "--field rating:mqm=mqm --field rating:da=da" in refusal.err
    assert "year" not in refusal.err
    assert "rating:seg" not in refusal.err
    # The run's own `item=seg` still holds: with row numbers as items, outputs would be joined with others' ratings.
    options = ("--field", "rating:mqm=mqm", "--measure", "pearson", "--draws", 20)
    answer = metrist("meta", run, *options, "--format", "json")
    rows = json.loads(answer.out)["rows"]
    assert [(row["n"], row["coverage"]) for row in rows] == [(48, 1.0), (48, 1.0)]


def test_where_takes_the_column_that_was_read_as_the_system(metrist, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert metrist("score", table, "-m", "ter", "--field", "item=seg", "-o", run).code == 0
    outputs = []
    for name in ("model", "system"):
        options = ("--field", "rating:mqm=mqm", "--where", f"{name}!=bad", "--draws", 0, "--format", "json")
        answer = metrist("meta", run, *options)
        assert answer.code == 0, answer.err
        outputs.append(json.loads(answer.out)["rows"])
    assert outputs[0] == outputs[1]
    assert outputs[0][0]["n"] == 36
    refusal = metrist("meta", run, "--field", "rating:mqm=mqm", "--where", "model=good2")
    assert "model is 'bad', 'fair', 'good', 'best'" in refusal.err


def test_a_table_for_a_paper(metrist, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert metrist("score", table, "-m", "chrf++", "-m", "ter", "--field", "item=seg", "-o", run).code == 0
    options = ("meta", run, "--field", "rating:mqm=mqm", "--draws", 50, "--show", "bias")
    answer = metrist(
        *options, "--format", "latex", "--caption", "Trust", "--label", "tab:trust", "--rename", "ter=TER!"
    )
    assert answer.code == 0, answer.err
    assert r"\caption{Trust}" in answer.out
    assert r"\label{tab:trust}" in answer.out
    assert "& chrF++ &" in answer.out
    assert "& TER! &" in answer.out
    assert r"$\varepsilon$" in answer.out
    assert "ε" not in answer.out.split(r"\begin{table}", 1)[1]
    # What was read from where is for the author, not for the paper's readers.
    notes = [line for line in answer.out.splitlines() if line.startswith(r"\par")]
    assert not any("table.csv" in line for line in notes)
    assert format_path(table) in answer.err
    digits = metrist(*options, "--decimals", 1, "--drop", "coverage,chance", "--intervals", "none")
    assert "coverage" not in digits.out
    refusal = metrist(*options, "--decimals", 1, "--format", "json")
    assert refusal.code != 0
    assert "--format json" in refusal.err


def test_tables_for_a_paper_are_ready_to_paste(metrist, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert metrist("score", table, "-m", "bleu", "-m", "ter", "--field", "item=seg", "-o", run).code == 0
    options = ("meta", run, "--field", "rating:mqm=mqm", "--draws", 50, "--show", "tests", "--format", "latex")
    both = metrist(
        *options, "--measure", "kendall_b", "--measure", "acc_eq", "--label", "tab:m", "--caption", "Trust"
    ).out
    assert r"Kendall's $\tau_b$ & " in both
    assert "acc$_{eq}$ & " in both
    assert r"\_" not in both.replace(r"\_order", "")
    assert r"\caption{Trust}" in both
    assert r"\caption{Trust: Tests between metrics: mqm}" in both
    assert r"\label{tab:m}" in both
    assert r"\label{tab:m-tests}" in both
    answer = metrist(*options, "--measure", "pearson", "--group", "system-level")
    assert r"\caption{Pearson's r with humans' mqm, between systems}" in answer.out
    assert r"\caption{Tests between metrics: mqm, Pearson's r}" in answer.out
    assert "better & worse & difference" in answer.out
    footnotes = [line for line in answer.out.splitlines() if line.startswith(r"\par")]
    assert any("as metrist score pools them, for BLEU, TER" in line for line in footnotes)
    assert not any("Warning" in line or "`" in line for line in footnotes)
    assert "% Note: Warning: only 4 systems" in answer.out
    assert "Warning: only 4 systems" in answer.err


def test_the_foot_has_the_signatures_of_the_metrics(metrist, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert metrist("score", table, "-m", "bleu", "--field", "item=seg", "-o", run).code == 0
    options = ("meta", run, "--field", "rating:mqm=mqm", "--draws", 0, "--format", "json")
    text = metrist(*[option for option in options if option not in ("--format", "json")])
    assert "\nSignatures\nbleu  bleu(" in text.out
    # Scores of single outputs use the effective order, those of systems do not.
    assert "|eff:yes|" in text.out
    assert "|eff:no|" in metrist(*options[:-2], "--group", "system-level", "--measure", "pearson").out


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("--measure", "acc_eq"), "deutsch-etal-2023-ties"),
        (("--measure", "spa"), "thompson-etal-2024-improving"),
        (("--measure", "pearson", "--group", "none", "--test", "williams"), "graham-baldwin-2014-testing"),
    ],
)
def test_what_to_cite(metrist, rated: Path, tmp_path: Path, options: tuple[str, ...], key: str) -> None:
    run = tmp_path / "run"
    assert metrist("score", rated, "-m", "rougeL", "-m", "chrf", "-o", run).code == 0
    answer = metrist("meta", run, rated, "--aspect", "quality", *options, "--draws", 20, "--format", "bibtex")
    assert answer.code == 0, answer.err
    assert f"{{{key}," in answer.out
    assert "{lin-2004-rouge," in answer.out
    assert "nothing to cite is known for close, random" in answer.out
    others = {"deutsch-etal-2023-ties", "kocmi-etal-2021-ship", "thompson-etal-2024-improving"} - {key}
    assert not any(f"{{{other}," in answer.out for other in others)
