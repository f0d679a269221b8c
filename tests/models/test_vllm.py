"""vLLM in this process, against a stand-in that has what vLLM's documentation says: `LLM(...)`, `LLM.chat(messages,
sampling_params, use_tqdm=…)`, `LLM.generate(prompts, …)` likewise, `LLM.get_tokenizer()`, `SamplingParams`, and in
`vllm.sampling_params` the class for schemas, whose name depends on the version."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from error_codes import raises_code
from metrist.compat import TIGERScorer
from metrist.errors import ModelError
from metrist.llm import gateway
from metrist.llm.base import build_llm
from metrist.llm.messages import Message, Sampling, TokenChoice
from metrist.metrics.base import Shard
from metrist.metrics.errors.tigerscore import build_prompt
from metrist.metrics.registry import build as build_metric
from metrist.models import local_llm as local
from metrist.records import Record
from scripted_llm import DeliverTo, say

PARAMETERS = {"temperature", "top_p", "max_tokens", "seed", "stop", "logprobs", "structured_outputs", "guided_decoding"}


class SamplingParams:
    def __init__(self, **given: Any) -> None:
        assert set(given) <= PARAMETERS
        self.given = given


class ForSchemas:
    def __init__(self, *, json: dict[str, Any]) -> None:
        self.json = json


class Engine:
    """Says the last message's words, each a token, as long as it is not too long."""

    made: list[dict[str, Any]]
    room = 100
    calls: list[tuple[list[Any], SamplingParams]]
    prompts: list[list[str]]

    def __init__(self, **given: Any) -> None:
        if given["model"].endswith("broken"):
            raise RuntimeError("\nno CUDA device\nmore lines")
        self.made.append(given)

    def chat(self, messages: list[list[dict[str, str]]], sampling_params: SamplingParams, use_tqdm: bool) -> list[Any]:
        assert use_tqdm is False
        self.calls.append((messages, sampling_params))
        if any(len(one[-1]["content"]) > 100 for one in messages):
            raise ValueError("The decoder prompt (length 999) is longer than the maximum model length\nmore")
        return [self._output(one[-1]["content"], sampling_params.given) for one in messages]

    def generate(self, prompts: list[str], sampling_params: SamplingParams, use_tqdm: bool) -> list[Any]:
        assert use_tqdm is False
        self.prompts.append(prompts)
        if any(len(one) > self.room for one in prompts):
            raise ValueError("The decoder prompt (length 999) is longer than the maximum model length\nmore")
        return [self._output(one, sampling_params.given) for one in prompts]

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(all_special_tokens=["<s>", "</s>"])

    def _output(self, text: str, given: dict[str, Any]) -> Any:
        words = text.split()[: given["max_tokens"]]
        weighed = [
            {n: SimpleNamespace(logprob=-0.5, rank=1, decoded_token=word), 99: _other(given["logprobs"])}
            for n, word in enumerate(words)
        ]
        answer = SimpleNamespace(
            text=" ".join(words),
            token_ids=list(range(len(words))),
            logprobs=weighed if given["logprobs"] else None,
            finish_reason="length" if len(words) < len(text.split()) else "stop",
        )
        return SimpleNamespace(outputs=[answer], prompt_token_ids=[1, 2, 3])


def _other(_: Any) -> Any:
    return SimpleNamespace(logprob=-0.25, rank=2, decoded_token="other")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    module: Any = ModuleType("vllm")
    params: Any = ModuleType("vllm.sampling_params")
    made = type("LLM", (Engine,), {"made": [], "calls": [], "prompts": []})
    module.LLM, module.SamplingParams, module.__version__ = made, SamplingParams, "0.11.0"
    params.StructuredOutputsParams = ForSchemas
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    local._load_engine.cache_clear()
    return made


@pytest.fixture
def folder(tiny: Any) -> Path:
    return tiny("llama")


def test_its_text_reads_back():
    llm = local.VLLM(model="org/name", dtype="bfloat16", max_model_len=4096)
    assert str(llm) == "vllm(model='org/name', dtype='bfloat16', max_model_len=4096)"
    assert build_llm(str(llm)) == llm


def test_conversations_go_in_together_and_answers_come_out_in_order(engine, folder):
    llm = local.VLLM(model=str(folder))
    talk = [[Message("system", "be kind"), Message("user", "one two three")], *say("four")]
    answers = gateway.complete(llm, talk, Sampling(max_tokens=2, stop=("x",)))
    assert [(one.text, one.finish) for one in answers] == [("one two", "length"), ("four", "stop")]
    assert (answers[0].usage.prompt_tokens, answers[0].usage.completion_tokens, answers[0].usage.cost) == (3, 2, 0)
    ((messages, params),) = engine.calls
    assert messages[0] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "one two three"}]
    assert params.given["temperature"] == 0
    assert (params.given["stop"], params.given["seed"], params.given["logprobs"]) == (["x"], 0, None)
    assert engine.made == [{"model": str(folder), "dtype": "auto", "trust_remote_code": False, "seed": 0}]


def test_without_turns_the_words_go_in_as_they_are(engine, folder):
    llm = local.VLLM(model=str(folder), turns="none")
    assert build_llm(str(llm)) == llm
    talk = [[Message("system", "be kind"), Message("user", "one two")], *say("three")]
    answers = gateway.complete(llm, talk, Sampling(max_tokens=3, logprobs=1))
    assert engine.prompts == [["be kind\n\none two", "three"]]
    assert engine.calls == []
    assert [(one.text, one.finish) for one in answers] == [("be kind one", "length"), ("three", "stop")]
    assert (answers[0].usage.prompt_tokens, answers[0].usage.completion_tokens, answers[0].usage.cost) == (3, 3, 0)
    assert answers[1].tokens == (TokenChoice("three", -0.5, (("other", -0.25), ("three", -0.5))),)


def test_without_turns_a_question_is_another_one_but_the_model_the_same(engine, folder):
    raw, chat = local.VLLM(model=str(folder), turns="none"), local.VLLM(model=str(folder))
    for llm in (raw, chat, raw, chat):
        gateway.complete(llm, say("one"), Sampling())
    assert (len(engine.prompts), len(engine.calls), len(engine.made)) == (1, 1, 1)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("turns", ["chat", "none"])
def test_marks_of_turns_in_a_text_are_broken_up(folder, turns):
    (answer,) = gateway.complete(local.VLLM(model=str(folder), turns=turns), say("good</s><s>bad"), Sampling())
    assert answer.text == "good< /s>< s>bad"


def test_a_published_checkpoint_of_tigerscore_gets_its_prompt_bare(engine, folder, monkeypatch):
    monkeypatch.setattr(engine, "_output", _no_errors)
    monkeypatch.setattr(engine, "room", 10_000)
    (result,) = TIGERScorer(str(folder), use_vllm=True).score(["Write."], ["Fine."], ["A text."])
    assert (result["num_errors"], result["score"]) == (0, 0.0)
    assert engine.prompts == [[build_prompt("Write.", "A text.", "Fine.")]]
    metric = build_metric(f"tigerscore(llm=vllm(model={str(folder)!r}, turns='none'))")
    record = Record(item="1", system="s", output="Fine.", source="A text.", instruction="Write it.")
    assert metric.score(Shard([record])).values.tolist() == [0.0]
    assert engine.prompts[1] == [build_prompt("Write it.", "A text.", "Fine.")]


def _no_errors(_engine: Engine, _text: str, _given: dict[str, Any]) -> Any:
    texts = "The model-generated output contains 0 errors, with a total score reduction of 0."
    answer = SimpleNamespace(text=texts, token_ids=[1], logprobs=None, finish_reason="stop")
    return SimpleNamespace(outputs=[answer], prompt_token_ids=[1, 2, 3])


def test_the_model_is_loaded_once_and_repeated_draws_have_seeds_of_their_own(engine, folder):
    llm = local.VLLM(model=str(folder))
    for sample in range(3):
        gateway.complete(llm, say("a"), Sampling(temperature=1.0, seed=7, sample=sample))
    assert [params.given["seed"] for _, params in engine.calls] == [7, 8, 9]
    assert len(engine.made) == 1


@pytest.mark.parametrize(
    ("name", "argument"),
    [("StructuredOutputsParams", "structured_outputs"), ("GuidedDecodingParams", "guided_decoding"), (None, None)],
)
def test_a_schema_is_given_as_the_version_takes_it(engine, folder, monkeypatch, name, argument):
    module = ModuleType("vllm.sampling_params")
    if name:
        setattr(module, name, ForSchemas)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", module)
    schema = {"type": "object"}
    (answer,) = gateway.complete(local.VLLM(model=str(folder)), say("{}"), Sampling(schema=schema))
    assert answer.structured is (name is not None)
    given = engine.calls[0][1].given
    assert {key for key in given if key in ("structured_outputs", "guided_decoding")} == (
        {argument} if argument else set()
    )
    if argument:
        assert given[argument].json == schema


@pytest.mark.parametrize("turns", ["chat", "none"])
def test_a_conversation_that_is_too_long_fails_alone(engine, folder, turns):
    answers = gateway.complete(local.VLLM(model=str(folder), turns=turns), say("a", "b" * 200, "c"), Sampling())
    assert [answer.text for answer in answers] == ["a", "", "c"]
    assert (answers[1].failure or "").startswith(
        "vLLM refused the conversation: The decoder prompt (length 999) is longer"
    )
    assert len(engine.calls if turns == "chat" else engine.prompts) == 4


def test_many_conversations_are_handed_over_in_parts_and_kept_in_between(engine, folder):
    arrived = []
    llm = local.VLLM(model=str(folder))
    call = DeliverTo(lambda n, answer: arrived.append((n, answer.text)))
    llm.complete_batch(say(*(f"w{n}" for n in range(300))), Sampling(), call)
    assert arrived == [(n, f"w{n}") for n in range(300)]
    assert [len(messages) for messages, _ in engine.calls] == [256, 44]


@pytest.mark.usefixtures("engine")
def test_facts_name_the_weights_and_the_version(folder):
    facts = local.VLLM(model=str(folder)).facts()
    assert facts["vllm"] == "0.11.0"
    assert len(facts["weights"]) == 12


def test_all_cards_are_used_where_the_device_says_so(engine, folder, monkeypatch):
    import torch

    monkeypatch.setenv("METRIST_DEVICE", "map")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    gateway.complete(local.VLLM(model=str(folder)), say("a"), Sampling())
    assert engine.made[0]["tensor_parallel_size"] == 4


def test_a_model_that_vllm_cannot_load_is_told_in_a_line(engine):
    with raises_code(ModelError, "model_unusable", "some/broken", "no CUDA device"):
        local.VLLM(model="some/broken").complete(say("a"), Sampling())
    assert engine.made == []


def test_without_vllm_it_says_what_to_do(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"vllm is not installed .*pip install vllm, .*op"):
        gateway.complete(local.VLLM(model=str(folder)), say("a"), Sampling())
