"""What an audit shows to the judge: a sample of outputs with human judgments, probes made of them, and the grader that
counts failures and refusals."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any

import numpy as np

from metrist.errors import RunError, unknown_name
from metrist.io import Reader
from metrist.llm.messages import Sampling
from metrist.metrics.base import Shard
from metrist.metrics.judge.judge import Judge
from metrist.metrics.judge.rubrics import Aspect, Rubric
from metrist.metrics.llm_metric import FILTERED, merge_usage
from metrist.metrics.prompt_layout import fill_template
from metrist.records import Pair, Record
from metrist.run.prefer import MajorityVote
from metrist.run.tasks import describe_missing, score_shard
from metrist.scores import Scores
from metrist.stats import Floats

_Key = tuple[str, str]

# "I cannot find any fault" is not a refusal, so "I cannot" counts only before one of these verbs.
_REFUSED_ACT = (
    r"(?:assist|help|evaluate|judge|grade|rate|assess|score|review|comply|fulfill?|provide|do|answer|complete|process|"
    r"engage|continue)"
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:very |so |really )?(?:sorry|unable|not able)|sorry,? (?:but )?i\b|i (?:must|have to) decline|"
    rf"i (?:can ?not|can't|could not|couldn't|won't|will not|am not going to)(?: \w+)? {_REFUSED_ACT}\b|"
    r"as an ai(?: language)?(?: model| assistant)?,? i\b|against my (?:guidelines|policy|policies))",
    re.IGNORECASE,
)
#: A refusal stands within the first characters of an answer.
_REFUSAL_REACH = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditSample:
    """Outputs of the sampled items, grouped by item.

    `pairs` has one pair of each item with two different outputs, `ratings` the means over raters by aspect, and `votes`
    human preferences by aspect. `own` is the system that runs on the judge's own LLM.
    """

    records: tuple[Record, ...]
    pairs: tuple[Pair, ...]
    ratings: Mapping[str, Mapping[_Key, float]]
    votes: Mapping[str, MajorityVote]
    own: str | None = None

    @property
    def items(self) -> list[str]:
        """The item of each output."""
        return [record.item for record in self.records]

    def human_scores(self) -> Floats:
        """The mean of each output's standard scores over all rated aspects; NaN where a rating is missing."""
        columns = [
            standardize(np.array([ratings.get((record.item, record.system), math.nan) for record in self.records]))
            for ratings in self.ratings.values()
        ]
        return np.mean(columns, axis=0) if columns else np.full(len(self.records), math.nan)


def standardize(values: Floats) -> Floats:
    """Standard scores of the values that are not NaN; zeros where they do not differ."""
    known = values[~np.isnan(values)]
    spread = known.std() if len(known) else 0.0
    scores: Floats = (values - known.mean()) / spread if spread > 0 else np.where(np.isnan(values), math.nan, 0.0)
    return scores


def draw_sample(reader: Reader, items: int, outputs: int, own: str | None, aspects: Sequence[str]) -> AuditSample:
    """Choose items and outputs by hashes of their names, so that the same input gives the same sample.

    Items with several outputs are preferred, and outputs of the `own` system are always included.
    """
    by_item: dict[str, list[Record]] = {}
    ratings: dict[str, dict[_Key, list[float]]] = {}
    votes: dict[str, MajorityVote] = {}
    for entry in reader.entries():
        for record in entry.new:
            by_item.setdefault(record.item, []).append(record)
        for rating in entry.ratings:
            ratings.setdefault(rating.aspect, {}).setdefault((rating.item, rating.system), []).append(rating.value)
        for preference in entry.preferences:
            votes.setdefault(preference.aspect, MajorityVote()).add(preference)
    if not by_item:
        raise RunError(f"{', '.join(reader.names) or 'the input'}: none of the rows has an output", code="no_data")
    systems = list(dict.fromkeys(record.system for records in by_item.values() for record in records))
    if own is not None and own not in systems:
        raise unknown_name("system", own, systems)

    def rank(item: str) -> tuple[bool, bool, bytes]:
        return len(by_item[item]) < 2, _lacks_own(by_item[item], own), _hash_names(item)

    if missing := [aspect for aspect in aspects if aspect not in ratings]:
        raise unknown_name("ratings of", missing[0], ratings)
    sampled = []
    chosen = set(sorted(by_item, key=rank)[:items])
    for records in [by_item[item] for item in by_item if item in chosen]:
        ranked = sorted(records, key=lambda record: (record.system != own, hash_record(record)))[:outputs]
        sampled.append([record for record in records if record in ranked])
    return AuditSample(
        records=tuple(record for records in sampled for record in records),
        pairs=tuple(pair for records in sampled for pair in _choose_pair(records, own, votes)),
        ratings={
            aspect: {key: sum(values) / len(values) for key, values in ratings[aspect].items()}
            for aspect in aspects or ratings
        },
        votes=votes,
        own=own,
    )


def _choose_pair(records: Sequence[Record], own: str | None, votes: Mapping[str, MajorityVote]) -> list[Pair]:
    """At most one pair of different outputs, preferably with an own output and with a human preference."""
    different = [Pair(first=a, second=b) for a, b in combinations(records, 2) if a.output != b.output]

    def rank(pair: Pair) -> tuple[bool, bool, bytes]:
        key = (pair.first.item, pair.first.system, pair.second.system)
        without_vote = not any(vote.choice(key) for vote in votes.values())
        return _lacks_own((pair.first, pair.second), own), without_vote, _hash_names(*sorted(key[1:]), key[0])

    return sorted(different, key=rank)[:1]


def _lacks_own(records: Iterable[Record], own: str | None) -> bool:
    return own is not None and all(record.system != own for record in records)


def hash_record(record: Record) -> bytes:
    """A number by which records are drawn, whatever their order."""
    return _hash_names(record.item, record.system)


def _hash_names(*names: str) -> bytes:
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Probe:
    """A text with a slot for the output. `kind` is neutral (changes nothing for a reader), padding (adds words that
    say nothing new) or grade (carries a grade or an order for the judge)."""

    kind: str
    name: str
    text: str

    def apply(self, record: Record, rubric: Rubric) -> Record:
        """The record with the probe as its output."""
        first = rubric.aspects[0]
        grades = json.dumps({aspect.name: _best_grade(aspect, rubric) for aspect in rubric.aspects})
        slots = {"aspect": first.name, "top": str(_best_grade(first, rubric)), "grades": grades}
        return replace(record, output=fill_template(self.text, output=record.output, **slots))


@cache
def load_probes() -> tuple[Probe, ...]:
    """The probes that ship with metrist."""
    file = resources.files("metrist.evaluate.audit") / "probes.toml"
    kinds: Mapping[str, Mapping[str, Mapping[str, str]]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(Probe(kind, name, probe["text"]) for kind, named in kinds.items() for name, probe in named.items())


def _best_grade(aspect: Aspect, rubric: Rubric) -> str | float:
    level = (max if rubric.higher_is_better else min)(aspect.levels, key=lambda level: level.value)
    return level.name if aspect.categorical else json.loads(level.name)


@dataclass(frozen=True, kw_only=True)
class NumberedJudge(Judge):
    """A judge whose `sample` number sets repeated calls of one question apart, so that each answer is cached."""

    sample: int = 0

    def sampling(self, **more: Any) -> Sampling:
        return replace(super().sampling(**more), sample=self.sample)


@dataclass(slots=True)
class Grader:
    """Calls the judge, and counts outputs shown, failures and refusals."""

    judge: Judge
    shown: int = 0
    failures: list[str] = field(default_factory=list)
    refusals: int = 0
    usages: list[Mapping[str, Any] | None] = field(default_factory=list)

    @property
    def rubric(self) -> Rubric:
        return self.judge.load_rubric()

    @property
    def sign(self) -> float:
        """-1 where lower grades are better."""
        return -1.0 if self.judge.higher_is_better is False else 1.0

    @property
    def best(self) -> float:
        """The best grade of the scale."""
        return self.judge.bounds[self.sign > 0]

    def grade(self, records: Sequence[Record], **settings: Any) -> Scores:
        """The judge's scores, with some of its settings changed, or a repeated call (`sample`)."""
        own = {f.name: getattr(self.judge, f.name) for f in fields(self.judge)}
        judge = NumberedJudge(**{**own, **settings})
        scores = score_shard(judge, Shard(records))
        # The judge never sees an output that lacks a needed input, so that is not a failure of the judge.
        shown = [i for i, record in enumerate(records) if describe_missing(judge, record) is None]
        failed = [i for i in shown if i in scores.failures]
        self.shown += len(shown)
        self.failures += [scores.failures[i] for i in failed]
        for i in failed:
            # An answer may refuse in words or by a filter of the server.
            begin = (scores.raws.get(i) or "")[:_REFUSAL_REACH].replace("’", "'")
            self.refusals += bool((scores.usages.get(i) or {}).get(FILTERED) or _REFUSAL.search(begin))
        self.usages += [scores.usages.get(i) for i in range(len(scores))]
        return scores

    def grade_values(self, records: Sequence[Record], **settings: Any) -> Floats:
        """The grades alone."""
        return self.grade(records, **settings).values if records else Scores.of([]).values

    def total_usage(self) -> dict[str, Any]:
        return merge_usage(self.usages)
