"""The pair loss, its gradients and the development figure, against plain torch, one pair at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_pairs import answer_pairs
from transformers import AutoTokenizer

from metrist.models.devices import Options
from metrist.models.reward_layout import RewardLayout, token_encoder
from metrist.models.reward_model import PairwiseRewardModel, TorchReward
from metrist.train.answer_pairs import AnswerPairs, encode_answer_pairs, macro_shares, standardize_ratings
from metrist.train.batches import split_parts
from metrist.train.preference import PairLoss

Tiny = Callable[[str], Path]

PAIRS = [
    *answer_pairs(4, good_rating=5.0, bad_rating=2.0),
    *answer_pairs(2, "B", certainty=0.5),
    *answer_pairs(3, "B", seed=2, certainty=0.8, good_rating=1.0, bad_rating=7.0),
]


def build(folder: Path, *, ratings: bool = False) -> tuple[PairwiseRewardModel, AnswerPairs]:
    reward = TorchReward.untrained(Options(model=str(folder)), RewardLayout(), seed=1)
    examples = encode_answer_pairs(reward.encode, reward.settings, reward.pad, PAIRS)
    return PairwiseRewardModel(reward.model, ratings=ratings).eval(), examples


def naive(model: PairwiseRewardModel, folder: Path, weight: float) -> torch.Tensor:
    """Compute the loss by its definition, each answer alone, in float64."""
    reward = TorchReward.untrained(Options(model=str(folder)), RewardLayout())
    tokens = token_encoder(AutoTokenizer.from_pretrained(folder))
    frame = reward.settings.frame
    prefix, separator, suffix = list(frame.prefix), list(frame.separator), list(frame.suffix)

    def value(pair_side: tuple[tuple[str, str], ...], instruction: str) -> torch.Tensor:
        question, source, answer = tokens([instruction, pair_side[0][1], pair_side[1][1]])
        row = torch.tensor([[*prefix, *question, *separator, *source, *separator, *answer, *suffix]])
        starts = torch.tensor([row.shape[1] - len(suffix) - len(answer)])
        return model.reward(row, torch.ones_like(row), starts)[0].double()

    # Ratings 5 and 2 of A, 1 and 7 of B (where less is better): half each, so the units are 1.5 and 3 from the middle.
    total = torch.zeros((), dtype=torch.float64)
    for pair in PAIRS:
        good, bad = value(pair.good, pair.instruction), value(pair.bad, pair.instruction)
        chance = torch.sigmoid(good - bad)
        total = total - pair.certainty * chance.log() - (1 - pair.certainty) * (1 - chance).log()
        if weight and pair.good_rating is not None:
            assert model.line is not None
            line = model.line.double()
            errors = [line[0] * good + line[1] - 1.0, line[0] * bad + line[1] + 1.0]
            total = total + weight * (errors[0] ** 2 + errors[1] ** 2) / 2
    return total


@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["bert", "bart"])
def test_loss_and_gradients_match_one_pair_at_a_time(tiny: Tiny, kind: str, weight: float) -> None:
    model, examples = build(tiny(kind), ratings=weight > 0)
    loss = PairLoss(regression=weight).loss(model, examples.collate(np.arange(len(PAIRS))))
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    expected = naive(model, tiny(kind), weight)
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert learned
    assert set(gradients) == set(learned)
    for name, parameter in model.named_parameters():
        if name in gradients:
            scale = max(1.0, float(parameter.grad.abs().max()))
            assert float((gradients[name] - parameter.grad).abs().max()) < 1e-4 * scale, name


def test_the_loss_of_equal_rewards_is_that_of_a_coin(tiny: Tiny) -> None:
    model, examples = build(tiny("bert"))
    with torch.no_grad():
        model.reward.head.weight.zero_()
        loss = PairLoss().loss(model, examples.collate(np.arange(len(PAIRS))))
        won = PairLoss().judge(model, examples.collate(np.arange(len(PAIRS))))
    assert float(loss) == pytest.approx(len(PAIRS) * math.log(2))
    assert won.tolist() == [0.0] * len(PAIRS), "equal rewards are no win"


def test_the_figure_is_the_mean_over_criteria(tiny: Tiny) -> None:
    """By hand: 4 pairs of A and 5 of B; a pair counts 9 / (2 × its criterion's)."""
    model, examples = build(tiny("bert"))
    assert macro_shares(["A"] * 4 + ["B"] * 5).tolist() == pytest.approx([9 / 8] * 4 + [9 / 10] * 5)
    with torch.no_grad():
        good, bad = model(examples.collate(np.arange(9)))
        figure = float(PairLoss(criteria=2).judge(model, examples.collate(np.arange(9))).mean())
    won = (good > bad).double()
    assert figure == pytest.approx(float((won[:4].mean() + won[4:].mean()) / 2))
    assert PairLoss(criteria=2).figure == "mean accuracy over 2 criteria"
    assert PairLoss().figure == "accuracy"


def test_ratings_are_standardised_within_their_criterion_and_turned_to_the_good_side() -> None:
    ratings = standardize_ratings(PAIRS)
    assert ratings[:4].tolist() == [[1.0, -1.0]] * 4
    assert np.isnan(ratings[4:6]).all()
    assert ratings[6:].tolist() == [[1.0, -1.0]] * 3, "in B the good answers have the lower ratings"
    (pair,) = answer_pairs(1, good_rating=3.0, bad_rating=3.0)
    assert np.isnan(standardize_ratings([pair])).all(), "equal ratings carry no information"
    mixed = standardize_ratings([replace(pair, good_rating=4.0, bad_rating=None), replace(pair, good_rating=5.0)])
    assert mixed[0, 0] == 0
    assert np.isnan(mixed[0, 1])


def test_rows_of_a_part_stand_good_then_bad_and_padding_is_counted(tiny: Tiny) -> None:
    _, examples = build(tiny("bert"))
    chosen = np.array([3, 0])
    batch = examples.collate(chosen)
    rows = [examples.good[3], examples.good[0], examples.bad[3], examples.bad[0]]
    longest = max(map(len, rows))
    assert batch["input_ids"].shape == (4, longest)
    for row, ids, mask in zip(rows, batch["input_ids"], batch["attention_mask"], strict=True):
        assert ids[: len(row)].tolist() == row.tolist()
        assert (ids[len(row) :] == examples.pad).all()
        assert mask.tolist() == [1] * len(row) + [0] * (longest - len(row))
    for row, start in zip(rows, batch["starts"].tolist(), strict=True):
        assert row[start - 1] == row[-1], "a separator, which is the token that ends a row too"
        assert row[-1] not in row[start:-1]
    assert examples.padded_tokens(chosen) == 4 * longest
    assert examples.lengths[3] == len(examples.good[3]) + len(examples.bad[3])


def test_the_token_budget_includes_padding(tiny: Tiny) -> None:
    """A short answer is padded to the long answer of its pair."""
    reward = TorchReward.untrained(Options(model=str(tiny("bert"))), RewardLayout(), seed=1)
    uneven = [replace(pair, good=(("answer", "cat " * 40),), bad=(("answer", "dog"),)) for pair in answer_pairs(30)]
    examples = encode_answer_pairs(reward.encode, reward.settings, reward.pad, uneven)
    parts = split_parts(np.arange(30), examples.spaces, 500)
    assert max(map(examples.padded_tokens, parts)) <= 500
    assert max(map(examples.padded_tokens, split_parts(np.arange(30), examples.lengths, 500))) > 500
