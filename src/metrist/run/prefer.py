"""`prefer`: choose between two outputs of an item. Pairs are formed here and go through the pipeline of `score`."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, agree, did_you_mean, format_count
from metrist.io import Reader, atomic_write, read_records
from metrist.io.reader import check_keywords
from metrist.io.writer import check_distinct, json_line
from metrist.llm.estimate import CallEstimate, estimate_calls
from metrist.metrics.base import PairShard, calls_llm
from metrist.metrics.comparator import REVERSED, Comparator, Judgment, build_comparator
from metrist.metrics.llm_metric import describe_usage, merge_usage
from metrist.metrics.registry import MetricList, build_all
from metrist.ratings import Choice, Preference
from metrist.records import Pair, Record
from metrist.report.progress import Progress, shows_progress
from metrist.report.scores import build_comparator_table, build_win_table, describe_failures, summarize_reasons
from metrist.report.tables import Table
from metrist.run.results import DRAWS, import_frames
from metrist.run.scoring import open_pipeline, resolve_destination, writes_remotely
from metrist.run.tasks import SHARD_SIZE, Executor, cut_pairs, judge_shard
from metrist.runtime import Runtime
from metrist.settings import LLMSettings, ModelSettings, checks_types, select_arguments
from metrist.stats.controls import fit_controlled
from metrist.stats.preferences import (
    CHOICES,
    FIRST,
    SECOND,
    TIE,
    Preferences,
    accuracy,
    bradley_terry,
    chance_accuracy,
    macro_f1,
    win_rates,
)
from metrist.stats.resampling import add_intervals, pooled_interval

_SIGNS: Mapping[Choice, int] = {"first": FIRST, "second": SECOND, "tie": TIE}
#: An item and two of its systems.
Key = tuple[str, str, str]
_Floats = NDArray[np.float64]
_Codes = NDArray[np.intp]
PairChoice = Literal["given", "all"]


class WinRate(NamedTuple):
    """A system's share of its judged pairs that it won, a tie being half a win, with its interval over items. `worst`
    and `best` are what it would be if the system had lost or won all pairs that failed. `length_free` is that
    of the comparator's choices if length did not count, or else what is expected where the two outputs are equally long
    (`metrist.stats.controls`), with its interval. `strength` is Bradley and Terry's, on the log scale, with its
    standard error. What the choices do not determine is NaN."""

    comparator: str
    system: str
    value: float
    low: float
    high: float
    won: int
    tied: int
    lost: int
    failed: int
    worst: float
    best: float
    strength: float
    error: float
    length_free: float = math.nan
    length_free_low: float = math.nan
    length_free_high: float = math.nan


class ComparatorSummary(NamedTuple):
    """How a comparator chose: shares of the pairs that it judged. `flips` are choices that changed with the order in
    which the two were shown, NaN for a comparator that does not know."""

    comparator: str
    pairs: int
    judged: int
    ties: float
    flips: float
    flips_low: float
    flips_high: float
    usage: Mapping[str, Any]


class HumanAgreement(NamedTuple):
    """How often a comparator chose as most people did, on the pairs that both judged; `chance` is a coin's accuracy."""

    comparator: str
    aspect: str
    pairs: int
    value: float
    low: float
    high: float
    chance: float
    f1: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreferenceResults:
    """The judgments of a call of `prefer`, by the comparator's label; one per pair of `keys` (item, first system,
    second system). `human` has what most people chose, by aspect, None where nobody chose. `lengths` are the characters
    of the outputs of each pair."""

    keys: Sequence[Key]
    comparators: tuple[Comparator, ...]
    judgments: Mapping[str, Sequence[Judgment]]
    signatures: Mapping[str, str]
    human: Mapping[str, Sequence[Choice | None]]
    lengths: Sequence[tuple[int, int]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"PreferenceResults({format_count(len(self), 'pair')}, comparators: {', '.join(self.judgments)})"

    @property
    def systems(self) -> tuple[str, ...]:
        """All systems of the pairs, in order of appearance."""
        return tuple(dict.fromkeys(system for _, *both in self.keys for system in both))

    def win_rates(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[WinRate]:
        """Each system's win rate by each comparator."""
        item, first, second = self._codes()
        count, rows = len(self.systems), list[WinRate]()
        longer = np.diff(np.log1p(np.array(self.lengths, np.float64).reshape(-1, 2)[:, ::-1]))
        for comparator, judgments in self.judgments.items():
            choices = [judgment.preference for judgment in judgments]
            at = np.array([i for i, choice in enumerate(choices) if choice is not None], dtype=np.intp)
            signs = np.array([_SIGNS[choice] for choice in choices if choice is not None], dtype=np.intp)
            preferences = Preferences.of(item[at], first[at], second[at], signs, count)
            rates = win_rates(preferences, draws, np.random.default_rng(seed), confidence)
            try:
                result = bradley_terry(preferences)
                strength, error = result.strength.tolist(), result.error.tolist()
            except RunError:  # A system that never lost has no finite strength.
                strength = error = [math.nan] * count
            without = [judgments[i].length_free for i in at]
            length_free = _free_of_length(preferences, without, longer[at], draws, seed, confidence)
            failed = np.delete(np.stack([first, second], axis=1), at, axis=0)
            failures = np.bincount(failed.ravel(), minlength=count).tolist()
            for code, system in enumerate(self.systems):
                as_first = preferences.choice[preferences.first == code]
                own = np.concatenate([as_first, -preferences.choice[preferences.second == code]])
                won, tied, lost = (int(np.count_nonzero(own == sign)) for sign in (FIRST, TIE, SECOND))
                points = won + tied / 2
                games = won + tied + lost + failures[code] or math.nan
                rows.append(
                    WinRate(
                        comparator=comparator,
                        system=system,
                        value=float(rates.value[code]),
                        low=float(rates.low[code]),
                        high=float(rates.high[code]),
                        won=won,
                        tied=tied,
                        lost=lost,
                        failed=failures[code],
                        worst=points / games,
                        best=(points + failures[code]) / games,
                        strength=strength[code],
                        error=error[code],
                        length_free=length_free[0][code],
                        length_free_low=length_free[1][code],
                        length_free_high=length_free[2][code],
                    )
                )
        return rows

    def summaries(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[ComparatorSummary]:
        """How each comparator chose."""
        item, _, _ = self._codes()
        rows = []
        for comparator, judgments in self.judgments.items():
            choices = [judgment.preference for judgment in judgments if judgment.preference is not None]
            known = [(i, judgment.flipped) for i, judgment in enumerate(judgments) if judgment.flipped is not None]
            flips = np.array([[flipped, 1.0] for _, flipped in known], dtype=np.float64).reshape(-1, 2)
            rng = np.random.default_rng(seed)
            low, high = _by_item(flips, item[[i for i, _ in known]], draws, rng, confidence, _pool_share)
            rows.append(
                ComparatorSummary(
                    comparator=comparator,
                    pairs=len(self),
                    judged=len(choices),
                    ties=choices.count("tie") / len(choices) if choices else math.nan,
                    flips=float(flips[:, 0].mean()) if len(flips) else math.nan,
                    flips_low=low,
                    flips_high=high,
                    usage=merge_usage(judgment.usage for judgment in judgments),
                )
            )
        return rows

    def agreement(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[HumanAgreement]:
        """How often each comparator agreed with people, by each aspect that they chose by."""
        item, _, _ = self._codes()
        rows = []
        for comparator, aspect in product(self.judgments, self.human):
            both = [
                (i, CHOICES.index(human), CHOICES.index(judgment.preference))
                for i, (human, judgment) in enumerate(zip(self.human[aspect], self.judgments[comparator], strict=True))
                if human is not None and judgment.preference is not None
            ]
            cells = np.zeros((len(both), 9))
            cells[np.arange(len(both)), [human * 3 + own for _, human, own in both]] = 1.0
            table = cells.sum(axis=0).reshape(1, 3, 3)
            rng = np.random.default_rng(seed)
            low, high = _by_item(cells, item[[i for i, *_ in both]], draws, rng, confidence, _pool_accuracy)
            shares = [float(share(table)[0]) for share in (accuracy, chance_accuracy, macro_f1)]
            rows.append(HumanAgreement(comparator, aspect, len(both), shares[0], low, high, *shares[1:]))
        return rows

    def table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """Win rates of systems."""
        about = f"{confidence:.0%} intervals: {draws:,} bootstrap resamples of the items, seed {seed}"
        notes = [about, *self.notes]
        for metric in self.comparators:
            notes += metric.observations(self.judgments[metric.label])
        by_label = {metric.label: metric for metric in self.comparators}
        for text, judgments in self.judgments.items():
            reasons = [judgment.failure for judgment in judgments if judgment.failure is not None]
            if reasons:
                summary = summarize_reasons(reasons)
                notes.append(f"{text}: {len(reasons):,} of {format_count(len(self), 'pair')} not judged, {summary}")
            notes += describe_usage(text, merge_usage(judgment.usage for judgment in judgments), by_label[text])
        return build_win_table(self.win_rates(draws, seed, confidence), notes)

    def comparator_table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """How each comparator chose, and how often it agreed with people."""
        return build_comparator_table(self.summaries(draws, seed, confidence), self.agreement(draws, seed, confidence))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per pair and comparator, in that order, as in a file of preferences. Of the optional fields, a
        row has those that are not empty."""
        for number, (item, first, second) in enumerate(self.keys):
            for comparator, judgments in self.judgments.items():
                judgment = judgments[number]
                optional = {
                    "flipped": judgment.flipped,
                    "shown": list(judgment.shown) or None,
                    "raws": list(judgment.raws) or None,
                    "failure_kind": None if judgment.failure is None else judgment.failure.kind,
                    "incomplete": judgment.incomplete or None,
                }
                yield {
                    "item": item,
                    "systems": [first, second],
                    "comparator": comparator,
                    "choice": judgment.preference,
                    "explanation": judgment.explanation,
                    "failure": judgment.failure,
                    **{name: value for name, value in optional.items() if value is not None},
                }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .jsonl file (.gz, .xz, .zst), whole or not at all."""
        with atomic_write(path) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows())

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        return import_frames("pandas").DataFrame(list(self.rows()))

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def _codes(self) -> tuple[_Codes, _Codes, _Codes]:
        """Item, first and second system of each pair, as numbers."""
        items = {item: i for i, item in enumerate(dict.fromkeys(item for item, *_ in self.keys))}
        systems = {system: i for i, system in enumerate(self.systems)}
        rows = [(items[item], systems[first], systems[second]) for item, first, second in self.keys]
        item, first, second = np.array(rows, dtype=np.intp).reshape(-1, 3).T
        return item, first, second


def _free_of_length(
    preferences: Preferences,
    choices: Sequence[Choice | None],
    longer: _Floats,
    draws: int,
    seed: int,
    confidence: float,
) -> list[list[float]]:
    """The systems' win rates if length does not count, and the limits of their intervals: by the `choices` of a
    comparator that knows them, otherwise those expected where both outputs are equally long. `longer` is by how much
    the first output of each pair is longer than the second, on the log scale."""
    if choices and None not in choices:
        signs = np.array([_SIGNS[choice] for choice in choices if choice is not None], dtype=np.float64)
        rates = win_rates(replace(preferences, choice=signs), draws, np.random.default_rng(seed), confidence)
        return [rates.value.tolist(), rates.low.tolist(), rates.high.tolist()]
    try:
        controlled = fit_controlled(preferences, longer)
    except RunError:  # Length decides all choices or none, or the strengths are not determined either.
        return [[math.nan] * preferences.systems] * 3
    _, resampled, _ = controlled.resample(draws, np.random.default_rng(seed))
    items = len(np.unique(preferences.item))
    limits: list[list[float]] = add_intervals(controlled.win_rates, resampled, confidence, items).tolist()
    return limits


def _pool_share(sums: _Floats) -> _Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        share: _Floats = sums[..., 0] / sums[..., 1]
    return share


def _pool_accuracy(sums: _Floats) -> _Floats:
    return accuracy(sums.reshape(*sums.shape[:-1], 3, 3))


def _by_item(
    rows: _Floats, item: _Codes, draws: int, rng: np.random.Generator, confidence: float, pool: Callable[[Any], Any]
) -> tuple[float, float]:
    """The bootstrap interval of pooled rows; the pairs of an item are drawn together."""
    if not len(rows):
        return math.nan, math.nan
    _, at = np.unique(item, return_inverse=True)
    summed = np.zeros((int(at.max()) + 1, rows.shape[1]))
    np.add.at(summed, at.reshape(-1), rows)
    return pooled_interval(summed, pool, draws, rng, confidence)


@checks_types
@writes_remotely
@shows_progress("comparing", "pairs")
def prefer(
    records: Any,
    comparators: MetricList,
    *,
    pairs: PairChoice | None = None,
    baseline: str | None = None,
    limit_per_item: int | None = None,
    executor: str | Executor | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    shard_size: int | None = None,
    texts: bool = True,
    runtime: Runtime | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    **reading: Any,
) -> PreferenceResults:
    """Choose between two outputs of an item with comparators: `judge_pair(llm=…)`, or any metric, whose better score
    wins.

    `records`, `reading`, `executor` and the arguments from `runtime` to `retry_failed` are as for `score`.
    `pairs` is 'given' (the rows with two outputs) or 'all' (each two systems of an item); by default those given, if
    there are any. `baseline` compares every other system with this one. `out` is a .jsonl file, which is written whole
    or not at all, or a folder, which a second call resumes.
    """
    if reading:
        check_keywords(prefer, reading)
    runtime = (runtime or Runtime.current()).override(
        **select_arguments(ModelSettings, locals()), **select_arguments(LLMSettings, locals())
    )
    built = _build_comparators(comparators)
    reader = read_records(records, **reading)
    file, store = resolve_destination(out, [".jsonl"])
    if file:
        check_distinct(file, reader.names)
    paired = pair_records(reader, pairs, baseline, limit_per_item)
    pipeline = open_pipeline(
        built,
        runtime,
        store,
        texts=texts,
        executor=executor,
        shard_size=shard_size,
        progress=progress,
        total=len(paired.pairs),
    )
    blocks = pipeline.run(paired.pairs)
    judgments: dict[str, list[Judgment]] = {metric.label: blocks[metric.text] for metric in built}
    signatures = {metric.label: pipeline.signatures[metric.text] for metric in built}
    results = PreferenceResults(
        keys=[(pair.first.item, pair.first.system, pair.second.system) for pair in paired.pairs],
        comparators=built,
        judgments=judgments,
        signatures=signatures,
        human=paired.human,
        lengths=[(len(pair.first.output), len(pair.second.output)) for pair in paired.pairs],
        notes=(*paired.notes, *pipeline.notes),
    )
    if file:
        results.write(file)
    if store:
        # One file per comparator, which `read_records` and `metrist meta --preferences` read. Resuming uses the tables.
        from metrist.run.manifest import EXPORTS, folder_name

        for comparator in built:
            rows = (row for row in results.rows() if row["comparator"] == comparator.label)
            data = "".join(f"{json_line(row)}\n" for row in rows).encode("utf-8", "backslashreplace")
            store.write_bytes(f"{EXPORTS}/{folder_name(comparator.text)}.jsonl", data)
    # A comparator that never chose is a fault of the run. What there is has been written: it shows the reasons.
    for label, block in judgments.items():
        reasons = [judgment.failure for judgment in block if judgment.failure is not None]
        if 1 < len(block) == len(reasons):
            raws = (raw for judgment in block for raw in judgment.raws)
            place = file or (store.name if store else None)
            where = f" (all of it is in {place})" if place else ""
            raise RunError(f"{describe_failures(label, 'pairs', reasons, raws)}{where}", code="metric_failed")
    return results


def estimate_preferences(
    records: Any,
    comparators: MetricList,
    *,
    pairs: PairChoice | None = None,
    baseline: str | None = None,
    limit_per_item: int | None = None,
    **reading: Any,
) -> CallEstimate:
    """The LLM requests that `prefer` with the same arguments would make. Nothing is sent and nothing written;
    comparators that call no LLM are left out."""
    asking = [comparator for comparator in _build_comparators(comparators) if calls_llm(comparator)]
    paired = pair_records(read_records(records, **reading), pairs, baseline, limit_per_item)
    with estimate_calls() as result:
        for shard in cut_pairs(paired.pairs, SHARD_SIZE):
            for comparator in asking:
                result.metric = comparator.label
                judge_shard(comparator, PairShard(shard))
    return result


def _build_comparators(comparators: MetricList) -> tuple[Comparator, ...]:
    built = {metric.text: metric for metric in map(build_comparator, build_all(comparators))}
    if not built:
        raise RunError(
            "no comparator was requested: name at least one, such as 'judge_pair(llm=…)' or 'chrf'",
            code="missing_value",
        )
    return tuple(built.values())


# ---- Pairs ----


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedRecords:
    """Pairs in the order of their items and systems in the data. `human` has, per aspect, what most people chose of
    each pair: a tie where they are undecided, None where nobody chose."""

    pairs: tuple[Pair, ...]
    human: Mapping[str, tuple[Choice | None, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def pair_records(
    reader: Reader, which: PairChoice | None = None, baseline: str | None = None, limit_per_item: int | None = None
) -> PairedRecords:
    """The pairs of the data. `which` is 'given' for the rows with two outputs, 'all' for all systems of an item; by
    default those given, if there are any and no baseline is named."""
    rows = _Rows(reader)
    if which not in (None, "given", "all"):
        raise RunError(f"pairs must be 'given' or 'all', got {which!r}", code="invalid_value")
    if which == "given" and baseline is not None:
        raise RunError(
            "the pairs given in the data have no baseline: ask for `pairs='all'`, or leave `baseline` out",
            code="invalid_value",
        )
    if which == "given" and not rows.given:
        raise RunError(
            "the data give no pairs: rows with 'systems' and 'outputs' of two, or `pairs='all'`", code="no_data"
        )
    use_given = which == "given" or (which is None and baseline is None and bool(rows.given))
    keys = rows.given if use_given else rows.combine(baseline)
    limited = _limit(keys, limit_per_item)
    pairs = tuple(Pair(first=rows.records[i, a], second=rows.records[i, b]) for i, a, b in limited)
    if not pairs:
        raise RunError("there is nothing to compare: no item has outputs of two systems", code="no_data")
    human = {aspect: tuple(map(votes.choice, limited)) for aspect, votes in rows.votes.items()}
    notes = [*rows.notes]
    if len(limited) < len(keys):
        notes.append(
            f"{len(limited):,} of {format_count(len(keys), 'pair')} {agree(len(limited), 'was', 'were')} "
            "compared, as `limit_per_item` asks"
        )
    return PairedRecords(
        pairs=pairs, human={aspect: choices for aspect, choices in human.items() if any(choices)}, notes=tuple(notes)
    )


@dataclass(eq=False)
class MajorityVote:
    """What people chose by one aspect."""

    _by_pair: dict[Key, Counter[Choice]] = field(default_factory=dict)

    def add(self, preference: Preference) -> None:
        key = (preference.item, preference.first, preference.second)
        self._by_pair.setdefault(key, Counter())[preference.choice] += 1

    def choice(self, key: Key) -> Choice | None:
        """The choice of the majority, whichever output each person saw first."""
        item, first, second = key
        turned = self._by_pair.get((item, second, first), Counter[Choice]())
        votes = self._by_pair.get(key, Counter[Choice]()) + Counter({REVERSED[c]: n for c, n in turned.items()})
        ranked = votes.most_common(2)
        if not ranked:
            return None
        return "tie" if len(ranked) == 2 and ranked[0][1] == ranked[1][1] else ranked[0][0]


class _Rows:
    """All rows of the input, in memory: the outputs of an item may be far apart."""

    def __init__(self, reader: Reader) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.votes: dict[str, MajorityVote] = {}
        shown: dict[tuple[str, frozenset[str]], Key] = {}
        for entry in reader.entries():
            self.records.update({(record.item, record.system): record for record in entry.new})
            if len(entry.keys) == 2:
                (item, first), (_, second) = entry.keys
                # Each pair once, in the order in which it was first shown.
                shown.setdefault((item, frozenset((first, second))), (item, first, second))
            for preference in entry.preferences:
                self.votes.setdefault(preference.aspect, MajorityVote()).add(preference)
        if not self.records:
            raise RunError(f"{', '.join(reader.names) or 'the input'}: no row has an output", code="no_data")
        self.given = [
            (item, first, second)
            for item, first, second in shown.values()
            if (item, first) in self.records and (item, second) in self.records
        ]
        self._by_item: dict[str, list[str]] = {}
        order = {system: i for i, system in enumerate(dict.fromkeys(system for _, system in self.records))}
        for item, system in self.records:
            self._by_item.setdefault(item, []).append(system)
        for systems in self._by_item.values():
            systems.sort(key=order.__getitem__)
        self._systems = tuple(order)
        alone = sum(len(systems) < 2 for systems in self._by_item.values())
        self.notes = [*reader.remarks, *(() if reader.announce else reader.skipped.describe())]
        if alone:
            items = f"{alone:,} of {format_count(len(self._by_item), 'item')} {agree(alone, 'has', 'have')}"
            self.notes.append(f"{items} an output of one system only, and no pair")

    def combine(self, baseline: str | None) -> list[Key]:
        """All pairs of each item's systems, or those with the baseline, which then comes first."""
        if baseline is None:
            return [(item, *two) for item, systems in self._by_item.items() for two in combinations(systems, 2)]
        if baseline not in self._systems:
            known = ", ".join(self._systems[:10])
            raise RunError(
                f"no system named {baseline!r}{did_you_mean(baseline, self._systems)} (there are {known})",
                code="unknown_name",
            )
        return [
            (item, baseline, system)
            for item, systems in self._by_item.items()
            if baseline in systems
            for system in systems
            if system != baseline
        ]


def _limit(keys: Sequence[Key], limit: int | None) -> list[Key]:
    """At most `limit` pairs per item. A hash of their names picks them, so that no system is always among them and the
    same pairs are picked every time."""
    if limit is None:
        return list(keys)
    if limit < 1:
        raise RunError(f"limit_per_item must be at least 1, got {limit}", code="invalid_value")

    def hash_names(key: Key) -> bytes:
        return hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest()

    by_item: dict[str, list[Key]] = {}
    for key in sorted(keys, key=hash_names):
        by_item.setdefault(key[0], []).append(key)
    kept = {key for group in by_item.values() for key in group[:limit]}
    return [key for key in keys if key in kept]
