"""A reward model in torch: any AutoModel reads a row of tokens, one of its vectors (or their mean) is the answer's, and
a linear layer makes a number of it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrist.errors import ModelError
from metrist.models import pretrained
from metrist.models.devices import Place
from metrist.models.layer_cut import encoder_of
from metrist.models.options import Options
from metrist.models.reward_settings import HEAD, Pooling, RewardSettings
from metrist.models.weights import Weights

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
        return self.body if self.pooling == "last" else encoder_of(self.body)

    def learn(self) -> None:
        """Let all weights that are used be learned, and no others."""
        self.requires_grad_(False)
        self.reader.requires_grad_(True)
        self.head.requires_grad_(True)

    def save(self, folder: Path, tokenizer: Any, settings: RewardSettings) -> None:
        """Write all that `TorchReward.load` reads into the folder."""
        from safetensors.torch import save_file

        with pretrained.silent():
            self.body.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        head = self.head.weight.detach().float().cpu().contiguous()
        save_file({"weight": head, "bias": torch.zeros(1)}, folder / HEAD)
        settings.write(folder)


def begun(found: Weights, options: Options, place: Place, pooling: Pooling, seed: int) -> RewardModel:
    """A reward model of a base model, with a head drawn by the seed."""
    body = _body(found, options, place, pooling)
    dice = torch.Generator().manual_seed(seed)
    head = torch.empty(1, int(body.config.hidden_size)).normal_(0, _FIRST_WEIGHTS, generator=dice)
    return RewardModel(body, pooling, head.to(place.device)).eval().requires_grad_(False)


def loaded(found: Weights, options: Options, place: Place, pooling: Pooling) -> RewardModel:
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


def pooling_of(found: Weights, asked: str) -> Pooling:
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


def padding_of(config: Any, tokenizer: Any) -> int:
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


def _body(found: Weights, options: Options, place: Place, pooling: Pooling) -> Any:
    kind = _ENCODERS.get(str(found.config.get("model_type"))) if pooling != "last" else None
    body = pretrained.read_model(kind or "AutoModel", found, options, place)
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
