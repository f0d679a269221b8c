from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import metrist
from error_codes import raises_code
from metrist.errors import InputError, RunError, SpecError
from metrist.llm.base import LLM
from metrist.metrics.base import Metric, Shard, calls_llm, hash_file, is_resident, pairs_of
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.scores import Score, Scores

RECORD = Record(item="1", system="s", output="o")


@dataclass(frozen=True)
class Vowels(Metric):
    """Counts vowels."""

    letters: str = "aeiou"
    at_most: int = 10

    bounds: ClassVar[tuple[float, float]] = (0, 10)

    def score(self, shard: Shard) -> Scores:
        return Scores.of(min(sum(map(r.output.count, self.letters)), self.at_most) for r in shard.records)

    def facts(self) -> Mapping[str, str]:
        return {"alphabet": "latin"}


@dataclass(frozen=True)
class Unfinished(Metric):
    pass


def test_a_metrics_text_names_the_settings_that_differ_from_their_defaults():
    assert Vowels().text == "test_base.Vowels"
    assert Vowels(letters="ae").text == "test_base.Vowels(letters='ae')"


def test_a_signature_names_all_settings_the_version_the_facts_and_the_code():
    facts = Vowels().signature.split(" | ")
    assert facts[0] == "test_base.Vowels(letters='aeiou', at_most=10)"
    assert facts[1] == f"metrist {metrist.__version__}"
    assert facts[2].startswith("code ")
    assert len(facts[2]) == len("code ") + 12
    assert facts[3] == "alphabet latin"


def test_scores_are_pooled_to_their_mean_and_to_nan_when_nothing_was_scored():
    sums = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_array_equal(Vowels().pool(sums), [0.75, np.nan])


def test_a_metric_without_score_says_what_it_must_define():
    with pytest.raises(NotImplementedError, match=r"Unfinished must define score_record"):
        Unfinished().score(Shard([RECORD]))


def test_an_exception_names_the_record():
    class Breaking(Metric):
        def score_record(self, record: Record) -> float:
            return 1 / len(record.output)

    records = [RECORD, Record(item="2", system="s", output="")]
    with raises_code(RunError, "metric_failed", "'2'", "'s'") as caught:
        Breaking().score(Shard(records))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert re.search(r"ZeroDivisionError: .* \(test_base\.py:\d+\)$", str(caught.value))


@pytest.mark.parametrize("needs", [("refs",), "references"])
def test_needs_that_are_no_fields_of_a_record_are_refused(needs: Any):
    metric = type("Needy", (Vowels,), {"needs": needs})()
    with raises_code(SpecError, "invalid_value", "fields"):
        metrist.score([{"item": "1", "system": "s", "output": "o"}], [metric])


def test_pairs_list_each_text_once_and_remember_where_records_start():
    texts = [("a", ("b", "c")), ("b", ()), ("a", ("b",))]
    pairs = pairs_of(Shard([Record(item="0", system="s", output=o, references=r) for o, r in texts]))
    assert pairs.texts == ["a", "b", "c"]
    assert pairs.starts.tolist() == [0, 2, 2, 3]
    assert list(zip(pairs.outputs.tolist(), pairs.references.tolist(), strict=True)) == [(0, 1), (0, 2), (0, 1)]


def test_shared_work_is_done_once_per_shard_and_key():
    shard, built = Shard([]), []
    for _ in range(3):
        shard.once("key", lambda: built.append("key"))
    shard.once("other", lambda: built.append("other"))
    assert built == ["key", "other"]


def test_a_metric_typed_at_a_prompt_changes_its_signature_with_its_code() -> None:
    def typed(body: str) -> str:
        names: dict[str, Any] = {"Metric": Metric, "__name__": "prompt"}
        exec(f"class Mine(Metric):\n    def score(self, shard):\n        return {body}", names)
        return names["Mine"]().signature

    assert typed("1") == typed("1")
    assert typed("1") != typed("2")


def test_an_edit_to_what_a_metric_inherits_makes_another_metric(tmp_path, monkeypatch) -> None:
    def signature(value: str) -> str:
        (tmp_path / "parent_of_mine.py").write_text(
            f"from metrist import Metric\n\nclass Parent(Metric):\n    def one(self):\n        return {value}\n"
        )
        for name in ("parent_of_mine", "mine_by_heritage"):
            sys.modules.pop(name, None)
        linecache.clearcache()
        return build("mine_by_heritage.Mine").signature

    (tmp_path / "mine_by_heritage.py").write_text(
        "from dataclasses import dataclass\n\nimport parent_of_mine\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(parent_of_mine.Parent):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert signature("1.0") == signature("1.0")
    assert signature("1.0") != signature("22.0")


class WordCount(Metric):
    """A plain class without settings."""

    def score_record(self, record):
        return len(record.output.split())


@dataclass(frozen=True)
class Returning(Metric):
    value: Any = None

    def score_record(self, record):  # noqa: ARG002
        return self.value


def test_a_plain_class_with_score_record_is_a_metric():
    rows = [{"item": "1", "output": "a b"}, {"item": "2", "output": "c"}]
    results = metrist.score(rows, WordCount())
    column = results["test_base.WordCount"]
    assert column.values.tolist() == [2.0, 1.0]
    assert (len(column), list(column.items), len(column.systems)) == (2, ["1", "2"], 2)
    assert [score.value for score in column] == [2.0, 1.0]
    assert build("test_base.WordCount").text == "test_base.WordCount"
    with pytest.raises(RunError, match="rouge"):
        results["rougeL"]


@pytest.mark.parametrize("value", [None, float("nan"), np.float32("nan"), Score(value=float("nan"))])
def test_none_and_nan_mean_not_scored(value):
    (score,) = Returning(value).score(Shard([RECORD]))
    assert score.failure is not None
    assert score.failure.kind == "not_scored"


@pytest.mark.parametrize(("value", "expected"), [(1, 1.0), (True, 1.0), (np.float32(0.5), 0.5), (np.bool_(True), 1.0)])
def test_any_single_number_is_a_score(value, expected):
    assert Returning(value).score(Shard([RECORD])).values.tolist() == [expected]
    assert Returning(Score.failed("too odd")).score(Shard([RECORD])).failures == {0: "too odd"}


@pytest.mark.parametrize("value", [[1.0], "good", (1.0, 2.0), {"value": 1.0}])
def test_other_returns_are_refused_with_the_remedy(value):
    with raises_code(RunError, "metric_failed", "number"):
        Returning(value).score(Shard([RECORD]))


@dataclass(frozen=True)
class Holding(Metric):
    llm: LLM | None = None
    metric: Metric | None = None
    metrics: tuple[Metric, ...] = ()
    name_of_it: str = "chrf"


def test_settings_that_are_llms_or_metrics_may_be_given_as_text():
    held = Holding(llm="openai(model='m')", metric="chrf(word_order=2)", metrics=["rougeL", build("chrf")])
    assert str(held.llm) == "openai(model='m')"
    assert held.metric == build("chrf(word_order=2)")
    assert held.metrics == (build("rougeL"), build("chrf"))
    assert held.name_of_it == "chrf"
    assert "llm=openai(model='m')" in held.text
    with pytest.raises(SpecError, match="gtp"):
        Holding(llm="gtp(model='m')")


def test_what_a_metric_holds_counts_as_its_own():
    judge: Any = build("judge(llm=openai(model='m'))")
    assert calls_llm(judge)
    assert calls_llm(Holding(metric=judge))
    assert calls_llm(Holding(llm=judge.llm))
    assert calls_llm(Holding(metrics=(build("chrf"), judge)))
    assert not calls_llm(Holding(metric=build("chrf")))
    assert is_resident(Holding(metric=judge))
    assert not is_resident(Holding())


def test_a_path_that_is_too_long_to_be_hashed_is_an_input_error() -> None:
    with pytest.raises(InputError, match="cannot read"):
        hash_file("x" * 5000)
