"""Agreement between systems: their scores are those that `metrist score` prints, corpus scores where a metric has them.

Expected values come from sacreBLEU's corpus scores and NumPy's correlation of them with the mean ratings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu

import metrist
from metrist.errors import RunError
from metrist.evaluate.meta import MetaEvaluation, meta_evaluate
from metrist.evaluate.meta.analyses import analyse
from metrist.stats.analytic_tests import williams_from_values
from metrist.stats.estimation import draw_resamples, system_level_values, system_scores
from metrist.stats.measures import measure
from metrist.stats.samples import CorpusStats, Sample

Row = dict[str, Any]
CHRF = "chrf(word_order=2)"
METRICS = ["bleu", CHRF, "ter", "rougeL"]
WORDS = [chr(ord("a") + number) * (1 + number % 5) for number in range(20)]


def make_rows(systems: int = 5, items: int = 12, seed: int = 4) -> list[Row]:
    """References of very different lengths, so that corpus scores are far from means of sentence scores."""
    rng = np.random.default_rng(seed)
    rows = []
    for item in range(items):
        reference = [str(word) for word in rng.choice(WORDS, size=int(rng.integers(2, 30)))]
        for system in range(systems):
            wrong = 0.1 + 0.12 * system
            output = [str(rng.choice(WORDS)) if rng.random() < wrong else word for word in reference]
            rating = round(5 - 4 * wrong + float(rng.normal()), 2)
            rows.append(
                {
                    "item": f"i{item}",
                    "system": f"s{system}",
                    "output": " ".join(output),
                    "references": [" ".join(reference)],
                    "ratings": {"quality": [rating]},
                }
            )
    return rows


ROWS = make_rows()
SYSTEMS = sorted({row["system"] for row in ROWS})
Corpus = Callable[[list[str], list[list[str]]], Any]
PEERS: dict[str, tuple[Corpus, float]] = {
    "bleu": (sacrebleu.corpus_bleu, 1.0),
    CHRF: (partial(sacrebleu.corpus_chrf, word_order=2), 1.0),
    "ter": (sacrebleu.corpus_ter, -1.0),
}


def system_columns(metric: str, rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Each system's mean rating, and its corpus score by sacreBLEU, larger being better."""
    compute, sign = PEERS[metric]
    human, scores = [], []
    for system in SYSTEMS:
        own = [row for row in rows if row["system"] == system]
        human.append(float(np.mean([row["ratings"]["quality"][0] for row in own])))
        outputs, references = [row["output"] for row in own], [row["references"][0] for row in own]
        scores.append(sign * compute(outputs, [references]).score)
    return human, scores


def expected_pearson(metric: str, rows: Sequence[Row] = ROWS) -> float:
    return float(np.corrcoef(*system_columns(metric, rows))[0, 1])


@pytest.fixture(scope="module")
def results() -> metrist.Results:
    return metrist.score(ROWS, METRICS, progress=False)


def evaluate(results: metrist.Results, **settings: Any) -> MetaEvaluation:
    settings = {"measures": "pearson", "group": "system-level", "draws": 0, **settings}
    return meta_evaluate([results, metrist.read_records(ROWS)], "quality", **settings)


@pytest.mark.parametrize("metric", PEERS)
def test_a_system_score_is_the_corpus_score(results: metrist.Results, metric: str) -> None:
    figure = evaluate(results).figure(metric)
    assert figure.value == pytest.approx(expected_pearson(metric), abs=1e-12)
    assert figure.value != pytest.approx(evaluate(results, system_score="mean").figure(metric).value, abs=1e-4)


def test_the_mean_of_output_scores_on_request(results: metrist.Results) -> None:
    human = system_columns("bleu", ROWS)[0]
    of = np.array(results.systems)
    means = [float(results["bleu"].values[of == system].mean()) for system in SYSTEMS]
    figure = evaluate(results, system_score="mean").figure("bleu")
    assert figure.value == pytest.approx(float(np.corrcoef(human, means)[0, 1]), abs=1e-12)
    with pytest.raises(RunError, match=r"`system_score` .*'median'"):
        evaluate(results, system_score="median")


def test_an_interval_pools_each_resample_again(results: metrist.Results) -> None:
    draws = 60
    figure = evaluate(results, draws=draws, test="none").figure("bleu")
    items = list(dict.fromkeys(row["item"] for row in ROWS))
    codes = np.array([items.index(row["item"]) for row in ROWS])
    systems = np.array([SYSTEMS.index(row["system"]) for row in ROWS])
    (rng,) = np.random.default_rng(0).spawn(1)
    values = []
    for drawn in draw_resamples(codes, systems, "items", draws, rng, draws):
        assert drawn.items is not None
        for counts in drawn.items:
            repeated = [row for row, item in zip(ROWS, codes, strict=True) for _ in range(int(counts[item]))]
            values.append(expected_pearson("bleu", repeated))
    low, high = np.quantile(values, [0.025, 0.975])
    assert (figure.low, figure.high) == pytest.approx((min(low, figure.value), max(high, figure.value)), abs=1e-12)


def test_resampled_systems_keep_their_corpus_scores(results: metrist.Results) -> None:
    figure = evaluate(results, draws=200, resample="systems", test="none", confidence=0.6).figure("ter")
    assert figure.low <= figure.value == pytest.approx(expected_pearson("ter"), abs=1e-12)


def test_williams_compares_corpus_scores(results: metrist.Results) -> None:
    evaluation = evaluate(results, test="williams", draws=10, metrics=["bleu", "ter"])
    human, bleu = system_columns("bleu", ROWS)
    ter = system_columns("ter", ROWS)[1]
    expected = williams_from_values(np.array(human), np.array(bleu), np.array(ter))
    assert evaluation.tests[0].raw[0, 1] == pytest.approx(expected.p, abs=1e-9)


def test_the_paired_bootstrap_takes_corpus_scores(results: metrist.Results) -> None:
    (tests,) = evaluate(results, draws=100, metrics=["bleu", CHRF]).tests
    expected = expected_pearson("bleu") - expected_pearson(CHRF)
    assert tests.differences[0, 1] == pytest.approx(expected, abs=1e-12)
    assert "bootstrap" in tests.how


def test_exchanged_outputs_have_no_corpus_score(results: metrist.Results) -> None:
    with pytest.raises(RunError, match=r"pooled.*`test='bootstrap'`, or `system_score='mean'`"):
        evaluate(results, test="permutation", draws=20)
    tests = evaluate(results, test="permutation", draws=20, system_score="mean").tests[0]
    assert not np.isnan(tests.raw[0, 1])


def test_filters_and_slices_pool_the_outputs_that_are_left(results: metrist.Results) -> None:
    early = [row for row in ROWS if row["item"] in {f"i{number}" for number in range(6)}]
    conditions = [f"item!=i{number}" for number in range(6, 12)]
    filtered = evaluate(results, where=conditions).figure("bleu")
    assert filtered.value == pytest.approx(expected_pearson("bleu", early), abs=1e-12)
    lengths = sorted(len(row["references"][0]) for row in ROWS)
    limit = lengths[len(lengths) // 2]
    short = [row for row in ROWS if len(row["references"][0]) < limit]
    column = f"reference_length@{limit}"
    sliced = evaluate(results, slices=column).figure("bleu", on=f"{column}=<{limit}")
    assert sliced.value == pytest.approx(expected_pearson("bleu", short), abs=1e-12)


def test_runs_of_single_systems_are_pooled_together(tmp_path: Path) -> None:
    for system in SYSTEMS:
        own = [row for row in ROWS if row["system"] == system]
        metrist.score(own, ["bleu"], out=tmp_path / system, progress=False)
    sources = [metrist.load(tmp_path / system) for system in SYSTEMS]
    evaluation = meta_evaluate(
        [*sources, metrist.read_records(ROWS)], "quality", "pearson", group="system-level", draws=0
    )
    assert evaluation.figure("bleu").value == pytest.approx(expected_pearson("bleu"), abs=1e-12)


def test_scores_without_statistics_are_averaged(results: metrist.Results) -> None:
    values = dict(zip(zip(results.items, results.systems, strict=True), results["bleu"].values, strict=True))
    rows = [{**row, "scores": {"bleu": values[row["item"], row["system"]]}} for row in ROWS]
    stored = meta_evaluate(rows, "quality", "pearson", group="system-level", draws=0)
    averaged = evaluate(results, system_score="mean").figure("bleu").value
    assert stored.figure("bleu").value == pytest.approx(averaged, abs=1e-12)
    # The run has the statistics of the same scores.
    both = meta_evaluate([results, metrist.read_records(rows)], "quality", "pearson", group="system-level", draws=0)
    assert both.figure("bleu").value == pytest.approx(expected_pearson("bleu"), abs=1e-12)
    # Where they are known of some outputs only, means are compared.
    part = metrist.score([row for row in ROWS if row["system"] != "s0"], ["bleu"], progress=False)
    mixed = meta_evaluate([part, metrist.read_records(rows)], "quality", "pearson", group="system-level", draws=0)
    assert mixed.figure("bleu").value == pytest.approx(averaged, abs=1e-12)


def test_lower_is_better_reverses_corpus_scores(results: metrist.Results) -> None:
    reversed_scores = evaluate(results, lower_is_better="bleu").figure("bleu")
    assert reversed_scores.value == pytest.approx(-expected_pearson("bleu"), abs=1e-12)


def test_other_groups_use_the_scores_of_outputs(results: metrist.Results) -> None:
    for group in ("item", "none"):
        corpus, mean = (evaluate(results, group=group, system_score=how) for how in ("corpus", "mean"))
        assert corpus.figure("bleu").value == mean.figure("bleu").value
        assert not any("System scores" in note for note in corpus.notes)


def test_the_foot_says_which_scores_are_pooled(results: metrist.Results) -> None:
    notes = "\n".join(evaluate(results).notes)
    assert f"for bleu, {CHRF}, ter; means of output scores for rougeL." in notes
    assert "means of output scores, also for metrics" in "\n".join(evaluate(results, system_score="mean").notes)
    only = "\n".join(evaluate(results, metrics=["bleu"]).notes)
    assert "for bleu." in only
    assert "spa exchanges the scores of outputs" in "\n".join(evaluate(results, measures="spa", draws=20).notes)


def test_points_between_systems_are_counted_as_systems(results: metrist.Results) -> None:
    evaluation = evaluate(results)
    assert (evaluation.figure("bleu").systems, evaluation.figure("bleu").n) == (5, 60)
    names = [column.name for column in evaluation.table().columns]
    assert names[3:5] == ["systems", "outputs"]
    by_item = evaluate(results, group="item")
    assert by_item.figure("bleu").systems == 0
    assert "n" in [column.name for column in by_item.table().columns]


def test_few_systems_are_warned_about() -> None:
    for systems, warned in ((4, True), (8, False)):
        rows = make_rows(systems=systems)
        results = metrist.score(rows, ["chrf"], progress=False)
        evaluation = meta_evaluate([results, metrist.read_records(rows)], "quality", "pearson", group="system-level")
        assert any(f"only {systems} systems" in note for note in evaluation.notes) == warned


def test_bias_ranks_by_corpus_scores(results: metrist.Results) -> None:
    human, scores = system_columns("bleu", ROWS)
    (table,) = analyse(evaluate(results), "bias")
    at = [column.name for column in table.columns].index("bleu")
    by_metric = {name: 1 + sum(other > score for other in scores) for name, score in zip(SYSTEMS, scores, strict=True)}
    by_humans = {name: 1 + sum(other > value for other in human) for name, value in zip(SYSTEMS, human, strict=True)}
    assert {row[0]: row[at].value for row in table.rows} == {
        name: by_humans[name] - by_metric[name] for name in SYSTEMS
    }


def test_a_system_without_a_pooled_score_takes_no_part() -> None:
    system = np.repeat(np.arange(4), 3)
    human = np.repeat([1.0, 2.0, 3.0, 9.0], 3)
    rows = np.stack([human, np.ones(12)], axis=1) * (system < 3)[:, None]
    corpus = CorpusStats(rows=rows, pool=lambda sums: sums[..., 0] / sums[..., 1])
    sample = Sample(human=human, metric=np.zeros(12), item=np.tile(np.arange(3), 4), system=system, corpus=corpus)
    _, scores, present = system_scores(sample)
    assert (scores.tolist(), present.tolist()) == ([[1.0, 2.0, 3.0, 0.0]], [[1.0, 1.0, 1.0, 0.0]])
    assert system_level_values(measure("pearson"), sample)[0] == pytest.approx(1.0)


def test_a_micro_average_leaves_no_group_out(results: metrist.Results) -> None:
    rows = [{**row, "ratings": {"quality": [1.0]}} if row["item"] == "i0" else row for row in ROWS]
    settings = {"group": "item", "draws": 0}
    sources = [results, metrist.read_records(rows)]
    macro, micro = (
        meta_evaluate(sources, "quality", "pearson", group_average=how, **settings) for how in ("macro", "micro")
    )
    assert any("left out of the mean" in note for note in macro.notes)
    assert not any("left out of the mean" in note for note in micro.notes)
    assert micro.figure("bleu").undefined == 1
