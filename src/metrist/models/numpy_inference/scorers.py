"""Shipped models as scorers: `NumpyReward` for preference models, `NumpySeq2Seq` for likelihood models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist import threads
from metrist.errors import ModelError
from metrist.models import batching, tokenization
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.bert import Bert, BertSizes, check_shape
from metrist.models.numpy_inference.storage import Floats, read_arrays, suggest_repair
from metrist.models.numpy_inference.t5 import T5, T5Sizes
from metrist.models.protocols import Likelihoods, Rewards
from metrist.models.reward_layout import NAME as SETTINGS
from metrist.models.reward_layout import (
    RewardInput,
    RewardRows,
    RewardSettings,
    build_rows,
    pooled_span,
    token_encoder,
    unknown_id,
)
from metrist.models.weights import Weights
from metrist.runtime import Runtime

Ids = NDArray[np.int64]
Work = TypeVar("Work")

#: The architecture in config.json of a BERT with a reward head.
ARCHITECTURE = "bert-reward"
#: Tokens computed at once: enough for large products, few enough for the processor's cache.
_REWARD_TOKENS = 512
_SEQ2SEQ_TOKENS = 2048
#: With fewer tokens at once, the products are too small to be fast.
_MIN_REWARD_TOKENS = 128


class NumpyReward:
    """A BERT with a reward head, in metrist's own format. Equal answers are computed once."""

    def __init__(self, weights: Weights, runtime: Runtime | None = None) -> None:
        """Load the model of a folder; raise ModelError naming the file if it is damaged."""
        config = storage.read_config(weights.folder, ARCHITECTURE)
        settings = RewardSettings.read(weights.folder, weights.name)
        arrays = read_arrays(weights.folder / storage.WEIGHTS)
        tokenizer = storage.read_tokenizer(weights.folder)
        file = storage.CONFIG
        try:
            sizes = BertSizes.from_config(config)
            file = storage.WEIGHTS
            self._head, self._bias = _read_head(arrays, sizes.hidden_size)
            body = {name: array for name, array in arrays.items() if not name.startswith("head.")}
            self._network = Bert(body, sizes)
            file = storage.TOKENIZER
            # Added tokens do not occur in texts: they are read as ordinary characters.
            self._network.check_tokens("its vocabulary", tokenizer.get_vocab_size(with_added_tokens=False))
            file = SETTINGS
            self._network.check_tokens(
                "frame", 1 + max((token for part in settings.frame for token in part), default=0)
            )
        except KeyError as missing:
            raise ModelError(_describe_missing(weights, missing)) from None
        except ValueError as fault:
            raise ModelError(f"{weights.folder / file}: {fault}; {suggest_repair(weights.folder)}") from None
        limit = min(settings.layout.max_length or sizes.max_position_embeddings, sizes.max_position_embeddings)
        self.settings = replace(settings, layout=replace(settings.layout, max_length=limit))
        self._encode, self._unknown = token_encoder(tokenizer), unknown_id(tokenizer)
        self._fingerprint = weights.fingerprint
        self._batch_tokens = runtime.batch_tokens if runtime else None

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts for the signature; the folder's hash covers weights, tokenizer and settings."""
        return {"weights": self._fingerprint, "dtype": "float32", "runs_on": "numpy"}

    def rewards(self, inputs: Sequence[RewardInput]) -> Rewards:
        """Return one reward per input, in order. The rest of the batch changes a reward by less than 1e-5."""
        numbers = {item: at for at, item in enumerate(dict.fromkeys(inputs))}
        rows = build_rows(self._encode, self.settings.frame, self.settings.layout, list(numbers), self._unknown)
        order = np.array([numbers[item] for item in inputs], np.int64)
        cut, known = (np.array(counts, np.int64)[order] for counts in (rows.cut, rows.read))
        return Rewards(self._compute(rows)[order], cut, known)

    def _compute(self, rows: RewardRows) -> NDArray[np.float64]:
        # Sorted by length: attention computes rows of equal length together.
        order = sorted(range(len(rows.ids)), key=lambda at: len(rows.ids[at]))
        lengths = [len(rows.ids[at]) for at in order]
        budget = self._batch_tokens or _default_tokens(lengths)
        batches = [[order[at] for at in batch] for batch in batching.split_batches(lengths, budget, padded=False)]
        values = np.empty(len(order), np.float64)
        results = threads.parallel_map(lambda batch: self._compute_batch(rows, batch), batches)
        for batch, result in zip(batches, results, strict=True):
            values[batch] = result
        return values

    def _compute_batch(self, rows: RewardRows, batch: Sequence[int]) -> NDArray[np.float64]:
        ids = [rows.ids[at] for at in batch]
        spans = [pooled_span(self.settings.pooling, len(rows.ids[at]), rows.starts[at]) for at in batch]
        # Row by row in float64, so that the rounding does not depend on a row's position.
        products = self._network.vectors(ids, spans).astype(np.float64) * self._head
        rewards: NDArray[np.float64] = products.sum(1) + self._bias
        return rewards


def _default_tokens(lengths: Sequence[int]) -> int:
    """Return the tokens per batch, few enough that every core gets work."""
    return min(_REWARD_TOKENS, max(_MIN_REWARD_TOKENS, -(-sum(lengths) // threads.thread_count())))


def _read_head(arrays: Mapping[str, Floats], width: int) -> tuple[NDArray[np.float64], float]:
    check_shape("head.weight", arrays["head.weight"], (1, width))
    check_shape("head.bias", arrays["head.bias"], (1,))
    return arrays["head.weight"][0].astype(np.float64), float(arrays["head.bias"][0])


def _describe_missing(weights: Weights, missing: KeyError) -> str:
    return (
        f"{weights.folder}: neither {storage.CONFIG} nor {storage.WEIGHTS} has {missing}; "
        f"{suggest_repair(weights.folder)}"
    )


# ---- Likelihoods


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
            raise ModelError(_describe_missing(weights, missing)) from None
        self._fingerprint = weights.fingerprint
        self._batch_tokens = (runtime.batch_tokens if runtime else None) or _SEQ2SEQ_TOKENS

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
        for group in _split_batches(order, [len(conditions[text][0]) for text in order], self._batch_tokens):
            memory = self._network.encode([conditions[condition][0] for condition in group])
            work = [(number, target) for number, condition in enumerate(group) for target in by_condition[condition]]
            for batch in _split_batches(work, [len(targets[text][0]) for _, text in work], self._batch_tokens):
                numbers, texts = zip(*batch, strict=True)
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
        return tokenization.split_windows(self._conditions, text, max_tokens or self._max_tokens)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """Return the target's tokens as they are spelled in the text; a space marks the beginning of a word."""
        return self._targets.pieces(target, max_tokens or self._max_tokens)


def _split_batches(work: Sequence[Work], sizes: Sequence[int], budget: int) -> Iterator[list[Work]]:
    """Cut the work, in order, into batches whose sizes sum to at most the budget, or that have one piece."""
    batch: list[Work] = []
    total = 0
    for piece, size in zip(work, sizes, strict=True):
        if batch and total + size > budget:
            yield batch
            batch, total = [], 0
        batch.append(piece)
        total += size
    if batch:
        yield batch
