"""Reward models in torch: an AutoModel reads a row of tokens, its vectors are pooled, and a linear layer computes the
reward. `TorchReward` scores with one: each distinct answer once, in batches by length within a token budget."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrist.errors import ModelError
from metrist.models import batching, devices
from metrist.models.devices import Options, Placement
from metrist.models.encoder import CPU_TOKENS, get_encoder, padding_id, token_limit
from metrist.models.pretrained import quiet_transformers, read_model, read_tokenizer
from metrist.models.reward_layout import (
    HEAD,
    Encode,
    Pooling,
    RewardInput,
    RewardLayout,
    Rewards,
    RewardSettings,
    read_frame,
    score_rows,
    token_encoder,
    unknown_id,
)
from metrist.models.trainable_encoder import TrainableReward
from metrist.models.weights import Weights, find_weights
from metrist.runtime import Runtime

POOLINGS = ("auto", "answer", "mean", "first", "last")
#: Classes of transformers that load and save only the encoder.
_ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
#: Names of the dropout rate in configurations.
_DROPOUTS = (
    "classifier_dropout",
    "hidden_dropout_prob",
    "dropout",
    "dropout_rate",
    "resid_pdrop",
    "hidden_dropout",
)
#: The standard deviation of initial weights, as in transformers.
_INITIAL_STD = 0.02


class RewardModel(torch.nn.Module):
    """`body` is an AutoModel. Pooling 'last' takes the last token's vector, from the decoder if there is one, which
    gets the same row; the other poolings use only the encoder. 'answer' is the mean over the answer's tokens and the
    special token that closes the row, if there is one: the rest of a pair's rows is mostly the same and would dilute
    the difference.

    The head has no bias: training uses differences of rewards, in which it would cancel.
    """

    def __init__(self, body: Any, pooling: Pooling, head: Tensor) -> None:
        super().__init__()
        self.body = body
        self.pooling = pooling
        rates = (getattr(body.config, name, None) for name in _DROPOUTS)
        self.dropout = torch.nn.Dropout(next((rate for rate in rates if isinstance(rate, float)), 0.0))
        self.head = torch.nn.Linear(head.shape[1], 1, bias=False)
        self.head.weight = torch.nn.Parameter(head)
        self._decodes = pooling == "last" and bool(body.config.is_encoder_decoder)
        self._caches = "use_cache" in inspect.signature(self.reader.forward).parameters

    def forward(self, input_ids: Tensor, attention_mask: Tensor, starts: Tensor) -> Tensor:
        """Return the reward of each row; padding is on the right, and the answers begin at `starts`."""
        arguments: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._decodes:
            # The decoder cannot look ahead, so padding on the right needs no mask.
            shifted = input_ids.roll(1, dims=1)
            shifted[:, 0] = self.body.config.decoder_start_token_id
            arguments["decoder_input_ids"] = shifted
        if self._caches:
            arguments["use_cache"] = False
        states: Tensor = self.reader(**arguments)[0]
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            if self.pooling == "first":
                pooled = states[:, 0]
            elif self.pooling == "last":
                pooled = states[torch.arange(len(states), device=states.device), attention_mask.sum(1) - 1]
            else:
                counted = attention_mask
                if self.pooling == "answer":
                    positions = torch.arange(counted.shape[1], device=counted.device)
                    counted = counted * (positions >= starts.unsqueeze(1))
                counted = counted.unsqueeze(2).to(states)
                pooled = (states * counted).sum(1) / counted.sum(1)
            rewards: Tensor = self.head(self.dropout(pooled).to(self.head.weight.device)).squeeze(1)
        return rewards

    @property
    def reader(self) -> Any:
        """The part of the body that computes the vectors."""
        return self.body if self.pooling == "last" else get_encoder(self.body)

    def learn(self) -> None:
        """Make all weights that are used trainable, and no others."""
        self.requires_grad_(False)
        self.reader.requires_grad_(True)
        self.head.requires_grad_(True)

    def save(self, folder: Path, tokenizer: Any, settings: RewardSettings) -> None:
        """Write everything that `TorchReward.load` reads."""
        from safetensors.torch import save_file

        with quiet_transformers():
            self.body.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        head = self.head.weight.detach().float().cpu().contiguous()
        save_file({"weight": head, "bias": torch.zeros(1)}, folder / HEAD)
        settings.write(folder)


class PairwiseRewardModel(torch.nn.Module):
    """A reward model in training on pairs; with `ratings`, also the line that maps a reward to a rating."""

    def __init__(self, reward: RewardModel | TrainableReward, *, ratings: bool) -> None:
        super().__init__()
        reward.learn()
        self.reward = reward
        self.line = torch.nn.Parameter(torch.tensor([1.0, 0.0])) if ratings else None

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Compute the rewards of the good and of the bad answers."""
        good, bad = self.reward(batch["input_ids"], batch["attention_mask"], batch["starts"]).view(2, -1)
        return good, bad


def init_reward_model(files: Weights, options: Options, place: Placement, pooling: Pooling, seed: int) -> RewardModel:
    """Create a reward model from a base model, with a random head."""
    body = _load_body(files, options, place, pooling)
    generator = torch.Generator().manual_seed(seed)
    head = torch.empty(1, int(body.config.hidden_size)).normal_(0, _INITIAL_STD, generator=generator)
    return RewardModel(body, pooling, head.to(place.device)).eval().requires_grad_(False)


def load_reward_model(files: Weights, options: Options, place: Placement, pooling: Pooling) -> RewardModel:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    body = _load_body(files, options, place, pooling)
    try:
        head = load_file(files.folder / HEAD)["weight"].float()
    except (OSError, SafetensorError, KeyError) as fault:
        raise ModelError(
            f"{files.name}: {HEAD} cannot be read ({fault}); train the model again", code="unreadable"
        ) from None
    if head.shape != (1, body.config.hidden_size):
        raise ModelError(
            f"{files.name}: {HEAD} expects vectors of {head.shape[-1]} numbers, but the model has "
            f"{body.config.hidden_size}; the files belong to different models"
        )
    return RewardModel(body, pooling, head.to(place.device)).eval().requires_grad_(False)


def resolve_pooling(files: Weights, pooling: str) -> Pooling:
    """Resolve 'auto': 'last' for causal models and decoders, whose last token has read all others, and 'answer' for
    encoders and T5, of which only the encoder is used."""
    if pooling not in POOLINGS:
        raise ModelError(
            f"pooling must be one of {', '.join(map(repr, POOLINGS))}, got {pooling!r}", code="invalid_value"
        )
    if pooling != "auto":
        return pooling  # type: ignore[return-value]
    kind = files.config.get("model_type")
    if kind in _ENCODER_CLASSES:
        return "answer"
    from transformers.models.auto import modeling_auto

    names = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    # BERT and similar models can be configured as causal, but hardly ever are.
    is_causal = kind in names[0] and kind not in names[1]
    architecture = str((files.config.get("architectures") or [""])[0])
    decodes = files.config.get("is_encoder_decoder") or architecture.endswith(("ForCausalLM", "LMHeadModel"))
    return "last" if decodes or is_causal else "answer"


def _load_body(files: Weights, options: Options, place: Placement, pooling: Pooling) -> Any:
    kind = _ENCODER_CLASSES.get(str(files.config.get("model_type"))) if pooling != "last" else None
    body = read_model(kind or "AutoModel", files, options, place)
    if getattr(body, "pooler", None) is not None:
        body.pooler = None  # Not used here.
    if not isinstance(getattr(body.config, "hidden_size", None), int):
        raise ModelError(
            f"{files.name} is a {files.config.get('model_type')} model without token vectors (its config.json has no "
            "'hidden_size'); give a text model, such as BERT, BART, T5 or Llama"
        )
    decodes = pooling == "last" and body.config.is_encoder_decoder
    if decodes and body.config.decoder_start_token_id is None:
        raise ModelError(
            f"{files.name}: config.json must set decoder_start_token_id; or set pooling='mean'", code="invalid_value"
        )
    return body


Row = NDArray[np.int32]


@dataclass(eq=False, kw_only=True)
class TorchReward:
    """A reward model ready to score."""

    model: RewardModel | TrainableReward
    encode: Encode
    unknown: int | None
    pad: int
    settings: RewardSettings
    device: Any
    budget: batching.TokenBudget
    facts: Mapping[str, str]
    name: str

    @staticmethod
    def load(options: Options, runtime: Runtime | None = None) -> TorchReward:
        place = devices.resolve_placement(options, runtime, cpu_tokens=CPU_TOKENS)
        files = find_weights(options)
        settings = RewardSettings.read(files.folder, files.name)
        model = load_reward_model(files, options, place, settings.pooling)
        return make_torch_reward(model, read_tokenizer(files, options), settings, place, files, options)

    @staticmethod
    def untrained(
        options: Options, layout: RewardLayout, pooling: str = "auto", seed: int = 0, runtime: Runtime | None = None
    ) -> TorchReward:
        """Load a base model with a random head, as at the start of a training."""
        place = devices.resolve_placement(options, runtime, cpu_tokens=CPU_TOKENS)
        files = find_weights(options)
        tokenizer = read_tokenizer(files, options)
        model = init_reward_model(files, options, place, resolve_pooling(files, pooling), seed)
        settings = make_settings(model.body, tokenizer, layout, model.pooling)
        return make_torch_reward(model, tokenizer, settings, place, files, options)

    def rewards(self, inputs: Sequence[RewardInput]) -> Rewards:
        return score_rows(self.encode, self.settings, inputs, self.unknown, self._compute)

    def _compute(self, rows: Sequence[Row], starts: Sequence[int]) -> NDArray[np.float64]:
        values = np.empty(len(rows), np.float64)

        def work(batch: list[int]) -> None:
            tables = (*batching.pad_rows([rows[at] for at in batch], self.pad), np.array(starts, np.int64)[batch])
            with torch.inference_mode():
                tensors = (torch.from_numpy(table).to(self.device) for table in tables)
                values[batch] = self.model(*tensors).double().cpu().numpy()

        lengths = [len(row) for row in rows]
        failures = batching.run_in_batches(lengths, self.budget, work, lambda: devices.free_memory(self.device))
        for reason in failures.values():
            raise ModelError(f"{self.name}: an answer {reason}")
        return values


def make_settings(body: Any, tokenizer: Any, layout: RewardLayout, pooling: Pooling) -> RewardSettings:
    """Return the settings of a base model: the layout, within the model's limit."""
    settings = RewardSettings(pooling=pooling, layout=layout, frame=read_frame(tokenizer))
    return settings.within(token_limit(body, tokenizer))


def make_torch_reward(
    model: RewardModel | TrainableReward,
    tokenizer: Any,
    settings: RewardSettings,
    place: devices.Placement,
    files: Weights,
    options: Options,
) -> TorchReward:
    """Wrap a reward model in memory for scoring."""
    return TorchReward(
        model=model,
        encode=token_encoder(tokenizer),
        unknown=unknown_id(tokenizer),
        # A text encoder masks padding of any token.
        pad=padding_id(model.body.config, tokenizer) if isinstance(model, RewardModel) else 0,
        settings=settings,
        device=place.device,
        budget=batching.TokenBudget(place.tokens),
        facts={"weights": files.fingerprint, "dtype": options.dtype},
        name=files.name,
    )
