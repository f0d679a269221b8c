"""The settings of what users ask of runs and judgments. Importing them is cheap: the command line reads its options
here before it knows which of them are needed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from metrist.documents import read_json_object, read_toml
from metrist.errors import RunError, SpecError, format_count
from metrist.settings import MAX_DRAWS, check_settings, parse_numbers, parse_shares, setting

if TYPE_CHECKING:
    import numpy as np

#: Which test decides between two systems.
ComparisonTest = Literal["both", "bootstrap", "randomisation"]
#: Whether a judge sees the references.
Reference = Literal["hidden", "shown"]
#: How slices, or groups, are averaged.
Average = Literal["macro", "micro"]
#: What a system's score is where a metric pools statistics: as in `metrist score`, or the mean over its outputs.
SystemScore = Literal["corpus", "mean"]
#: What is resampled: intervals and tests then generalize to other items, other systems, or both.
Resample = Literal["items", "systems", "both"]
#: The significance test between two metrics.
MetricTest = Literal["auto", "permutation", "bootstrap", "sign", "williams", "none"]
#: How p-values are adjusted for many pairs of metrics.
Correction = Literal["holm", "benjamini-hochberg", "none"]

#: Which outputs of an item are compared: each two, or the winners of the comparisons before.
Pairing = Literal["all", "knockout"]

Names = tuple[str, ...]
#: What a length is counted in besides characters: `output_length:words`. The last three are parts of Markdown.
LENGTH_UNITS = ("words", "tokens", "headers", "list_items", "bold")
GROUPS = ("item", "none", "system", "system-level")
EPSILON_OVER = ("all", "slice", "crossfit")


def as_names(value: str | Iterable[str]) -> Names:
    """Return one name or several as a tuple of distinct names."""
    return (value,) if isinstance(value, str) else tuple(dict.fromkeys(value))


def list_units(columns: Iterable[str]) -> Names:
    """The units besides characters that columns name: `reference_length@15,25:words`."""
    named = {column for column in columns if "_length" in column}
    return tuple(unit for unit in LENGTH_UNITS if any(f":{unit}" in column for column in named))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSettings:
    """Arguments of `compare` and `describe_methods`."""

    systems: Names | None = setting(None, "Only these systems.", metavar="A B …", shown="all")
    metrics: Names | None = setting(None, "Only these metrics; repeatable.", "-m", "--metric", metavar="SPEC")
    baseline: str | None = setting(None, "Compare each system with this one only.")
    test: ComparisonTest = setting("both", "Which test decides.")
    alpha: float = setting(0.05, "Largest p-value that counts as a difference.", min=0, max=1, open=True)
    draws: int = setting(10_000, "Resamples behind each p-value.", min=100, max=MAX_DRAWS)
    seed: int = setting(0, "Seed of the resampling.", min=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardSettings:
    """Arguments of `leaderboard`."""

    by: str | None = setting(
        None,
        "Whose judgments count: an aspect of preferences, a comparator, a metric, or an aspect of ratings.",
        metavar="NAME",
        shown="what the data have",
    )
    systems: Names | None = setting(None, "Only these systems.", metavar="A B …", shown="all")
    categories: Names = setting(
        (), "Also for each value of this column, or class of lengths; repeatable.", "--category", metavar="COLUMN"
    )
    control: Names = setting(
        (),
        "Compare systems where this is equal: output_length, another number of outputs, or a score; repeatable.",
        metavar="COLUMN",
    )
    where: Names = setting((), "Only votes where language=en, …; repeatable.", metavar="CONDITION")
    into: Path | None = setting(
        None, "Add the votes to those in this folder, and rank all; writes its index.html.", metavar="FOLDER"
    )
    date: str | None = setting(None, "The date of this update in the folder's history.", metavar="DATE", shown="today")
    draws: int = setting(1000, "Resamples of the items behind the intervals; 0: none.", min=0, max=MAX_DRAWS)
    seed: int = setting(0, "Seed of the resampling.", min=0)
    confidence: float = setting(0.95, "Confidence of the intervals.", min=0, max=1, open=True)

    def __post_init__(self) -> None:
        for name in ("systems", "categories", "control", "where"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_names(getattr(self, name)))
        if self.into is not None:
            object.__setattr__(self, "into", Path(self.into))
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankSettings:
    """Arguments of `rerank`."""

    weights: Mapping[str, float] = setting(
        {},
        "The weight of a metric where several choose, whose scores are standardised within an item; repeatable.",
        "--weight",
        metavar="METRIC=X",
        shown="1",
    )
    aggregate: bool = setting(
        False, "With --mbr chrf: compare with the mean of all outputs' n-grams; approximate, and linear in the outputs."
    )
    pairing: Pairing = setting("all", "Which outputs of an item comparators see: each two, or a knockout.")
    k: int = setting(1, "Outputs to choose of each item.", "-k", "--best", metavar="K", min=1)
    minimum: float | None = setting(None, "Leave out outputs with a worse score.", "--min", metavar="X")
    keep: str | None = setting(
        None, "Keep the best of the chosen outputs of all items, a share or a number: 20%, 5000.", metavar="N[%]"
    )
    dedupe: bool = setting(False, "Leave out outputs that repeat one chosen before, but for white space and case.")
    diverse: float | None = setting(
        None,
        "Leave out outputs whose chrF with a better chosen one of the item is above X.",
        metavar="X",
        min=0,
        max=1,
    )
    draws: int = setting(1000, "Resamples of the items behind the intervals; 0: none.", min=0, max=MAX_DRAWS)
    seed: int = setting(0, "Seed of the resampling.", min=0)
    confidence: float = setting(0.95, "Confidence of the intervals.", min=0, max=1, open=True)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.keep is not None and not re.fullmatch(r"\d+|(100|\d{1,2}(\.\d+)?)%", self.keep):
            raise RunError(f"`keep` must be a share or a number, 20% or 5000, got {self.keep!r}", code="invalid_value")

    def count_kept(self, count: int) -> int:
        """How many of the chosen outputs are kept."""
        if self.keep is None:
            return count
        return round(count * float(self.keep[:-1]) / 100) if self.keep.endswith("%") else int(self.keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Arguments of `check`."""

    minimum: Mapping[str, float] = setting({}, "Lower limit of a metric; repeatable.", "--min", metavar="METRIC=X")
    maximum: Mapping[str, float] = setting({}, "Upper limit of a metric; repeatable.", "--max", metavar="METRIC=X")
    against: str | None = setting(
        None,
        "Fail if a system is significantly worse than in this run, or than this system of the same run.",
        metavar="RUN",
    )
    metrics: Names | None = setting(
        None, "Only these metrics, for --against and --min-coverage; repeatable.", "-m", "--metric", metavar="SPEC"
    )
    systems: Names | None = setting(None, "Only these systems.", metavar="A B …", shown="all")
    min_coverage: float | Mapping[str, float] | None = setting(
        None,
        "Smallest share of outputs that must have a score, by all metrics or by one; repeatable.",
        metavar="[METRIC=]X",
        min=0,
        max=1,
        parse=parse_shares,
        shown="1 for metrics with a limit; with --against, as in that run",
    )
    alpha: float = setting(0.05, "Largest p-value that counts as a loss.", min=0, max=1, open=True)
    draws: int = setting(10_000, "Resamples behind each p-value.", min=100, max=MAX_DRAWS)
    seed: int = setting(0, "Seed of the resampling.", min=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """The judge of an audit: arguments of `audit`."""

    rubric: str = setting("reliability", "The rubric that it grades by.", metavar="NAME_OR_FILE")
    aspect: str = setting("all", "The aspect of the rubric whose grade is audited.", metavar="A")
    reference: Reference = setting("hidden", "Whether the judge sees the references; both ways are compared.")
    temperature: float = setting(0.0, "The judge's sampling temperature.", min=0)
    max_tokens: int = setting(1024, "Length limit of an answer, in tokens.", metavar="N", min=1)
    second_llm: str | None = setting(None, "Another LLM, which checks the judge's reasons.", metavar="SPEC")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """The size of an audit; `own` is the system that runs on the judge's own LLM, `aspects` the ratings to use."""

    items: int = setting(50, "Items to audit on.", metavar="N", min=1)
    outputs_per_item: int = setting(4, "Outputs to grade per item.", metavar="N", min=1)
    repeats: int = setting(3, "Times each question is asked.", metavar="N", min=1)
    own: str | None = setting(None, "The system that is the judge's own LLM.", metavar="SYSTEM")
    aspects: Names = setting((), "The human rating to agree with; repeatable.", "--rating", metavar="A", shown="all")

    def __post_init__(self) -> None:
        check_settings(self)


# ---- Meta-evaluation


def parse_epsilons(texts: Sequence[str]) -> dict[str, Any]:
    """Parse the tie thresholds that users give, `["rougeL=.06", "epsilons.toml"]`: a number per metric, or TOML or JSON
    files of numbers, or of tables of numbers per value of the column of `epsilon_over`."""
    epsilons: dict[str, Any] = {}
    for text in texts:
        try:
            given: dict[str, Any] = parse_numbers([text])
        except SpecError:
            if not Path(text).exists():
                raise
            given = read_epsilons(Path(text))
        if repeated := [name for name in given if name in epsilons]:
            raise SpecError(f"is given twice for {repeated[0]!r}")
        epsilons |= given
    return epsilons


def read_epsilons(path: Path) -> dict[str, Any]:
    """Read TOML, or JSON, perhaps of `metrist meta --json`, whose metrics must have one threshold each."""
    document = read_toml(path, RunError) if path.suffix == ".toml" else read_json_object(path, RunError)
    if not isinstance(document.get("rows"), list):
        return document
    found: dict[str, set[float]] = {}
    for row in document["rows"]:
        if isinstance(row, dict) and isinstance(row.get("epsilon"), int | float):
            found.setdefault(str(row.get("metric")), set()).add(row["epsilon"])
    for metric, values in found.items():
        if len(values) > 1:
            raise RunError(
                f"{path}: {metric} has {format_count(len(values), 'threshold')}: write the file with "
                "`epsilon_over='all'` and one aspect, or give a number",
                code="conflict",
            )
    if not found:
        raise RunError(f"{path}: none of its rows has a threshold: write it with `measures='acc_eq'`", code="no_data")
    return {metric: values.pop() for metric, values in found.items()}


def check_epsilons(epsilons: Mapping[str, Any], column: str | None) -> dict[str, Any]:
    """Return the thresholds as plain numbers; raise RunError for one that is none, and for a table without a column."""
    checked: dict[str, Any] = {}
    for metric, given in epsilons.items():
        if isinstance(given, Mapping):
            if column is None:
                raise RunError(
                    f"`epsilon` of {metric!r} is a table: name its column, `epsilon_over='language'`", code="conflict"
                )
            checked[metric] = check_epsilons(given, None)
        elif not isinstance(given, bool) and isinstance(given, Real) and 0 <= float(given) < math.inf:
            checked[metric] = float(given)
        else:
            raise RunError(
                f"`epsilon` of {metric!r} must be a number of at least 0, got {given!r}", code="invalid_value"
            )
    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """How judgments and scores are joined: arguments of `meta_evaluate` that are no part of its plan."""

    part: Names = setting(
        (), "Use a part of a run's scores, such as recall, instead of the whole; repeatable.", metavar="PART"
    )
    lower_is_better: Names = setting((), "A metric or aspect where lower is better.", metavar="NAME")
    weighted: bool = setting(True, "Ignore the sampling weights of annotated outputs.", "/--unweighted")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaPlan:
    """The settings of `meta_evaluate`, validated. `group` and `epsilon_over` may also name a column."""

    aspects: Names = setting((), "The rating to agree with; repeatable.", "-a", "--aspect", metavar="A")
    measures: Names = setting(
        (),
        "acc_eq, pearson, spearman, kendall_b, …; repeatable.",
        "--measure",
        metavar="M",
        shown="acc_eq; for preferences accuracy, f1",
    )
    group: str = setting("item", "item, none, system, system-level, or a column.", metavar="BY")
    slices: Names = setting(
        (),
        "Also for each value of: task, language, output_length:4, reference_length@15,25:words, a+b; repeatable.",
        "--slice",
        metavar="COLUMN",
    )
    gold: str = setting(
        "mean",
        "mean, median, majority, z, or a rater's name; from preferences win-rate or bradley-terry, "
        "of a comparator win-rate:judge_pair.",
        metavar="HOW",
    )
    preferences: bool = setting(False, "Agree with human choices between two outputs instead of ratings.")
    epsilon_over: str = setting("all", "Choose thresholds over all, slice, crossfit, or a column.", metavar="WHAT")
    epsilon: Mapping[str, Any] = setting(
        {},
        "A metric's tie threshold, or a TOML or JSON file of them; repeatable.",
        metavar="METRIC=X|FILE",
        parse=parse_epsilons,
    )
    average: Average = setting("macro", "How slices are averaged.")
    group_average: Average = setting("macro", "How groups are averaged within a slice.")
    system_score: SystemScore = setting(
        "corpus", "Between systems, compare scores as `metrist score` gives them (corpus BLEU, chrF and TER), or means."
    )
    resample: Resample = setting("items", "What is resampled.")
    draws: int = setting(
        1000, "Resamples behind intervals, a tenth of those behind tests; 0: neither.", min=0, max=MAX_DRAWS
    )
    seed: int = setting(0, "Seed of the resampling.", min=0)
    confidence: float = setting(0.95, "Confidence of the intervals.", min=0, max=1, open=True)
    alpha: float = setting(0.05, "Largest p-value that counts as a difference.", min=0, max=1, open=True)
    correction: Correction = setting("holm", "Correction for many tests at once.")
    test: MetricTest = setting("auto", "How metrics are tested against each other.")
    one_sided: bool = setting(False, "Test whether one metric is better (--test williams and sign).")
    where: Names = setting(
        (),
        "Only outputs where language=en, task!=qa, year>2020, output_length<80, …; repeatable.",
        metavar="CONDITION",
    )
    metrics: Names | None = setting(
        None, "Only these, or parts such as judge:fluency; repeatable.", "-m", "--metric", metavar="NAME"
    )
    systems: Names | None = setting(None, "Only these systems.", metavar="A B …")
    exclude_systems: Names = setting((), "Exclude a system; repeatable.", "--exclude-system", metavar="S")
    top_k: int | None = setting(None, "Only the K systems that humans rate best, in each slice its own.", metavar="K")
    min_samples: int = setting(0, "Leave out slices with fewer rated outputs, or pairs.", metavar="N", min=0)
    mean_over: Literal["aspect"] | None = setting(None, "Also the mean over the aspects.", metavar="aspect")
    marked: Names = setting((), "Give metrics of this family the marks † and ‡.", "--mark", metavar="FAMILY")

    def __post_init__(self) -> None:
        for name in ("aspects", "measures", "slices", "where", "metrics", "systems", "exclude_systems", "marked"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_names(getattr(self, name)))
        check_settings(self)
        column = None if self.epsilon_over in EPSILON_OVER else self.epsilon_over
        object.__setattr__(self, "epsilon", check_epsilons(self.epsilon or {}, column))
        if self.one_sided and self.test not in ("williams", "sign"):
            raise RunError(
                f"only `test='williams'` and `test='sign'` can be one-sided, not {self.test}", code="conflict"
            )

    @property
    def length_units(self) -> Names:
        """The units of lengths besides characters that columns and conditions name."""
        return list_units([*self.slices, *self.where, self.group, self.epsilon_over])

    @property
    def resample_name(self) -> str:
        """What is resampled, in words."""
        return "items and systems" if self.resample == "both" else self.resample

    @property
    def exchange_draws(self) -> int:
        """The draws of tests whose exchanged rows add up: they cost little, and p near alpha needs many."""
        return 10 * self.draws

    def rng(self) -> np.random.Generator:
        """A fresh generator: every figure starts from the same seed."""
        import numpy as np

        return np.random.default_rng(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
