"""Likelihood of targets under a sequence-to-sequence model, such as BART, T5 or Marian.

The numbers are those of the model's own forward pass with the target as labels, one pair at a time. Sharing (of a
condition's encoding and its cross-attention keys and values) and batching only change the time. `choose_path` picks the
fastest way to run the model whose values match that forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from metrist.errors import ModelError
from metrist.models import devices, tokenization
from metrist.models.batching import (
    MemoryShortage,
    TokenBudget,
    is_out_of_memory,
    longest_first,
    pad_rows,
    run_in_batches,
)
from metrist.models.devices import Options, Placement
from metrist.models.head import Head
from metrist.models.pretrained import quiet_transformers, read_model, read_tokenizer
from metrist.models.protocols import Likelihoods
from metrist.models.tokenization import BackgroundTokens, Ids, TokenizerSide, set_languages
from metrist.models.varlen import (
    DECODER_LAYER,
    ENCODER_LAYER,
    Encoded,
    VarlenDecoder,
    VarlenEncoder,
    choose_attention,
    has_parts,
    to_device,
)
from metrist.models.weights import Weights, find_weights
from metrist.models.windows import split_text
from metrist.runtime import Runtime

Shift = Callable[[Ids], Ids]

#: Texts are cut here if neither the model nor the tokenizer has a limit and the user sets none.
_DEFAULT_MAX_TOKENS = 2_048
_NO_CONDITION = "the conditioning text has no tokens"
_NO_TARGET = "the target has no tokens"
_NO_TOKENS = np.empty(0, dtype=np.int64)


class Seq2Seq:
    """A loaded sequence-to-sequence model with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, weights: Weights, place: Placement) -> None:
        self.model, self.tokenizer, self._place = model, tokenizer, place
        self._conditions, self._targets = TokenizerSide(tokenizer), TokenizerSide(tokenizer, target=True)
        with torch.inference_mode():
            self._path = choose_path(model, weights.name, find_label_shift(model, weights.name), place)
        self._encoding, self._decoding = TokenBudget(place.tokens), TokenBudget(place.tokens)
        languages = getattr(tokenizer, "src_lang", None), getattr(tokenizer, "tgt_lang", None)
        self.facts: Mapping[str, str] = {
            "weights": weights.fingerprint,
            "dtype": str(place.dtype).removeprefix("torch."),
            "model_type": str(model.config.model_type),
            **({"languages": f"{languages[0]}->{languages[1]}"} if all(languages) else {}),
        }

    @classmethod
    def load(cls, options: Options, runtime: Runtime | None = None) -> Seq2Seq:
        place = devices.resolve_placement(options, runtime)
        weights = find_weights(options)
        model = read_model("AutoModelForSeq2SeqLM", weights, options, place)
        with quiet_transformers():
            return cls(model, set_languages(read_tokenizer(weights, options), options), weights, place)

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        with quiet_transformers(), torch.inference_mode():
            return _PairScorer(self, pairs, max_tokens).run()

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        return split_text(self._conditions, text, self.limit(self.model.get_encoder(), max_tokens))

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        limit = self.limit(self.model.get_decoder(), max_tokens)
        ids = self._targets.cut(self._targets.ids([target])[0], limit)
        return tokenization.readable_tokens(self.tokenizer, ids.tolist())

    def limit(self, stack: Any, max_tokens: int | None) -> int:
        """Return how many tokens the encoder or the decoder reads. A position table is a hard limit; other values are
        recommendations."""
        embedding = getattr(stack, "embed_positions", None)
        table = getattr(embedding, "weight", None)
        if table is None:
            table = getattr(embedding, "weights", None)
        positions = None if table is None else len(table) - int(getattr(embedding, "offset", 0))
        recommended = tokenization.token_limit(self.tokenizer) or getattr(self.model.config, "n_positions", None)
        limit = max_tokens or recommended or positions or _DEFAULT_MAX_TOKENS
        return limit if positions is None else min(limit, positions)


class _PairScorer:
    """One call of `log_probs`: the work and its results so far. Distinct conditions, targets and pairs are referred to
    by number."""

    def __init__(self, engine: Seq2Seq, pairs: Sequence[tuple[str, str]], max_tokens: int | None) -> None:
        self._engine = engine
        conditions: dict[str, int] = {}
        targets: dict[str, int] = {}
        distinct: dict[tuple[int, int], int] = {}
        #: For every input pair, the number of its distinct pair.
        self._numbers: list[int] = []
        for condition, target in pairs:
            key = (conditions.setdefault(condition, len(conditions)), targets.setdefault(target, len(targets)))
            self._numbers.append(distinct.setdefault(key, len(distinct)))
        self._pairs, self._targets = list(distinct), list(targets)
        self._by_condition: list[list[int]] = [[] for _ in conditions]
        for pair, (number, _) in enumerate(self._pairs):
            self._by_condition[number].append(pair)
        side, limit = engine._conditions, engine.limit(engine.model.get_encoder(), max_tokens)
        full = side.ids(list(conditions))
        self._ids = [side.cut(ids, limit) for ids in full]
        self._condition_cut = np.array([len(a) - len(b) for a, b in zip(full, self._ids, strict=True)], np.int64)
        self._target_limit = engine.limit(engine.model.get_decoder(), max_tokens)
        self._target_cut = np.zeros(len(targets), np.int64)
        self._labels: list[Ids] = [_NO_TOKENS] * len(self._pairs)
        self._failures: dict[int, str] = {}
        #: Log-probabilities on the device, and the distinct pairs in their order.
        self._logprobs: list[Tensor] = []
        self._scored: list[int] = []
        self._free = partial(devices.free_memory, engine._place.device)

    def run(self) -> Likelihoods:
        """Compute all pairs; wait for the device once, at the end."""
        engine = self._engine
        lengths = [len(ids) for ids in self._ids]
        self._order = longest_first(lengths)
        # The targets in the order in which the conditions need them.
        needed = list(dict.fromkeys(self._pairs[pair][1] for pair in self._select(self._order)))
        self._target_positions = {target: at for at, target in enumerate(needed)}
        self._target_ids = BackgroundTokens(engine._targets, [self._targets[target] for target in needed])
        with closing(self._target_ids):
            failures = run_in_batches(
                [lengths[condition] for condition in self._order],
                engine._encoding,
                self._score_group,
                self._free,
                padded=engine._path.encoder.padded,
            )
            for at, reason in failures.items():
                self._fail(self._select([self._order[at]]), f"the conditioning text {reason}")
        # In the order of the input pairs.
        computed = torch.cat(self._logprobs).cpu().numpy() if self._logprobs else np.empty(0, np.float32)
        ends = np.cumsum([0, *(len(self._labels[pair]) for pair in self._scored)]).tolist()
        parts = {pair: computed[a:b] for pair, (a, b) in zip(self._scored, pairwise(ends), strict=True)}
        labels = [self._labels[pair] for pair in self._numbers]
        texts = np.array([self._pairs[pair] for pair in self._numbers], np.int64).reshape(-1, 2)
        return Likelihoods(
            logprobs=np.concatenate([computed[:0], *(parts[pair] for pair in self._numbers if pair in parts)]),
            tokens=np.concatenate([_NO_TOKENS, *labels]),
            starts=np.cumsum([0, *map(len, labels)], dtype=np.int64),
            condition_cut=self._condition_cut[texts[:, 0]],
            target_cut=self._target_cut[texts[:, 1]],
            failures={at: self._failures[pair] for at, pair in enumerate(self._numbers) if pair in self._failures},
        )

    def _select(self, conditions: Sequence[int]) -> list[int]:
        """Return the pairs of some conditions, condition by condition."""
        return [pair for condition in conditions for pair in self._by_condition[condition]]

    def _score_group(self, group: list[int]) -> None:
        """Encode some conditions and score all their targets."""
        conditions = [self._order[at] for at in group]
        self._fail(self._select([number for number in conditions if not len(self._ids[number])]), _NO_CONDITION)
        conditions = [number for number in conditions if len(self._ids[number])]
        if not conditions:
            return
        memory = self._engine._path.encode([self._ids[condition] for condition in conditions])
        position = {condition: at for at, condition in enumerate(conditions)}
        # The pairs are scored in runs, which end where the next part of the targets' tokens is needed: the device need
        # not wait for all.
        runs: list[list[int]] = []
        latest = -1
        for pair in self._select(conditions):
            part = self._target_ids.part(self._target_positions[self._pairs[pair][1]])
            if part > latest:
                runs.append([])
                latest = part
            runs[-1].append(pair)
        computed, scored = len(self._logprobs), len(self._scored)
        try:
            for run in runs:
                self._score_run(memory, position, run)
        except MemoryShortage:
            del self._logprobs[computed:], self._scored[scored:]
            raise

    def _score_run(self, memory: Any, position: Mapping[int, int], pairs: list[int]) -> None:
        """Score targets of encoded conditions, batch by batch."""
        path = self._engine._path
        for pair in pairs:
            target = self._pairs[pair][1]
            ids = self._target_ids[self._target_positions[target]]
            self._labels[pair] = self._engine._targets.cut(ids, self._target_limit)
            self._target_cut[target] = len(ids) - len(self._labels[pair])
        self._fail([pair for pair in pairs if not len(self._labels[pair])], _NO_TARGET)
        pairs = [pair for pair in pairs if len(self._labels[pair])]

        def work(batch: list[int]) -> None:
            selected = [pairs[at] for at in batch]
            owners = [position[self._pairs[pair][0]] for pair in selected]
            self._logprobs.append(path.log_probs(memory, owners, [self._labels[pair] for pair in selected]))
            self._scored += selected

        lengths = [len(self._labels[pair]) for pair in pairs]
        failures = run_in_batches(lengths, self._engine._decoding, work, self._free, padded=path.decoder.padded)
        if failures and len(position) > 1:
            raise MemoryShortage("out of memory because of what is stored for other texts")
        for at, reason in failures.items():
            self._fail([pairs[at]], f"the target {reason}")

    def _fail(self, pairs: list[int], reason: str) -> None:
        for pair in pairs:
            self._failures[pair] = reason
            self._labels[pair] = _NO_TOKENS


# ---- How the model shifts labels


def find_label_shift(model: Any, name: str) -> Shift:
    """Return how the model shifts labels to the decoder's inputs, found by probing it. Most models put their start
    token first, some (mBART) the label's last token, which marks the language."""
    own_shift = getattr(model, "prepare_decoder_input_ids_from_labels", None) or getattr(model, "_shift_right", None)
    start = model.config.decoder_start_token_id
    if own_shift is None or model.config.pad_token_id is None:
        if start is None:
            raise ModelError(
                f"{name}: its config.json must set decoder_start_token_id, the decoder's first input",
                code="invalid_value",
            )
        return partial(_shift, start=start)
    probes = [np.array(ids, dtype=np.int64) for ids in ((5, 6, 7, 8), (9, 5, 4), (3,))]
    try:
        shifted = [own_shift(torch.from_numpy(ids)[None])[0].numpy() for ids in probes]
    except (ValueError, TypeError) as fault:
        raise ModelError(f"{name}: its labels cannot be shifted ({fault})", code="unsupported") from None
    for shift in (partial(_shift, start=int(shifted[0][0])), _shift):
        if all(np.array_equal(shift(ids), expected) for ids, expected in zip(probes, shifted, strict=True)):
            return shift
    return lambda labels: own_shift(torch.from_numpy(labels)[None])[0].numpy().astype(np.int64)


def _shift(labels: Ids, start: int | None = None) -> Ids:
    """Put the start token, or else the last label, before all labels but the last."""
    return np.concatenate([labels[-1:] if start is None else np.array([start], np.int64), labels[:-1]])


# ---- The padded path: any encoder-decoder through its own modules
#
# Each condition is encoded once. Its cross-attention keys and values are computed once if the model reads them from a
# transformers cache; otherwise only the encoder's states are shared.


@dataclass(eq=False)
class PaddedEncoder:
    """The model's encoder over conditions padded to the longest."""

    model: Any
    device: torch.device
    padded: ClassVar[bool] = True

    def encode(self, conditions: Sequence[Ids]) -> Encoded:
        ids, mask, real = _pad(conditions, self.device)
        states = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        # Some encoders round the length up to their window size.
        states = states[:, : ids.shape[1]].reshape(-1, states.shape[-1])
        return Encoded(states=states[real.to(states.device)], lengths=[len(ids) for ids in conditions])


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedMemory:
    """Padded states of conditions, with each layer's keys and values if they are shared."""

    states: Tensor
    mask: Tensor
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@dataclass(eq=False)
class PaddedDecoder:
    """The model's decoder over targets padded to the longest, up to the head's input."""

    model: Any
    device: torch.device
    share: bool
    padded: ClassVar[bool] = True

    def make_memory(self, encoded: Encoded) -> PaddedMemory:
        """Pad the states; compute keys and values by one step of the decoder if they are shared."""
        lengths = encoded.lengths
        states = pad_sequence(list(torch.split(encoded.states, lengths)), batch_first=True)
        real = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
        mask = to_device(real.astype(np.int64), self.device)
        if not self.share:
            return PaddedMemory(states=states, mask=mask)
        step = torch.zeros((len(lengths), 1), dtype=torch.int64, device=self.device)
        cache = self.model.get_decoder()(
            input_ids=step, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=True
        ).past_key_values.cross_attention_cache
        return PaddedMemory(states=states, mask=mask, layers=[(layer.keys, layer.values) for layer in cache.layers])

    def states(self, memory: PaddedMemory, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor:
        """Return the head's inputs for all tokens of the inputs; input i belongs to condition `owners[i]`."""
        from transformers.modeling_outputs import BaseModelOutput

        ids, _, real = _pad(inputs, self.device)
        rows = torch.tensor(owners, device=self.device)
        arguments: dict[str, Any] = {"use_cache": False}
        if memory.layers:
            arguments = {"use_cache": True, "past_key_values": _expand_cache(memory, rows)}
        # With keys and values in the cache, only the shape of the states matters.
        states: Any = memory.states[:1].expand(len(rows), -1, -1) if memory.layers else memory.states[rows]
        # The head's input includes what the model does after its decoder, such as T5's scaling.
        captured: list[Tensor] = []

        def shorten(_head: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            captured.append(inputs[0])
            return (inputs[0][:, :1], *inputs[1:])

        hook = self.model.get_output_embeddings().register_forward_pre_hook(shorten)
        try:
            self.model(
                attention_mask=memory.mask[rows],
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                decoder_input_ids=ids,
                **arguments,
            )
        finally:
            hook.remove()
        hidden = captured[0]
        return hidden.reshape(-1, hidden.shape[-1])[real.to(hidden.device)]


def _expand_cache(memory: PaddedMemory, rows: Tensor) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    cross_attention = DynamicCache()
    for at, (keys, values) in enumerate(memory.layers):
        cross_attention.update(
            keys.index_select(0, rows.to(keys.device)), values.index_select(0, rows.to(keys.device)), at
        )
    return EncoderDecoderCache(DynamicCache(), cross_attention)


def _pad(texts: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids and mask padded on the right, and the positions of real tokens in the flattened batch. The padding's
    id does not matter: it is masked."""
    ids, mask = pad_rows(texts, 0)
    return to_device(ids, device), to_device(mask, device), to_device(np.flatnonzero(mask), device)


# ---- The choice of a path

#: The largest mean difference of a path's log-probabilities from the model's own; paths round differently.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}


_Coders = tuple[VarlenEncoder | PaddedEncoder, VarlenDecoder | PaddedDecoder]


@dataclass(eq=False)
class ScoringPath:
    """An encoder, a decoder and a head that together score targets. The encoder turns conditions into states, of which
    the decoder stores what it needs; `padded` says whether a batch costs its longest text times its size."""

    encoder: VarlenEncoder | PaddedEncoder
    decoder: VarlenDecoder | PaddedDecoder
    head: Head
    shift: Shift
    device: torch.device

    def encode(self, conditions: Sequence[Ids]) -> Any:
        return self.decoder.make_memory(self.encoder.encode(conditions))

    def log_probs(self, memory: Any, owners: Sequence[int], labels: Sequence[Ids]) -> Tensor:
        states = self.decoder.states(memory, owners, [self.shift(ids) for ids in labels])
        return self.head.log_probs(states, to_device(np.concatenate(labels), self.device))


def choose_path(model: Any, name: str, shift: Shift, place: Placement) -> ScoringPath:
    """Return the first path that agrees with the model's own forward pass on a few tokens."""
    head = Head(model, place)
    references = []
    for owner, labels in zip(_OWNERS, _LABELS, strict=True):
        condition = torch.from_numpy(_CONDITIONS[owner])[None].to(place.device)
        inputs = torch.from_numpy(shift(labels))[None].to(place.device)
        logits = model(input_ids=condition, decoder_input_ids=inputs, use_cache=False).logits[0].float()
        columns = torch.from_numpy(labels).to(logits.device)[:, None]
        references.append(logits.log_softmax(-1).gather(1, columns)[:, 0].cpu())
    expected = torch.cat(references)
    faults: list[str] = []
    for make in _list_paths(model, place):
        try:
            path = ScoringPath(*make(), head, shift, place.device)
            logprobs = path.log_probs(path.encode(_CONDITIONS), _OWNERS, _LABELS)
            difference = float((logprobs.to(expected) - expected).abs().mean())
        except Exception as fault:
            if is_out_of_memory(fault):
                raise
            faults.append(str(fault))
            continue
        if difference <= _TOLERANCE[place.dtype]:
            return path
        faults.append(f"log-probabilities differ by {difference:.2g}")
    raise ModelError(
        f"{name} ({model.config.model_type}) computes its logits in a way that metrist does not support: {faults[-1]}",
        code="unsupported",
    )


_CONDITIONS = [np.array(ids, dtype=np.int64) for ids in ((5, 9, 4, 7, 8, 3, 2), (6, 3, 8, 2))]
_LABELS = [np.array(ids, dtype=np.int64) for ids in ((3, 7, 5, 9, 2), (8, 2), (4, 6, 2))]
_OWNERS = [0, 0, 1]


def _list_paths(model: Any, place: Placement) -> Iterator[Callable[[], _Coders]]:
    padded = PaddedEncoder(model, place.device)
    if not place.spread:
        attention = choose_attention(place.device, place.dtype)
        encoder, decoder = model.get_encoder(), model.get_decoder()
        if has_parts(decoder, DECODER_LAYER):
            if has_parts(encoder, ENCODER_LAYER):
                yield lambda: (VarlenEncoder(encoder, attention), VarlenDecoder(decoder, attention))
            yield lambda: (padded, VarlenDecoder(decoder, attention))
    yield lambda: (padded, PaddedDecoder(model, place.device, share=True))
    yield lambda: (padded, PaddedDecoder(model, place.device, share=False))
