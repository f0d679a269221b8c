"""Which metrics there are, by name. A metric's module is imported only when the metric is asked for."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from metrist.errors import SpecError, did_you_mean
from metrist.metrics.base import Metric
from metrist.metrics.settings import check_settings
from metrist.spec import Spec, parse

ENTRY_POINTS = "metrist.metrics"


@dataclass(frozen=True, slots=True)
class _Entry:
    module: str
    attribute: str
    preset: Mapping[str, Any] = field(default_factory=dict)


_BUILTIN: Mapping[str, _Entry] = {
    **{f"rouge{n}": _Entry("metrist.metrics.rouge", "RougeN", {"order": n}) for n in range(1, 10)},
    "rougeL": _Entry("metrist.metrics.rouge", "RougeL"),
    "rougeLsum": _Entry("metrist.metrics.rouge", "RougeLsum"),
    "bleu": _Entry("metrist.metrics.bleu", "Bleu"),
    "chrf": _Entry("metrist.metrics.chrf", "Chrf"),
    "ter": _Entry("metrist.metrics.ter", "Ter"),
    "meteor": _Entry("metrist.metrics.meteor", "Meteor"),
    "exact": _Entry("metrist.metrics.match", "Exact"),
    "token_f1": _Entry("metrist.metrics.match", "TokenF1"),
    "distinct": _Entry("metrist.metrics.descriptive", "Distinct"),
    "length": _Entry("metrist.metrics.descriptive", "Length"),
    "copy_rate": _Entry("metrist.metrics.descriptive", "CopyRate"),
}


#: What people call a metric elsewhere.
_ELSEWHERE: Mapping[str, str] = {
    "chrf++": "chrf(word_order=2)",
    "rouge-1": "rouge1",
    "rouge-2": "rouge2",
    "rouge-l": "rougeL",
    "rouge-lsum": "rougeLsum",
    "sacrebleu": "bleu",
    "exact_match": "exact",
    "em": "exact",
    "f1": "token_f1",
    "rouge": "rougeL",
}


def names() -> list[str]:
    """All names that a spec can start with: metrist's own, then those that other packages add."""
    return [*_BUILTIN, *(name for name in _added() if name not in _BUILTIN)]


def metric(text: str) -> Metric:
    """The metric that a text such as `chrf(word_order=2)` names, ready to use."""
    return build(text)


def build(metric: str | Spec | Metric, *, allow_import: bool = True) -> Metric:
    """The metric that a text names. A dotted name is imported, unless the text comes from a file or a request
    (`allow_import=False`)."""
    if isinstance(metric, Metric):
        return metric
    spec = _parsed(metric) if isinstance(metric, str) else metric
    cls, preset = _look_up(spec.name, allow_import)
    if taken := preset.keys() & spec.settings.keys():
        raise SpecError(f"{spec.name} already says its {min(taken)}")
    settings = {**preset, **spec.settings}
    check_settings(cls, spec.name, settings)
    made = cls(**settings)
    if not isinstance(made, Metric):
        raise SpecError(f"{spec.name} is not a metric: it must be a subclass of metrist.Metric")
    return made


def _parsed(text: str) -> Spec:
    if (known := _ELSEWHERE.get(text.strip().lower())) and text not in names():
        raise SpecError(f"no metric named {text!r}; here it is {known}")
    return parse(text)


def _look_up(name: str, allow_import: bool) -> tuple[type, Mapping[str, Any]]:
    if entry := _BUILTIN.get(name):
        return getattr(importlib.import_module(entry.module), entry.attribute), entry.preset
    if added := _added().get(name):
        return _loaded(added), {}
    if "." in name and allow_import:
        return _imported(name), {}
    if "." in name:
        raise SpecError(
            f"{name!r} is an import path, taken only from Python and the command line (metrist run: --allow-import)"
        )
    raise SpecError(f"no metric named {name!r}{did_you_mean(name, names())}")


def _added() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _loaded(point: EntryPoint) -> type:
    try:
        found: type = point.load()
    except Exception as fault:
        of = f" of the package {point.dist.name}" if point.dist else ""
        raise SpecError(f"cannot load the metric {point.name!r}{of}: {type(fault).__name__}: {fault}") from fault
    return found


def _imported(name: str) -> type:
    module, _, attribute = name.rpartition(".")
    if os.getcwd() not in sys.path and "" not in sys.path:
        # An installed script does not look into the current folder, where the user's own metric usually lies.
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as fault:
        raise SpecError(f"cannot import the metric {name!r}: no module named {fault.name!r}") from None
    except AttributeError:
        raise SpecError(f"cannot import the metric {name!r}: {module} has no {attribute!r}") from None
    except Exception as fault:
        raise SpecError(f"cannot import the metric {name!r}: {type(fault).__name__}: {fault}") from fault
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise SpecError(f"{name!r} is not a metric: it must be a frozen dataclass derived from metrist.Metric")
    return found
