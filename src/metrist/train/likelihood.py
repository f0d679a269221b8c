"""What a likelihood metric learns: to find the tokens of targets likely, given their conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrist.train.examples import IGNORED
from metrist.train.task import Batch

if TYPE_CHECKING:
    from torch import Tensor
from dataclasses import dataclass, field, replace
from pathlib import Path

from metrist.errors import ModelError
from metrist.models.devices import Options, import_torch
from metrist.models.tokenization import set_languages
from metrist.models.weights import Weights, find_weights, quiet_transformers, read_model, read_tokenizer
from metrist.train.batches import Shuffled
from metrist.train.card import make_card
from metrist.train.dataset import TextPairData, describe_file, load_text_pairs
from metrist.train.distributed import ProcessGroup
from metrist.train.examples import TokenPairs, encode_text_pairs
from metrist.train.folder import TrainingFolder
from metrist.train.recipe import Recipe
from metrist.train.session import (
    Joined,
    alone,
    base_weights,
    close,
    deciding,
    joined,
    learning_place,
    opened,
    usable,
)
from metrist.train.task import TrainingCallback

if TYPE_CHECKING:
    from metrist.train.loop import Trainer, TrainingOutcome


class TokenLoss:
    """The mean cross-entropy of target tokens, as transformers computes it from labels; judged by the mean over pairs
    of what the metric itself will say: the mean log-probability of a target's tokens."""

    figure = "mean log-probability"

    def loss(self, model: Any, batch: Batch) -> Tensor:
        summed: Tensor = model(**batch, use_cache=False).loss * (batch["labels"] != IGNORED).sum()
        return summed

    def judge(self, model: Any, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        labels: Tensor = batch["labels"]
        logits = model(**batch, use_cache=False).logits
        losses = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none")
        return -losses.view_as(labels).sum(1) / (labels != IGNORED).sum(1)


# Fine-tuning a likelihood metric: a sequence-to-sequence model learns to find targets likely, given their conditions.
#
# The defaults are the recipe with which the BARTScore paper made its paraphrase variant.


#: The paper drew so many of ParaBank2's pairs.
PAIRS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodTask:
    """What the user asked for. `dev` names a file or a share of the pairs; `pairs` are drawn of the training data (0:
    all); `max_length` cuts texts at so many tokens (None: at what the model can take)."""

    data: tuple[Path, ...]
    base: Options
    out: Path
    dev: str | None = None
    pairs: int = PAIRS
    max_length: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    skip_bad: bool = False
    resume: bool = False
    checkpoint_every: int = 500
    keep_checkpoints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodPlan:
    """What a training would do."""

    material: TextPairData
    train: TokenPairs
    dev: TokenPairs | None
    steps: int


def plan(request: LikelihoodTask) -> LikelihoodPlan:
    """Read and tokenise all, but load no weights; what the training would refuse is refused."""
    import_torch("training a likelihood metric")
    request = replace(request, recipe=alone(request.base, request.recipe))
    weights, material = base_weights(request.base), _gathered(request)
    usable(request.out, _asked(request, weights, material), resume=request.resume)
    return _planned(request, weights, material)


def train(request: LikelihoodTask, watcher: TrainingCallback | None = None) -> dict[str, Any]:
    """Train, or go on with a training that was stopped, or find it done; gives the card. The model, its tokenizer and
    the card lie in `request.out`."""
    import_torch("training a likelihood metric")
    with joined(request.base, request.recipe, watcher) as together:
        return _train(replace(request, recipe=together.recipe), together)


def _train(request: LikelihoodTask, together: Joined) -> dict[str, Any]:
    weights, material = base_weights(request.base), _gathered(request)
    with opened(request.out, _asked(request, weights, material), together, resume=request.resume) as done:
        if done is not None:
            together.watcher.message(f"{request.out} is finished already; nothing was trained")
            return done
        planned = _planned(request, weights, material)
        for remark in (*material.remarks(), *_cut_remarks(planned)):
            together.watcher.message(remark)
        training = _training(request, weights, planned, together)
        outcome = training.run()
        if together.ranks.is_first:
            _publish(request, weights, planned, training, outcome)
        together.ranks.wait()
        return TrainingFolder(request.out).card() or {}


def _training(request: LikelihoodTask, weights: Weights, planned: LikelihoodPlan, together: Joined) -> Trainer:
    from metrist.train.checkpoints import Checkpoints
    from metrist.train.loop import Trainer

    return Trainer(
        model=_trainable(weights, request.base, together.ranks),
        objective=TokenLoss(),
        examples=planned.train,
        dev=planned.dev,
        sampler=_sampler(planned.train, request),
        recipe=request.recipe,
        checkpoints=Checkpoints(TrainingFolder(request.out).checkpoints, every=request.checkpoint_every),
        ranks=together.ranks,
        watcher=together.watcher,
    )


def _publish(
    request: LikelihoodTask, weights: Weights, planned: LikelihoodPlan, training: Trainer, outcome: TrainingOutcome
) -> None:
    """Put the model and its card into the folder, then clear up."""
    tokenizer = _tokenizer(weights, request.base)
    TrainingFolder(request.out).put_model(lambda into: _save(training.model, tokenizer, into))
    made = make_card(
        kind="likelihood",
        metric=f"bartscore(model={str(request.out)!r})",
        fingerprint=find_weights(Options(model=str(request.out))).fingerprint,
        base={"model": request.base.model, "revision": request.base.revision, "fingerprint": weights.fingerprint},
        data=_data(planned),
        figure=training.objective.figure,
        recipe=request.recipe,
        outcome=outcome,
        ranks=training.ranks,
    )
    close(request.out, made, training, keep_checkpoints=request.keep_checkpoints)


def _asked(request: LikelihoodTask, weights: Weights, material: TextPairData) -> dict[str, Any]:
    """What decides the weights that come out. Names of files do not, nor how much is computed at once."""
    return {
        "kind": "likelihood",
        "base": weights.fingerprint,
        "data": [file.sha256 for file in material.files],
        "dev": material.dev_file.sha256 if material.dev_file else request.dev,
        "pairs": request.pairs,
        "max_length": request.max_length,
        "languages": list(request.base.languages) if request.base.languages else None,
        **deciding(request.recipe),
    }


def _gathered(request: LikelihoodTask) -> TextPairData:
    return load_text_pairs(
        request.data, request.dev, count=request.pairs, seed=request.recipe.seed, skip_bad=request.skip_bad
    )


def _planned(request: LikelihoodTask, weights: Weights, material: TextPairData) -> LikelihoodPlan:
    tokenizer, config = _tokenizer(weights, request.base), _config(weights, request.base)
    train = encode_text_pairs(tokenizer, config, material.train, request.max_length)
    dev = encode_text_pairs(tokenizer, config, material.dev, request.max_length) if material.dev else None
    return LikelihoodPlan(
        material=material, train=train, dev=dev, steps=request.recipe.epochs * _sampler(train, request).steps
    )


def _sampler(examples: TokenPairs, request: LikelihoodTask) -> Shuffled:
    recipe = request.recipe
    return Shuffled(lengths=examples.lengths, batch=recipe.batch, seed=recipe.seed, bucket=recipe.bucket)


def _tokenizer(weights: Weights, options: Options) -> Any:
    return set_languages(read_tokenizer(weights, options), options)


def _config(weights: Weights, options: Options) -> Any:
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(
                weights.folder, local_files_only=True, trust_remote_code=options.trust_remote_code
            )
    except (OSError, ValueError, KeyError) as fault:
        raise ModelError(f"{weights.name}: its config.json cannot be used: {str(fault).splitlines()[0]}") from fault
    if not config.is_encoder_decoder:
        raise ModelError(
            f"{weights.name} is of the kind {config.model_type!r}; a likelihood metric is trained from a "
            "sequence-to-sequence model, such as BART or T5"
        )
    return config


def _trainable(weights: Weights, options: Options, ranks: ProcessGroup) -> Any:
    return read_model("AutoModelForSeq2SeqLM", weights, options, learning_place(ranks)).requires_grad_(True)


def _save(model: Any, tokenizer: Any, into: Path) -> None:
    with quiet_transformers():
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)


def _cut_remarks(planned: LikelihoodPlan) -> list[str]:
    conditions, targets, tokens = planned.train.cut
    if not tokens:
        return []
    return [
        f"{conditions:,} conditions and {targets:,} targets of the training pairs are too long and were cut; "
        f"{tokens:,} tokens were left out"
    ]


def _data(planned: LikelihoodPlan) -> dict[str, Any]:
    material, cut = planned.material, planned.train.cut
    return {
        "files": [describe_file(file) for file in material.files],
        "dev_file": describe_file(material.dev_file) if material.dev_file else None,
        "training_pairs": len(material.train),
        "pairs_not_drawn": material.left_out,
        "tokens": int(planned.train.lengths.sum()),
        "cut_conditions": cut.conditions,
        "cut_targets": cut.targets,
        "cut_tokens": cut.tokens,
        "development_pairs": len(material.dev),
        "development_pairs_that_share_a_text": material.shared,
    }
