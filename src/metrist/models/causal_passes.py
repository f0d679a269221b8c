"""How a causal model's log-probabilities are computed: few passes, no token computed twice that need not be.

Work comes as token ids (`Row`). The model reads all of a row but its last token; what it says at the places before each
target token goes through the vocabulary head, in chunks. Rows that begin alike are read in two passes: their common
beginning once, its keys and values kept, then each row's own rest beside them.

Not every model can do this. What a model can do is not looked up but tried on a few tokens when it is loaded
(`passes_of`), against the model's own plain answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from metrist.models.batching import Budget, MemoryShortage, longest_first, run_in_batches
from metrist.models.devices import Placement
from metrist.models.head import Head, plainly

Floats = NDArray[np.float32]


class Row(NamedTuple):
    """Token ids: what is given (at least one) and what is to be scored after it (at least one)."""

    condition: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def beginning(self) -> tuple[int, ...]:
        """What the model can read before it must say something. The condition's last token already foretells the
        target's first, so it is read with the rest."""
        return self.condition[:-1]

    @property
    def rest(self) -> tuple[int, ...]:
        """What is read after the beginning: one token before each of the target's."""
        return (self.condition[-1], *self.target[:-1])


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model was found to do exactly: keep a beginning's keys and values for several rows; have its head applied
    to chosen places alone."""

    shares: bool
    has_plain_head: bool


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """Keys and values of some beginnings, the shorter ones padded on the left, and the lengths."""

    cache: DynamicCache
    lengths: torch.Tensor


class _KeptBeginnings(DynamicCache):  # type: ignore[misc, unused-ignore]
    """Beginnings as a row's past: chosen anew for each layer when it asks and never added to, so that no more than one
    layer's keys and values are there in as many copies as there are rows."""

    def __init__(self, kept: DynamicCache, chosen: torch.Tensor) -> None:
        super().__init__()
        self.layers = kept.layers
        self._chosen = chosen

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        past: Any = self.layers[layer_idx]
        chosen = self._chosen.to(past.keys.device)
        keys = torch.cat([past.keys.index_select(0, chosen), key_states], dim=-2)
        return keys, torch.cat([past.values.index_select(0, chosen), value_states], dim=-2)


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """A causal model and the ways to run it. Nothing here looks at lengths: callers choose what goes together, and run
    it all in torch's inference mode."""

    model: Any
    head: Head | None
    can: Abilities

    def read(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities of each row's target tokens, every row read whole."""
        inputs = self._padded([(*row.beginning, *row.rest) for row in rows])
        # What pads stand for does not matter: they come last, and a causal model does not look ahead.
        found = self._run(input_ids=inputs, use_cache=False)
        return self._scored(found, rows, [len(row.beginning) for row in rows])

    def begin(self, beginnings: Sequence[tuple[int, ...]]) -> Beginnings:
        """What the model keeps of these beginnings."""
        # A cache made from the model's config would forget what a sliding window has passed, counted with the pads.
        cache = DynamicCache()
        self._base(input_ids=self._padded(beginnings), past_key_values=cache, use_cache=True)
        lengths = torch.tensor([len(one) for one in beginnings], device=self._device)
        kept: Any = cache.layers
        for layer in kept:
            layer.keys, layer.values = _to_the_right(layer.keys, lengths), _to_the_right(layer.values, lengths)
        return Beginnings(cache, lengths)

    def go_on(self, begun: Beginnings, rows: Sequence[Row], chosen: Sequence[int]) -> list[Floats]:
        """Log-probabilities of each row's target tokens; row r goes on from beginning `chosen[r]`."""
        picked = torch.tensor(chosen, device=self._device)
        inputs, lengths = self._padded([row.rest for row in rows]), begun.lengths[picked]
        longest = int(begun.lengths.max())
        padding = torch.arange(longest, device=self._device)[None] < (longest - lengths)[:, None]
        mask = torch.cat([(~padding).long(), torch.ones_like(inputs)], dim=1)
        given: dict[str, Any] = {"input_ids": inputs, "attention_mask": mask, "use_cache": True}
        if "position_ids" in inspect.signature(self.model.forward).parameters:
            given["position_ids"] = lengths[:, None] + torch.arange(inputs.shape[1], device=self._device)[None]
        found = self._run(past_key_values=_KeptBeginnings(begun.cache, picked), **given)
        return self._scored(found, rows, [0] * len(rows))

    def own_answer(self, ids: Sequence[int]) -> torch.Tensor:
        """The model's own log-probabilities at every place of one text, without any of this module's ways."""
        return torch.log_softmax(self.model(self._padded([ids])).logits[0].float(), dim=-1)

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def is_exact(self) -> bool:
        """Whether it computes in fp32, where equal means equal to a few digits more."""
        return bool(self.model.dtype == torch.float32)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def _base(self) -> Any:
        return self.model.base_model

    def _run(self, **given: Any) -> torch.Tensor:
        """What the head is still to be applied to, or its logits where it cannot be taken apart from the model."""
        if self.can.has_plain_head:
            states: torch.Tensor = self._base(**given).last_hidden_state
            return states
        logits: torch.Tensor = self.model(**given).logits
        return logits

    def _scored(self, found: torch.Tensor, rows: Sequence[Row], starts: Sequence[int]) -> list[Floats]:
        """Row r's target is foretold at places `starts[r]` and after."""
        sizes = [len(row.target) for row in rows]
        places = [found[r, start : start + size] for r, (start, size) in enumerate(zip(starts, sizes, strict=True))]
        labels = torch.tensor([token for row in rows for token in row.target], device=found.device)
        score = self.head.log_probs if self.head and self.can.has_plain_head else plainly
        scored = score(torch.cat(places), labels)
        return np.split(scored.cpu().numpy(), np.cumsum(sizes)[:-1])

    def _padded(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        wide = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
        for row, sequence in zip(wide, sequences, strict=True):
            row[: len(sequence)] = sequence
        return torch.from_numpy(wide).to(self._device)


def _to_the_right(states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The same (texts, heads, places, size), with the pads that stood after each text's end put before its start."""
    longest = states.shape[2]
    lengths = lengths.to(states.device)
    places = torch.arange(longest, device=states.device)[None] - (longest - lengths)[:, None]
    moved = places.clamp(min=0)[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, moved)


class NotCausal(Exception):
    """What a model says of a text's beginning depends on how the text goes on."""


def passes_of(model: Any, place: Placement) -> Passes:
    """The ways to run a model that it was found to do right, on a few tokens; NotCausal if it looks ahead."""
    with torch.inference_mode():
        return _tried(model, place)


def _tried(model: Any, place: Placement) -> Passes:
    head = Head(model, place) if model.get_output_embeddings() is not None else None
    passes = Passes(model, head, Abilities(shares=False, has_plain_head=head is not None))
    ids = [int(n) % passes.vocabulary for n in np.random.default_rng(5).integers(5, 1 << 30, size=13)]
    _check_causal(passes, ids)
    rows = [Row(tuple(ids[:7]), tuple(ids[7:10])), Row(tuple(ids[2:5]), tuple(ids[8:13]))]
    rows.append(Row(rows[0].condition, rows[1].target))
    wanted = [_by_own_answer(passes, row) for row in rows]
    if not _gives(wanted, lambda: passes.read(rows), passes.is_exact):
        passes = replace(passes, can=Abilities(shares=False, has_plain_head=False))
    shares = _gives(wanted, lambda: _read_shared(passes, rows), passes.is_exact)
    return replace(passes, can=replace(passes.can, shares=shares))


def _check_causal(passes: Passes, ids: Sequence[int]) -> None:
    alone, within = passes.own_answer(ids[:6]), passes.own_answer(ids)[:6]
    # A model that looks ahead is far off: rounding in a large one must not be taken for it.
    if not np.allclose(alone.cpu().numpy(), within.cpu().numpy(), rtol=0.1, atol=0.1 if passes.is_exact else 0.5):
        raise NotCausal


def _by_own_answer(passes: Passes, row: Row) -> Floats:
    said = passes.own_answer((*row.condition, *row.target))
    at = torch.arange(len(row.target), device=said.device) + len(row.condition) - 1
    found: Floats = said[at, torch.tensor(row.target, device=said.device)].cpu().numpy()
    return found


def _read_shared(passes: Passes, rows: Sequence[Row]) -> list[Floats]:
    distinct = list(dict.fromkeys(row.beginning for row in rows))
    return passes.go_on(passes.begin(distinct), rows, [distinct.index(row.beginning) for row in rows])


def _gives(wanted: Sequence[Floats], way: Any, is_exact: bool) -> bool:
    """Whether a way to compute gives what is wanted. A model that knows nothing of what is asked says so in its own
    manner: any error means no."""
    try:
        found = way()
    except Exception:
        return False
    return all(_close(one, other, is_exact) for one, other in zip(found, wanted, strict=True))


def _close(found: Floats, wanted: Floats, is_exact: bool) -> bool:
    tolerance = 2e-5 if is_exact else 5e-2
    return bool(np.allclose(found, wanted, rtol=tolerance, atol=tolerance))


# Batching of rows.
#


#: A token of a beginning beside a row costs the memory of one layer's keys and values and no computing: so many of them
#: count as one token.
_KEPT_PER_TOKEN = 8


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows (by number) with a common beginning."""

    beginning: tuple[int, ...]
    members: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A model's passes with the budget that they have to keep to."""

    passes: Passes
    budget: Budget
    free: Callable[[], None]

    def log_probs(self, rows: Sequence[Row]) -> tuple[list[Floats | None], dict[int, str]]:
        """Each row's log-probabilities, and why there are none of a row that does not fit into memory."""
        found: list[Floats | None] = [None] * len(rows)
        alone, groups = self._divided(rows)
        failures = self._read_whole(rows, alone, found)
        failures |= self._read_in_groups(rows, groups, found)
        return found, failures

    def _divided(self, rows: Sequence[Row]) -> tuple[list[int], list[_Group]]:
        by_beginning: dict[tuple[int, ...], list[int]] = {}
        for number, row in enumerate(rows):
            by_beginning.setdefault(row.beginning, []).append(number)
        groups = [_Group(*one) for one in by_beginning.items()]
        shared = [group for group in groups if self.passes.can.shares and group.beginning and len(group.members) > 1]
        kept = {number for group in shared for number in group.members}
        return [number for number in range(len(rows)) if number not in kept], shared

    def _read_whole(self, rows: Sequence[Row], numbers: Sequence[int], found: list[Floats | None]) -> dict[int, str]:
        lengths = [len(rows[n].beginning) + len(rows[n].rest) for n in numbers]
        order = longest_first(lengths)

        def work(batch: list[int]) -> None:
            at = [numbers[order[i]] for i in batch]
            _put(found, at, self.passes.read([rows[n] for n in at]))

        failed = run_in_batches([lengths[i] for i in order], self.budget, work, self.free)
        return {numbers[order[i]]: why for i, why in failed.items()}

    def _read_in_groups(
        self, rows: Sequence[Row], groups: Sequence[_Group], found: list[Floats | None]
    ) -> dict[int, str]:
        lengths = [len(group.beginning) for group in groups]
        order = longest_first(lengths)
        failures: dict[int, str] = {}

        def work(batch: list[int]) -> None:
            failures.update(self._go_on(rows, [groups[order[i]] for i in batch], found))

        failed = run_in_batches([lengths[i] for i in order], self.budget, work, self.free)
        return failures | {n: why for i, why in failed.items() for n in groups[order[i]].members}

    def _go_on(self, rows: Sequence[Row], groups: Sequence[_Group], found: list[Floats | None]) -> dict[int, str]:
        begun = self.passes.begin([group.beginning for group in groups])
        numbers = [(n, which) for which, group in enumerate(groups) for n in group.members]
        beside = len(groups[0].beginning) // _KEPT_PER_TOKEN
        lengths = [len(rows[n].rest) + beside for n, _ in numbers]
        order = longest_first(lengths)

        def work(batch: list[int]) -> None:
            at = [numbers[order[i]] for i in batch]
            _put(found, [n for n, _ in at], self.passes.go_on(begun, [rows[n] for n, _ in at], [w for _, w in at]))

        failed = run_in_batches([lengths[i] for i in order], self.budget, work, self.free)
        if failed and len(groups) > 1:
            raise MemoryShortage
        return {numbers[order[i]][0]: why for i, why in failed.items()}


def _put(found: list[Floats | None], at: Sequence[int], results: Sequence[Floats]) -> None:
    for number, result in zip(at, results, strict=True):
        found[number] = result
