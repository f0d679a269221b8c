"""Which text is to be likely given which: the directions of a likelihood metric, and their pairs of texts.

Paper 002 calls source->output faithfulness, reference->output precision, output->reference recall, and the mean of the
last two F. An output has one pair per way and reference; here records become pairs, and pairs become records again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError, did_you_mean
from metrist.metrics.lexical.references import reduce_references
from metrist.models.protocols import LikelihoodModel, Likelihoods
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind

Direction = Literal["source->output", "reference->output", "output->reference", "f"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)
Field = Literal["source", "reference", "output"]
Numbers = NDArray[np.float64]


class Roles(NamedTuple):
    """One way to go: from the field that is given to the field whose words are to be likely."""

    condition: Field
    target: Field


_PRECISION, _RECALL = Roles("reference", "output"), Roles("output", "reference")
ROLES: Mapping[str, tuple[Roles, ...]] = {
    "source->output": (Roles("source", "output"),),
    "reference->output": (_PRECISION,),
    "output->reference": (_RECALL,),
    "f": (_PRECISION, _RECALL),
}
#: What the ways of a direction that has several are called among a score's parts.
_PARTS = {_PRECISION: "precision", _RECALL: "recall"}


def required_fields(direction: Direction) -> tuple[Need, ...]:
    """What a record must have besides its output."""
    return ("source",) if direction == "source->output" else ("references",)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TextPairs:
    """The pairs (condition, target) of a shard, one list per way. In each list the pairs of the n-th record that can be
    scored, which is record `able[n]`, are `starts[n]:starts[n + 1]`: one per reference. The rest has `failures`."""

    ways: tuple[Roles, ...]
    pairs: tuple[list[tuple[str, str]], ...]
    starts: NDArray[np.int64]
    able: list[int]
    failures: Mapping[int, str]

    @property
    def size(self) -> int:
        """Pairs of one way."""
        return int(self.starts[-1])

    def records_of_pairs(self) -> NDArray[np.int64]:
        """For each pair of a way, which of the records in `able` it belongs to."""
        return np.repeat(np.arange(len(self.able)), np.diff(self.starts))

    def reduced(self, values: Numbers, reduce: str, **columns: Numbers) -> tuple[Numbers, dict[str, Numbers]]:
        """Values of shape (ways, pairs) as one value per record in `able`, with its parts: the ways' own values where
        there are several, and further columns of one number a pair. References are averaged, or ('max') the one with
        the highest value is taken with all that belongs to it."""
        whole = values.mean(axis=0)
        parts = {_PARTS[way]: row for way, row in zip(self.ways, values, strict=True)} if len(self.ways) > 1 else {}
        parts |= columns
        rows = np.column_stack([whole, *parts.values()]) if parts else whole[:, None]
        kept = reduce_references(rows, whole, self.starts, "max" if reduce == "max" else "mean")
        return kept[:, 0], dict(zip(parts, kept[:, 1:].T, strict=True))


def collect_pairs(records: Sequence[Record], direction: Direction) -> TextPairs:
    """The pairs to score. A record of which a text is empty has none: there are no words to be likely, or nothing to
    make them so."""
    ways = ROLES[direction]
    empty = ((i, _empty(record, ways[0])) for i, record in enumerate(records))
    failures = {i: Failure(FailureKind.missing_input, reason) for i, reason in empty if reason}
    able = [i for i in range(len(records)) if i not in failures]
    pairs = tuple([pair for i in able for pair in _pairs(records[i], way)] for way in ways)
    counts = [1 if direction == "source->output" else len(records[i].references) for i in able]
    starts = np.cumsum([0, *counts], dtype=np.int64)
    return TextPairs(
        ways=ways,
        pairs=pairs,
        starts=starts,
        able=able,
        failures=failures,
    )


def _pairs(record: Record, way: Roles) -> Iterator[tuple[str, str]]:
    match way:
        case Roles(condition="source"):
            yield record.source or "", record.output
        case Roles(condition="reference"):
            yield from ((reference, record.output) for reference in record.references)
        case _:
            yield from ((record.output, reference) for reference in record.references)


def _empty(record: Record, way: Roles) -> str | None:
    """Which text is empty, in words. A direction's ways look at the same texts."""
    if not record.output.strip():
        return "the output is empty: it has no words to be likely"
    if "source" in way:
        return None if (record.source or "").strip() else "the source is empty: it makes no words likely"
    for number, reference in enumerate(record.references, start=1):
        if not reference.strip():
            which = "the reference" if len(record.references) == 1 else f"reference {number}"
            return f"{which} is empty: it has no words to be likely"
    return None


# Short phrases that lead a model from one text to the other, and where they stand.
#
# A phrase is put before the target, or after the condition (paper 002, section 3.3.1). The sets
# that ship are text files
# in the folder `prompts` beside this module, one phrase a line; a user's file looks the same.


NONE = "none"
#: What the shipped sets are called.
SETS = ("source-output", "reference-output")
Side = Literal["target", "condition"]


def read_phrases(prompts: str | Sequence[str]) -> tuple[str, ...]:
    """The phrases that a setting means; ('',) for none. The empty phrase is the text without a prompt."""
    if prompts == NONE:
        return ("",)
    if not isinstance(prompts, str):
        return tuple(prompts)
    if prompts in SETS:
        file = resources.files("metrist.metrics.likelihood") / "prompts" / f"{prompts}.txt"
        return _lines(file.read_text(encoding="utf-8"))
    return _from_file(prompts)


def prompt_facts(prompts: str | Sequence[str]) -> Mapping[str, str]:
    """How many phrases a named set has, and their hash: a name does not say which they are."""
    if prompts == NONE or not isinstance(prompts, str):
        return {}
    phrases = read_phrases(prompts)
    digest = hashlib.sha256("\n".join(phrases).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return {"prompts": f"{len(phrases)} {digest}"}


def insert_phrase(condition: str, target: str, phrase: str, side: Side) -> tuple[str, str]:
    """The pair with the phrase in its place."""
    if not phrase:
        return condition, target
    if side == "condition":
        return f"{condition} {phrase},", target
    return condition, f"{phrase}, {target}"


def _from_file(path: str) -> tuple[str, ...]:
    known = (NONE, *SETS)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as fault:
        raise SpecError(
            f"prompts must be {', '.join(map(repr, known))}, a list of phrases or a file with one phrase a line; "
            f"{path!r} cannot be read ({fault.strerror}){did_you_mean(path, known)}"
        ) from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: prompts must be a text file in UTF-8 with one phrase a line") from None
    phrases = _lines(text)
    if not phrases:
        raise SpecError(f"{path}: wanted one phrase a line, found none")
    return phrases


def _lines(text: str) -> tuple[str, ...]:
    stripped = (line.strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in stripped if line and not line.startswith("#")))


# Asks a likelihood model about many pairs of texts and keeps one number of each: the mean of its tokens.


Counts = NDArray[np.int64]
TextPair = tuple[str, str]
#: Gives each token of a target its weight, from the target and the numbers of its tokens.
Weigh = Callable[[str, NDArray[np.int64]], Numbers]

#: Pairs, and characters of text, that are asked about at once. The model shares the work of equal conditions within one
#: question, so pairs with the same condition are asked together; a bound is kept because answers hold every token.
MOST_PAIRS = 1 << 15
MOST_TEXT = 1 << 26


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PairScores:
    """One entry per pair: the weighted mean log-probability of the target's tokens (NaN for a pair with a failure), and
    the tokens cut from the condition and from the target. `readings` has the tokens' own values where these were
    asked for."""

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
    """The answers to all pairs, in their order. Without `weigh` every token weighs the same."""
    answers = PairScores(
        values=np.full(len(pairs), np.nan),
        condition_cut=np.zeros(len(pairs), np.int64),
        target_cut=np.zeros(len(pairs), np.int64),
    )
    for at in _questions(pairs):
        found = model.log_probs([pairs[i] for i in at], max_tokens)
        targets = [pairs[i][1] for i in at]
        _keep(answers, at, found, _means(found, targets, weigh))
        if tokens:
            for n, i in enumerate(at):
                logprobs = [round(float(one), 5) for one in found.of(n)]
                answers.readings[i] = model.pieces(pairs[i][1], max_tokens), logprobs
    return answers


def _questions(pairs: Sequence[TextPair]) -> Iterator[list[int]]:
    """The numbers of the pairs that are asked about at once: those of one condition stand together."""
    together: dict[str, list[int]] = {}
    for i, (condition, _) in enumerate(pairs):
        together.setdefault(condition, []).append(i)
    held: list[int] = []
    text = 0
    for condition, members in together.items():
        text += len(condition)
        for i in members:
            held.append(i)
            text += len(pairs[i][1])
            if len(held) == MOST_PAIRS or text > MOST_TEXT:
                yield held
                held, text = [], 0
    if held:
        yield held


def _means(found: Likelihoods, targets: Sequence[str], weigh: Weigh | None) -> Numbers:
    """Each pair's weighted mean; NaN where there is no token, or none that weighs anything."""
    starts = found.starts
    logprobs = found.logprobs.astype(np.float64)
    if weigh is None:
        return _ratio(_sums(logprobs, starts), np.diff(starts).astype(np.float64))
    spans = [found.tokens[starts[n] : starts[n + 1]] for n in range(len(found))]
    weights = [weigh(target, span) for target, span in zip(targets, spans, strict=True)]
    flat = np.concatenate(weights) if weights else np.empty(0)
    return _ratio(_sums(flat * logprobs, starts), _sums(flat, starts))


def _sums(numbers: Numbers, starts: Counts) -> Numbers:
    sums = np.zeros(len(starts) - 1)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled):
        # An empty stretch would be given its neighbour's first number.
        sums[filled] = np.add.reduceat(numbers, starts[filled])
    return sums


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    ratio: Numbers = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)
    return ratio


def _keep(answers: PairScores, at: Sequence[int], found: Likelihoods, means: Numbers) -> None:
    answers.condition_cut[at] = found.condition_cut
    answers.target_cut[at] = found.target_cut
    for n in np.flatnonzero(~np.isfinite(means)).tolist():
        nothing = "no token of the text carries any weight"
        odd = "the model holds a token of the text for impossible" if np.isinf(means[n]) else nothing
        answers.failures[at[n]] = found.failures.get(n, odd)
    answers.values[at] = np.where(np.isfinite(means), means, np.nan)


# The scorings behind a shard's scores: each pair of texts, with each prompt, in each window of a long condition.

#
# A cell is one pair with one prompt; it has one scoring, or several where its condition is read in windows.


#: What to do with a condition that is too long: cut it, or read it in windows and take the best or the mean of them.
Long = Literal["truncate", "max", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the texts of a pair. `windows` gives the pieces in which a condition is read, from the
    condition and what will be put around it."""

    phrases: tuple[str, ...]
    side: Side
    condition_prefix: str
    target_prefix: str
    windows: Callable[[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layout:
    """All scorings, cell after cell: way after way, in it pair after pair, in it prompt after prompt. Cell c has the
    scorings `starts[c]:starts[c + 1]`."""

    asked: TextPairs
    phrases: tuple[str, ...]
    texts: list[TextPair]
    starts: Counts

    def cells(self, answers: PairScores, long: Long) -> Numbers:
        """The cells' values, of shape (ways, pairs, prompts); 0 where a scoring failed."""
        shape = len(self.asked.ways), self.asked.size, len(self.phrases)
        values = np.nan_to_num(answers.values)
        counts = np.diff(self.starts)
        if len(counts) and counts.max() > 1:
            put_together = np.maximum if long == "max" else np.add
            values = put_together.reduceat(values, self.starts[:-1])
            values = values if long == "max" else values / counts
        return values.reshape(shape)

    def failures(self, answers: PairScores) -> dict[int, str]:
        """Why records could not be scored, by their place in `asked.able`; of several reasons the first."""
        owners = self._owners()
        return {int(owners[i]): answers.failures[i] for i in sorted(answers.failures, reverse=True)}

    def cut(self, answers: PairScores) -> Numbers:
        """Per record in `asked.able`, the tokens left out of its texts, each text counted once."""
        most: dict[tuple[int, str], int] = {}
        owners, pairs = self._owners(), [pair for listed in self.asked.pairs for pair in listed]
        cells = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        for side, counts in enumerate((answers.condition_cut, answers.target_cut)):
            for i in np.flatnonzero(counts).tolist():
                text = pairs[cells[i] // len(self.phrases)][side]
                key = int(owners[i]), text
                most[key] = max(most.get(key, 0), int(counts[i]))
        found = np.zeros(len(self.asked.able))
        for (record, _), count in most.items():
            found[record] += count
        return found

    def most_windows(self) -> Numbers:
        """Per record in `asked.able`, in how many windows its longest condition is read."""
        found = np.zeros(len(self.asked.able))
        np.maximum.at(found, self._owners_of_cells(), np.diff(self.starts))
        return found

    def readings(self, answers: PairScores) -> Mapping[int, list[dict[str, Any]]]:
        """Per record in `asked.able`, every scoring's tokens with their log-probabilities."""
        found: dict[int, list[dict[str, Any]]] = {}
        owners = self._owners_of_cells()
        for cell in range(len(self.starts) - 1):
            way, rest = divmod(cell, self.asked.size * len(self.phrases))
            pair, prompt = divmod(rest, len(self.phrases))
            for number, i in enumerate(range(self.starts[cell], self.starts[cell + 1])):
                said = {**self._names(way, pair, prompt), **({"window": number + 1} if self._split(cell) else {})}
                pieces, logprobs = answers.readings[i]
                found.setdefault(int(owners[cell]), []).append({**said, "pieces": pieces, "logprobs": logprobs})
        return found

    def _names(self, way: int, pair: int, prompt: int) -> dict[str, Any]:
        names: dict[str, Any] = self.asked.ways[way]._asdict()
        record = int(np.searchsorted(self.asked.starts, pair, side="right")) - 1
        if self.asked.starts[record + 1] - self.asked.starts[record] > 1:
            names["reference"] = int(pair - self.asked.starts[record]) + 1
        return {**names, "prompt": self.phrases[prompt]} if self.phrases[prompt] else names

    def _split(self, cell: int) -> bool:
        return bool(self.starts[cell + 1] - self.starts[cell] > 1)

    def _owners_of_cells(self) -> Counts:
        pairs = np.tile(self.asked.records_of_pairs(), len(self.asked.ways))
        return np.repeat(pairs, len(self.phrases))

    def _owners(self) -> Counts:
        """For each scoring, which of the records in `asked.able` it belongs to."""
        return np.repeat(self._owners_of_cells(), np.diff(self.starts))


def lay_out(asked: TextPairs, frame: Frame) -> Layout:
    """The scorings of all pairs."""
    texts: list[TextPair] = []
    starts = [0]
    # What a prompt and a prefix add to an empty condition is what they take from the room of a window.
    added = [
        (phrase, frame.condition_prefix + insert_phrase("", "", phrase, frame.side)[0]) for phrase in frame.phrases
    ]
    for condition, target in (pair for listed in asked.pairs for pair in listed):
        for phrase, around in added:
            for window in frame.windows(condition, around):
                given, wanted = insert_phrase(window, target, phrase, frame.side)
                texts.append((frame.condition_prefix + given, frame.target_prefix + wanted))
            starts.append(len(texts))
    return Layout(asked=asked, phrases=frame.phrases, texts=texts, starts=np.array(starts, np.int64))
