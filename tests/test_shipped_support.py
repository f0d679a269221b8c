"""Sentences that their source supports are supported, however they are worded: data as text, lists, numbers in words,
paraphrases, short answers, titles, and the correct outputs of the demo.

`shipped_support.toml` has the sentences, and others that the source does not support: a model that supports everything
is no good either. The default threshold of `consistency` was chosen with these sentences in sight.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from metrist.errors import MissingExtra
from metrist.metrics.base import Shard
from metrist.metrics.trained.consistency import Consistency
from metrist.models.devices import Options
from metrist.models.weights import find_weights
from metrist.records import Record

WORDINGS = Path(__file__).parent / "shipped_support.toml"
DEMO = Path(__file__).parents[1] / "demo" / "sample.jsonl"
MODELS = ["metrist:english-small", pytest.param("metrist:english-large", marks=pytest.mark.torture)]


class Case(NamedTuple):
    kind: str
    source: str
    sentence: str
    supported: bool


def read_cases() -> list[Case]:
    return [
        Case(entry["kind"], entry["source"], sentence, key == "supported")
        for entry in tomllib.loads(WORDINGS.read_text(encoding="utf-8"))["sources"]
        for key in ("supported", "unsupported")
        for sentence in entry[key]
    ]


def read_demo() -> list[Case]:
    """The outputs of the systems that make no mistakes, in English and about a text or data."""
    rows = map(json.loads, DEMO.read_text(encoding="utf-8").splitlines())
    return [
        Case("demo", row["source"], row["output"], supported=True)
        for row in rows
        if row["system"] in ("careful", "terse") and row["item"][:3] in ("sum", "dat") and row["language"] == "en"
    ]


def is_supported(cases: list[Case], model: str) -> list[bool]:
    try:
        find_weights(Options(model=model))
    except MissingExtra as error:
        pytest.skip(f"{model} is not installed: {error}")
    metric = Consistency(model=model)
    records = [Record(item="1", system="s", output=case.sentence, source=case.source) for case in cases]
    return [bool(score.value >= metric.threshold) for score in metric.score(Shard(records))]


def test_the_cases_are_many_and_distinct() -> None:
    cases = read_cases()
    assert sum(case.supported for case in cases) >= 200
    assert len({(case.source, case.sentence) for case in cases}) == len(cases)
    kinds = Counter(case.kind for case in cases if case.supported)
    assert set(kinds) == {"data", "list", "numbers", "paraphrase", "answer", "title"}
    assert min(kinds.values()) >= 30


@pytest.mark.parametrize("model", MODELS)
def test_sentences_are_supported_in_any_wording(model: str) -> None:
    cases = read_cases()
    found = is_supported(cases, model)
    right = [value == case.supported for case, value in zip(cases, found, strict=True)]
    table = "\n".join(
        f"{case.kind}: {case.sentence}"
        for case, value in zip(cases, right, strict=True)
        if case.supported and not value
    )
    shares = {
        expected: [value for case, value in zip(cases, right, strict=True) if case.supported is expected]
        for expected in (True, False)
    }
    assert sum(shares[True]) / len(shares[True]) >= 0.9, table
    assert sum(shares[False]) / len(shares[False]) >= 0.35


@pytest.mark.parametrize("model", MODELS)
def test_correct_outputs_of_the_demo_are_supported(model: str) -> None:
    cases = read_demo()
    assert len(cases) == 12
    wrong = [case.sentence for case, value in zip(cases, is_supported(cases, model), strict=True) if not value]
    assert not wrong
