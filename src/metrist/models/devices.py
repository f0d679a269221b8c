"""How a model is asked for, and where it runs.

What changes numbers (weights, dtype) is an option of the model and part of a metric's identity. What does not (the
device, how much is computed at once) comes from the environment, and worker processes inherit it.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

from metrist.errors import MissingExtra, ModelError

Dtype = Literal["float32", "bfloat16", "float16"]

DEVICE = "METRIST_DEVICE"
BATCH_TOKENS = "METRIST_BATCH_TOKENS"
#: The folder in which vectors and likelihoods are kept between runs; nothing is kept where it is not set.
CACHE = "METRIST_CACHE"

_fetches = ContextVar("fetches", default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a model is loaded with. Equal options share one loaded model in a process."""

    model: str
    revision: str | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False
    #: Of the condition and of the target, as the tokenizer of a multilingual model calls them.
    languages: tuple[str, str] | None = None


def dtype_problem(dtype: object) -> str | None:
    """Why models cannot compute in this dtype; None if they can."""
    known = get_args(Dtype)
    if dtype in known:
        return None
    if dtype == "int8":
        return (
            "dtype='int8' was removed in metrist 0.1.0 together with its ctranslate2 backend; "
            "leave dtype out (float32), or use dtype='bfloat16' on a GPU"
        )
    return f"dtype must be one of {', '.join(map(repr, known))}, got {dtype!r}"


def device() -> str:
    """'auto' (CUDA, else MPS, else CPU), 'map' (spread over all cards), or a torch device such as 'cuda:1'."""
    return os.environ.get(DEVICE) or "auto"


@contextmanager
def no_downloads() -> Iterator[None]:
    """Inside, a model that is not on this machine is not had: a description is no reason to download one."""
    before = _fetches.set(False)
    try:
        yield
    finally:
        _fetches.reset(before)


def downloads_allowed() -> bool:
    """Whether a model may be downloaded."""
    return _fetches.get()


def batch_tokens() -> int | None:
    """Tokens to compute at once; None: as many as suit the device."""
    text = os.environ.get(BATCH_TOKENS)
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ModelError(f"{BATCH_TOKENS} must be a whole number of at least 1, got {text!r}")
    return int(text)


# Where a model runs: the device, the number format, and how many tokens it computes at once.


#: A device map lets accelerate spread one model over all cards.
MAP = "map"

_CPU_TOKENS = 2_048
_MPS_TOKENS = 8_192
#: On a card: tokens per GiB of its memory. Large batches keep it busy; more than the limit gains nothing.
_CUDA_TOKENS_PER_GIB = 512
_CUDA_TOKENS_MOST = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A torch device and dtype; `spread`: the model is laid over all cards, and `device` takes its inputs."""

    device: Any
    dtype: Any
    tokens: int
    spread: bool = False


def import_torch(feature: str) -> Any:
    """The torch module, or the message that says how to install it."""
    try:
        importlib.import_module("transformers")
        return importlib.import_module("torch")
    except ImportError:
        raise MissingExtra(feature, "neural") from None


def resolve_placement(options: Options) -> Placement:
    """Where a model with these options runs, after METRIST_DEVICE and METRIST_BATCH_TOKENS."""
    torch = import_torch(f"the model {options.model!r}")
    asked = device()
    where = _device(torch, asked)
    return Placement(
        device=where,
        dtype=_dtype(torch, options, where),
        tokens=batch_tokens() or _tokens(torch, where),
        spread=asked == MAP,
    )


def is_cpu(feature: str) -> bool:
    """Whether models run on the CPU here, after METRIST_DEVICE."""
    return bool(_device(import_torch(feature), device()).type == "cpu")


def free_memory(where: Any) -> None:
    """Give back what the allocator holds and nobody uses."""
    gc.collect()
    torch = importlib.import_module("torch")
    if where.type == "cuda":
        torch.cuda.empty_cache()
    elif where.type == "mps":
        torch.mps.empty_cache()


def _device(torch: Any, asked: str) -> Any:
    if asked in ("auto", MAP):
        return torch.device(_best(torch))
    try:
        where = torch.device(asked)
    except (RuntimeError, ValueError):
        raise ModelError(f"{DEVICE} must be 'auto', 'map' or a torch device such as 'cuda:1', got {asked!r}") from None
    there = _count(torch, where.type)
    if (where.index or 0) >= there:
        raise ModelError(f"{DEVICE} is {asked!r}, but torch sees {there} such devices here; unset it or name another")
    return where


def _best(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def _count(torch: Any, kind: str) -> int:
    if kind == "cpu":
        return 1
    if kind == "cuda":
        return int(torch.cuda.device_count())
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return 0


def _dtype(torch: Any, options: Options, where: Any) -> Any:
    if fault := dtype_problem(options.dtype):
        raise ModelError(f"{options.model}: {fault}")
    if where.type == "cpu" and options.dtype != "float32":
        raise ModelError(
            f"{options.model}: dtype={options.dtype!r} is unusably slow on a CPU; set dtype='float32', "
            f"or run where there is a graphics card"
        )
    return getattr(torch, options.dtype)


def _tokens(torch: Any, where: Any) -> int:
    if where.type == "cuda":
        gib = torch.cuda.get_device_properties(where).total_memory / 2**30
        return min(int(gib * _CUDA_TOKENS_PER_GIB), _CUDA_TOKENS_MOST)
    return _MPS_TOKENS if where.type == "mps" else _CPU_TOKENS
