"""What a metric is: settings, what it needs, and two functions. `score` turns records into rows of numbers, `pool`
turns summed rows into a system's score."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import marshal
import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.errors import SpecError, did_you_mean
from metrist.llm.base import LLM
from metrist.metrics.shard import Shard
from metrist.records import Need
from metrist.scores import Score, Scores
from metrist.spec import Spec

Reduce = Literal["native", "max", "mean"]


class Metric:
    """Base of all metrics. A subclass is a frozen dataclass: its fields are its settings."""

    #: None: the metric describes and does not judge.
    higher_is_better: ClassVar[bool | None] = True
    bounds: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    #: The optional dependency group that the metric needs, for the message that asks for it.
    extra: ClassVar[str | None] = None
    #: How the metric is called in the catalog; None for metrics that are not in it.
    catalog_name: ClassVar[str | None] = None
    #: Settings that the name itself carries, as rouge2 carries its order.
    in_name: ClassVar[tuple[str, ...]] = ()
    #: Whether the metric holds something large, such as a model: a run then uses one worker per device, not per core.
    resident: ClassVar[bool] = False
    #: Whether the metric calls an LLM: worker processes then share the limits on requests, and failed calls are retried
    #: when the run is resumed. A metric that holds such a metric or an LLM as a setting need not repeat it.
    asks_llm: ClassVar[bool] = False
    #: Settings that name a program to run: like import paths, they are taken from Python and the command line alone.
    programs: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> tuple[Need, ...]:
        """The fields of a record that the metric cannot do without. Most classes say it once, as a class variable;
        where it depends on a setting, it is a property."""
        return ()

    @property
    def name(self) -> str:
        """How the metric is called in a spec. Metrics from outside the catalog are called by their import path."""
        return self.catalog_name or f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def text(self) -> str:
        """The metric as text, with the settings that differ from their defaults: reads back to an equal metric."""
        return str(self.spec)

    @property
    def spec(self) -> Spec:
        """What the text says, as a name with settings."""
        defaults = {f.name: f.default for f in _fields(self)}
        return Spec(self.name, {k: _said(v) for k, v in self._settings().items() if v != defaults[k]})

    @property
    def signature(self) -> str:
        """All that a reader needs to compute the same numbers again."""
        facts = {"metrist": __version__, **self._code(), **self.facts()}
        return " | ".join([str(self.full_spec()), *(f"{k} {v}" for k, v in facts.items())])

    def full_spec(self) -> Spec:
        """The metric's name with all its settings, those of metrics and LLMs within it too."""
        return Spec(self.name, {k: _said(v, in_full=True) for k, v in self._settings().items()})

    def facts(self) -> Mapping[str, str]:
        """What else the numbers depend on: hashes of weights and prompts, versions of tables."""
        return {}

    def score(self, shard: Shard) -> Scores:
        """One score per record of the shard, in order."""
        raise NotImplementedError(f"{type(self).__name__} must define score(self, shard)")

    def remarks(self, scores: Scores) -> list[str]:  # noqa: ARG002
        """What a reader of all these scores should know: shown under every table of a run."""
        return []

    def against(self, first: Score, second: Score) -> str:
        """Two scores set against each other, in the words of a comparator that explains its choice."""
        return f"{first.value:.6g} against {second.value:.6g}"

    def pool(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """System scores from summed rows of statistics, along the last axis; NaN where nothing was scored."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: NDArray[np.float64] = sums[..., 0] / sums[..., 1]
        return mean

    def _settings(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in _fields(self)}

    def _code(self) -> Mapping[str, str]:
        """For metrics that metrist's version does not cover: a hash of the code; an edit makes another metric."""
        if type(self).__module__.split(".")[0] == "metrist":
            return {}
        return {"code": hashlib.sha256(_code_of(type(self))).hexdigest()[:12]}


def _code_of(cls: type) -> bytes:
    """The code that a metric from outside runs: the modules of its class and of those it derives from."""
    outside = [one for one in cls.__mro__ if one.__module__.split(".")[0] not in ("metrist", "builtins")]
    return b"".join(map(_source_of, outside))


def _source_of(cls: type) -> bytes:
    """The source of the class's module; of the class alone where the module is the script or prompt that runs; or what
    Python made of it where there is no source to look up."""
    module = sys.modules.get(cls.__module__)
    whole = module is not None and cls.__module__ != "__main__"
    try:
        return inspect.getsource(module if whole and module else cls).encode("utf-8", "surrogatepass")
    except (OSError, TypeError):
        functions = sorted((name, f) for name, f in vars(cls).items() if inspect.isfunction(f))
        # Version 2 writes nothing that depends on how often an object happens to be referred to.
        return b"".join(marshal.dumps((name, f.__code__), 2) for name, f in functions)


def check_choice(metric: Metric, setting: str, choices: Iterable[str]) -> None:
    """Refuse a setting whose value is none of the choices, naming the nearest."""
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


def _fields(metric: Any) -> list[dataclasses.Field[Any]]:
    """The settings that make the metric what it is. One declared with `field(compare=False)` does not: a path of this
    machine, a time limit."""
    declared = dataclasses.fields(metric) if dataclasses.is_dataclass(metric) else ()
    return [f for f in declared if f.init and f.compare and f.name not in metric.in_name]


def _said(value: Any, *, in_full: bool = False) -> Any:
    """A setting as a spec says it: a metric or an LLM within a metric is a spec within a spec."""
    if isinstance(value, Metric | LLM):
        return value.full_spec() if in_full else value.spec
    return tuple(_said(one, in_full=in_full) for one in value) if isinstance(value, tuple) else value
