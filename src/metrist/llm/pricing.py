"""What LLMs cost: prices, estimates of the tokens that a request takes, and the budget of a run.

Prices come from the user's file, else from the shipped list. A model in neither has no price, which is not the same as
a price of 0.

No request can exceed the budget: before it is sent, the most that it can cost is reserved; when the answer is there,
the actual cost takes its place. The processes of a run share one account in the file of the answer cache. What a killed
process had reserved stays reserved, and a request that failed without a token count is charged in full, since it may
have been billed.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sqlite3
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from metrist.documents import read_toml
from metrist.errors import ModelError
from metrist.llm.base import LLM
from metrist.llm.cache import AnswerCache, Request
from metrist.llm.messages import Completion
from metrist.runtime import VARIABLES, Runtime, is_process_alive

SHIPPED_PRICES = Path(__file__).with_name("prices.toml")
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
    prices = _read_prices(SHIPPED_PRICES)
    if path := (runtime or Runtime.current()).prices:
        try:
            changed = path.stat().st_mtime_ns
        except OSError as error:
            raise ModelError(
                f"{VARIABLES['prices']} names {path}, which cannot be read: {error.strerror}", code="unreadable"
            ) from None
        prices = (*_read_prices(path, changed), *prices)
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


class _PriceFile(msgspec.Struct):
    price: tuple[Price, ...]


@lru_cache(maxsize=8)
def _read_prices(path: Path, _changed: int = 0) -> tuple[Price, ...]:
    try:
        return msgspec.convert(read_toml(path, ModelError, largest=1 << 20), _PriceFile).price
    except msgspec.ValidationError as error:
        raise ModelError(
            f"{path}: {error}; each [[price]] needs model, input and output in US dollars per million tokens, and may "
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


# ---- The budget

#: Seconds between two checks of what other processes have settled.
_POLL = 0.1
#: Seconds after which a silent process on another machine is taken for dead.
_SILENCE = 600.0


@dataclass(frozen=True, slots=True)
class BudgetState:
    """US dollars that a run has paid, and that its requests in flight may still cost. `pending`: some of those belong
    to another live process."""

    paid: float
    reserved: float
    pending: bool


class Budget:
    """The account of one run, as this process sees it. Threads can share it."""

    def __init__(self, cache: AnswerCache, limit: float, run_id: str | None = None) -> None:
        self._cache = cache
        self._limit = limit
        self._run = run_id or _own_run_id(os.getpid())
        self._process = f"{platform.node()}:{os.getpid()}"

    def admit(self, costs: Sequence[float]) -> int:
        """Reserve for as many requests, from the first on, as the budget allows, given the most that each can cost.

        Waits while other processes hold reservations that they may not need; ModelError if not even the first fits.
        """
        while True:
            count, state = self._cache.write(lambda connection: self._reserve(connection, costs))
            if count:
                return count
            if not state.pending:
                lost = f", and ${state.reserved:.4f} is reserved for requests without an answer"
                raise ModelError(
                    f"the limit of ${self._limit:g} on the cost of a run is reached: ${state.paid:.4f} is spent"
                    f"{lost if state.reserved > 1e-9 else ''}; the next request could cost ${costs[0]:.4f}, and at "
                    f"least {len(costs):,} are left. Run again with a higher limit (`max_cost`, "
                    f"{VARIABLES['max_cost']}) to continue; no answer is paid for twice",
                    code="budget",
                )
            time.sleep(_POLL)

    def try_reserve(self, cost: float) -> bool:
        """Reserve for one request if the budget allows it now."""
        count, _ = self._cache.write(lambda connection: self._reserve(connection, [cost]))
        return count == 1

    def settle(self, reserved: float, paid: float) -> None:
        """Replace a reservation by the actual cost."""
        self._cache.write(lambda connection: self._add(connection, paid=paid, reserved=-reserved))

    def state(self) -> BudgetState:
        """What is paid and reserved now."""
        return self._cache.write(self._read_state)

    def _reserve(self, connection: sqlite3.Connection, costs: Sequence[float]) -> tuple[int, BudgetState]:
        state = self._read_state(connection)
        # A sum that equals the limit must not be refused for a rounding error.
        left = self._limit * (1 + 1e-9) - state.paid - state.reserved
        count, total = 0, 0.0
        while count < len(costs) and total + costs[count] <= left:
            total += costs[count]
            count += 1
        if count:
            self._add(connection, paid=0.0, reserved=total)
        return count, state

    def _read_state(self, connection: sqlite3.Connection) -> BudgetState:
        rows = connection.execute(
            "SELECT process, paid, reserved, changed FROM spending WHERE run = ?", (self._run,)
        ).fetchall()
        pending = any(
            reserved > 1e-12 and process != self._process and _is_alive(process, changed)
            for process, _, reserved, changed in rows
        )
        return BudgetState(sum(row[1] for row in rows), max(0.0, sum(row[2] for row in rows)), pending)

    def _add(self, connection: sqlite3.Connection, *, paid: float, reserved: float) -> None:
        connection.execute(
            "INSERT INTO spending (run, process, paid, reserved, changed) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (run, process) DO UPDATE SET paid = paid + excluded.paid, "
            "reserved = reserved + excluded.reserved, changed = excluded.changed",
            (self._run, self._process, paid, reserved, time.time()),
        )


@lru_cache(maxsize=1)
def _own_run_id(_process: int) -> str:
    """The id of calls that belong to no run: one per process."""
    return uuid.uuid4().hex


def _is_alive(process: str, changed: float) -> bool:
    machine, _, number = process.rpartition(":")
    is_alive = is_process_alive(int(number)) if machine == platform.node() else None
    return time.time() - changed < _SILENCE if is_alive is None else is_alive
