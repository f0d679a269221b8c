"""What the likelihood metrics do with a model's answers, on a model whose answers can be computed by hand."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import InputError, ModelError, SpecError
from metrist.metrics import cards
from metrist.metrics.base import Shard
from metrist.metrics.likelihood import layout, likelihood
from metrist.metrics.likelihood.likelihood import CONVERSION, NO_PROMPT, BartScore, BartScorePara, Likelihood
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.scores import Scores
from word_model import FAILING, WordModel, logprob, mean, tokens_of


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> WordModel:
    word_model = WordModel()
    monkeypatch.setattr(likelihood, "load_seq2seq", lambda _options, **_runtime: word_model)
    return word_model


def record(output: str = "a b c", source: str = "x y z w", references: tuple[str, ...] = ("q r", "s"), item: str = "0"):
    return Record(item=item, system="s", output=output, source=source, references=references)


def score(metric: Likelihood, *records: Record, tokens: bool = False) -> Scores:
    return metric.score(Shard(records or [record()], tokens=tokens))


@pytest.mark.usefixtures("model")
class TestWhatIsComputed:
    def test_the_value_is_the_mean_of_all_tokens_with_those_that_frame_the_text(self):
        assert score(Likelihood()).values[0] == pytest.approx(mean("x y z w", "a b c"), abs=1e-6)

    @pytest.mark.parametrize("reduce", ["native", "mean", "max"])
    def test_f_is_the_mean_of_both_ways_over_the_references(self, reduce):
        precisions = [mean("q r", "a b c"), mean("s", "a b c")]
        recalls = [mean("a b c", "q r"), mean("a b c", "s")]
        f = [(p + r) / 2 for p, r in zip(precisions, recalls, strict=True)]
        result = score(Likelihood(direction="f", reduce=reduce))[0]
        assert result.value == pytest.approx(max(f) if reduce == "max" else sum(f) / 2, abs=1e-6)
        assert result.value == pytest.approx((result.parts["precision"] + result.parts["recall"]) / 2)
        if reduce != "max":
            assert result.parts["precision"] == pytest.approx(sum(precisions) / 2, abs=1e-6)

    @pytest.mark.parametrize("side", ["target", "condition"])
    def test_several_prompts_give_their_mean_and_variance(self, side):
        phrases = ("in short", "briefly", "to wit")
        alone = [score(Likelihood(prompts=(phrase,), prompt_side=side)).values[0] for phrase in phrases]
        expected = mean("x y z w", "in short, a b c") if side == "target" else mean("x y z w in short,", "a b c")
        assert alone[0] == pytest.approx(expected, abs=1e-6)
        together = score(Likelihood(prompts=phrases, prompt_side=side))[0]
        assert together.value == pytest.approx(statistics.mean(alone))
        assert together.parts["prompt_variance"] == pytest.approx(statistics.pvariance(alone))

    def test_with_the_best_reference_each_prompt_has_its_own(self):
        metric = Likelihood(direction="reference->output", reduce="max", prompts=("in short", "to wit"))
        by_hand = [max(mean(r, f"{p}, a b c") for r in ("q r", "s")) for p in ("in short", "to wit")]
        each = metric.each_prompt(Shard([record()])).parts
        assert [each[phrase][0] for phrase in ("in short", "to wit")] == pytest.approx(by_hand, abs=1e-6)
        assert score(metric).values[0] == pytest.approx(sum(by_hand) / 2, abs=1e-6)

    def test_the_empty_prompt_is_no_prompt(self):
        metric = Likelihood(prompts=("", "in short"))
        result = metric.each_prompt(Shard([record(), record(output="")]))
        assert result.parts[NO_PROMPT][0] == score(Likelihood()).values[0]
        assert result.parts["in short"][0] == score(Likelihood(prompts=("in short",))).values[0]
        assert result.values[0] == score(metric).values[0]
        assert list(result.failures) == [1]
        assert "output is empty" in result.failures[1]
        assert len(metric.each_prompt(Shard([]))) == 0

    def test_prior_weights_are_the_tokens_shares_in_their_text(self):
        tokens = ["<s>", "a", "a", "b", "</s>"]
        shares = [0.2, 0.4, 0.4, 0.2, 0.2]
        given = tokens_of("x y z w")[0]
        logs = [logprob(given, token, place) for place, token in enumerate(tokens)]
        expected = sum(w * v for w, v in zip(shares, logs, strict=True)) / sum(shares)
        result = score(Likelihood(weighting="prior"), record(output="a a b"))
        assert result.values[0] == pytest.approx(expected, abs=1e-6)

    def test_stop_words_are_left_out_of_the_mean(self):
        given = tokens_of("x y z w")[0]
        counted = [("<s>", 0), ("cat", 2), ("not", 4), ("</s>", 5)]
        expected = sum(logprob(given, *one) for one in counted) / 4
        result = score(Likelihood(weighting="stopwords"), record(output="The cat is not"))
        assert result.values[0] == pytest.approx(expected, abs=1e-6)

    def test_idf_weights_come_from_the_texts_of_a_file(self, tmp_path):
        file = tmp_path / "texts.txt"
        file.write_text("a b\na\n\na c\n")
        weights = [0, math.log(4 / 4), math.log(4 / 2), math.log(4), 0]  # <s> a b new </s> in three texts
        given = tokens_of("x y z w")[0]
        logs = [logprob(given, token, place) for place, token in enumerate(["<s>", "a", "b", "new", "</s>"])]
        expected = sum(w * v for w, v in zip(weights, logs, strict=True)) / sum(weights)
        metric = Likelihood(weighting="idf", idf=str(file))
        result = score(metric, record(output="a b new"), record(output="a"))
        assert result.values[0] == pytest.approx(expected, abs=1e-6)
        assert list(result.failures) == [1]
        assert "zero weight" in result.failures[1]

    def test_prefixes_stand_before_the_texts_and_the_targets_does_not_count(self):
        metric = Likelihood(condition_prefix="__en__ ", target_prefix="__de__ ")
        given = tokens_of("__en__ x y z w")[0]
        counted = [("<s>", 0), ("a", 2), ("b", 3), ("c", 4), ("</s>", 5)]
        assert score(metric).values[0] == pytest.approx(sum(logprob(given, *one) for one in counted) / 5, abs=1e-6)
        prompted = score(replace(metric, prompts=("so",))).values[0]
        counted = [("<s>", 0), ("so,", 2), ("a", 3), ("b", 4), ("c", 5), ("</s>", 6)]
        assert prompted == pytest.approx(sum(logprob(given, *one) for one in counted) / 6, abs=1e-6)


@pytest.mark.usefixtures("model")
class TestLongTexts:
    LONG = "s1 s2 s3 s4 s5 s6 s7"

    def test_what_is_cut_is_counted_and_told(self):
        metric = Likelihood(max_tokens=6)
        result = score(metric, record(source=self.LONG, output="a b c d e"), record())
        assert result.values[0] == pytest.approx(mean("s1 s2 s3 s4", "a b c d"), abs=1e-6)
        assert result.parts["cut_tokens"].tolist() == [3 + 1, 0]
        remark = "1 of 2 outputs had texts too long for the model; 4 tokens were left out"
        assert metric.remarks(result) == [f"likelihood(max_tokens=6): {remark}"]
        assert metric.remarks(score(metric)) == []

    def test_each_text_is_counted_once_however_often_it_is_scored(self):
        long = record(output="a b c d e", references=("q1 q2 q3 q4 q5 q6", "s"))
        metric = Likelihood(direction="f", max_tokens=6, prompts=("in", "so", ""))
        # The output lacks one token without a prompt and two with one; the first reference two and three.
        assert score(metric, long).parts["cut_tokens"].tolist() == [2 + 3]

    @pytest.mark.parametrize("long", ["max", "mean"])
    def test_a_long_condition_is_read_in_windows(self, long):
        metric = Likelihood(max_tokens=5, long=long)
        windows = [mean(w, "a b c") for w in ("s1 s2 s3", "s4 s5 s6", "s7")]
        result = score(metric, record(source=self.LONG), record(source="x"))
        expected = max(windows) if long == "max" else sum(windows) / 3
        assert result.values.tolist() == pytest.approx([expected, mean("x", "a b c")], abs=1e-6)
        assert result.parts["windows"].tolist() == [3, 1]
        assert result.parts["cut_tokens"].tolist() == [0, 0]
        (remark,) = metric.remarks(result)
        assert remark.startswith(f"likelihood(max_tokens=5, long={long!r}): 1 of 2 outputs")
        assert "windows" in remark

    def test_windows_leave_room_for_what_is_put_around_them(self):
        metric = Likelihood(max_tokens=7, long="max", prompts=("so",), prompt_side="condition")
        result = score(metric, record(source=self.LONG))  # 7 less the 3 of `<s> so, </s>`: two words a window
        windows = [f"{w} so," for w in ("s1 s2", "s3 s4", "s5 s6", "s7")]
        assert result.values[0] == pytest.approx(max(mean(w, "a b c") for w in windows), abs=1e-6)
        assert result.parts["cut_tokens"].tolist() == [0]


class TestFailures:
    @pytest.mark.usefixtures("model")
    def test_one_records_fault_is_its_own(self):
        metric = Likelihood(direction="f", prompts=("so", "in"))
        records = [record(), record(output=""), record(output=f"an {FAILING} word"), record(output="d e")]
        result = score(metric, *records)
        assert list(result.failures) == [1, 2]
        assert "output is empty" in result.failures[1]
        assert FAILING in result.failures[2]
        alone = [score(metric, each).values[0] for each in (records[0], records[3])]
        assert result.values[[0, 3]].tolist() == alone
        assert np.isnan(result.parts["cut_tokens"]).tolist() == [False, True, True, False]
        assert result.stats[1].tolist() == [0, 0]

    @pytest.mark.usefixtures("model")
    def test_a_failing_reference_fails_the_record_under_every_reduction(self):
        for reduce in ("mean", "max"):
            metric = Likelihood(direction="output->reference", reduce=reduce)
            result = score(metric, record(references=("a", FAILING)))
            assert list(result.failures) == [0]
            assert FAILING in result.failures[0]

    def test_an_impossible_token_is_a_failure_and_no_infinite_score(self, model, monkeypatch):
        def impossible(pairs: Any, max_tokens: Any = None) -> Any:
            result = WordModel.log_probs(model, pairs, max_tokens)
            return replace(result, logprobs=np.full_like(result.logprobs, -np.inf))

        monkeypatch.setattr(model, "log_probs", impossible)
        failures = score(Likelihood()).failures
        assert list(failures) == [0]
        assert "zero probability" in failures[0]

    def test_a_shard_of_failures_alone_asks_for_nothing(self, model):
        result = score(Likelihood(direction="f", prompts="reference-output", long="max"), record(output=""))
        assert len(result.failures) == 1
        assert set(result.parts) == {"precision", "recall", "prompt_variance", "windows", "cut_tokens"}
        assert model.calls == []


class TestWhatIsAskedTogether:
    def test_all_prompts_and_outputs_of_a_source_are_asked_at_once(self, model):
        records = [record(output=f"o{i}", source=f"s{i % 2}", item=str(i)) for i in range(6)]
        score(Likelihood(prompts="source-output"), *records)
        assert [len(pairs) for pairs in model.calls] == [6 * 70]
        sources = [condition for condition, _ in model.calls[0]]
        assert sources == ["s0"] * 210 + ["s1"] * 210

    def test_large_shards_are_asked_in_pieces_with_the_same_scores(self, model, monkeypatch):
        records = [record(output=f"o{i}", source=f"s{i % 3}", item=str(i)) for i in range(10)]
        metric = Likelihood(prompts=("in", "so"))
        full = score(metric, *records).values.tolist()
        monkeypatch.setattr(layout, "MAX_PAIRS", 7)
        assert score(metric, *records).values.tolist() == full
        monkeypatch.setattr(layout, "MAX_TEXT", 12)
        assert score(metric, *records).values.tolist() == full
        assert max(len(pairs) for pairs in model.calls[1:]) == 7
        assert score(metric, *records[::-1]).values.tolist() == full[::-1]


@pytest.mark.usefixtures("model")
class TestTokens:
    def test_every_scoring_is_read_token_by_token(self):
        (only,) = score(Likelihood(), tokens=True).tokens[0]
        assert only["condition"] == "source"
        assert only["target"] == "output"
        assert only["pieces"] == ["<s>", "a", "b", "c", "</s>"]
        given = tokens_of("x y z w")[0]
        assert only["logprobs"] == [round(logprob(given, t, i), 5) for i, t in enumerate(only["pieces"])]
        assert 0 not in score(Likelihood()).tokens

    def test_readings_say_which_reference_prompt_and_window_they_are_of(self):
        metric = Likelihood(direction="output->reference", prompts=("", "so"), max_tokens=4, long="mean")
        readings = score(metric, record(references=("q", "r")), tokens=True).tokens[0]
        labels = [(r["reference"], r.get("prompt"), r["window"]) for r in readings]
        assert labels == [(n, p, w) for n in (1, 2) for p in (None, "so") for w in (1, 2)]
        json.dumps(readings)


class TestIdentity:
    def test_the_presets_are_the_papers_models(self):
        cnn: Any = build("bartscore_cnn")
        large: Any = build("bartscore_large")
        assert BartScore().model == cnn.model == "facebook/bart-large-cnn"
        assert large.model == "facebook/bart-large"
        with raises_code(SpecError, "invalid_value", "bartscore_large", "facebook/bart", "'mine'"):
            build("bartscore_large(model='mine')")

    def test_the_papers_third_model_is_asked_for_with_the_way_to_make_it(self):
        with raises_code(ModelError, "missing_value", "bartscore_para", "torch.load", "save_pretrained"):
            score(BartScorePara())
        assert "not known here: bartscore_para needs a folder" in " ".join(cards.describe(BartScorePara()).split())

    def test_the_docs_show_the_same_way(self):
        page = Path(__file__).parents[3] / "docs" / "guides" / "likelihood.md"
        assert CONVERSION in page.read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ("bart_score", "bartscore_large"),
            ("bart_score_cnn_src_hypo", "bartscore_cnn(direction='source->output')"),
            ("bart_score_para_avg_f", "bartscore_para(direction='f')"),
            ("bart_score_hypo_ref", "bartscore_large(direction='output->reference')"),
            ("BARTScorer", "bartscore"),
            ("prism", "prism_style, with another model than Prism's own"),
        ],
    )
    def test_names_of_the_authors_code_are_answered_with_ours(self, theirs, ours):
        with raises_code(SpecError, "unknown_name", repr(theirs), ours):
            build(theirs)

    @pytest.mark.parametrize(
        ("text", "code", "values"),
        [
            ("likelihood(weighting='idf')", "conflict", ("weighting='idf'",)),
            ("likelihood(idf='a.txt')", "conflict", ("weighting='idf'",)),
            ("likelihood(max_tokens=3)", "invalid_value", ("max_tokens", "4", "got 3")),
            ("likelihood(source_language='de')", "missing_value", ("source_language", "language")),
            ("likelihood(prompts=3)", "invalid_value", ("prompts", "a string or a list, each a string", "got 3")),
        ],
    )
    def test_settings_that_cannot_be_are_refused(self, text, code, values):
        with raises_code(SpecError, code, *values):
            build(text)

    def test_prompts_may_be_a_list(self):
        assert Likelihood(prompts=["a"]).prompts == ("a",)
        assert Likelihood(prompts=[]).prompts == "none"

    @pytest.mark.usefixtures("model")
    def test_an_idf_file_that_cannot_be_used_is_named(self, tmp_path):
        with raises_code(InputError, "unreadable", "no.txt"):
            score(Likelihood(weighting="idf", idf="no.txt"))
        (tmp_path / "empty.txt").write_text("\n")
        with raises_code(InputError, "no_data", "empty.txt"):
            score(Likelihood(weighting="idf", idf=str(tmp_path / "empty.txt")))

    def test_the_card_leads_from_aspect_to_direction(self):
        text = " ".join(cards.describe(build("likelihood")).split())
        assert "What to use for which aspect" in text
        assert "relevance, coverage, pyramid rouge1 or rouge2 instead" in text
        for advice in cards.card("bartscore").guidance:
            assert build(f"bartscore({advice.use})").name == "bartscore"
