"""A reward model in torch: any AutoModel reads a row of tokens, one of its vectors (or their mean) is the answer's, and
a linear layer makes a number of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metrist.errors import ModelError
from metrist.models import batching, devices, weights
from metrist.models.devices import Options, Placement
from metrist.models.encoder import CPU_TOKENS, get_encoder, token_limit
from metrist.models.protocols import Rewards
from metrist.models.reward_layout import (
    HEAD,
    Encode,
    Layout,
    Pooling,
    RewardInput,
    RewardSettings,
    build_rows,
    read_frame,
    token_encoder,
    unknown_id,
)
from metrist.models.weights import Weights
from metrist.runtime import Runtime

POOLINGS = ("auto", "answer", "mean", "first", "last")
#: T5 and its kin have a class for their encoder alone, which loads and saves no decoder.
_ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
#: Where configurations keep the share of numbers that training drops.
_DROPOUTS = ("classifier_dropout", "hidden_dropout_prob", "dropout", "dropout_rate", "resid_pdrop", "hidden_dropout")
#: As transformers draws the first weights of such layers.
_FIRST_WEIGHTS = 0.02


class RewardModel(torch.nn.Module):
    """`body` is an AutoModel. Pooling 'last' takes the last token's vector: the decoder's, where there is one, which is
    given the same row; the others use the encoder only. 'answer' is the mean over the answer's tokens and the special
    token that closes the row, where there is one: all else in the rows of a pair is mostly the same, and would thin out
    what differs.

    The head has no weight to add: what a pair teaches is a difference, in which it would cancel.
    """

    def __init__(self, body: Any, pooling: Pooling, head: Tensor) -> None:
        super().__init__()
        self.body = body
        self.pooling = pooling
        self.dropout = torch.nn.Dropout(_dropout(body.config))
        self.head = torch.nn.Linear(head.shape[1], 1, bias=False)
        self.head.weight = torch.nn.Parameter(head)
        self._decodes = pooling == "last" and bool(body.config.is_encoder_decoder)
        self._caches = "use_cache" in inspect.signature(self.reader.forward).parameters

    def forward(self, input_ids: Tensor, attention_mask: Tensor, starts: Tensor) -> Tensor:
        """A reward for each row; padding is on the right, and the answers begin at `starts`."""
        states = self._states(input_ids, attention_mask)
        with torch.autocast(states.device.type, enabled=False):
            pooled = self._pooled(states.float(), attention_mask, starts)
            rewards: Tensor = self.head(self.dropout(pooled).to(self.head.weight.device)).squeeze(1)
        return rewards

    def _states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        given: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._decodes:
            # The decoder cannot look ahead, so padding on the right needs no mask.
            shifted = input_ids.roll(1, dims=1)
            shifted[:, 0] = self.body.config.decoder_start_token_id
            given |= {"decoder_input_ids": shifted}
        if self._caches:
            given["use_cache"] = False
        states: Tensor = self.reader(**given)[0]
        return states

    def _pooled(self, states: Tensor, mask: Tensor, starts: Tensor) -> Tensor:
        if self.pooling == "first":
            return states[:, 0]
        if self.pooling == "last":
            return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
        if self.pooling == "answer":
            mask = mask * (torch.arange(mask.shape[1], device=mask.device) >= starts.unsqueeze(1))
        counted = mask.unsqueeze(2).to(states)
        return (states * counted).sum(1) / counted.sum(1)

    @property
    def reader(self) -> Any:
        """The part of the body that is used."""
        return self.body if self.pooling == "last" else get_encoder(self.body)

    def learn(self) -> None:
        """Let all weights that are used be learned, and no others."""
        self.requires_grad_(False)
        self.reader.requires_grad_(True)
        self.head.requires_grad_(True)

    def save(self, folder: Path, tokenizer: Any, settings: RewardSettings) -> None:
        """Write all that `TorchReward.load` reads into the folder."""
        from safetensors.torch import save_file

        with weights.quiet_transformers():
            self.body.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        head = self.head.weight.detach().float().cpu().contiguous()
        save_file({"weight": head, "bias": torch.zeros(1)}, folder / HEAD)
        settings.write(folder)


class PairwiseRewardModel(torch.nn.Module):
    """A reward model in training on pairs; with `ratings`, also the line that maps a reward to a rating."""

    def __init__(self, reward: RewardModel, *, ratings: bool) -> None:
        super().__init__()
        reward.learn()
        self.reward = reward
        self.line = torch.nn.Parameter(torch.tensor([1.0, 0.0])) if ratings else None

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Compute the rewards of the good and of the bad answers."""
        good, bad = self.reward(batch["input_ids"], batch["attention_mask"], batch["starts"]).view(2, -1)
        return good, bad


def init_reward_model(found: Weights, options: Options, place: Placement, pooling: Pooling, seed: int) -> RewardModel:
    """A reward model of a base model, with a head drawn by the seed."""
    body = _body(found, options, place, pooling)
    dice = torch.Generator().manual_seed(seed)
    head = torch.empty(1, int(body.config.hidden_size)).normal_(0, _FIRST_WEIGHTS, generator=dice)
    return RewardModel(body, pooling, head.to(place.device)).eval().requires_grad_(False)


def load_reward_model(found: Weights, options: Options, place: Placement, pooling: Pooling) -> RewardModel:
    """A reward model that was saved."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    body = _body(found, options, place, pooling)
    try:
        head = load_file(found.folder / HEAD)["weight"].float()
    except (OSError, SafetensorError, KeyError) as fault:
        raise ModelError(f"{found.name}: {HEAD} cannot be read ({fault}); train the model again") from None
    if head.shape != (1, body.config.hidden_size):
        raise ModelError(
            f"{found.name}: {HEAD} is for vectors of {head.shape[-1]} numbers, but the model gives "
            f"{body.config.hidden_size}; the files are of different models"
        )
    return RewardModel(body, pooling, head.to(place.device)).eval().requires_grad_(False)


def resolve_pooling(found: Weights, asked: str) -> Pooling:
    """What 'auto' means for a model: the last token where a decoder or a causal model has read all before it, the mean
    over the answer, with the token that closes the row, for encoders, to which T5 is reduced."""
    if asked not in POOLINGS:
        raise ModelError(f"pooling must be one of {', '.join(map(repr, POOLINGS))}, got {asked!r}")
    if asked != "auto":
        return asked  # type: ignore[return-value]
    kind = found.config.get("model_type")
    if kind in _ENCODERS:
        return "answer"
    return "last" if found.config.get("is_encoder_decoder") or _is_causal(found) else "answer"


def padding_id(config: Any, tokenizer: Any) -> int:
    """The token to pad with. Some models count positions by it, so the model's own word comes first; where there is
    none any will do, as padding is masked."""
    known = (getattr(config, "pad_token_id", None), tokenizer.pad_token_id, 0)
    return int(next(number for number in known if number is not None))


def _is_causal(found: Weights) -> bool:
    from transformers.models.auto import modeling_auto

    kind = found.config.get("model_type")
    known = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    causal, masked = (kind in names for names in known)
    built = str((found.config.get("architectures") or [""])[0])
    # BERT and its kin can be told to be causal, and hardly ever are.
    return (causal and not masked) or built.endswith(("ForCausalLM", "LMHeadModel"))


def _body(found: Weights, options: Options, place: Placement, pooling: Pooling) -> Any:
    kind = _ENCODERS.get(str(found.config.get("model_type"))) if pooling != "last" else None
    body = weights.read_model(kind or "AutoModel", found, options, place)
    if getattr(body, "pooler", None) is not None:
        body.pooler = None  # A layer for whole sentences, of which nothing here is made.
    if not isinstance(getattr(body.config, "hidden_size", None), int):
        raise ModelError(
            f"{found.name} is a {found.config.get('model_type')} model, which gives no vectors of tokens (no "
            "'hidden_size' in its config.json); give a text model, such as BERT, BART, T5 or Llama"
        )
    decodes = pooling == "last" and body.config.is_encoder_decoder
    if decodes and body.config.decoder_start_token_id is None:
        raise ModelError(
            f"{found.name}: its config.json must name a decoder_start_token_id; or set pooling='mean', which uses its "
            "encoder only"
        )
    return body


def _dropout(config: Any) -> float:
    said = (getattr(config, name, None) for name in _DROPOUTS)
    return float(next((share for share in said if isinstance(share, float)), 0.0))


# Reward models scored with torch: each distinct answer once, in batches by a budget of tokens over sorted lengths.


Row = NDArray[np.int32]


@dataclass(eq=False, kw_only=True)
class TorchReward:
    """A reward model that is ready to score."""

    model: RewardModel
    encode: Encode
    unknown: int | None
    pad: int
    settings: RewardSettings
    device: Any
    budget: batching.Budget
    facts: Mapping[str, str]
    name: str

    @staticmethod
    def load(options: Options, runtime: Runtime | None = None) -> TorchReward:
        """Load a trained model on the device of the runtime."""
        place = devices.resolve_placement(options, runtime, cpu_tokens=CPU_TOKENS)
        found = weights.find_weights(options)
        settings = RewardSettings.read(found.folder, found.name)
        model = load_reward_model(found, options, place, settings.pooling)
        return make_torch_reward(model, weights.read_tokenizer(found, options), settings, place, found, options)

    @staticmethod
    def untrained(
        options: Options, layout: Layout, pooling: str = "auto", seed: int = 0, runtime: Runtime | None = None
    ) -> TorchReward:
        """A base model as it is, with a head drawn by the seed: what a training begins with."""
        place = devices.resolve_placement(options, runtime, cpu_tokens=CPU_TOKENS)
        found = weights.find_weights(options)
        tokenizer = weights.read_tokenizer(found, options)
        model = init_reward_model(found, options, place, resolve_pooling(found, pooling), seed)
        settings = make_settings(model.body, tokenizer, layout, model.pooling)
        return make_torch_reward(model, tokenizer, settings, place, found, options)

    def rewards(self, judged: Sequence[RewardInput]) -> Rewards:
        distinct = list(dict.fromkeys(judged))
        laid = build_rows(self.encode, self.settings.frame, self.settings.layout, distinct, self.unknown)
        values = self._values(laid.ids, laid.starts)
        number = {one: at for at, one in enumerate(distinct)}
        order = np.array([number[one] for one in judged], np.int64)
        return Rewards(values[order], np.array(laid.cut, np.int64)[order], np.array(laid.read, np.int64)[order])

    def _values(self, rows: Sequence[Row], starts: Sequence[int]) -> NDArray[np.float64]:
        order = batching.longest_first([len(row) for row in rows])
        values = np.empty(len(rows), np.float64)

        def work(batch: list[int]) -> None:
            places = [order[at] for at in batch]
            values[places] = self._forward([rows[at] for at in places], [starts[at] for at in places])

        lengths = [len(rows[at]) for at in order]
        failures = batching.run_in_batches(lengths, self.budget, work, lambda: devices.free_memory(self.device))
        for reason in failures.values():
            raise ModelError(f"{self.name}: an answer {reason}")
        return values

    def _forward(self, rows: Sequence[Row], starts: Sequence[int]) -> NDArray[np.float64]:
        tables = (*pad_rows(rows, self.pad), np.array(starts, np.int64))
        with torch.inference_mode():
            put = (torch.from_numpy(table).to(self.device) for table in tables)
            found: NDArray[np.float64] = self.model(*put).double().cpu().numpy()
        return found


def pad_rows(rows: Sequence[Row], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows as one table, padded on the right, and where it has tokens."""
    lengths = np.array([len(row) for row in rows], np.int64)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


def make_settings(body: Any, tokenizer: Any, layout: Layout, pooling: Pooling) -> RewardSettings:
    """How a base model reads answers: as the layout says, within what the model takes."""
    limit = token_limit(body, tokenizer)
    within = replace(layout, max_length=min(layout.max_length or limit, limit))
    return RewardSettings(pooling=pooling, layout=within, frame=read_frame(tokenizer))


def make_torch_reward(
    model: RewardModel,
    tokenizer: Any,
    settings: RewardSettings,
    place: devices.Placement,
    found: weights.Weights,
    options: Options,
) -> TorchReward:
    """A model in memory as one that scores."""
    return TorchReward(
        model=model,
        encode=token_encoder(tokenizer),
        unknown=unknown_id(tokenizer),
        pad=padding_id(model.body.config, tokenizer),
        settings=settings,
        device=place.device,
        budget=batching.Budget(place.tokens),
        facts={"weights": found.fingerprint, "dtype": options.dtype},
        name=found.name,
    )
