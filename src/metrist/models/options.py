"""How a model is asked for, and where it runs.

What changes numbers (weights, dtype) is an option of the model and part of a metric's identity. What does not (the
device, how much is computed at once) comes from the environment, and worker processes inherit it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

from metrist.errors import ModelError

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


def dtype_fault(dtype: object) -> str | None:
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
def nothing_fetched() -> Iterator[None]:
    """Inside, a model that is not on this machine is not had: a description is no reason to download one."""
    before = _fetches.set(False)
    try:
        yield
    finally:
        _fetches.reset(before)


def may_fetch() -> bool:
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
