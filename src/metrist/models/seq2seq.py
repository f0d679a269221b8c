"""Likelihood of targets under a sequence-to-sequence model, such as BART, T5 or Marian.

The numbers are those of the model's own forward pass with the target as labels, one pair at a time. Sharing (of a
condition's encoding and its cross-attention keys and values) and batching only change the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.models import devices, tokenization
from metrist.models.batching import (
    DistinctPairs,
    LikelihoodBuilder,
    MemoryShortage,
    TokenBudget,
    longest_first,
    run_in_batches,
)
from metrist.models.devices import Options
from metrist.models.protocols import Likelihoods
from metrist.models.tokenization import BackgroundTokens, Ids, TokenizerSide, language_facts, set_languages
from metrist.models.weights import Weights, find_weights
from metrist.models.windows import split_text
from metrist.runtime import Runtime

#: Texts are cut here if neither the model nor the tokenizer has a limit and the user sets none.
_DEFAULT_MAX_TOKENS = 2_048
_NO_CONDITION = "the conditioning text has no tokens"
_NO_TARGET = "the target has no tokens"


class Seq2Seq:
    """A loaded sequence-to-sequence model with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, weights: Weights, place: devices.Placement) -> None:
        import torch

        from metrist.models.dispatch import choose_path, find_label_shift

        self._model, self._tokenizer, self._place = model, tokenizer, place
        self._conditions, self._targets = TokenizerSide(tokenizer), TokenizerSide(tokenizer, target=True)
        with torch.inference_mode():
            self._path = choose_path(model, weights.name, find_label_shift(model, weights.name), place)
        self._encoding, self._decoding = TokenBudget(place.tokens), TokenBudget(place.tokens)
        self._facts = {
            "weights": weights.fingerprint,
            "dtype": str(place.dtype).removeprefix("torch."),
            "model_type": str(model.config.model_type),
            **language_facts(tokenizer),
        }

    @classmethod
    def load(cls, options: Options, runtime: Runtime | None = None) -> Seq2Seq:
        """Load the model on the runtime's device."""
        place = devices.resolve_placement(options, runtime)
        from metrist.models.weights import quiet_transformers, read_model, read_tokenizer

        weights = find_weights(options)
        model = read_model("AutoModelForSeq2SeqLM", weights, options, place)
        with quiet_transformers():
            return cls(model, set_languages(read_tokenizer(weights, options), options), weights, place)

    @property
    def model(self) -> Any:
        """The model, as transformers loaded it."""
        return self._model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts for signatures: the hash of weights and tokenizer, the dtype, and transformers' model type."""
        return self._facts

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Return each target's tokens with their log-probabilities, in the order of the pairs."""
        import torch

        from metrist.models.weights import quiet_transformers

        with quiet_transformers(), torch.inference_mode():
            return _Call(self, DistinctPairs(pairs), max_tokens).run()

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """Split a text into overlapping windows that fit into a condition; return the text itself if it fits."""
        return split_text(self._conditions, text, self.condition_limit(max_tokens))

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """Return the target's tokens as readable text, as many as `log_probs` returns."""
        ids = self._targets.cut(self._targets.ids([target])[0], self.target_limit(max_tokens))
        return tokenization.readable_tokens(self._tokenizer, ids.tolist())

    def condition_limit(self, max_tokens: int | None) -> int:
        """Return the largest number of tokens of a condition."""
        return self._limit(self._model.get_encoder(), max_tokens)

    def target_limit(self, max_tokens: int | None) -> int:
        """Return the largest number of tokens of a target."""
        return self._limit(self._model.get_decoder(), max_tokens)

    def _limit(self, stack: Any, max_tokens: int | None) -> int:
        """A position table is a hard limit; other values are recommendations."""
        positions = _count_positions(stack)
        recommended = tokenization.token_limit(self._tokenizer) or getattr(self._model.config, "n_positions", None)
        limit = max_tokens or recommended or positions or _DEFAULT_MAX_TOKENS
        return limit if positions is None else min(limit, positions)


def _count_positions(stack: Any) -> int | None:
    embedding = getattr(stack, "embed_positions", None)
    rows = getattr(embedding, "weight", None)
    if rows is None:
        rows = getattr(embedding, "weights", None)
    return None if rows is None else len(rows) - int(getattr(embedding, "offset", 0))


class _Call:
    """One call of `log_probs`: the work and its results so far."""

    def __init__(self, engine: Seq2Seq, work: DistinctPairs, max_tokens: int | None) -> None:
        self._engine, self._work, self._results = engine, work, LikelihoodBuilder(work)
        self._target_limit = engine.target_limit(max_tokens)
        self._ids = self._encode_conditions(engine.condition_limit(max_tokens))
        #: Conditions by descending length.
        self._order = longest_first([len(ids) for ids in self._ids])
        self._logprobs: list[Any] = []

    def run(self) -> Likelihoods:
        """Compute all pairs; wait for the device once, at the end."""
        needed = self._work.first_needed(self._order)
        self._target_positions = {target: at for at, target in enumerate(needed)}
        lengths = [len(self._ids[condition]) for condition in self._order]
        engine = self._engine
        with BackgroundTokens(engine._targets, [self._work.targets[target] for target in needed]) as self._target_ids:
            failures = run_in_batches(
                lengths, engine._encoding, self._score_group, self._free, padded=engine._path.encoder.padded
            )
            for at, reason in failures.items():
                self._fail(self._work.select([self._order[at]]), f"the conditioning text {reason}")
            return self._results.to_likelihoods(self._collect_logprobs())

    def _encode_conditions(self, limit: int) -> list[Ids]:
        side = self._engine._conditions
        full = side.ids(self._work.conditions)
        cut = [side.cut(ids, limit) for ids in full]
        self._results.condition_cut[:] = [len(a) - len(b) for a, b in zip(full, cut, strict=True)]
        return cut

    def _score_group(self, group: list[int]) -> None:
        """Encode some conditions and score all their targets."""
        conditions = [condition for condition in (self._order[at] for at in group) if len(self._ids[condition])]
        empty = [condition for condition in (self._order[at] for at in group) if not len(self._ids[condition])]
        self._fail(self._work.select(empty), _NO_CONDITION)
        if not conditions:
            return
        memory = self._engine._path.encode([self._ids[condition] for condition in conditions])
        position = {condition: at for at, condition in enumerate(conditions)}
        scored, ordered = len(self._logprobs), len(self._results.order)
        try:
            for run in self._split_runs(self._work.select(conditions)):
                self._score_run(memory, position, self._add_labels(run))
        except MemoryShortage:
            del self._logprobs[scored:], self._results.order[ordered:]
            raise

    def _split_runs(self, pairs: list[int]) -> list[list[int]]:
        """Split pairs where the next part of the targets' tokens is needed, so that the device need not wait for
        all."""
        runs: list[list[int]] = []
        latest = -1
        for pair in pairs:
            part = self._target_ids.part(self._target_positions[self._work.pairs[pair][1]])
            if part > latest:
                runs.append([])
                latest = part
            runs[-1].append(pair)
        return runs

    def _add_labels(self, pairs: list[int]) -> list[int]:
        """Set the labels of pairs; return the pairs whose target has tokens."""
        side, results = self._engine._targets, self._results
        for pair in pairs:
            target = self._work.pairs[pair][1]
            ids = self._target_ids[self._target_positions[target]]
            results.labels[pair] = side.cut(ids, self._target_limit)
            results.target_cut[target] = len(ids) - len(results.labels[pair])
        self._fail([pair for pair in pairs if not len(results.labels[pair])], _NO_TARGET)
        return [pair for pair in pairs if len(results.labels[pair])]

    def _score_run(self, memory: Any, position: Mapping[int, int], pairs: list[int]) -> None:
        """Score targets of encoded conditions, batch by batch."""
        labels, path = self._results.labels, self._engine._path
        if path.decoder.padded:
            pairs = [pairs[at] for at in longest_first([len(labels[pair]) for pair in pairs])]

        def work(batch: list[int]) -> None:
            selected = [pairs[at] for at in batch]
            owners = [position[self._work.pairs[pair][0]] for pair in selected]
            self._logprobs.append(path.log_probs(memory, owners, [labels[pair] for pair in selected]))
            self._results.order += selected

        lengths = [len(labels[pair]) for pair in pairs]
        failures = run_in_batches(lengths, self._engine._decoding, work, self._free, padded=path.decoder.padded)
        if failures and len(position) > 1:
            raise MemoryShortage
        for at, reason in failures.items():
            self._fail([pairs[at]], f"the target {reason}")

    def _fail(self, pairs: list[int], reason: str) -> None:
        for pair in pairs:
            self._results.failures[pair] = reason
            self._results.labels[pair] = np.empty(0, dtype=np.int64)

    def _free(self) -> None:
        devices.free_memory(self._engine._place.device)

    def _collect_logprobs(self) -> NDArray[np.float32]:
        import torch

        if not self._logprobs:
            return np.empty(0, dtype=np.float32)
        logprobs: NDArray[np.float32] = torch.cat(self._logprobs).cpu().numpy()
        return logprobs
