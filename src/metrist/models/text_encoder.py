"""A text encoder with linear heads on spans of its last layer, read from a folder in metrist's own format; no torch.

A matrix product takes 7-bit weights and rows that are rounded to 8 bits, block by block, and attention is computed with
integers too: see `metrist.kernels`. The number of a span therefore depends neither on the rest of the batch nor on the
number of threads, to the last bit, and with compiled kernels not on the processor either. A BERT that was exported from
transformers with a reward head is computed in float32 instead: see `numpy_inference.encoder_network`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import kernels, threads
from metrist.errors import ModelError
from metrist.models import batching, weights
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.encoder_network import (
    PREFERENCE,
    BertSizes,
    EncoderSizes,
    Ids,
    Network,
    TokenSequence,
    convert_sizes,
    read_heads,
    read_reward_head,
)
from metrist.models.numpy_inference.storage import Floats
from metrist.models.reward_layout import NAME as REWARD_SETTINGS
from metrist.models.reward_layout import (
    RewardInput,
    Rewards,
    RewardSettings,
    score_rows,
    token_encoder,
    unknown_id,
)
from metrist.models.tokenization import replace_surrogates
from metrist.runtime import Runtime

#: Tokens computed at once: their rows stay in a core's cache. With fewer than the least, products are too small to be
#: fast.
_BATCH_TOKENS, _LEAST_TOKENS = 512, 128


class EncodedText(NamedTuple):
    """The tokens of a text without special ones, and the characters of each: [tokens, 2], start and end."""

    ids: Ids
    offsets: NDArray[np.int64]


class TextEncoder:
    """An encoder with heads. The outputs of a head are raw: logits or regression values, as it was trained."""

    def __init__(self, files: weights.Weights, runtime: Runtime | None = None) -> None:
        """Load the model of a folder; raise ModelError naming the file if it is damaged."""
        file, repair = storage.CONFIG, storage.suggest_repair(files.folder)
        config = storage.read_config(files.folder, storage.TEXT_ENCODER, storage.BERT_REWARD)
        self._is_float = config["architecture"] == storage.BERT_REWARD
        arrays = storage.read_quantized(files.folder / storage.WEIGHTS)
        tokenizer = storage.read_tokenizer(files.folder)
        try:
            if self._is_float:
                bert = convert_sizes(config, BertSizes)
                self.sizes = EncoderSizes.from_bert(bert, arrays)
                file = storage.WEIGHTS
                self._heads = read_reward_head(arrays, self.sizes.hidden)
                self._network = Network(arrays, self.sizes, bert.hidden_act)
            else:
                self.sizes = EncoderSizes.from_config(config)
                file = storage.WEIGHTS
                self._heads = read_heads(arrays, self.sizes.hidden)
                self._network = Network(arrays, self.sizes)
            file = storage.TOKENIZER
            # Added tokens do not occur in texts: they are read as ordinary characters.
            most = tokenizer.get_vocab_size(with_added_tokens=False)
            self.check_tokens(max(most, self.sizes.begin_token + 1, self.sizes.end_token + 1))
        except KeyError as missing:
            raise ModelError(f"{files.folder / file}: has no {missing}; {repair}") from None
        except ValueError as fault:
            raise ModelError(f"{files.folder / file}: {fault}; {repair}") from None
        # A text that spells a special token, such as '[SEP]', is read as ordinary characters.
        tokenizer.encode_special_tokens = True
        self.tokenizer: Any = tokenizer
        self.folder = files.folder
        self.max_tokens = self.sizes.max_tokens
        self.heads = tuple(self._heads)
        #: Facts for the signature; the folder's hash covers weights, tokenizer and configuration.
        self.facts: Mapping[str, str] = {"weights": files.fingerprint, "dtype": "int8"}
        if self._is_float:
            self.facts = {**self.facts, "dtype": "float32", "runs_on": "numpy"}
        self._batch_tokens = runtime.batch_tokens if runtime else None

    # ---- Inputs

    def check_tokens(self, count: int) -> None:
        """Raise ValueError unless the weights have a vector for each of `count` tokens."""
        if count > (known := self._network.words):
            raise ValueError(f"its tokens go up to {count - 1:,}, but the weights have {known:,} tokens")

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Return the tokens of each text, without special ones and without truncation."""
        clean = [replace_surrogates(text) for text in texts]
        encodings = self.tokenizer.encode_batch(clean, add_special_tokens=False) if clean else []
        return [
            EncodedText(np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2))
            for encoding in encodings
        ]

    def join(self, first: Ids, second: Ids | None = None) -> TokenSequence:
        """Return `[CLS] first [SEP] second [SEP]`, or `[CLS] first [SEP]`, as a sequence to score. Token i of `first`
        is token i + 1 of the sequence."""
        begin, end = [self.sizes.begin_token], [self.sizes.end_token]
        parts = [begin, first, end] if second is None else [begin, first, end, second, end]
        return np.concatenate([np.asarray(part, np.int32) for part in parts]), len(first) + 2

    # ---- Scores

    def score_spans(
        self, head: str, sequences: Sequence[TokenSequence], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[NDArray[np.float64]]:
        """Return, for each sequence, the head's outputs on the mean over each of its spans (start, end), [spans,
        outputs]. Spans count tokens of the sequence, special ones included."""
        if len(sequences) != len(spans):
            raise ValueError(f"got {len(sequences)} sequences and spans of {len(spans)}")
        for number, ((ids, _), wanted) in enumerate(zip(sequences, spans, strict=True)):
            for start, end in wanted:
                if not 0 <= start < end <= len(ids):
                    raise ValueError(f"sequence {number} has {len(ids)} tokens, so ({start}, {end}) is no span of it")

        def pool(number: int, states: Floats) -> Floats:
            kind = np.float32 if self._is_float else np.float64
            means = [states[start:end].mean(0, dtype=kind) for start, end in spans[number]]
            return np.array(means).reshape(-1, self.sizes.hidden)

        return self._score(head, sequences, spans, pool)

    def score_tokens(self, head: str | Sequence[str], sequences: Sequence[TokenSequence]) -> list[NDArray[np.float64]]:
        """Return, for each sequence, the head's outputs on each token of its first part, [tokens, outputs]. The
        outputs of several heads stand side by side: all of them take one pass."""
        first_parts = [[(0, first)] for _, first in sequences]
        return self._score(head, sequences, first_parts, lambda number, states: states[: sequences[number][1]])

    def read_states(self, sequences: Sequence[TokenSequence], layer: int | None = None) -> list[Floats]:
        """Return, for each sequence, the states of its tokens after a layer, [tokens, width]: 1 is the first one, None
        the last. The layers above it are not computed."""
        if layer is not None and not 1 <= layer <= self.sizes.layers:
            raise ValueError(f"this model has the layers 1 to {self.sizes.layers}, so there is no layer {layer}")
        return self._compute(sequences, lambda _, states: states.copy(), layer)

    def _score(
        self,
        head: str | Sequence[str],
        sequences: Sequence[TokenSequence],
        spans: Sequence[Sequence[tuple[int, int]]],
        pool: Callable[[int, Floats], NDArray[Any]],
    ) -> list[NDArray[np.float64]]:
        names = (head,) if isinstance(head, str) else tuple(head)
        if unknown := [name for name in names if name not in self._heads]:
            known = ", ".join(map(repr, self._heads)) or "none"
            raise ModelError(f"this model has no head {unknown[0]!r}; it has {known}", code="unknown_name")
        matrix, bias = (np.concatenate(arrays) for arrays in zip(*(self._heads[name] for name in names), strict=True))

        def apply(number: int, states: Floats) -> NDArray[np.float64]:
            pooled = pool(number, states).astype(np.float64)
            # Row by row, so that the rounding does not depend on the number of rows.
            result: NDArray[np.float64] = (pooled[:, None, :] * matrix).sum(2) + bias
            return result

        # In float32, all rows are computed: fewer of them would be rounded in another way on some processors.
        return self._compute(sequences, apply, spans=None if self._is_float else spans)

    def _compute(
        self,
        sequences: Sequence[TokenSequence],
        finish: Callable[[int, Floats], NDArray[Any]],
        layer: int | None = None,
        spans: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> list[NDArray[Any]]:
        """Return what `finish` makes of each sequence's number and the states of its tokens; of those in its spans, if
        there are any."""
        for number, (ids, first) in enumerate(sequences):
            if not 1 <= len(ids) <= self.max_tokens:
                raise ValueError(f"sequence {number} has {len(ids)} tokens; this model reads 1 to {self.max_tokens}")
            if not 0 <= first <= len(ids):
                raise ValueError(f"sequence {number} has {len(ids)} tokens, so its first part cannot have {first}")
            if np.min(ids) < 0 or np.max(ids) >= self._network.words:
                raise ValueError(f"sequence {number} has a token that is not among {self._network.words:,}")
        # Equal sequences are computed once.
        distinct: dict[tuple[bytes, int], list[int]] = {}
        for number, (ids, first) in enumerate(sequences):
            distinct.setdefault((np.asarray(ids, np.int32).tobytes(), first), []).append(number)
        groups = sorted(distinct.values(), key=lambda numbers: len(sequences[numbers[0]][0]))
        lengths = [len(sequences[numbers[0]][0]) for numbers in groups]
        uses_blas = self._is_float or not kernels.has_encoder()
        # Few enough tokens at once that every core gets work.
        share = -(-sum(lengths) // threads.thread_count(uses_blas=uses_blas))
        budget = self._batch_tokens or min(_BATCH_TOKENS, max(_LEAST_TOKENS, share))
        batches = list(batching.split_batches(lengths, budget, padded=False))

        def compute(batch: Sequence[int]) -> dict[int, NDArray[Any]]:
            starts = np.cumsum([0, *(lengths[at] for at in batch)])
            rows_read = None
            if spans is not None:
                is_read = np.zeros(starts[-1], bool)
                for at, begin in zip(batch, starts[:-1].tolist(), strict=True):
                    for start, end in (span for number in groups[at] for span in spans[number]):
                        is_read[begin + start : begin + end] = True
                rows_read = np.flatnonzero(is_read)
            states = self._network.encode([sequences[groups[at][0]] for at in batch], layer, rows_read)
            results = {}
            for at, start in zip(batch, starts[:-1].tolist(), strict=True):
                for number in groups[at]:
                    results[number] = finish(number, states[start : start + lengths[at]])
            return results

        results: dict[int, NDArray[Any]] = {}
        for part in threads.parallel_map(compute, batches, uses_blas=uses_blas):
            results |= part
        return [results[number] for number in range(len(sequences))]


class EncoderReward:
    """The preference head of a text encoder as a reward model. Equal answers are computed once."""

    HEAD = PREFERENCE

    def __init__(self, encoder: TextEncoder, files: weights.Weights) -> None:
        """Read how answers are laid out; raise ModelError if that or the model's heads do not fit."""
        settings = RewardSettings.read(files.folder, files.name)
        if self.HEAD not in encoder.heads:
            raise ModelError(
                f"{files.name} has no head {self.HEAD!r}, so it is not a preference model", code="unknown_name"
            )
        try:
            frame = settings.frame
            encoder.check_tokens(1 + max((*frame.prefix, *frame.separator, *frame.suffix), default=0))
        except ValueError as fault:
            path, repair = files.folder / REWARD_SETTINGS, storage.suggest_repair(files.folder)
            raise ModelError(f"{path}: {fault}; {repair}") from None
        self.settings = settings.within(encoder.max_tokens)
        self.facts: Mapping[str, str] = encoder.facts
        self._encoder = encoder
        self._encode, self._unknown = token_encoder(encoder.tokenizer), unknown_id(encoder.tokenizer)

    def rewards(self, inputs: Sequence[RewardInput]) -> Rewards:
        """Return one reward per input, in order. In float32, the rest of the batch changes a reward by less than
        1e-5."""
        return score_rows(self._encode, self.settings, inputs, self._unknown, self._compute)

    def _compute(self, rows: Sequence[Ids], starts: Sequence[int]) -> NDArray[np.float64]:
        # An answer is read in one part with what comes before it.
        sequences = [(ids, len(ids)) for ids in rows]
        spans = []
        for ids, start in zip(rows, starts, strict=True):
            end = len(ids)
            # The tokens that represent the row.
            by_pooling = {"answer": (start, end), "mean": (0, end), "first": (0, 1), "last": (end - 1, end)}
            spans.append([by_pooling[self.settings.pooling]])
        outputs = self._encoder.score_spans(self.HEAD, sequences, spans)
        return np.array([output[0, 0] for output in outputs], np.float64)
