"""Shipped models that run on numpy: a reward model and a likelihood model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching, tokenization
from metrist.models.numpy_inference import quantization as folders
from metrist.models.numpy_inference import threads
from metrist.models.numpy_inference.bert import Bert, Sizes, check_shape
from metrist.models.numpy_inference.quantization import Floats, read_arrays, remedy
from metrist.models.numpy_inference.t5 import T5, T5Sizes
from metrist.models.protocols import Likelihoods, Rewards
from metrist.models.reward_layout import NAME as SETTINGS
from metrist.models.reward_layout import (
    Pooling,
    RewardInput,
    RewardRows,
    RewardSettings,
    build_rows,
    token_encoder,
    unknown_id,
)
from metrist.models.weights import Weights
from metrist.runtime import Runtime

ARCHITECTURE = "bert-reward"
#: Rows computed at once: enough for large products, few enough for the processor's cache.
_BUDGET = 512
#: With fewer the products are too small to be fast.
_LEAST = 128


class NumpyReward:
    """A BERT with a reward's head in metrist's own form. Equal answers are computed once."""

    def __init__(self, weights: Weights, runtime: Runtime | None = None) -> None:
        """The model of a folder; a fault in it is a ModelError that names the file."""
        config = folders.read_config(weights.folder, ARCHITECTURE)
        settings = RewardSettings.read(weights.folder, weights.name)
        arrays = read_arrays(weights.folder / folders.WEIGHTS)
        tokenizer = folders.read_tokenizer(weights.folder)
        file = folders.CONFIG
        try:
            sizes = Sizes.of(config)
            file = folders.WEIGHTS
            self._head, self._bias = _head(arrays, sizes.hidden_size)
            self._network = Bert({name: one for name, one in arrays.items() if not name.startswith("head.")}, sizes)
            file = folders.TOKENIZER
            # Tokens that were added to it later stand in no text: such words are read as the letters they have.
            self._network.check_tokens("its vocabulary", tokenizer.get_vocab_size(with_added_tokens=False))
            file = SETTINGS
            self._network.check_tokens("frame", 1 + max((one for part in settings.frame for one in part), default=0))
        except KeyError as missing:
            where = f"neither {folders.CONFIG} nor {folders.WEIGHTS} has"
            raise ModelError(f"{weights.folder}: {where} {missing}; {remedy(weights.folder)}") from None
        except ValueError as fault:
            raise ModelError(f"{weights.folder / file}: {fault}; {remedy(weights.folder)}") from None
        room = min(settings.layout.max_length or sizes.max_position_embeddings, sizes.max_position_embeddings)
        self.settings = replace(settings, layout=replace(settings.layout, max_length=room))
        self._encode, self._unknown = token_encoder(tokenizer), unknown_id(tokenizer)
        self._fingerprint = weights.fingerprint
        self._batch_tokens = runtime.batch_tokens if runtime else None

    @property
    def facts(self) -> Mapping[str, str]:
        """The folder's hash covers weights, tokenizer and settings."""
        return {"weights": self._fingerprint, "dtype": "float32", "runs_on": "numpy"}

    def rewards(self, judged: Sequence[RewardInput]) -> Rewards:
        """One reward per answer, in the order given, within 1e-5 of each other whatever else is judged with it."""
        number = {one: at for at, one in enumerate(dict.fromkeys(judged))}
        laid = build_rows(self._encode, self.settings.frame, self.settings.layout, list(number), self._unknown)
        order = np.array([number[one] for one in judged], np.int64)
        cut, known = (np.array(counts, np.int64)[order] for counts in (laid.cut, laid.read))
        return Rewards(self._values(laid)[order], cut, known)

    def _values(self, laid: RewardRows) -> NDArray[np.float64]:
        # Alike lengths meet, since attention takes those of one length together.
        order = sorted(range(len(laid.ids)), key=lambda at: len(laid.ids[at]))
        lengths = [len(laid.ids[at]) for at in order]
        budget = self._batch_tokens or _default_tokens(lengths)
        batches = [[order[at] for at in batch] for batch in batching.split_batches(lengths, budget, padded=False)]
        values = np.empty(len(order), np.float64)
        for batch, found in zip(
            batches, threads.parallel_map(lambda one: self._rewards(laid, one), batches), strict=True
        ):
            values[batch] = found
        return values

    def _rewards(self, laid: RewardRows, batch: Sequence[int]) -> NDArray[np.float64]:
        rows = [laid.ids[at] for at in batch]
        spans = [_span(self.settings.pooling, len(laid.ids[at]), laid.starts[at]) for at in batch]
        # Row by row, in double precision: nothing is rounded by where a row lies.
        products = self._network.vectors(rows, spans).astype(np.float64) * self._head
        found: NDArray[np.float64] = products.sum(1) + self._bias
        return found


def _span(pooling: Pooling, length: int, start: int) -> tuple[int, int]:
    """The tokens that stand for a row in which the answer begins at `start`."""
    spans = {"answer": (start, length), "mean": (0, length), "first": (0, 1), "last": (length - 1, length)}
    return spans[pooling]


def _default_tokens(lengths: Sequence[int]) -> int:
    """Tokens of a batch: no more than leave some work for every core."""
    return min(_BUDGET, max(_LEAST, -(-sum(lengths) // threads.thread_count())))


def _head(arrays: Mapping[str, Floats], width: int) -> tuple[NDArray[np.float64], float]:
    check_shape("head.weight", arrays["head.weight"], (1, width))
    check_shape("head.bias", arrays["head.bias"], (1,))
    return arrays["head.weight"][0].astype(np.float64), float(arrays["head.bias"][0])


# A shipped sequence-to-sequence model: log-probabilities of target tokens.

Ids = NDArray[np.int64]
Work = TypeVar("Work")

#: Rows computed at once: enough for large products, few enough for the processor's cache.
_SEQ2SEQ_BATCH_TOKENS = 2048


class _Texts(tokenization.TokenizerSide):
    """Tokenise texts, with the words that the model was trained to see around them and the end token."""

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
        """The ids of each distinct text, cut to the limit, and how many were cut off."""
        distinct = list(dict.fromkeys(texts))
        encoded = ((text, ids, self.cut(ids, limit)) for text, ids in zip(distinct, self.ids(distinct), strict=True))
        return {text: (kept, len(ids) - len(kept)) for text, ids, kept in encoded}

    def pieces(self, text: str, limit: int) -> list[str]:
        """The tokens of a text as they are spelled in it, unknown characters included."""
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
        """Read the model of a folder; a fault in it is a ModelError that names the file."""
        config = folders.read_config(weights.folder, "t5")
        tokenizer = folders.read_tokenizer(weights.folder)
        arrays = read_arrays(weights.folder / folders.WEIGHTS)
        try:
            self._network = T5(arrays, T5Sizes.from_config(config))
            self._conditions = _Texts(tokenizer, config["eos_token_id"], config.get("condition_template", "{text}"))
            self._targets = _Texts(tokenizer, config["eos_token_id"])
            self._max_tokens: int = config["max_tokens"]
        except KeyError as missing:
            where = f"neither {folders.CONFIG} nor {folders.WEIGHTS} has"
            raise ModelError(f"{weights.folder}: {where} {missing}; {remedy(weights.folder)}") from None
        self._fingerprint = weights.fingerprint
        self._batch_tokens = (runtime.batch_tokens if runtime else None) or _SEQ2SEQ_BATCH_TOKENS

    @property
    def facts(self) -> Mapping[str, str]:
        """The folder's hash covers weights, tokenizer and configuration, including the condition's template."""
        return {"weights": self._fingerprint, "dtype": "float32", "runs_on": "numpy"}

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Each pair's target tokens with their log-probabilities; the end token is one of them."""
        limit = max_tokens or self._max_tokens
        conditions = self._conditions.encode_and_cut([condition for condition, _ in pairs], limit)
        targets = self._targets.encode_and_cut([target for _, target in pairs], limit)
        by_condition: dict[str, list[str]] = {}
        for condition, target in dict.fromkeys(pairs):
            by_condition.setdefault(condition, []).append(target)
        # Sorted by length, so that the order of the pairs does not decide how well the batches are filled.
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
        """Split a text into overlapping pieces that fit into a condition; a text that fits stays whole."""
        return tokenization.split_windows(self._conditions, text, max_tokens or self._max_tokens)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """The target's tokens as they are spelled in the text; a space marks the beginning of a word."""
        return self._targets.pieces(target, max_tokens or self._max_tokens)


def _split_batches(work: Sequence[Work], sizes: Sequence[int], budget: int) -> Iterator[list[Work]]:
    """Cut the work, in order, into batches whose sizes sum to at most the budget, or that hold one piece."""
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
