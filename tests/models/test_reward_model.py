"""Reward models of all kinds, against transformers called by hand, one row at a time."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BartModel, T5EncoderModel

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models.devices import Options
from metrist.models.loading import load_reward
from metrist.models.reward_layout import RewardInput, RewardLayout, build_rows, token_encoder
from metrist.models.reward_model import RewardModel, TorchReward
from metrist.models.weights import find_weights
from tiny_models import WORDS

Tiny = Callable[[str], Path]
Untrained = Callable[..., TorchReward]

KINDS = ["bert", "mpnet", "roberta", "t5", "bart", "gpt2", "llama"]


def questions(count: int = 24) -> list[RewardInput]:
    rng = random.Random(3)

    def some(most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))

    return [RewardInput("is it good ?", (("source", some(60)), ("answer", some(9)))) for _ in range(count)]


@pytest.fixture(scope="module")
def untrained(tiny: Tiny) -> Callable[[str], TorchReward]:
    models: dict[str, TorchReward] = {}

    def of(kind: str, pooling: str = "auto") -> TorchReward:
        key = f"{kind} {pooling}"
        if key not in models:
            models[key] = TorchReward.untrained(
                Options(model=str(tiny(kind))), RewardLayout(max_length=50), pooling, seed=4
            )
        return models[key]

    return of


@cache
def by_transformers(kind: str, folder: Path) -> Any:
    return {"bart": BartModel, "t5": T5EncoderModel}.get(kind, AutoModel).from_pretrained(folder).eval()


def vectors(kind: str, pooling: str, folder: Path, ids: list[int]) -> torch.Tensor:
    """All vectors of one row by plain transformers, without padding."""
    model = by_transformers(kind, folder)
    if kind == "bart" and pooling != "last":
        model = model.encoder
    return model(input_ids=torch.tensor([ids])).last_hidden_state[0]


CASES = [
    (kind, pooling)
    for kind in KINDS
    for pooling in ("answer", "mean", "first", "last")
    if (kind, pooling) != ("t5", "last")
]


@pytest.mark.parametrize(("kind", "pooling"), CASES)
def test_a_reward_is_the_head_s_product_with_the_pooled_vector_of_transformers(
    tiny: Tiny, untrained: Untrained, kind: str, pooling: str
) -> None:
    """BART's decoder reads the row once more: transformers shifts it right where it is given no other."""
    reward, inputs = untrained(kind, pooling), questions(3)
    tokenizer = AutoTokenizer.from_pretrained(tiny(kind))
    encode, frame = token_encoder(tokenizer), reward.settings.frame
    rows = build_rows(encode, frame, reward.settings.layout, inputs).ids
    result = reward.rewards(inputs).values
    for number, row in enumerate(rows):
        with torch.no_grad():
            states = vectors(kind, pooling, tiny(kind), row.tolist())
        # The answer stands last, before what ends the row, which is pooled with it.
        own = len(encode([inputs[number].fields[-1][1]])[0]) + len(frame.suffix)
        pooled = {"answer": states[-own:].mean(0), "mean": states.mean(0), "first": states[0], "last": states[-1]}
        assert result[number] == pytest.approx(float(pooled[pooling] @ reward.model.head.weight[0]), abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        *((kind, "answer") for kind in ("bert", "mpnet", "roberta", "t5")),
        *((kind, "last") for kind in ("bart", "marian", "gpt2", "llama")),
    ],
)
def test_auto_pools_as_suits_the_model(untrained: Untrained, kind: str, pooling: str) -> None:
    assert untrained(kind).settings.pooling == pooling


@pytest.mark.parametrize(
    ("kind", "pooling"), [*((kind, "auto") for kind in KINDS), ("bert", "mean"), ("gpt2", "answer")]
)
def test_a_reward_is_the_same_in_any_batch_and_order(untrained: Untrained, kind: str, pooling: str) -> None:
    reward, inputs = untrained(kind, pooling), questions()
    together = reward.rewards(inputs)
    assert np.ptp(together.values) > 0.01
    assert np.abs(reward.rewards(inputs[::-1]).values[::-1] - together.values).max() < 1e-5
    assert np.abs(reward.rewards(inputs + inputs).values - np.tile(together.values, 2)).max() < 1e-5
    for number in (0, 7):
        alone = reward.rewards([inputs[number]])
        assert alone.values[0] == pytest.approx(together.values[number], abs=1e-5)
        assert alone.cut[0] == together.cut[number]
    assert (together.cut > 0).any()
    assert (together.cut == 0).any()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_an_answer_without_text_has_a_reward(untrained: Untrained, kind: str) -> None:
    """That of the token it ends with: here the vector of the last one, as nothing follows it."""
    empty = [RewardInput("is it good ?", (("source", "the cat sat"), ("answer", "")))]
    beside = [*questions(3), *empty]
    mean, last = untrained(kind, "answer"), untrained(kind, "last")
    assert mean.rewards(empty).values == pytest.approx(last.rewards(empty).values, abs=1e-6)
    assert mean.rewards(beside).values[-1] == pytest.approx(mean.rewards(empty).values[0], abs=1e-5)


def test_the_tokenizer_s_side_of_padding_changes_nothing(tiny: Tiny, untrained: Untrained, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny("llama"), tmp_path / "left"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": "left"}))
    left = TorchReward.untrained(Options(model=str(folder)), RewardLayout(max_length=50), seed=4)
    inputs = questions()
    assert np.array_equal(left.rewards(inputs).values, untrained("llama").rewards(inputs).values)


def test_the_first_head_follows_from_the_seed(tiny: Tiny) -> None:
    rewards = [TorchReward.untrained(Options(model=str(tiny("bert"))), RewardLayout(), seed=seed) for seed in (1, 1, 2)]
    first, again, other = (reward.model.head.weight for reward in rewards)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert float(first.std()) == pytest.approx(0.02, rel=0.5)


def saved(reward: TorchReward, base: Path, folder: Path) -> Path:
    reward.model.save(folder, AutoTokenizer.from_pretrained(base), reward.settings)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_scores_the_same_when_it_is_loaded(
    tiny: Tiny, untrained: Untrained, tmp_path: Path, kind: str
) -> None:
    reward, inputs = untrained(kind), questions(6)
    folder = saved(reward, tiny(kind), tmp_path / "model")
    again = load_reward(Options(model=str(folder)))
    assert again.settings == reward.settings
    assert np.abs(again.rewards(inputs).values - reward.rewards(inputs).values).max() < 1e-6
    assert again is load_reward(Options(model=str(folder)))
    assert again.facts == {"weights": find_weights(Options(model=str(folder))).fingerprint, "dtype": "float32"}


def test_an_encoder_alone_is_kept_of_t5_and_no_pooler_of_bert(tiny: Tiny, untrained: Untrained, tmp_path: Path) -> None:
    t5, bert = (load_file(saved(untrained(kind), tiny(kind), tmp_path / kind) / "model.safetensors")
                for kind in ("t5", "bert"))  # fmt: skip
    assert not any(name.startswith("decoder") for name in t5)
    assert not any("pooler" in name for name in bert)


def test_the_fingerprint_covers_the_head_and_the_settings(tiny: Tiny, untrained: Untrained, tmp_path: Path) -> None:
    folder = saved(untrained("bert"), tiny("bert"), tmp_path / "model")
    options = Options(model=str(folder))
    seen = {find_weights(options).fingerprint}
    settings = json.loads((folder / "reward.json").read_text())
    (folder / "reward.json").write_text(json.dumps({**settings, "layout": {**settings["layout"], "keep": "start"}}))
    seen.add(find_weights(options).fingerprint)
    save_file({"weight": torch.ones(1, 32), "bias": torch.zeros(1)}, folder / "reward_head.safetensors")
    seen.add(find_weights(options).fingerprint)
    assert len(seen) == 3


def test_the_layout_stays_within_what_the_model_takes(tiny: Tiny) -> None:
    """RoBERTa and MPNet lose two of their 66 positions to the padding token."""
    for kind, limit in (("bert", 64), ("roberta", 64), ("mpnet", 64), ("bart", 128), ("gpt2", 128)):
        for inputs in (None, 500):
            reward = TorchReward.untrained(Options(model=str(tiny(kind))), RewardLayout(max_length=inputs))
            assert reward.settings.layout.max_length == limit
    long = RewardInput("is it", (("answer", "cat " * 300),))
    reward = TorchReward.untrained(Options(model=str(tiny("roberta"))), RewardLayout(max_length=None))
    assert reward.rewards([long]).cut.tolist() == [306 - 64 - 1]


def test_when_memory_runs_out_less_is_computed_at_once(untrained: Untrained, monkeypatch: pytest.MonkeyPatch) -> None:
    reward, inputs = untrained("bert"), questions(6)
    expected, plain = reward.rewards(inputs).values, RewardModel.forward

    def small(self: RewardModel, ids: Any, *rest: Any) -> Any:
        if len(ids) > 2:
            raise RuntimeError("CUDA out of memory")
        return plain(self, ids, *rest)

    freed: list[Any] = []
    monkeypatch.setattr("metrist.models.devices.free_memory", freed.append)
    monkeypatch.setattr(RewardModel, "forward", small)
    monkeypatch.setattr(reward, "budget", type(reward.budget)(512))
    assert np.abs(reward.rewards(inputs).values - expected).max() < 1e-5
    assert freed

    def never(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(RewardModel, "forward", never)
    with raises_code(ModelError, "model_unusable", "50"):
        reward.rewards(inputs)


def test_faults_of_a_folder_are_named(tiny: Tiny, untrained: Untrained, tmp_path: Path) -> None:
    with raises_code(ModelError, "invalid_value", "reward.json"):
        load_reward(Options(model=str(tiny("bert"))))
    with raises_code(ModelError, "invalid_value", "'auto'", "'answer'", "'mean'"):
        TorchReward.untrained(Options(model=str(tiny("bert"))), RewardLayout(), "max")
    folder = saved(untrained("bert"), tiny("bert"), tmp_path / "model")
    options = Options(model=str(folder))
    save_file({"weight": torch.ones(1, 8)}, folder / "reward_head.safetensors")
    with raises_code(ModelError, "model_unusable", "reward_head.safetensors", "8", "32"):
        load_reward(options)
    (folder / "reward_head.safetensors").unlink()
    with raises_code(ModelError, "unreadable", "reward_head.safetensors"):
        load_reward(options)
    (folder / "reward.json").write_text("{}")
    with raises_code(ModelError, "unreadable", "reward.json", "`metrist_reward`"):
        load_reward(options)


def test_a_decoder_without_a_first_token_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny("bart"), tmp_path / "bart"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": None}))
    with raises_code(ModelError, "invalid_value", "decoder_start_token_id", "'mean'"):
        TorchReward.untrained(Options(model=str(folder)), RewardLayout())


def test_a_model_without_vectors_of_tokens_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """CLIP: two towers, each with a size of its own."""
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = CLIPConfig(
        text_config={**sizes, "vocab_size": 50}, vision_config={**sizes, "image_size": 8, "patch_size": 8}
    )
    CLIPModel(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny("bert")).save_pretrained(tmp_path)
    with raises_code(ModelError, "model_unusable", "without"):
        TorchReward.untrained(Options(model=str(tmp_path)), RewardLayout())
