"""Which texts a likelihood model scores for a shard of records, and how their values become scores.

A record gives one (condition, target) pair of texts per direction and reference; each pair is scored with each prompt,
and a long condition in each of its windows. Yuan, Neubig and Liu (2021) call source->output faithfulness,
reference->output precision, output->reference recall, and the mean of the last two F.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError, did_you_mean
from metrist.kernels.columns import segment_sums
from metrist.metrics.base import reduce_references
from metrist.metrics.token_weights import Weigh
from metrist.models.protocols import LikelihoodModel, Likelihoods
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind, Scores

Direction = Literal["source->output", "reference->output", "output->reference", "f"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)
Field = Literal["source", "reference", "output"]
#: How to treat a condition that is too long: cut it, or read it in windows and take the best window or their mean.
Long = Literal["truncate", "max", "mean"]
#: Where a prompt is inserted: before the target or after the condition.
Side = Literal["target", "condition"]
Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
TextPair = tuple[str, str]

# --- Pairs of texts


class Roles(NamedTuple):
    """The field that is given to the model and the field whose tokens it scores."""

    condition: Field
    target: Field


_PRECISION, _RECALL = Roles("reference", "output"), Roles("output", "reference")
ROLES: Mapping[str, tuple[Roles, ...]] = {
    "source->output": (Roles("source", "output"),),
    "reference->output": (_PRECISION,),
    "output->reference": (_RECALL,),
    "f": (_PRECISION, _RECALL),
}
#: Names of the parts of a score whose direction has several roles.
_PARTS = {_PRECISION: "precision", _RECALL: "recall"}


#: The fields that a record must have besides its output.
NEEDS: Mapping[str, tuple[Need, ...]] = {
    direction: ("source",) if direction == "source->output" else ("references",) for direction in DIRECTIONS
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TextPairs:
    """The (condition, target) pairs of a shard, one list per roles.

    `positions` are the records that can be scored; the others have `failures`. In each list the pairs of record
    `positions[n]` are `starts[n]:starts[n + 1]`, one per reference.
    """

    roles: tuple[Roles, ...]
    pairs: tuple[list[TextPair], ...]
    starts: Counts
    positions: list[int]
    failures: Mapping[int, Failure]

    def reduce(self, values: Numbers, reduce: str) -> tuple[Numbers, dict[str, Numbers]]:
        """Reduce values of shape (roles, pairs) to one value per record, and its parts if there are several roles.

        References are averaged; with 'max', the reference with the highest value is taken with its parts.
        """
        means = values.mean(axis=0)
        parts = dict(zip((_PARTS[roles] for roles in self.roles), values, strict=True)) if len(self.roles) > 1 else {}
        rows = np.column_stack([means, *parts.values()])
        reduced = reduce_references(rows, means, self.starts, "max" if reduce == "max" else "mean")
        return reduced[:, 0], dict(zip(parts, reduced[:, 1:].T, strict=True))


def collect_pairs(records: Sequence[Record], direction: Direction) -> TextPairs:
    """Collect the pairs to score. A record with an empty text has none: its failure says which text is empty."""
    roles = ROLES[direction]
    reasons = ((i, _find_empty_text(record, roles[0])) for i, record in enumerate(records))
    failures = {i: Failure(FailureKind.missing_input, reason) for i, reason in reasons if reason}
    positions = [i for i in range(len(records)) if i not in failures]
    counts = [1 if direction == "source->output" else len(records[i].references) for i in positions]
    pairs: list[list[TextPair]] = []
    for condition, _ in roles:
        scorable = [records[i] for i in positions]
        if condition == "source":
            pairs.append([(record.source or "", record.output) for record in scorable])
        elif condition == "reference":
            pairs.append([(text, record.output) for record in scorable for text in record.references])
        else:
            pairs.append([(record.output, text) for record in scorable for text in record.references])
    return TextPairs(
        roles=roles,
        pairs=tuple(pairs),
        starts=np.cumsum([0, *counts], dtype=np.int64),
        positions=positions,
        failures=failures,
    )


def _find_empty_text(record: Record, roles: Roles) -> str | None:
    """Why the record cannot be scored. All roles of a direction look at the same texts."""
    if not record.output.strip():
        return "the output is empty: there are no tokens to score"
    if "source" in roles:
        return None if (record.source or "").strip() else "the source is empty: there is nothing to condition on"
    for number, reference in enumerate(record.references, start=1):
        if not reference.strip():
            name = "the reference" if len(record.references) == 1 else f"reference {number}"
            return f"{name} is empty: there are no tokens to score"
    return None


# --- Prompts: short phrases between condition and target (section 3.3.1 of the paper)

NONE = "none"
#: Shipped sets of phrases; each is a text file in the folder `prompts`, one phrase per line.
SETS = ("source-output", "reference-output")


def read_phrases(prompts: str | Sequence[str]) -> tuple[str, ...]:
    """The phrases of a `prompts` setting: a list, a shipped set, a file with one phrase per line, or 'none', which is
    a single empty phrase."""
    if prompts == NONE:
        return ("",)
    if not isinstance(prompts, str):
        return tuple(prompts)
    if prompts in SETS:
        file = resources.files("metrist.metrics.likelihood") / "prompts" / f"{prompts}.txt"
        return _split_lines(file.read_text(encoding="utf-8"))
    known = (NONE, *SETS)
    try:
        phrases = _split_lines(Path(prompts).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(
            f"prompts must be {', '.join(map(repr, known))}, a list of phrases or a file with one phrase per line; "
            f"{prompts!r} cannot be read ({error.strerror}){did_you_mean(prompts, known)}",
            code="unknown_name",
        ) from None
    except UnicodeDecodeError:
        raise SpecError(f"{prompts}: prompts must be a UTF-8 text file with one phrase per line") from None
    if not phrases:
        raise SpecError(f"{prompts}: the file has no phrases; expected one per line")
    return phrases


def _split_lines(text: str) -> tuple[str, ...]:
    lines = (line.strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def prompt_facts(prompts: str | Sequence[str]) -> Mapping[str, str]:
    """Count and hash of the phrases of a named set, for the signature: the name alone does not identify them."""
    if prompts == NONE or not isinstance(prompts, str):
        return {}
    phrases = read_phrases(prompts)
    digest = hashlib.sha256("\n".join(phrases).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return {"prompts": f"{len(phrases)} {digest}"}


def insert_phrase(condition: str, target: str, phrase: str, side: Side) -> TextPair:
    """The pair with the phrase before the target or after the condition, and a comma where it ends in no mark."""
    if not phrase:
        return condition, target
    stripped = phrase.rstrip()
    is_marked = unicodedata.category(stripped[-1:] or " ").startswith("P")
    inserted = stripped if is_marked else f"{phrase},"
    return (f"{condition} {inserted}", target) if side == "condition" else (condition, f"{inserted} {target}")


# --- Scoring pairs with a model

#: Pairs and characters of text per call of the model. Pairs with the same condition go into one call, because the model
#: encodes equal conditions once; the number is limited because the result holds every token.
MAX_PAIRS = 1 << 15
MAX_TEXT = 1 << 26


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PairScores:
    """Per pair: the weighted mean log-probability of the target's tokens (NaN if the pair failed), and the number of
    tokens cut from condition and target. `readings` holds the tokens and their log-probabilities, if requested."""

    values: Numbers
    condition_cut: Counts
    target_cut: Counts
    failures: dict[int, str] = field(default_factory=dict)
    readings: dict[int, tuple[list[str], list[float]]] = field(default_factory=dict)


def score_pairs(
    model: LikelihoodModel,
    pairs: Sequence[TextPair],
    *,
    max_tokens: int | None = None,
    weigh: Weigh | None = None,
    tokens: bool = False,
) -> PairScores:
    """Score all pairs, in order. Without `weigh` all tokens have the same weight."""
    scores = PairScores(
        values=np.full(len(pairs), np.nan),
        condition_cut=np.zeros(len(pairs), np.int64),
        target_cut=np.zeros(len(pairs), np.int64),
    )
    for numbers in _batch_by_condition(pairs):
        likelihoods = model.log_probs([pairs[i] for i in numbers], max_tokens)
        means = _weighted_means(likelihoods, [pairs[i][1] for i in numbers], weigh)
        finite = np.isfinite(means)
        scores.values[numbers] = np.where(finite, means, np.nan)
        scores.condition_cut[numbers] = likelihoods.condition_cut
        scores.target_cut[numbers] = likelihoods.target_cut
        for n in np.flatnonzero(~finite).tolist():
            zero = "the model assigned zero probability to a token of the text"
            reason = zero if np.isinf(means[n]) else "all tokens of the text have zero weight"
            scores.failures[numbers[n]] = likelihoods.failures.get(n, reason)
        if tokens:
            for n, i in enumerate(numbers):
                logprobs = [round(float(logprob), 5) for logprob in likelihoods.of(n)]
                scores.readings[i] = model.pieces(pairs[i][1], max_tokens), logprobs
    return scores


def _batch_by_condition(pairs: Sequence[TextPair]) -> Iterator[list[int]]:
    """Numbers of the pairs per call, those with the same condition next to each other."""
    by_condition: dict[str, list[int]] = {}
    for i, (condition, _) in enumerate(pairs):
        by_condition.setdefault(condition, []).append(i)
    batch: list[int] = []
    text = 0
    for condition, numbers in by_condition.items():
        text += len(condition)
        for i in numbers:
            batch.append(i)
            text += len(pairs[i][1])
            if len(batch) == MAX_PAIRS or text > MAX_TEXT:
                yield batch
                batch, text = [], 0
    if batch:
        yield batch


def _weighted_means(likelihoods: Likelihoods, targets: Sequence[str], weigh: Weigh | None) -> Numbers:
    """The weighted mean of each pair; NaN where there is no token or none with a weight."""
    starts, logprobs = likelihoods.starts, likelihoods.logprobs.astype(np.float64)
    if weigh is None:
        sums, totals = segment_sums(logprobs, starts), np.diff(starts).astype(np.float64)
    else:
        ids = [likelihoods.tokens[starts[n] : starts[n + 1]] for n in range(len(likelihoods))]
        weights = np.concatenate([np.empty(0), *map(weigh, targets, ids)])
        sums, totals = segment_sums(weights * logprobs, starts), segment_sums(weights, starts)
    means: Numbers = np.divide(sums, totals, out=np.full(len(totals), np.nan), where=totals > 0)
    return means


# --- From pairs to scored texts and back


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShardLayout:
    """All texts to score for a shard.

    A cell is one pair with one prompt, in the order (roles, pair, prompt). Cell c has the texts
    `starts[c]:starts[c + 1]`: one, or several where the condition is read in windows.
    """

    text_pairs: TextPairs
    phrases: tuple[str, ...]
    texts: list[TextPair]
    starts: Counts

    def cell_records(self) -> Counts:
        """The number of the scorable record to which each cell belongs."""
        pairs = np.repeat(np.arange(len(self.text_pairs.positions)), np.diff(self.text_pairs.starts))
        return np.repeat(np.tile(pairs, len(self.text_pairs.roles)), len(self.phrases))

    def cell_values(self, scores: PairScores, long: Long) -> Numbers:
        """Values of shape (roles, pairs, prompts); 0 where a text failed."""
        values, counts = np.nan_to_num(scores.values), np.diff(self.starts)
        if len(counts) and counts.max() > 1:
            if long == "max":
                values = np.maximum.reduceat(values, self.starts[:-1])
            else:
                values = np.add.reduceat(values, self.starts[:-1]) / counts
        return values.reshape(len(self.text_pairs.roles), -1, len(self.phrases))

    def count_cut_tokens(self, scores: PairScores) -> Numbers:
        """Per scorable record, the tokens left out of its texts, each text counted once."""
        most: dict[tuple[int, str], int] = {}
        records = np.repeat(self.cell_records(), np.diff(self.starts))
        pairs = [pair for pairs in self.text_pairs.pairs for pair in pairs]
        cells = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        for side, counts in enumerate((scores.condition_cut, scores.target_cut)):
            for i in np.flatnonzero(counts).tolist():
                key = int(records[i]), pairs[cells[i] // len(self.phrases)][side]
                most[key] = max(most.get(key, 0), int(counts[i]))
        totals = np.zeros(len(self.text_pairs.positions))
        for (record, _), count in most.items():
            totals[record] += count
        return totals

    def count_windows(self) -> Numbers:
        """Per scorable record, the number of windows of its longest condition."""
        windows = np.zeros(len(self.text_pairs.positions))
        np.maximum.at(windows, self.cell_records(), np.diff(self.starts))
        return windows

    def make_scores(
        self, size: int, values: Numbers, parts: Mapping[str, Numbers], scores: PairScores, *, tokens: bool = False
    ) -> Scores:
        """Scores for all `size` records of the shard, from values and parts of the scorable ones."""
        positions = self.text_pairs.positions
        records = np.repeat(self.cell_records(), np.diff(self.starts))
        # The first failure of a record wins.
        failures = {int(records[i]): scores.failures[i] for i in sorted(scores.failures, reverse=True)}
        scored = [n for n in range(len(positions)) if n not in failures]
        readings = self._readings(scores) if tokens else {}
        block = Scores(
            values=values[scored],
            parts={name: column[scored] for name, column in parts.items()},
            tokens={i: readings[n] for i, n in enumerate(scored) if n in readings},
        )
        reasons = {**self.text_pairs.failures, **{positions[n]: reason for n, reason in failures.items()}}
        return block.spread(size, [positions[n] for n in scored], reasons)

    def _readings(self, scores: PairScores) -> Mapping[int, list[dict[str, Any]]]:
        readings: dict[int, list[dict[str, Any]]] = {}
        pair_starts = self.text_pairs.starts
        for cell, record in enumerate(self.cell_records().tolist()):
            number, rest = divmod(cell, len(self.text_pairs.pairs[0]) * len(self.phrases))
            pair, prompt = divmod(rest, len(self.phrases))
            label: dict[str, Any] = self.text_pairs.roles[number]._asdict()
            if pair_starts[record + 1] - pair_starts[record] > 1:
                label["reference"] = int(pair - pair_starts[record]) + 1
            if self.phrases[prompt]:
                label["prompt"] = self.phrases[prompt]
            first, end = int(self.starts[cell]), int(self.starts[cell + 1])
            for i in range(first, end):
                window = {"window": i - first + 1} if end - first > 1 else {}
                pieces, logprobs = scores.readings[i]
                readings.setdefault(record, []).append({**label, **window, "pieces": pieces, "logprobs": logprobs})
        return readings


def lay_out(
    text_pairs: TextPairs,
    phrases: tuple[str, ...],
    side: Side,
    *,
    condition_prefix: str,
    target_prefix: str,
    split: Callable[[str, str], Sequence[str]] | None,
) -> ShardLayout:
    """Put prompts and prefixes around all pairs. `split` divides a condition into windows, given what will be added to
    it; None leaves conditions whole."""
    texts: list[TextPair] = []
    starts = [0]
    # What prompt and prefix add to an empty condition is what they take from the room of a window.
    additions = [
        (phrase, condition_prefix + (insert_phrase("", "", phrase, side)[0] if phrase else "")) for phrase in phrases
    ]
    for condition, target in (pair for pairs in text_pairs.pairs for pair in pairs):
        for phrase, addition in additions:
            for window in split(condition, addition) if split else (condition,):
                with_phrase, scored = insert_phrase(window, target, phrase, side)
                texts.append((condition_prefix + with_phrase, target_prefix + scored))
            starts.append(len(texts))
    return ShardLayout(text_pairs=text_pairs, phrases=phrases, texts=texts, starts=np.array(starts, np.int64))
