"""The base class of all metrics.

A metric has settings, needs certain fields of a record, and defines two functions: `score` turns records into rows of
numbers, and `pool` turns summed rows into a system's score. A simple metric defines `score_record` alone.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import marshal
import math
import numbers
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.errors import (
    InputError,
    MetristError,
    NeedsError,
    RunError,
    SpecError,
    describe_exception,
    did_you_mean,
    label_item,
)
from metrist.llm.base import LLM, build_llm
from metrist.records import Need, Pair, Record, RecordColumns
from metrist.runtime import Runtime
from metrist.scores import Failure, FailureKind, Score, Scores
from metrist.spec import Spec

Reduce = Literal["native", "max", "mean"]
Best = Literal["highest", "lowest"]
Numbers = NDArray[np.float64]
#: Short names of metrics. A colon, a comma, brackets, quotes and = have a meaning where metrics are named.
NAME = re.compile(r"\w[\w.+-]*")
#: Columns that tables have beside those of metrics.
TAKEN_NAMES = frozenset({"coverage", "item", "record", "scored", "system"})
#: What stands between a metric and one of its parts, as in `judge:fluency`.
PART = ":"
#: The part of a score that says how good an output is if its length does not count.
LENGTH_FREE = "length_free"
#: What a metric is called and known by: a setting of the same name would take its place.
_RESERVED = {"label", "name", "signature", "spec", "text"}
#: Parts that are good where the metric is good.
_DIRECTED_PARTS = ("precision", "recall", "f")


class Metric:
    """Base of all metrics.

    A subclass with settings is a frozen dataclass: its fields are its settings. One without settings is a plain class.
    A setting that is an LLM or a metric may be given as text, such as `llm="openai(model='gpt-4o-mini')"`. A subclass
    that defines `__post_init__` must call `super().__post_init__()` first.
    """

    #: None: the metric describes outputs and does not judge them.
    higher_is_better: ClassVar[bool | None] = True
    bounds: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    #: The optional dependency group that the metric needs, for the message that names it.
    extra: ClassVar[str | None] = None
    #: The metric's name in the catalog; None for metrics that are not in it.
    catalog_name: ClassVar[str | None] = None
    #: Settings that the name itself carries, as rouge2 carries its order.
    in_name: ClassVar[tuple[str, ...]] = ()
    #: These settings by name, for a class with several names in the catalog.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Whether the metric holds something large, such as a model: a run then uses one worker per device, not per core.
    resident: ClassVar[bool] = False
    #: CPUs and GPUs that one worker of a cluster gets for the metric; None: what suits it (see `metrist.run.ray`).
    cpus: ClassVar[float | None] = None
    gpus: ClassVar[float | None] = None
    #: Whether the metric calls an LLM: worker processes then share the limits on requests. A metric that has an LLM, or
    #: a metric that calls one, among its settings need not say so.
    asks_llm: ClassVar[bool] = False
    #: Whether scores come with the errors in the output, so that `explain` can show them.
    reports_errors: ClassVar[bool] = False
    #: Settings that name a program to run: like import paths, they are accepted from Python and the command line only.
    programs: ClassVar[tuple[str, ...]] = ()
    #: The metric with settings to show it with, if it cannot be built without.
    catalog_example: ClassVar[str | None] = None
    #: The short name that `named` gave; never part of the settings, of equality or of the signature.
    short_name: str | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if taken := _RESERVED & inspect.get_annotations(cls).keys():
            raise SpecError(f"{cls.__qualname__}: a setting cannot be called {min(taken)!r}, which every metric has")

    def __post_init__(self) -> None:
        cls: Any = type(self)  # For mypy, which takes the hash of a class for that of its objects.
        types = _setting_types(cls)
        for field in _declared(self):
            value = getattr(self, field.name)
            if isinstance(value, list) or re.search(r"\b(LLM|Metric|Comparator)\b", str(field.type)):
                object.__setattr__(self, field.name, _parse_setting(str(field.type), value))
            if get_origin(types.get(field.name)) is Literal:
                check_choice(self, field.name, get_args(types[field.name]))

    @property
    def needs(self) -> tuple[Need, ...]:
        """The fields of a record that the metric requires. Most classes declare a class variable; where it depends on a
        setting, it is a property."""
        return ()

    @property
    def name(self) -> str:
        """The metric's name in a spec. Metrics from outside the catalog are named by their import path."""
        return self.catalog_name or f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def text(self) -> str:
        """The metric as text, with the settings that differ from their defaults: parses to an equal metric."""
        return str(self.spec)

    @property
    def label(self) -> str:
        """What tables, checks and files call the metric: its short name, or its text if it has none. A class of the
        main program or notebook goes without the module's name, which says nothing."""
        return self.short_name or self.text.removeprefix("__main__.")

    def named(self, name: str | None) -> Self:
        """A copy of the metric with a short name, which changes neither its text nor its signature; None removes it."""
        if name is not None and not NAME.fullmatch(name):
            raise SpecError(
                f"{name!r} cannot name a metric: expected letters, digits, '_', '-', '.' and '+', such as gpt-4.1"
            )
        if name is not None and name.lower() in TAKEN_NAMES:
            taken = ", ".join(sorted(TAKEN_NAMES))
            raise SpecError(f"{name!r} cannot name a metric: tables have columns called {taken}")
        copied = copy.copy(self)
        object.__setattr__(copied, "short_name", name)
        return copied

    @property
    def aspect_parts(self) -> Mapping[str, tuple[float, float]]:
        """The parts of a score that are columns of their own beside the value, such as the aspects of a rubric, each
        with its bounds. Where they do not depend on a setting, a class variable declares them."""
        return {}

    @property
    def spec(self) -> Spec:
        """The metric's name with the settings that differ from their defaults."""
        settings = self._settings().items()
        return Spec(self.name, {name: _to_spec(value) for name, (value, default) in settings if value != default})

    @property
    def signature(self) -> str:
        """Everything that a reader needs to compute the same numbers again."""
        facts = {"metrist": __version__, **self._code(), **self.facts()}
        return " | ".join([str(self.full_spec()), *(f"{k} {v}" for k, v in facts.items())])

    def peer_signature(self, references: str) -> str:  # noqa: ARG002
        """The signature of a system's score in the form that the package which readers know gives it, such as
        sacreBLEU's; empty where there is none. `references` is the number of references, 'var' or '?'."""
        return ""

    def full_spec(self) -> Spec:
        """The metric's name with all its settings, including those of metrics and LLMs within it."""
        settings = self._settings().items()
        return Spec(self.name, {name: _to_spec(value, in_full=True) for name, (value, _) in settings})

    def facts(self) -> Mapping[str, str]:
        """What else the numbers depend on, such as `{"words": metrist.hash_file("words.txt")}`.

        Override it where a metric reads weights, prompts or tables: the facts become part of the signature, so that
        stored scores are computed again when one of them changes. `ModelMetric` and `LLMMetric` do so themselves.
        """
        return {}

    def score_record(self, record: Record) -> float | Score | None:
        """One record's score. None and NaN mean that the record cannot be scored; `Score.failed("…")` says why."""
        raise NotImplementedError(
            f"{type(self).__name__} must define score_record(self, record), or score(self, shard) for whole shards"
        )

    def score(self, shard: Shard) -> Scores:
        """One score per record of the shard, in order. Override it to compute many records at once."""
        return Scores.of(_score_record(self, record) for record in shard.records)

    def remarks(self, scores: Scores) -> list[str]:  # noqa: ARG002
        """What a reader of all these scores should know: shown under every table of a run."""
        return []

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:  # noqa: ARG002
        """Warnings about records that the metric is not made for; they come with the scores. `records` are the
        first ones of each input."""
        return []

    def against(self, first: Score, second: Score) -> str:
        """A comparison of two scores in words, as a comparator's explanation shows it."""
        return f"{first.value:.6g} against {second.value:.6g}"

    def pool(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """System scores from summed rows of statistics, along the last axis; NaN where nothing was scored."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: NDArray[np.float64] = sums[..., 0] / sums[..., 1]
        return mean

    def _settings(self) -> dict[str, tuple[Any, Any]]:
        """Value and default of each setting. A field declared with `field(compare=False)`, such as a path of this
        machine or a time limit, is not part of the metric's identity."""
        return {
            f.name: (getattr(self, f.name), f.default)
            for f in _declared(self)
            if f.init and f.compare and f.name not in self.in_name
        }

    def _code(self) -> Mapping[str, str]:
        """A hash of the code of metrics that metrist's version does not cover: an edit makes another metric."""
        if type(self).__module__.split(".")[0] == "metrist":
            return {}
        digest = hashlib.sha256()
        for cls in type(self).__mro__:
            if cls.__module__.split(".")[0] in ("metrist", "builtins"):
                continue
            # The source of its module; of the class alone where the module is the main program.
            module = sys.modules.get(cls.__module__)
            source = module if module is not None and cls.__module__ != "__main__" else cls
            try:
                digest.update(inspect.getsource(source).encode("utf-8", "surrogatepass"))
            except (OSError, TypeError):
                # Version 2 writes nothing that depends on how often an object happens to be referred to.
                for name, function in sorted((name, f) for name, f in vars(cls).items() if inspect.isfunction(f)):
                    digest.update(marshal.dumps((name, function.__code__), 2))
        return {"code": digest.hexdigest()[:12]}


class PartMetric(Metric):
    """One part of a metric's scores as a column of its own, such as `judge:fluency`: it pools to the mean."""

    def __init__(self, metric: Metric, part: str) -> None:
        known = metric.aspect_parts
        self.metric = metric
        self.part = part
        object.__setattr__(self, "bounds", known.get(part, (-np.inf, np.inf)))
        # What a count or a length says about quality is not known.
        directed = part in known or part in _DIRECTED_PARTS
        object.__setattr__(self, "higher_is_better", metric.higher_is_better if directed else None)

    @property
    def name(self) -> str:
        return f"{self.metric.name}{PART}{self.part}"

    @property
    def text(self) -> str:
        return f"{self.metric.text}{PART}{self.part}"

    @property
    def label(self) -> str:
        return f"{self.metric.label}{PART}{self.part}"

    @property
    def signature(self) -> str:
        return self.metric.signature

    def select(self, scores: Scores) -> Scores:
        """The part's scores, from those of its metric."""
        values = scores.parts[self.part]
        missing = Failure(FailureKind.not_scored, f"the score has no {self.part}")
        failures = {i: scores.failures.get(i, missing) for i in np.flatnonzero(np.isnan(values)).tolist()}
        return Scores(values=values, failures=failures)


def iterate_nested(metric: Metric) -> Iterator[Metric | LLM]:
    """The metric, and the metrics and LLMs among its settings, theirs included."""
    yield metric
    for value, _ in metric._settings().values():
        for element in value if isinstance(value, tuple) else (value,):
            if isinstance(element, Metric):
                yield from iterate_nested(element)
            elif isinstance(element, LLM):
                yield element


def calls_llm(metric: Metric) -> bool:
    """Whether the metric, or a metric within it, calls an LLM."""
    return any(isinstance(nested, LLM) or nested.asks_llm for nested in iterate_nested(metric))


def is_resident(metric: Metric) -> bool:
    """Whether the metric, or a metric within it, holds something large."""
    return any(isinstance(nested, Metric) and nested.resident for nested in iterate_nested(metric))


def hash_file(path: str | os.PathLike[str]) -> str:
    """The first 12 digits of the SHA-256 of a file, or of the names and contents of a folder's files.

    For `Metric.facts`. A file is read again only after it changed.
    """
    place = Path(path)
    try:
        if not place.is_dir():
            return _hash_content(place, *_size_and_time(place))[:12]
        files = sorted(file for file in place.rglob("*") if file.is_file())
        lines = [f"{file.relative_to(place)} {_hash_content(file, *_size_and_time(file))}\n" for file in files]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _size_and_time(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4096)
def _hash_content(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_choice(metric: Metric, setting: str, choices: Iterable[str]) -> None:
    """Refuse a setting whose value is not one of the choices, suggesting the nearest."""
    value, known = getattr(metric, setting), tuple(choices)
    if value not in known:
        listed = ", ".join(map(repr, known))
        hint = did_you_mean(str(value), known)
        raise SpecError(f"{metric.name}: {setting} must be one of {listed}, got {value!r}{hint}")


def check_within(metric: Metric, setting: str, low: float, high: float) -> None:
    """Refuse a setting whose number lies outside `low` to `high`."""
    value = getattr(metric, setting)
    if not low <= value <= high:
        raise SpecError(f"{metric.name}: {setting} must be {low:g} to {high:g}, got {value!r}")


def _declared(metric: Metric) -> Iterable[dataclasses.Field[Any]]:
    return dataclasses.fields(metric) if dataclasses.is_dataclass(metric) else ()


@cache
def _setting_types(cls: type) -> Mapping[str, Any]:
    try:
        return get_type_hints(cls)
    except Exception:  # A user's class may name types that only a type checker imports, or that nothing can evaluate.
        return {}


_builders: dict[str, Callable[[str], Any]] = {"LLM": build_llm}


def set_metric_builder(build: Callable[[str], Metric]) -> None:
    """Set the function that turns a metric's text into a metric. The registry, which imports this module, calls it."""
    _builders["Metric"] = _builders["Comparator"] = build


def _parse_setting(annotation: str, value: Any) -> Any:
    """A setting that is declared as an LLM or a metric, built where it is given as text."""
    if isinstance(value, list | tuple) and any(isinstance(element, str) for element in value):
        return tuple(_parse_setting(annotation, element) for element in value)
    if not isinstance(value, str) or re.search(r"\bstr\b", annotation):
        return value
    kind = re.search(r"\b(LLM|Metric|Comparator)\b", annotation)
    build = _builders.get(kind[1]) if kind else None
    return build(value) if build else value


def _score_record(metric: Metric, record: Record) -> Score:
    """One record's score. An exception that is not metrist's own is reported with the metric and the record."""
    try:
        value: Any = metric.score_record(record)
    except (MetristError, NotImplementedError):
        raise
    except Exception as error:
        place = f"item {label_item(record.item)!r} of system {record.system!r}"
        raise RunError(f"{metric.text} failed on {place}: {describe_exception(error)}", code="metric_failed") from error
    if isinstance(value, Score):
        if not math.isnan(value.value) or value.failure is not None:
            return value
        value = value.value
    if value is None or (isinstance(value, numbers.Real) and math.isnan(value)):
        return Score.failed(f"{metric.text} returned {value} for this record", FailureKind.not_scored)
    if isinstance(value, numbers.Real | np.bool_):
        return Score(value=float(value))
    place = f"item {label_item(record.item)!r} of system {record.system!r}"
    raise RunError(
        f"{metric.text}: score_record returned a {type(value).__name__} for {place}; return one number, a Score, or "
        "None where there is no score (several numbers go into Score(value=…, parts={…}))",
        code="metric_failed",
    )


def _to_spec(value: Any, *, in_full: bool = False) -> Any:
    """A setting as a spec holds it: a metric or an LLM within a metric is a spec within a spec."""
    if isinstance(value, Metric | LLM):
        return value.full_spec() if in_full else value.spec
    return tuple(_to_spec(element, in_full=in_full) for element in value) if isinstance(value, tuple) else value


_T = TypeVar("_T")


class Shard:
    """Records that are scored together, the work that their metrics share, and the runtime to compute with.

    `once(key, make)` computes a value for the first metric that needs it and keeps it for the others. `tokens` asks
    metrics that look at single tokens to return a score for each. Without a `runtime`, the environment decides.
    `results(key)` holds what a model that `key` names says of texts, for all metrics that ask it; a `part` shares it.
    """

    __slots__ = ("_made", "_results", "records", "runtime", "tokens")

    def __init__(self, records: Sequence[Record], *, tokens: bool = False, runtime: Runtime | None = None) -> None:
        self.records: Sequence[Record] = records if isinstance(records, RecordColumns) else tuple(records)
        self.tokens = tokens
        self.runtime = runtime or Runtime.current()
        self._made: dict[Hashable, Any] = {}
        self._results: dict[Hashable, dict[Any, Any]] = {}

    def part(self, records: Sequence[Record], *, tokens: bool | None = None) -> Shard:
        """A shard of some of the records."""
        part = Shard(records, tokens=self.tokens if tokens is None else tokens, runtime=self.runtime)
        part._results = self._results
        return part

    def results(self, key: Hashable) -> dict[Any, Any]:
        """What is known by text."""
        return self._results.setdefault(key, {})

    def __len__(self) -> int:
        return len(self.records)

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value of `make()`, computed at most once per shard and key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]


class PairShard(Sequence[Pair]):
    """Pairs that a comparator judges together, and the runtime to compute with."""

    __slots__ = ("pairs", "runtime")

    def __init__(self, pairs: Sequence[Pair], *, runtime: Runtime | None = None) -> None:
        self.pairs = tuple(pairs)
        self.runtime = runtime or Runtime.current()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        return self.pairs[index]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Each output with each of its references, as numbers into the shard's distinct texts.

    The pairs of record r are `starts[r]:starts[r + 1]`; pair p sets text `outputs[p]` against text `references[p]`.
    """

    texts: list[str]
    outputs: NDArray[np.int32]
    references: NDArray[np.int32]
    starts: NDArray[np.int64]


def pairs_of(shard: Shard) -> Pairs:
    """The shard's outputs with their references, each distinct text listed once. Computed once per shard."""
    pairs: Pairs | None = shard._made.get("pairs")
    if pairs is not None:
        return pairs
    columns = RecordColumns.of(shard.records)
    outputs, references = columns.outputs, columns.references
    counts = np.fromiter(map(len, references), np.int64, len(references))
    flat = list(chain.from_iterable(references))
    texts = list(dict.fromkeys(chain(outputs, flat)))
    number = dict(zip(texts, range(len(texts)), strict=True)).__getitem__
    pairs = shard._made["pairs"] = Pairs(
        texts,
        np.repeat(np.fromiter(map(number, outputs), np.int32, len(outputs)), counts),
        np.fromiter(map(number, flat), np.int32, len(flat)),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
    )
    return pairs


# --- From pairs to records
#
# A metric first scores pairs; the pairs of record r are `starts[r]:starts[r + 1]`, as in `Pairs.starts`. Each metric
# defines what `reduce='native'` means; for most it is the best reference.


def best_pairs(
    values: Numbers | NDArray[np.int64], starts: NDArray[np.int64], best: Best = "highest"
) -> NDArray[np.int64]:
    """The number of each record's best pair; the first of several equally good ones."""
    counts = _count_pairs(starts)
    if not len(counts):
        return np.empty(0, np.int64)
    choose = np.maximum if best == "highest" else np.minimum
    optimum = np.repeat(choose.reduceat(values, starts[:-1]), counts)
    numbers = np.where(values == optimum, np.arange(len(values)), len(values))
    return np.minimum.reduceat(numbers, starts[:-1]).astype(np.int64)


def mean_rows(rows: Numbers | NDArray[np.int64], starts: NDArray[np.int64]) -> Numbers:
    """The mean over each record's pairs, of one number per pair (p,) or of a row of numbers (p, k)."""
    counts = _count_pairs(starts)
    if not len(counts):
        return np.empty((0, *rows.shape[1:]))
    sums = np.add.reduceat(rows.astype(np.float64), starts[:-1], axis=0)
    return sums / counts.reshape(-1, *[1] * (rows.ndim - 1))


def reduce_references(
    rows: Numbers, values: Numbers, starts: NDArray[np.int64], reduce: str, best: Best = "highest"
) -> Numbers:
    """Per record, the mean of its pairs' rows (reduce='mean'), or the row of its best pair by `values` (otherwise)."""
    if (np.diff(starts) == 1).all():
        return rows  # One reference each.
    if reduce == "mean":
        return mean_rows(rows, starts)
    chosen: Numbers = rows[best_pairs(values, starts, best)]
    return chosen


def _count_pairs(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.diff(starts)
    if len(counts) and not counts.all():
        record = int(np.flatnonzero(counts == 0)[0])
        raise NeedsError(
            f"record {record} of the shard has no references; leave out such records before scoring", code="conflict"
        )
    return counts
