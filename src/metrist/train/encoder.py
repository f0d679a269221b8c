"""Train several heads of a text encoder together: probabilities and ratings of spans, pairs of spans, tags of tokens,
and texts that are matched token by token.

`EncoderTask` takes `EncoderExample`s, which say what is learned from sequences of tokens; the shipped encoders were
trained by it (models/recipes). `metrist train consistency` and `metrist train preference` train single heads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from metrist.models.devices import Placement
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.encoder_network import HEAD, EncoderSizes, TokenSequence
from metrist.models.trainable_encoder import TrainableEncoder, collate_sequences
from metrist.models.weights import Weights
from metrist.train.folder import INHERITED_LICENCE, TrainingFolder
from metrist.train.task import Batch, Examples, Learner, TrainingPlan, TrainingTask, hash_rows

#: What the label of a unit is.
VALUE, PROBABILITY = 0, 1
#: A token that is an error weighs more: it is about one in ten.
_ERROR_WEIGHT = 2.0
#: Settings of heads that stay as they are.
_SETTINGS = ("support.json", "reward.json", "errors.json")
#: The columns of each list of an example, and those that are numbers of something else of the example.
_COLUMNS = {"units": 7, "pairs": 4, "tokens": 5, "matches": 2, "matched": 3}
_NUMBERED: Mapping[str, Mapping[int, str]] = {
    "units": {0: "sequences"}, "pairs": {0: "units", 1: "units"}, "tokens": {0: "sequences"},
    "matches": {0: "alone", 1: "alone"}, "matched": {0: "matches", 1: "matches"},
}  # fmt: skip
#: What sums of cosines of matched tokens are multiplied by in the loss.
_SHARPNESS = 8.0
_INITIAL_STD = 0.02


@dataclass(eq=False)
class EncoderExample:
    """Sequences of tokens, and what is learned from them. Sequences, units and matches are named by their numbers.

    units    (sequence, start, end, output of the heads, label, weight, VALUE or PROBABILITY); the weight may be 0
    pairs    (better unit, worse unit, certainty, weight)
    tokens   (sequence, token, output, label 0 or 1, weight)
    matches  (text alone, other text alone); `matched` has (better match, worse match, weight)
    """

    group: str = ""
    sequences: list[TokenSequence] = field(default_factory=list)
    alone: list[TokenSequence] = field(default_factory=list)
    units: list[tuple[float, ...]] = field(default_factory=list)
    pairs: list[tuple[float, ...]] = field(default_factory=list)
    tokens: list[tuple[float, ...]] = field(default_factory=list)
    matches: list[tuple[float, ...]] = field(default_factory=list)
    matched: list[tuple[float, ...]] = field(default_factory=list)

    def add_unit(
        self,
        sequence: TokenSequence,
        span: tuple[int, int],
        output: int,
        label: float = 0.0,
        weight: float = 0.0,
        kind: int = PROBABILITY,
    ) -> int:
        """Add a span of a sequence, which is added if it is not the last one; return the unit's number."""
        if not self.sequences or self.sequences[-1] is not sequence:
            self.sequences.append(sequence)
        self.units.append((len(self.sequences) - 1, *span, output, label, weight, kind))
        return len(self.units) - 1

    def add_tokens(self, labels: Iterable[tuple[int, int, float]], weight: float) -> None:
        """Add (token, output, label) of the last sequence; they share the weight, errors have more of it."""
        shares = [(at, output, label, _ERROR_WEIGHT if label else 1.0) for at, output, label in labels]
        total = sum(share for *_, share in shares)
        self.tokens += [
            (len(self.sequences) - 1, at, output, label, weight * share / total) for at, output, label, share in shares
        ]


class EncoderExamples(Examples):
    def __init__(self, examples: Sequence[EncoderExample]) -> None:
        self.examples = examples
        sizes = [sum(len(ids) for ids, _ in (*example.sequences, *example.alone)) for example in examples]
        self.lengths = np.array(sizes, np.int64)
        self.weights = np.ones(len(examples))

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """Join examples; each list gets the number of the example as its first column."""
        chosen = [self.examples[number] for number in indices]
        batch: dict[str, Tensor] = {"count": torch.tensor(len(chosen))}
        for prefix, kind in (("", "sequences"), ("alone_", "alone")):
            sequences = [sequence for example in chosen for sequence in getattr(example, kind)]
            if sequences:
                names = (f"{prefix}{name}" for name in ("ids", "mask", "second"))
                batch |= dict(zip(names, collate_sequences(sequences), strict=True))
        for kind, columns in _COLUMNS.items():
            tables, offsets = [], dict.fromkeys(("sequences", "alone", "units", "matches"), 0)
            for owner, example in enumerate(chosen):
                table = np.array(getattr(example, kind), np.float64).reshape(-1, columns)
                for column, counted in _NUMBERED[kind].items():
                    table[:, column] += offsets[counted]
                tables.append(np.column_stack([np.full(len(table), owner), table]))
                for counted in offsets:
                    offsets[counted] += len(getattr(example, counted))
            batch[kind] = torch.from_numpy(np.concatenate(tables).astype(np.float32))
        return batch


class RoundedEncoder(TrainableEncoder):
    """Can compute as the exported model does: with rounded weights, and rows rounded to 8 bits, both in groups of 64
    columns. Gradients pass as if nothing were rounded."""

    rounding: int | None = None

    def _linear(self, states: Tensor, name: str) -> Tensor:
        if self.rounding is None or name.startswith(HEAD):
            return super()._linear(states, name)
        weight = round_groups(self._array(f"{name}.weight"), 2 ** (self.rounding - 1) - 1)
        bias = self._array(f"{name}.bias") if f"{name}.bias" in self._names else None
        return functional.linear(round_groups(states, 127), weight, bias)

    def score(self, batch: Batch, heads: Sequence[str]) -> Tensor:
        """All outputs of the heads on all tokens, [sequences, tokens, outputs]."""
        states = self(batch["ids"], batch["mask"], batch["second"]).float()
        matrix = torch.cat([self._array(f"{HEAD}{name}.weight") for name in heads])
        outputs: Tensor = states @ matrix.T + torch.cat([self._array(f"{HEAD}{name}.bias") for name in heads])
        return outputs


def round_groups(array: Tensor, largest: int, group: int = 64) -> Tensor:
    """Round groups of columns to integers times a scale of their own; gradients pass."""
    groups = array.detach().float().view(*array.shape[:-1], -1, group)
    step = (groups.abs().amax(-1, keepdim=True) / largest).clamp_min(1e-12)
    rounded = ((groups / step).round() * step).view(array.shape).to(array.dtype)
    return array + (rounded - array.detach())


def mean_units(outputs: Tensor, units: Tensor) -> Tensor:
    """The mean of an output over the tokens of each unit."""
    sums = functional.pad(outputs.cumsum(1), (0, 0, 1, 0))
    sequence, start, end, output = units[:, 1:5].long().unbind(1)
    return (sums[sequence, end, output] - sums[sequence, start, output]) / (end - start)


def match_tokens(states: Tensor, mask: Tensor, pairs: Tensor) -> Tensor:
    """The sum of precision and recall of greedily matched tokens, as in BERTScore, without special tokens."""
    vectors = functional.normalize(states.float(), dim=-1)
    place = mask.cumsum(1)
    inside = mask.bool() & (place > 1) & (place < mask.sum(1, keepdim=True))
    first, second = pairs[:, 1:3].long().unbind(1)
    cosines = torch.einsum("pid,pjd->pij", vectors[first], vectors[second])
    total = torch.zeros(len(pairs), device=states.device)
    for table, ours, theirs in ((cosines, first, second), (cosines.transpose(1, 2), second, first)):
        best = table.masked_fill(~inside[theirs][:, None], -1.0).amax(2)
        total = total + (best * inside[ours]).sum(1) / inside[ours].sum(1).clamp_min(1)
    return total


@dataclass(eq=False)
class EncoderLoss:
    """Cross-entropy of probabilities, pairs and tags, smooth differences of ratings, the order of matches. `teacher` is
    a frozen copy of the base whose outputs the units keep."""

    heads: Sequence[str]
    layer: int | None = None
    teacher: RoundedEncoder | None = None

    figure = "minus the loss"

    def loss(self, model: RoundedEncoder, batch: Batch) -> Tensor:
        return self.compute(model, batch).sum()

    def judge(self, model: RoundedEncoder, batch: Batch) -> Tensor:
        return -self.compute(model, batch)

    def compute(self, model: RoundedEncoder, batch: Batch) -> Tensor:
        outputs = model.score(batch, self.heads)
        units, pairs, tokens, matched = (batch[name] for name in ("units", "pairs", "tokens", "matched"))
        values = mean_units(outputs, units)
        cross_entropy = functional.binary_cross_entropy_with_logits
        ratings = functional.smooth_l1_loss(values, units[:, 5], reduction="none")
        probabilities = cross_entropy(values, units[:, 5], reduction="none")
        better, worse = pairs[:, 1:3].long().unbind(1)
        sequence, token, output = tokens[:, 1:4].long().unbind(1)
        parts = [
            (units, torch.where(units[:, 7] == PROBABILITY, probabilities, ratings)),
            (pairs, cross_entropy(values[better] - values[worse], pairs[:, 3], reduction="none")),
            (tokens, cross_entropy(outputs[sequence, token, output], tokens[:, 4], reduction="none")),
        ]
        if len(matched):
            states = model(batch["alone_ids"], batch["alone_mask"], batch["alone_second"], self.layer)
            scores = _SHARPNESS * match_tokens(states, batch["alone_mask"], batch["matches"])
            better, worse = matched[:, 1:3].long().unbind(1)
            parts.append((matched, functional.softplus(scores[worse] - scores[better])))
        losses = torch.zeros(int(batch["count"]), device=outputs.device)
        for table, each in parts:
            weight = table[:, 6] if table is units else table[:, -1]
            losses = losses.index_add(0, table[:, 0].long(), each * weight)
        if self.teacher is None:
            return losses
        # The distance of the outputs from those of the frozen copy, in standard deviations.
        owners = units[:, 0].long()
        with torch.no_grad():
            old = mean_units(self.teacher.to(values.device).score(batch, self.heads), units)
        spread = old.std().clamp_min(0.1) if len(old) > 1 else old.new_ones(())
        each = functional.smooth_l1_loss(values / spread, old / spread, reduction="none")
        sums = torch.zeros(len(losses), device=values.device).index_add(0, owners, each)
        return losses + sums / torch.bincount(owners, minlength=len(sums)).clamp_min(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderTask(TrainingTask):
    """Trains the heads of a text encoder in metrist's own format and all layers below them.

    `heads` maps each head to the number of its outputs; those that the base lacks begin at random, its others are left
    out. Groups of examples are drawn in proportion to their sizes to the power `balance`. `rounded` computes as the
    written model does, with `bits` per weight; `keep` lets a frozen copy of the base teach its outputs; `frozen_words`
    does not train the vectors of words. `layer_rate` is the learning rate of a layer relative to the one above it,
    `layer` the one whose states are matched (None: the last one).
    """

    kind: ClassVar[str] = "encoder"

    train: Sequence[EncoderExample]
    dev: Sequence[EncoderExample] = ()
    heads: Mapping[str, int]
    bits: int = 7
    balance: float = 0.0
    rounded: bool = False
    keep: bool = False
    frozen_words: bool = False
    layer_rate: float = 1.0
    layer: int | None = None

    def load_data(self) -> tuple[Sequence[EncoderExample], Sequence[EncoderExample]]:
        return self.train, self.dev

    def own_identity(self, weights: Weights, data: Any) -> dict[str, Any]:  # noqa: ARG002
        rows = (
            ([ids.tobytes() for ids, _ in example.sequences], [getattr(example, name) for name in _COLUMNS])
            for example in (*data[0], *data[1])
        )
        names = ("bits", "balance", "rounded", "keep", "frozen_words", "layer_rate", "layer")
        choices = {name: getattr(self, name) for name in names}
        return {"data": hash_rows(rows), "heads": dict(self.heads), **choices}

    def plan(self, weights: Weights, data: Any) -> TrainingPlan:  # noqa: ARG002
        train, dev = map(EncoderExamples, data)
        sampler = self.make_sampler(train, [example.group for example in train.examples], self.balance)
        return TrainingPlan(train=train, dev=dev if len(dev) else None, sampler=sampler)

    def build(self, weights: Weights, plan: TrainingPlan, placement: Placement) -> Learner:  # noqa: ARG002
        sizes = EncoderSizes.from_config(storage.read_config(weights.folder, storage.TEXT_ENCODER))
        stored = storage.read_arrays(weights.folder / storage.WEIGHTS)
        rng = np.random.default_rng(self.recipe.seed)
        arrays = {name: array for name, array in stored.items() if not name.startswith(HEAD)}
        for name, outputs in self.heads.items():
            fresh = rng.normal(0, _INITIAL_STD, (outputs, sizes.hidden)).astype(np.float32)
            arrays[f"{HEAD}{name}.weight"] = stored.get(f"{HEAD}{name}.weight", fresh)
            arrays[f"{HEAD}{name}.bias"] = stored.get(f"{HEAD}{name}.bias", np.zeros(outputs, np.float32))
        model = RoundedEncoder(sizes, arrays)
        model.rounding = self.bits if self.rounded else None
        model.get_parameter("words/weight").requires_grad_(not self.frozen_words)
        teacher = RoundedEncoder(sizes, arrays).eval().requires_grad_(False) if self.keep else None
        rates = {f"blocks/{n}/": self.layer_rate ** (sizes.layers - 1 - n) for n in range(sizes.layers)}
        return Learner(model, EncoderLoss(tuple(self.heads), self.layer, teacher), rates)

    def publish(
        self, weights: Weights, data: Any, plan: TrainingPlan, trainer: Any, folder: TrainingFolder
    ) -> dict[str, Any]:
        from safetensors.numpy import load_file, save_file

        def write(part: Path) -> None:
            trainer.model.export(weights.folder, part, self.bits)
            if self.frozen_words:
                # The stored vectors of words of the base, to the last bit.
                stored = load_file(weights.folder / storage.WEIGHTS)
                words = {name: array for name, array in stored.items() if name.startswith("words.weight")}
                path = part / storage.WEIGHTS
                save_file({**load_file(path), **words}, path)
                path.chmod(0o644)  # safetensors creates files that only their owner can read.
            for name in _SETTINGS:
                if (weights.folder / name).is_file():
                    shutil.copyfile(weights.folder / name, part / name)

        folder.put_model(write, weights.folder)
        facts = {"training_examples": len(plan.train), "development_examples": len(data[1])}
        choices = {"heads": ", ".join(self.heads), "bits": self.bits, "rounded": self.rounded}
        return {"metric": str(self.out), "data": facts, "choices": choices, "licence": INHERITED_LICENCE}
