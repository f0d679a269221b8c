"""Our figures and the papers': by hand on invented data, within the bars set for this project on the real data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from invented_data import compared, factual, write_data

from metrist.studies.reproduce.figures import DataFolder, ReproducedFigure, reproduce_block
from metrist.studies.reproduce.models import add_models
from metrist.studies.reproduce.page import EXPLAINED_ABOVE, summarize
from metrist.studies.reproduce.published import PublishedBlock, read_published_table

RANK19 = PublishedBlock(
    label="ROUGE-1",
    metric="rouge1",
    references="source",
    group="item",
    measures=("pair_accuracy",),
    printed={"rank19": {"fact": [0.5]}},
)
DARR = PublishedBlock(
    label="chrF",
    metric="chrf",
    measures=("darr_wmt17", "darr_wmt14"),
    printed={"wmt19-darr.lt-en": {"better": [0.1, math.nan]}},
)


def test_rank19_counts_pairs_whose_factual_output_scores_strictly_higher(tmp_path: Path) -> None:
    rows = [
        *(factual("1", "correct", "a b c d", 1), factual("1", "incorrect", "a b x y", 0)),
        *(factual("2", "correct", "a b c d", 1), factual("2", "incorrect", "d c b a", 0)),
        *(factual("3", "correct", "x", 1), factual("3", "incorrect", "a", 0)),
        *(factual("4", "correct", "a b", 1), factual("4", "incorrect", "x", 0)),
    ]
    write_data(tmp_path, "rank19", rows)
    (figure,) = reproduce_block(RANK19, DataFolder(tmp_path))
    assert (figure.ours, figure.n, figure.difference) == (0.5, 8, 0.0)  # A tie (item 2) is wrong.


def test_a_tie_of_the_metric_is_wrong_in_one_form_of_tau_and_neutral_in_the_other(tmp_path: Path) -> None:
    rows = [
        compared("1", "the cat sat on the mat", "a dog"),
        compared("2", "the cat sat on a mat", "nothing"),
        compared("3", "zzz", "the cat sat"),
        compared("4", "zzz", "yyy"),
    ]
    write_data(tmp_path, "wmt19-darr.lt-en", rows)
    strict, neutral = reproduce_block(DARR, DataFolder(tmp_path))
    assert strict.ours == pytest.approx((2 - 1 - 1) / 4)
    assert neutral.ours == pytest.approx((2 - 1) / 4)
    assert math.isnan(neutral.difference)


def test_excluded_systems_and_other_parts_of_a_score_are_heeded(tmp_path: Path) -> None:
    rows = [
        factual(item, system, output, fact)
        for item in ("1", "2")
        for system, output, fact in (("a", "a", 1), ("b", "a b c d x x x", 0), ("human", "a b c d", 0))
    ]
    write_data(tmp_path, "rank19", rows)
    by_recall = replace(RANK19, part="recall", exclude=("human",))
    by_precision = replace(by_recall, part="precision")
    assert [f.ours for f in reproduce_block(by_recall, DataFolder(tmp_path))] == [0.0]
    assert [(f.ours, f.n) for f in reproduce_block(by_precision, DataFolder(tmp_path))] == [(1.0, 4)]


def test_absent_data_gives_no_figure_and_no_error(tmp_path: Path) -> None:
    (figure,) = reproduce_block(RANK19, DataFolder(tmp_path))
    assert not figure.has_data
    assert math.isnan(figure.ours)
    assert summarize([figure]) == "The data is missing for 1."


# ---- the real data ----


@pytest.fixture(scope="module")
def folder(data: Callable[[str], Path]) -> DataFolder:
    return DataFolder(data("summeval").parent)


def figures_of(
    folder: DataFolder, table: str, sets: Iterable[str], labels: Iterable[str] | None = None
) -> list[ReproducedFigure]:
    """The figures of a table on these data sets, of these metrics or of all; a skip where a data set is absent."""
    if absent := [name for name in sets if not folder.has(name)]:
        pytest.skip(f"not in the data folder: {', '.join(absent)}")
    printed = add_models(table, read_published_table(table), None)
    blocks = [
        replace(block, printed={name: block.printed[name] for name in sets if name in block.printed})
        for block in printed.blocks
        if labels is None or block.label in labels
    ]
    return [figure for block in blocks for figure in reproduce_block(block, folder, printed.scale)]


def is_far_from_print(figure: ReproducedFigure) -> bool:
    return abs(figure.difference) > EXPLAINED_ABOVE * figure.scale


def worst(figures: Iterable[ReproducedFigure]) -> float:
    return max(abs(figure.difference) / figure.scale for figure in figures)


def test_summary_level_rouge_is_that_of_bartscores_table_4(folder: DataFolder) -> None:
    labels = ["ROUGE-1", "ROUGE-2", "ROUGE-L by sentence"]
    figures = figures_of(folder, "002-table-4", ["realsumm", "summeval"], labels)
    assert len(figures) == 15
    assert worst(figures) <= 0.005


def test_newsroom_is_that_of_bartscores_table_4_or_explained(folder: DataFolder) -> None:
    figures = figures_of(folder, "002-table-4", ["newsroom", "realsumm-scored"])
    assert not [f for f in figures if is_far_from_print(f) and not f.block.note]


def test_factuality_is_that_of_bartscores_table_5(folder: DataFolder) -> None:
    figures = figures_of(folder, "002-table-5", ["rank19", "qags-cnn", "qags-xsum"])
    assert worst(f for f in figures if f.data == "rank19") <= 0.0005
    assert worst(f for f in figures if f.block.label != "ROUGE-L, whole text") <= 0.01


def test_data_to_text_is_that_of_bartscores_table_6(folder: DataFolder) -> None:
    figures = figures_of(folder, "002-table-6", ["bagel", "sfres", "sfhot"])
    assert worst(f for f in figures if f.block.metric) <= 0.002


def test_bleu_and_rouge_are_those_of_tigerscores_tables(folder: DataFolder) -> None:
    figures = figures_of(folder, "001-tables-18-20", ["summeval", "openmeva-roc"])
    assert worst(f for f in figures if f.block.metric) <= 0.001
    assert not [f for f in figures if is_far_from_print(f) and not f.block.note]


def test_chrf_on_wmt19_is_that_of_bartscores_table_3(folder: DataFolder) -> None:
    figures = figures_of(folder, "002-table-3", ["wmt19-darr.kk-en"])
    strict = [f for f in figures if f.measure == "darr_wmt17"]
    assert worst(f for f in strict if f.block.label == "chrF") <= 0.001
    assert worst(f for f in strict if f.block.label == "BLEU") <= 0.01
