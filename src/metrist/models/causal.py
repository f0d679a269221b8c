"""Causal language models as likelihood models: any AutoModelForCausalLM of transformers.

Condition and target are tokenized separately and their ids concatenated, so that a score never depends on a merge
across the border. The special tokens with which the tokenizer begins a text come before the condition, and there are no
others. An empty condition becomes the token that begins a text, or else the one that ends it; if tokenizer and model
have neither, nothing predicts the target's first token and it is not scored.

If both together are longer than the model's context, the target keeps its first tokens, at most three quarters of the
context. The condition gets the rest and loses its middle, since the beginning of a prompt and the end right before the
target matter most.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from metrist.errors import ModelError
from metrist.models import devices, tokenization, weights
from metrist.models.batching import MemoryShortage, TokenBudget, pad_rows, run_in_batches
from metrist.models.devices import Options, Placement
from metrist.models.head import Head, reduce_logits
from metrist.models.pretrained import quiet_transformers, read_model, read_tokenizer
from metrist.models.protocols import Likelihoods
from metrist.models.windows import split_text
from metrist.runtime import Runtime

Floats = NDArray[np.float32]
_TokenIds = tuple[int, ...]

#: The room for a condition is rounded to multiples of 1/16 of the context: conditions of targets of similar length are
#: then cut alike, and read once.
_CONTEXT_STEPS = 16


@dataclass(frozen=True, slots=True)
class _TokenPair:
    """A pair as tokens, with the numbers of tokens cut; `row` is None if there is nothing to score, with the reason."""

    row: Row | None
    failure: str
    condition_cut: int = 0
    target_cut: int = 0


class Causal:
    """A loaded causal model. Equal pairs are scored once, equal conditions read once."""

    def __init__(self, *, schedule: Schedule, tokenizer: Any, config: Any, facts: Mapping[str, str]) -> None:
        self.facts = facts
        self._schedule = schedule
        self._tokenizer = tokenizer
        self._side = tokenization.TokenizerSide(tokenizer)
        self._context = tokenization.context_length(tokenizer, config)
        self._target_limit = None if self._context is None else max(1, self._context * 3 // 4)
        #: The tokens before every text, and those before a text that would have none otherwise.
        self._opening = tuple(self._side.ids(["a"])[0][: self._side.before].tolist())
        self._least_opening = self._opening
        if not self._opening:
            known = (tokenizer.bos_token_id, config.bos_token_id, tokenizer.eos_token_id, config.eos_token_id)
            single = (token[0] if isinstance(token, list) and token else token for token in known)
            size = schedule.passes.vocabulary
            usable = [int(token) for token in single if isinstance(token, int) and 0 <= token < size]
            self._least_opening = tuple(usable[:1])

    @classmethod
    def load(cls, options: Options, runtime: Runtime | None = None) -> Causal:
        files = weights.find_weights(options)
        name = f"{files.name} ({files.config.get('model_type', 'no model_type')})"
        expected = "expected a causal language model such as GPT-2 or Llama"
        if files.runs_on_numpy or files.config.get("is_encoder_decoder"):
            raise ModelError(f"{name} is a sequence-to-sequence model; {expected}")
        place = devices.resolve_placement(options, runtime)
        model = read_model("AutoModelForCausalLM", files, options, place)
        tokenizer = read_tokenizer(files, options)
        try:
            with quiet_transformers():
                passes = probe_passes(model, place)
        except NotCausal:
            raise ModelError(
                f"{name} uses later tokens of the text that it scores, as an encoder does; {expected}"
            ) from None
        return cls(
            schedule=Schedule(passes, TokenBudget(place.tokens), partial(devices.free_memory, place.device)),
            tokenizer=tokenizer,
            config=model.config,
            facts={"weights": files.fingerprint, "dtype": options.dtype, "model_type": str(model.config.model_type)},
        )

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        distinct = list(dict.fromkeys(pairs))
        ids = self._ids({text for pair in distinct for text in pair})
        token_pairs = {pair: self._make_pair(ids[pair[0]], ids[pair[1]], max_tokens) for pair in distinct}
        return self._score([[token_pairs[pair]] for pair in pairs])

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        """Return log-probabilities of all tokens of texts. A text longer than the context (or `max_tokens`) is read in
        windows: each continues where the last one ended, with half a window of preceding text as its condition."""
        ids = self._ids(set(texts))
        windows = {text: self._make_windows(ids[text], max_tokens) for text in dict.fromkeys(texts)}
        return self._score([windows[text] for text in texts])

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """Split a text into windows of half the context, which leaves room for a target."""
        limit = _minimum(max_tokens, None if self._context is None else self._context // 2)
        return [text] if limit is None else split_text(self._side, text, limit)

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return self.spelled(self._ids({target})[target][: _minimum(max_tokens, self._target_limit)])

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        return tokenization.readable_tokens(self._tokenizer, tokens)

    def in_windows(self, text: str, max_tokens: int | None = None) -> int:
        return max(1, len(self._make_windows(self._ids({text})[text], max_tokens)))

    def _ids(self, texts: set[str]) -> dict[str, _TokenIds]:
        ordered = sorted(texts)
        before, after = self._side.before, self._side.after
        return {
            text: tuple(ids[before : len(ids) - after].tolist())
            for text, ids in zip(ordered, self._side.ids(ordered), strict=True)
        }

    def _make_pair(self, condition: _TokenIds, target: _TokenIds, max_tokens: int | None) -> _TokenPair:
        cut_target = target[: _minimum(max_tokens, self._target_limit)]
        limit = max_tokens
        if self._context is not None:
            step = max(1, self._context // _CONTEXT_STEPS)
            limit = _minimum(max_tokens, max(1, self._context - -(-len(cut_target) // step) * step))
        cut_condition = condition
        room = None if limit is None else max(0, limit - len(self._opening))
        if room is not None and len(condition) > room:
            first = room // 2
            cut_condition = (*condition[:first], *condition[len(condition) - (room - first) :])
        before = (*self._opening, *cut_condition) or self._least_opening
        row, failure = _make_row(before, cut_target)
        return _TokenPair(row, failure, len(condition) - len(cut_condition), len(target) - len(cut_target))

    def _make_windows(self, text: _TokenIds, max_tokens: int | None) -> list[_TokenPair]:
        opening = self._least_opening
        size = _minimum(max_tokens, self._context)
        if size is None or len(opening) + len(text) <= size:
            return [_TokenPair(*_make_row(opening, text))]
        inner = max(2, size - len(opening))
        windows = [_TokenPair(*_make_row(opening, text[:inner]))]
        half = inner // 2
        for at in range(inner, len(text), inner - half):
            before = (*self._opening, *text[at - half : at])
            windows.append(_TokenPair(*_make_row(before, text[at : at + inner - half])))
        return windows

    def _score(self, texts: Sequence[Sequence[_TokenPair]]) -> Likelihoods:
        rows = list(dict.fromkeys(pair.row for parts in texts for pair in parts if pair.row))
        with quiet_transformers(), torch.inference_mode():
            logprobs, failed = self._schedule.log_probs(rows)
        number = {row: n for n, row in enumerate(rows)}
        failures: dict[int, str] = {}
        for i, parts in enumerate(texts):
            reasons = (pair.failure if pair.row is None else failed.get(number[pair.row], "") for pair in parts)
            if reason := next(filter(None, reasons), ""):
                failures[i] = reason
        scored = [
            [pair.row for pair in parts if pair.row] if i not in failures else [] for i, parts in enumerate(texts)
        ]
        computed = [values for parts in scored for row in parts if (values := logprobs[number[row]]) is not None]
        return Likelihoods(
            logprobs=np.concatenate([np.empty(0, np.float32), *computed]),
            tokens=np.array([token for parts in scored for row in parts for token in row.target], np.int64),
            starts=np.cumsum([0, *(sum(len(row.target) for row in parts) for parts in scored)], dtype=np.int64),
            condition_cut=np.array([sum(pair.condition_cut for pair in parts) for parts in texts], np.int64),
            target_cut=np.array([sum(pair.target_cut for pair in parts) for parts in texts], np.int64),
            failures=failures,
        )


def _make_row(before: _TokenIds, target: _TokenIds) -> tuple[Row | None, str]:
    if not target:
        return None, "the text to score has no tokens"
    if before:
        return Row(before, target), ""
    if len(target) == 1:
        return None, "the text to score is one token, and the model has no token that begins a text"
    return Row(target[:1], target[1:]), ""


def _minimum(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


# ---- Passes: log-probabilities without computing shared tokens twice
#
# Work comes as token ids (`Row`). The model reads all of a row but its last token; its outputs at the positions before
# each target token go through the vocabulary head, in chunks. Rows with a common beginning are read in two passes: the
# beginning once, with its keys and values stored, then the rest of each row. Not every model supports this:
# `probe_passes` tests a model on a few tokens when it is loaded, against the model's own forward pass.


class Row(NamedTuple):
    """Token ids: a condition and the target to score after it, each with at least one token."""

    condition: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def beginning(self) -> tuple[int, ...]:
        """What the model reads before it must predict. The condition's last token predicts the target's first, so it
        belongs to the rest."""
        return self.condition[:-1]

    @property
    def rest(self) -> tuple[int, ...]:
        """What is read after the beginning: the token before each of the target's."""
        return (self.condition[-1], *self.target[:-1])


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """The keys and values of beginnings, padded on the left, and their lengths."""

    cache: DynamicCache
    lengths: torch.Tensor


class _SharedCache(DynamicCache):  # type: ignore[misc, unused-ignore]
    """Beginnings as the rows' past. Each layer's keys and values are expanded to the rows on request and never added
    to, so that only one layer exists in as many copies as there are rows."""

    def __init__(self, beginnings: DynamicCache, indices: torch.Tensor) -> None:
        super().__init__()
        self.layers = beginnings.layers
        self._indices = indices

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        past: Any = self.layers[layer_idx]
        indices = self._indices.to(past.keys.device)
        keys = torch.cat([past.keys.index_select(0, indices), key_states], dim=-2)
        return keys, torch.cat([past.values.index_select(0, indices), value_states], dim=-2)


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """A causal model and the ways to run it that are exact, as tested: `head` is None if it cannot be applied to
    selected positions only, and `shares` says whether rows can share a beginning's keys and values. Callers choose the
    batches, and call all methods in torch's inference mode."""

    model: Any
    head: Head | None
    shares: bool

    def read(self, rows: Sequence[Row]) -> list[Floats]:
        """Return the log-probabilities of each row's target tokens, reading every row in full."""
        inputs = self._pad([(*row.beginning, *row.rest) for row in rows])
        # The padding's value does not matter: it comes last, and a causal model does not look ahead.
        outputs = self._run(input_ids=inputs, use_cache=False)
        return self._score(outputs, rows, [len(row.beginning) for row in rows])

    def read_beginnings(self, beginnings: Sequence[tuple[int, ...]]) -> Beginnings:
        # A cache built from the model's config would drop tokens outside a sliding window, counting padding.
        cache = DynamicCache()
        self.model.base_model(input_ids=self._pad(beginnings), past_key_values=cache, use_cache=True)
        lengths = torch.tensor([len(beginning) for beginning in beginnings], device=self._device)
        layers: Any = cache.layers
        for layer in layers:
            layer.keys, layer.values = _align_right(layer.keys, lengths), _align_right(layer.values, lengths)
        return Beginnings(cache, lengths)

    def read_rests(self, beginnings: Beginnings, rows: Sequence[Row], indices: Sequence[int]) -> list[Floats]:
        """Return the log-probabilities of each row's target tokens; row r continues beginning `indices[r]`."""
        selected = torch.tensor(indices, device=self._device)
        inputs, lengths = self._pad([row.rest for row in rows]), beginnings.lengths[selected]
        longest = int(beginnings.lengths.max())
        padding = torch.arange(longest, device=self._device)[None] < (longest - lengths)[:, None]
        mask = torch.cat([(~padding).long(), torch.ones_like(inputs)], dim=1)
        arguments: dict[str, Any] = {"input_ids": inputs, "attention_mask": mask, "use_cache": True}
        if "position_ids" in inspect.signature(self.model.forward).parameters:
            # Padding keeps the position of the last token: beyond the context there may be none.
            sizes = torch.tensor([len(row.rest) for row in rows], device=self._device)
            steps = torch.arange(inputs.shape[1], device=self._device)[None].minimum(sizes[:, None] - 1)
            arguments["position_ids"] = lengths[:, None] + steps
        outputs = self._run(past_key_values=_SharedCache(beginnings.cache, selected), **arguments)
        return self._score(outputs, rows, [0] * len(rows))

    def read_shared(self, rows: Sequence[Row]) -> list[Floats]:
        """Read the beginnings of the rows, each once, and then their rests."""
        distinct = list(dict.fromkeys(row.beginning for row in rows))
        return self.read_rests(self.read_beginnings(distinct), rows, [distinct.index(row.beginning) for row in rows])

    def reference(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the log-probabilities at every position of one text by the model's own forward pass."""
        logprobs = torch.log_softmax(self.model(self._pad([ids])).logits[0].float(), dim=-1)
        return logprobs.cpu().numpy()  # type: ignore[no-any-return, unused-ignore]

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def _run(self, **arguments: Any) -> torch.Tensor:
        """Return the head's inputs, or logits if the head cannot be separated from the model."""
        if self.head:
            states: torch.Tensor = self.model.base_model(**arguments).last_hidden_state
            return states
        logits: torch.Tensor = self.model(**arguments).logits
        return logits

    def _score(self, outputs: torch.Tensor, rows: Sequence[Row], starts: Sequence[int]) -> list[Floats]:
        sizes = [len(row.target) for row in rows]
        parts = [outputs[r, start : start + size] for r, (start, size) in enumerate(zip(starts, sizes, strict=True))]
        labels = torch.tensor([token for row in rows for token in row.target], device=outputs.device)
        score = self.head.log_probs if self.head else reduce_logits
        logprobs = score(torch.cat(parts), labels)
        return np.split(logprobs.cpu().numpy(), np.cumsum(sizes)[:-1])

    def _pad(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.from_numpy(pad_rows(sequences, 0)[0]).to(self._device)


def _align_right(states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Move the padding of (texts, heads, positions, size) from the end of each text to its start."""
    longest = states.shape[2]
    lengths = lengths.to(states.device)
    positions = torch.arange(longest, device=states.device)[None] - (longest - lengths)[:, None]
    indices = positions.clamp(min=0)[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, indices)


class NotCausal(Exception):
    """The model's outputs for a text's beginning depend on later tokens."""


def probe_passes(model: Any, place: Placement) -> Passes:
    """Test on a few tokens which ways to run a model are exact; raise NotCausal if it looks ahead."""
    with torch.inference_mode():
        head = Head(model, place) if model.get_output_embeddings() is not None else None
        passes = Passes(model, head, shares=False)
        ids = [int(n) % passes.vocabulary for n in np.random.default_rng(5).integers(5, 1 << 30, size=13)]
        is_exact = model.dtype == torch.float32
        # The tolerance is wide: a model that looks ahead is far off, and large models round.
        atol = 0.1 if is_exact else 0.5
        if not np.allclose(passes.reference(ids[:6]), passes.reference(ids)[:6], rtol=0.1, atol=atol):
            raise NotCausal
        rows = [Row(tuple(ids[:7]), tuple(ids[7:10])), Row(tuple(ids[2:5]), tuple(ids[8:13]))]
        rows.append(Row(rows[0].condition, rows[1].target))
        expected = []
        for row in rows:
            table = passes.reference((*row.condition, *row.target))[len(row.condition) - 1 :]
            expected.append(table[np.arange(len(row.target)), list(row.target)])
        tolerance = 2e-5 if is_exact else 5e-2
        if not _reproduces(passes.read, rows, expected, tolerance):
            passes = replace(passes, head=None)
        return replace(passes, shares=_reproduces(passes.read_shared, rows, expected, tolerance))


def _reproduces(
    read: Callable[[Sequence[Row]], list[Floats]], rows: Sequence[Row], expected: Sequence[Floats], tolerance: float
) -> bool:
    """Whether a way to read rows gives the expected values. Unsupported models raise different errors: any error means
    no."""
    try:
        results = read(rows)
    except Exception:
        return False
    return all(
        np.allclose(result, values, rtol=tolerance, atol=tolerance)
        for result, values in zip(results, expected, strict=True)
    )


# ---- Batching of rows

#: A beginning's token costs a row the memory of one layer's keys and values and no computation: this many of them count
#: as one token.
_CACHED_PER_TOKEN = 8


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    passes: Passes
    budget: TokenBudget
    free: Callable[[], None]

    def log_probs(self, rows: Sequence[Row]) -> tuple[list[Floats | None], dict[int, str]]:
        """Return each row's log-probabilities, and the failures of rows that do not fit into memory."""
        results: list[Floats | None] = [None] * len(rows)
        failures: dict[int, str] = {}
        by_beginning: dict[_TokenIds, list[int]] = {}
        for number, row in enumerate(rows):
            by_beginning.setdefault(row.beginning, []).append(number)
        groups: list[list[int]] = []
        alone: list[int] = []
        for beginning, members in by_beginning.items():
            if self.passes.shares and beginning and len(members) > 1:
                groups.append(members)
            else:
                alone += members
        alone.sort()

        def read_alone(batch: list[int]) -> None:
            numbers = [alone[at] for at in batch]
            for number, values in zip(numbers, self.passes.read([rows[n] for n in numbers]), strict=True):
                results[number] = values

        def read_groups(batch: list[int]) -> None:
            failures.update(self._read_groups(rows, [groups[at] for at in batch], results))

        lengths = [len(rows[n].beginning) + len(rows[n].rest) for n in alone]
        for at, reason in run_in_batches(lengths, self.budget, read_alone, self.free).items():
            failures[alone[at]] = reason
        lengths = [len(rows[members[0]].beginning) for members in groups]
        for at, reason in run_in_batches(lengths, self.budget, read_groups, self.free).items():
            failures |= dict.fromkeys(groups[at], reason)
        return results, failures

    def _read_groups(
        self, rows: Sequence[Row], groups: Sequence[list[int]], results: list[Floats | None]
    ) -> dict[int, str]:
        """Read rows, in groups with a common beginning, the longest of which comes first; return the failures."""
        beginnings = self.passes.read_beginnings([rows[members[0]].beginning for members in groups])
        numbers = [(number, group) for group, members in enumerate(groups) for number in members]

        def work(batch: list[int]) -> None:
            selected = [numbers[at] for at in batch]
            logprobs = self.passes.read_rests(beginnings, [rows[n] for n, _ in selected], [at for _, at in selected])
            for (number, _), values in zip(selected, logprobs, strict=True):
                results[number] = values

        cached = len(rows[groups[0][0]].beginning) // _CACHED_PER_TOKEN
        lengths = [len(rows[number].rest) + cached for number, _ in numbers]
        failed = run_in_batches(lengths, self.budget, work, self.free)
        if failed and len(groups) > 1:
            raise MemoryShortage("out of memory because of what is stored for other texts")
        return {numbers[at][0]: reason for at, reason in failed.items()}
