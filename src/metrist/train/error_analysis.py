"""Fine-tune an error analyst: a causal model learns to list the errors of an output in the form of TIGERScore.

All weights are trained, or a LoRA adapter beside them. Only the analysis counts in the loss, not the prompt before it.
Several examples share a row of tokens without seeing each other, so that little is padded; the gradients are those of
separate rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from metrist.errors import InputError, ModelError, RunError, SpecError, agree, format_count
from metrist.llm.messages import Turns, has_chat_template
from metrist.models.devices import Options, Placement, import_torch
from metrist.models.gguf_export import GGUF_FILE, check_architecture, write_gguf
from metrist.models.pretrained import quiet_transformers, read_model, read_tokenizer
from metrist.models.weights import Weights, find_adapter, find_weights
from metrist.train.analyses import (
    Analysis,
    AnalysisData,
    encode_analyses,
    load_analyses,
)
from metrist.train.checkpoints import load_weights
from metrist.train.distributed import shard_model
from metrist.train.folder import TrainingFolder
from metrist.train.recipe import AnalystSettings, Recipe, Stored
from metrist.train.task import IGNORED, Batch, Learner, TrainingPlan, TrainingTask, hash_rows

if TYPE_CHECKING:
    from torch import Tensor

    from metrist.models.lora import LoraSettings
    from metrist.train.loop import Trainer

Method = Literal["lora", "full"]
#: The names of the trained metric and of its base in cards and tables.
TRAINED, BASE = "this metric", "the base, zero-shot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings of a training that go together."""

    recipe: Recipe
    method: Method
    source: str


PRESETS: Mapping[str, Preset] = {
    "lora": Preset(
        recipe=Recipe(epochs=2, batch=32, lr=2e-4, schedule="cosine", warmup=0.1),
        method="lora",
        source="one GPU, or a small model",
    ),
    "tigerscore-7b": Preset(
        recipe=Recipe(epochs=3, batch=128, lr=2e-5, schedule="cosine", warmup=0.1),
        method="full",
        source="TIGERScore paper, section 2.4",
    ),
    "tigerscore-13b": Preset(
        recipe=Recipe(epochs=2, batch=128, lr=1e-5, schedule="cosine", warmup=0.1),
        method="full",
        source="TIGERScore paper, section 2.4",
    ),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise SpecError(f"no preset {name!r}; expected one of {', '.join(PRESETS)}", code="unknown_name")
    return PRESETS[name]


# ---- Loss


class AnalysisLoss:
    """The cross-entropy of the analyses' tokens. Only they go through the output layer, which takes most of the memory
    of a small model with a large vocabulary. The development figure is the mean log-probability of a token."""

    figure = "log-probability of the analyses per token"

    def __init__(self, model: Any, *, packed: bool) -> None:
        self._packed = packed
        #: Whether only the target tokens go through the output layer.
        self.layered = _has_plain_head(model)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return -self.log_probabilities(model, batch).sum()

    def judge(self, model: Any, batch: Batch) -> Tensor:
        import torch

        values = self.log_probabilities(model, batch)
        owners = batch["owners"][batch["labels"] != IGNORED]
        count = int(owners.max()) + 1
        sums = torch.zeros(count, device=values.device).index_add(0, owners, values)
        return sums / torch.bincount(owners, minlength=count)

    def log_probabilities(self, model: Any, batch: Batch) -> Tensor:
        """The log-probability of each target token, row by row."""
        import torch

        targets = batch["labels"] != IGNORED
        inputs = {"input_ids": batch["input_ids"]}
        if self._packed:
            # Whether the token in a column may be seen from a row (batch × 1 × row × column): it comes before it, in
            # the same example. Padding sees itself, since a token that sees nothing has no defined attention.
            segments = batch["segments"]
            earlier = torch.ones(segments.shape[1:] * 2, dtype=torch.bool, device=segments.device).tril()
            mask = ((segments[:, :, None] == segments[:, None, :]) & earlier)[:, None]
            if getattr(model.config, "_attn_implementation", "") == "eager":
                # Eager attention adds its mask to the scores.
                mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)
            inputs |= {"position_ids": batch["positions"], "attention_mask": mask}
        else:
            inputs["attention_mask"] = (batch["segments"] > 0).long()
        if self.layered:
            states = model.base_model(**inputs, use_cache=False).last_hidden_state[targets]
            logits = model.get_output_embeddings()(states)
        else:
            logits = model(**inputs, use_cache=False).logits[targets]
        labels = batch["labels"][targets][:, None]
        chosen: Tensor = torch.log_softmax(logits.float(), dim=-1).gather(1, labels)[:, 0]
        return chosen


def _has_plain_head(model: Any) -> bool:
    """Whether the logits are the output layer of the last states: some models scale or bound them."""
    import torch

    head, body = model.get_output_embeddings(), getattr(model, "base_model", None)
    if head is None or body is None or body is model:
        return False
    size = int(model.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(6, device=model.device)[None] * 7 + 3) % size
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            whole = model(input_ids=ids, use_cache=False).logits
            states = body(input_ids=ids, use_cache=False).last_hidden_state
            return bool(torch.allclose(whole, head(states), rtol=1e-3, atol=1e-3))
    finally:
        model.train(was_training)


def check_packing(model: Any) -> None:
    """Raise an error if a text has other states behind another one in its row than alone."""
    import torch

    size = int(model.get_input_embeddings().weight.shape[0])
    tokens = torch.tensor([int(n) % size for n in np.random.default_rng(3).integers(5, 1 << 30, 16)])
    segments = torch.tensor([[1] * 6 + [2] * 10])
    positions = torch.tensor([[*range(6), *range(10)]])
    batch = {
        "input_ids": tokens[None],
        "positions": positions,
        "segments": segments,
        "labels": torch.cat([tokens[1:], tokens[:1]])[None],
    }
    alone = {name: value[:, 6:] for name, value in batch.items()} | {"segments": torch.ones(1, 10, dtype=torch.long)}
    was_training = model.training
    model.eval()
    loss = AnalysisLoss(model, packed=True)
    with torch.no_grad():
        together, apart = (
            loss.log_probabilities(model, {name: value.to(model.device) for name, value in part.items()})[-10:]
            for part in (batch, alone)
        )
    model.train(was_training)
    # Half precision differs by about a hundredth.
    if not torch.allclose(together, apart, rtol=0.02, atol=0.02):
        raise ModelError(
            f"a {model.config.model_type!r} model does not keep apart the texts that share a row: train with "
            "`packing=False`"
        )


# ---- The task


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnalysisPlan(TrainingPlan):
    """Tokenized analyses, how the prompt is given, and how many analyses are too long for training and development."""

    data: AnalysisData
    turns: Turns
    left_out: int
    dev_left_out: int
    max_length: int

    def remarks(self) -> list[str]:
        remarks = [*TrainingPlan.remarks(self), *self.data.remarks()]
        if left := self.left_out:
            total = left + len(self.train)
            remarks.append(
                f"{left:,} of {format_count(total, 'training analysis', 'training analyses')} ({left / total:.1%}) "
                f"{agree(left, 'is', 'are')} left out: longer than {self.max_length:,} tokens with the prompt "
                "(`max_length`)"
            )
        if self.dev_left_out:
            held_out = format_count(self.dev_left_out, "held-out analysis is", "held-out analyses are")
            remarks.append(f"{held_out} too long")
        return remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnalysisTask(AnalystSettings, TrainingTask):
    """Trains a causal model on analyses. `dev` is a file or a share of the items. `turns` None: the model's chat
    template, if it has one. `stored` None: an adapter for LoRA. `evaluate` gets the metrics that run the
    trained model and its base, and the held-out analyses, and returns what the card says about them. `sharded`: several
    processes divide all weights among them."""

    kind: ClassVar[str] = "error-analysis"

    data: tuple[Path, ...]
    dev: str | None = "0.05"
    skip_bad: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    method: Method = "lora"
    alpha: float = 32.0
    evaluate: Callable[[Mapping[str, str], Sequence[Analysis]], Mapping[str, Any] | None] | None = field(
        default=None, compare=False
    )

    def __post_init__(self) -> None:
        if self.method == "full" and self.stored == "adapter":
            raise SpecError(
                "a training of all weights has no adapter: leave out `stored='adapter'`, or use `method='lora'`",
                code="conflict",
            )
        if self.sharded and self.method != "full":
            raise SpecError("`sharded=True` divides the weights of a training of all weights: add `method='full'`")
        if self.max_length < 2:
            raise SpecError(f"`max_length` must be at least 2, got {self.max_length}")
        if self.method == "lora":
            self._adapter_settings()

    def _adapter_settings(self) -> LoraSettings:
        import_torch("training an error analyst")
        from metrist.models.lora import LoraSettings

        return LoraSettings(
            rank=self.rank, alpha=self.alpha, dropout=self.adapter_dropout, targets=tuple(sorted(self.targets))
        )

    @property
    def form(self) -> Stored:
        return self.stored or ("adapter" if self.method == "lora" else "merged")

    def load_data(self) -> AnalysisData:
        return load_analyses(
            self.data,
            self.dev,
            seed=self.recipe.seed,
            tasks=self.tasks,
            channels=self.channels,
            fields=self.fields,
            skip_bad=self.skip_bad,
        )

    def own_identity(self, weights: Weights, data: AnalysisData) -> dict[str, Any]:  # noqa: ARG002
        lora = {"rank": self.rank, "alpha": self.alpha, "dropout": self.adapter_dropout, "targets": list(self.targets)}
        train, dev = (
            hash_rows((analysis.prompt, analysis.completion) for analysis in side) for side in (data.train, data.dev)
        )
        return {
            "data": train,
            "dev": dev,
            "method": self.method,
            **(lora if self.method == "lora" else {}),
            "save": self.form,
            "turns": self.turns,
            "max_length": self.max_length,
        }

    def plan(self, weights: Weights, data: AnalysisData) -> ErrorAnalysisPlan:
        if weights.runs_on_numpy or weights.config.get("is_encoder_decoder"):
            raise ModelError(
                f"{weights.name} is not a causal language model; give one, such as Qwen2.5-1.5B-Instruct",
                code="invalid_value",
            )
        if self.recipe.patience is not None and not data.dev:
            raise RunError("early stopping (`patience`) needs held-out analyses; give `dev`")
        if self.form == "gguf":
            check_architecture(weights.config)
        tokenizer = read_tokenizer(weights, self.base)
        # The chat template, if the model has one; otherwise the bare prompt, as the published checkpoints.
        turns = self.turns or ("chat" if has_chat_template(tokenizer) else "none")
        if turns == "chat" and not has_chat_template(tokenizer):
            raise ModelError("the base model has no chat template: use the bare prompt (`turns='none'`)")
        settings: dict[str, Any] = {"turns": turns, "max_length": self.max_length, "packed": self.packing}
        train = encode_analyses(tokenizer, data.train, **settings)
        if not len(train):
            longest = format_count(len(data.train), "analysis", "analyses")
            raise InputError(
                f"none of {longest} fits into {self.max_length:,} tokens with its prompt; give a larger `max_length`"
                if data.train
                else "there is no analysis to train on"
            )
        dev = encode_analyses(tokenizer, data.dev, **settings)
        return ErrorAnalysisPlan(
            train=train,
            dev=dev if len(dev) else None,
            sampler=self.make_sampler(train),
            data=data,
            turns=turns,
            left_out=len(train.left_out),
            dev_left_out=len(dev.left_out),
            max_length=self.max_length,
        )

    def build(self, weights: Weights, plan: ErrorAnalysisPlan, placement: Placement) -> Learner:  # noqa: ARG002
        import torch

        # A frozen base need not be more precise than what is computed with it.
        half = self.method == "lora" and self.recipe.dtype == "bfloat16"
        place = replace(placement, dtype=torch.bfloat16) if half else placement
        if self.sharded:
            place = replace(place, device=torch.device("cpu"))  # A GPU need not have room for all of it.
        model = read_model("AutoModelForCausalLM", weights, self.base, place)
        if self.packing:
            check_packing(model)
        objective = AnalysisLoss(model, packed=self.packing)
        if self.method == "lora":
            from metrist.models.lora import add_adapter

            add_adapter(model, self._adapter_settings(), self.recipe.seed)
        else:
            model.requires_grad_(True)
        if self.gradient_checkpointing:
            if not getattr(model, "supports_gradient_checkpointing", False):
                raise ModelError(
                    f"{weights.name} does not support `gradient_checkpointing`: leave it out", code="conflict"
                )
            # transformers 5.23 renamed this method and warns of the old name.
            if hasattr(model, "activation_checkpointing_enable"):
                model.activation_checkpointing_enable({"use_reentrant": False})
            else:
                model.gradient_checkpointing_enable({"use_reentrant": False})
        if self.sharded and shard_model(model, placement.device):
            # A sharded model gathers its weights only for a pass through all of it.
            objective.layered = False
        return Learner(model, objective)

    def publish(
        self, weights: Weights, data: AnalysisData, plan: ErrorAnalysisPlan, trainer: Trainer, folder: TrainingFolder
    ) -> dict[str, Any]:
        import torch

        turns = plan.turns
        model = trainer.model
        if trainer.whole_weights is not None:
            place = Placement(device=torch.device("cpu"), dtype=torch.float32, tokens=1)
            model = read_model("AutoModelForCausalLM", weights, self.base, place)
            load_weights(model, trainer.whole_weights)
        folder.put_model(lambda part: self._write(weights, model, part), weights.folder)
        trainer.release()
        facts = {
            "files": list(data.files),
            "dev_file": data.dev_file,
            "training_analyses": len(plan.train),
            "too_long": plan.left_out,
            "held_out_analyses": len(plan.dev) if plan.dev else 0,
            "repeated": data.repeated,
            "held_out_analyses_that_share_a_text": data.shared,
            "tokens": int(plan.train.lengths.sum()),
            "target_tokens": int(plan.train.weights.sum()),
            "without_errors": sum(analysis.completion.count("\n") == 0 for analysis in data.train),
            "by_task": _count(analysis.task for analysis in data.train),
            "by_channel": _count(analysis.channel for analysis in data.train),
        }
        lora = {
            "rank": self.rank,
            "alpha": self.alpha,
            "adapter_dropout": self.adapter_dropout,
            "targets": ", ".join(self.targets) or "all linear layers",
        }
        metric = self.metric(turns)
        bare = format_metric(self.base, adapter=None, turns=turns, dtype=self.recipe.dtype)
        return {
            "metric": metric,
            "data": facts,
            "choices": {
                "method": self.method,
                **(lora if self.method == "lora" else {}),
                "save": self.form,
                "turns": turns,
                "max_length": self.max_length,
                "packing": self.packing,
                "gradient_checkpointing": self.gradient_checkpointing,
                **({"sharded": True} if self.sharded else {}),
            },
            "evaluation": self.evaluate({TRAINED: metric, BASE: bare}, data.dev) if self.evaluate else None,
            "licence": self.licence or "that of the base, and that of the training data",
        }

    def metric(self, turns: Turns) -> str:
        return format_metric(
            self.base if self.form == "adapter" else Options(model=str(self.out)),
            adapter=str(self.out) if self.form == "adapter" else None,
            turns=turns,
            dtype=self.recipe.dtype,
        )

    def fingerprint(self) -> str:
        if self.form == "adapter":
            return find_adapter(str(self.out)).fingerprint
        return find_weights(Options(model=str(self.out))).fingerprint

    def _write(self, weights: Weights, model: Any, part: Path) -> None:
        from metrist.models.lora import merge_adapter, save_adapter

        if self.method == "lora" and self.form == "adapter":
            save_adapter(model, self._adapter_settings(), self.base.model, part)
            return
        if self.method == "lora":
            merge_adapter(model)
        with quiet_transformers():
            model.save_pretrained(part)
            read_tokenizer(weights, self.base).save_pretrained(part)
        if self.form == "gguf":
            write_gguf(part, part / GGUF_FILE)


def format_metric(base: Options, *, adapter: str | None, turns: Turns, dtype: str) -> str:
    """The `tigerscore` that runs a model, with an adapter where there is one."""
    settings = {"model": base.model, "adapter": adapter, "revision": base.revision}
    if dtype == "bfloat16":
        settings["dtype"] = dtype
    if turns != "chat":
        settings["turns"] = turns
    listed = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
    trusted = ", trust_remote_code=True" if base.trust_remote_code else ""
    return f"tigerscore(llm=local({listed}{trusted}))"


def _count(values: Any) -> str:
    counts = Counter("not stated" if value is None else str(value) for value in values)
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
