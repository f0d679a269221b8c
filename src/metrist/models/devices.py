"""Model options, and the device, number format and batch size with which a model runs.

What changes numbers (weights, dtype) is a field of `Options` and part of a metric's identity. What does not (device,
batch size) comes from a `Runtime`.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

from metrist.errors import MissingExtra, ModelError
from metrist.runtime import Runtime

Dtype = Literal["float32", "bfloat16", "float16"]

#: The device with which accelerate spreads one model over all GPUs.
MAP = "map"

_CPU_TOKENS = 2_048
_MPS_TOKENS = 8_192
#: Tokens per GiB of GPU memory, and the most that still gains speed.
_CUDA_TOKENS_PER_GIB = 512
_CUDA_TOKENS_MOST = 32_768

_downloads = ContextVar("downloads", default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a model is loaded with. Equal options share one loaded model in a process."""

    model: str
    revision: str | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False
    #: Language codes of the condition and the target, as the tokenizer of a multilingual model names them.
    languages: tuple[str, str] | None = None
    #: Bits of a weight that bitsandbytes stores; None: those of `dtype`.
    bits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A torch device, a dtype and the tokens per batch. With `spread`, the model lies on all GPUs and `device` is the
    one that takes its inputs."""

    device: Any
    dtype: Any
    tokens: int
    spread: bool = False


def resolve_placement(options: Options, runtime: Runtime | None = None, *, cpu_tokens: int = _CPU_TOKENS) -> Placement:
    """Decide where a model with these options runs. `cpu_tokens` is the batch size on a CPU unless the runtime sets
    one."""
    runtime = runtime or Runtime.current()
    torch = import_torch(f"the model {options.model!r}")
    device = _resolve_device(torch, runtime.device)
    if options.dtype not in get_args(Dtype):
        known = ", ".join(map(repr, get_args(Dtype)))
        raise ModelError(f"{options.model}: dtype must be one of {known}, got {options.dtype!r}", code="invalid_value")
    if device.type == "cpu" and options.dtype != "float32" and options.bits is None:
        raise ModelError(
            f"{options.model}: dtype={options.dtype!r} is too slow on a CPU; set dtype='float32', or use a GPU"
        )
    tokens = _MPS_TOKENS if device.type == "mps" else cpu_tokens
    if device.type == "cuda":
        gib = torch.cuda.get_device_properties(device).total_memory / 2**30
        tokens = min(int(gib * _CUDA_TOKENS_PER_GIB), _CUDA_TOKENS_MOST)
    return Placement(
        device=device,
        dtype=getattr(torch, options.dtype),
        tokens=runtime.batch_tokens or tokens,
        spread=runtime.device == MAP,
    )


def runs_on_cpu(feature: str) -> bool:
    return bool(_resolve_device(import_torch(feature), Runtime.current().device).type == "cpu")


@contextmanager
def no_downloads() -> Iterator[None]:
    """Inside, a model that is not on this machine is an error: describing a metric is no reason to download it."""
    token = _downloads.set(False)
    try:
        yield
    finally:
        _downloads.reset(token)


def downloads_allowed() -> bool:
    return _downloads.get()


def import_torch(feature: str) -> Any:
    """Import torch and transformers; raise MissingExtra with the command that installs them."""
    try:
        importlib.import_module("transformers")
        return importlib.import_module("torch")
    except ImportError:
        raise MissingExtra(feature, "neural") from None


def free_memory(device: Any) -> None:
    """Return unused memory of torch's allocator to the device."""
    gc.collect()
    torch = importlib.import_module("torch")
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def _resolve_device(torch: Any, name: str) -> Any:
    if name in ("auto", MAP):
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    device = torch.device(name)
    if device.type == "cuda":
        count = int(torch.cuda.device_count())
    else:
        count = int(device.type == "cpu" or (device.type == "mps" and torch.backends.mps.is_available()))
    if (device.index or 0) >= count:
        raise ModelError(
            f"device {name!r} does not exist: torch sees {count} {device.type} devices here; choose another `device`"
        )
    return device
