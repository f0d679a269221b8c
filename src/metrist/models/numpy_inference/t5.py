"""T5 in numpy: encoder, decoder, and the log-probability of every target token, in float32 or nearly as exact; and the
scorer that tokenizes texts for it.

Texts are concatenated as rows of one matrix, so the matrix products are few and large whatever the texts' lengths, and
nothing is padded. Only attention is computed text by text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from metrist import kernels, threads
from metrist.errors import ModelError
from metrist.kernels import PackedLinear
from metrist.kernels.layers import UNIT
from metrist.models import batching
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.storage import Floats, Quantized
from metrist.models.protocols import Likelihoods
from metrist.models.tokenization import Ids, TokenizerSide, replace_surrogates
from metrist.models.weights import Weights
from metrist.models.windows import split_text
from metrist.runtime import Runtime

#: Words of the vocabulary whose logits are computed at a time, for all rows: they take little memory.
_HEAD_WORDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Sizes:
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    vocab_size: int
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    layer_norm_epsilon: float
    decoder_start_token_id: int


@dataclass(frozen=True, slots=True, eq=False)
class EncodedConditions:
    """What the decoder reads of encoded conditions: keys and values per decoder layer, and where each condition
    starts."""

    layers: list[Floats]
    starts: Ids


class _Layer(NamedTuple):
    """Norms and products by the part of the layer that they belong to."""

    norms: Mapping[str, Floats]
    products: Mapping[str, PackedLinear]


class T5:
    """The network. Conditions are token ids; targets are token ids with the number of their condition."""

    def __init__(self, arrays: Mapping[str, Floats | Quantized], sizes: T5Sizes) -> None:
        self.sizes = sizes
        self._embeddings = _as_floats(arrays["shared.weight"])
        self._head = _pack([arrays["lm_head.weight"]], _HEAD_WORDS)
        self._norms = {side: _as_floats(arrays[f"{side}.final_layer_norm.weight"]) for side in ("encoder", "decoder")}
        bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        self._biases = {side: _as_floats(arrays[f"{side}.{bias}"]) for side in ("encoder", "decoder")}
        self._layers: dict[str, list[_Layer]] = {}
        for side, count in (("encoder", sizes.num_layers), ("decoder", sizes.num_decoder_layers)):
            self._layers[side] = []
            for block in (f"{side}.block.{number}.layer" for number in range(count)):
                own, cross, feed = f"{block}.0", f"{block}.1", f"{block}.{1 if side == 'encoder' else 2}"
                norms = {"own": own, "feed": feed}
                matrices = {
                    "in": [f"{own}.SelfAttention.{x}" for x in "qkv"],
                    "out": [f"{own}.SelfAttention.o"],
                    "feed in": [f"{feed}.DenseReluDense.{x}" for x in ("wi_0", "wi_1")],
                    "feed out": [f"{feed}.DenseReluDense.wo"],
                }
                if side == "decoder":
                    norms["cross"] = cross
                    parts = {"cross query": "q", "cross memory": "kv", "cross out": "o"}
                    matrices |= {part: [f"{cross}.EncDecAttention.{x}" for x in names] for part, names in parts.items()}
                layer = _Layer(
                    {part: _as_floats(arrays[f"{name}.layer_norm.weight"]) for part, name in norms.items()},
                    {part: _pack(arrays[f"{x}.weight"] for x in names)[0] for part, names in matrices.items()},
                )
                self._layers[side].append(layer)

    def encode(self, conditions: Sequence[Ids]) -> EncodedConditions:
        """Encode each condition once, and compute its keys and values for every decoder layer."""
        starts = np.cumsum([0, *map(len, conditions)])
        states = self._embeddings[np.concatenate(conditions)]
        bias = self._position_bias("encoder", max(map(len, conditions)))
        spans = np.column_stack([starts[:-1], starts[1:], starts[:-1], starts[1:]])
        for layer in self._layers["encoder"]:
            joined = self._enter(layer, "own", "in", states)
            states += self._multiply(layer, "out", self._attend(joined, joined, spans, bias))
            states += self._feed_forward(layer, states)
        states = self._norm(states, self._norms["encoder"])
        memory = [self._multiply(layer, "cross memory", states) for layer in self._layers["decoder"]]
        return EncodedConditions(memory, starts)

    def log_probs(self, encoded: EncodedConditions, targets: Sequence[Ids], conditions: Sequence[int]) -> list[Floats]:
        """Return the log-probability of each token of the targets. Nothing is shared between targets: where
        products are of integers, what is computed beside one does not change its last bit."""
        first_token = np.array([self.sizes.decoder_start_token_id])
        states = self._embeddings[np.concatenate([part for target in targets for part in (first_token, target[:-1])])]
        starts = np.cumsum([0, *map(len, targets)])
        spans = np.column_stack([starts[:-1], starts[1:], starts[:-1], starts[1:]])
        longest = max(map(len, targets))
        bias = self._position_bias("decoder", longest)
        # No token attends to later ones.
        bias[:, longest:] = -np.inf
        changes = [n for n in range(len(conditions)) if n == 0 or conditions[n] != conditions[n - 1]]
        own = np.array([conditions[n] for n in changes])
        ends = starts[[*changes[1:], len(targets)]]
        cross_spans = np.column_stack([starts[changes], ends, encoded.starts[own], encoded.starts[own + 1]])
        for layer, memory in zip(self._layers["decoder"], encoded.layers, strict=True):
            joined = self._enter(layer, "own", "in", states)
            # Exact: integers are scaled by what follows, too, which no token may see.
            states += self._multiply(layer, "out", self._attend(joined, joined, spans, bias, exact=True))
            query = self._enter(layer, "cross", "cross query", states)
            states += self._multiply(layer, "cross out", self._attend(query, memory, cross_spans))
            states += self._feed_forward(layer, states)
        states = self._norm(states, self._norms["decoder"])
        tokens = np.concatenate(targets)
        chosen = np.empty(len(tokens), np.float32)
        largest, sums = np.full(len(states), -np.inf, np.float32), np.zeros(len(states), np.float32)
        first = 0
        for words in self._head:
            logits = kernels.apply_linear(words, states, fine=True)
            here = np.flatnonzero((first <= tokens) & (tokens < first + words.outputs))
            chosen[here] = logits[here, tokens[here] - first]
            before = largest
            largest_here, sums_here = kernels.exponentiate_rows(logits)
            largest = np.maximum(before, largest_here)
            sums = sums * np.exp(before - largest) + sums_here * np.exp(largest_here - largest)
            first += words.outputs
        return np.split(chosen - (largest + np.log(sums)), starts[1:-1])

    def _norm(self, states: Floats, weight: Floats) -> Floats:
        square = np.einsum("ij,ij->i", states, states)[:, None] / np.float32(states.shape[1])
        scaled: Floats = states * (1 / np.sqrt(square + np.float32(self.sizes.layer_norm_epsilon)))
        scaled *= weight
        return scaled

    def _attend(
        self, queries: Floats, memory: Floats, spans: Ids, bias: Floats | None = None, *, exact: bool = False
    ) -> Floats:
        return kernels.attend_finely(queries, memory, spans, bias, self.sizes.num_heads, self.sizes.d_kv, exact=exact)

    def _enter(self, layer: _Layer, norm: str, product: str, states: Floats) -> Floats:
        return self._multiply(layer, product, self._norm(states, layer.norms[norm]))

    def _multiply(self, layer: _Layer, product: str, rows: Floats) -> Floats:
        return kernels.apply_linear(layer.products[product], rows, fine=True)

    def _feed_forward(self, layer: _Layer, states: Floats) -> Floats:
        gated = kernels.gate_by_gelu(self._enter(layer, "feed", "feed in", states))
        return self._multiply(layer, "feed out", gated)

    def _position_bias(self, side: str, longest: int) -> Floats:
        """The attention bias by the distance of the key from the query, [heads, distances]."""
        distance = np.arange(1 - longest, longest)
        buckets = self.sizes.relative_attention_num_buckets
        ahead = np.zeros_like(distance)
        if side == "encoder":
            buckets //= 2
            ahead = np.where(distance > 0, buckets, 0)
            back = np.abs(distance)
        else:
            back = np.maximum(-distance, 0)
        exact = buckets // 2
        # Beyond the exact ones, buckets widen with the logarithm of the distance, in float32 as in training.
        ratio = np.log(np.maximum(back, 1).astype(np.float32) / np.float32(exact))
        wide = ratio / np.float32(np.log(self.sizes.relative_attention_max_distance / exact))
        far = exact + (wide * np.float32(buckets - exact)).astype(np.int64)
        numbers = ahead + np.where(back < exact, back, np.minimum(far, buckets - 1))
        by_distance: Floats = np.ascontiguousarray(self._biases[side][numbers].T)
        return by_distance


def _as_floats(array: Floats | Quantized) -> Floats:
    return array.dequantize() if isinstance(array, Quantized) else array


def _pack(matrices: Iterable[Floats | Quantized], most: int | None = None) -> list[PackedLinear]:
    """Join matrices with the same input, and arrange them for products with at most so many outputs each."""
    chosen = list(matrices)
    quantized = [matrix for matrix in chosen if isinstance(matrix, Quantized)]
    blocks = {matrix.shape[1] // matrix.scale.shape[1] for matrix in quantized}
    outputs = sum(matrix.shape[0] for matrix in chosen)
    parts = [slice(first, first + (most or outputs)) for first in range(0, outputs, most or outputs)]
    if len(quantized) == len(chosen) and len(blocks) == 1 and not (max(blocks) % UNIT or outputs % UNIT):
        integers = np.concatenate([matrix.integers() for matrix in quantized])
        steps = np.concatenate([matrix.steps for matrix in quantized])
        return [kernels.pack_linear(integers[part], steps[part], None, fine=True) for part in parts]
    joined = np.concatenate([_as_floats(matrix) for matrix in chosen])
    none, inputs = np.empty(0, np.float32), joined.shape[1]
    return [PackedLinear(joined[part].T, none, None, inputs, len(joined[part]), inputs) for part in parts]


# ---- The scorer

#: Tokens of targets and of conditions that are computed at once: enough for large products, few enough for the memory
#: of a machine with many cores. With fewer than the least, products are too small to be fast.
_BATCH_TOKENS, _CONDITION_TOKENS, _LEAST_TOKENS = 2048, 1024, 256


class _Texts(TokenizerSide):
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
            cut = self.cut(ids, limit)
            encoded[text] = cut, len(ids) - len(cut)
        return encoded

    def pieces(self, text: str, limit: int) -> list[str]:
        """Return the tokens of a text as they are spelled in it, unknown characters included."""
        tokens = self._encode([text])[0].tokens[: max(0, limit - 1)]
        return [*(token.replace("▁", " ") for token in tokens), self._tokenizer.id_to_token(self._end)]

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        clean = [replace_surrogates(text) for text in texts]
        encodings: list[Any] = self._tokenizer.encode_batch(clean, add_special_tokens=False)
        return encodings


class NumpySeq2Seq:
    """A T5 in metrist's own format. Equal pairs are computed once, and equal conditions are encoded once."""

    def __init__(self, weights: Weights, runtime: Runtime | None = None) -> None:
        """Load the model of a folder; raise ModelError naming the file if it is damaged."""
        config = storage.read_config(weights.folder, "t5")
        tokenizer = storage.read_tokenizer(weights.folder)
        arrays = storage.read_quantized(weights.folder / storage.WEIGHTS)
        try:
            self._network = T5(arrays, T5Sizes(**{name: config[name] for name in T5Sizes.__dataclass_fields__}))
            self._conditions = _Texts(tokenizer, config["eos_token_id"], config.get("condition_template", "{text}"))
            self._targets = _Texts(tokenizer, config["eos_token_id"])
            self._max_tokens: int = config["max_tokens"]
        except KeyError as missing:
            raise ModelError(
                f"{weights.folder}: neither {storage.CONFIG} nor {storage.WEIGHTS} has {missing}; "
                f"{storage.suggest_repair(weights.folder)}",
                code="conflict",
            ) from None
        #: Facts for the signature; the folder's hash covers weights, tokenizer and configuration with its template.
        self.facts: Mapping[str, str] = {"weights": weights.fingerprint, "dtype": "float32", "runs_on": "numpy"}
        self._batch_tokens = runtime.batch_tokens if runtime else None

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        limit = max_tokens or self._max_tokens
        conditions = self._conditions.encode_and_cut([condition for condition, _ in pairs], limit)
        targets = self._targets.encode_and_cut([target for _, target in pairs], limit)
        by_condition: dict[str, list[str]] = {}
        for condition, target in dict.fromkeys(pairs):
            by_condition.setdefault(condition, []).append(target)
        # Sorted by length, so that the order of the pairs does not decide how full the batches are.
        order = sorted(by_condition, key=lambda condition: len(conditions[condition][0]))
        sizes = [len(conditions[condition][0]) for condition in order]
        # Few enough tokens at once that every core gets work.
        share = -(-sum(sizes) // threads.thread_count())
        budget = self._batch_tokens or min(_CONDITION_TOKENS, max(_LEAST_TOKENS, share))

        def compute(chosen: Sequence[int]) -> dict[tuple[str, str], Floats]:
            group = [order[at] for at in chosen]
            memory = self._network.encode([conditions[condition][0] for condition in group])
            work = [(number, target) for number, condition in enumerate(group) for target in by_condition[condition]]
            lengths = [len(targets[text][0]) for _, text in work]
            results: dict[tuple[str, str], Floats] = {}
            for batch in batching.split_batches(lengths, self._batch_tokens or _BATCH_TOKENS, padded=False):
                numbers, texts = zip(*(work[at] for at in batch), strict=True)
                rows = self._network.log_probs(memory, [targets[text][0] for text in texts], numbers)
                results |= {(group[n], text): row for n, text, row in zip(numbers, texts, rows, strict=True)}
            return results

        logprobs: dict[tuple[str, str], Floats] = {}
        for part in threads.parallel_map(compute, list(batching.split_batches(sizes, budget, padded=False))):
            logprobs |= part
        return Likelihoods(
            logprobs=np.concatenate([np.empty(0, np.float32), *(logprobs[pair] for pair in pairs)]),
            tokens=np.concatenate([np.empty(0, np.int64), *(targets[target][0] for _, target in pairs)]),
            starts=np.cumsum([0, *(len(targets[target][0]) for _, target in pairs)]),
            condition_cut=np.array([conditions[condition][1] for condition, _ in pairs], np.int64),
            target_cut=np.array([targets[target][1] for _, target in pairs], np.int64),
        )

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        return split_text(self._conditions, text, max_tokens or self._max_tokens)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return self._targets.pieces(target, max_tokens or self._max_tokens)
