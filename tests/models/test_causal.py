"""Causal likelihood. Expected values come from transformers itself, one text at a time without batches, caches or any
of metrist's ways to compute less: `Plain`."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import real_models
import tiny_models
from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models import causal, devices, loading
from metrist.models.causal import Causal
from metrist.models.devices import Options

SIZE = tiny_models._SIZE
WIDE = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_TYPE = {**WIDE, "intermediate_size": 48, "max_position_embeddings": 96, "initializer_range": 0.3}


def _create(kind: str) -> Any:
    match kind:
        case "gpt_neox":
            return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**LLAMA_TYPE))
        case "mistral":
            config = transformers.MistralConfig(**LLAMA_TYPE, num_key_value_heads=2, sliding_window=5)
            return transformers.MistralForCausalLM(config)
        case "opt":
            config = transformers.OPTConfig(**WIDE, ffn_dim=48, max_position_embeddings=96, init_std=0.3)
            return transformers.OPTForCausalLM(config)
        case "bloom":  # Positions are not embedded but weigh on attention, counted from the mask.
            config = transformers.BloomConfig(
                vocab_size=SIZE, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3
            )
            return transformers.BloomForCausalLM(config)
        case "gemma2":  # Its logits are bent after the head.
            config = transformers.Gemma2Config(
                **LLAMA_TYPE, num_key_value_heads=2, head_dim=8, sliding_window=5, final_logit_softcapping=4.0
            )
            return transformers.Gemma2ForCausalLM(config)
        case "mamba":  # No keys and values: what it keeps of a beginning cannot be shared.
            config = transformers.MambaConfig(vocab_size=SIZE, hidden_size=32, num_hidden_layers=2, state_size=4)
            return transformers.MambaForCausalLM(config)
    raise KeyError(kind)


ON_THE_SPOT = ["gpt_neox", "mistral", "opt", "bloom", "gemma2", "mamba"]


@pytest.fixture(scope="module")
def folder(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    created: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in ON_THE_SPOT:
            return tiny(kind)
        if kind not in created:
            created[kind] = tmp_path_factory.mktemp(kind)
            with torch.random.fork_rng():
                torch.manual_seed(11)
                _create(kind).eval().save_pretrained(created[kind])
            tiny_models._tokenizer(begins=kind in ("opt", "mistral"), ends=False).save_pretrained(created[kind])
        return created[kind]

    return get


def loaded(folder: Path) -> Causal:
    return Causal.load(Options(model=str(folder)))


@cache
def loaded_once(folder: Path) -> Causal:
    return loaded(folder)


class Plain:
    """What transformers says of one pair of texts."""

    def __init__(self, folder: Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def __call__(self, condition: str, target: str) -> np.ndarray:
        context_ids = self.tokenizer(condition)["input_ids"] or [self.tokenizer.bos_token_id]
        return self.of_ids(context_ids, self.tokenizer(target, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def of_ids(self, context_ids: list[int], expected: list[int]) -> np.ndarray:
        logprobs = torch.log_softmax(self.model(torch.tensor([[*context_ids, *expected]])).logits[0], dim=-1)
        return np.array(
            [logprobs[len(context_ids) - 1 + i, token].item() for i, token in enumerate(expected)], np.float32
        )


CONDITIONS = [
    "the small cat sat on the mat .",
    "paris",
    "the president said that the report was not very good , and people ran to the river",
    "a new day",
]
TARGETS = ["the cat sat", "it was a summary of the news in two words !", "good", "xyzzy 42 - bad", "the cat sat"]
PAIRS = [(c, t) for c in CONDITIONS[:3] for t in TARGETS] + [(CONDITIONS[3], TARGETS[1]), ("", TARGETS[1]), ("", "dog")]


def close(result: np.ndarray, expected: np.ndarray) -> bool:
    return len(result) == len(expected) and float(np.abs(result - expected).max(initial=0)) < 1e-5


@pytest.mark.parametrize("kind", ["gpt2", "llama", *ON_THE_SPOT])
def test_every_token_has_the_log_probability_that_transformers_gives_it_alone(folder, kind):
    model, plain = loaded_once(folder(kind)), Plain(folder(kind))
    result = model.log_probs(PAIRS)
    assert len(result) == len(PAIRS)
    for n, (condition, target) in enumerate(PAIRS):
        assert close(result.of(n), plain(condition, target)), (condition, target)
    assert not result.failures
    assert not result.condition_cut.any()
    assert not result.target_cut.any()


@pytest.mark.parametrize(
    ("kind", "shares", "has_plain_head"),
    [("gpt2", True, True), ("mistral", True, True), ("gemma2", True, False), ("mamba", False, True)],
)
def test_abilities_are_probed(folder, kind, shares, has_plain_head):
    passes = loaded_once(folder(kind))._schedule.passes
    assert (passes.shares, passes.head is not None) == (shares, has_plain_head)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens, pads included, go through the model in each pass."""
    passes: list[int] = []
    padded = causal.Passes._pad

    def counting(self: Any, sequences: Any) -> torch.Tensor:
        tensor = padded(self, sequences)
        passes.append(tensor.numel())
        return tensor

    monkeypatch.setattr(causal.Passes, "_pad", counting)
    return passes


def test_a_condition_is_read_once_for_all_its_targets(folder, counted):
    model = loaded(folder("llama"))
    condition, targets = " ".join(["river"] * 100), [f"{word} cat" for word in ("the", "a", "old", "new")]
    counted.clear()
    model.log_probs([(condition, target) for target in [*targets, *targets]])
    # The condition has 101 tokens with its <s>; the last one is read with each target's first.
    assert counted == [100, 4 * 2]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_values_depend_neither_on_the_budget_nor_on_order_nor_on_mates(folder, kind, monkeypatch):
    model = loaded_once(folder(kind))
    together = model.log_probs(PAIRS)
    order = random.Random(1).sample(range(len(PAIRS)), len(PAIRS))
    shuffled = model.log_probs([PAIRS[i] for i in order])
    monkeypatch.setenv("METRIST_BATCH_TOKENS", "7")
    little = loaded(folder(kind)).log_probs(PAIRS)
    for n, i in enumerate(order):
        assert close(shuffled.of(n), together.of(i))
        assert close(little.of(i), together.of(i))
        assert close(model.log_probs([PAIRS[i]]).of(0), together.of(i))


def test_condition_and_target_are_joined_as_ids_so_that_no_merge_crosses_the_border(folder):
    """'ca' and 't' would be the one token 'cat' if they were tokenised together."""
    model, plain = loaded_once(folder("gpt2")), Plain(folder("gpt2"))
    together = plain.tokenizer("the cat")["input_ids"]
    result = model.log_probs([("the ca", "t")])
    context_ids, expected = (plain.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the ca", "t"))
    assert [*context_ids, *expected] != together
    assert close(result.of(0), plain.of_ids(context_ids, expected))
    assert result.tokens.tolist() == expected


def test_an_empty_condition_is_the_token_that_begins_a_text(folder):
    gpt2, llama = Plain(folder("gpt2")), Plain(folder("llama"))
    expected = gpt2.tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert close(loaded_once(folder("gpt2")).log_probs([("", "the cat")]).of(0), gpt2.of_ids([0], expected))
    assert close(loaded_once(folder("llama")).log_probs([("", "the cat")]).of(0), llama.of_ids([0], expected))


@pytest.mark.parametrize(("known", "first"), [({"eos_token": "</s>"}, [2]), ({}, [])])
def test_without_a_token_to_begin_with_the_end_token_is_taken_or_the_first_token_left_out(
    folder, tmp_path, known, first
):
    model = transformers.GPT2LMHeadModel.from_pretrained(folder("gpt2"))
    model.config.bos_token_id = model.config.eos_token_id = None
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    created = tiny_models._tokenizer(begins=False, ends=False, pad=False)
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=created.backend_tokenizer, unk_token="<unk>", **known)
    bare.save_pretrained(tmp_path)
    result = loaded(tmp_path).log_probs([("", "the cat sat"), ("", "cat"), ("the", "cat sat")])
    expected = bare("the cat sat")["input_ids"]
    plain = Plain(tmp_path)
    if first:
        assert close(result.of(0), plain.of_ids(first, expected))
        assert not result.failures
    else:
        assert close(result.of(0), plain.of_ids(expected[:1], expected[1:]))
        assert result.tokens[:2].tolist() == expected[1:]
        reason = "the text to score is one token, and the model has no token that begins a text"
        assert result.failures == {1: reason}
    assert close(result.of(2), plain.of_ids(expected[:1], expected[1:]))


def test_an_end_token_that_the_tokenizer_adds_is_put_nowhere(folder, tmp_path):
    transformers.GPT2LMHeadModel.from_pretrained(folder("gpt2")).save_pretrained(tmp_path)
    tiny_models._tokenizer(begins=True, ends=True).save_pretrained(tmp_path)
    result, plain = loaded(tmp_path).log_probs([("the cat", "sat")]), Plain(tmp_path)
    context_ids, expected = (
        plain.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the cat", "sat")
    )
    assert close(result.of(0), plain.of_ids([0, *context_ids], expected))


def test_a_target_without_tokens_fails_and_its_neighbours_do_not(folder):
    result = loaded_once(folder("gpt2")).log_probs([("the cat", ""), ("the cat", "sat"), ("", "")])
    assert result.failures == dict.fromkeys([0, 2], "the text to score has no tokens")
    assert result.starts.tolist() == [0, 0, 1, 1]


def test_a_text_that_is_no_unicode_is_scored_all_the_same(folder):
    result = loaded_once(folder("gpt2")).log_probs([("the \ud800 cat", "sat \udfff")])
    assert len(result.of(0)) == 2


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_condition_that_is_too_long_loses_its_middle_and_the_loss_is_counted(folder, kind):
    model, plain = loaded_once(folder(kind)), Plain(folder(kind))
    context = {"gpt2": 128, "llama": 256}[kind]
    words = random.Random(2).choices(tiny_models.WORDS, k=1000)
    target = "the cat sat on the old mat"
    begun, body = (
        ([0] if kind == "llama" else []),
        plain.tokenizer(" ".join(words), add_special_tokens=False)["input_ids"],
    )
    expected = plain.tokenizer(target, add_special_tokens=False)["input_ids"]
    # The target's 7 tokens round up to one sixteenth of the context.
    room = context - context // 16 - len(begun)
    result = model.log_probs([(" ".join(words), target)])
    assert result.condition_cut.tolist() == [len(body) - room]
    context_ids = [*begun, *body[: room // 2], *body[len(body) - (room - room // 2) :]]
    assert close(result.of(0), plain.of_ids(context_ids, expected))


def test_an_output_of_20_000_tokens_keeps_three_quarters_of_the_context(folder):
    model, plain = loaded_once(folder("gpt2")), Plain(folder("gpt2"))
    long = " ".join(["cat", "sat", "the", "mat"] * 5_000)
    result = model.log_probs([("the dog ran", long), (long, "the dog ran"), ("a", "b")])
    context_ids, expected = (plain.tokenizer(text)["input_ids"] for text in ("the dog ran", "cat sat the mat"))
    assert result.target_cut.tolist() == [20_000 - 96, 0, 0]
    assert result.condition_cut.tolist() == [0, 20_000 - 120, 0]
    assert close(result.of(0), plain.of_ids(context_ids, expected * 24))
    assert len(model.pieces(long)) == 96
    assert not result.failures


def test_max_tokens_cuts_both_texts(folder):
    model, plain = loaded_once(folder("llama")), Plain(folder("llama"))
    result = model.log_probs([("the small old cat ran", "it was not very good")], max_tokens=3)
    ids = plain.tokenizer("the ran", add_special_tokens=False)["input_ids"]
    expected = plain.tokenizer("it was not", add_special_tokens=False)["input_ids"]
    assert close(result.of(0), plain.of_ids([0, *ids], expected))
    assert (result.condition_cut.tolist(), result.target_cut.tolist()) == ([3], [2])
    assert model.pieces("it was not very good", 3) == ["it", "was", "not"]
    only_begun = model.log_probs([("the small old cat ran", "it was")], max_tokens=1)
    assert close(only_begun.of(0), plain.of_ids([0], expected[:1]))


def test_conditions_that_are_cut_alike_are_still_read_once(folder, counted):
    model = loaded_once(folder("gpt2"))
    long = " ".join(random.Random(3).choices(tiny_models.WORDS, k=500))
    counted.clear()
    model.log_probs([(long, "the cat"), (long, "the old cat sat"), (long, "good")])
    assert counted == [119, 3 * 4]


def test_conditions_of_different_lengths_are_shared_up_to_the_end_of_the_context(folder):
    model, plain = loaded_once(folder("gpt2")), Plain(folder("gpt2"))
    long, short = " ".join(["cat"] * 110), " ".join(["dog"] * 40)
    pairs = [(long, "the cat"), (long, "dog ran"), (short, " ".join(["cat"] * 60)), (short, "dog")]
    result = model.log_probs(pairs)
    assert all(close(result.of(n), plain(*pair)) for n, pair in enumerate(pairs))


def test_pieces_put_together_are_the_target(folder):
    model = loaded_once(folder("llama"))
    pieces = model.pieces("the cat xyz")
    result = model.log_probs([("a", "the cat xyz")])
    assert len(pieces) == len(result.of(0))
    assert pieces[:2] == ["the", "cat"]
    assert model.spelled(result.tokens.tolist()) == pieces


def test_windows_fit_into_half_of_the_context_and_cover_the_text(folder):
    model, plain = loaded_once(folder("gpt2")), Plain(folder("gpt2"))
    words = [f"{n}" for n in range(1000, 1200)]
    windows = model.windows(" ".join(words))
    assert all(len(plain.tokenizer(window)["input_ids"]) <= 64 for window in windows)
    assert {word for window in windows for word in window.split()} == set(words)
    assert model.windows("the cat") == ["the cat"]
    assert all(len(plain.tokenizer(window)["input_ids"]) <= 20 for window in model.windows(" ".join(words), 20))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_a_text_longer_than_the_context_runs_through_windows_with_half_a_window_before_them(folder, kind):
    model, plain = loaded_once(folder(kind)), Plain(folder(kind))
    words = random.Random(4).choices(tiny_models.WORDS, k=700)
    body = plain.tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
    size = plain.model.config.max_position_embeddings
    begins = [0]
    always = [] if kind == "gpt2" else [0]
    inner = size - 1
    expected = [plain.of_ids(begins, body[:inner])]
    at = inner
    while at < len(body):
        expected.append(plain.of_ids([*always, *body[at - inner // 2 : at]], body[at : at + inner - inner // 2]))
        at += inner - inner // 2
    result = model.running([" ".join(words), "the cat", ""])
    assert close(result.of(0), np.concatenate(expected))
    assert result.tokens[: len(body)].tolist() == body
    assert model.in_windows(" ".join(words)) == len(expected)
    assert close(result.of(1), plain("", "the cat"))
    assert model.in_windows("the cat") == 1
    assert result.failures == {2: "the text to score has no tokens"}
    assert not result.target_cut.any()


class SmallDevice:
    """A device on which a pass of more tokens than it has room for runs out of memory, as torch says it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.faults = 0
        padded = causal.Passes._pad

        def full(passes: Any, sequences: Any) -> torch.Tensor:
            tensor = padded(passes, sequences)
            if tensor.numel() > room:
                self.faults += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return tensor

        monkeypatch.setattr(causal.Passes, "_pad", full)


def test_when_memory_runs_out_smaller_batches_give_the_same_values(folder, monkeypatch):
    pairs = [*PAIRS, (" ".join(["cat"] * 60), "dog"), (" ".join(["cat"] * 60), "dog ran")]
    expected = loaded(folder("gpt2")).log_probs(pairs)
    model = loaded(folder("gpt2"))
    device = SmallDevice(monkeypatch, room=70)
    result = model.log_probs(pairs)
    assert device.faults > 0
    assert not result.failures
    assert all(close(result.of(n), expected.of(n)) for n in range(len(pairs)))
    before = device.faults
    model.log_probs(pairs)
    assert device.faults == before  # What did not fit once is not tried again.


def test_a_pair_that_does_not_fit_even_alone_fails_and_the_others_do_not(folder, monkeypatch):
    model = loaded(folder("gpt2"))
    long = " ".join(["cat"] * 60)
    SmallDevice(monkeypatch, room=30)
    result = model.log_probs([("the", "cat"), (long, "dog"), (long, "dog ran"), ("dog", long)])
    assert sorted(result.failures) == [1, 2, 3]
    assert "does not fit into the device's memory even alone" in result.failures[1]
    assert len(result.of(0)) == 1


def test_models_of_other_kinds_are_refused(tiny, tmp_path):
    with raises_code(ModelError, "model_unusable", "sequence"):
        loaded(tiny("bart"))
    transformers.BertLMHeadModel(transformers.BertConfig(**LLAMA_TYPE)).save_pretrained(tmp_path)
    tiny_models._tokenizer(begins=True, ends=True).save_pretrained(tmp_path)
    with raises_code(ModelError, "model_unusable", "(bert)", "later tokens"):
        loaded(tmp_path)


def test_a_model_without_its_head_is_refused_instead_of_scoring_at_random(tiny, tmp_path):
    transformers.AutoModelForCausalLM.from_pretrained(tiny("llama")).model.save_pretrained(tmp_path)
    tiny_models._tokenizer(begins=True, ends=False).save_pretrained(tmp_path)
    with raises_code(ModelError, "model_unusable", "1", "lm_head.weight"):
        loaded(tmp_path)


@pytest.mark.usefixtures("onednn_kept")
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # On CPUs without bfloat16.
def test_a_bfloat16_model_still_shares_beginnings(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder("llama")).bfloat16().eval()
    place = devices.Placement(device=torch.device("cpu"), dtype=torch.bfloat16, tokens=100)
    passes = causal.probe_passes(model, place)
    assert passes.shares
    assert passes.head


def test_a_model_that_is_spread_over_devices_gives_the_same(folder, monkeypatch):
    expected = loaded_once(folder("llama")).log_probs(PAIRS)
    monkeypatch.setenv("METRIST_DEVICE", "map")
    result = loaded(folder("llama")).log_probs(PAIRS)
    assert all(close(result.of(n), expected.of(n)) for n in range(len(PAIRS)))


def test_cached_log_probabilities_are_not_computed_again(folder, monkeypatch, tmp_path, counted):
    options = Options(model=str(folder("llama")))
    monkeypatch.setenv("METRIST_CACHE", str(tmp_path))
    expected = loading.load_causal(options).log_probs(PAIRS)
    counted.clear()
    result = loading.load_causal(options).log_probs(PAIRS)
    assert counted == []
    assert result.logprobs.tolist() == expected.logprobs.tolist()


def test_cached_texts_are_not_computed_again_but_other_window_sizes_are(folder, monkeypatch, tmp_path, counted):
    options = Options(model=str(folder("llama")))
    texts = ["the cat sat", "a dog ran " * 40, "the cat sat"]
    plain = [loading.load_reader(options).running(texts, size) for size in (None, 16)]
    monkeypatch.setenv("METRIST_CACHE", str(tmp_path))
    stored = [loading.load_reader(options).running(texts, size) for size in (None, 16)]
    counted.clear()
    again = [loading.load_reader(options).running(texts, size) for size in (None, 16)]
    assert counted == []
    for computed, first, result in zip(plain, stored, again, strict=True):
        assert (
            first.logprobs.tolist() == result.logprobs.tolist() == pytest.approx(computed.logprobs.tolist(), abs=1e-5)
        )
        assert result.starts.tolist() == computed.starts.tolist()
    assert not np.array_equal(again[0].logprobs, again[1].logprobs)


def test_facts_name_weights_and_dtype(folder):
    facts = loaded_once(folder("gpt2")).facts
    assert facts["dtype"] == "float32"
    assert facts["weights"] != loaded_once(folder("llama")).facts["weights"]


@pytest.mark.torture  # Downloads and converts the model: half a minute.
def test_a_real_model_gives_what_transformers_gives():
    """SmolLM2-135M-Instruct. Its logits reach 30 after 30 layers: transformers in fp32 is itself up to 1.5e-5 away from
    transformers in fp64 there (and metrist 1.7e-5, on five pairs), so that 1e-5 cannot be asked of the two."""
    smollm2 = real_models.smollm2()
    model, plain = loaded(smollm2), Plain(smollm2)
    pairs = [("The capital of France is", " Paris."), ("The capital of France is", " a banana."), ("", "Good morning.")]
    result = model.log_probs(pairs)
    for n, (condition, target) in enumerate(pairs):
        context_ids = plain.tokenizer(condition or plain.tokenizer.bos_token)["input_ids"]
        expected = plain.of_ids(context_ids, plain.tokenizer(target)["input_ids"])
        assert result.of(n) == pytest.approx(expected, abs=4e-5)
    assert result.of(0).mean() > result.of(1).mean() + 1
