"""Settings that decide where and how fast a run computes, and what it may cost. None of them changes a score."""

from __future__ import annotations

import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from metrist.errors import RunError
from metrist.settings import check_types

#: The environment variable that gives each field its default.
VARIABLES = {
    "device": "METRIST_DEVICE",
    "batch_tokens": "METRIST_BATCH_TOKENS",
    "cache": "METRIST_CACHE",
    "cache_gb": "METRIST_CACHE_GB",
    "max_cost": "METRIST_MAX_COST",
    "concurrency": "METRIST_LLM_CONCURRENCY",
    "rpm": "METRIST_LLM_RPM",
    "tpm": "METRIST_LLM_TPM",
    "timeout": "METRIST_LLM_TIMEOUT",
    "attempts": "METRIST_LLM_ATTEMPTS",
    "max_wait": "METRIST_LLM_PATIENCE",
    "llm_cache": "METRIST_LLM_CACHE",
    "prices": "METRIST_PRICES",
    "run_id": "METRIST_LLM_RUN",
}
_COUNTS = ("batch_tokens", "concurrency", "rpm", "tpm", "attempts")
_AMOUNTS = ("cache_gb", "timeout", "max_wait")
_PATHS = ("cache", "llm_cache", "prices")
#: Whether a device exists is known to torch, which is imported only where a model runs.
_DEVICE = re.compile(r"auto|map|(cpu|cuda|mps|xpu)(:\d{1,2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Where and how fast a run computes. Nothing in it changes a score.

    Functions take it as an argument and hand it down; worker processes receive a pickled copy. Code without such an
    argument, such as a metric that calls `metrist.complete`, gets the runtime of the run that called it from
    `Runtime.current()`. Two runs in two threads can use different devices, caches and budgets at the same time.
    """

    #: "auto" (CUDA, else MPS, else CPU), "map" (spread over all cards), or a torch device such as "cuda:1".
    device: str = "auto"
    #: Tokens per batch; None: as many as suit the device.
    batch_tokens: int | None = None
    #: Folder in which models' vectors and likelihoods are kept between runs; None: they are not kept.
    cache: Path | None = None
    #: Size at which that cache stops growing, in GB (10^9 bytes).
    cache_gb: float = 10.0
    #: US dollars that LLM calls may cost; None: no limit.
    max_cost: float | None = None
    #: LLM requests in flight at most.
    concurrency: int = 16
    #: LLM requests and tokens per minute; None: no limit.
    rpm: int | None = None
    tpm: int | None = None
    #: Seconds that one attempt of an LLM request may take.
    timeout: float = 300.0
    #: Attempts at one LLM request, and seconds until it is given up.
    attempts: int = 8
    max_wait: float = 900.0
    #: Folder of the LLM answer cache; None: the user's cache folder.
    llm_cache: Path | None = None
    #: File of LLM prices that is consulted before the shipped one.
    prices: Path | None = None
    #: LLM answers of other runs are requested again, all of them, or those that failed or that the metric cannot read.
    #: The number is the start of this run (seconds since 1970), which its answers are stored with.
    fresh: float | None = None
    retry_failed: float | None = None
    #: Identifies the run to which LLM costs are charged: processes with the same id share one budget.
    run_id: str | None = None

    def __post_init__(self) -> None:
        check_types(Runtime, {name: getattr(self, name) for name in ("device", *_AMOUNTS, "max_cost")})
        if not _DEVICE.fullmatch(self.device):
            raise RunError(
                f"`device={self.device!r}`: expected auto, map, or a torch device such as cpu, cuda:1 or mps",
                code="invalid_value",
            )
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise RunError(f"{name} must be a whole number of at least 1, got {value!r}", code="invalid_value")
        for name in _AMOUNTS:
            if not 0 < getattr(self, name) < math.inf:
                raise RunError(f"{name} must be a number above 0, got {getattr(self, name)!r}", code="invalid_value")
        if self.max_cost is not None and not 0 <= self.max_cost < math.inf:
            raise RunError(
                f"max_cost must be an amount in US dollars such as 2.50, got {self.max_cost!r}", code="invalid_value"
            )
        for name in _PATHS:
            value = getattr(self, name)
            if value is not None:  # Absolute: a worker, or a later change of directory, must not move it.
                object.__setattr__(self, name, Path(value).expanduser().absolute())
        if self.cache is not None and self.cache.exists() and not self.cache.is_dir():
            raise RunError(f"cache must be a folder, but {self.cache} is a file", code="invalid_value")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Runtime:
        """The settings that environment variables give; unset and empty variables leave the defaults."""
        options: dict[str, Any] = {}
        for name, variable in VARIABLES.items():
            text = environ.get(variable)
            if not text:
                continue
            try:
                options[name] = _parse(name, text)
                cls(**{name: options[name]})
            except RunError as error:
                error.args = (f"environment variable {variable}: {error}",)
                raise
        return cls(**options)

    @classmethod
    def current(cls) -> Runtime:
        """The runtime of the run that called this code; outside of runs, the one that environment variables give."""
        return _current.get() or cls.from_environment()

    @contextmanager
    def activate(self) -> Iterator[Runtime]:
        """Make this the current runtime of the thread inside a `with` block."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    @property
    def answer_time(self) -> float | None:
        """The time that LLM answers of this run are stored with, by which they are told from earlier ones even if the
        clock jumps; None: the time of their arrival, since no answer is requested again."""
        return self.retry_failed if self.fresh is None else self.fresh

    def override(self, **options: Any) -> Runtime:
        """A copy with these fields changed; None leaves a field as it is. `fresh` and `retry_failed` may be True, which
        stands for now, or False.

        The copy always has a `run_id`. It is a new one where `max_cost` is given, so that a budget counts only what is
        spent under it.
        """
        unknown = options.keys() - {field.name for field in fields(self)}
        if unknown:
            raise TypeError(f"Runtime has no field {min(unknown)!r}")
        changes = {name: value for name, value in options.items() if value is not None}
        now = time.time()
        for name in ("fresh", "retry_failed"):
            if isinstance(changes.get(name), bool) and changes.pop(name):
                changes[name] = now
        if "run_id" not in changes and ("max_cost" in changes or self.run_id is None):
            changes["run_id"] = uuid.uuid4().hex
        return replace(self, **changes)

    def split(self, processes: int) -> Runtime:
        """The share of one of several processes that call LLMs at the same time: together they keep the limits."""

        def share(limit: int | None) -> int | None:
            return None if limit is None else max(1, limit // processes)

        return replace(
            self, concurrency=max(1, self.concurrency // processes), rpm=share(self.rpm), tpm=share(self.tpm)
        )

    @property
    def max_llm_processes(self) -> int:
        """How many processes can share the LLM limits: each needs at least one request and one token."""
        return min(limit for limit in (self.concurrency, self.rpm, self.tpm) if limit is not None)


class CallWatcher(Protocol):
    """Receives the progress of LLM calls in this process. `retried` may be called from any thread."""

    def requested(self, count: int) -> None:
        """So many more distinct requests will be answered."""

    def completed(self, count: int) -> None:
        """So many of them are answered or have failed for good."""

    def retried(self, reason: str, wait: float) -> None:
        """An attempt failed for this reason; the next one follows in `wait` seconds."""


call_watchers: list[CallWatcher] = []
#: Called with a model's name before it is loaded in this process, and with None when that is over.
loading_watchers: list[Callable[[str | None], None]] = []

_current: ContextVar[Runtime | None] = ContextVar("runtime", default=None)


def count_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_process_alive(pid: int) -> bool | None:
    """Whether a process of this machine is alive; None on Windows, where asking would end it."""
    if os.name == "nt":
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # Another user's.
        return True
    return True


def _parse(name: str, text: str) -> str | int | float | Path:
    if name in _PATHS:
        return Path(text)
    if name not in (*_COUNTS, *_AMOUNTS, "max_cost"):
        return text
    try:
        return int(text) if name in _COUNTS else float(text)
    except ValueError:
        raise RunError(f"{name} must be a number, got {text!r}", code="invalid_value") from None
