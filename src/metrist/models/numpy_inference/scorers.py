"""Shipped likelihood models as scorers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching, tokenization
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.storage import Floats, read_arrays, suggest_repair
from metrist.models.numpy_inference.t5 import T5, T5Sizes
from metrist.models.protocols import Likelihoods
from metrist.models.weights import Weights
from metrist.models.windows import split_text
from metrist.runtime import Runtime

Ids = NDArray[np.int64]

#: Tokens computed at once: enough for large products, few enough for the processor's cache.
_BATCH_TOKENS = 2048


class _Texts(tokenization.TokenizerSide):
    """Tokenizes texts inside the template that the model was trained with, with the end token."""

    def __init__(self, tokenizer: Any, end: int, template: str = "{text}") -> None:
        self._tokenizer, self._end = tokenizer, end
        self._template = template.partition("{text}")[::2]
        self.before, self.after = (len(encoding.ids) for encoding in self._encode(self._template))
        self.after += 1

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        before, after = self._template
        encodings = self._encode([before + text + after for text in texts])
        return [np.array([*encoding.ids, self._end], np.int64) for encoding in encodings]

    def encode_and_cut(self, texts: Sequence[str], limit: int) -> dict[str, tuple[Ids, int]]:
        """Return the ids of each distinct text, cut to the limit, and how many were cut off."""
        distinct = list(dict.fromkeys(texts))
        encoded: dict[str, tuple[Ids, int]] = {}
        for text, ids in zip(distinct, self.ids(distinct), strict=True):
            excess = max(len(ids) - max(limit, self.before + self.after), 0)
            end = len(ids) - self.after
            encoded[text] = np.concatenate([ids[: end - excess], ids[end:]]), excess
        return encoded

    def pieces(self, text: str, limit: int) -> list[str]:
        """Return the tokens of a text as they are spelled in it, unknown characters included."""
        tokens = self._encode([text])[0].tokens[: max(0, limit - 1)]
        return [*(token.replace("▁", " ") for token in tokens), self._tokenizer.id_to_token(self._end)]

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        # The tokenizer refuses half a surrogate pair, which broken JSON contains.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encodings: list[Any] = self._tokenizer.encode_batch(clean, add_special_tokens=False)
        return encodings


class NumpySeq2Seq:
    """A T5 in metrist's own format. Equal pairs are computed once, and equal conditions are encoded once."""

    def __init__(self, weights: Weights, runtime: Runtime | None = None) -> None:
        """Load the model of a folder; raise ModelError naming the file if it is damaged."""
        config = storage.read_config(weights.folder, "t5")
        tokenizer = storage.read_tokenizer(weights.folder)
        arrays = read_arrays(weights.folder / storage.WEIGHTS)
        try:
            self._network = T5(arrays, T5Sizes(**{name: config[name] for name in T5Sizes.__dataclass_fields__}))
            self._conditions = _Texts(tokenizer, config["eos_token_id"], config.get("condition_template", "{text}"))
            self._targets = _Texts(tokenizer, config["eos_token_id"])
            self._max_tokens: int = config["max_tokens"]
        except KeyError as missing:
            raise ModelError(
                f"{weights.folder}: neither {storage.CONFIG} nor {storage.WEIGHTS} has {missing}; "
                f"{suggest_repair(weights.folder)}"
            ) from None
        self._fingerprint = weights.fingerprint
        self._batch_tokens = (runtime.batch_tokens if runtime else None) or _BATCH_TOKENS

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts for the signature; the folder's hash covers weights, tokenizer and configuration with its template."""
        return {"weights": self._fingerprint, "dtype": "float32", "runs_on": "numpy"}

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Return each pair's target tokens, the end token included, with their log-probabilities."""
        limit = max_tokens or self._max_tokens
        conditions = self._conditions.encode_and_cut([condition for condition, _ in pairs], limit)
        targets = self._targets.encode_and_cut([target for _, target in pairs], limit)
        by_condition: dict[str, list[str]] = {}
        for condition, target in dict.fromkeys(pairs):
            by_condition.setdefault(condition, []).append(target)
        # Sorted by length, so that the order of the pairs does not decide how full the batches are.
        order = sorted(by_condition, key=lambda condition: len(conditions[condition][0]))
        logprobs: dict[tuple[str, str], Floats] = {}
        sizes = [len(conditions[condition][0]) for condition in order]
        for chosen in batching.split_batches(sizes, self._batch_tokens, padded=False):
            group = [order[at] for at in chosen]
            memory = self._network.encode([conditions[condition][0] for condition in group])
            work = [(number, target) for number, condition in enumerate(group) for target in by_condition[condition]]
            lengths = [len(targets[text][0]) for _, text in work]
            for batch in batching.split_batches(lengths, self._batch_tokens, padded=False):
                numbers, texts = zip(*(work[at] for at in batch), strict=True)
                rows = self._network.log_probs(memory, [targets[text][0] for text in texts], numbers)
                logprobs |= {(group[n], text): row for n, text, row in zip(numbers, texts, rows, strict=True)}
        return Likelihoods(
            logprobs=np.concatenate([np.empty(0, np.float32), *(logprobs[pair] for pair in pairs)]),
            tokens=np.concatenate([np.empty(0, np.int64), *(targets[target][0] for _, target in pairs)]),
            starts=np.cumsum([0, *(len(targets[target][0]) for _, target in pairs)]),
            condition_cut=np.array([conditions[condition][1] for condition, _ in pairs], np.int64),
            target_cut=np.array([targets[target][1] for _, target in pairs], np.int64),
        )

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """Split a text into overlapping pieces that fit into a condition; a text that fits is not split."""
        return split_text(self._conditions, text, max_tokens or self._max_tokens)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """Return the target's tokens as they are spelled in the text; a space marks the beginning of a word."""
        return self._targets.pieces(target, max_tokens or self._max_tokens)
