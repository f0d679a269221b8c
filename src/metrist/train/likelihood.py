"""Fine-tune a likelihood metric: a sequence-to-sequence model learns to assign targets a high probability.

The defaults are the recipe of the BARTScore paper for its paraphrase variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from metrist.errors import ModelError, format_count
from metrist.models.devices import Options, Placement
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.export import default_group, export_t5
from metrist.models.pretrained import quiet_transformers, read_model, read_shape, read_tokenizer
from metrist.models.tokenization import set_languages
from metrist.models.weights import Weights, find_weights
from metrist.train.folder import INHERITED_LICENCE, TrainingFolder
from metrist.train.task import IGNORED, Batch, Learner, TrainingPlan, TrainingTask
from metrist.train.text_pairs import TextPairData, TokenPairs, encode_text_pairs, load_text_pairs

if TYPE_CHECKING:
    from torch import Tensor

    from metrist.train.loop import Trainer

#: The paper drew this many of ParaBank2's pairs.
PAIRS = 30_000


class TokenLoss:
    """Mean cross-entropy of the target tokens, as transformers computes it from labels. The development figure is what
    the metric reports: the mean over pairs of the mean log-probability of a target's tokens."""

    figure = "mean log-probability"

    def loss(self, model: Any, batch: Batch) -> Tensor:
        total: Tensor = model(**batch, use_cache=False).loss * (batch["labels"] != IGNORED).sum()
        return total

    def judge(self, model: Any, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        labels: Tensor = batch["labels"]
        logits = model(**batch, use_cache=False).logits
        losses = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none")
        return -losses.view_as(labels).sum(1) / (labels != IGNORED).sum(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodPlan(TrainingPlan):
    data: TextPairData
    train: TokenPairs
    dev: TokenPairs | None

    def remarks(self) -> list[str]:
        conditions, targets, tokens = self.train.cut
        cut = (
            f"{format_count(conditions, 'condition')} and {format_count(targets, 'target')} of the training pairs were "
            f"cut by {format_count(tokens, 'token')}"
        )
        return [*self.data.remarks(), *([cut] if tokens else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodTask(TrainingTask):
    """Trains a sequence-to-sequence model. `dev` is a file or a share of the pairs. `pairs` is the number of pairs
    drawn from the training data (0: all). `max_length` truncates texts to this many tokens (None: the model's
    limit). A base in metrist's own format ends in that format, in `bits` per weight (None: float32)."""

    kind: ClassVar[str] = "likelihood"

    data: tuple[Path, ...]
    dev: str | None = None
    pairs: int = PAIRS
    max_length: int | None = None
    skip_bad: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    bits: int | None = 16

    def load_data(self) -> TextPairData:
        return load_text_pairs(
            self.data, self.dev, count=self.pairs, seed=self.recipe.seed, skip_bad=self.skip_bad, fields=self.fields
        )

    def own_identity(self, weights: Weights, data: TextPairData) -> dict[str, Any]:
        return {
            "data": [file.sha256 for file in data.files],
            "dev": data.dev_file.sha256 if data.dev_file else self.dev,
            "pairs": self.pairs,
            "max_length": self.max_length,
            **({"fields": dict(self.fields)} if self.fields else {}),
            "languages": list(self.base.languages) if self.base.languages else None,
            **({"bits": self.bits} if weights.runs_on_numpy else {}),
        }

    def plan(self, weights: Weights, data: TextPairData) -> LikelihoodPlan:
        tokenizer, config = _read_tokenizer(weights, self.base), read_shape(weights, self.base).config
        if not config.is_encoder_decoder:
            raise ModelError(
                f"{weights.name} is a {config.model_type!r} model; a likelihood metric is trained from a "
                "sequence-to-sequence model, such as BART or T5"
            )
        train = encode_text_pairs(tokenizer, config, data.train, self.max_length)
        dev = encode_text_pairs(tokenizer, config, data.dev, self.max_length) if data.dev else None
        return LikelihoodPlan(data=data, train=train, dev=dev, sampler=self.make_sampler(train))

    def build(self, weights: Weights, plan: LikelihoodPlan, placement: Placement) -> Learner:  # noqa: ARG002
        model = read_model("AutoModelForSeq2SeqLM", weights, self.base, placement)
        return Learner(model.requires_grad_(True), TokenLoss())

    def publish(
        self, weights: Weights, data: TextPairData, plan: LikelihoodPlan, trainer: Trainer, folder: TrainingFolder
    ) -> dict[str, Any]:
        tokenizer = _read_tokenizer(weights, self.base)

        def save(path: Path) -> None:
            with quiet_transformers():
                trainer.model.save_pretrained(path)
                tokenizer.save_pretrained(path)

        if weights.runs_on_numpy:
            base = find_weights(self.base)
            folder.put_exported(base.folder, save, lambda trained, out: self._export(weights, base, trained, out))
            stored = self._judge_stored(data)
        else:
            folder.put_model(save)
            stored = None
        cut = plan.train.cut
        facts = {
            "files": [file.describe() for file in data.files],
            "dev_file": data.dev_file.describe() if data.dev_file else None,
            "training_pairs": len(data.train),
            "pairs_not_drawn": data.not_drawn,
            "tokens": int(plan.train.lengths.sum()),
            "cut_conditions": cut.conditions,
            "cut_targets": cut.targets,
            "cut_tokens": cut.tokens,
            "development_pairs": len(data.dev),
            "development_pairs_that_share_a_text": data.shared,
        }
        return {
            "metric": f"{'likelihood' if weights.runs_on_numpy else 'bartscore'}(model={str(self.out)!r})",
            "data": facts,
            "stored": stored,
            "choices": {"bits": self.bits or "float32"} if weights.runs_on_numpy else None,
            "licence": INHERITED_LICENCE if weights.runs_on_numpy else None,
        }

    def _export(self, weights: Weights, base: Weights, trained: Path, out: Path) -> None:
        group, bits = default_group(weights.config), self.bits

        def depth(name: str) -> tuple[int, int | None] | None:
            # Tables of relative positions are too small to be worth rounding.
            return None if bits is None or "relative_attention_bias" in name else (bits, group)

        export_t5(trained, out, depth, max_tokens=storage.read_config(base.folder, "t5")["max_tokens"])

    def _judge_stored(self, data: TextPairData) -> dict[str, Any] | None:
        from metrist.models.numpy_inference.t5 import NumpySeq2Seq

        if not data.dev:
            return None
        result = NumpySeq2Seq(find_weights(Options(model=str(self.out)))).log_probs(data.dev, self.max_length)
        means = np.add.reduceat(result.logprobs.astype(np.float64), result.starts[:-1]) / np.diff(result.starts)
        return {"after": float(means.mean()), "pairs": len(data.dev)}


def _read_tokenizer(weights: Weights, options: Options) -> Any:
    return set_languages(read_tokenizer(weights, options), options)
