"""The reliability study: every cell of its tables against `reliability_by_hand`, on data made as the paper describes
and on public sets with three raters."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reliability_by_hand as by_hand
from reliability_by_hand import Study
from typer.testing import CliRunner

from error_codes import raises_code
from metrist.cli.app import app
from metrist.errors import RunError, SpecError
from metrist.report.tables import Table
from metrist.studies.reproduce.reliability import ReliabilityStudy, study_reliability
from metrist.studies.reproduce.reliability_figures import draw_study, format_study

#: The tasks of the paper's Appendix A, and those with long answers (7 of 20, as its means in Table 5 imply).
TASKS = (33, 34, 36, 133, 190, 200, 202, 329, 349, 392, 401, 520, 613, 677, 891, 1152, 1562, 1615, 1622, 1659)
LONG = (34, 613, 677, 1152, 1562, 1622, 1659)
#: The paper's models: trained on English, Swedish or both, tested on the last of their languages.
MODELS = [
    f"{base}_{languages}"
    for base in ("LLaMA2_13b", "LLaMA2_7b", "SW3_6.7b")
    for languages in ("EN_EN", "SV_SV", "ENSV_EN", "ENSV_SV")
]
ASPECTS = ("natural", "related", "correct")
METRICS = ("gold:correct", "no-gold:correct", "rouge", "bert")


def make_rows(items: int = 4) -> list[dict[str, Any]]:
    """Ratings 1 to 3 of three named raters, two judges on that scale for each aspect, a score like ROUGE-L and one like
    BERTScore, in English only. Scores are multiples of 1/64, so that gaps between them are exact. People rate all
    outputs of task 34 alike, as in the paper."""
    rng = np.random.default_rng(7)
    rows = []
    for number, model in enumerate(MODELS):
        language = model.rpartition("_")[2]
        for task in TASKS:
            for item in range(items):
                quality = rng.normal(1.9 + 0.05 * number - 0.3 * (task in LONG), 0.8)
                ratings: dict[str, list[int]] = {}
                scores: dict[str, float] = {}
                for shift, aspect in enumerate(ASPECTS[::-1]):
                    level = quality + 0.5 * shift
                    raters = np.clip(np.rint(level + rng.normal(0, 0.5, 3)), 1, 3).astype(int).tolist()
                    ratings[aspect] = [1, 1, 1] if aspect == "correct" and task == 34 else raters
                    scores[f"gold:{aspect}"] = int(np.clip(np.rint(level + rng.normal(0, 0.4)), 1, 3))
                    scores[f"no-gold:{aspect}"] = int(np.clip(np.rint(level + rng.normal(0.5, 0.9)), 1, 3))
                near = np.clip(quality / 3 + rng.normal(0, 0.15 if language == "EN" else 0.3), 0, 1)
                scores["rouge"] = float(
                    np.rint(near * (8 if task not in LONG else 64)) / (8 if task not in LONG else 64)
                )
                if language == "EN":
                    scores["bert"] = float(np.rint(64 * np.clip(near + rng.normal(0, 0.2), 0, 1)) / 64)
                rows.append(
                    {
                        "item": f"{task}-{item}-{language}",
                        "system": model,
                        "task": f"task{task:04d}",
                        "language": language,
                        "kind": "long" if task in LONG else "short",
                        "output": "x",
                        "references": ["a free answer of some thirty letters" if task in LONG else "yes"],
                        "ratings": ratings,
                        "raters": ["ann", "ben", "cia"],
                        "scores": scores,
                    }
                )
    return rows


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return make_rows()


@pytest.fixture(scope="module")
def file(rows: Sequence[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "ratings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def study(file: Path) -> ReliabilityStudy:
    return study_reliability([file], aspect="correct", class_column="kind")


def check_table(table: Table, expected: Sequence[dict[str, Any]]) -> None:
    found = table.to_dict()["rows"]
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        wanted = {name: None if value != value else value for name, value in other.items() if name in row}
        assert row == {name: pytest.approx(value, abs=1e-9) for name, value in wanted.items()}, other


def check_study(study: ReliabilityStudy, expected: Study, judges: dict[str, dict[str, str]]) -> None:
    raters, ties, levels, systems, metrics = study.tables()
    check_table(ties, expected.table_1())
    check_table(levels, expected.table_2(judges))
    check_table(systems, expected.table_4())
    check_table(metrics, expected.table_5())
    for row in raters.to_dict()["rows"]:
        rated = [own for own in expected.rows if row["aspect"] in own["ratings"]]
        assert row["Fleiss' κ"] == pytest.approx(by_hand.fleiss_kappa(rated, row["aspect"]), abs=1e-9)
        assert row["majority"] == pytest.approx(by_hand.majority_share(rated, row["aspect"]), abs=1e-9)
        assert row["outputs"] == len(rated)


@pytest.mark.parametrize("over", ["language", "all"])
def test_all_cells_of_the_papers_tables_equal_those_by_hand(
    rows: list[dict[str, Any]], file: Path, study: ReliabilityStudy, over: Any
) -> None:
    if over == "all":
        study = study_reliability([file], aspect="correct", class_column="kind", epsilon_over="all")
    length = {row["task"]: row["kind"] for row in rows}
    judges = {aspect: {name: f"{name.split(':')[0]}:{aspect}" for name in METRICS[:2]} for aspect in ASPECTS}
    check_study(study, Study(rows, "correct", METRICS, length, over), judges)
    assert study.judges == METRICS[:2]
    (row,) = [row for row in study.tables()[0].to_dict()["rows"] if row["aspect"] == "correct"]
    assert row["τ-b, mean of rater pairs"] == pytest.approx(by_hand.mean_tau_of_raters(rows, "correct"), abs=1e-9)
    # One threshold serves every row.
    thresholds = {(cell.part.language, cell.accuracy.epsilon) for cell in study.cells if cell.metric == "rouge"}
    assert len(thresholds) == 2
    assert len({epsilon for _, epsilon in thresholds}) == (1 if over == "all" else 2)


def test_given_thresholds_are_used_everywhere(rows: list[dict[str, Any]], file: Path) -> None:
    given: dict[str, Any] = {"rouge": {"EN": 0.25, "SV": 0.125}, "gold:correct": 1.0}
    study = study_reliability([file], aspect="correct", class_column="kind", metrics=METRICS, epsilon=given)
    expected = Study(rows, "correct", METRICS, {row["task"]: row["kind"] for row in rows}, "language")
    expected.epsilons |= {("rouge", language): value for language, value in given["rouge"].items()}
    expected.epsilons |= dict.fromkeys([("gold:correct", "EN"), ("gold:correct", "SV")], 1.0)
    judges = {aspect: {name: f"{name.split(':')[0]}:{aspect}" for name in METRICS[:2]} for aspect in ASPECTS}
    check_study(study, expected, judges)
    assert sum("rouge, gold:correct" in note for note in study.notes) == 1
    with raises_code(RunError, "missing_value", "SV"):
        study_reliability([file], aspect="correct", epsilon={"rouge": {"EN": 0.25}})
    with raises_code(RunError, "conflict", "rouge"):
        study_reliability([file], aspect="correct", epsilon={"rouge": {"EN": 0.25}}, epsilon_over="all")
    with raises_code(RunError, "unknown_name", "rogue"):
        study_reliability([file], aspect="correct", epsilon={"rogue": 0.25})


def test_without_a_column_tasks_are_classed_by_their_references(file: Path) -> None:
    study = study_reliability([file], aspect="correct", metrics=["rouge"])
    assert {part.task: part.length for part in study.parts} == {
        f"task{task:04d}": "long" if task in LONG else "short" for task in TASKS
    }


#: Human levels and those of GPT-4, per model and aspect (natural, related, correct), as Table 2 of the paper prints
#: them, and its last row.
TABLE_2 = (
    ((99, 95), (73, 80), (47, 51)),
    ((99, 94), (76, 76), (36, 37)),
    ((99, 92), (80, 79), (47, 47)),
    ((99, 92), (80, 76), (39, 40)),
    ((99, 91), (72, 76), (40, 44)),
    ((99, 88), (65, 68), (35, 34)),
    ((99, 92), (74, 75), (41, 43)),
    ((98, 89), (66, 68), (32, 33)),
    ((99, 91), (79, 70), (35, 36)),
    ((99, 92), (66, 67), (37, 37)),
    ((99, 92), (81, 68), (35, 35)),
    ((99, 85), (68, 63), (35, 36)),
)
AVERAGE_DIFFERENCES = (7.8, 4.2, 1.3)


def test_the_levels_of_the_papers_table_2_have_its_average_differences() -> None:
    """100 outputs a model; as many as the printed percentage are rated 3, the others 1."""
    rows = []
    for model, levels in zip(MODELS, TABLE_2, strict=True):
        for item in range(100):
            ratings = {a: [3 if item < own[0] else 1] * 3 for a, own in zip(ASPECTS, levels, strict=True)}
            scores = {f"gpt-4:{a}": 3 if item < own[1] else 1 for a, own in zip(ASPECTS, levels, strict=True)}
            rows.append({"item": str(item), "system": model, "output": "x", "ratings": ratings, "scores": scores})
    study = study_reliability([rows], aspect="correct")
    found = study.tables()[2].to_dict()["rows"]
    shown = [
        tuple((row[aspect], row[f"{aspect} (gpt-4:correct)"]) for aspect in ASPECTS) for row in found[: len(MODELS)]
    ]
    assert np.array(shown) == pytest.approx(np.array(TABLE_2))
    differences = [found[-1][f"{aspect} (gpt-4:correct)"] for aspect in ASPECTS]
    assert tuple(round(value, 1) for value in differences) == AVERAGE_DIFFERENCES


def test_figures_show_the_numbers_of_the_cells(study: ReliabilityStudy) -> None:
    figures = [figure.drawing.svg() for figure in draw_study(study)]
    # One per metric, and one of two metrics on long tasks per language; that with BERTScore is in English only.
    assert len(figures) == len(METRICS) + 2
    *_, last = draw_study(study, ("gold:correct", "bert"))
    assert len([*draw_study(study, ("gold:correct", "bert"))]) == len(METRICS) + 1
    long = study.select("bert", "EN", "long")
    assert len(long) == len(LONG)
    for own in long:
        assert f"bert, {own.part.task}: {own.accuracy.value:.3f}".replace("0.", ".") in last.drawing.svg().replace(
            "0.", "."
        )
    cell = study.select("rouge", "SV", "long")[0]
    tip = re.search(rf"{cell.part.task} · SV: acc_eq ([\d.]+)", figures[METRICS.index("rouge")])
    assert tip is not None
    assert float(tip[1]) == pytest.approx(cell.accuracy.value, abs=5e-4)
    # The drawing and its caption have the metric's threshold in each language.
    description, caption = figures[METRICS.index("rouge")], [*draw_study(study)][METRICS.index("rouge")].caption
    for language in ("EN", "SV"):
        epsilon = f"{study.epsilon('rouge', language):.4f}"
        assert f"at ε {epsilon}" in description
        assert f"{epsilon} ({language})" in caption
    assert description.index(">short answers<") < description.index(">long answers<")
    # Short tasks come first.
    order = re.findall(r"(task\d+) · EN: acc_eq", figures[0])
    assert [int(task[4:]) in LONG for task in dict.fromkeys(order)] == sorted(task in LONG for task in TASKS)


def test_the_command_writes_tables_and_figures(file: Path, study: ReliabilityStudy, tmp_path: Path) -> None:
    command = ["reproduce", "--table", "reliability", str(file), "-a", "correct", "--class", "kind"]
    given = CliRunner().invoke(app, [*command, "--epsilon", "rouge=.25"])
    assert "ε of rouge: given" in given.output
    assert CliRunner().invoke(app, [*command, "-o", str(tmp_path / "s")]).exit_code == 0
    names = sorted(path.name for path in (tmp_path / "s").iterdir())
    assert names == [*(f"figure-{number}.svg" for number in range(1, 7)), "tables.json", "tables.md"]
    stored = json.loads((tmp_path / "s" / "tables.json").read_text())
    assert stored == json.loads(json.dumps(study.to_dict()))
    page = (tmp_path / "s" / "tables.md").read_text()
    assert page.startswith(format_study(study))


def test_metrics_without_scores_are_computed() -> None:
    rows = [
        {"item": i, "system": s, "output": o, "references": ["the cat"], "ratings": {"ok": [r]}, "scores": {"own": r}}
        for i, s, o, r in [
            ("1", "a", "the cat", 3),
            ("1", "b", "a dog", 1),
            ("2", "a", "the dog", 2),
            ("2", "b", "x", 1),
        ]
    ]
    study = study_reliability([rows], metrics=["own", "rougeL"])
    assert study.metrics == ("own", "rougeL")
    assert study.scores("rougeL").tolist() == pytest.approx([1.0, 0.0, 0.5, 0.0])


def test_the_study_needs_one_aspect_and_scores(file: Path) -> None:
    with raises_code(RunError, "missing_value"):
        study_reliability([file])
    with raises_code(RunError, "unknown_name"):
        study_reliability([file], aspect="fluent")
    with raises_code(RunError, "unknown_name", "'rouge'"):
        study_reliability([file], aspect="correct", metrics=["rouge-"])
    rows = [{"item": "1", "system": "a", "output": "x", "ratings": {"ok": [1]}}]
    with raises_code(RunError, "no_data"):
        study_reliability([rows])


@pytest.mark.parametrize(
    "arguments",
    [
        ["data.jsonl"],
        ["--aspect", "correct"],
        ["--table", "002-table-5", "data.jsonl"],
        ["--table", "reliability", "data.jsonl", "--limit", "3"],
        ["--table", "reliability", "data.jsonl", "--dry-run"],
    ],
)
def test_files_belong_to_the_study_alone(arguments: list[str]) -> None:
    with raises_code(SpecError, "conflict"):
        raise CliRunner().invoke(app, ["reproduce", *arguments]).exception or AssertionError


def test_the_study_needs_files() -> None:
    with raises_code(RunError, "missing_value"):
        raise CliRunner().invoke(app, ["reproduce", "--table", "reliability"]).exception or AssertionError


# ---- Public sets with three raters an output, whose names are not published


def read_rows(path: Path, items: int = 32) -> list[dict[str, Any]]:
    """The rows of the first items: counting by hand is slow."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    first = list(dict.fromkeys(row["item"] for row in rows))[:items]
    return [row for row in rows if row["item"] in first]


def test_hanna_by_hand(data: Callable[[str], Path]) -> None:
    aspect = "relevance"
    metrics = ("chrF Ξ§", "BARTScore-SH ΞΔ", "SUPERT-PS ¤ε")
    rows = read_rows(data("hanna"))
    study = study_reliability([rows], aspect=aspect, metrics=metrics)
    check_study(study, Study([{**row, "language": ""} for row in rows], aspect, metrics, {}, "language"), {})


def test_summeval_by_hand(data: Callable[[str], Path]) -> None:
    rows = read_rows(data("summeval-raters"))
    study = study_reliability([rows], aspect="coherence", metrics=["rougeL"])
    for row, value in zip(rows, study.scores("rougeL").tolist(), strict=True):
        row["scores"] = {"rougeL": value}
    check_study(study, Study(rows, "coherence", ["rougeL"], {}, "language"), {})
