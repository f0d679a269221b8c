"""`build_report` and `plot` on runs whose winners are known, and on the demo's ratings."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_builder import make_run, noisy

from error_codes import raises_code
from metrist.errors import MetristError, MissingExtra, RunError
from metrist.evaluate.audit.calibrate import calibrate
from metrist.evaluate.compare.comparison import compare
from metrist.evaluate.explain.worst import show_outputs
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.report import KINDS, build_report, plot
from metrist.evaluate.report.data import ReportData, ReportOptions
from metrist.metrics.base import Metric
from metrist.metrics.errors.combined import Errors
from metrist.metrics.trained.consistency import Consistency
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.page import Block, FigureBlock, Fold, OutputsBlock, Prose, Report, Section, TableBlock
from metrist.report.svg import COLUMN, PHONE, Label
from metrist.report.tables import Estimate
from metrist.run import score
from metrist.scores import Score

DEMO = Path(__file__).parents[2] / "demo" / "sample.jsonl"
HIGH = [0.80 + 0.001 * (n % 7) for n in range(60)]
LOW = [0.60 + 0.001 * (n % 5) for n in range(60)]
OPTIONS: dict[str, Any] = {"draws": 200}


def section(report: Report, name: str) -> Section:
    return next(part for part in report.sections if part.name == name)


@pytest.fixture(scope="module")
def demo_data() -> ReportData:
    return ReportData([str(DEMO)], ReportOptions(metrics=["rougeL", "chrf", "length"], draws=200))


@pytest.fixture(scope="module")
def demo() -> Report:
    return build_report(str(DEMO), metrics=["rougeL", "chrf", "length"], draws=200)


def test_the_verdict_says_in_plain_words_what_is_better_and_then_by_which_metrics() -> None:
    run = make_run(quality={"v1": LOW, "v2": HIGH}, errors={"v1": LOW, "v2": HIGH}, size={"v1": LOW, "v2": HIGH})
    report = build_report(run, **OPTIONS)
    plain, sentence = report.verdicts
    assert plain == "v1 is better than v2 in errors and worse in overall quality. Luck is an unlikely explanation."
    assert sentence.startswith(
        "v1 beats v2 on 1 of 2 metrics (errors 0.602 against 0.803), which is not luck, and loses on quality 0.602 "
        "against 0.803."
    )
    assert sentence.endswith("They also differ in size 0.602 against 0.803.")
    assert "p ≤ 0.05" in report.basis
    assert report.facts == "120 outputs · 60 items · 2 systems · 3 metrics"


def test_a_calibrated_metric_is_not_taken_for_the_one_inside_it(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text(calibrate(str(DEMO), "rougeL").calibration.to_json())
    run = score(str(DEMO), [f"rank=calibrated(metric=rougeL, by='{file}')"], progress=False)
    assert [metric.label for metric in ReportData([run]).results.metrics] == ["rank"]


def test_a_difference_that_may_be_luck() -> None:
    run = make_run(quality={"a": HIGH, "b": [*HIGH[1:], HIGH[0] + 0.0001]})
    (sentence,) = build_report(run, **OPTIONS).verdicts
    assert sentence.startswith("a and b are not separated")


def test_few_items_cannot_separate() -> None:
    report = build_report(make_run(quality={"a": [0.9, 0.8, 0.9], "b": [0.1, 0.1, 0.2]}), **OPTIONS)
    assert "So few items could not separate any two systems." in report.verdicts[0]


def test_the_leader_comes_first_where_there_are_many_systems() -> None:
    columns = {"best": HIGH, "low": LOW, "same": LOW, "worst": [value / 2 for value in LOW]}
    report = build_report(make_run(quality=columns), **OPTIONS)
    assert report.verdicts[:2] == [
        "Of 4 systems best comes first and low second: best is better than low in overall quality, and in nothing "
        "worse. Luck is an unlikely explanation.",
        "Of the 3 comparisons with 3 other systems, metric by metric, best wins 3 and loses 0.",
    ]
    assert "best has the best score by quality." in report.verdicts
    table = next(block.table for block in section(report, "systems").blocks if isinstance(block, TableBlock))
    assert [row["system"] for row in table.to_dict()["rows"]] == ["best", "low", "same", "worst"]
    assert any("best beats low, same and worst on the only metric (quality)" in s for s in report.verdicts)


def test_leaders_that_luck_may_set_apart_are_named_with_their_scores() -> None:
    shuffled = [*HIGH[1:], HIGH[0] + 0.0001]
    report = build_report(make_run(quality={"a": HIGH, "b": shuffled, "worst": LOW}), **OPTIONS)
    first = report.verdicts[0]
    assert first.startswith("Of 3 systems ")
    assert first.endswith(
        "second, but luck may explain what sets the two apart. No difference is shown in overall quality "
        "(0.803 against 0.803)."
    )


def test_the_verdict_says_what_stayed_open() -> None:
    """A wide spread on a few items: .73 against .91 is not told from luck."""
    open_scores = {"a": [0.1, 1.0, 1.0, 0.82] * 2, "b": [1.0, 0.82, 1.0, 0.82] * 2}
    run = make_run(quality={"a": HIGH[:8], "b": LOW[:8]}, errors=open_scores)
    plain = build_report(run, **OPTIONS).verdicts[0]
    assert plain == (
        "a is better than b in overall quality. Luck is an unlikely explanation. No difference is shown in errors "
        "(0.730 against 0.910)."
    )
    fewer = make_run(quality={"a": HIGH[:8], "b": LOW[:8]}, errors={**open_scores, "b": [*open_scores["b"][:7], None]})
    assert "(0.717 against 0.923 on the 7 items that both have)" in build_report(fewer, **OPTIONS).verdicts[0]


def test_a_metric_that_was_not_tested_between_leaders_is_not_said_to_be_luck() -> None:
    columns = {"a": HIGH, "b": LOW, "c": [value / 2 for value in LOW]}
    run = make_run(quality=columns, errors={"a": HIGH, "b": [None] * 60, "c": [None] * 60})
    first, counts, *_ = build_report(run, **OPTIONS).verdicts
    assert first.endswith("better than b in overall quality. Luck is an unlikely explanation. Not tested: errors.")
    assert counts == "Of the 2 comparisons with 2 other systems, metric by metric, a wins 2 and loses 0."


def test_nobody_leads_where_the_draws_cannot_separate_anything() -> None:
    columns = {name: [value + bonus for value in LOW] for name, bonus in (("a", 0.0), ("b", 0.1), ("c", 0.2))}
    report = build_report(make_run(quality=columns, errors=columns), draws=100, alpha=0.02)
    assert report.verdicts[0].startswith("No system is ahead: none of 6 comparisons separates two systems")
    assert "Metrics put different systems first: c by quality; a by errors." in report.verdicts


def test_a_baseline_is_the_second_of_each_pair() -> None:
    run = make_run(quality={"old": LOW, "new": HIGH, "other": [value / 2 for value in LOW]})
    report = build_report(run, baseline="old", **OPTIONS)
    plain, *sentences = report.verdicts
    assert plain == "Against old: new is better; other is worse."
    assert [sentence.split(" on ")[0] for sentence in sentences] == ["new beats old", "other loses to old"]


def test_one_system_has_no_opponent() -> None:
    (sentence,) = build_report(make_run(quality={"a": HIGH}), **OPTIONS).verdicts
    assert sentence.startswith("a: quality 0.803 [")


def test_failures_are_told_with_their_reasons() -> None:
    run = make_run(quality={"a": [*HIGH[:-1], None], "b": LOW})
    report = build_report(run, **OPTIONS)
    assert any("quality scored 119 of 120 outputs (99.2%)" in caution for caution in report.cautions)
    (table,) = [block.table for block in section(report, "failures").blocks if isinstance(block, TableBlock)]
    assert table.to_dict()["rows"][0]["outputs"] == 1


def test_the_verdict_has_five_lines_at_most() -> None:
    columns = {f"system {n}": [value + n / 10 for value in LOW] for n in range(9)}
    report = build_report(make_run(quality=columns), baseline="system 4", **OPTIONS)
    assert len(report.verdicts) <= 5
    assert report.verdicts[0] == (
        "Against system 4: system 5, system 6, system 7 and system 8 are better; system 0, system 1, system 2 and "
        "system 3 are worse."
    )


def test_a_metric_that_was_not_tested_is_not_said_to_be_luck() -> None:
    """It scored the outputs of one system only, so that no item has both scores."""
    run = make_run(quality={"a": HIGH, "b": LOW}, strict={"a": HIGH, "b": [None] * 60})
    sentence = build_report(run, **OPTIONS).verdicts[1]
    assert sentence.startswith("a beats b on the only metric (quality 0.803 against 0.602), which is not luck")
    assert "quality(strict=True) was not tested" in sentence
    assert "may be luck" not in sentence


def test_the_verdict_says_where_its_scores_are_of_fewer_outputs_than_those_of_the_table() -> None:
    run = make_run(quality={"a": HIGH, "b": [*LOW[:50], *[None] * 10]}, strict={"a": HIGH, "b": LOW})
    sentence = build_report(run, **OPTIONS).verdicts[1]
    assert f"quality {sum(HIGH[:50]) / 50:.3f} against " in sentence
    assert "These scores are of the 50 to 60 items that both have a score for, the table's of all." in sentence


def test_the_report_tells_which_rows_were_skipped(tmp_path: Path) -> None:
    rows = [
        json.dumps({"item": str(n), "system": s, "output": f"w {n}", "references": ["w"]})
        for n in range(9)
        for s in "ab"
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join([*rows, "{broken", '{"item": 3}']) + "\n")
    score(str(file), ["rougeL"], out=tmp_path / "run", skip_bad=True, progress=False)
    report = build_report(str(tmp_path / "run"), **OPTIONS)
    assert any("2 bad rows were skipped" in remark for remark in report.remarks)
    assert "2 bad rows were skipped" in report.html()


class Marking(Metric):
    """Marks the first word, as the metric that it is a part of does."""

    catalog_name = "marking"

    def score_record(self, record: Record) -> Score:  # noqa: ARG002
        error = Error(aspect="a", severity="major", penalty=2.0, explanation="why", text="w", start=0, end=1)
        return Score(value=-2.0, errors=(error,))


class Whole(Marking):
    catalog_name = "whole"


def test_an_error_that_two_metrics_found_is_shown_once() -> None:
    rows = [{"item": str(n), "system": s, "output": f"w {n}"} for n in range(4) for s in "ab"]
    results = score(rows, [Marking(), Whole()], progress=False)
    report = build_report(results, rows, **OPTIONS)
    assert sum("errors per output" in sentence for sentence in report.verdicts) == 1
    tables = [
        block.table.to_dict()["rows"] for block in section(report, "errors").blocks if isinstance(block, TableBlock)
    ]
    assert [(row["found by"], row["errors"]) for row in tables[0]] == [("marking", 8)]
    (card, *_) = [
        entry.outputs[0]
        for fold in section(report, "errors").blocks
        if isinstance(fold, Fold)
        for block in fold.blocks
        if isinstance(block, OutputsBlock)
        for entry in block.outputs.entries
    ]
    numbered, names = card.number_errors()
    assert [number for number, _ in numbered] == [1]
    assert names == {1: "marking, whole"}


def test_errors_of_metrics_that_rest_on_one_model_count_once() -> None:
    source = "The old bridge is closed for 12 days, since two of its pillars have cracks."
    wrong = [f"The old bridge is closed for {20 + n} days." for n in range(3)]
    records = [
        Record(item=str(n), system="s", output=output, source=source, task="summarization")
        for n, output in enumerate(wrong)
    ]
    try:
        Consistency().facts()
    except MissingExtra as error:
        pytest.skip(str(error))
    alone = ReportData([score(records, [Consistency()], progress=False), records], ReportOptions(draws=200))
    data = ReportData([score(records, [Consistency(), Errors()], progress=False), records], ReportOptions(draws=200))
    (own,), (found,) = alone.errors.values(), data.errors.values()
    assert len(own) == len(found) >= 3
    (card,) = show_outputs(data.results, data.texts.read([0]))
    assert card.number_errors()[1] == {1: "consistency, errors"}


def test_systems_of_one_name_are_told_apart_by_their_runs(tmp_path: Path) -> None:
    rows = [{"item": str(n), "system": "s", "output": f"word {n}", "references": [f"word {n} more"]} for n in range(12)]
    for name in ("old", "new"):
        score(rows, ["rougeL"], out=tmp_path / name, progress=False)
    data = ReportData([str(tmp_path / "old"), str(tmp_path / "new")], ReportOptions(draws=200))
    assert data.systems == ["s (old)", "s (new)"]
    assert len(data.results) == 24
    assert data.comparison is not None


def test_ratings_give_a_section_on_people(demo: Report) -> None:
    people = section(demo, "people")
    assert people.title == "Which metric to trust"
    names = [getattr(block, "name", "") for block in people.blocks]
    assert {"agreement", "slices", "majority"} <= set(names)
    assert any(name.startswith("levels-") for name in names)
    assert any("people's accuracy" in sentence or "about accuracy" in sentence for sentence in demo.verdicts)


def test_slices_of_single_columns_are_the_rows_of_the_heat_map(demo: Report) -> None:
    """15 are too many for columns; those by task and language together are in the figure of levels."""
    (block,) = [b for b in section(demo, "people").blocks if isinstance(b, FigureBlock) and b.name == "slices"]
    names = [shape.text for shape in block.drawing.shapes if isinstance(shape, Label) and shape.anchor == "end"]
    assert {"accuracy", "accuracy, task=qa", "fluency, language=de"} <= set(names)
    assert not [name for name in names if "+" in name]


def test_the_verdict_tells_which_metrics_are_on_a_par_with_the_best() -> None:
    """As many as the section names, whether one or several."""
    report = build_report(str(DEMO), metrics=["rougeL", "chrf", "length", "rouge1", "ter"], **OPTIONS)
    advice = section(report, "people").blocks[0]
    assert isinstance(advice, Prose)
    for aspect in ("accuracy", "fluency"):
        verdict = next(sentence for sentence in report.verdicts if f"people's {aspect}" in sentence)
        (longer,) = [s for s in advice.sentences if s.startswith(f"{aspect}, acc_eq: On all outputs")]
        names = longer.partition("On a par with it: ")[2].partition(").")[0].split(", ")
        counted = f"{len(names)} others are" if len(names) > 1 else f"{names[0].partition(' ')[0]} is"
        assert f"; {counted} on a par; " in verdict


def test_words_of_tables_and_advice_are_explained_beside_them(demo: Report) -> None:
    people = "\n".join(s for b in section(demo, "people").blocks if isinstance(b, Prose) for s in b.sentences)
    assert "On a par: no test finds a difference" in people
    assert "No metric reaches .6: even the best" in people
    assert "Grouped by item: an output is compared only" in people
    # Neighbours are not separated, the first and the last are.
    columns = {}
    for number, name in enumerate("abc"):
        values = noisy(0.0, seed=number)
        columns[name] = [0.5 + 0.025 * number + value - sum(values) / len(values) for value in values]
    report = build_report(make_run(quality=columns), **OPTIONS)
    tables = [block.table for block in section(report, "systems").blocks if isinstance(block, TableBlock)]
    assert "Several letters, such as ab: the system is in several such groups, which overlap." in tables[0].notes
    assert any("Not separated: the tests find no difference" in note for note in tables[1].notes)
    folds = [block for block in section(report, "systems").blocks if isinstance(block, Fold)]
    assert any("Not separated" in s for f in folds for b in f.blocks if isinstance(b, Prose) for s in b.sentences)


def test_one_rating_per_output_is_told_once() -> None:
    """Without a row for each coefficient that cannot be computed; aspects with several ratings keep theirs."""
    rows = [
        {"item": f"{n}", "system": system, "output": "word " * (n % 3 + 1), "references": ["word word"]}
        | {"ratings": {"focus": [n % 3 + 1], "coverage": [(n + shift) % 3 + 1, n % 2 + 1]}}
        for n in range(12)
        for shift, system in enumerate(("a", "b"))
    ]
    titles, sentences = [], []
    for aspects in (("focus",), ("focus", "coverage")):
        blocks = section(build_report(rows, metrics=["rougeL"], aspects=aspects, **OPTIONS), "people").blocks
        titles.append([block.title for block in blocks if isinstance(block, Fold)])
        sentences.append([s for block in blocks if isinstance(block, Prose) for s in block.sentences])
        raters = [block for block in blocks if isinstance(block, Fold) and block.title == "Agreement among raters"]
    assert "Agreement among raters" not in titles[0]
    assert any("There is one rating per output and aspect" in sentence for sentence in sentences[0])
    assert any("There is one rating per output of focus" in sentence for sentence in sentences[1])
    (table,) = raters[0].blocks
    assert isinstance(table, TableBlock)
    assert {row["aspect"] for row in table.table.to_dict()["rows"]} == {"coverage"}


def test_figures_that_show_some_of_the_metrics_name_the_others(demo: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def captions(report: Report) -> list[str]:
        folded = [block for fold in section(report, "people").blocks if isinstance(fold, Fold) for block in fold.blocks]
        figures = [block for block in folded if isinstance(block, FigureBlock)]
        return [figure.caption for figure in figures if figure.name.startswith(("scatter-", "curves-"))]

    assert not any("left out" in caption for caption in captions(demo))
    monkeypatch.setattr("metrist.evaluate.report.agreement._MAX_PANELS", 2)
    few = captions(build_report(str(DEMO), metrics=["rougeL", "chrf", "length"], **OPTIONS))
    rule = "The 2 of 3 metrics that agree best with people, on average over aspects; left out: length."
    assert len(few) == 4
    assert all(caption.endswith(rule) for caption in few)


def list_figures(blocks: Sequence[Block]) -> list[FigureBlock]:
    """All figures, those under headings that open them too."""
    folded = [figure for block in blocks if isinstance(block, Fold) for figure in list_figures(block.blocks)]
    return [*(block for block in blocks if isinstance(block, FigureBlock)), *folded]


def test_every_figure_has_a_form_for_phones(demo: Report) -> None:
    graded = make_run(quality={"a": HIGH, "b": LOW, "c": [value / 2 for value in LOW]})
    reports = [demo, build_report(graded, **OPTIONS)]
    figures = {f.name: f for report in reports for part in report.sections for f in list_figures(part.blocks)}
    assert {name.partition("-")[0] for name in figures} >= {"scores", "wins", "scatter", "curves", "agreement"}
    assert {figure.narrow.style.width for figure in figures.values()} == {PHONE.width}


def test_levels_are_shown_for_each_aspect_and_name_it(tmp_path: Path) -> None:
    rows = [
        {
            "item": f"{language}-{n}",
            "system": system,
            "language": language,
            "output": " ".join(["word"] * (n % 3 + 1)),
            "references": ["word word word"],
            "ratings": {"focus": [n % 3 + 1], "coverage": [(n + shift) % 3 + 1]},
        }
        for language in ("de", "en")
        for n in range(12)
        for shift, system in enumerate(("a", "b"))
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    blocks = section(build_report(str(file), metrics=["rougeL"], **OPTIONS), "people").blocks
    shown = [block for block in blocks if getattr(block, "name", "").startswith("levels-")]
    folded = [block for fold in blocks if isinstance(fold, Fold) for block in fold.blocks]
    pictures = [b for b in [*shown, *folded] if isinstance(b, FigureBlock) and b.name.startswith("levels-")]
    assert [picture.name for picture in pictures] == ["levels-rougeL-focus", "levels-rougeL-coverage"]
    assert {picture.narrow.style.width for picture in pictures} == {PHONE.width}
    assert "people's coverage" in pictures[1].caption
    assert "Tasks are ordered" not in pictures[1].caption  # There are languages only.
    tables = [block.table for block in [*blocks, *folded] if isinstance(block, TableBlock)]
    slices = [{row["slice"] for row in t.to_dict()["rows"]} for t in tables if t.columns[1].name == "slice"]
    assert slices == [{"all"}, {"language=de", "language=en", "language: macro mean"}]


def test_worst_outputs_say_why(demo: Report) -> None:
    first, *_ = [block for block in section(demo, "worst").blocks if isinstance(block, Fold)]
    (block,) = first.blocks
    assert isinstance(block, OutputsBlock)
    assert len(block.outputs.entries) == 3
    reason = block.outputs.entries[0].reason
    assert reason.startswith("rougeL 0.000; the mean is ")
    assert "; also among the worst 5 % by chrf" in reason
    assert block.outputs.entries[0].outputs[0].record is not None


class Longest(Metric):
    catalog_name = "longest"

    def score_record(self, record: Record) -> float:
        return float(len(record.output))


class Shortest(Metric):
    catalog_name = "shortest"
    higher_is_better = False

    def score_record(self, record: Record) -> float:
        return float(len(record.output))


def test_the_worst_outputs_by_the_metric_that_agrees_best_come_first_and_people_have_lists() -> None:
    aspects = [f"aspect {number}" for number in range(8)]
    rows = [
        {"item": f"{n}", "system": system, "output": "word " * words, "references": ["word"], "source": "word"}
        | {"ratings": {aspect: [9 - words] for aspect in aspects}}
        for n in range(30)
        for words, system in ((n % 3 + 1, "a"), (n % 4 + 3 if n else 8, "b"))
    ]
    results = score(rows, [Longest(), Shortest()], progress=False)
    blocks = section(build_report(results, rows, **OPTIONS), "worst").blocks
    note, *folds = blocks
    assert isinstance(note, Prose)
    assert note.sentences[0].startswith("The list by shortest comes first")
    opened = {fold.title: fold.opened for fold in folds if isinstance(fold, Fold)}
    assert list(opened.items())[:2] == [
        ("The worst of 60 outputs by shortest (3 shown)", True),
        ("The worst of 60 outputs by longest (3 shown)", False),
    ]
    assert "The worst of 60 outputs by people's aspect 0 (3 shown)" in opened
    reasons = [
        entry.reason
        for fold in folds
        if isinstance(fold, Fold)
        for block in fold.blocks
        if isinstance(block, OutputsBlock)
        for entry in block.outputs.entries
    ]
    assert any(reason.startswith("people's aspect 0 1.00; the mean is ") for reason in reasons)
    named = [reason for reason in reasons if "by people's" in reason]
    assert not any(" more" in reason for reason in named)
    assert any(reason.endswith(f"by people's {', '.join(aspects[:-1])} and {aspects[-1]}") for reason in named)


def test_the_numbers_are_those_of_compare_and_meta(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    results = score(str(DEMO), ["rougeL", "chrf", "ter"], out=run, progress=False)
    report = build_report(run, slices=("task",), **OPTIONS)
    embedded = re.search(r'id="data">(.*?)</script>', report.html(), re.DOTALL)
    assert embedded is not None
    data = json.loads(embedded[1])
    copies = [copy["csv"] for copy in data["copies"].values() if "csv" in copy]
    comparison = compare(run, **OPTIONS)
    assert comparison.table().render("csv") in copies
    evaluation = meta_evaluate(run, ("accuracy", "fluency"), ("acc_eq",), slices=("task",), **OPTIONS)
    # The report shows all outputs and the slices in tables of their own.
    rows_shown = {line for copy in copies for line in copy.splitlines()}
    assert set(evaluation.table().render("csv").splitlines()) <= rows_shown

    table = next(block.table for block in section(report, "systems").blocks if isinstance(block, TableBlock))
    shown = {row["system"]: row for row in table.to_dict()["rows"]}
    for system, scores in comparison.scores.items():
        for own in scores:
            assert shown[system][own.metric]["value"] == own.value
            assert shown[system][own.metric]["low"] == own.low

    explorer = data["explorer"]
    names = [metric["name"] for metric in explorer["metrics"]]
    rows = {key: row for row, key in enumerate(zip(results.items, results.systems, strict=True))}
    assert len(explorer["outputs"]) == len(results)
    for output in explorer["outputs"]:
        row = rows[explorer["items"][output["i"]]["name"], explorer["systems"][output["s"]]]
        for name, value in zip(names, output["v"], strict=True):
            assert value == pytest.approx(results[name].values[row], rel=1e-5, nan_ok=True)


def test_a_comment_has_room_for_the_markdown(demo: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = demo.markdown()
    assert "Left out here" not in whole
    monkeypatch.setattr("metrist.report.page._MAX_MARKDOWN", len(whole) // 2)
    short = demo.markdown()
    assert len(short) < 0.7 * len(whole)
    assert short.startswith(whole[:200])
    assert f"Left out here, because a comment has room for {len(whole) // 2:,} characters: " in short
    assert short.count("<details>") == short.count("</details>") < whole.count("<details>")


def test_a_pull_request_gets_markdown(demo: Report) -> None:
    text = demo.markdown()
    assert text.startswith("## Evaluation of sample.jsonl\n")
    assert "### Systems" in text
    assert "| rougeL ↑ | chrf ↑ |" in text
    assert text.count("<details>") == text.count("</details>") > 0
    assert "<script" not in text


def test_files_can_be_scored_or_hold_scores(tmp_path: Path) -> None:
    report = build_report(str(DEMO), metrics=["rougeL"], aspects=("fluency",), slices=("task",), **OPTIONS)
    assert section(report, "people")
    rows = [
        {"item": str(n), "system": s, "output": "x", "scores": {"mine": n / 10 + bonus}}
        for n in range(10)
        for s, bonus in (("a", 0.0), ("b", 1.0))
    ]
    path = tmp_path / "scored.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "2 systems · 1 metric" in build_report(str(path), **OPTIONS).facts
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"item": "1", "system": "a", "output": "x"}) + "\n")
    with raises_code(RunError, "no_data"):
        build_report(str(bare), **OPTIONS)
    with raises_code(RunError, "missing_file"):
        build_report(str(tmp_path / "absent"), **OPTIONS)


def test_large_runs_show_a_sample_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.evaluate.report.data.MAX_OUTPUTS", 40)
    monkeypatch.setattr("metrist.evaluate.report.outputs._SAMPLE", 30)
    rows = [{"item": str(n), "system": "s", "output": f"w {n}", "references": [f"w {n % 9}"]} for n in range(60)]
    report = build_report(rows, metrics=["rougeL"], **OPTIONS)
    note, explorer = section(report, "outputs").blocks
    (rule,) = note.sentences  # type: ignore[union-attr]
    assert rule.startswith("Texts of 30 of 60 outputs: the 20 worst by each metric, and a random sample")
    assert len(explorer.data["outputs"]) == 30  # type: ignore[union-attr]
    data = ReportData([rows], ReportOptions(metrics=["rougeL"], draws=200))
    assert not data.texts.are_few
    (fold,) = section(report, "worst").blocks
    assert isinstance(fold, Fold)
    (block,) = fold.blocks
    assert isinstance(block, OutputsBlock)
    records = [entry.outputs[0].record for entry in block.outputs.entries]
    assert [record.output for record in records if record] == [f"w {n}" for n in range(9, 12)]


def test_errors_say_why_a_system_is_better() -> None:
    wrong = {"aspect": "accuracy", "severity": "major", "penalty": 1.0}
    clumsy = {"aspect": "style", "severity": "minor", "penalty": 0.5}
    errors: dict[str, list[dict[str, Any]]] = {"old": [wrong, wrong, wrong], "new": [wrong, clumsy]}
    rows = [
        {"item": str(n), "system": system, "output": f"w {n}", "references": ["w"], "errors": own}
        for n in range(10)
        for system, own in errors.items()
    ]
    report = build_report(rows, metrics=["rougeL"], **OPTIONS)
    expected = (
        "People find 2.00 errors per output in new and 3.00 in old; they differ most in accuracy, 1.00 against 3.00."
    )
    assert expected in report.verdicts


def test_a_judge_card_is_shown(tmp_path: Path) -> None:
    finding = {
        "part": "position",
        "name": "first wins",
        "value": 0.6,
        "low": None,
        "high": None,
        "n": 9,
        "verdict": "found",
    }
    card = {"judge": "judge(llm=x)", "signature": "s", "verdict": "prefers the first", "findings": [finding]}
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card))
    report = build_report(make_run(quality={"a": HIGH}), judge_cards=[path], **OPTIONS)
    (block,) = section(report, "judges").blocks
    assert isinstance(block, TableBlock)
    assert block.table.title == "prefers the first"
    path.write_text("{}")
    with raises_code(RunError, "invalid_value", "card.json"):
        build_report(make_run(quality={"a": HIGH}), judge_cards=[path], **OPTIONS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "errors"])
def test_each_kind_of_figure_is_drawn(kind: str, demo_data: ReportData) -> None:
    drawing = KINDS[kind](demo_data, COLUMN)
    assert drawing is not None
    assert drawing.style.width == 240
    assert math.isfinite(drawing.height)


def test_a_figure_that_the_run_lacks_is_refused() -> None:
    run = make_run(quality={"a": HIGH})
    with raises_code(RunError, "too_little_data", "wins"):
        plot(run, kind="wins", **OPTIONS)
    with raises_code(RunError, "too_little_data", "agreement"):
        plot(run, kind="agreement", **OPTIONS)
    with raises_code(RunError, "unknown_name", "'score'", "'scores'"):
        plot(run, kind="score", **OPTIONS)
    with raises_code(RunError, "unknown_name", "'acuracy'"):
        plot(run, kind="levels", aspect="acuracy", **OPTIONS)


def test_a_column_to_slice_by_is_one_of_the_data() -> None:
    with raises_code(RunError, "unknown_name", "'zz'", "'task'"):
        build_report(str(DEMO), metrics="rougeL", slices="zz", **OPTIONS)
    page = build_report(make_run(quality={"a": HIGH, "b": LOW}), slices=["task"], **OPTIONS)
    assert [note for note in page.cautions if "sliced by task" in note]


def make_judged_tasks() -> list[dict[str, Any]]:
    """Two tasks with answers of one word and one with twelve, in two languages, with three raters and a stored score
    named `m`, as in the study of Doostmohammadi et al. (2024)."""
    rng = np.random.default_rng(5)
    rows = []
    for task, words in (("b-short", 1), ("a-long", 12), ("c-short", 1)):
        for item, system, language in product(range(4), "ab", ("en", "sv")):
            ratings = rng.integers(1, 4, 3).tolist()
            value = round(float(np.mean(ratings) + rng.normal(0, 0.6)), 1)
            row: dict[str, Any] = {"item": f"{task}-{language}-{item}", "system": system, "output": "x", "task": task}
            row |= {"language": language, "references": ["y " * words], "kind": "Q" if task != "b-short" else "P"}
            rows.append({**row, "ratings": {"correct": ratings}, "scores": {"m": value, "other": 1.0}})
    return rows


@pytest.mark.parametrize("over", ["language", "all"])
def test_levels_have_the_numbers_of_meta_and_short_answers_left(over: str) -> None:
    rows = make_judged_tasks()
    settings: dict[str, Any] = {
        "slices": ("task+language",),
        "group": "none",
        "gold": "majority",
        "epsilon_over": over,
        "draws": 120,
    }
    text = plot(rows, kind="levels", metrics=["m"], aspect="correct", **settings).svg()
    evaluation = meta_evaluate(rows, "correct", metrics=["m"], **settings)
    shown = []
    for figure in (f for f in evaluation.figures if f.slice.startswith("task+language=") and f.metric == "m"):
        estimate = Estimate(figure.value, figure.low, figure.high)
        name = figure.slice.partition("=")[2]
        assert f"{name}: acc_eq {estimate}; 8 outputs" in unescape(text)
        shown.append((name, f"{figure.epsilon:.4f}"))
    assert len(shown) == 6
    description = unescape(text).partition("<desc")[2].partition("</desc>")[0]
    # The order of the paper's figure: short answers left, long ones right, the languages of a task side by side.
    order = [name.replace(" · ", " ") for name, _ in shown]
    places = [description.index(name) for name in sorted(order, key=lambda name: (name.startswith("a-long"), name))]
    assert places == sorted(places)
    assert text.index("short answers") < text.index("long answers")
    for name, epsilon in shown if over == "language" else []:
        assert f"{name.replace(' · ', ' ')}: acc_eq" in description
        assert f"at ε {epsilon}," in description
    assert (f"ε {shown[0][1]};" in description) == (over == "all")
    by_column = plot(rows, kind="levels", metrics=["m"], task_class="kind", **settings).svg()
    assert ">P</text>" in by_column
    assert "short answers" not in by_column


def test_given_thresholds_are_those_of_the_figure() -> None:
    settings: dict[str, Any] = {"slices": ("task",), "group": "none", "draws": 120, "epsilon": {"m": 0.4}}
    text = unescape(plot(make_judged_tasks(), kind="levels", metrics=["m"], **settings).svg())
    figure = meta_evaluate(make_judged_tasks(), metrics=["m"], **settings).figure("m", on="task=a-long")
    assert f"a-long: acc_eq {Estimate(figure.value, figure.low, figure.high)}; 16 outputs" in text
    assert "ε 0.4000;" in text


def test_metrics_are_computed_unless_the_file_holds_all_of_them() -> None:
    rows = [{**row, "output": "y y"} for row in make_judged_tasks()]
    assert ReportData([rows], ReportOptions(metrics=["m"])).results["m"].values[0] == rows[0]["scores"]["m"]
    data = ReportData([rows], ReportOptions(metrics=["rougeL"]))
    assert [metric.label for metric in data.results.metrics] == ["rougeL"]
    with raises_code(MetristError, "unknown_name"):
        ReportData([rows], ReportOptions(metrics=["m", "rougeL"]))
