"""Prices of LLMs, and estimates of the tokens that a request takes.

Prices come from the user's file, else from the shipped list. A model in neither has no price, which is not the same as
a price of 0.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from metrist.documents import parse_toml, read_text
from metrist.errors import ModelError
from metrist.llm.base import LLM
from metrist.llm.cache import Request
from metrist.llm.messages import Completion
from metrist.runtime import VARIABLES, Runtime

_DATE_SUFFIX = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
#: The servers of LLMs whose spec names no address.
_DEFAULT_URLS = {"openai": "https://api.openai.com/v1"}


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Dollars = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens. `seen` is the date on which the price was looked up, if known."""

    model: _Text
    host: str | None = None
    input: _Dollars
    output: _Dollars
    seen: datetime.date | None = None

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        return (prompt_tokens * self.input + completion_tokens * self.output) / 1e6

    def covers(self, model: str, host: str) -> bool:
        """Whether this is the price of the model on this server."""
        by_name = fnmatchcase(model, self.model) or fnmatchcase(_DATE_SUFFIX.sub("", model), self.model)
        return by_name and (self.host is None or fnmatchcase(host, self.host))


_FREE = Price(model="*", input=0.0, output=0.0)


def find_price(llm: LLM, runtime: Runtime | None = None) -> Price | None:
    """The first price that covers the LLM, the user's before the shipped ones; None if there is none."""
    if llm.free:
        return _FREE
    url = getattr(llm, "url", None) or _DEFAULT_URLS.get(llm.llm_name, "")
    model, host = str(getattr(llm, "model", "")), urlsplit(str(url)).hostname or ""
    path = (runtime or Runtime.current()).prices
    prices = (*(_read_user_prices(path) if path else ()), *_read_shipped_prices())
    return next((price for price in prices if price.covers(model, host)), None)


def price_hint(llm: LLM) -> str:
    """What to do if no price is known."""
    return (
        f"write its price into a file and set {VARIABLES['prices']} to the file's path: [[price]] model = "
        f"{str(getattr(llm, 'model', '*'))!r} input = 0.5 output = 1.5 (each on its own line; US dollars per million "
        "tokens, 0 for a server of your own)"
    )


def describe_missing_prices(llms: Sequence[LLM]) -> str:
    """Which of these models have no price, and what to do: `no price for m2 in prices.toml`."""
    path = Runtime.current().prices
    try:
        unpriced = [llm for llm in llms if find_price(llm) is None]
    except ModelError:  # The file is gone since the run.
        unpriced = list(llms)
    models = " and ".join(dict.fromkeys(str(getattr(llm, "model", "") or llm.llm_name) for llm in unpriced))
    subject = f"no price for {models}" if models else "no price"
    return f"{subject} in {path.name}" if path else f"{subject}: set {VARIABLES['prices']}"


def _read_user_prices(path: Path) -> tuple[Price, ...]:
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise ModelError(
            f"{VARIABLES['prices']} names {path}, which cannot be read: {error.strerror}", code="unreadable"
        ) from None
    return _read_prices(path, changed)


@lru_cache(maxsize=8)
def _read_prices(path: Path, _changed: int) -> tuple[Price, ...]:
    return _parse_prices(read_text(path, ModelError, largest=1 << 20), str(path))


@lru_cache(maxsize=1)
def _read_shipped_prices() -> tuple[Price, ...]:
    file = resources.files("metrist.llm") / "prices.toml"
    return _parse_prices(file.read_text(encoding="utf-8"), str(file))


class _PriceFile(msgspec.Struct):
    price: tuple[Price, ...]


def _parse_prices(content: str, where: str) -> tuple[Price, ...]:
    data = parse_toml(content, where, ModelError)
    try:
        return msgspec.convert(data, _PriceFile).price
    except msgspec.ValidationError as error:
        raise ModelError(
            f"{where}: {error}; each [[price]] needs model, input and output in US dollars per million tokens, and may "
            "have host and seen",
            code="invalid_value",
        ) from None


#: Bytes per token, averaged over languages and tokenizers; a third more or less is common.
_BYTES_PER_TOKEN = 4
#: The most tokens that role markers take around each message, and around the whole.
_TOKENS_PER_MESSAGE = 16


def estimate_tokens(text: str) -> int:
    """About how many tokens a text takes."""
    return -(-_count_bytes(text) // _BYTES_PER_TOKEN)


def estimate_prompt_tokens(request: Request) -> int:
    """About how many tokens the prompt takes."""
    messages = sum(estimate_tokens(message.text) + _TOKENS_PER_MESSAGE // 4 for message in request.messages)
    return messages + estimate_tokens(_schema_text(request))


def max_prompt_tokens(request: Request) -> int:
    """The most tokens that the prompt can take: no current tokenizer makes more tokens than a text has bytes."""
    messages = sum(_count_bytes(message.text) + _TOKENS_PER_MESSAGE for message in request.messages)
    return messages + _TOKENS_PER_MESSAGE + _count_bytes(_schema_text(request))


def max_cost(request: Request, price: Price) -> float:
    """The most that a completion of the request can cost."""
    return price.cost(max_prompt_tokens(request), request.sampling.max_tokens)


def add_cost(request: Request, completion: Completion, price: Price | None) -> Completion:
    """The completion with its cost. Token counts that the server did not report are estimated, and marked so."""
    usage = completion.usage
    is_counted = usage.prompt_tokens is not None and usage.completion_tokens is not None
    if not is_counted and completion.failure is None:
        prompt = estimate_prompt_tokens(request) if usage.prompt_tokens is None else usage.prompt_tokens
        output = estimate_tokens(completion.text) if usage.completion_tokens is None else usage.completion_tokens
        usage = replace(usage, prompt_tokens=prompt, completion_tokens=output, estimated=True)
    if usage.cost is None and price is not None and usage.prompt_tokens is not None:
        usage = replace(usage, cost=price.cost(usage.prompt_tokens, usage.completion_tokens or 0))
    return replace(completion, usage=usage)


def _schema_text(request: Request) -> str:
    schema = request.sampling.schema
    return "" if schema is None else json.dumps(schema, ensure_ascii=False, default=dict)


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
