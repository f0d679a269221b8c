"""The table of shipped metrics: correlations with and without length, pairs, stored scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invented_data import factual, write_data
from scipy.optimize import minimize
from scipy.stats import pearsonr, rankdata, spearmanr

from error_codes import raises_code
from metrist.errors import RunError, SpecError
from metrist.evaluate.meta.join import join
from metrist.metrics.agreement import AgreementFigure, DatasetAgreement, dump_agreements, parse_agreements
from metrist.metrics.trained import quality
from metrist.studies.reproduce import agreement, figures
from metrist.studies.reproduce.agreement import (
    METRICS_TABLE,
    RatedPairs,
    RatedSet,
    compare_pairs,
    correlate,
    find_pairs,
    make_agreement_table,
    parse_sets,
    regress_pairs,
    select_outputs,
)
from metrist.studies.reproduce.figures import DataFolder
from metrist.studies.reproduce.published import read_table_file


def _residuals(values: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    design = np.stack([np.ones_like(lengths), lengths], axis=1)
    return values - design @ np.linalg.lstsq(design, values, rcond=None)[0]


@pytest.mark.parametrize("ranked", [True, False])
def test_correlations_over_all_outputs_are_those_of_scipy_and_of_residuals(ranked: bool) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(5, 12, 60).astype(float)
    gold = rng.integers(1, 6, 60) + 0.3 * lengths
    scores = gold + rng.normal(size=60) + lengths
    plain, partial = correlate(gold, scores, lengths, np.arange(60), by_item=False, ranked=ranked, draws=50)
    human, metric, size = (rankdata(v) if ranked else v for v in (gold, scores, lengths))
    assert plain.value == pytest.approx(spearmanr(gold, scores)[0] if ranked else pearsonr(gold, scores)[0])
    # The partial correlation is that of what a linear regression on the length leaves.
    assert partial.value == pytest.approx(pearsonr(_residuals(human, size), _residuals(metric, size))[0])
    assert plain.figure().low < plain.value < plain.figure().high


def test_intervals_over_all_outputs_are_those_of_resampled_items() -> None:
    """Against a bootstrap written out, of Pearson's correlation with two outputs per item."""
    rng = np.random.default_rng(4)
    gold, lengths = rng.normal(size=40), rng.normal(size=40)
    scores, items = gold + rng.normal(size=40), np.arange(40) // 2
    plain, _ = correlate(gold, scores, lengths, items, by_item=False, ranked=False, draws=4000)
    draws = []
    for _ in range(4000):
        outputs = np.concatenate([[2 * item, 2 * item + 1] for item in rng.integers(20, size=20)])
        draws.append(np.corrcoef(gold[outputs], scores[outputs])[0, 1])
    low, high = np.percentile(draws, [2.5, 97.5])
    assert plain.figure()[1:] == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


def test_correlations_by_item_are_averaged_without_constant_items() -> None:
    items = np.repeat([0, 1, 2], 4)
    gold = np.array([1, 2, 3, 4, 2, 2, 2, 2, 4, 3, 1, 1.0])
    scores = np.array([1, 3, 2, 4, 1, 2, 3, 4, 1, 2, 3, 4.0])
    lengths = np.array([3, 1, 2, 5, 3, 1, 2, 5, 3, 1, 2, 5.0])
    plain, _ = correlate(gold, scores, lengths, items, by_item=True, ranked=True, draws=20)
    assert plain.value == pytest.approx(np.mean([spearmanr(gold[i], scores[i])[0] for i in (slice(4), slice(8, 12))]))


def test_a_metric_that_is_length_has_nothing_beyond_it() -> None:
    lengths = np.array([3, 1, 2, 5, 4.0])
    gold = np.array([3, 1, 2, 4, 5.0])
    plain, partial = correlate(gold, lengths, lengths, np.arange(5), by_item=False, ranked=True, draws=5)
    assert plain.value > 0
    assert np.isnan(partial.value)


def test_pairs_are_counted_and_regressed_beside_length() -> None:
    rng = np.random.default_rng(2)
    better, worse = np.arange(0, 80, 2), np.arange(1, 80, 2)
    pairs = RatedPairs(first=better, second=worse, items=np.arange(40))
    scores, lengths = rng.normal(size=80), rng.normal(size=80)
    scores[better] += 0.7
    scores[1] = scores[0]  # A tie is wrong.
    right = np.mean(scores[better] > scores[worse])
    assert compare_pairs(pairs, scores, 20).value == pytest.approx(right)
    leads = np.stack([scores[better] - scores[worse], lengths[better] - lengths[worse]], axis=1)
    leads /= leads.std(axis=0)

    def loss(weights: Any) -> float:
        return float(np.log1p(np.exp(-leads @ weights)).sum() + 0.005 * weights @ weights)

    expected = minimize(loss, np.zeros(2)).x[0]
    assert regress_pairs(pairs, scores, lengths, 20).value == pytest.approx(expected, abs=1e-4)


def test_pairs_come_from_ratings_of_an_item(tmp_path: Path) -> None:
    rows = [
        factual("1", "a", "a b", 1),
        factual("1", "b", "x", 0),
        factual("2", "a", "c", 1),
        factual("2", "b", "d", 1),
    ]
    write_data(tmp_path, "rank19", rows)
    judged = join(tmp_path / "rank19.jsonl.xz")
    pairs = find_pairs(judged, np.ones(4, dtype=bool))
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([0], [1])  # The tie of item 2 is left out.
    rated = RatedSet(data="rank19", name="", task="", exclude=("b",))
    assert select_outputs(judged, rated).tolist() == [True, False, True, False]


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's file with one set and cheap metrics."""
    content = {
        **read_table_file(METRICS_TABLE),
        "draws": 20,
        "metrics": [{"label": "copy_rate", "trained": ["rank19"]}, {"label": "no_such_metric"}],
        "baselines": [{"label": "length", "metric": "length"}],
        "lexical": ["rouge1", "chrf"],
        "sets": [
            {"data": "rank19", "name": "Rank19", "task": "summarization", "measure": "accuracy", "judged": True},
            {"data": "absent", "name": "Absent", "task": "story"},
        ],
    }
    monkeypatch.setattr(agreement, "read_table_file", lambda _: content)


def _write_rank19(folder: Path) -> None:
    outputs = [("a b c", "a x y z"), ("b c d e", "z z"), ("c d", "d y x"), ("a b", "x b a c")]
    rows = [
        factual(str(item), system, output, int(system == "a"))
        for item, both in enumerate(outputs)
        for system, output in zip("ab", both, strict=True)
    ]
    write_data(folder, "rank19", rows)


@pytest.mark.usefixtures("small_table")
def test_the_table_shows_metrics_next_to_baselines(tmp_path: Path) -> None:
    _write_rank19(tmp_path)
    table = make_agreement_table(DataFolder(tmp_path))
    (row,) = table.agreements
    assert row.n == 4
    assert row.figures["copy_rate"].value == 1.0
    assert row.figures["length"].value == row.figures["−length"].value - 0.5 == 0.25
    assert row.lexical in ("rouge1", "chrf")
    assert set(row.given_length) <= {"copy_rate", "best lexical"}
    text = table.table.render("markdown")
    assert "†" in text  # Trained on the family.
    assert "data missing" in text
    assert "no_such_metric" not in text
    assert table.summary == ""  # No shipped metric has a figure on data that it has not seen.


@pytest.mark.usefixtures("small_table")
def test_stored_scores_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_rank19(tmp_path)
    first = make_agreement_table(DataFolder(tmp_path, tmp_path / "scores"))

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(figures, "score", fail)
    assert make_agreement_table(DataFolder(tmp_path, tmp_path / "scores")).agreements == first.agreements
    with pytest.raises(AssertionError, match="scored again"):
        make_agreement_table(DataFolder(tmp_path, tmp_path / "other"))


@pytest.mark.usefixtures("small_table")
def test_a_column_that_is_kept_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_rank19(tmp_path)
    (computed,) = make_agreement_table(DataFolder(tmp_path)).agreements
    published = {"copy_rate": AgreementFigure(0.125, 0.1, 0.2), "length": AgreementFigure(0.9, 0.8, 1.0)}
    stored = replace(computed, figures=published, given_length={"copy_rate": AgreementFigure(3.0, 2.0, 4.0)})
    monkeypatch.setattr(agreement, "load_agreements", lambda: (stored,))
    (row,) = make_agreement_table(DataFolder(tmp_path), keep=["copy_rate"]).agreements
    assert row.figures == {**computed.figures, "copy_rate": published["copy_rate"]}
    assert row.given_length["copy_rate"].value == 3.0
    assert row.trained == computed.trained
    # Figures of other outputs do not belong beside the computed ones.
    monkeypatch.setattr(agreement, "load_agreements", lambda: (replace(stored, n=7),))
    with raises_code(RunError, "changed", "Rank19", 7, 4):
        make_agreement_table(DataFolder(tmp_path), keep=["copy_rate"])
    with raises_code(SpecError, "invalid_value", "no such"):
        make_agreement_table(DataFolder(tmp_path), keep=["no such"])


@pytest.mark.usefixtures("small_table")
def test_rows_of_other_data_sets_stay_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_rank19(tmp_path)
    (computed,) = make_agreement_table(DataFolder(tmp_path)).agreements
    published = replace(computed, data="absent", name="Absent", figures={"copy_rate": AgreementFigure(0.125, 0.1, 0.2)})
    monkeypatch.setattr(agreement, "load_agreements", lambda: (replace(computed, n=7), published))
    table = make_agreement_table(DataFolder(tmp_path), only=["rank19"])
    assert table.agreements == (computed, published)
    assert "data missing" not in table.table.render("markdown")
    with raises_code(SpecError, "invalid_value", "absent"):
        make_agreement_table(DataFolder(tmp_path), only=["absent"])


def test_every_item_of_a_sample_and_only_the_part_is_scored(tmp_path: Path) -> None:
    rows = [{**factual(str(item), "a", "a b", 1), "task": f"t/{item % 2}"} for item in range(6)]
    write_data(tmp_path, "rank19", rows)
    folder = DataFolder(tmp_path)
    assert np.isfinite(folder.column("rank19", "length", every=2)).tolist() == [True, False] * 3
    assert np.isfinite(folder.column("rank19", "length", part="t/1")).tolist() == [False, True] * 3


def test_the_file_of_figures_keeps_them() -> None:
    row = DatasetAgreement(
        data="d",
        name="D",
        task="story",
        judged=True,
        aspect="",
        measure="accuracy",
        n=3,
        figures={"length": AgreementFigure(0.5, float("nan"), 0.7)},
        trained=("length",),
    )
    (parsed,) = parse_agreements(dump_agreements([row]))
    assert parsed.figures["length"].high == 0.7
    assert np.isnan(parsed.figures["length"].low)
    assert parsed.trained == ("length",)


def test_the_sets_of_the_file_are_valid() -> None:
    sets = parse_sets()
    assert len({(rated.data, rated.part) for rated in sets}) == len(sets)
    judged = {rated.data for rated in sets if rated.judged}
    assert {"summeval", "newsroom", "qags-cnn", "qags-xsum", "rank19", "topical-chat-usr", "openmeva-roc"} <= judged
    assert {"pandalm", "llmbar", "wmt23.en-de", "mlqe-pe.et-en", "lau-acceptability"} <= judged


def test_quality_is_combined_from_the_scores_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_rank19(tmp_path)
    parts = (
        quality.MixturePart(metric="copy_rate", weight=1.0, centre=0.5, spread=0.2),
        quality.MixturePart(metric="distinct", weight=0.5, centre=0.9, spread=0.2),
    )
    mixture = quality.Mixture(task="general", needs=("source",), basis="b", parts=parts)
    monkeypatch.setattr(quality, "load_mixtures", lambda: (mixture,))
    rated = RatedSet(data="rank19", name="Rank19", task="summarization", measure="accuracy")
    folder = DataFolder(tmp_path)
    combined = agreement._combine(folder, rated, "quality")
    assert combined is not None
    assert combined.tolist() == pytest.approx(folder.column("rank19", "quality").tolist())
