"""A text encoder with linear heads on spans of its last layer, read from a folder in metrist's own format; no torch.

A matrix product takes 7-bit weights and rows that are rounded to 8 bits, block by block, and attention is computed with
integers too: see `metrist.kernels`. The number of a span therefore depends neither on the rest of the batch nor on the
number of threads, to the last bit, and with compiled kernels not on the processor either. A BERT that was exported from
transformers with a reward head is computed in float32 instead: see `numpy_inference.float_layers`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from metrist import kernels, threads
from metrist.errors import ModelError, format_count
from metrist.kernels import PackedLinear
from metrist.kernels.layers import LARGEST, UNIT, WIDEST_HEAD
from metrist.models import batching, weights
from metrist.models.numpy_inference import float_layers, storage
from metrist.models.numpy_inference.storage import Floats, Quantized
from metrist.models.protocols import Rewards
from metrist.models.reward_layout import NAME as REWARD_SETTINGS
from metrist.models.reward_layout import RewardInput, RewardSettings, build_rows, pooled_span, token_encoder, unknown_id
from metrist.models.tokenization import replace_surrogates
from metrist.runtime import Runtime

Ids = NDArray[np.int32]
#: The tokens of an input, special ones included, and how many of them are its first part: `[CLS] output [SEP]`.
TokenSequence = tuple[Ids, int]

#: What precedes a head's name in the names of its arrays.
HEAD = "heads."
#: The same for the only head of a BERT that was exported from transformers.
REWARD_HEAD = "head."
#: Of nomic-embed-text: the wavelength of the slowest rotation, in positions and turns of 2 pi.
_ROTARY_BASE = 1000.0
#: Tokens computed at once: their rows stay in a core's cache. With fewer than the least, products are too small to be
#: fast.
_BATCH_TOKENS, _LEAST_TOKENS = 512, 128


class Tokens(NamedTuple):
    """The tokens of a text without special ones, and the characters of each: [tokens, 2], start and end."""

    ids: Ids
    offsets: NDArray[np.int64]


_Count = Annotated[int, msgspec.Meta(ge=1)]
_TokenId = Annotated[int, msgspec.Meta(ge=0)]
_Epsilon = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BertSizes:
    """The architecture of a BERT that was exported from transformers, under its names in config.json."""

    hidden_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    max_position_embeddings: _Count
    layer_norm_eps: _Epsilon
    hidden_act: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSizes:
    """The architecture of a text encoder, named as in config.json."""

    #: "bert": learned positions, GELU, biases. "nomic": rotary positions, a gate with SiLU, no biases.
    kind: Literal["bert", "nomic"]
    hidden: _Count
    inner: _Count
    attention_heads: _Count
    layers: _Count
    positions: _Count
    #: The most tokens of an input, special ones included.
    max_tokens: Annotated[int, msgspec.Meta(ge=3)]
    epsilon: _Epsilon
    #: Special tokens: [CLS] and [SEP] of BERT.
    begin_token: _TokenId
    end_token: _TokenId

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EncoderSizes:
        """Read the sizes from config.json; raise ValueError for a wrong or missing one."""
        sizes = _convert(config, cls)
        if sizes.hidden % (UNIT * sizes.attention_heads) or sizes.inner % UNIT:
            raise ValueError(
                f"the width of an attention head and inner must be multiples of {UNIT}, got hidden {sizes.hidden} "
                f"in {sizes.attention_heads} heads and inner {sizes.inner}"
            )
        if sizes.hidden // sizes.attention_heads > WIDEST_HEAD:
            raise ValueError(
                f"an attention head must be at most {WIDEST_HEAD} wide, got hidden {sizes.hidden} in "
                f"{format_count(sizes.attention_heads, 'head')}"
            )
        if sizes.max_tokens > sizes.positions:
            raise ValueError(f"max_tokens must be from 3 to positions ({sizes.positions}), got {sizes.max_tokens}")
        return sizes

    @classmethod
    def from_bert(cls, bert: BertSizes, arrays: Mapping[str, Floats | Quantized]) -> EncoderSizes:
        """The sizes of an exported BERT; raise ValueError for wrong ones."""
        if bert.hidden_size % bert.num_attention_heads:
            raise ValueError(
                f"num_attention_heads must divide hidden_size, got {bert.num_attention_heads} for {bert.hidden_size}"
            )
        return cls(
            kind="bert",
            hidden=bert.hidden_size,
            # Not in config.json: the first layer decides.
            inner=next(iter(arrays["encoder.layer.0.intermediate.dense.weight"].shape), 0),
            attention_heads=bert.num_attention_heads,
            layers=bert.num_hidden_layers,
            positions=bert.max_position_embeddings,
            max_tokens=bert.max_position_embeddings,
            epsilon=bert.layer_norm_eps,
            # reward.json has the special tokens.
            begin_token=0,
            end_token=0,
        )


_Sizes = TypeVar("_Sizes")


def _convert(config: Mapping[str, Any], kind: type[_Sizes]) -> _Sizes:
    try:
        return msgspec.convert(config, kind)
    except msgspec.ValidationError as fault:
        raise ValueError(str(fault)) from None


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
                bert = _convert(config, BertSizes)
                self.sizes = EncoderSizes.from_bert(bert, arrays)
                file = storage.WEIGHTS
                self._heads = _read_reward_head(arrays, self.sizes.hidden)
                self._network = _Network(arrays, self.sizes, bert.hidden_act)
            else:
                self.sizes = EncoderSizes.from_config(config)
                file = storage.WEIGHTS
                self._heads = _read_heads(arrays, self.sizes.hidden)
                self._network = _Network(arrays, self.sizes)
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
        self.fingerprint = files.fingerprint
        self._batch_tokens = runtime.batch_tokens if runtime else None

    @property
    def max_tokens(self) -> int:
        """The most tokens of an input, special ones included."""
        return self.sizes.max_tokens

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the heads."""
        return tuple(self._heads)

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts for the signature; the folder's hash covers weights, tokenizer and configuration."""
        precision = {"dtype": "float32", "runs_on": "numpy"} if self._is_float else {"dtype": "int8"}
        return {"weights": self.fingerprint, **precision}

    # ---- Inputs

    def check_tokens(self, count: int) -> None:
        """Raise ValueError unless the weights have a vector for each of `count` tokens."""
        if count > (known := len(self._network.words)):
            raise ValueError(f"its tokens go up to {count - 1:,}, but the weights have {known:,} tokens")

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of each text, without special ones and without truncation."""
        clean = [replace_surrogates(text) for text in texts]
        encodings = self.tokenizer.encode_batch(clean, add_special_tokens=False) if clean else []
        return [
            Tokens(np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2))
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
            raise ModelError(f"this model has no head {unknown[0]!r}; it has {known}")
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
            self._check_sequence(number, ids, first)
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

    def _check_sequence(self, number: int, ids: Ids, first: int) -> None:
        if not 1 <= len(ids) <= self.max_tokens:
            raise ValueError(f"sequence {number} has {len(ids)} tokens; this model reads from 1 to {self.max_tokens}")
        if not 0 <= first <= len(ids):
            raise ValueError(f"sequence {number} has {len(ids)} tokens, so its first part cannot have {first}")
        if np.min(ids) < 0 or np.max(ids) >= len(self._network.words):
            raise ValueError(f"sequence {number} has a token that is not among {len(self._network.words):,}")


class EncoderReward:
    """The preference head of a text encoder as a reward model. Equal answers are computed once."""

    HEAD = "preference"

    def __init__(self, encoder: TextEncoder, files: weights.Weights) -> None:
        """Read how answers are laid out; raise ModelError if that or the model's heads do not fit."""
        settings = RewardSettings.read(files.folder, files.name)
        if self.HEAD not in encoder.heads:
            raise ModelError(f"{files.name} has no head {self.HEAD!r}, so it is not a preference model")
        try:
            encoder.check_tokens(1 + max((token for part in settings.frame for token in part), default=0))
        except ValueError as fault:
            path, repair = files.folder / REWARD_SETTINGS, storage.suggest_repair(files.folder)
            raise ModelError(f"{path}: {fault}; {repair}") from None
        limit = min(settings.layout.max_length or encoder.max_tokens, encoder.max_tokens)
        self.settings = replace(settings, layout=replace(settings.layout, max_length=limit))
        self._encoder = encoder
        self._encode, self._unknown = token_encoder(encoder.tokenizer), unknown_id(encoder.tokenizer)

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts for the signature; the folder's hash covers weights, tokenizer and settings."""
        return self._encoder.facts

    def rewards(self, inputs: Sequence[RewardInput]) -> Rewards:
        """Return one reward per input, in order. In float32, the rest of the batch changes a reward by less than
        1e-5."""
        numbers = {item: at for at, item in enumerate(dict.fromkeys(inputs))}
        rows = build_rows(self._encode, self.settings.frame, self.settings.layout, list(numbers), self._unknown)
        # An answer is read in one part with what comes before it.
        sequences = [(ids, len(ids)) for ids in rows.ids]
        spans = [
            [pooled_span(self.settings.pooling, len(ids), start)]
            for ids, start in zip(rows.ids, rows.starts, strict=True)
        ]
        outputs = self._encoder.score_spans(self.HEAD, sequences, spans)
        values = np.array([output[0, 0] for output in outputs], np.float64)
        order = np.array([numbers[item] for item in inputs], np.int64)
        cut, known = (np.array(counts, np.int64)[order] for counts in (rows.cut, rows.read))
        return Rewards(values[order], cut, known)


# ---- The network


class _Words:
    """The vectors of tokens, unpacked when they are looked up: most of the table is never used."""

    def __init__(self, table: Floats | Quantized) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.shape[0])

    def look_up(self, ids: Ids) -> Floats:
        if not isinstance(self._table, Quantized):
            return self._table[ids]
        distinct, places = np.unique(ids, return_inverse=True)
        return self._table.take_rows(distinct)[places]


class _Layer(NamedTuple):
    attention_in: PackedLinear
    attention_out: PackedLinear
    attention_norm: tuple[Floats, Floats]
    feed_in: PackedLinear
    feed_out: PackedLinear
    feed_norm: tuple[Floats, Floats]


class _Names(NamedTuple):
    """The names of a model's arrays."""

    words: str
    types: str
    places: str
    norm: str
    block: str
    qkv: tuple[str, ...]
    out: str
    norm1: str
    up: str
    down: str
    norm2: str


_OWN_NAMES = _Names("words", "types", "places", "norm", "blocks.{}", ("qkv",), "out", "norm1", "up", "down", "norm2")
_BERT_NAMES = _Names(
    words="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    places="embeddings.position_embeddings",
    norm="embeddings.LayerNorm",
    block="encoder.layer.{}",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    norm1="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm2="output.LayerNorm",
)
#: Arrays that earlier versions of transformers stored with the weights: 0, 1, 2, ...
_IGNORED = ("embeddings.position_ids",)


class _Network:
    def __init__(
        self, arrays: Mapping[str, Floats | Quantized], sizes: EncoderSizes, activation: str | None = None
    ) -> None:
        """With an activation, the model is an exported BERT in float32. Raise ValueError for an array that does not fit
        the sizes or is not used, KeyError for a missing one."""
        self._sizes = sizes
        width = sizes.hidden
        # The module of the integer kernels, or an object with the same functions.
        self._operations: Any = kernels if activation is None else float_layers.FloatLayers(activation)
        names = _OWN_NAMES if activation is None else _BERT_NAMES
        reader = _Reader(arrays, width) if activation is None else _FloatReader(arrays, width)
        self.words = _Words(reader.table(f"{names.words}.weight"))
        self._types = reader.floats(f"{names.types}.weight", (None, width))
        if sizes.kind == "bert":
            self._places = reader.floats(f"{names.places}.weight", (sizes.positions, width))
            if activation is None:
                check_shape("types.weight", self._types, (2, width))
            else:
                # All tokens have type 0, so its embedding is added to those of the positions.
                self._places, self._types = self._places + self._types[0], np.zeros((2, width), np.float32)
        self._norm = reader.norm(names.norm)
        self._layers: list[_Layer] = threads.parallel_map(
            lambda number: _read_layer(reader, f"{names.block.format(number)}.", names, sizes), range(sizes.layers)
        )
        # With fewer layers than were trained, the model would run and all its numbers would be wrong.
        heads = HEAD if activation is None else REWARD_HEAD
        others = arrays.keys() - reader.names - {*_IGNORED}
        if unused := sorted(name for name in others if not name.startswith(heads)):
            raise ValueError(f"{unused[0]!r} does not belong to a {sizes.kind!r} encoder of {sizes.layers} layers")
        self._turns: Floats | None = None
        if sizes.kind == "nomic":
            self._turns = _rotary_turns(sizes.max_tokens, width // sizes.attention_heads)

    def encode(
        self, sequences: Sequence[TokenSequence], layer: int | None = None, rows_read: NDArray[np.intp] | None = None
    ) -> Floats:
        """Return the states after a layer (None: the last one), one row per token of all sequences. If only some rows
        are read, the others are not computed to the end."""
        sizes, lengths = self._sizes, [len(ids) for ids, _ in sequences]
        starts = np.cumsum([0, *lengths], dtype=np.int64)
        states = self.words.look_up(np.concatenate([np.asarray(ids, np.int32) for ids, _ in sequences]))
        for start, length, (_, first) in zip(starts[:-1].tolist(), lengths, sequences, strict=True):
            rows = states[start : start + length]
            if sizes.kind == "bert":
                rows += self._places[:length]
                rows[:first] += self._types[0]
                rows[first:] += self._types[1]
            else:
                rows += self._types[0]
        self._normalize(states, None, self._norm)
        blocks = self._layers[:layer]
        for number, block in enumerate(blocks):
            joined = self._operations.apply_linear(block.attention_in, states)
            mixed = self._operations.attend(joined, starts, sizes.attention_heads, self._turns)
            if rows_read is not None and number == len(blocks) - 1:
                # No row of the last layer depends on another one from here on.
                states[rows_read] = self._feed(block, states[rows_read], mixed[rows_read])
            else:
                states = self._feed(block, states, mixed)
        return states

    def _feed(self, block: _Layer, states: Floats, mixed: Floats) -> Floats:
        """Return the states after what follows the attention of a layer; `states` is overwritten."""
        apply_linear = self._operations.apply_linear
        self._normalize(states, apply_linear(block.attention_out, mixed), block.attention_norm)
        if self._sizes.kind == "bert":
            inner = apply_linear(block.feed_in, states, gelu=True)
        else:
            inner = kernels.gate_rows(apply_linear(block.feed_in, states))
        self._normalize(states, apply_linear(block.feed_out, inner), block.feed_norm)
        return states

    def _normalize(self, states: Floats, more: Floats | None, norm: tuple[Floats, Floats]) -> None:
        self._operations.add_and_normalize(states, more, *norm, self._sizes.epsilon)


def _rotary_turns(positions: int, width: int) -> Floats:
    """Return the cosines and sines by which each position turns a head's vector, [positions, width]."""
    speeds = _ROTARY_BASE ** (-np.arange(0, width, 2) / width)
    angles = np.arange(positions)[:, None] * speeds
    return np.concatenate((np.cos(angles), np.sin(angles)), 1).astype(np.float32)


class _Reader:
    """Takes arrays of the expected shapes from a file, and notes their names."""

    def __init__(self, arrays: Mapping[str, Floats | Quantized], width: int) -> None:
        self._arrays, self._width = arrays, width
        self.names: set[str] = set()

    def _take(self, name: str) -> Floats | Quantized:
        self.names.add(name)
        return self._arrays[name]

    def table(self, name: str) -> Floats | Quantized:
        table = self._take(name)
        check_shape(name, table, (None, self._width))
        return table

    def floats(self, name: str, shape: tuple[int | None, ...]) -> Floats:
        array = self._take(name)
        check_shape(name, array, shape)
        return array.dequantize() if isinstance(array, Quantized) else np.ascontiguousarray(array)

    def norm(self, name: str) -> tuple[Floats, Floats]:
        return self.floats(f"{name}.weight", (self._width,)), self.floats(f"{name}.bias", (self._width,))

    def linear(
        self, names: Sequence[str], outputs: int, inputs: int, *, bias: bool, queries: int | None = None
    ) -> PackedLinear:
        """Read linear layers with the same input as one. `queries` is the width of an attention head if queries are
        among the outputs; the integer kernels scale them later."""
        del queries
        matrices = [self._take(f"{name}.weight") for name in names]
        for name, matrix in zip(names, matrices, strict=True):
            _check_matrix(f"{name}.weight", matrix, (outputs // len(names), inputs))
        quantized = [matrix for matrix in matrices if isinstance(matrix, Quantized)]
        integers = np.concatenate([matrix.integers() for matrix in quantized])
        if integers.min() < -LARGEST or integers.max() > LARGEST:
            raise ValueError(f"'{names[0]}.weight' has integers beyond {LARGEST}, expected at most 7 bits")
        biases = [self.floats(f"{name}.bias", (outputs // len(names),)) for name in names] if bias else []
        return kernels.pack_linear(
            integers,
            np.concatenate([matrix.steps for matrix in quantized]),
            np.concatenate(biases) if biases else None,
        )


class _FloatReader(_Reader):
    """Reads linear layers as float32, whatever they are stored in."""

    def linear(
        self, names: Sequence[str], outputs: int, inputs: int, *, bias: bool, queries: int | None = None
    ) -> PackedLinear:
        assert bias
        own = outputs // len(names)
        matrices = [self.floats(f"{name}.weight", (own, inputs)) for name in names]
        biases = [self.floats(f"{name}.bias", (own,)) for name in names]
        return float_layers.pack_linear(matrices, biases, queries=queries)


def check_shape(name: str, array: Floats | Quantized, expected: tuple[int | None, ...]) -> None:
    """Raise ValueError unless the array has this shape; None means any size but 0."""
    fits = len(expected) == len(array.shape) and all(
        size == required or (required is None and size) for size, required in zip(array.shape, expected, strict=True)
    )
    if not fits:
        shown = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name!r} has the shape {array.shape}, but config.json implies ({shown})")


def _check_matrix(name: str, matrix: Floats | Quantized, shape: tuple[int, int]) -> None:
    if not isinstance(matrix, Quantized):
        raise ValueError(f"{name!r} has numbers of {matrix.dtype}, expected integers with scales")
    if matrix.shape != shape:
        raise ValueError(f"{name!r} has the shape {matrix.shape}, but config.json implies {shape}")
    if (block := shape[1] // matrix.scale.shape[1]) % UNIT:
        raise ValueError(f"{name!r} has a scale for every {block} columns, expected a multiple of {UNIT}")


def _read_layer(reader: _Reader, name: str, names: _Names, sizes: EncoderSizes) -> _Layer:
    width, inner, bert = sizes.hidden, sizes.inner, sizes.kind == "bert"
    feed = [f"{name}{names.up}"] if bert else [f"{name}up", f"{name}gate"]
    queries = width // sizes.attention_heads
    return _Layer(
        attention_in=reader.linear([name + part for part in names.qkv], 3 * width, width, bias=bert, queries=queries),
        attention_out=reader.linear([name + names.out], width, width, bias=bert),
        attention_norm=reader.norm(name + names.norm1),
        feed_in=reader.linear(feed, inner * len(feed), width, bias=bert),
        feed_out=reader.linear([name + names.down], width, inner, bias=bert),
        feed_norm=reader.norm(name + names.norm2),
    )


def _read_heads(
    arrays: Mapping[str, Floats | Quantized], width: int
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the matrix and the bias of each head."""
    reader = _Reader(arrays, width)
    heads = {}
    names = {name.rpartition(".")[0] for name in arrays if name.startswith(HEAD) and name.endswith(".weight")}
    for name in sorted(names):
        matrix = reader.floats(f"{name}.weight", (None, width))
        bias = reader.floats(f"{name}.bias", (len(matrix),))
        heads[name.removeprefix(HEAD)] = matrix.astype(np.float64), bias.astype(np.float64)
    if unused := sorted(name for name in arrays if name.startswith(HEAD) and name not in reader.names):
        raise ValueError(f"{unused[0]!r} is not the weight or the bias of a head")
    return heads


def _read_reward_head(
    arrays: Mapping[str, Floats | Quantized], width: int
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the only head of an exported BERT."""
    reader = _Reader(arrays, width)
    matrix, bias = reader.floats(f"{REWARD_HEAD}weight", (1, width)), reader.floats(f"{REWARD_HEAD}bias", (1,))
    return {EncoderReward.HEAD: (matrix.astype(np.float64), bias.astype(np.float64))}
