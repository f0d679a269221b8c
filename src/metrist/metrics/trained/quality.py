"""`quality`: the shipped metrics that were measured to help on a record's task, combined into one number; and the
choice of metrics for `metrist score` without `-m`.

The table `quality.toml` holds a mixture of metrics for each task and for what records hold, and the tasks that have
none because a simple baseline agrees better with people. It is written by models/recipes/quality_weights.py, from data
sets that no table of results judges a metric by.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MissingExtra, ModelError, SpecError, format_count
from metrist.language import find_other_language, is_english, name_other_language
from metrist.metrics import registry
from metrist.metrics.base import Metric, Shard, check_choice, hash_file
from metrist.metrics.prompt_layout import DIALOGUE, GENERAL_TASK, resolve_task
from metrist.records import Need, Record
from metrist.scores import FailureKind, Score, Scores

Numbers = NDArray[np.float64]
Size = Literal["small", "large"]

TRANSLATION, OPINIONS = "translation", "opinion_summarization"
#: Words of a source from which on it may be a text to summarize, and how much longer than the output it then is.
_MIN_SOURCE_WORDS, _SUMMARY_RATIO = 60, 2.0
#: Words of a source from which on an output may rest on it; a shorter one is a question.
_MIN_PASSAGE_WORDS = 8
#: An instruction that asks for something that the source may say: a question, or a few words to search for, which do
#: not begin with what to do.
_QUESTION = re.compile(
    r"\A\s*(?:who|whom|whose|what|when|where|why|which|how|is|are|was|were|does|do|did|can|could|has|have|had|will)\b|"
    r"\?\s*\Z|"
    r"\A\s*(?!(?:add|analy[sz]e|answer|brainstorm|calculate|change|check|choose|classify|come|compare|complete|compose|"
    r"continue|convert|correct|create|describe|design|detect|discuss|draft|edit|evaluate|expand|explain|extract|fill|find|"
    r"fix|generate|give|guess|identify|improve|label|list|make|name|organi[sz]e|paraphrase|predict|propose|provide|rank|"
    r"rate|rephrase|reply|respond|rewrite|select|simplify|solve|sort|suggest|summari[sz]e|tell|translate|use|verify|"
    r"write)\b)\w[\w-]*(?: \w[\w-]*){0,3}\s*\Z",
    re.IGNORECASE,
)
#: The most words of a reference that is a short answer.
_SHORT_ANSWER = 6
#: Metrics of single aspects, for records of which nothing is measured as a whole.
_TO_TRY = ("consistency", "likelihood", "preference", "fluency")
#: Records that are looked at to choose metrics.
LOOK_AT = 200
#: Outputs surely in English, for each surely in another language, from which on a file is worth scoring without these.
_MIN_ENGLISH = 0.25
_LANGUAGE_PAIR = re.compile(r"([a-z]{2,3})(?:_[A-Za-z]+)?\s*(?:-|->|→)\s*([a-z]{2,3})(?:_[A-Za-z]+)?")
_TURN = re.compile(r"^\s*(?:user|system|human|assistant|speaker ?\w+|a|b)\s*:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePart:
    """A metric of a mixture: its distance from `centre` counts `weight` per `spread`."""

    metric: str
    weight: float
    centre: float
    spread: float

    @property
    def name(self) -> str:
        """The metric without its settings: a mixture has no metric twice."""
        return self.metric.partition("(")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How quality is computed for a task from records that have the fields `needs` and lack the fields `without`."""

    task: str
    needs: tuple[Need, ...]
    without: tuple[Need, ...] = ()
    #: What the weights rest on.
    basis: str
    parts: tuple[MixturePart, ...]
    #: Metrics that are left out, and why.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: Of the English models that its parts use.
    size: Size = "small"

    def combine(self, values: Mapping[str, Numbers]) -> Numbers:
        """Return the quality of outputs, 0 to 1, from the values of the parts."""
        distances = [part.weight * (values[part.metric] - part.centre) / part.spread for part in self.parts]
        # Clipped, so that the exponential of a far outlier does not overflow.
        quality: Numbers = 1 / (1 + np.exp(-np.clip(np.sum(distances, axis=0), -700, 700)))
        return quality

    def describe(self) -> str:
        whole = sum(part.weight for part in self.parts)
        if len(self.parts) == 1:
            return self.parts[0].name
        return ", ".join(f"{part.name} {part.weight / whole:.0%}" for part in self.parts)


@cache
def load_mixtures() -> tuple[Mixture, ...]:
    """The mixtures of the table; of those for a task, the first whose needs a record meets is used."""
    return tuple(
        Mixture(
            task=entry["task"],
            needs=tuple(entry["needs"]),
            without=tuple(entry.get("without", ())),
            basis=entry["basis"],
            parts=tuple(MixturePart(metric=metric, **numbers) for metric, numbers in entry["parts"].items()),
            left_out=entry.get("left_out", {}),
            size=entry.get("size", "small"),
        )
        for entry in _read_table()["mixtures"]
    )


@cache
def load_withdrawn() -> Mapping[str, str]:
    """The tasks without a mixture for which there is data, and what the data say."""
    withdrawn: Mapping[str, str] = _read_table()["withdrawn"]
    return withdrawn


def find_mixture(task: str, record: Record, size: Size = "small") -> Mixture | None:
    """The mixture for a record of that task; None if there is none, or the record lacks what it needs."""
    for mixture in load_mixtures():
        fits = (mixture.task, mixture.size) == (task, size)
        fits = fits and not any(_is_missing(record, need) for need in mixture.needs)
        if fits and all(_is_missing(record, need) for need in mixture.without):
            return mixture
    return None


def explain_missing_mixture(task: str, record: Record) -> str:
    """Why a record of that task has no quality."""
    name = task.replace("_", " ")
    if reason := load_withdrawn().get(task):
        return f"there is no quality of {name}: {reason}"
    needs = dict.fromkeys(need for mixture in load_mixtures() if mixture.task == task for need in mixture.needs)
    if lacking := " and ".join(need for need in needs if _is_missing(record, need)):
        return f"quality of {name} needs {lacking}"
    excluded = dict.fromkeys(need for mixture in load_mixtures() if mixture.task == task for need in mixture.without)
    if excess := " or ".join(need for need in excluded if not _is_missing(record, need)):
        return f"quality of {name} is for records without {excess}: with them, lexical metrics agree better with people"
    tasks = ", ".join(dict.fromkeys(mixture.task for mixture in load_mixtures()))
    of_task = "records that do not tell their task" if task == GENERAL_TASK else name
    return f"no data measured a quality of {of_task}; the tasks are {tasks}"


def _is_missing(record: Record, need: Need) -> bool:
    """Whether the record lacks a field, or it is blank."""
    if need == "references":
        return not any(reference.strip() for reference in record.references)
    return not (getattr(record, need) or "").strip()


def infer_task(record: Record) -> tuple[str, str]:
    """The task of a record, and how it is known: declared, or guessed from what the record holds."""
    if task := _resolve_task(record.task):
        return task, "as the records say"
    source, words = record.source or "", len(record.output.split())
    pair = _LANGUAGE_PAIR.fullmatch((record.language or "").strip())
    if source and pair and pair[1] != pair[2]:
        return TRANSLATION, f"by the languages {pair[0]}"
    if source and _differ_in_script(source, record.output):
        return TRANSLATION, "because source and output are in different scripts"
    if len(_TURN.findall(source)) >= 2:
        return DIALOGUE, "because the source has the turns of a conversation"
    length = len(source.split())
    if record.instruction is None and length >= _MIN_SOURCE_WORDS and length >= _SUMMARY_RATIO * max(words, 1):
        return "summarization", "because outputs are far shorter than their sources"
    return GENERAL_TASK, "because the records do not tell their task"


def is_question(instruction: str) -> bool:
    """Whether an instruction asks for something that a source may say."""
    return _QUESTION.search(instruction) is not None


def is_passage(source: str) -> bool:
    """Whether a source is a text that an output may rest on, not a question or a few words."""
    return len(source.split()) >= _MIN_PASSAGE_WORDS and not source.rstrip().endswith("?")


def _answers_from_passages(record: Record) -> bool:
    """Whether an output answers a question from passages, as in retrieval-augmented generation."""
    asked = record.instruction is not None and is_question(record.instruction)
    return asked and is_passage(record.source or "") and infer_task(record)[0] == GENERAL_TASK


def _resolve_task(name: str | None) -> str | None:
    """metrist's name of a task. Summaries of opinions are a task of their own here: metrics differ on them."""
    first = (name or "").partition("/")[0].strip().lower()
    return OPINIONS if first.startswith("opinion") and resolve_task(name) else resolve_task(name)


def _differ_in_script(first: str, second: str) -> bool:
    """Whether one text is mostly in Latin letters and the other mostly not."""
    shares = []
    for text in (first, second):
        letters = [letter for letter in text[:1000] if letter.isalpha()]
        if len(letters) < 4:
            return False
        shares.append(sum(letter <= "\u024f" for letter in letters) / len(letters))
    return min(shares) < 0.3 and max(shares) > 0.7


@dataclass(frozen=True, kw_only=True)
class Quality(Metric):
    """How good an output is on the whole for its task: a weighted mean of the shipped metrics that agreed with people
    there, on a scale from 0 to 1."""

    #: The task of all records; None: each record's own, or a guess.
    task: str | None = None
    #: Of the English models: 'large' agrees better with people and takes several times as long.
    size: Size = "small"

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    extra: ClassVar[str | None] = "standard"
    resident: ClassVar[bool] = True
    catalog_name: ClassVar[str | None] = "quality"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None:
            object.__setattr__(self, "task", _resolve_task(self.task) or self.task)
            check_choice(self, "task", dict.fromkeys(mixture.task for mixture in load_mixtures()))
        if self.size == "large":
            object.__setattr__(self, "extra", self.size)

    @property
    def mixtures(self) -> list[Mixture]:
        mixtures = [mixture for mixture in load_mixtures() if mixture.size == self.size]
        return [mixture for mixture in mixtures if self.task in (None, mixture.task)]

    @cached_property
    def components(self) -> dict[str, Metric]:
        """The metrics of these mixtures by their texts."""
        texts = dict.fromkeys(part.metric for mixture in self.mixtures for part in mixture.parts)
        return {text: registry.build(text) for text in texts}

    @property
    def aspect_parts(self) -> Mapping[str, tuple[float, float]]:
        return {part.name: self.components[part.metric].bounds for mixture in self.mixtures for part in mixture.parts}

    @property
    def reports_errors(self) -> bool:  # type: ignore[override]
        return any(metric.reports_errors for metric in self.components.values())

    def facts(self) -> Mapping[str, str]:
        """The hash of the table, and what the numbers of each part depend on. A part whose model is not installed is of
        no consequence until a record needs it, which then fails with the reason."""
        facts = {"mixtures": hash_file(str(_table()))}
        for text, metric in self.components.items():
            try:
                facts |= {f"{text} {name}": value for name, value in metric.facts().items()}
            except (MissingExtra, ModelError):
                facts[text] = "not installed"
        return facts

    def score(self, shard: Shard) -> Scores:
        languages = [self._name_unknown_language(record) for record in shard.records]
        mixtures = [
            None if language else self.choose(record) for record, language in zip(shard.records, languages, strict=True)
        ]
        # The scores of each metric, by position, for the records whose mixture has it.
        scores: dict[str, dict[int, Score]] = {}
        for text, metric in self.components.items():
            positions = [i for i, m in enumerate(mixtures) if m and any(part.metric == text for part in m.parts)]
            if positions:
                inner = shard.part([shard.records[i] for i in positions])
                scores[text] = dict(zip(positions, metric.score(inner), strict=True))
        return Scores.of(
            Score.failed(f"the output is in {language}: translations apart, quality knows only English")
            if language
            else self._combine(record, mixture, {text: column[i] for text, column in scores.items() if i in column})
            for i, (record, mixture, language) in enumerate(zip(shard.records, mixtures, languages, strict=True))
        )

    def choose(self, record: Record) -> Mixture | None:
        return find_mixture(self._find_task(record), record, self.size)

    def _find_task(self, record: Record) -> str:
        return self.task or infer_task(record)[0]

    def _name_unknown_language(self, record: Record) -> str | None:
        """The language of an output that no mixture for its task knows."""
        return None if self._find_task(record) == TRANSLATION else name_other_language(record)

    def _combine(self, record: Record, mixture: Mixture | None, scores: Mapping[str, Score]) -> Score:
        if mixture is None:
            return Score.failed(explain_missing_mixture(self._find_task(record), record), FailureKind.missing_input)
        own = {part.name: scores[part.metric] for part in mixture.parts}
        failures = {name: score.failure for name, score in own.items() if score.failure is not None}
        if failures:
            kind = next(iter(failures.values())).kind
            return Score.failed("; ".join(f"{name}: {failure}" for name, failure in failures.items()), kind)
        values = {name: score.value for name, score in own.items()}
        quality = float(mixture.combine({part.metric: np.array(values[part.name]) for part in mixture.parts}))
        shown = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        return Score(
            value=quality,
            parts=values,
            errors=tuple(error for score in own.values() for error in score.errors),
            explanation=f"{mixture.task.replace('_', ' ')}: {shown}",
            incomplete=any(score.incomplete for score in own.values()),
        )

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        warnings: dict[str, None] = {}
        if language := find_other_language([r for r in records if self._find_task(r) != TRANSLATION]):
            warnings[
                f"{self.label}: many outputs are in {language}; its models know only English, and leave them out"
            ] = None
        known = [r for r in records if not self._name_unknown_language(r)]
        for text, metric in self.components.items():
            own = [r for r in known if (m := self.choose(r)) and any(part.metric == text for part in m.parts)]
            for warning in metric.describe_misuse(own) if own else ():
                warnings[f"{self.label}: {warning}"] = None
        return list(warnings)


# --- Metrics for records of which the user names none


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultMetrics:
    """Metrics that were chosen for records, and why."""

    metrics: tuple[str, ...]
    reasons: tuple[str, ...]


def choose_metrics(records: Sequence[Record]) -> DefaultMetrics:
    """Choose the metrics that were measured to help on such records: `consistency` for answers from passages, else
    `quality` where a mixture fits, and lexical metrics where there are references. Raise SpecError if none fits."""
    if not records:
        raise SpecError("no record to choose metrics by: name metrics with -m, such as -m rougeL", code="missing_value")
    metrics: list[str] = []
    reasons: list[str] = []
    model, why = _choose_model(records)
    metrics += [model] if model else []
    reasons += why
    if references := [reference for record in records for reference in record.references]:
        translations = sum(infer_task(record)[0] == TRANSLATION for record in records)
        lexical, reason = ["rougeL", "chrf"], "there are references"
        if np.median([len(reference.split()) for reference in references]) <= _SHORT_ANSWER:
            lexical, reason = ["exact", "token_f1"], "most references are short answers"
        elif translations > len(records) / 2:
            lexical, reason = ["chrf", "bleu"], "there are references, and for translations these are usual"
        metrics += lexical
        reasons.append(f"{' and '.join(lexical)}: {reason}")
    if not metrics:
        holds = {need for need in get_args(Need) if any(not _is_missing(record, need) for record in records)}
        candidates = ["judge(llm=…)"]
        if find_other_language(records) is None:
            candidates += [name for name in _TO_TRY if holds.issuperset(registry.build(name).needs)]
        raise SpecError(
            f"no metric is measured for these records: {'; '.join(reasons)}. Name metrics of single aspects, such as "
            f"{', '.join(candidates)}, and measure them on your own data: `metrist annotate`, then `metrist meta`"
        )
    return DefaultMetrics(metrics=tuple(metrics), reasons=tuple(reasons))


def _choose_model(records: Sequence[Record]) -> tuple[str | None, list[str]]:
    """`consistency`, `quality` or nothing, and why, task by task."""
    answers = 2 * sum(map(_answers_from_passages, records)) > len(records)
    name = "consistency" if answers else "quality"
    groups: Counter[tuple[str, str, int]] = Counter()
    mixtures: dict[int, Mixture] = {}
    lacking: dict[str, None] = {}
    for record in records:
        task, how = infer_task(record)
        if mixture := find_mixture(task, record):
            mixtures[id(mixture)] = mixture
            groups[task, how, id(mixture)] += 1
        else:
            lacking[explain_missing_mixture(task, record)] = None
    if not groups and not answers:
        return None, list(lacking)
    own = [record for record in records if infer_task(record)[0] != TRANSLATION]
    english = Counter(map(is_english, own))
    if (language := find_other_language(own)) and english[True] < _MIN_ENGLISH * max(english[False], 1):
        return None, [f"{name} is left out: many outputs are in {language}, and its models know only English"]
    parts = dict.fromkeys(part.metric for mixture in mixtures.values() for part in mixture.parts)
    try:
        for part in [name] if answers else parts:
            registry.build(part).facts()
    except (MissingExtra, ModelError) as error:
        return None, [f"{name} is left out: {str(error).splitlines()[0]}"]
    if answers:
        return name, ["consistency: there are questions and passages, and an answer should say what these say"]
    reasons = []
    for (task, how, number), _ in groups.most_common():
        mixture = mixtures[number]
        reasons.append(f"quality for {task.replace('_', ' ')} ({how}): {mixture.describe()}; {mixture.basis}")
        reasons += [f"{metric} is left out: {reason}" for metric, reason in mixture.left_out.items()]
    if absent := len(records) - groups.total():
        cannot = f"{format_count(absent, 'record')} of {len(records):,} cannot have a quality"
        reasons.append(f"{cannot}: {'; '.join(lacking)}")
    return name, list(dict.fromkeys(reasons))


def _read_table() -> dict[str, Any]:
    return tomllib.loads(_table().read_text(encoding="utf-8"))


def _table() -> Any:
    return resources.files("metrist.metrics.trained") / "quality.toml"
