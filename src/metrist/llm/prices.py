"""What answers cost. Prices come from the user's file, else from the shipped list; a model that is in neither has no
price, which is not the same as 0."""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from metrist.errors import ModelError, did_you_mean
from metrist.llm import options
from metrist.llm.base import LLM

_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_FIELDS = ("model", "host", "input", "output", "seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for a million tokens. `seen` is when it was looked up; None where nobody said."""

    model: str
    host: str | None = None
    input: float
    output: float
    seen: datetime.date | None = None

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / 1e6

    def covers(self, model: str, host: str) -> bool:
        """Whether the price is for this model on this server."""
        named = fnmatchcase(model, self.model) or fnmatchcase(_DATED.sub("", model), self.model)
        return named and (self.host is None or fnmatchcase(host, self.host))


#: Where LLMs are asked that name no address.
_USUAL = {"openai": "https://api.openai.com/v1"}
#: In this process an answer takes time, but no money.
_NOTHING = Price(model="*", input=0.0, output=0.0)


def price_of(llm: LLM) -> Price | None:
    """The first price that covers the LLM, the user's before the shipped ones; None where none does."""
    if llm.free:
        return _NOTHING
    model, host = str(getattr(llm, "model", "")), host_of(llm)
    own = options.prices_file()
    listed = (*(_of_file(own) if own else ()), *_shipped())
    return next((price for price in listed if price.covers(model, host)), None)


def host_of(llm: LLM) -> str:
    """The server that is asked, by its name alone."""
    return urlsplit(str(getattr(llm, "url", None) or _USUAL.get(llm.llm_name, ""))).hostname or ""


def how_to_price(llm: LLM) -> str:
    """What to do where no price is known."""
    return (
        f"write its price into a file and name that by {options.PRICES}: [[price]] model = "
        f"{str(getattr(llm, 'model', '*'))!r} input = 0.5 output = 1.5 (each on its own line; US dollars for a "
        "million tokens, 0 for a server of your own)"
    )


def _of_file(path: Path) -> tuple[Price, ...]:
    try:
        changed = path.stat().st_mtime_ns
    except OSError as fault:
        raise ModelError(f"{options.PRICES} names {path}, which cannot be read: {fault.strerror}") from None
    return _read(path, changed)


@lru_cache(maxsize=8)
def _read(path: Path, _changed: int) -> tuple[Price, ...]:
    return _prices(path.read_bytes(), str(path))


@lru_cache(maxsize=1)
def _shipped() -> tuple[Price, ...]:
    file = resources.files("metrist.llm") / "prices.toml"
    return _prices(file.read_bytes(), str(file))


def _prices(content: bytes, where: str) -> tuple[Price, ...]:
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise ModelError(f"{where} is no TOML: {fault}") from None
    listed = data.get("price")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ModelError(f"{where} must hold [[price]] tables with model, input and output, got {sorted(data)}")
    return tuple(_price(one, f"{where}, price {n}") for n, one in enumerate(listed, 1))


def _price(data: Mapping[str, Any], where: str) -> Price:
    for name in data:
        if name not in _FIELDS:
            raise ModelError(
                f"{where}: no field {name!r}{did_you_mean(name, _FIELDS)} (known are {', '.join(_FIELDS)})"
            )
    for name in ("model", "host"):
        if not isinstance(data.get(name, ""), str):
            raise ModelError(f"{where}: {name} must be text, got {data[name]!r}")
    if not data.get("model"):
        raise ModelError(f"{where}: 'model' is missing: the name by which the model is asked for, or '*'")
    seen = data.get("seen")
    if seen is not None and not isinstance(seen, datetime.date):
        raise ModelError(f"{where}: seen must be a date such as 2026-01-31, got {seen!r}")
    amounts = {name: _amount(data, name, where) for name in ("input", "output")}
    return Price(model=data["model"], host=data.get("host"), seen=seen, **amounts)


def _amount(data: Mapping[str, Any], name: str, where: str) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ModelError(f"{where}: {name} must be US dollars for a million tokens, got {value!r}")
    return float(value)
