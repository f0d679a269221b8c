"""Slices by length, in several units; slices that are too small; the best systems of each slice."""

from __future__ import annotations

import json
import lzma
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_rows import Row, drop_fields, make_rows, write_rows

import metrist
from error_codes import raises_code
from metrist.errors import RunError
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.meta.join import join

#: The words of six references at the borders of the classes of the BARTScore paper (footnote 6): 15–24, 25–34, 35–44.
WORDS = (14, 15, 24, 25, 44, 45)


def make_lengths() -> list[Row]:
    rng = np.random.default_rng(5)
    return [
        {
            "item": str(item),
            "system": system,
            "output": "two  words, and three more"[: 10 + 4 * item],
            "references": [" ".join(["word"] * words)],
            "ratings": {"q": [float(rng.random())]},
            "scores": {"m": float(rng.random())},
        }
        for item, words in enumerate(WORDS)
        for system in ("a", "b")
    ]


def test_words_are_counted_between_single_spaces_and_classes_begin_at_their_limits() -> None:
    """`len(text.split(' '))` and `low <= length < high`, as analysis.py of the BARTScore repository has it."""
    column = "reference_length@15,25,35,45:words"
    figures = meta_evaluate(make_lengths(), "q", slices=column, draws=0).figures
    limits = {"<15": (0, 15), "15–25": (15, 25), "25–35": (25, 35), "35–45": (35, 45), "≥45": (45, 99)}
    expected = {f"{column}={name}": 2 * sum(low <= n < high for n in WORDS) for name, (low, high) in limits.items()}
    assert {f.slice: f.n for f in figures if f.slice.startswith(f"{column}=")} == expected


def test_units_of_length_serve_slices_groups_and_conditions(tmp_path: Path) -> None:
    rows = make_lengths()
    rows[0]["references"].append("a b")
    settings: dict[str, Any] = {"draws": 0, "measures": "pearson", "group": "none"}
    lengths = join(rows, lengths=["words", "tokens"]).lengths
    assert lengths["output_length:words"].tolist() == [len(row["output"].split(" ")) for row in rows]
    assert lengths["output_length:tokens"].tolist() == [len(re.findall(r"\w+", row["output"])) for row in rows]
    assert lengths["reference_length:words"][0] == (14 + 2) / 2
    short = [row for row in rows if len(row["output"].split(" ")) < 4]
    kept = meta_evaluate(rows, "q", where="output_length:words<4", **settings)
    assert kept.rows() == meta_evaluate(short, "q", **settings).rows()
    same = meta_evaluate(rows, "q", slices="output_length@20:characters", **settings)
    assert [f.n for f in same.figures] == [
        f.n for f in meta_evaluate(rows, "q", slices="output_length@20", **settings).figures
    ]
    halves = meta_evaluate(rows, "q", slices="output_length:words", group="output_length:2:tokens", draws=0)
    assert [f.slice for f in halves.figures][1:3] == ["output_length:words=≤5", "output_length:words=>5"]
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(rows, "scores"))
    metrist.score(path, "rougeL", out=tmp_path / "run", texts=False)
    with raises_code(RunError, "unknown_name", "'output_length:words'"):
        meta_evaluate(tmp_path / "run", "q", slices="output_length:words")


def test_parts_of_markdown_are_counted_outside_of_code() -> None:
    texts = {
        "# One\n\n## Two\n#hashtag\n": (2, 0, 0),
        "1. a\n2) b\n- c\n  * **d** and __e__\n-f\n": (0, 4, 2),
        "```\n# comment\n- x\n```\n+ y **bold\nno**": (0, 1, 0),
        "": (0, 0, 0),
    }
    rows = [{"item": str(n), "system": "a", "output": text, "ratings": {"q": 1}} for n, text in enumerate(texts)]
    units = ("headers", "list_items", "bold")
    lengths = join(rows, lengths=units).lengths
    counts = zip(*(lengths[f"output_length:{unit}"].tolist() for unit in units), strict=True)
    assert list(counts) == list(texts.values())


def test_small_slices_are_left_out_of_means_and_thresholds() -> None:
    rows = [row for row in make_rows(items=18) if row["language"] == "en" or row["item"] == "i0"]
    rows[0]["ratings"] = {"quality": []}
    del rows[0]["raters"]
    settings: dict[str, Any] = {"slices": "language", "draws": 0, "group": "none"}
    result = meta_evaluate(rows, "quality", min_samples=4, **settings)
    english = meta_evaluate([row for row in rows if row["language"] == "en"], "quality", **settings)
    assert {f.slice for f in result.figures} == {"all", "language=en", "language: macro mean"}
    for name in ("language=en", "language: macro mean"):
        for metric in ("near", "far", "judge"):
            assert result.figure(metric, on=name).value == english.figure(metric, on=name).value
            assert result.figure(metric, on=name).epsilon == english.figure(metric, on=name).epsilon
    assert "Left out, fewer than 4 rated outputs: language=sv (3)." in result.notes
    assert len(meta_evaluate(rows, "quality", min_samples=3, **settings).figures) > len(result.figures)
    with raises_code(RunError, "too_little_data", "`min_samples`"):
        meta_evaluate(rows, "quality", min_samples=len(rows), **settings)


def two_languages() -> list[Row]:
    """Three systems translate from each of two languages; people rate those from gu higher than any from kk."""
    rng = np.random.default_rng(6)
    return [
        {
            "item": f"{language}{item}",
            "system": f"{language}-{system}",
            "output": "text",
            "language": language,
            "ratings": {"q": [number + 9 * (language == "gu") + float(rng.random())]},
            "scores": {"m": number + float(rng.normal())},
        }
        for language in ("gu", "kk")
        for item in range(10)
        for number, system in enumerate("abc" if language == "gu" else "ab")
    ]


@pytest.mark.parametrize("measure", ["pearson", "acc_eq"])
def test_each_slice_has_its_own_best_systems(measure: str) -> None:
    rows = two_languages()
    settings: dict[str, Any] = {"measures": measure, "draws": 20, "group": "item" if measure == "acc_eq" else "none"}
    result = meta_evaluate(rows, "q", slices="language", top_k=2, **settings)
    best = [row for row in rows if row["system"] in ("gu-b", "gu-c", "kk-a", "kk-b")]
    # One threshold is best for the average of the slices, whichever systems are best of all.
    expected = meta_evaluate(best, "q", slices="language", **settings)
    for name in ("language=gu", "language=kk", "language: macro mean"):
        assert result.figure("m", on=name).row() == expected.figure("m", on=name).row()
    overall = meta_evaluate([row for row in best if row["language"] == "gu"], "q", **settings)
    assert result.figure("m").n == overall.figure("m").n == 20
    assert any("its own 2 best systems" in note for note in result.notes)
    alike = [{**row, "ratings": {"q": [row["ratings"]["q"][0] % 9]}} for row in rows]
    # The best of all, gu-c and kk-b, have no item in common.
    apart = meta_evaluate(alike, "q", slices="language", top_k=2, **settings)
    assert np.isnan(apart.figure("m").value) == (measure == "acc_eq")
    assert apart.figure("m", on="language=kk").value == result.figure("m", on="language=kk").value
    all_systems = meta_evaluate(rows, "q", slices="language", top_k=3, **settings)
    assert [all_systems.figure("m", on=f"language={name}").n for name in ("gu", "kk")] == [30, 20]
    assert "Fewer than 3 systems, so all of them: language=kk (2)." in all_systems.notes


def test_the_best_systems_of_a_slice_of_preferences_win_most_there() -> None:
    rng = np.random.default_rng(8)
    rows: list[Row] = [
        {
            "item": f"{language}{item}",
            "systems": [f"{language}-{a}", f"{language}-{b}"],
            "outputs": [a, b],
            "language": language,
            "ratings": {"better": [1 if rng.random() < 0.8 else 2]},
            "scores": {"m": int(rng.integers(1, 3))},
        }
        for language in ("gu", "kk", "lt")
        for item in range(3 if language == "lt" else 12)
        for a, b in (("ab", "bc", "ac") if language != "lt" else ("ab",))
    ]
    settings: dict[str, Any] = {"preferences": True, "measures": ["accuracy", "darr_wmt17"], "draws": 0}
    result = meta_evaluate(rows, slices="language", top_k=2, min_samples=4, **settings)
    for language in ("gu", "kk"):
        own = [row for row in rows if row["language"] == language]
        points: dict[str, list[float]] = {}
        for row in own:
            for side, system in enumerate(row["systems"], 1):
                points.setdefault(system, []).append(float(row["ratings"]["better"] == [side]))
        best = sorted(points, key=lambda system: -np.mean(points[system]))[:2]
        kept = [row for row in own if set(row["systems"]) == set(best)]
        assert result.figure("m", on=f"language={language}").n == len(kept) == 12
        for measure in settings["measures"]:
            expected = meta_evaluate(kept, **settings).figure("m", measure=measure)
            assert result.figure("m", measure=measure, on=f"language={language}").value == expected.value
    # The best of all never met.
    assert "Left out, fewer than 4 pairs: all (0), language=lt (3)." in result.notes
    assert {f.slice for f in result.figures} == {"language=gu", "language=kk", "language: macro mean"}
    with raises_code(RunError, "run_failed", "top_k=2"):
        meta_evaluate(rows, top_k=2, **settings)


def test_pairs_of_wmt19_by_words_are_as_many_as_in_the_files(data: Any) -> None:
    """The classes of footnote 6 of the BARTScore paper, which leaves out those with fewer than 500 pairs."""
    paths = {name: data(f"wmt19-darr.{name}-en") for name in ("gu", "kk", "lt")}
    limits = (0, 15, 25, 35, 45, 10_000)
    left_out = set()
    for language, path in paths.items():
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        words = [len(row["references"][0].split(" ")) for row in rows]
        counts = [sum(low <= n < high for n in words) for low, high in pairwise(limits)]
        if language != "lt":  # No class of that large file is small.
            for row, count in zip(rows, words, strict=True):  # A metric, without waiting for one.
                row["scores"] = {"m": 1 + count % 2}
            result = meta_evaluate(
                rows, preferences=True, measures="darr_wmt17", slices="reference_length@15,25,35,45:words", draws=0,
                min_samples=500,
            )  # fmt: skip
            shown = [f.n for f in result.figures if "=" in f.slice]
            assert shown == [count for count in counts if count >= 500]
        names = ("<15", "15–25", "25–35", "35–45", "≥45")
        left_out |= {(language, name) for name, count in zip(names, counts, strict=True) if count < 500}
    assert left_out == {("kk", "35–45"), ("kk", "≥45"), ("gu", "≥45")}
