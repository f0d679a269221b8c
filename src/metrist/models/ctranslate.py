"""Likelihood of targets under a sequence-to-sequence model in int8 on the CPU, by ctranslate2.

Tokens, their number and where texts are cut are those of the torch engine; the numbers differ by the rounding of the
weights to 8 bits. A condition is read anew for each of its targets: ctranslate2 has no way to keep what it read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MissingExtra, ModelError
from metrist.models import tokenizing
from metrist.models.ctranslate_conversion import Compute, about, converted, library
from metrist.models.likelihoods import Likelihoods
from metrist.models.options import DEVICE, Options, batch_tokens, device
from metrist.models.pairing import Answers, Work
from metrist.models.tokenizing import Ids, Side
from metrist.models.weights import Weights, find

#: Tokens of sources and targets that are computed at once.
_TOKENS = 4_096
#: Where neither model nor tokenizer knows a limit, texts are cut here, as by the torch engine.
_ENOUGH = 2_048


class CTranslateSeq2Seq:
    """A converted model that is loaded, with its tokenizer."""

    def __init__(self, translator: Any, tokenizer: Any, facts: Mapping[str, str], noted: Mapping[str, Any]) -> None:
        self._translator, self._tokenizer = translator, tokenizer
        self._conditions, self._targets = Side(tokenizer), Side(tokenizer, target=True)
        self._facts, self._noted = facts, noted

    @classmethod
    def load(cls, options: Options, compute: Compute = "int8") -> CTranslateSeq2Seq:
        """The model that the options name, converted at its first use."""
        try:
            import ctranslate2
        except ImportError:
            raise MissingExtra("dtype='int8'", "fast") from None
        if device() not in ("auto", "cpu"):
            raise ModelError(f"dtype='int8' runs on the CPU, but {DEVICE} is {device()!r}: unset it or leave dtype out")
        weights = find(options)
        folder = converted(weights, options, compute)
        translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=compute)
        used = str(translator.compute_type)
        return cls(translator, _tokenizer(weights, options), _facts(weights, folder, used), about(folder))

    @property
    def facts(self) -> Mapping[str, str]:
        """Weights' and tokenizer's hash in one, and what computed."""
        return self._facts

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Each (condition, target)'s tokens with their log-probabilities, in the order of the pairs."""
        work = Work(pairs)
        answers = Answers(work)
        room = self._room("condition", max_tokens), self._room("target", max_tokens)
        conditions, answers.condition_cut[:] = _cut(self._conditions, work.conditions, room[0])
        targets, answers.target_cut[:] = _cut(self._targets, work.targets, room[1])
        for pair, (condition, target) in enumerate(work.pairs):
            if len(conditions[condition]) and len(targets[target]):
                answers.labels[pair] = targets[target]
                answers.order.append(pair)
            else:
                side = "target" if len(conditions[condition]) else "conditioning text"
                answers.failures[pair] = f"the {side} has no tokens"
        return answers.laid_out(self._scored([conditions[work.pairs[pair][0]] for pair in answers.order], answers))

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """The text as overlapping pieces that fit into a condition; the text itself where it fits."""
        return tokenizing.windows(self._conditions, text, self._room("condition", max_tokens))

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """The target's tokens as readable text, as many as `log_probs` gives of them."""
        ((ids,), _) = _cut(self._targets, [target], self._room("target", max_tokens))
        return tokenizing.readable(self._tokenizer, ids.tolist())

    def _scored(self, conditions: Sequence[Ids], answers: Answers) -> NDArray[np.float32]:
        labels = [answers.labels[pair] for pair in answers.order]
        found = self._translator.score_batch(
            [_words(ids) for ids in conditions],
            [_words(self._given(ids)) for ids in labels],
            max_batch_size=batch_tokens() or _TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        rows = [result.log_probs[: len(ids)] for result, ids in zip(found, labels, strict=True)]
        return np.array([one for row in rows for one in row], dtype=np.float32)

    def _given(self, ids: Ids) -> Ids:
        """What ctranslate2 is given of a target: it adds the token that ends a text by itself, and scores it too."""
        return ids[:-1] if ids[-1] == self._noted["eos"] else ids

    def _room(self, side: str, max_tokens: int | None) -> int:
        """As the torch engine cuts: a table of positions is a limit that nothing lifts; others only advise."""
        table = self._noted[f"{side}_positions"]
        asked = max_tokens or tokenizing.limit(self._tokenizer) or self._noted["n_positions"] or table or _ENOUGH
        return int(asked if table is None else min(asked, table))


def _tokenizer(weights: Weights, options: Options) -> Any:
    from metrist.models.devices import torch_for
    from metrist.models.pretrained import read_tokenizer

    torch_for(f"the model {weights.name!r}")
    return read_tokenizer(weights, options)


def _facts(weights: Weights, folder: Path, used: str) -> Mapping[str, str]:
    return {
        "weights": weights.fingerprint,
        "dtype": used,
        "compute": f"{library()} {used}",
        "model_type": str(about(folder)["model_type"]),
    }


def _cut(side: Side, texts: Sequence[str], room: int) -> tuple[list[Ids], list[int]]:
    """The texts' tokens, and how many of each were left out."""
    whole = side.ids(texts)
    kept = [side.cut(ids, room) for ids in whole]
    return kept, [len(a) - len(b) for a, b in zip(whole, kept, strict=True)]


def _words(ids: Ids) -> list[str]:
    return list(map(str, ids.tolist()))
