"""Causal language models as likelihood models: any AutoModelForCausalLM of transformers.

Condition and target are tokenized separately and their ids concatenated, so that a score never depends on a merge
across the border. The special tokens with which the tokenizer begins a text come before the condition, and there are no
others. An empty condition becomes the token that begins a text, or else the one that ends it; if tokenizer and model
have neither, nothing predicts the target's first token and it is not scored.

If both together are longer than the model's context, the target keeps its first tokens, at most three quarters of the
context. The condition gets the rest and loses its middle, since the beginning of a prompt and the end right before the
target matter most.
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
from metrist.models.batching import TokenBudget
from metrist.models.causal_passes import Floats, NotCausal, Passes, Row, Schedule, probe_passes
from metrist.models.devices import Options
from metrist.models.protocols import Likelihoods
from metrist.models.weights import quiet_transformers, read_model, read_tokenizer
from metrist.models.windows import split_text
from metrist.runtime import Runtime

_Tokens = tuple[int, ...]

#: The room for a condition is rounded to multiples of 1/16 of the context: conditions of targets of similar length are
#: then cut alike, and read once.
_CONTEXT_STEPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The tokens before a text: `always`, and `at_least` if there would be none otherwise."""

    always: _Tokens
    at_least: _Tokens


@dataclass(frozen=True, slots=True)
class _TokenPair:
    """A pair as tokens, with the numbers of tokens cut; `row` is None if there is nothing to score, with the reason."""

    row: Row | None
    failure: str
    condition_cut: int = 0
    target_cut: int = 0


class Causal:
    """A loaded causal model. Equal pairs are scored once, equal conditions read once."""

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
        files = weights.find_weights(options)
        if files.runs_on_numpy or files.config.get("is_encoder_decoder"):
            raise ModelError(_explain_not_causal(files, "is a sequence-to-sequence model"))
        place = devices.resolve_placement(options, runtime)
        model = read_model("AutoModelForCausalLM", files, options, place)
        tokenizer = read_tokenizer(files, options)
        try:
            with quiet_transformers():
                passes = probe_passes(model, place)
        except NotCausal:
            raise ModelError(
                _explain_not_causal(files, "uses later tokens of the text that it scores, as an encoder does")
            ) from None
        return cls(
            schedule=Schedule(passes, TokenBudget(place.tokens), partial(devices.free_memory, place.device)),
            tokenizer=tokenizer,
            opening=_find_opening(tokenizer, model.config, passes),
            context=tokenization.context_length(tokenizer, model.config),
            facts={"weights": files.fingerprint, "dtype": options.dtype, "model_type": str(model.config.model_type)},
        )

    @property
    def facts(self) -> Mapping[str, str]:
        return self._facts

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Return log-probabilities of the targets' tokens; those of the conditions are not computed."""
        distinct = list(dict.fromkeys(pairs))
        ids = self._ids({text for pair in distinct for text in pair})
        token_pairs = {pair: self._make_pair(ids[pair[0]], ids[pair[1]], max_tokens) for pair in distinct}
        return self._score([[token_pairs[pair]] for pair in pairs])

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        """Return log-probabilities of all tokens of texts. A text longer than the context (or `max_tokens`) is read in
        windows: each continues where the last one ended, with half a window of preceding text as its condition."""
        ids = self._ids(set(texts))
        windows = {text: self._make_windows(ids[text], max_tokens) for text in dict.fromkeys(texts)}
        return self._score([windows[text] for text in texts])

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """Split a text into windows of half the context, which leaves room for a target."""
        limit = _minimum(max_tokens, None if self._context is None else self._context // 2)
        return [text] if limit is None else split_text(self._side, text, limit)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return self.spelled(self._ids({target})[target][: _minimum(max_tokens, self._target_limit)])

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        """Return each token as readable text."""
        return tokenization.readable_tokens(self._tokenizer, tokens)

    def in_windows(self, text: str, max_tokens: int | None = None) -> int:
        """Return in how many windows `running` reads a text."""
        return max(1, len(self._make_windows(self._ids({text})[text], max_tokens)))

    @property
    def _target_limit(self) -> int | None:
        return None if self._context is None else max(1, self._context * 3 // 4)

    def _ids(self, texts: set[str]) -> dict[str, _Tokens]:
        """Return the texts' tokens without special tokens."""
        ordered = sorted(texts)
        before, after = self._side.before, self._side.after
        return {
            text: tuple(ids[before : len(ids) - after].tolist())
            for text, ids in zip(ordered, self._side.ids(ordered), strict=True)
        }

    def _make_pair(self, condition: _Tokens, target: _Tokens, max_tokens: int | None) -> _TokenPair:
        cut_target = target[: _minimum(max_tokens, self._target_limit)]
        limit = _minimum(max_tokens, self._condition_limit(len(cut_target)))
        if limit is not None:
            limit = max(0, limit - len(self._opening.always))
        cut_condition = _remove_middle(condition, limit)
        before = (*self._opening.always, *cut_condition) or self._opening.at_least
        row, failure = _make_row(before, cut_target)
        return _TokenPair(row, failure, len(condition) - len(cut_condition), len(target) - len(cut_target))

    def _condition_limit(self, target: int) -> int | None:
        if self._context is None:
            return None
        step = max(1, self._context // _CONTEXT_STEPS)
        return max(1, self._context - -(-target // step) * step)

    def _make_windows(self, text: _Tokens, max_tokens: int | None) -> list[_TokenPair]:
        opening = self._opening.always or self._opening.at_least
        size = _minimum(max_tokens, self._context)
        if size is None or len(opening) + len(text) <= size:
            return [_TokenPair(*_make_row(opening, text))]
        inner = max(2, size - len(opening))
        windows = [_TokenPair(*_make_row(opening, text[:inner]))]
        half = inner // 2
        for at in range(inner, len(text), inner - half):
            before = (*self._opening.always, *text[at - half : at])
            windows.append(_TokenPair(*_make_row(before, text[at : at + inner - half])))
        return windows

    def _score(self, texts: Sequence[Sequence[_TokenPair]]) -> Likelihoods:
        """Score texts, each given as consecutive token pairs; return one entry per text."""
        rows = list(dict.fromkeys(pair.row for parts in texts for pair in parts if pair.row))
        with quiet_transformers(), torch.inference_mode():
            logprobs, failed = self._schedule.log_probs(rows)
        number = {row: n for n, row in enumerate(rows)}
        failures = {i: reason for i, parts in enumerate(texts) if (reason := _find_failure(parts, number, failed))}
        scored = [
            [pair.row for pair in parts if pair.row] if i not in failures else [] for i, parts in enumerate(texts)
        ]
        return Likelihoods(
            logprobs=_concatenate([logprobs[number[row]] for parts in scored for row in parts]),
            tokens=np.array([token for parts in scored for row in parts for token in row.target], np.int64),
            starts=np.cumsum([0, *(sum(len(row.target) for row in parts) for parts in scored)], dtype=np.int64),
            condition_cut=np.array([sum(pair.condition_cut for pair in parts) for parts in texts], np.int64),
            target_cut=np.array([sum(pair.target_cut for pair in parts) for parts in texts], np.int64),
            failures=failures,
        )


def _make_row(before: _Tokens, target: _Tokens) -> tuple[Row | None, str]:
    """Return the row to score, or None and the reason."""
    if not target:
        return None, "the text to score has no tokens"
    if before:
        return Row(before, target), ""
    if len(target) == 1:
        return None, "the text to score is one token, and the model has no token that begins a text"
    return Row(target[:1], target[1:]), ""


def _find_failure(parts: Sequence[_TokenPair], number: Mapping[Row, int], failed: Mapping[int, str]) -> str:
    for pair in parts:
        if pair.row is None:
            return pair.failure
        if number[pair.row] in failed:
            return failed[number[pair.row]]
    return ""


def _concatenate(arrays: Sequence[Floats | None]) -> Floats:
    known = [array for array in arrays if array is not None]
    return np.concatenate(known) if known else np.empty(0, np.float32)


def _minimum(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _remove_middle(tokens: _Tokens, limit: int | None) -> _Tokens:
    if limit is None or len(tokens) <= limit:
        return tokens
    first = limit // 2
    return (*tokens[:first], *tokens[len(tokens) - (limit - first) :])


def _find_opening(tokenizer: Any, config: Any, passes: Passes) -> Opening:
    side = tokenization.TokenizerSide(tokenizer)
    always = tuple(side.ids(["a"])[0][: side.before].tolist())
    known = (tokenizer.bos_token_id, config.bos_token_id, tokenizer.eos_token_id, config.eos_token_id)
    single = (token[0] if isinstance(token, list) and token else token for token in known)
    usable = [int(token) for token in single if isinstance(token, int) and 0 <= token < passes.vocabulary]
    return Opening(always=always, at_least=always or tuple(usable[:1]))


def _explain_not_causal(files: weights.Weights, reason: str) -> str:
    kind = files.config.get("model_type", "no model_type")
    return f"{files.name} ({kind}) {reason}; expected a causal language model such as GPT-2 or Llama"
