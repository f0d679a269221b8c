"""Train a consistency metric: a text encoder learns which sentences of an output its source supports.

The labels are those of people, or the stored scores of an expensive judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from metrist.data.splits import parse_share
from metrist.errors import InputError, ModelError, RunError, did_you_mean, format_count
from metrist.io import read_records
from metrist.io.row_model import ParsedRow
from metrist.metrics.trained.consistency import Consistency
from metrist.metrics.trained.support import HEAD, Support, SupportReader, SupportRow, SupportSettings
from metrist.models.devices import Options, Placement
from metrist.models.loading import load_text_encoder
from metrist.models.numpy_inference import storage
from metrist.models.weights import Weights, find_weights
from metrist.models.windows import CharacterSpan
from metrist.ratings import Error
from metrist.records import Record
from metrist.train.agreement import correlate, describe_length, group_places, resample_groups
from metrist.train.folder import INHERITED_LICENCE, TrainingFolder
from metrist.train.recipe import Recipe
from metrist.train.task import Batch, Examples, Learner, TrainingPlan, TrainingTask, describe_heads, hash_rows

if TYPE_CHECKING:
    from torch import Tensor

    from metrist.models.trainable_encoder import TrainableEncoder
    from metrist.train.loop import Trainer

Floats = NDArray[np.float64]
#: Suits a shipped encoder and some hundred to some ten thousand outputs.
RECIPE = Recipe(epochs=3, batch=16, lr=3e-5, warmup=0.1, weight_decay=0.01, bucket=20)
#: Probabilities this close to 0 and 1 are not told apart in the loss.
_CERTAIN = 1e-6
#: Rows of the development data that are computed at once.
_ROWS_AT_ONCE = 16
_SHIPPED = "metrist:english-small"
#: An interval over fewer sources is too narrow to be trusted.
_FEW_SOURCES = 10
#: Resamples of an interval, and the share of them that may have no correlation.
_DRAWS, _MOST_UNDEFINED = 500, 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportExample:
    """An output with its source and what is known about it: from 0 (unsupported) to 1, and the places of the
    unsupported statements. `errors` is None if only the output as a whole was judged. `rating` is what people say,
    where the label is that of a judge."""

    source: str
    output: str
    label: float
    errors: tuple[CharacterSpan, ...] | None = None
    rating: float | None = None


class SupportData(NamedTuple):
    train: Sequence[SupportExample]
    dev: Sequence[SupportExample]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SupportRows(Examples):
    """Rows for the training loop: sentences of an output beside a window of its source, each with its label. Rows of
    outputs that were judged as a whole have one label for the mean of their sentences."""

    rows: list[SupportRow]
    labels: list[Floats]
    #: Whether each sentence has a label of its own.
    by_sentence: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    weights: Floats

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        import torch

        from metrist.models.trainable_encoder import collate_sequences

        rows = [self.rows[number] for number in indices]
        ids, mask, second = collate_sequences([row.sequence for row in rows])
        spans = np.array([(at, *span) for at, row in enumerate(rows) for span in row.spans], np.int64)
        return {
            "ids": ids,
            "mask": mask,
            "second": second,
            "spans": torch.from_numpy(spans),
            "labels": torch.from_numpy(np.concatenate([self.labels[number] for number in indices]).astype(np.float32)),
            "by_sentence": torch.from_numpy(self.by_sentence[indices].astype(np.float32)),
        }


def lay_out_examples(reader: SupportReader, examples: Sequence[SupportExample]) -> SupportRows:
    """Tokenize all examples as scoring does; outputs that the model cannot read are left out."""
    rows: list[SupportRow] = []
    labels: list[Floats] = []
    by_sentence = []
    for example in examples:
        for row in reader.lay_out(example.source, example.output):
            rows.append(row)
            by_sentence.append(example.errors is not None)
            if example.errors is None:
                labels.append(np.full(len(row.characters), example.label))
                continue
            places = example.errors
            marked = [any(start < b and a < end for a, b in places) for start, end in row.characters]
            labels.append(1.0 - np.array(marked, np.float64))
    return SupportRows(
        rows=rows,
        labels=labels,
        by_sentence=np.array(by_sentence, bool),
        lengths=np.array([len(row.sequence[0]) for row in rows], np.int64),
        weights=np.ones(len(rows)),
    )


def _hash_examples(examples: Sequence[SupportExample]) -> str:
    return hash_rows((example.source, example.output, example.label, example.errors) for example in examples)


class SupportLoss:
    """Cross-entropy of the sentences' probabilities where sentences have labels, else of their mean with the label of
    the output. The development figure is how close the mean probability of a row comes to its mean label."""

    figure = "closeness to the labels (1 - mean absolute difference)"

    def loss(self, model: TrainableEncoder, batch: Batch) -> Tensor:
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        logits = _compute_logits(model, batch)
        losses = binary_cross_entropy_with_logits(logits, batch["labels"], reduction="none")
        sentences = _average_rows(losses, batch)
        mean = _average_rows(torch.sigmoid(logits), batch).clamp(_CERTAIN, 1 - _CERTAIN)
        label = _average_rows(batch["labels"], batch)
        outputs = -(label * mean.log() + (1 - label) * (1 - mean).log())
        total: Tensor = torch.where(batch["by_sentence"] > 0, sentences, outputs).sum()
        return total

    def judge(self, model: TrainableEncoder, batch: Batch) -> Tensor:
        import torch

        mean = _average_rows(torch.sigmoid(_compute_logits(model, batch)), batch)
        closeness: Tensor = 1 - (mean - _average_rows(batch["labels"], batch)).abs()
        return closeness


def _compute_logits(model: TrainableEncoder, batch: Batch) -> Tensor:
    states = model(batch["ids"], batch["mask"], batch["second"])
    row, start, end = batch["spans"].unbind(1)
    return model.score_spans(HEAD, states, row, start, end)


def _average_rows(values: Tensor, batch: Batch) -> Tensor:
    """The mean over the sentences of each row."""
    import torch

    rows = batch["spans"][:, 0]
    sums = torch.zeros(len(batch["ids"]), device=values.device, dtype=values.dtype).index_add(0, rows, values)
    return sums / torch.bincount(rows, minlength=len(sums))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyTask(TrainingTask):
    """Trains the head `support` of a text encoder in metrist's own format and all layers below it. `window` are the
    tokens that the model reads at once, `bits` those per stored weight; `data` and `licence` go into the card."""

    kind: ClassVar[str] = "consistency"

    train: Sequence[SupportExample]
    dev: Sequence[SupportExample] = ()
    recipe: Recipe = RECIPE
    window: int = 512
    data: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    bits: int = 7

    def load_data(self) -> SupportData:
        return SupportData(self.train, self.dev)

    def own_identity(self, weights: Weights, data: SupportData) -> dict[str, Any]:  # noqa: ARG002
        return {
            "data": _hash_examples(data.train),
            "dev": _hash_examples(data.dev),
            "window": self.window,
            "bits": self.bits,
        }

    def plan(self, weights: Weights, data: SupportData) -> TrainingPlan:
        reader = self._make_reader(weights)
        train = lay_out_examples(reader, data.train)
        if not len(train):
            raise InputError("there are no outputs to train on that the model can read", code="no_data")
        if len({float(label) for row in train.labels for label in row}) < 2:
            raise InputError(
                "all outputs have the same label: the training needs supported and unsupported ones to tell apart",
                code="too_little_data",
            )
        if self.recipe.patience is not None and not data.dev:
            raise RunError("early stopping (`patience`) needs development data; give `dev`")
        dev = lay_out_examples(reader, data.dev)
        return TrainingPlan(
            train=train,
            dev=dev if len(dev) else None,
            sampler=self.make_sampler(train),
            left_out_heads=tuple(name for name in reader.encoder.heads if name != HEAD),
        )

    def _make_reader(self, weights: Weights) -> SupportReader:
        if weights.config.get("architecture") != storage.TEXT_ENCODER:
            raise ModelError(
                f"{weights.name} is not a text encoder; give one, such as 'metrist:english-small'", code="invalid_value"
            )
        return SupportReader(load_text_encoder(str(weights.folder)), window=self.window, threshold=0.5)

    def build(self, weights: Weights, plan: TrainingPlan, placement: Placement) -> Learner:  # noqa: ARG002
        from metrist.models.trainable_encoder import TrainableEncoder

        return Learner(TrainableEncoder.load(weights.folder, HEAD, self.recipe.seed), SupportLoss())

    def publish(
        self, weights: Weights, data: SupportData, plan: TrainingPlan, trainer: Trainer, folder: TrainingFolder
    ) -> dict[str, Any]:
        def write(part: Path) -> None:
            trainer.model.export(weights.folder, part, self.bits)
            # The rows of this training had as many sentences as those of the base.
            settings = SupportSettings.read(weights.folder)
            msgspec.structs.replace(settings, window=self.window, scale=1.0, shift=0.0).write(part)

        folder.put_model(write, weights.folder)
        return {
            "metric": f"consistency(model={str(self.out)!r})",
            "data": {
                **self.data,
                "training_outputs": len(data.train),
                "development_outputs": len(data.dev),
                "with_marked_errors": sum(example.errors is not None for example in data.train),
                "rows": len(plan.train),
                "tokens": int(plan.train.lengths.sum()),
            },
            "choices": {"window": self.window, "bits": self.bits, **describe_heads(plan)},
            "stored": self._measure(weights, data.dev, plan.dev, trainer.processes.device) if plan.dev else None,
            "new_head": _has_no_head(weights),
            "licence": self.licence or INHERITED_LICENCE,
        }

    def _measure(self, base: Weights, dev: Sequence[SupportExample], rows: Examples, device: str) -> dict[str, Any]:
        """The development figure of the model as it was written; and how far its scores, and those of its base or, if
        that scores nothing, of the shipped model, agree with the labels, and with people where there are ratings."""
        written = find_weights(Options(model=str(self.out)))
        figures: dict[str, Any] = {"after": _measure_closeness(written, rows, device), "pairs": len(dev)}
        models = {"model": written}
        if not _has_no_head(base):
            models["base"], figures["compared_with"] = base, self.base.model
        else:
            with suppress(ModelError):  # It need not be installed.
                models["base"], figures["compared_with"] = find_weights(Options(model=_SHIPPED)), _SHIPPED
        labels = np.array([example.label for example in dev], np.float64)
        for name, weights in models.items():
            values = score_examples(self._make_reader(weights), dev)
            figures[f"agreement_{name}"] = correlate(labels, values)
            ratings = np.array([np.nan if e.rating is None else e.rating for e in dev], np.float64)
            if (~np.isnan(ratings)).sum() > 1:
                figures[f"people_{name}"] = correlate(ratings, values)
            if name == "model":
                lengths = np.array([len(example.output) for example in dev], np.float64)
                sources = [example.source for example in dev]
                targets = {"the labels": labels, "people's ratings": ratings}
                remarks = (compare_with_length(key, targets[key], values, lengths, sources) for key in targets)
                figures["remarks"] = [remark for remark in remarks if remark]
        return figures


def _has_no_head(weights: Weights) -> bool:
    """Whether a text encoder was not trained to find what its source supports."""
    return HEAD not in load_text_encoder(str(weights.folder)).heads


def _measure_closeness(weights: Weights, rows: Examples, device: str) -> float:
    """The development figure of a stored model, on the rows on which the training measured it."""
    import torch

    from metrist.models.trainable_encoder import TrainableEncoder

    model = TrainableEncoder.load(weights.folder, HEAD).to(device).eval()
    loss = SupportLoss()
    total = 0.0
    with torch.no_grad():
        for part in np.array_split(np.argsort(rows.lengths), -(-len(rows) // _ROWS_AT_ONCE)):
            batch = {name: tensor.to(device) for name, tensor in rows.collate(part).items()}
            total += float(loss.judge(model, batch).double().sum())
    return total / len(rows)


def score_examples(reader: SupportReader, examples: Sequence[SupportExample]) -> Floats:
    """The mean probability of each output; NaN if the model cannot read it."""
    results = reader.read([(example.source, example.output) for example in examples])
    means = [float(result.probabilities.mean()) if isinstance(result, Support) else np.nan for result in results]
    return np.array(means, np.float64)


def compare_with_length(
    target: str, expected: Floats, values: Floats, lengths: Floats, sources: Sequence[str]
) -> str | None:
    """Return what the user should know if output length correlates with the expected values as well as the model's
    values do, or if there are too few outputs to tell; None if the model is clearly better. Length counts in the
    direction that agrees better; the interval is over sources."""
    known = ~(np.isnan(expected) | np.isnan(values))
    expected, values, lengths = expected[known], values[known], lengths[known]
    ours, rival = correlate(expected, values), correlate(expected, lengths)
    if ours is None or rival is None:
        return None
    shorter = rival < 0
    lengths, rival = (-lengths, -rival) if shorter else (lengths, rival)
    groups = group_places(np.array(sources, object)[known].tolist())
    differences = []
    for rows in resample_groups(groups, _DRAWS):
        both = correlate(expected[rows], values[rows]), correlate(expected[rows], lengths[rows])
        differences.append(np.nan if both[0] is None or both[1] is None else both[0] - both[1])
    low = high = np.nan
    if len(groups) > 1 and np.isnan(differences).mean() <= _MOST_UNDEFINED:
        low, high = np.nanquantile(differences, [0.025, 0.975]).tolist()
    sizes = f"{format_count(len(values), 'output')} of {format_count(len(groups), 'source')}"
    return describe_length(
        f"the trained model agrees with {target}",
        ours,
        rival,
        f"Spearman's correlation {ours:.3f} against {rival:.3f} on {sizes}",
        shorter=shorter,
        is_certain=len(groups) >= _FEW_SOURCES and (ours - rival) * low > 0 and (ours - rival) * high > 0,
        interval=(low, high),
        remedy="give more development data (`dev`)",
    )


# ---- Examples from files


#: Names of ratings that say whether the source supports an output, the most specific first.
_ASPECTS = ("consistent", "consistency", "faithfulness", "faithful", "groundedness", "support", "factual", "fact")
#: Aspects of errors that say the same.
_FACTUAL = re.compile(r"consisten|accura|fact|halluc|support|ground|contradict|faith|unverif", re.IGNORECASE)


class SupportFiles(NamedTuple):
    examples: list[SupportExample]
    notes: list[str]


def read_support_examples(
    paths: Sequence[Path], aspect: str | None = None, base: str = _SHIPPED, **options: Any
) -> SupportFiles:
    """Read outputs with their sources and judgments: ratings of support, and errors with their places.

    The ratings are those of `aspect`, or of the first known name of such an aspect. They are scaled to 0 to 1 by the
    lowest and the highest rating, unless they lie there already. If any output has errors about facts, those with
    errors, or without a lower rating, are labelled sentence by sentence. Outputs in a language that the model `base`
    does not know are left out. `options` are those of `metrist.read_records`.
    """
    metric = Consistency(model=base)
    place = ", ".join(map(str, paths))
    rows: list[tuple[Record, float | None, tuple[CharacterSpan, ...]]] = []
    aspects: dict[str, None] = {}
    without_text = in_other_language = 0
    notes = []
    for path in paths:
        reader = read_records(path, **options)
        for entry in reader.entries():
            aspects |= dict.fromkeys(rating.aspect for rating in entry.ratings)
            for record in entry.new:
                own = [e.error for e in entry.errors if (e.item, e.system) == (record.item, record.system)]
                if not (record.source or "").strip() or not record.output.strip():
                    without_text += 1
                elif metric.find_unknown_language(record):
                    in_other_language += 1
                else:
                    rows.append((record, find_rating(entry, record, aspect), find_places(own)))
        notes += reader.skipped.describe()
    if aspect is not None and aspect not in aspects:
        raise InputError(f"{place}: has no rating {aspect!r}{did_you_mean(aspect, aspects)}", code="unknown_name")
    ratings = [rating for _, rating, _ in rows if rating is not None]
    errors = sum(len(places) for _, _, places in rows)
    if not ratings and not errors:
        if in_other_language and not rows:
            raise InputError(
                f"{place}: all outputs are in another language, and {base} knows only English", code="no_data"
            )
        other = f"; its ratings are {', '.join(aspects)}: name one with `aspect`" if aspects else ""
        raise InputError(
            f"{place}: no output with a source has a rating of support ({', '.join(_ASPECTS[:4])}, …) or an error "
            f"about facts with its place{other}"
        )
    low, high = (min(ratings), max(ratings)) if ratings else (0.0, 1.0)
    scaled = (low < 0 or high > 1) and low < high
    examples = []
    for record, rating, places in rows:
        if rating is None and not errors:
            continue
        label = 0.0 if places else 1.0
        if rating is not None:
            label = (rating - low) / (high - low) if scaled else rating
        by_sentence = errors > 0 and (bool(places) or label == 1)
        examples.append(
            SupportExample(
                source=record.source or "", output=record.output, label=label, errors=places if by_sentence else None
            )
        )
    if ratings:
        notes.append(f"labels: {format_count(len(ratings), 'rating')}{f' of {low:g} to {high:g}' if scaled else ''}")
    if errors:
        notes.append(f"labels of sentences: {format_count(errors, 'error')} about facts")
    if without_text:
        notes.append(f"{format_count(without_text, 'output')} without a source or text left out")
    if in_other_language:
        notes.append(f"{format_count(in_other_language, 'output')} left out: {base} knows only English")
    return SupportFiles(examples, notes)


def find_rating(entry: ParsedRow, record: Record, aspect: str | None = None) -> float | None:
    """The mean rating of support of a record, of `aspect` or of the first known name of such an aspect."""
    own = [rating for rating in entry.ratings if (rating.item, rating.system) == (record.item, record.system)]
    by_name: dict[str, list[float]] = {}
    for rating in own:
        by_name.setdefault(rating.aspect if aspect else rating.aspect.lower(), []).append(rating.value)
    names = (aspect,) if aspect else _ASPECTS
    return next((float(np.mean(by_name[name])) for name in names if name in by_name), None)


def find_places(errors: Sequence[Error]) -> tuple[CharacterSpan, ...]:
    return tuple(
        (error.start, error.end)
        for error in errors
        if error.side == "output"
        and error.start is not None
        and error.end is not None
        and _FACTUAL.search(error.aspect)
    )


def divide_examples(
    examples: Sequence[SupportExample],
    dev: str | None,
    seed: int,
    aspect: str | None = None,
    base: str = _SHIPPED,
    **options: Any,
) -> SupportData:
    """Training and development data: `dev` is a file, or the share of sources to hold out with all their outputs; None
    and 0: there is no development data. `options` are those of `metrist.read_records`, for a file."""
    share = parse_share(dev)
    if dev is not None and share is None:
        return SupportData(examples, read_support_examples([Path(dev)], aspect, base, **options).examples)
    sources = list(dict.fromkeys(example.source for example in examples))
    count = round((share or 0) * len(sources))
    held = {sources[number] for number in np.random.default_rng([seed, 5]).permutation(len(sources))[:count]}
    return SupportData(
        [example for example in examples if example.source not in held],
        [example for example in examples if example.source in held],
    )
