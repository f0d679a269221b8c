"""GPTScore. Expected values come from plain transformers, one pair at a time, with the prompt put together by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from error_codes import raises_code
from metrist.errors import ModelError, SpecError
from metrist.metrics.base import Shard
from metrist.metrics.likelihood.causal import GptScore, _read_tables
from metrist.metrics.likelihood.layout import Roles
from metrist.metrics.registry import build
from metrist.models.loading import load_causal
from metrist.records import Record

SOURCE = "the old president said that the news was not very good"
OUTPUT = "the news is bad"
REFERENCES = ("bad news , said the president", "the report was not good")


def record(output: str = OUTPUT, source: str | None = SOURCE, references: tuple[str, ...] = REFERENCES) -> Record:
    return Record(item="0", system="s", output=output, source=source, references=references)


@cache
def _loaded(kind: str, folder: Path):
    auto = transformers.AutoModelForCausalLM if kind == "causal" else transformers.AutoModelForSeq2SeqLM
    return auto.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def causal(folder: Path, condition: str, target: str) -> float:
    """The mean log-probability of the target's tokens."""
    model, tokenizer = _loaded("causal", folder)
    given = tokenizer(condition)["input_ids"]
    target = tokenizer(target, add_special_tokens=False)["input_ids"]
    logprobs = torch.log_softmax(model(torch.tensor([[*given, *target]])).logits[0], dim=-1)
    return float(np.mean([logprobs[len(given) - 1 + i, token] for i, token in enumerate(target)]))


@torch.no_grad()
def seq2seq(folder: Path, condition: str, target: str) -> float:
    """The same, as the loss of transformers' own training."""
    model, tokenizer = _loaded("seq2seq", folder)
    given, labels = (torch.tensor([tokenizer(text)["input_ids"]]) for text in (condition, target))
    return -float(model(input_ids=given, labels=labels).loss)


def fluent_summary(text: str) -> str:
    instruction = "Write a summary of the text in fluent language, each sentence grammatical and easy to read."
    return f"{instruction}\n\nText:\n{text}\n\nSummary:\n"


def reworded(text: str) -> str:
    instruction = "Say what the text says in other words, in fluent and grammatical language."
    return f"{instruction}\n\nText:\n{text}\n\nIn other words:\n"


@pytest.mark.parametrize(
    ("kind", "model", "plain"),
    [("causal", "llama", causal), ("seq2seq", "bart", seq2seq), ("seq2seq", "t5", seq2seq)],
)
class TestValues:
    def test_of_source_to_output(self, tiny, kind, model, plain):
        metric = GptScore(model=str(tiny(model)), kind=kind, task="summarization", aspect="fluency")
        result = metric.score(Shard([record()]))[0]
        assert result.value == pytest.approx(plain(tiny(model), fluent_summary(SOURCE), OUTPUT), abs=1e-5)

    def test_of_both_ways_between_references_and_output(self, tiny, kind, model, plain):
        def of(direction: str, reduce: str) -> GptScore:
            folder = str(tiny(model))
            return GptScore(model=folder, kind=kind, aspect="fluency", direction=direction, reduce=reduce)

        precision = [plain(tiny(model), reworded(reference), OUTPUT) for reference in REFERENCES]
        recall = [plain(tiny(model), reworded(OUTPUT), reference) for reference in REFERENCES]
        f = [(p + r) / 2 for p, r in zip(precision, recall, strict=True)]
        for direction, target in [("reference->output", precision), ("output->reference", recall), ("f", f)]:
            for reduce, expected in [("native", np.mean(target)), ("mean", np.mean(target)), ("max", max(target))]:
                result = of(direction, reduce).score(Shard([record()]))[0]
                assert result.value == pytest.approx(expected, abs=1e-5), (direction, reduce)
        parts = of("f", "mean").score(Shard([record()]))[0].parts
        assert parts["precision"] == pytest.approx(np.mean(precision), abs=1e-5)
        assert parts["recall"] == pytest.approx(np.mean(recall), abs=1e-5)


@pytest.fixture
def tiny_score(tiny: Callable[[str], Path]) -> Callable[..., GptScore]:
    return lambda **settings: GptScore(model=str(tiny("llama")), **settings)


def test_an_instruction_of_the_users_stands_in_the_aspects_place(tiny, tiny_score):
    metric = tiny_score(task="dialogue", instruction="Be rude.")
    prompt = f"Be rude.\n\nConversation:\n{SOURCE}\n\nReply:\n"
    result = metric.score(Shard([record()]))[0]
    assert result.value == pytest.approx(causal(tiny("llama"), prompt, OUTPUT), abs=1e-5)


def test_an_instruction_with_a_place_for_the_text_is_the_whole_prompt(tiny, tiny_score):
    metric = tiny_score(instruction="For a child {or two}: {text} It says: ")
    result = metric.score(Shard([record(source="a {text} b")]))[0]
    prompt = "For a child {or two}: a {text} b It says: "
    assert result.value == pytest.approx(causal(tiny("llama"), prompt, OUTPUT), abs=1e-5)


def test_the_aspect_changes_the_number(tiny_score):
    values = {
        aspect: tiny_score(aspect=aspect).score(Shard([record()])).values[0]
        for aspect in _read_tables()["general"]["aspects"]
    }
    assert len({round(value, 4) for value in values.values()}) == len(values)


def test_every_task_can_be_asked_for_the_common_aspects_and_rewriting_for_all_of_them():
    aspects = {task: table["aspects"].keys() for task, table in _read_tables().items()}
    rewriting = aspects.pop("rewriting")
    assert set(aspects) == {"general", "summarization", "dialogue", "data2text", "translation"}
    for known in aspects.values():
        assert {"quality", "fluency", "coherence", "consistency"} <= known <= rewriting


def test_every_sentence_of_the_table_is_one_and_every_layout_has_its_places():
    for name, table in _read_tables().items():
        assert set(table) == {"about", "layout", "aspects"}, name
        assert table["layout"].count("{instruction}") == table["layout"].count("{text}") == 1
        assert table["layout"].endswith(":\n")
        sentences = list(table["aspects"].values())
        assert len(set(sentences)) == len(sentences)
        assert all(one.endswith(".") and "\n" not in one and "{" not in one for one in sentences)


def test_what_is_cut_is_counted_and_said(tiny_score):
    metric = tiny_score(max_tokens=200)
    long = " ".join(["river"] * 300)
    result = metric.score(Shard([record(source=long), record(), record(output=long)]))
    # The model takes 256 tokens, the condition 200; the prompt of 'quality' is more than a few of them.
    assert result.parts["cut_tokens"][0] > 100
    assert result.parts["cut_tokens"][1] == 0
    assert result.parts["cut_tokens"][2] >= 300 - 192
    assert "2 of 3 outputs had texts too long for the model" in metric.remarks(result)[0]


@pytest.mark.parametrize("long", ["max", "mean"])
def test_a_long_source_is_read_in_windows_each_in_the_prompt(tiny, tiny_score, long):
    metric = tiny_score(instruction="Sum up : {text} \n", long=long)
    source = " ".join(str(n) for n in range(100, 160))
    result = metric.score(Shard([record(source=source), record()]))
    model = load_causal(metric.options)
    room = len(model.pieces(model.windows(source)[0])) - len(model.pieces("Sum up : "))
    windows = model.windows(source, room)
    assert len(windows) > 1
    each = [causal(tiny("llama"), f"Sum up : {window} \n", OUTPUT) for window in windows]
    assert result.values[0] == pytest.approx(max(each) if long == "max" else np.mean(each), abs=1e-5)
    assert result.parts["windows"].tolist() == [len(windows), 1]
    assert result.parts["cut_tokens"].tolist() == [0, 0]
    assert "1 of 2 outputs had a condition read in several windows" in metric.remarks(result)[0]


def test_windows_leave_room_for_the_prompt_where_the_room_is_given(tiny_score):
    metric = tiny_score(instruction="Sum up : {text} \n", long="max", max_tokens=40)
    result = metric.score(Shard([record(source=" ".join(["river"] * 100))]))
    assert result.parts["windows"][0] > 2
    assert result.parts["cut_tokens"][0] == 0


def test_the_signature_names_the_weights_and_the_prompt(tiny_score):
    signature = tiny_score().signature
    assert " | weights " in signature
    prompts = {tiny_score(**one).facts()["prompt"] for one in ({}, {"aspect": "fluency"}, {"instruction": "Go."})}
    assert len(prompts) == 3


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        (
            "gptscore(task='dialogue', aspect='engagment')",
            "unknown_name",
            ("'dialogue'", "'engagment'", "'quality', 'fluency'", "did you mean 'engagement'", "instruction="),
        ),
        ("gptscore(direction='f', aspect='flow')", "unknown_name", ("'f'", "'flow'", "'quality', 'fluency'")),
        ("gptscore(task='sumarization')", "invalid_value", ("'general'", "did you mean 'summarization'")),
        ("gptscore(max_tokens=3)", "invalid_value", ("max_tokens", "4", "got 3")),
        ("perplexity(max_tokens=1)", "invalid_value", ("max_tokens", "4", "got 1")),
        ("gptscore(aspect='fluency', instruction='Go.')", "conflict", ("aspect='fluency'", "instruction")),
    ],
)
def test_what_cannot_be_asked_for_is_refused(text, code, values):
    with raises_code(SpecError, code, *values):
        build(text)


def test_an_aspect_that_only_another_task_has_is_refused(tiny_score):
    with raises_code(SpecError, "unknown_name", "'translation'", "'engagement'"):
        tiny_score(task="translation", aspect="engagement")
    assert (
        tiny_score(task="translation", aspect="engagement", direction="f").prompt(Roles("reference", "output")).before
    )


def test_a_model_of_the_other_kind_is_refused(tiny):
    metric = GptScore(model=str(tiny("bart")))
    with raises_code(ModelError, "model_unusable", "sequence"):
        metric.score(Shard([record()]))
