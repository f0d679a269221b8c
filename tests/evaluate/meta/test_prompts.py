"""The search for prompts, on a model whose answers can be computed by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.cli.app import main
from metrist.errors import RunError, SpecError
from metrist.evaluate.meta.prompts import ALL, PromptAgreement, PromptStudy, aspect_groups, search_prompts
from metrist.metrics.likelihood import likelihood
from metrist.metrics.likelihood.likelihood import NO_PROMPT, Likelihood
from metrist.models import weights
from word_model import WordModel, mean

PHRASES = ("in short", "to wit", "so")
SYSTEMS = ("a", "b", "c", "d", "e")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> WordModel:
    model = WordModel()
    monkeypatch.setattr(likelihood, "load_seq2seq", lambda _options, **_runtime: model)
    monkeypatch.setattr(weights, "find_weights", lambda _: SimpleNamespace(fingerprint="none"))
    return model


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {
            "item": str(i),
            "system": system,
            "output": f"output {system} of {i}",
            "source": f"source {i}",
            "ratings": {"fluency": [float(flu)], "Relevance": [float(rel)]},
        }
        for i in range(4)
        for system, flu, rel in zip(SYSTEMS, rng.permutation(5), rng.permutation(5), strict=True)
    ]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """By the formula for values without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    n = len(first)
    return float(1 - 6 * np.sum((ranks[0] - ranks[1]) ** 2) / (n * (n * n - 1)))


def agreement(rows: Sequence[dict[str, Any]], phrase: str, aspect: str) -> float:
    """Per item, then averaged."""
    by_item = []
    for item in sorted({row["item"] for row in rows}):
        own = [row for row in rows if row["item"] == item]
        scores = [mean(r["source"], f"{phrase}, {r['output']}" if phrase else r["output"]) for r in own]
        by_item.append(spearman(scores, [r["ratings"][aspect][0] for r in own]))
    return float(np.mean(by_item))


def run_search(rows: list[dict[str, Any]], **settings: Any) -> PromptStudy:
    options = {"prompts": PHRASES, "aspects": ["fluency", "Relevance"], "executor": "serial", **settings}
    return search_prompts(rows, "likelihood", **options)


@pytest.mark.usefixtures("model")
def test_every_prompt_is_evaluated_alone(rows):
    study = run_search(rows)
    for aspect in ("fluency", "Relevance"):
        for phrase in ("", *PHRASES):
            assert study.value(phrase or NO_PROMPT, aspect) == pytest.approx(agreement(rows, phrase, aspect))
    assert study.aspects == ["fluency", "Relevance"]
    assert study.prompts == list(PHRASES)
    means = {p: np.mean([agreement(rows, p, a) for a in study.aspects]) for p in ("", *PHRASES)}
    assert study.best == (max(means, key=means.__getitem__) or NO_PROMPT)
    assert {figure.n for figure in study.figures} == {20}


def test_all_prompts_are_scored_in_one_pass(model, rows):
    run_search(rows)
    assert len(model.calls) == 1
    assert len(model.calls[0]) == 20 * (1 + len(PHRASES))


@pytest.mark.usefixtures("model")
def test_the_mean_of_all_prompts_equals_the_metric_with_all_prompts(rows):
    from metrist import meta_evaluate, score

    results = score(rows, Likelihood(prompts=PHRASES), executor="serial")
    with_scores = [
        {**row, "scores": {"together": float(value)}}
        for row, value in zip(rows, next(iter(results.scores.values())).values, strict=True)
    ]
    expected = meta_evaluate(with_scores, "fluency", "spearman", draws=0, test="none").figure("together").value
    assert run_search(rows).value(ALL, "fluency") == pytest.approx(expected)


@pytest.mark.usefixtures("model")
def test_outputs_that_cannot_be_scored_are_left_out_and_counted(rows):
    rows[0]["output"] = ""
    study = run_search(rows)
    assert {figure.n for figure in study.figures} == {19}
    assert "1 of 20 outputs not scored" in study.notes[1]
    assert "the output is empty" in study.notes[1]
    assert not any(PHRASES[0] in note for note in study.notes)


def make_study(**values: Sequence[float]) -> PromptStudy:
    """Figures of no prompt, `good` and `bad` per aspect."""
    figures = [
        PromptAgreement(prompt=prompt, aspect=aspect, value=value, gain=value - agreement[0], n=9)
        for aspect, agreement in values.items()
        for prompt, value in zip((NO_PROMPT, "good", "bad", ALL), (*agreement, 0.0), strict=True)
    ]
    return PromptStudy(
        metric="likelihood", measure="spearman", group="item", figures=tuple(figures), aspect_groups=aspect_groups()
    )


def test_shares_of_prompts_that_help_are_averaged_within_groups():
    # Relevance: both help; informativeness: one; fluency: none; style is in no group.
    study = make_study(
        relevance=(0.1, 0.3, 0.2), informativeness=(0.1, 0.2, 0.1), fluency=(0.3, 0.2, 0.1), style=(0.0, 0.1, 0.1)
    )
    assert [study.share_that_help(aspect) for aspect in study.aspects] == [1.0, 0.5, 0.0, 1.0]
    assert study.shares_by_group() == {"semantic overlap": 0.75, "linguistic quality": 0.0}
    text = str(study.shares())
    assert "where prompts help (2 prompts)" in text
    assert "75.0 %" in text


def test_the_table_shows_the_best_first_and_notes_when_no_prompt_is_best():
    study = make_study(relevance=(0.1, 0.3, 0.2), fluency=(0.3, 0.2, 0.1))
    assert study.best == "good"
    assert [row[0] for row in study.table().rows] == ["good", NO_PROMPT, "bad", ALL]
    assert str(study.table().rows[0][-1]) == "+0.0500"
    assert make_study(fluency=(0.3, 0.2, 0.1)).best == NO_PROMPT
    assert "mean" not in [column.name for column in make_study(fluency=(0.3, 0.2, 0.1)).table().columns]
    assert repr(study) == "PromptStudy(2 prompts on relevance, fluency; best 'good')"


def test_users_add_aspects_to_groups():
    groups = aspect_groups({"Politeness": "manners", "fluency": "form"})
    assert groups["politeness"] == "manners"
    assert groups["fluency"] == "form"
    assert groups["coverage"] == "semantic overlap"
    assert set(aspect_groups().values()) == {"semantic overlap", "linguistic quality", "factual correctness"}


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("direction", "size"), [("source->output", 70), ("f", 34)])
def test_without_a_set_that_of_the_direction_is_tried(rows, direction, size):
    with_references = [{**row, "references": [row["source"]]} for row in rows]
    study = search_prompts(with_references, Likelihood(direction=direction), "fluency", executor="serial")
    assert len(study.prompts) == size
    own = search_prompts(with_references, Likelihood(prompts=("so",)), "fluency", executor="serial")
    assert own.prompts == ["so"]


@pytest.mark.usefixtures("model")
def test_an_output_is_counted_once_however_many_rate_it(rows):
    for number, row in enumerate(rows):
        row["ratings"] = {"fluency": [number % 5, (number * 2) % 5, number % 3]}
        row["raters"] = ["Ann", "Bob", "Cem"]
    assert "was chosen on these 20 outputs" in run_search(rows, aspects="fluency").notes[0]


@pytest.mark.usefixtures("model")
def test_prompts_are_searched_on_preferences(tmp_path, monkeypatch, capsys):
    """Kendall's τ as `WMTStat.kendall` of the BARTScore repository counts it: a pair is concordant if the better output
    scores strictly higher, and discordant otherwise."""
    rng = np.random.default_rng(4)
    pairs: list[dict[str, Any]] = [
        {
            "item": str(item),
            "source": f"source {item}",
            "systems": ["a", "b"],
            "outputs": [f"output a of {item}", f"output b of {item}"],
            "ratings": {"better": [int(rng.integers(1, 3))]},
            "scores": {"stored": 1},
        }
        for item in range(15)
    ]
    study = search_prompts(pairs, "likelihood", prompts=PHRASES, executor="serial")
    for phrase in ("", *PHRASES):
        concordant = 0
        for row in pairs:
            first, second = (mean(row["source"], f"{phrase}, {o}" if phrase else o) for o in row["outputs"])
            concordant += first > second if row["ratings"]["better"] == [1] else second > first
        figure = next(f for f in study.figures if f.prompt == (phrase or NO_PROMPT))
        assert (figure.value, figure.n) == (pytest.approx((2 * concordant - 15) / 15), 15)
    assert (study.measure, study.group, study.prompts) == ("darr_wmt17", "pairs", list(PHRASES))
    assert "on these 15 pairs" in study.notes[0]
    values = {"source": "x", "ratings": {"q": [1]}}
    rated = [{"item": "rated", "system": name, "output": name, **values} for name in "ab"]
    assert search_prompts([*pairs, *rated], "likelihood", prompts=["so"], executor="serial").measure == "spearman"
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*pairs, *rated]))
    argv = ["metrist", "prompts", str(file), "-m", "likelihood", "--prompt", "so", "--preferences"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out.startswith("prompts by agreement with humans (darr_wmt17, group: pairs)")


@pytest.mark.usefixtures("model")
def test_invalid_searches_are_refused(rows):
    with raises_code(SpecError, "invalid_value", "rougeL"):
        search_prompts(rows, "rougeL")
    with raises_code(SpecError, "invalid_value"):
        run_search(rows, prompts=("",))
    with raises_code(RunError, "unknown_name", "'grace'"):
        run_search(rows, aspects="grace")


@pytest.mark.usefixtures("model")
def test_the_command_prints_prompts_shares_and_the_best(rows, tmp_path, monkeypatch, capsys):
    file = tmp_path / "judged.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    phrases = [piece for phrase in PHRASES for piece in ("--prompt", phrase)]
    argv = ["metrist", "prompts", str(file), "-m", "likelihood", "-a", "fluency", "-a", "Relevance", *phrases]
    monkeypatch.setattr(sys, "argv", [*argv, "--json", str(tmp_path / "out.json"), "--aspect-group", "fluency=form"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert printed.startswith("prompts by agreement with humans (spearman, group: item): likelihood\n")
    study = run_search(rows)
    assert f"best prompt: {study.best}\n" in printed
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["best"] == study.best
    assert written["share_by_group"]["form"] == study.share_that_help("fluency")
    assert {row["prompt"] for row in written["rows"]} == {NO_PROMPT, ALL, *PHRASES}


def test_the_command_takes_a_set_or_phrases_not_both(monkeypatch, capsys):
    argv = ["metrist", "prompts", "x.jsonl", "-m", "likelihood", "--prompt", "so", "--prompt-set", "source-output"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "give either --prompt-set or --prompt, not both" in capsys.readouterr().err
