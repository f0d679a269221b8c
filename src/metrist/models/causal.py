"""Causal language models as likelihood models: any AutoModelForCausalLM of transformers.

How condition and target are joined: each is tokenised on its own, and the ids are put one after the other, the special
tokens with which the tokenizer begins a text before the condition and none anywhere else. So a score never depends on a
merge across the border. An empty condition is the token that begins a text, if need be the one that ends it; where the
tokenizer and the model know neither, nothing foretells the target's first token, and it is left out.

What is cut where both together are longer than the model's context: a target keeps its first tokens, three quarters of
the context at most. The condition gets the rest and loses its middle, since what comes first in a prompt and what
stands right before the target matter most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from metrist.errors import ModelError
from metrist.models import devices, tokenization, weights
from metrist.models.batching import Budget
from metrist.models.causal_passes import Floats, NotCausal, Passes, Row, Schedule, passes_of
from metrist.models.devices import Options
from metrist.models.protocols import Likelihoods
from metrist.models.weights import quiet_transformers, read_model, read_tokenizer
from metrist.runtime import Runtime

_Tokens = tuple[int, ...]

#: Of a context of this many steps, a condition that must be cut is given a whole number: conditions that stand before
#: targets of nearly the same length are then cut alike, and read once.
_STEPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What stands before a text's own tokens: always, and where it would otherwise begin with nothing."""

    always: _Tokens
    at_least: _Tokens


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pair as tokens, with what was cut off; where there is nothing to score, no row and the reason."""

    row: Row | None
    failure: str
    condition_cut: int = 0
    target_cut: int = 0


class Causal:
    """A causal model that is loaded. Equal pairs are scored once, equal conditions read once."""

    def __init__(
        self, *, schedule: Schedule, tokenizer: Any, opening: Opening, context: int | None, facts: Mapping[str, str]
    ) -> None:
        self._schedule = schedule
        self._tokenizer = tokenizer
        self._side = tokenization.TokenizerSide(tokenizer)
        self._opening = opening
        self._context = context
        self._facts = facts

    @classmethod
    def load(cls, options: Options, runtime: Runtime | None = None) -> Causal:
        """Load the model that the options name, on the device of the runtime."""
        found = weights.find_weights(options)
        if found.runs_on_numpy or found.config.get("is_encoder_decoder"):
            raise ModelError(_not_causal(found, "reads and writes with two halves: a sequence-to-sequence model"))
        where = devices.resolve_placement(options, runtime)
        model = read_model("AutoModelForCausalLM", found, options, where)
        tokenizer = read_tokenizer(found, options)
        try:
            with quiet_transformers():
                passes = passes_of(model, where)
        except NotCausal:
            raise ModelError(_not_causal(found, "looks ahead in the text that it judges: an encoder")) from None
        return cls(
            schedule=Schedule(passes, Budget(where.tokens), partial(devices.free_memory, where.device)),
            tokenizer=tokenizer,
            opening=_opening(tokenizer, model.config, passes),
            context=tokenization.context_length(tokenizer, model.config),
            facts={"weights": found.fingerprint, "dtype": options.dtype, "model_type": str(model.config.model_type)},
        )

    @property
    def facts(self) -> Mapping[str, str]:
        return self._facts

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Log-probabilities of the targets' tokens alone; the conditions' are not computed."""
        distinct = list(dict.fromkeys(pairs))
        ids = self._ids({text for pair in distinct for text in pair})
        asked = {pair: self._pair(ids[pair[0]], ids[pair[1]], max_tokens) for pair in distinct}
        return self._answered([[asked[pair]] for pair in pairs])

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        """Log-probabilities of all tokens of whole texts. One that is longer than the context (or `max_tokens`) is read
        in windows: each goes on where the last one ended, and has half a window of what came before as its condition.
        """
        ids = self._ids(set(texts))
        asked = {text: self._windows(ids[text], max_tokens) for text in dict.fromkeys(texts)}
        return self._answered([asked[text] for text in texts])

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """Windows take half of the context, so that a target finds room beside them."""
        room = _least(max_tokens, None if self._context is None else self._context // 2)
        return [text] if room is None else tokenization.split_windows(self._side, text, room)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return self.spelled(self._ids({target})[target][: _least(max_tokens, self._target_room)])

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as readable text, each on its own."""
        return tokenization.readable_tokens(self._tokenizer, tokens)

    def in_windows(self, text: str, max_tokens: int | None = None) -> int:
        """In how many windows `running` reads a text."""
        return max(1, len(self._windows(self._ids({text})[text], max_tokens)))

    @property
    def _target_room(self) -> int | None:
        return None if self._context is None else max(1, self._context * 3 // 4)

    def _ids(self, texts: set[str]) -> dict[str, _Tokens]:
        """The texts' own tokens, without special ones around them."""
        listed = sorted(texts)
        before, after = self._side.before, self._side.after
        return {
            text: tuple(ids[before : len(ids) - after].tolist())
            for text, ids in zip(listed, self._side.ids(listed), strict=True)
        }

    def _pair(self, condition: _Tokens, target: _Tokens, max_tokens: int | None) -> _Asked:
        kept = target[: _least(max_tokens, self._target_room)]
        room = _least(max_tokens, self._condition_room(len(kept)))
        if room is not None:
            room = max(0, room - len(self._opening.always))
        shortened = _without_middle(condition, room)
        given = (*self._opening.always, *shortened) or self._opening.at_least
        return _Asked(*_row(given, kept), len(condition) - len(shortened), len(target) - len(kept))

    def _condition_room(self, target: int) -> int | None:
        if self._context is None:
            return None
        step = max(1, self._context // _STEPS)
        return max(1, self._context - -(-target // step) * step)

    def _windows(self, text: _Tokens, max_tokens: int | None) -> list[_Asked]:
        opening = self._opening.always or self._opening.at_least
        size = _least(max_tokens, self._context)
        if size is None or len(opening) + len(text) <= size:
            return [_Asked(*_row(opening, text))]
        inner = max(2, size - len(opening))
        windows = [_Asked(*_row(opening, text[:inner]))]
        half = inner // 2
        for at in range(inner, len(text), inner - half):
            before = (*self._opening.always, *text[at - half : at])
            windows.append(_Asked(*_row(before, text[at : at + inner - half])))
        return windows

    def _answered(self, asked: Sequence[Sequence[_Asked]]) -> Likelihoods:
        """One entry for each list of rows, its rows one after the other."""
        rows = list(dict.fromkeys(one.row for parts in asked for one in parts if one.row))
        with quiet_transformers(), torch.inference_mode():
            found, failed = self._schedule.log_probs(rows)
        number = {row: n for n, row in enumerate(rows)}
        failures = {i: why for i, parts in enumerate(asked) if (why := _failure(parts, number, failed))}
        kept = [[one.row for one in parts if one.row] if i not in failures else [] for i, parts in enumerate(asked)]
        return Likelihoods(
            logprobs=_joined([found[number[row]] for parts in kept for row in parts]),
            tokens=np.array([token for parts in kept for row in parts for token in row.target], np.int64),
            starts=np.cumsum([0, *(sum(len(row.target) for row in parts) for parts in kept)], dtype=np.int64),
            condition_cut=np.array([sum(one.condition_cut for one in parts) for parts in asked], np.int64),
            target_cut=np.array([sum(one.target_cut for one in parts) for parts in asked], np.int64),
            failures=failures,
        )


def _row(given: _Tokens, target: _Tokens) -> tuple[Row | None, str]:
    """What can be scored of a target, or why nothing can."""
    if not target:
        return None, "the text to be scored has no tokens"
    if given:
        return Row(given, target), ""
    if len(target) == 1:
        return None, "the text to be scored is one token, and the model knows no token to begin a text with"
    return Row(target[:1], target[1:]), ""


def _failure(parts: Sequence[_Asked], number: Mapping[Row, int], failed: Mapping[int, str]) -> str:
    for one in parts:
        if one.row is None:
            return one.failure
        if number[one.row] in failed:
            return failed[number[one.row]]
    return ""


def _joined(arrays: Sequence[Floats | None]) -> Floats:
    there = [one for one in arrays if one is not None]
    return np.concatenate(there) if there else np.empty(0, np.float32)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _without_middle(tokens: _Tokens, room: int | None) -> _Tokens:
    if room is None or len(tokens) <= room:
        return tokens
    first = room // 2
    return (*tokens[:first], *tokens[len(tokens) - (room - first) :])


def _opening(tokenizer: Any, config: Any, passes: Passes) -> Opening:
    side = tokenization.TokenizerSide(tokenizer)
    always = tuple(side.ids(["a"])[0][: side.before].tolist())
    known = (tokenizer.bos_token_id, config.bos_token_id, tokenizer.eos_token_id, config.eos_token_id)
    single = (one[0] if isinstance(one, list) and one else one for one in known)
    usable = [int(one) for one in single if isinstance(one, int) and 0 <= one < passes.vocabulary]
    return Opening(always=always, at_least=always or tuple(usable[:1]))


def _not_causal(found: weights.Weights, what: str) -> str:
    kind = found.config.get("model_type", "no model_type")
    return f"{found.name} ({kind}) {what}; wanted a causal language model such as GPT-2 or Llama"
