"""What a preference metric learns: to give the better of two answers the higher reward."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from metrist.data.pairs import GoodBad
from metrist.errors import InputError, RunError
from metrist.models.devices import Options, import_torch
from metrist.models.reward_layout import Layout, RewardSettings, token_encoder
from metrist.models.weights import Weights, find_weights, read_shape, read_tokenizer
from metrist.train.batches import Balanced, Sampler, Shuffled, split_parts
from metrist.train.card import make_card
from metrist.train.dataset import fill_instructions
from metrist.train.examples import AnswerPairs, accuracy_by_criterion, encode_answer_pairs, score_pairs
from metrist.train.folder import TrainingFolder
from metrist.train.recipe import Recipe
from metrist.train.session import Joined, alone, base_weights, close, deciding, joined, learning_place, opened, usable
from metrist.train.task import Batch, TrainingCallback

if TYPE_CHECKING:
    from torch import Tensor

    from metrist.models.reward_model import PairwiseRewardModel, TorchReward
    from metrist.train.loop import Trainer, TrainingOutcome


class PairLoss:
    """-log sigmoid(r_good - r_bad) where people were certain, its expectation where they were not. `regression` weighs
    the mean squared error of ratings beside it. Judged by the share of pairs whose good answer has the higher reward;
    equal rewards count as wrong."""

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
            losses = losses + self.regression * _squared_errors(model.line, torch.stack([good, bad]), batch["ratings"])
        total: Tensor = losses.sum()
        return total

    def judge(self, model: PairwiseRewardModel, batch: Batch) -> Tensor:
        good, bad = model(batch)
        won: Tensor = (good > bad) * batch["shares"]
        return won


def _squared_errors(line: Tensor, rewards: Tensor, ratings: Tensor) -> Tensor:
    """For each pair, the mean over its two answers; an answer without a rating has no error."""
    import torch

    known = ~ratings.isnan()
    errors = torch.where(known, line[0] * rewards + line[1] - ratings.nan_to_num(), 0.0)
    return (errors**2).mean(0)


# Training a preference metric: a reward model learns to give the better of two answers the higher number.
#
# Model and loss are those of the HEAP paper; any AutoModel can be the base.


_T = TypeVar("_T")
Ties = Literal["drop", "soft"]

#: What suits encoders of about 100 million weights and some ten thousand pairs.
RECIPE = Recipe(epochs=5, batch=32, lr=2e-5, warmup=0.1, weight_decay=0.01, bucket=20)
#: Mean and spread of rewards are those of so many training pairs at most.
_MEASURED = 4_000
#: The line from rewards to ratings has two numbers, which may be far from where they begin.
_LINE_LR = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTask:
    """What the user asked for. `balance` is what a criterion's share of the training grows with: its number of pairs to
    this power. Pairs of certainty .5 are ties, dropped or learned as such. `regression` weighs the error of ratings
    beside the loss of pairs; `head_lr` is a learning rate for the last layer alone. `data` and `licence` are what the
    caller knows of the data, for the card."""

    train: Sequence[GoodBad]
    base: Options
    out: Path
    dev: Sequence[GoodBad] = ()
    layout: Layout = field(default_factory=Layout)
    pooling: str = "auto"
    recipe: Recipe = RECIPE
    balance: float = 1.0
    ties: Ties = "drop"
    regression: float = 0.0
    head_lr: float | None = None
    resume: bool = False
    checkpoint_every: int = 1_000
    keep_checkpoints: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.balance <= 1:
            raise RunError(f"balance must lie between 0 (equal shares) and 1 (as the data is), got {self.balance}")
        if self.ties not in ("drop", "soft"):
            raise RunError(f"ties must be 'drop' or 'soft', got {self.ties!r}")
        if not self.regression >= 0:
            raise RunError(f"regression must be a weight of at least 0, got {self.regression}")
        if self.head_lr is not None and not self.head_lr > 0:
            raise RunError(f"head_lr must be above 0, or None for the recipe's lr, got {self.head_lr}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePlan:
    """What a training would do. `padding` is the share of an epoch's computed tokens that are padding; `ties` are pairs
    left out of training and of development."""

    settings: RewardSettings
    train: AnswerPairs
    dev: AnswerPairs | None
    sampler: Sampler
    steps: int
    padding: float
    ties: tuple[int, int]

    def remarks(self) -> list[str]:
        """What the user should know before it is trained on."""
        said = []
        if any(self.ties):
            said.append(f"{self.ties[0]:,} ties of the training pairs and {self.ties[1]:,} for development left out")
        answers, tokens = self.train.cut
        if answers:
            said.append(
                f"{answers:,} of {2 * len(self.train):,} answers have too long a context, or are too long; "
                f"{tokens:,} tokens were left out"
            )
        return said


def plan(request: PreferenceTask) -> PreferencePlan:
    """Tokenise all, but load no weights; what the training would refuse is refused."""
    import_torch("training a preference metric")
    request = _complete(request, alone(request.base, request.recipe))
    weights = base_weights(request.base)
    usable(request.out, _asked(request, weights), resume=request.resume)
    return _planned(request, weights)


def train(request: PreferenceTask, watcher: TrainingCallback | None = None) -> dict[str, Any]:
    """Train, or go on with a training that was stopped, or find it done; gives the card. The model, its tokenizer and
    the card lie in `request.out`. Pairs without an instruction get that of their criterion, where metrist knows it."""
    import_torch("training a preference metric")
    with joined(request.base, request.recipe, watcher) as together:
        return _train(_complete(request, together.recipe), together)


def _complete(request: PreferenceTask, recipe: Recipe) -> PreferenceTask:
    train, dev = fill_instructions(request.train), fill_instructions(request.dev)
    return replace(request, recipe=recipe, train=train, dev=dev)


def _train(request: PreferenceTask, together: Joined) -> dict[str, Any]:
    weights = base_weights(request.base)
    with opened(request.out, _asked(request, weights), together, resume=request.resume) as done:
        if done is not None:
            together.watcher.message(f"{request.out} is finished already; nothing was trained")
            return done
        planned = _planned(request, weights)
        for remark in planned.remarks():
            together.watcher.message(remark)
        training = _training(request, weights, planned, together)
        outcome = training.run()
        if together.ranks.is_first:
            _publish(request, weights, planned, training, outcome)
        together.ranks.wait()
        return TrainingFolder(request.out).card() or {}


def _training(request: PreferenceTask, weights: Weights, planned: PreferencePlan, together: Joined) -> Trainer:
    from metrist.models.reward_model import PairwiseRewardModel, init_reward_model
    from metrist.train.checkpoints import Checkpoints
    from metrist.train.loop import Trainer

    recipe = request.recipe
    reward = init_reward_model(
        weights, request.base, learning_place(together.ranks), planned.settings.pooling, recipe.seed
    )
    judged = len(set(planned.dev.criteria)) if planned.dev else 1
    return Trainer(
        model=PairwiseRewardModel(reward, ratings=request.regression > 0),
        objective=PairLoss(regression=request.regression, criteria=judged),
        examples=planned.train,
        dev=planned.dev,
        sampler=planned.sampler,
        recipe=recipe,
        checkpoints=Checkpoints(TrainingFolder(request.out).checkpoints, every=request.checkpoint_every),
        ranks=together.ranks,
        watcher=together.watcher,
        rates=_rates(request),
    )


def _rates(request: PreferenceTask) -> dict[str, float]:
    """What learns faster than the body: the head where asked for, and the line from rewards to ratings, which begins
    anywhere."""
    rates = {"line": _LINE_LR / request.recipe.lr}
    return rates if request.head_lr is None else {**rates, "reward.head.": request.head_lr / request.recipe.lr}


def _publish(
    request: PreferenceTask, weights: Weights, planned: PreferencePlan, training: Trainer, outcome: TrainingOutcome
) -> None:
    """Put the model and its card into the folder, then clear up."""
    tokenizer = read_tokenizer(weights, request.base)
    reward = _scoring(request, weights, planned, training, tokenizer)
    settings = _measured(request, reward)
    TrainingFolder(request.out).put_model(lambda into: reward.model.save(into, tokenizer, settings))
    dev = _without_ties(request.dev)
    made = make_card(
        kind="preference",
        metric=_metric(request.out, settings),
        fingerprint=find_weights(Options(model=str(request.out))).fingerprint,
        base={"model": request.base.model, "revision": request.base.revision, "fingerprint": weights.fingerprint},
        data={**request.data, **_data(planned, settings)},
        figure=training.objective.figure,
        recipe=request.recipe,
        outcome=outcome,
        ranks=training.ranks,
        choices=_choices(request, settings),
        by_criterion=accuracy_by_criterion(dev, score_pairs(reward, dev)) if dev else None,
        licence=request.licence,
    )
    close(request.out, made, training, keep_checkpoints=request.keep_checkpoints)


def _scoring(
    request: PreferenceTask, weights: Weights, planned: PreferencePlan, training: Trainer, tokenizer: Any
) -> TorchReward:
    """What was trained, as it will score: in float32."""
    from metrist.models.reward_model import make_torch_reward

    place = replace(learning_place(training.ranks), tokens=request.recipe.max_tokens or training.at.max_tokens)
    return make_torch_reward(training.model.reward, tokenizer, planned.settings, place, weights, request.base)


def _measured(request: PreferenceTask, reward: TorchReward) -> RewardSettings:
    """The settings with what is known of the model now: where its rewards lie, and what it learned."""
    pairs = _learned(request)
    if len(pairs) > _MEASURED:
        some = np.random.default_rng([request.recipe.seed, 3]).choice(len(pairs), _MEASURED, replace=False)
        pairs = [pairs[number] for number in np.sort(some)]
    values = np.concatenate(score_pairs(reward, pairs))
    by_criterion: dict[str, list[GoodBad]] = {}
    for pair in request.train:
        by_criterion.setdefault(pair.criterion, []).append(pair)
    return replace(
        reward.settings,
        criteria={name: _usual(pair.instruction for pair in some) for name, some in by_criterion.items()},
        fields={name: _usual_fields(some) for name, some in by_criterion.items()},
        centre=float(values.mean()),
        spread=float(values.std()),
    )


def _usual(said: Iterable[_T]) -> _T:
    return Counter(said).most_common(1)[0][0]


def _usual_fields(pairs: Iterable[GoodBad]) -> tuple[str, ...]:
    """The most common context, by its labels, and the most common label of answers in it."""
    shown = [tuple(label for label, _ in pair.good) for pair in pairs]
    context = _usual(labels[:-1] for labels in shown)
    return (*context, _usual(labels[-1] for labels in shown if labels[:-1] == context))


def _metric(out: Path, settings: RewardSettings) -> str:
    """What to score with: the metric's own criterion if it was learned, else the first that was."""
    if "overall" in settings.criteria:
        return f"preference(model={str(out)!r})"
    return f"preference(model={str(out)!r}, criterion={next(iter(settings.criteria))!r})"


def _asked(request: PreferenceTask, weights: Weights) -> dict[str, Any]:
    """What decides the weights that come out. Names of files do not, nor how much is computed at once."""
    return {
        "kind": "preference",
        "base": weights.fingerprint,
        "data": _digest(request.train),
        "dev": _digest(request.dev),
        "layout": asdict(request.layout),
        "pooling": request.pooling,
        "balance": request.balance,
        "ties": request.ties,
        "regression": request.regression,
        "head_lr": request.head_lr,
        **deciding(request.recipe),
    }


def _digest(pairs: Sequence[GoodBad]) -> str:
    """A SHA-256 over all that training reads of the pairs."""
    total = hashlib.sha256()
    for pair in pairs:
        read = (
            pair.criterion,
            pair.instruction,
            pair.good,
            pair.bad,
            pair.certainty,
            pair.good_rating,
            pair.bad_rating,
        )
        total.update(repr(read).encode("utf-8", "surrogatepass"))
    return total.hexdigest()


def _planned(request: PreferenceTask, weights: Weights) -> PreferencePlan:
    from metrist.models.reward_model import make_settings, padding_id, resolve_pooling

    train, dev = _learned(request), _without_ties(request.dev)
    _check(request, train, dev)
    tokenizer, shape = read_tokenizer(weights, request.base), read_shape(weights, request.base)
    settings = make_settings(shape, tokenizer, request.layout, resolve_pooling(weights, request.pooling))
    tokens, pad = token_encoder(tokenizer), padding_id(shape.config, tokenizer)
    examples = encode_answer_pairs(tokens, settings, pad, train)
    sampler = _sampler(examples, request)
    return PreferencePlan(
        settings=settings,
        train=examples,
        dev=encode_answer_pairs(tokens, settings, pad, dev) if dev else None,
        sampler=sampler,
        steps=request.recipe.epochs * sampler.steps,
        padding=_padding(examples, sampler, request.recipe),
        ties=(len(request.train) - len(train), len(request.dev) - len(dev)),
    )


def _learned(request: PreferenceTask) -> list[GoodBad]:
    return list(request.train) if request.ties == "soft" else _without_ties(request.train)


def _without_ties(pairs: Sequence[GoodBad]) -> list[GoodBad]:
    return [pair for pair in pairs if pair.certainty != 0.5]


def _check(request: PreferenceTask, train: Sequence[GoodBad], dev: Sequence[GoodBad]) -> None:
    if not train:
        why = f": all {len(request.train):,} are ties, which --ties soft learns from" if request.train else ""
        raise InputError(f"there are no pairs to train on{why}")
    if request.recipe.patience is not None and not dev:
        raise RunError("to stop early (--patience) there must be development pairs to judge by; give --dev")
    rated = any(pair.good_rating is not None or pair.bad_rating is not None for pair in train)
    if request.regression and not rated:
        raise InputError("no pair has ratings ('good_rank', 'bad_rank') for --regression to learn; leave it out")


def _sampler(examples: AnswerPairs, request: PreferenceTask) -> Sampler:
    recipe = request.recipe
    how: dict[str, Any] = {"batch": recipe.batch, "seed": recipe.seed, "bucket": recipe.bucket}
    if request.balance == 1:
        return Shuffled(lengths=examples.lengths, **how)
    return Balanced(lengths=examples.lengths, groups=examples.criteria, balance=request.balance, **how)


def _padding(examples: AnswerPairs, sampler: Sampler, recipe: Recipe) -> float:
    """The share of padding among the tokens that the first epoch computes."""
    batches = sampler.batches(0)
    at_once = recipe.max_tokens or int(examples.spaces.sum())
    cut = [part for batch in batches for part in split_parts(batch, examples.spaces, at_once)]
    computed = sum(map(examples.padded_tokens, cut))
    return 1 - float(examples.lengths[np.concatenate(batches)].sum()) / computed


def _data(planned: PreferencePlan, settings: RewardSettings) -> dict[str, Any]:
    dev = Counter(planned.dev.criteria if planned.dev else ())
    sizes = Counter(planned.train.criteria)
    draws = planned.sampler.draws if isinstance(planned.sampler, Balanced) else sizes
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
        "training_pairs": len(planned.train),
        "development_pairs": len(planned.dev) if planned.dev else 0,
        "ties_left_out": sum(planned.ties),
        "tokens": int(planned.train.lengths.sum()),
        "padding": round(planned.padding, 4),
        "cut_answers": planned.train.cut.answers,
        "cut_tokens": planned.train.cut.tokens,
    }


def _choices(request: PreferenceTask, settings: RewardSettings) -> dict[str, Any]:
    """What was chosen beside the recipe, for the card."""
    return {
        "pooling": settings.pooling,
        **asdict(settings.layout),
        "balance": request.balance,
        "ties": request.ties,
        "regression": request.regression,
        "head_lr": request.head_lr,
    }
