"""LoRA adapters: small trained matrices beside the frozen linear layers of a causal model.

Adapters are stored in the files of the package peft, which is not needed: `adapter_config.json` and
`adapter_model.safetensors`. Other tools that read peft's files read these, and adapters that peft wrote are read here
if they are plain LoRA.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metrist.errors import ModelError, SpecError
from metrist.models.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter

#: peft puts this before the names of the model's own modules.
_PREFIX = "base_model.model."
#: Settings of peft's config that change what the weights mean, with the values that mean plain LoRA.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "use_qalora": (False, None),
    "alora_invocation_tokens": (None, []),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The size of an adapter. `targets` are the last parts of the names of the layers that get one, such as `q_proj`;
    none: all linear layers but the output layer."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SpecError(f"the rank of an adapter must be at least 1, got {self.rank}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise SpecError(f"alpha of an adapter must be a number above 0, got {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise SpecError(f"dropout of an adapter must be from 0 to below 1, got {self.dropout}")


class LoraLinear(nn.Module):
    """A frozen linear layer with an adapter, which is zero at first."""

    def __init__(self, base: nn.Linear, settings: LoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.scale = settings.alpha / settings.rank
        self.dropout = nn.Dropout(settings.dropout)
        limit = 1 / math.sqrt(base.in_features)  # As peft's: the initialisation of nn.Linear.
        down = torch.empty(settings.rank, base.in_features).uniform_(-limit, limit, generator=generator)
        self.lora_A = nn.Parameter(down.to(base.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, settings.rank, device=base.weight.device))

    def forward(self, inputs: Tensor) -> Tensor:
        # The adapter computes in the dtype of its weights, or of the autocast around it.
        low = nn.functional.linear(self.dropout(inputs).to(self.lora_A.dtype), self.lora_A)
        output: Tensor = self.base(inputs)
        return output + (self.scale * nn.functional.linear(low, self.lora_B)).to(output.dtype)


def add_adapter(model: Any, settings: LoraSettings, seed: int) -> None:
    """Freeze the model and put adapters beside its linear layers."""
    model.requires_grad_(False)
    head = model.get_output_embeddings()
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        and layer is not head
        and (not settings.targets or name.rpartition(".")[2] in settings.targets)
    }
    if not layers:
        named = f" named {', '.join(settings.targets)}" if settings.targets else ""
        kinds = sorted({name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, nn.Linear)})
        raise ModelError(
            f"the model has no linear layers{named} for an adapter (its linear layers: {', '.join(kinds) or 'none'}); "
            "choose other layers, or train all weights (`method='full'`)"
        )
    generator = torch.Generator().manual_seed(seed)
    for name, layer in layers.items():
        _replace(model, name, LoraLinear(layer, settings, generator))


def save_adapter(model: Any, settings: LoraSettings, base: str, folder: Path) -> None:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    for name, layer in _adapted_layers(model):
        for part in ("lora_A", "lora_B"):
            weight = getattr(layer, part).detach().float().cpu().contiguous()
            tensors[f"{_PREFIX}{name}.{part}.weight"] = weight
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": sorted({name.rpartition(".")[2] for name, _ in _adapted_layers(model)}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / ADAPTER_WEIGHTS)


def merge_adapter(model: Any) -> None:
    """Add the adapters to the weights of the layers beside them, and remove them."""
    with torch.no_grad():
        for name, layer in list(_adapted_layers(model)):
            _add(layer.base.weight, layer.lora_A, layer.lora_B, layer.scale)
            _replace(model, name, layer.base)


def load_adapter(model: Any, adapter: Adapter) -> None:
    """Add an adapter's matrices to the weights of the model that it was trained for."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    scale = _check_config(adapter)
    try:
        tensors = dict(load_file(adapter.folder / ADAPTER_WEIGHTS))
    except (OSError, SafetensorError) as fault:
        raise ModelError(f"{adapter.folder / ADAPTER_WEIGHTS} cannot be read: {fault}", code="unreadable") from None
    modules = dict(model.named_modules())
    names = {key.removeprefix(_PREFIX).partition(".lora_")[0] for key in tensors}
    with torch.no_grad():
        for name in sorted(names):
            down, up = (tensors.pop(f"{_PREFIX}{name}.{part}.weight", None) for part in ("lora_A", "lora_B"))
            layer = modules.get(name)
            fits = (
                down is not None
                and up is not None
                and isinstance(layer, nn.Linear)
                and (up.shape[0], down.shape[1]) == (layer.out_features, layer.in_features)
            )
            if not fits:
                raise ModelError(
                    f"the adapter {adapter.name} does not fit the model: it has weights for {name!r}; give the base "
                    f"that it was trained for ({adapter.config.get('base_model_name_or_path') or 'not stated'})"
                )
            assert isinstance(layer, nn.Linear)
            _add(layer.weight, down, up, scale)
    if tensors:
        raise ModelError(
            f"{adapter.folder / ADAPTER_WEIGHTS} has weights that are not plain LoRA, such as {min(tensors)}"
        )


def _check_config(adapter: Adapter) -> float:
    """Return the scale of the adapter; raise an error if it is not plain LoRA."""
    config = adapter.config
    if config.get("peft_type") != "LORA":
        raise ModelError(
            f"{adapter.name} is an adapter of kind {config.get('peft_type')!r}, expected LORA", code="unsupported"
        )
    for name, values in _PLAIN.items():
        if name in config and config[name] not in values:
            raise ModelError(
                f"{adapter.name} is not plain LoRA: it sets {name} to {config[name]!r}; merge it with peft",
                code="unsupported",
            )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float)):
        raise ModelError(
            f"{adapter.folder / ADAPTER_CONFIG} must state r and lora_alpha as numbers, got {rank!r}, {alpha!r}",
            code="invalid_value",
        )
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _adapted_layers(model: Any) -> Iterator[tuple[str, LoraLinear]]:
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLinear))


def _add(weight: Tensor, down: Any, up: Any, scale: float) -> None:
    """Add in float32: the difference may be far smaller than the steps of a half-precision weight."""
    delta = scale * (up.float().to(weight.device) @ down.float().to(weight.device))
    weight.copy_((weight.float() + delta).to(weight.dtype))


def _replace(model: Any, name: str, layer: nn.Module) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, layer)
