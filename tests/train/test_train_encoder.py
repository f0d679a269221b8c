"""Training several heads of a text encoder together, with a tiny random one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_text_encoders import write_text_encoder

pytest.importorskip("torch", reason="torch is not installed")

import torch

from metrist.models.devices import Options
from metrist.models.loading import load_text_encoder
from metrist.models.numpy_inference import storage
from metrist.train.encoder import VALUE, EncoderExample, EncoderExamples, EncoderTask, match_tokens, round_groups
from metrist.train.fit import fit
from metrist.train.recipe import Recipe

HEADS = {"support": 1, "quality": 2}


def make_examples(folder: Path, count: int) -> list[EncoderExample]:
    """`dog` is supported and rated high, `cat` is not; the word itself is tagged."""
    encoder = load_text_encoder(str(folder))
    examples = []
    for number in range(count):
        example = EncoderExample(str(number % 2))
        for word, label in (("dog", 1.0), ("cat", 0.0)):
            ids = encoder.encode([f"the {word} sat on the {'mat' if number % 3 else 'tree'}"])[0].ids
            sequence = encoder.join(ids, encoder.encode(["one day it ran"])[0].ids)
            example.add_unit(sequence, (1, 1 + len(ids)), 0, label, 0.5)
            example.add_unit(sequence, (1, 1 + len(ids)), 1, 2 * label - 1, 0.5, VALUE)
            example.add_tokens(((1 + at, 2, float(at == 1 and not label)) for at in range(len(ids))), 0.5)
            example.alone.append(encoder.join(ids))
        example.pairs.append((0, 2, 1.0, 0.5))
        example.matches += [(0, 0), (1, 0)]
        example.matched.append((0, 1, 0.1))
        examples.append(example)
    return examples


def train(base: Path, out: Path, **settings: Any) -> dict[str, Any]:
    examples = make_examples(base, 24)
    recipe = Recipe(**{"epochs": 12, "batch": 8, "lr": 3e-3, **settings.pop("recipe", {})})
    return fit(
        EncoderTask(
            base=Options(model=str(base)),
            out=out,
            train=examples,
            dev=examples[:4],
            heads=HEADS,
            recipe=recipe,
            **settings,
        )
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_text_encoder(tmp_path / "base" / "model", heads=("support", "fluency"), scale=0.1)


def test_examples_are_joined_with_their_numbers_moved(base: Path) -> None:
    examples = make_examples(base, 3)
    batch = EncoderExamples(examples).collate(np.array([2, 0]))
    assert batch["ids"].shape[0] == len(batch["alone_ids"]) == 4
    assert batch["units"][:, 0].tolist() == [0] * 4 + [1] * 4
    assert batch["units"][:, 1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batch["pairs"][:, :3].tolist() == [[0, 0, 2], [1, 4, 6]]
    assert batch["matched"][:, 1:3].tolist() == [[0, 1], [2, 3]]
    # The tokens of a sequence share a weight of .5; the error has twice as much of it as the others.
    tokens = batch["tokens"]
    assert tokens[:, 5].sum() == pytest.approx(2.0)
    assert tokens[tokens[:, 4] == 1, 5].min() == pytest.approx(2 * tokens[tokens[:, 1] == 1, 5].min())


@pytest.mark.parametrize("kind", ["bert", "nomic"])
def test_all_heads_learn_and_the_stored_model_has_them(tmp_path: Path, kind: str) -> None:
    base = write_text_encoder(tmp_path / "base" / "model", kind=kind, scale=0.1)
    card = train(base, tmp_path / "out", layer=1)
    assert card["figures"]["after"] > card["figures"]["before"]
    encoder = load_text_encoder(str(tmp_path / "out"))
    assert sorted(encoder.heads) == ["quality", "support"]
    sequences = [sequence for example in make_examples(base, 1) for sequence in example.sequences]
    spans = [[(1, 6)], [(1, 6)]]
    dog, cat = (output[0, 0] for output in encoder.score_spans("support", sequences, spans))
    assert dog > 0 > cat
    ratings = [output[0, 0] for output in encoder.score_spans("quality", sequences, spans)]
    assert ratings[0] > 0.3 > -0.3 > ratings[1]
    tags = encoder.score_tokens("quality", sequences)[1][1:6, 1]
    assert tags.argmax() == 1
    # A finished training is not repeated.
    assert train(base, tmp_path / "out", layer=1) == card


def test_kept_heads_stay_and_frozen_words_stay_to_the_last_bit(base: Path, tmp_path: Path) -> None:
    train(base, tmp_path / "out", keep=True, rounded=True, frozen_words=True, layer_rate=0.5, recipe={"epochs": 1})
    before, after = (storage.read_quantized(folder / storage.WEIGHTS) for folder in (base, tmp_path / "out"))
    for old, new in zip(before["words.weight"][:2], after["words.weight"][:2], strict=True):
        assert np.array_equal(old, new)
    assert not np.array_equal(before["blocks.1.up.weight"][0], after["blocks.1.up.weight"][0])


def test_rounding_has_the_steps_of_the_stored_model_and_lets_gradients_pass() -> None:
    array = torch.linspace(-1, 1, 128).reshape(1, 128).requires_grad_()
    rounded = round_groups(array, 7)
    # Two groups of 64 columns, each with up to 15 steps.
    assert all(len(set(rounded.detach()[0, part].tolist())) <= 15 for part in (slice(0, 64), slice(64, 128)))
    rounded.sum().backward()
    assert array.grad is not None
    assert array.grad.tolist() == [[1.0] * 128]


def test_matches_are_those_of_a_double_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 6, 8, generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]])
    vectors = torch.nn.functional.normalize(states, dim=-1)
    first, second = vectors[0, 1:4], vectors[1, 1:3]
    table = first @ second.T
    expected = table.amax(1).mean() + table.amax(0).mean()
    assert match_tokens(states, mask, torch.tensor([[0.0, 0.0, 1.0]])).item() == pytest.approx(
        expected.item(), abs=1e-5
    )
