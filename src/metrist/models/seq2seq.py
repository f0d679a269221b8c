"""Likelihood of targets under a sequence-to-sequence model: BART, T5, Marian and their kin.

The numbers are those of the model's own forward pass with the target as labels, one pair at a time; what is shared
(a condition's encoding, its cross-attention keys and values) and what runs together changes the time they take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.models import devices, tokenization
from metrist.models.batching import Budget, DistinctPairs, MemoryShortage, PairResults, longest_first, run_in_batches
from metrist.models.devices import Options
from metrist.models.protocols import Likelihoods
from metrist.models.tokenization import BackgroundTokens, Ids, TokenizerSide, language_facts, set_languages
from metrist.models.weights import Weights, find_weights
from metrist.runtime import Runtime

#: Where neither model nor tokenizer knows a limit, texts are cut here unless the user says otherwise.
_ENOUGH = 2_048
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
        self._encoding, self._decoding = Budget(place.tokens), Budget(place.tokens)
        self._facts = {
            "weights": weights.fingerprint,
            "dtype": str(place.dtype).removeprefix("torch."),
            "model_type": str(model.config.model_type),
            **language_facts(tokenizer),
        }

    @classmethod
    def load(cls, options: Options, runtime: Runtime | None = None) -> Seq2Seq:
        """Load the model that the options name, on the device of the runtime."""
        place = devices.resolve_placement(options, runtime)
        from metrist.models.weights import quiet_transformers, read_model, read_tokenizer

        weights = find_weights(options)
        model = read_model("AutoModelForSeq2SeqLM", weights, options, place)
        with quiet_transformers():
            return cls(model, set_languages(read_tokenizer(weights, options), options), weights, place)

    @property
    def facts(self) -> Mapping[str, str]:
        """Weights' and tokenizer's hash in one, dtype, and what transformers calls such a model."""
        return self._facts

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Each (condition, target)'s tokens with their log-probabilities, in the order of the pairs."""
        import torch

        from metrist.models.weights import quiet_transformers

        with quiet_transformers(), torch.inference_mode():
            return _Call(self, DistinctPairs(pairs), max_tokens).likelihoods()

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """The text as overlapping pieces that fit into a condition; the text itself where it fits."""
        return tokenization.split_windows(self._conditions, text, self.condition_room(max_tokens))

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """The target's tokens as readable text, as many as `log_probs` gives of them."""
        ids = self._targets.cut(self._targets.ids([target])[0], self.target_room(max_tokens))
        return tokenization.readable_tokens(self._tokenizer, ids.tolist())

    def condition_room(self, max_tokens: int | None) -> int:
        """Tokens that a condition may have."""
        return self._room(self._model.get_encoder(), max_tokens)

    def target_room(self, max_tokens: int | None) -> int:
        """Tokens that a target may have."""
        return self._room(self._model.get_decoder(), max_tokens)

    def _room(self, stack: Any, max_tokens: int | None) -> int:
        """A table of positions is a limit that nothing lifts; others only advise."""
        table = _positions(stack)
        said = tokenization.token_limit(self._tokenizer) or getattr(self._model.config, "n_positions", None)
        asked = max_tokens or said or table or _ENOUGH
        return asked if table is None else min(asked, table)


def _positions(stack: Any) -> int | None:
    embedding = getattr(stack, "embed_positions", None)
    rows = getattr(embedding, "weight", None)
    if rows is None:
        rows = getattr(embedding, "weights", None)
    return None if rows is None else len(rows) - int(getattr(embedding, "offset", 0))


class _Call:
    """One call of `log_probs`: the work, and what is known of it so far."""

    def __init__(self, engine: Seq2Seq, work: DistinctPairs, max_tokens: int | None) -> None:
        self._engine, self._work, self._answers = engine, work, PairResults(work)
        self._room = engine.target_room(max_tokens)
        self._ids = self._condition_ids(engine.condition_room(max_tokens))
        #: Conditions by falling length.
        self._order = longest_first([len(ids) for ids in self._ids])
        self._found: list[Any] = []

    def likelihoods(self) -> Likelihoods:
        """Everything computed; the device is waited for once, at the end."""
        needed = self._work.first_needed(self._order)
        self._at = {target: at for at, target in enumerate(needed)}
        lengths = [len(self._ids[condition]) for condition in self._order]
        engine = self._engine
        with BackgroundTokens(engine._targets, [self._work.targets[target] for target in needed]) as self._ahead:
            failures = run_in_batches(
                lengths, engine._encoding, self._group, self._free, padded=engine._path.encoder.padded
            )
            for at, reason in failures.items():
                self._fail(self._work.of([self._order[at]]), f"the conditioning text {reason}")
            return self._answers.laid_out(self._logprobs())

    def _condition_ids(self, room: int) -> list[Ids]:
        side = self._engine._conditions
        whole = side.ids(self._work.conditions)
        cut = [side.cut(ids, room) for ids in whole]
        self._answers.condition_cut[:] = [len(a) - len(b) for a, b in zip(whole, cut, strict=True)]
        return cut

    def _group(self, group: list[int]) -> None:
        """Some conditions with all their targets."""
        conditions = [condition for condition in (self._order[at] for at in group) if len(self._ids[condition])]
        empty = [condition for condition in (self._order[at] for at in group) if not len(self._ids[condition])]
        self._fail(self._work.of(empty), _NO_CONDITION)
        if not conditions:
            return
        memory = self._engine._path.remember([self._ids[condition] for condition in conditions])
        place = {condition: at for at, condition in enumerate(conditions)}
        found, answered = len(self._found), len(self._answers.order)
        try:
            for run in self._runs(self._work.of(conditions)):
                self._run(memory, place, self._with_labels(run))
        except MemoryShortage:
            del self._found[found:], self._answers.order[answered:]
            raise

    def _runs(self, pairs: list[int]) -> list[list[int]]:
        """Pairs cut where the next part of the targets' tokens is needed, so that the device need not wait for all."""
        runs: list[list[int]] = []
        latest = -1
        for pair in pairs:
            part = self._ahead.part(self._at[self._work.pairs[pair][1]])
            if part > latest:
                runs.append([])
                latest = part
            runs[-1].append(pair)
        return runs

    def _with_labels(self, pairs: list[int]) -> list[int]:
        """The pairs whose target has tokens, with these noted."""
        side, answers = self._engine._targets, self._answers
        for pair in pairs:
            target = self._work.pairs[pair][1]
            whole = self._ahead[self._at[target]]
            answers.labels[pair] = side.cut(whole, self._room)
            answers.target_cut[target] = len(whole) - len(answers.labels[pair])
        self._fail([pair for pair in pairs if not len(answers.labels[pair])], _NO_TARGET)
        return [pair for pair in pairs if len(answers.labels[pair])]

    def _run(self, memory: Any, place: Mapping[int, int], pairs: list[int]) -> None:
        """Targets of some conditions that are remembered, batch by batch."""
        labels, path = self._answers.labels, self._engine._path
        if path.decoder.padded:
            pairs = [pairs[at] for at in longest_first([len(labels[pair]) for pair in pairs])]

        def work(batch: list[int]) -> None:
            some = [pairs[at] for at in batch]
            owners = [place[self._work.pairs[pair][0]] for pair in some]
            self._found.append(path.log_probs(memory, owners, [labels[pair] for pair in some]))
            self._answers.order += some

        lengths = [len(labels[pair]) for pair in pairs]
        failures = run_in_batches(lengths, self._engine._decoding, work, self._free, padded=path.decoder.padded)
        if failures and len(place) > 1:
            raise MemoryShortage
        for at, reason in failures.items():
            self._fail([pairs[at]], f"the target {reason}")

    def _fail(self, pairs: list[int], reason: str) -> None:
        for pair in pairs:
            self._answers.failures[pair] = reason
            self._answers.labels[pair] = np.empty(0, dtype=np.int64)

    def _free(self) -> None:
        devices.free_memory(self._engine._place.device)

    def _logprobs(self) -> NDArray[np.float32]:
        import torch

        if not self._found:
            return np.empty(0, dtype=np.float32)
        found: NDArray[np.float32] = torch.cat(self._found).cpu().numpy()
        return found
