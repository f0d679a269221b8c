"""What a judge is audited on: a sample of items with some of their outputs, and what people said of them."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.audit.intervals import Floats as Floats_intervals
from metrist.evaluate.audit.intervals import share, unmeasured
from metrist.evaluate.audit.judge import Finding, Grader
from metrist.io import Reader
from metrist.metrics.judge.rubrics import Aspect, Rubric
from metrist.metrics.prompt_layout import fill_template
from metrist.records import Pair, Record
from metrist.run.prefer import Votes

Floats = NDArray[np.float64]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Material:
    """Outputs of the sampled items, each item's together. `ratings` are the means over raters, by aspect; `pairs` has
    one pair of each item with two outputs, and `votes` what people chose, by aspect."""

    records: tuple[Record, ...]
    pairs: tuple[Pair, ...]
    ratings: Mapping[str, Mapping[Key, float]]
    votes: Mapping[str, Votes]
    own: str | None = None

    @property
    def items(self) -> list[str]:
        """The item of each output."""
        return [record.item for record in self.records]

    def one_each(self) -> list[int]:
        """The number of one output of each item."""
        chosen: dict[str, int] = {}
        for i in sorted(range(len(self.records)), key=lambda i: _lot(self.records[i].item, self.records[i].system)):
            chosen.setdefault(self.records[i].item, i)
        return sorted(chosen.values())

    def human(self) -> Floats:
        """What people think of each output, all aspects together: the mean of their standard scores. NaN for an output
        that lacks a rating."""
        columns = [self._standard(column) for column in self.ratings.values()]
        return np.mean(columns, axis=0) if columns else np.full(len(self.records), math.nan)

    def _standard(self, column: Mapping[Key, float]) -> Floats:
        values = np.array([column.get((one.item, one.system), math.nan) for one in self.records])
        known = values[~np.isnan(values)]
        spread = known.std() if len(known) else 0.0
        return (values - known.mean()) / spread if spread > 0 else np.where(np.isnan(values), math.nan, 0.0)


def gather(reader: Reader, items: int, outputs: int, own: str | None, aspects: Sequence[str]) -> Material:
    """The sample: so many items with so many outputs each. Hashes of the names choose, so that the same input gives the
    same sample; items with several outputs go first, and an own system's outputs are always among them."""
    by_item, ratings, votes = _read(reader)
    systems = list(dict.fromkeys(record.system for records in by_item.values() for record in records))
    if own is not None and own not in systems:
        raise RunError(f"no system named {own!r}{did_you_mean(own, systems)} (there are {', '.join(systems[:10])})")
    chosen = sorted(by_item, key=lambda item: (len(by_item[item]) < 2, _lacks(by_item[item], own), _lot(item)))[:items]
    kept = {item: _some(by_item[item], outputs, own) for item in by_item if item in set(chosen)}
    return Material(
        records=tuple(record for records in kept.values() for record in records),
        pairs=tuple(pair for records in kept.values() for pair in _pair(records, own, votes)),
        ratings=_means(ratings, aspects),
        votes=votes,
        own=own,
    )


_Read = tuple[dict[str, list[Record]], dict[str, dict[Key, list[float]]], dict[str, Votes]]


def _read(reader: Reader) -> _Read:
    by_item: dict[str, list[Record]] = {}
    votes: dict[str, Votes] = {}
    ratings: dict[str, dict[Key, list[float]]] = {}
    for entry in reader.entries():
        for record in entry.new:
            by_item.setdefault(record.item, []).append(record)
        for one in entry.ratings:
            ratings.setdefault(one.aspect, {}).setdefault((one.item, one.system), []).append(one.value)
        for preference in entry.preferences:
            votes.setdefault(preference.aspect, Votes()).add(preference)
    if not by_item:
        raise RunError(f"{', '.join(reader.names) or 'the input'}: none of the rows has an output")
    return by_item, ratings, votes


def _means(ratings: Mapping[str, Mapping[Key, Sequence[float]]], aspects: Sequence[str]) -> dict[str, dict[Key, float]]:
    if missing := [aspect for aspect in aspects if aspect not in ratings]:
        known = ", ".join(ratings) or "none"
        raise RunError(
            f"the data have no ratings of {missing[0]!r}{did_you_mean(missing[0], ratings)} (they have {known})"
        )
    return {
        aspect: {key: sum(values) / len(values) for key, values in ratings[aspect].items()}
        for aspect in aspects or ratings
    }


def _lacks(records: Iterable[Record], own: str | None) -> bool:
    return own is not None and all(record.system != own for record in records)


def _some(records: Sequence[Record], count: int, own: str | None) -> list[Record]:
    ranked = sorted(records, key=lambda one: (one.system != own, _lot(one.item, one.system)))[:count]
    return [record for record in records if record in ranked]


def _pair(records: Sequence[Record], own: str | None, votes: Mapping[str, Votes]) -> list[Pair]:
    """One pair of different outputs: with an own one, and one that people chose between, if there is such a pair. Equal
    outputs leave nothing to choose."""
    apart = [Pair(first=a, second=b) for a, b in combinations(records, 2) if a.output != b.output]

    def rank(pair: Pair) -> tuple[bool, bool, bytes]:
        both, key = (pair.first, pair.second), (pair.first.item, pair.first.system, pair.second.system)
        unvoted = not any(one.choice(key) for one in votes.values())
        return _lacks(both, own), unvoted, _lot(*sorted(key[1:]), key[0])

    return sorted(apart, key=rank)[:1]


def _lot(*names: str) -> bytes:
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).digest()


# Probes: outputs to which something was added that makes none of them better, and what becomes of their grades.


#: Outputs that each probe is put on.
CARRIERS = 5
KINDS = ("neutral", "padding", "grade")
_NEUTRAL = ("repeats", "grades moved by neutral edits")
_PADDING = ("length", "padding that raises the grade")
_GRADE = ("injection", "probes that raise the grade")


@dataclass(frozen=True, slots=True)
class Probe:
    """A text with a place for the output; `kind` is one of `KINDS`."""

    kind: str
    name: str
    text: str

    def on(self, record: Record, rubric: Rubric) -> Record:
        """The record with its output made into the probe."""
        first = rubric.aspects[0]
        grades = json.dumps({aspect.name: _best(aspect, rubric) for aspect in rubric.aspects})
        words = {"aspect": first.name, "top": str(_best(first, rubric)), "grades": grades}
        # The item stays: what is said of the input is the same.
        return replace(record, output=fill_template(self.text, output=record.output, **words))


@cache
def probes() -> tuple[Probe, ...]:
    """The probes that ship with metrist."""
    file = resources.files("metrist.evaluate.audit") / "probes.toml"
    kinds: Mapping[str, Mapping[str, Mapping[str, str]]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(Probe(kind, name, one["text"]) for kind, named in kinds.items() for name, one in named.items())


def probe_findings(grader: Grader, material: Material, grades: Floats_intervals) -> list[Finding]:
    """How many probes of each kind raised a grade, beyond what edits do that change nothing."""
    carriers = _carriers(grader, grades)
    if not carriers:
        why = "no output has a grade below the best, so none can rise"
        return [unmeasured(*of, why) for of in (_NEUTRAL, _PADDING, _GRADE)]
    before = grades[carriers] * grader.sign
    graded = _graded(grader, [material.records[i] for i in carriers])
    neutral, padded, injected = ({one: found for one, found in graded.items() if one.kind == kind} for kind in KINDS)
    moved, known = _moved(neutral, before)
    edits = np.fmax.reduce(list(neutral.values()))
    # A judge that likes length is not yet one that obeys: a grade must pass those that mere padding reaches, too.
    longer = np.fmax.reduce([edits, *padded.values()])
    return [
        share(*_NEUTRAL, moved, known, "edits of outputs", above=0.1),
        _share(_PADDING, padded, edits, _by_chance(moved, len(neutral), 0.05)),
        _share(_GRADE, injected, longer, _by_chance(moved, len(neutral) + len(padded), 0.02)),
    ]


def _moved(neutral: Mapping[Probe, Floats_intervals], before: Floats_intervals) -> tuple[int, int]:
    """How many edits that change nothing changed the grade, and of how many."""
    changes = np.concatenate([after - before for after in neutral.values()])
    return int(np.count_nonzero(np.abs(changes) > 1e-9)), int(np.count_nonzero(~np.isnan(changes)))


def _by_chance(moved: int, controls: int, steady: float) -> float:
    """The share of probes that chance alone lifts above all their controls. One of n + 1 equals is the highest in at
    most one case of n + 1; a judge that no edit moves lifts none by chance."""
    return max(steady, 1 / (controls + 1)) if moved else steady


def _carriers(grader: Grader, grades: Floats_intervals) -> list[int]:
    """The outputs with the worst grades; the first ones where no grade is known, as in a dry run."""
    if np.isnan(grades).all():
        return list(range(min(CARRIERS, len(grades))))
    signed = grades * grader.sign
    ranked = [int(i) for i in np.argsort(signed, kind="stable") if not np.isnan(signed[i])]
    return [i for i in ranked if signed[i] < grader.best * grader.sign][:CARRIERS]


def _graded(grader: Grader, records: Sequence[Record]) -> dict[Probe, Floats_intervals]:
    """The grades of the records made into each probe, larger being better; all are asked together."""
    made = [probe.on(record, grader.rubric) for probe in probes() for record in records]
    rows = (grader.values(made) * grader.sign).reshape(-1, len(records))
    return dict(zip(probes(), rows, strict=True))


def _share(
    of: tuple[str, str], graded: Mapping[Probe, Floats_intervals], controls: Floats_intervals, above: float
) -> Finding:
    """The share of probes whose grade lies above the highest of its controls; those without a grade are left out."""
    raised = {probe.name: int(np.count_nonzero(after > controls + 1e-9)) for probe, after in graded.items()}
    known = sum(int(np.count_nonzero(~np.isnan(after - controls))) for after in graded.values())
    by_probe = {probe: count for probe, count in raised.items() if count}
    return share(*of, sum(raised.values()), known, "probes put on outputs", above=round(above, 3), details=by_probe)


def _best(aspect: Aspect, rubric: Rubric) -> str | float:
    level = (max if rubric.higher_is_better else min)(aspect.levels, key=lambda one: one.value)
    return level.name if aspect.categorical else json.loads(level.name)
