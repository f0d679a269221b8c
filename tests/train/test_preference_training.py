"""Training preference metrics, on tiny models."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from toy_pairs import answer_pairs, preference_request

from error_codes import raises_code
from forked_processes import exit_code, forked
from metrist import criteria
from metrist.data.pairs import Fields, GoodBad
from metrist.errors import InputError, ModelError, RunError
from metrist.models.devices import Options, Placement
from metrist.models.loading import load_reward
from metrist.models.protocols import Rewards
from metrist.models.reward_layout import RewardLayout
from metrist.models.weights import find_weights
from metrist.train.answer_pairs import accuracy_by_criterion, score_pairs
from metrist.train.fit import fit, plan_training
from metrist.train.preference import PairLoss, PreferenceTask
from metrist.train.task import NoCallback

Tiny = Callable[[str], Path]

WEIGHTS = ("model.safetensors", "reward_head.safetensors", "reward.json")


def same_weights(first: Path, second: Path) -> bool:
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in WEIGHTS)


class Messages(NoCallback):
    """A callback that stores what it receives."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.figures: list[float] = []

    def on_evaluation(self, evaluation: Any, _name: str) -> None:
        self.figures.append(evaluation.figure)

    def on_message(self, remark: str) -> None:
        self.remarks.append(remark)


def test_a_model_learns_which_answers_are_better_and_the_card_says_how_well(tiny: Tiny, tmp_path: Path) -> None:
    files = [{"file": "pairs.jsonl", "sha256": "0" * 64, "pairs": 160}]
    task = preference_request(
        tmp_path / "out",
        tiny("bert"),
        balance=0.5,
        data={"files": files},
        licence="MIT",
        recipe={"epochs": 4, "lr": 5e-3},
    )
    card = fit(task)
    figures = card["figures"]
    assert figures["before"] < 0.8 < 0.95 < figures["after"]
    assert figures["name"] == "mean accuracy over 2 criteria"
    model = load_reward(Options(model=str(task.out)))
    by_criterion = accuracy_by_criterion(task.dev, score_pairs(model, task.dev))
    assert by_criterion == figures["by_criterion"]
    assert sum(by_criterion.values()) / 2 == pytest.approx(figures["after"]), "float32 in training too"
    assert card["metric"] == f"preference(model={str(task.out)!r}, criterion='A')", "'overall' was not learned"
    assert card["fingerprint"] == find_weights(Options(model=str(task.out))).fingerprint
    about_b = card["data"]["criteria"]["B"]
    # Roots of 120 and 40 are as 1.732 to 1: B has 58.6 of 160.
    assert about_b == {
        "training_pairs": 40,
        "drawn_an_epoch": 59,
        "development_pairs": 10,
        "instruction": "is it good ?",
    }
    assert card["data"]["files"] == files
    assert card["recipe"]["pooling"] == "answer"
    assert card["recipe"]["max_length"] == 64
    assert card["licence"] == "MIT"
    page = (task.out / "card.md").read_text()
    for text in (f"{figures['after']:.4f}", "| B | 40 | 59 | 10 | is it good ? | ", "a coin gets 0.5", "Licence: MIT"):
        assert text in page
    values = np.concatenate(score_pairs(model, task.train))
    assert model.settings.centre == pytest.approx(values.mean(), abs=1e-6)
    assert model.settings.spread == pytest.approx(values.std(), abs=1e-6)
    assert model.settings.criteria == {"A": "is it good ?", "B": "is it good ?"}
    assert model.settings.fields == {"A": ("source", "answer"), "B": ("source", "answer")}
    names = {path.name for path in task.out.iterdir()}
    assert {"card.json", "config.json", "tokenizer.json", "training.json", *WEIGHTS} <= names
    assert not any(name.startswith(("checkpoints", ".")) for name in names)


def _relabel(pairs: list[GoodBad], *labels: str) -> list[GoodBad]:
    def side(fields: Fields) -> Fields:
        return tuple(zip(labels, [text for _, text in fields][-len(labels) :], strict=True))

    return [replace(pair, good=side(pair.good), bad=side(pair.bad)) for pair in pairs]


def test_fields_and_instruction_of_a_criterion_are_stored(tiny: Tiny, tmp_path: Path) -> None:
    """Stores the most common context, whatever the labels of answers, and known instructions."""
    blank = answer_pairs(12, criterion="A", instruction="")
    overall = [replace(pair, criterion="overall") for pair in blank]
    mine = [replace(pair, criterion="mine") for pair in blank]
    pairs = [
        *_relabel(overall[:4], "text"),
        *_relabel(overall[4:7], "dialogue", "reply"),
        *_relabel(overall[7:], "dialogue", "response"),
        *_relabel(mine, "words"),
    ]
    card = fit(preference_request(tmp_path / "out", tiny("bert"), train=pairs, dev=(), recipe={"epochs": 1}))
    settings = load_reward(Options(model=str(tmp_path / "out"))).settings
    assert settings.fields == {"overall": ("dialogue", "response"), "mine": ("words",)}
    assert settings.criteria == {"overall": criteria.find("overall").instruction, "mine": ""}
    assert card["metric"] == f"preference(model={str(tmp_path / 'out')!r})"


@pytest.mark.parametrize("kind", ["mpnet", "t5", "bart", "gpt2"])
def test_other_kinds_of_models_learn_too(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    """On one criterion: gradients reach the parts that matter."""
    pairs = {"train": answer_pairs(100), "dev": answer_pairs(20, seed=1)}
    card = fit(preference_request(tmp_path / "out", tiny(kind), recipe={"epochs": 6, "lr": 5e-3}, **pairs))
    assert card["figures"]["after"] >= 0.8
    assert card["figures"]["name"] == "accuracy"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to kill")
def test_a_training_killed_on_the_way_ends_with_the_same_weights(tiny: Tiny, tmp_path: Path) -> None:
    """kill -9 in the second of three epochs; the model has dropout, and the sampler is balanced."""
    ratings = {"train": answer_pairs(60, good_rating=2.0, bad_rating=1.0) + answer_pairs(20, "B")}
    task = preference_request(
        tmp_path / "out", tiny("bert"), checkpoint_every=3, balance=0.3, regression=0.1, head_lr=0.01, **ratings
    )
    _train_until_killed(task, task.out / "checkpoints" / "step-00000009")
    assert not (task.out / "model.safetensors").exists()
    resumed = fit(replace(task, resume=True))
    calm = fit(replace(task, out=tmp_path / "calm"))
    assert same_weights(task.out, tmp_path / "calm")
    assert resumed["figures"] == calm["figures"]
    assert resumed["fingerprint"] == calm["fingerprint"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to kill")
def test_a_training_killed_before_its_first_checkpoint_starts_over(tiny: Tiny, tmp_path: Path) -> None:
    task = preference_request(tmp_path / "out", tiny("bert"), recipe={"epochs": 1}, dev=())
    _train_until_killed(task, task.out / "training.json")
    with raises_code(ModelError, "unfinished", "unfinished training"):
        load_reward(Options(model=str(task.out)))
    messages = Messages()
    fit(replace(task, resume=True), messages)
    assert messages.remarks == [f"{task.out} has no checkpoint yet: starting from the beginning"]


def _train_until_killed(task: PreferenceTask, awaited: Path) -> None:
    """Train in a process that is killed when a file appears."""
    plain = PairLoss.loss

    def slow(self: PairLoss, model: Any, batch: Any) -> torch.Tensor:
        time.sleep(600 if awaited.exists() else 0.01)
        return plain(self, model, batch)

    def train() -> None:
        PairLoss.loss = slow  # type: ignore[method-assign]
        fit(task)

    process = forked(train)
    until = time.monotonic() + 300
    while not awaited.exists() and time.monotonic() < until:
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL


def test_the_seed_changes_the_weights_and_max_tokens_does_not(tiny: Tiny, tmp_path: Path) -> None:
    """Without dropout, which each part draws for itself, the parts of a batch add up to the whole."""
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "base"))
    config = json.loads((folder / "config.json").read_text())
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps({**config, **still}))
    heads, pairs = {}, answer_pairs(48)
    for name, recipe in {"all": {}, "parts": {"max_tokens": 90}, "seed": {"seed": 1}}.items():
        fit(
            preference_request(tmp_path / name, folder, train=pairs, dev=(), recipe={"epochs": 1, "lr": 1e-4, **recipe})
        )
        heads[name] = load_file(tmp_path / name / "reward_head.safetensors")["weight"]
    assert float((heads["all"] - heads["parts"]).abs().max()) < 1e-4
    assert float((heads["all"] - heads["seed"]).abs().max()) > 1e-2


def test_the_head_can_have_its_own_learning_rate(tiny: Tiny, tmp_path: Path) -> None:
    """AdamW's first steps are about as long as the rate."""
    steps = {}
    for name, head_lr in {"same": None, "own": 1e-2}.items():
        recipe = {"epochs": 1, "lr": 1e-4, "schedule": "constant", "batch": 160}
        task = preference_request(tmp_path / name, tiny("bert"), dev=(), recipe=recipe, head_lr=head_lr)
        fit(task)
        generator = torch.Generator().manual_seed(0)
        first = torch.empty(1, 32).normal_(0, 0.02, generator=generator)
        steps[name] = float((load_file(task.out / "reward_head.safetensors")["weight"] - first).abs().median())
    assert steps == pytest.approx({"same": 1e-4, "own": 1e-2}, rel=0.05)


def test_early_stopping_goes_by_the_mean_over_criteria(tiny: Tiny, tmp_path: Path) -> None:
    messages = Messages()
    recipe = {"epochs": 30, "patience": 2, "lr": 3e-3}
    pairs = [*answer_pairs(48), *answer_pairs(16, "B")]
    card = fit(preference_request(tmp_path / "out", tiny("bert"), train=pairs, recipe=recipe), messages)
    assert card["training"]["steps"] < card["training"]["planned_steps"]
    assert card["figures"]["after"] == max(messages.figures[1:])
    assert len(messages.figures) == messages.figures.index(card["figures"]["after"], 1) + 3


def test_ties_are_left_out_or_learned_as_such(tiny: Tiny, tmp_path: Path) -> None:
    pairs = {"train": answer_pairs(40) + answer_pairs(30, "B", certainty=0.5), "dev": answer_pairs(5, certainty=0.5)}
    dropped: Any = plan_training(preference_request(tmp_path / "out", tiny("bert"), **pairs))
    assert (len(dropped.train), dropped.dev, dropped.ties) == (40, None, (30, 5))
    assert dropped.remarks()[0].startswith("30 ties among the training pairs and 5 for development")
    soft: Any = plan_training(preference_request(tmp_path / "out", tiny("bert"), ties="soft", **pairs))
    assert (len(soft.train), soft.ties) == (70, (0, 5))
    assert not (tmp_path / "out").exists()
    with raises_code(InputError, "no_data", "30"):
        plan_training(preference_request(tmp_path / "out", tiny("bert"), train=pairs["train"][40:]))


def test_a_plan_counts_cuts_steps_and_padding(tiny: Tiny, tmp_path: Path) -> None:
    """By hand: a row has 4 + 1 tokens of instruction, 1 + 1 of source, an answer, and the two of the frame."""
    (example,) = answer_pairs(1)
    sides = [(("source", "cat"), ("answer", "dog " * words)) for words in (1, 11)]
    pair = replace(example, good=sides[0], bad=sides[1])
    planned: Any = plan_training(
        preference_request(tmp_path / "out", tiny("bert"), train=[pair] * 3, recipe={"batch": 2})
    )
    assert planned.train.lengths.tolist() == [10 + 20] * 3
    assert planned.sampler.steps == 2
    assert planned.padding == pytest.approx(1 - 30 / 40)
    short = preference_request(tmp_path / "out", tiny("bert"), train=[pair] * 3, layout=RewardLayout(max_length=15))
    short_plan: Any = plan_training(short)
    assert short_plan.train.cut == (3, 3 * 5)
    (remark,) = short_plan.remarks()
    assert "3 of 6 answers" in remark
    assert "15 tokens" in remark
    messages = Messages()
    fit(replace(short, dev=()), messages)
    assert messages.remarks == short_plan.remarks()


def test_invalid_tasks_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    def make_task(**settings: Any) -> PreferenceTask:
        return preference_request(tmp_path / "out", tiny("bert"), **settings)

    with raises_code(InputError, "no_data"):
        plan_training(make_task(train=[]))
    with raises_code(RunError, "run_failed", "`patience`"):
        plan_training(make_task(dev=[], recipe={"patience": 1}))
    with raises_code(InputError, "conflict", "`regression`"):
        plan_training(make_task(regression=0.5))
    with raises_code(ModelError, "invalid_value"):
        plan_training(make_task(layout=RewardLayout(max_length=6)))
    with raises_code(RunError, "invalid_value", "`balance`", "got 2"):
        make_task(balance=2)
    with raises_code(RunError, "invalid_value", "`ties`", "'keep'"):
        make_task(ties="keep")
    with raises_code(RunError, "invalid_value", "`regression`", "got -1"):
        make_task(regression=-1)
    with raises_code(RunError, "invalid_value", "`head_lr`", "got 0"):
        make_task(head_lr=0)
    with raises_code(RunError, "conflict"):
        fit(make_task(resume=True))
    (tmp_path / "nothing").mkdir()
    with raises_code(ModelError, "invalid_value", "config.json"):
        plan_training(preference_request(tmp_path / "out", tmp_path / "nothing"))
    assert not (tmp_path / "out").exists()


def test_a_base_of_an_unknown_kind_is_named(tiny: Tiny, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "odd"))
    (folder / "config.json").write_text('{"model_type": "nonsense"}')
    with raises_code(ModelError, "model_unusable"):
        plan_training(preference_request(tmp_path / "out", folder))


def test_accuracy_is_counted_by_criterion_and_equal_rewards_are_wrong() -> None:
    class Lengths:
        settings: Any = None
        facts: Any = None

        def rewards(self, inputs: Any) -> Rewards:
            values = np.array([float(len(answer.fields[-1][1].split()[-1])) for answer in inputs])
            return Rewards(values, np.zeros(len(values), np.int64), np.ones(len(values), np.int64))

    pairs = [*answer_pairs(3), *answer_pairs(2, "B")]
    scores = score_pairs(Lengths(), pairs)
    assert scores.good.tolist() == [4, 4, 4, 3, 3]
    assert scores.bad.tolist() == [3, 3, 3, 3, 3]
    assert accuracy_by_criterion(pairs, scores) == {"A": 1.0, "B": 0.0}


def test_the_line_to_ratings_learns_faster_than_the_body(tmp_path: Path, tiny: Tiny) -> None:
    """At the body's rate of 2e-5, its two parameters would hardly change."""
    task = preference_request(tmp_path, tiny("bert"), head_lr=1e-3, recipe={"lr": 2e-5})
    weights = find_weights(task.base)
    placement = Placement(device=torch.device("cpu"), dtype=torch.float32, tokens=1)
    learner = task.build(weights, task.plan(weights, task.load_data()), placement)
    rates = {name: rate * task.recipe.lr for name, rate in learner.rates.items()}
    assert rates == {"line": pytest.approx(1e-2), "reward.head.": pytest.approx(1e-3)}
