"""Train a preference metric: a reward model learns to score the better of two answers higher.

Model and loss are those of the HEAP paper; any AutoModel can be the base.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mode
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from metrist.data.pairs import GoodBad
from metrist.errors import InputError, ModelError, RunError, agree, format_count
from metrist.models.devices import Options, Placement
from metrist.models.loading import load_reward, load_text_encoder
from metrist.models.numpy_inference.export import default_group, export_reward
from metrist.models.numpy_inference.storage import TEXT_ENCODER
from metrist.models.pretrained import read_shape, read_tokenizer
from metrist.models.reward_layout import NAME as REWARD
from metrist.models.reward_layout import Encode, RewardFrame, RewardLayout, RewardSettings, token_encoder
from metrist.models.text_encoder import EncoderReward, TextEncoder
from metrist.models.weights import Weights, find_weights
from metrist.train.answer_pairs import (
    AnswerPairs,
    accuracy_by_criterion,
    encode_answer_pairs,
    fill_instructions,
    score_pairs,
)
from metrist.train.batches import Balanced, split_parts
from metrist.train.folder import INHERITED_LICENCE, TrainingFolder
from metrist.train.recipe import PreferenceSettings, Recipe
from metrist.train.task import Batch, Learner, TrainingPlan, TrainingTask, describe_heads, hash_rows

if TYPE_CHECKING:
    from torch import Tensor

    from metrist.models.reward_model import PairwiseRewardModel, TorchReward
    from metrist.train.loop import Trainer

_T = TypeVar("_T")

#: Suits encoders of about 100 million weights and some ten thousand pairs.
RECIPE = Recipe(epochs=5, batch=32, lr=2e-5, warmup=0.1, weight_decay=0.01, bucket=20)
#: Mean and spread of rewards are measured on at most this many training pairs.
_MEASURED_PAIRS = 4_000
#: The line from rewards to ratings has two parameters, which may start far from their best values.
_LINE_LR = 1e-2
#: The most bits per weight of a text encoder, whose products are computed with the stored integers.
_ENCODER_BITS = 7


class PairLoss:
    """The Bradley-Terry loss, -log sigmoid(r_good - r_bad) if raters were certain, its expectation if not.

    `regression` is the weight of the mean squared error of ratings. The development figure is the share of pairs whose
    good answer has the higher reward; equal rewards count as wrong.
    """

    def __init__(self, *, regression: float = 0.0, criteria: int = 1) -> None:
        self.regression = regression
        self.figure = "accuracy" if criteria == 1 else f"mean accuracy over {criteria} criteria"

    def loss(self, model: PairwiseRewardModel, batch: Batch) -> Tensor:
        import torch
        from torch.nn.functional import softplus

        good, bad = model(batch)
        certainty = batch["certainty"]
        losses = certainty * softplus(bad - good) + (1 - certainty) * softplus(good - bad)
        if model.line is not None:
            ratings = batch["ratings"]
            expected = model.line[0] * torch.stack([good, bad]) + model.line[1]
            # The mean over both answers; one without a rating has no error.
            errors = torch.where(ratings.isnan(), 0.0, expected - ratings.nan_to_num())
            losses = losses + self.regression * (errors**2).mean(0)
        total: Tensor = losses.sum()
        return total

    def judge(self, model: PairwiseRewardModel, batch: Batch) -> Tensor:
        good, bad = model(batch)
        correct: Tensor = (good > bad) * batch["shares"]
        return correct


class PreferencePairs(NamedTuple):
    train: list[GoodBad]
    dev: list[GoodBad]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePlan(TrainingPlan):
    """The plan of a preference training. `padding` is the share of padding among an epoch's computed tokens; `ties`
    counts the pairs left out of training and of development."""

    settings: RewardSettings
    train: AnswerPairs
    dev: AnswerPairs | None
    padding: float
    ties: tuple[int, int]

    def remarks(self) -> list[str]:
        remarks = TrainingPlan.remarks(self)
        if any(self.ties):
            remarks.append(
                f"{format_count(self.ties[0], 'tie')} among the training pairs and {self.ties[1]:,} for development "
                f"{agree(sum(self.ties), 'is', 'are')} left out"
            )
        answers, tokens = self.train.cut
        if answers:
            remarks.append(
                f"{answers:,} of {2 * len(self.train):,} answers, or their contexts, are too long; "
                f"{format_count(tokens, 'token was', 'tokens were')} cut"
            )
        return remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTask(PreferenceSettings, TrainingTask):
    """Trains a reward model. A base that is a preference model already is tuned: it keeps its layout, pooling and
    head, and the criteria that it has learned. One in metrist's own format ends in that format, in `bits` per weight
    (None: float32; "auto": 16, and 7 for a text encoder, which has no more).

    A criterion's share of an epoch is proportional to its number of pairs to the power `balance`. Pairs of certainty .5
    are ties: dropped, or learned as equal. `regression` is the weight of the squared error of ratings; `head_lr` is a
    separate learning rate for the last layer. `data` and `licence` go into the card. Pairs without an instruction get
    that of their criterion, if the base or metrist knows it."""

    kind: ClassVar[str] = "preference"

    train: Sequence[GoodBad]
    dev: Sequence[GoodBad] = ()
    layout: RewardLayout | None = None
    recipe: Recipe = RECIPE
    checkpoint_every: int = 1_000
    data: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    bits: int | Literal["auto"] | None = "auto"

    def load_data(self) -> PreferencePairs:
        known = base_instructions(self.base)
        return PreferencePairs(fill_instructions(self.train, known), fill_instructions(self.dev, known))

    def own_identity(self, weights: Weights, data: PreferencePairs) -> dict[str, Any]:
        names = ("criterion", "instruction", "good", "bad", "certainty", "good_rating", "bad_rating")
        train, dev = (hash_rows(tuple(getattr(pair, name) for name in names) for pair in pairs) for pairs in data)
        return {
            "data": train,
            "dev": dev,
            "layout": asdict(self._layout(weights)),
            "pooling": self._pooling(weights),
            "balance": self.balance,
            "ties": self.ties,
            "regression": self.regression,
            "head_lr": self.head_lr,
            **({"bits": self._bits(weights)} if weights.runs_on_numpy else {}),
        }

    def _layout(self, weights: Weights) -> RewardLayout:
        tuned = read_reward_settings(weights)
        if tuned is None:
            return self.layout or RewardLayout()
        if self.layout is not None and self.layout != tuned.layout:
            raise RunError(
                f"{weights.name} has its own {tuned.layout}; leave out `labelled`, `keep` and `max_length`",
                code="conflict",
            )
        return tuned.layout

    def _bits(self, weights: Weights) -> int | None:
        is_encoder = _is_text_encoder(weights)
        if self.bits == "auto":
            return _ENCODER_BITS if is_encoder else 16
        if is_encoder and (self.bits is None or not 2 <= self.bits <= _ENCODER_BITS):
            bits = self.bits or "float32"
            raise RunError(
                f"a text encoder is stored in at most {_ENCODER_BITS} bits, got {bits}; leave out `bits`",
                code="conflict",
            )
        return self.bits

    def _pooling(self, weights: Weights) -> str:
        tuned = read_reward_settings(weights)
        if tuned is None:
            return "answer" if self.pooling == "auto" and _is_text_encoder(weights) else self.pooling
        if self.pooling not in ("auto", tuned.pooling):
            raise RunError(
                f"{weights.name} is tuned with its pooling {tuned.pooling!r}; leave out `pooling`", code="conflict"
            )
        return tuned.pooling

    def plan(self, weights: Weights, data: PreferencePairs) -> PreferencePlan:
        train, dev = self._select_training_pairs(data), _without_ties(data.dev)
        if not train:
            reason = f": all {len(data.train):,} are ties; `ties='soft'` learns from ties" if data.train else ""
            raise InputError(f"there are no pairs to train on{reason}", code="no_data")
        if self.recipe.patience is not None and not dev:
            raise RunError("early stopping (`patience`) needs development pairs; give `dev`")
        rated = any(pair.good_rating is not None or pair.bad_rating is not None for pair in train)
        if self.regression and not rated:
            raise InputError(
                "no pair has ratings ('good_rank', 'bad_rank') for `regression`; leave it out", code="conflict"
            )
        heads: tuple[str, ...] = ()
        if _is_text_encoder(weights):
            encoder = load_text_encoder(str(weights.folder))
            settings = self._encoder_settings(weights, encoder)
            encode = token_encoder(encoder.tokenizer)
            pad = 0
            heads = tuple(name for name in encoder.heads if name != EncoderReward.HEAD)
        else:
            settings, encode, pad = self._read_base(weights)
        examples = encode_answer_pairs(encode, settings, pad, train)
        sampler = self.make_sampler(examples, None if self.balance == 1 else examples.criteria, self.balance)
        batches = sampler.batches(0)
        most = self.recipe.max_tokens or int(examples.spaces.sum())
        parts = [part for batch in batches for part in split_parts(batch, examples.spaces, most)]
        tokens = float(examples.lengths[np.concatenate(batches)].sum())
        return PreferencePlan(
            settings=settings,
            train=examples,
            dev=encode_answer_pairs(encode, settings, pad, dev) if dev else None,
            sampler=sampler,
            padding=1 - tokens / sum(map(examples.padded_tokens, parts)),
            ties=(len(data.train) - len(train), len(data.dev) - len(dev)),
            left_out_heads=heads,
        )

    def _read_base(self, weights: Weights) -> tuple[RewardSettings, Encode, int]:
        """Return the settings, tokenizer and padding token of a base for transformers."""
        from metrist.models.encoder import padding_id
        from metrist.models.reward_model import make_settings, resolve_pooling

        tuned = read_reward_settings(weights)
        if weights.runs_on_numpy and tuned is None:
            raise ModelError(
                f"{weights.name} is a likelihood model; a preference metric is tuned from 'metrist:preference-small', "
                "or trained from a model for transformers, such as BERT or BART"
            )
        tokenizer, shape = read_tokenizer(weights, self.base), read_shape(weights, self.base)
        pooling = resolve_pooling(weights, self._pooling(weights))
        settings = tuned or make_settings(shape, tokenizer, self._layout(weights), pooling)
        return settings, token_encoder(tokenizer), padding_id(shape.config, tokenizer)

    def _encoder_settings(self, weights: Weights, encoder: TextEncoder) -> RewardSettings:
        """Return the settings of a text encoder, within its limit of tokens; one that has learned no preferences gets
        those of the options."""
        sizes = encoder.sizes
        begin, end = (sizes.begin_token,), (sizes.end_token,)
        settings = read_reward_settings(weights) or RewardSettings(
            pooling=self._pooling(weights),  # type: ignore[arg-type]
            layout=self._layout(weights),
            frame=RewardFrame(prefix=begin, separator=end, suffix=end),
        )
        return settings.within(encoder.max_tokens)

    def build(self, weights: Weights, plan: PreferencePlan, placement: Placement) -> Learner:
        from metrist.models.reward_model import PairwiseRewardModel, RewardModel, init_reward_model, load_reward_model
        from metrist.models.trainable_encoder import TrainableEncoder, TrainableReward

        reward: RewardModel | TrainableReward
        if _is_text_encoder(weights):
            encoder = TrainableEncoder.load(weights.folder, EncoderReward.HEAD, self.recipe.seed)
            reward = TrainableReward(encoder, plan.settings.pooling)
        elif read_reward_settings(weights) is not None:
            reward = load_reward_model(weights, self.base, placement, plan.settings.pooling)
        else:
            reward = init_reward_model(weights, self.base, placement, plan.settings.pooling, self.recipe.seed)
        rates = {"line": _LINE_LR / self.recipe.lr}
        if self.head_lr is not None:
            head = TrainableReward.HEAD if isinstance(reward, TrainableReward) else "head."
            rates[f"reward.{head}"] = self.head_lr / self.recipe.lr
        criteria = len(set(plan.dev.criteria)) if plan.dev else 1
        return Learner(
            PairwiseRewardModel(reward, ratings=self.regression > 0),
            PairLoss(regression=self.regression, criteria=criteria),
            rates,
        )

    def publish(
        self, weights: Weights, data: PreferencePairs, plan: PreferencePlan, trainer: Trainer, folder: TrainingFolder
    ) -> dict[str, Any]:
        is_encoder = _is_text_encoder(weights)
        tokenizer: Any = load_text_encoder(str(weights.folder)).tokenizer if is_encoder else None
        tokenizer = tokenizer or read_tokenizer(weights, self.base)
        reward = self._make_scorer(weights, plan, trainer, tokenizer)
        settings = self._measure(data, reward)
        dev = _without_ties(data.dev)
        bits = self._bits(weights)
        model = trainer.model.reward

        def save(path: Path) -> None:
            model.save(path, tokenizer, settings)

        def export_encoder(path: Path) -> None:
            model.encoder.export(weights.folder, path, bits)
            settings.write(path)

        if is_encoder:
            folder.put_model(export_encoder, weights.folder)
            figures = self._compare_stored(weights, dev)
        elif weights.runs_on_numpy:
            base, group = find_weights(self.base), default_group(weights.config)
            folder.put_exported(base.folder, save, lambda trained, out: export_reward(trained, out, bits, group))
            figures = self._compare_stored(base, dev)
        else:
            folder.put_model(save)
            figures = {"by_criterion": accuracy_by_criterion(dev, score_pairs(reward, dev)) if dev else None}
        return {
            "metric": self._format_metric(settings),
            "data": {**self.data, **_describe_data(plan, settings)},
            "choices": {
                "pooling": settings.pooling,
                **asdict(settings.layout),
                "balance": self.balance,
                "ties": self.ties,
                "regression": self.regression,
                "head_lr": self.head_lr,
                **({"bits": bits or "float32"} if weights.runs_on_numpy else {}),
                **describe_heads(plan),
            },
            **figures,
            "new_head": not is_preference_model(weights),
            "licence": self.licence or (INHERITED_LICENCE if weights.runs_on_numpy else None),
        }

    def _compare_stored(self, base: Weights, dev: Sequence[GoodBad]) -> dict[str, Any]:
        """Score the development pairs with the model as it was written and with its base, if that scores pairs."""
        if not dev:
            return {"by_criterion": None}
        after = score_pairs(load_reward(Options(model=str(self.out))), dev)
        by_criterion = accuracy_by_criterion(dev, after)
        longer = [np.sign(len(good) - len(bad)) for good, bad in (pair.answers for pair in dev)]
        stored: dict[str, Any] = {
            "after": sum(by_criterion.values()) / len(by_criterion),
            "pairs": len(dev),
            "longer_is_better": float(0.5 + 0.5 * np.mean(longer)),
        }
        if is_preference_model(base):
            before = score_pairs(load_reward(Options(model=str(base.folder))), dev)
            gained, lost = int((after.won & ~before.won).sum()), int((before.won & ~after.won).sum())
            # The exact two-sided p that a fair coin decides which way a changed pair goes.
            changed = gained + lost
            tail = sum(math.comb(changed, count) for count in range(min(gained, lost) + 1))
            stored |= {"gained": gained, "lost": lost, "sign_test_p": min(1.0, float(2 * tail / 2**changed))}
        return {"stored": stored, "by_criterion": by_criterion}

    def _make_scorer(self, weights: Weights, plan: PreferencePlan, trainer: Trainer, tokenizer: Any) -> TorchReward:
        """Return the trained model as it will score: in float32, with the batches of scoring."""
        import torch

        from metrist.models.encoder import CPU_TOKENS
        from metrist.models.reward_model import make_torch_reward

        device = torch.device(trainer.processes.device)
        tokens = CPU_TOKENS if device.type == "cpu" else self.recipe.max_tokens or trainer.state.max_tokens
        placement = Placement(device=device, dtype=torch.float32, tokens=tokens)
        return make_torch_reward(trainer.model.reward, tokenizer, plan.settings, placement, weights, self.base)

    def _measure(self, data: PreferencePairs, reward: TorchReward) -> RewardSettings:
        """Return the settings with the mean and spread of rewards, and with the criteria learned."""
        pairs = self._select_training_pairs(data)
        if len(pairs) > _MEASURED_PAIRS:
            drawn = np.random.default_rng([self.recipe.seed, 3]).choice(len(pairs), _MEASURED_PAIRS, replace=False)
            pairs = [pairs[number] for number in np.sort(drawn)]
        values = np.concatenate(score_pairs(reward, pairs))
        by_criterion: dict[str, list[GoodBad]] = {}
        for pair in data.train:
            by_criterion.setdefault(pair.criterion, []).append(pair)
        learned = {name: mode(pair.instruction for pair in pairs) for name, pairs in by_criterion.items()}
        fields = {}
        for name, pairs in by_criterion.items():
            # The labels of the most common context, and the most common label of answers in it.
            labels = [tuple(label for label, _ in pair.good) for pair in pairs]
            context = mode(row[:-1] for row in labels)
            fields[name] = (*context, mode(row[-1] for row in labels if row[:-1] == context))
        return replace(
            reward.settings,
            # Those of a model that was tuned come first: it knows its other criteria still.
            criteria={**reward.settings.criteria, **learned},
            fields={**reward.settings.fields, **fields},
            centre=float(values.mean()),
            spread=float(values.std()),
        )

    def _format_metric(self, settings: RewardSettings) -> str:
        """Return the metric to score with: with its default criterion if that was learned, else with the first."""
        learned = list(dict.fromkeys(pair.criterion for pair in self.train)) or list(settings.criteria)
        if "overall" in learned:
            return f"preference(model={str(self.out)!r})"
        return f"preference(model={str(self.out)!r}, criterion={learned[0]!r})"

    def _select_training_pairs(self, data: PreferencePairs) -> list[GoodBad]:
        return data.train if self.ties == "soft" else _without_ties(data.train)


def read_reward_settings(weights: Weights) -> RewardSettings | None:
    """Read the settings of a base that is a preference model already; None for any other model."""
    return RewardSettings.read(weights.folder, weights.name) if (weights.folder / REWARD).is_file() else None


def is_preference_model(weights: Weights) -> bool:
    """Whether a model scores answers: a text encoder may have been trained for something else."""
    if _is_text_encoder(weights) and EncoderReward.HEAD not in load_text_encoder(str(weights.folder)).heads:
        return False
    return read_reward_settings(weights) is not None


def _is_text_encoder(weights: Weights) -> bool:
    return weights.config.get("architecture") == TEXT_ENCODER


def base_instructions(options: Options) -> Mapping[str, str]:
    settings = read_reward_settings(find_weights(options))
    return settings.criteria if settings else {}


def _without_ties(pairs: Sequence[GoodBad]) -> list[GoodBad]:
    return [pair for pair in pairs if pair.certainty != 0.5]


def _describe_data(plan: PreferencePlan, settings: RewardSettings) -> dict[str, Any]:
    dev = Counter(plan.dev.criteria if plan.dev else ())
    sizes = Counter(plan.train.criteria)
    draws = plan.sampler.draws if isinstance(plan.sampler, Balanced) else sizes
    return {
        "criteria": {
            name: {
                "training_pairs": sizes[name],
                "drawn_an_epoch": draws.get(name, 0),
                "development_pairs": dev[name],
                "instruction": settings.criteria.get(name, ""),
            }
            for name in sorted({*sizes, *dev})
        },
        "training_pairs": len(plan.train),
        "development_pairs": len(plan.dev) if plan.dev else 0,
        "ties_left_out": sum(plan.ties),
        "tokens": int(plan.train.lengths.sum()),
        "padding": round(plan.padding, 4),
        "cut_answers": plan.train.cut.answers,
        "cut_tokens": plan.train.cut.tokens,
    }
