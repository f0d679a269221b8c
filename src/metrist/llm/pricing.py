"""What answers cost. Prices come from the user's file, else from the shipped list; a model that is in neither has no
price, which is not the same as 0."""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from metrist.errors import ModelError, did_you_mean
from metrist.llm import rate_limit
from metrist.llm.base import LLM
from metrist.llm.cache import Request
from metrist.llm.messages import Completion, Message

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


def find_price(llm: LLM) -> Price | None:
    """The first price that covers the LLM, the user's before the shipped ones; None where none does."""
    if llm.free:
        return _NOTHING
    model, host = str(getattr(llm, "model", "")), host_of(llm)
    own = rate_limit.prices_file()
    listed = (*(_of_file(own) if own else ()), *_shipped())
    return next((price for price in listed if price.covers(model, host)), None)


def host_of(llm: LLM) -> str:
    """The server that is asked, by its name alone."""
    return urlsplit(str(getattr(llm, "url", None) or _USUAL.get(llm.llm_name, ""))).hostname or ""


def price_hint(llm: LLM) -> str:
    """What to do where no price is known."""
    return (
        f"write its price into a file and name that by {rate_limit.PRICES}: [[price]] model = "
        f"{str(getattr(llm, 'model', '*'))!r} input = 0.5 output = 1.5 (each on its own line; US dollars for a "
        "million tokens, 0 for a server of your own)"
    )


def _of_file(path: Path) -> tuple[Price, ...]:
    try:
        changed = path.stat().st_mtime_ns
    except OSError as fault:
        raise ModelError(f"{rate_limit.PRICES} names {path}, which cannot be read: {fault.strerror}") from None
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


# How many tokens a question takes, told from its text: about, and at most.


#: Bytes of text that make a token, on average over languages and tokenizers; a third more or fewer are usual.
_BYTES_EACH = 4
#: What marks of roles take around each message, and around the whole, at most.
_AROUND = 16


def about(text: str) -> int:
    """Tokens that a text may take."""
    return -(-_bytes(text) // _BYTES_EACH)


def prompt_about(question: Request) -> int:
    """Tokens that the prompt may take."""
    return sum(about(one.text) + _AROUND // 4 for one in question.messages) + about(_schema(question))


def prompt_most(question: Request) -> int:
    """Tokens that the prompt takes at most: no tokenizer of today makes more tokens than a text has bytes."""
    return most_of(question.messages) + _bytes(_schema(question))


def most_of(messages: Sequence[Message]) -> int:
    """As `prompt_most`, of the messages alone."""
    return sum(_bytes(one.text) + _AROUND for one in messages) + _AROUND


def worst_cost(question: Request, price: Price) -> float:
    """The most that an answer to the question can cost."""
    return price.cost(prompt_most(question), question.sampling.max_tokens)


def accounted(question: Request, answer: Completion, price: Price | None) -> Completion:
    """The answer with its cost. Tokens that the server did not count are told from the text's length, and marked."""
    usage = answer.usage
    counted = usage.prompt_tokens is not None and usage.completion_tokens is not None
    if not counted and answer.failure is None:
        prompt = prompt_about(question) if usage.prompt_tokens is None else usage.prompt_tokens
        said = about(answer.text) if usage.completion_tokens is None else usage.completion_tokens
        usage = replace(usage, prompt_tokens=prompt, completion_tokens=said, estimated=True)
    if usage.cost is None and price is not None and usage.prompt_tokens is not None:
        usage = replace(usage, cost=price.cost(usage.prompt_tokens, usage.completion_tokens or 0))
    return replace(answer, usage=usage)


def _schema(question: Request) -> str:
    schema = question.sampling.schema
    return "" if schema is None else json.dumps(schema, ensure_ascii=False, default=dict)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
