"""`prefer`: choose between two outputs of an item. Pairs are formed here and go through the pipeline of `score`."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from metrist.errors import RunError, agree, did_you_mean, format_count
from metrist.io import Reader, read_records
from metrist.io.reader import check_keywords
from metrist.io.writer import check_distinct, json_line
from metrist.llm.estimate import CallEstimate, estimate_calls
from metrist.metrics.base import PairShard, calls_llm
from metrist.metrics.comparator import REVERSED, Comparator, Judgment, build_comparator
from metrist.metrics.registry import MetricList, build_all
from metrist.ratings import Choice, Preference
from metrist.records import Pair, Record
from metrist.report.progress import Progress, shows_progress
from metrist.run.flat_file import writes_remotely
from metrist.run.preference_results import Key, PreferenceResults, judgment_row, pair_row
from metrist.run.results import describe_failures
from metrist.run.scoring import open_pipeline, resolve_destination
from metrist.run.tasks import SHARD_SIZE, Executor, cut_pairs, judge_shard
from metrist.runtime import Runtime
from metrist.settings import LLMSettings, ModelSettings, select_arguments

if TYPE_CHECKING:
    from metrist.run.store import Store

PairChoice = Literal["given", "all"]


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
        notes=(*paired.notes, *pipeline.notes),
    )
    if file:
        results.write(file)
    if store:
        _export_judgments(store, paired.pairs, results)
    # A comparator that never chose is a fault of the run. What there is has been written: it shows the reasons.
    for label, block in judgments.items():
        reasons = [judgment.failure for judgment in block if judgment.failure is not None]
        if 1 < len(block) == len(reasons):
            raws = (raw for judgment in block for raw in judgment.raws)
            place = file or (store.name if store else None)
            where = f" (all of it is in {place})" if place else ""
            raise RunError(f"{describe_failures(label, 'pairs', reasons, raws)}{where}")
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
        raise RunError("no comparator was requested: name at least one, such as 'judge_pair(llm=…)' or 'chrf'")
    return tuple(built.values())


def _export_judgments(store: Store, pairs: Sequence[Pair], results: PreferenceResults) -> None:
    """Write each comparator's judgments as one file, which `read_records` and `metrist meta --preferences` read.
    Resuming uses the tables of the run, not these files."""
    from metrist.run.manifest import EXPORTS, folder_name

    for comparator in results.comparators:
        label = comparator.label
        rows = zip(pairs, results.judgments[label], strict=True)
        lines = (json_line({**pair_row(pair), **judgment_row(label, judgment)}) for pair, judgment in rows)
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        store.write_bytes(f"{EXPORTS}/{folder_name(comparator.text)}.jsonl", data)


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
        raise RunError(f"pairs must be 'given' or 'all', got {which!r}")
    if which == "given" and baseline is not None:
        raise RunError("the pairs given in the data have no baseline: ask for `pairs='all'`, or leave `baseline` out")
    if which == "given" and not rows.given:
        raise RunError("the data give no pairs: rows with 'systems' and 'outputs' of two, or `pairs='all'`")
    use_given = which == "given" or (which is None and baseline is None and bool(rows.given))
    keys = rows.given if use_given else rows.combine(baseline)
    limited = _limit(keys, limit_per_item)
    pairs = tuple(Pair(first=rows.records[i, a], second=rows.records[i, b]) for i, a, b in limited)
    if not pairs:
        raise RunError("there is nothing to compare: no item has outputs of two systems")
    human = {aspect: tuple(map(votes.choice, limited)) for aspect, votes in rows.votes.items()}
    notes = [*rows.notes]
    if len(limited) < len(keys):
        notes.append(
            f"{len(limited):,} of {format_count(len(keys), 'pair')} {agree(len(limited), 'was', 'were')} "
            "compared, as --limit-per-item asks"
        )
    return PairedRecords(
        pairs=pairs, human={aspect: choices for aspect, choices in human.items() if any(choices)}, notes=tuple(notes)
    )


class Votes:
    """What people chose by one aspect."""

    def __init__(self) -> None:
        self._by_pair: dict[Key, Counter[Choice]] = {}

    def add(self, preference: Preference) -> None:
        key = (preference.item, preference.first, preference.second)
        self._by_pair.setdefault(key, Counter())[preference.choice] += 1

    def choice(self, key: Key) -> Choice | None:
        """What most chose, whichever of the two they saw first."""
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
        self.votes: dict[str, Votes] = {}
        shown: dict[tuple[str, frozenset[str]], Key] = {}
        for entry in reader.entries():
            self.records.update({(record.item, record.system): record for record in entry.new})
            if len(entry.keys) == 2:
                (item, first), (_, second) = entry.keys
                # Each pair once, in the order in which it was first shown.
                shown.setdefault((item, frozenset((first, second))), (item, first, second))
            for preference in entry.preferences:
                self.votes.setdefault(preference.aspect, Votes()).add(preference)
        if not self.records:
            raise RunError(f"{', '.join(reader.names) or 'the input'}: no row has an output")
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
            raise RunError(f"no system named {baseline!r}{did_you_mean(baseline, self._systems)} (there are {known})")
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
        raise RunError(f"limit_per_item must be at least 1, got {limit}")

    def hash_names(key: Key) -> bytes:
        return hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest()

    by_item: dict[str, list[Key]] = {}
    for key in sorted(keys, key=hash_names):
        by_item.setdefault(key[0], []).append(key)
    kept = {key for group in by_item.values() for key in group[:limit]}
    return [key for key in keys if key in kept]
