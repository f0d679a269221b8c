"""Checks a metric's settings against the types that its class declares, before the metric is made."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, Union, get_args, get_origin

from metrist.errors import SpecError, did_you_mean
from metrist.llm import base as llm_catalog
from metrist.llm.base import LLM
from metrist.metrics.base import Metric, set_metric_builder
from metrist.models.devices import Dtype, dtype_problem
from metrist.spec import Spec, parse


def check_settings(cls: type, name: str, settings: Mapping[str, Any]) -> None:
    """Refuse unknown settings (naming the nearest), values of a type that the setting does not take, and the lack of a
    setting that has no default."""
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else []
    known = [f.name for f in fields]
    for key, value in settings.items():
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SpecError(f"{name} has no setting {key!r}; {takes}{did_you_mean(key, known)}")
        if hints[key] == Dtype and (fault := dtype_problem(value)):
            raise SpecError(f"{name}: {fault}")
        if not _fits(value, hints[key]):
            raise SpecError(f"{name}: {key} must be {_words(hints[key])}, got {_shown(key, value)}")
    for setting in fields:
        if setting.name not in settings and setting.default is setting.default_factory is dataclasses.MISSING:
            wanted = f"{name}({setting.name}=...), {_words(hints[setting.name])}"
            raise SpecError(f"{name} needs the setting {setting.name!r}: {wanted}")


def takes_metrics(cls: type, key: str) -> bool:
    """Whether a setting of that class is a metric itself, or a list of them."""
    return _holds(Metric, typing.get_type_hints(cls).get(key))


def takes_llms(cls: type, key: str) -> bool:
    """Whether a setting of that class is an LLM, or a list of them."""
    return _holds(LLM, typing.get_type_hints(cls).get(key))


def _holds(kind: type, hint: Any) -> bool:
    return _is(kind, hint) or any(_holds(kind, inner) for inner in get_args(hint))


def _is(kind: type, hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _shown(key: str, value: Any) -> str:
    if isinstance(value, Spec):
        return f"{value}, which is no string without quotes: {key}='{value}'"
    return repr(value)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if origin is tuple:
        inner = get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(element, inner) for element in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint) or (hint is type(None) and value is None)
    if _is(Metric, hint) or _is(LLM, hint):
        return isinstance(value, hint)
    return True  # Richer types check themselves.


_PLAIN = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}


def _words(hint: Any) -> str:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, inside))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inside))
    if origin is tuple:
        return f"a list, each {_words(inside[0])}"
    if _is(Metric, hint):
        return "a metric without quotes, such as chrf(word_order=2)"
    if _is(LLM, hint):
        return "an LLM without quotes, such as openai(model='gpt-4o-mini')"
    return _PLAIN.get(hint, str(hint))


# Which metrics there are, by name. A metric's module is imported only when the metric is asked for.


ENTRY_POINTS = "metrist.metrics"
_ONLY_FROM = "taken only from Python and the command line (metrist run: --allow-import)"


@dataclass(frozen=True, slots=True)
class _Entry:
    module: str
    attribute: str
    preset: Mapping[str, Any] = field(default_factory=dict)


_BUILTIN: Mapping[str, _Entry] = {
    **{f"rouge{n}": _Entry("metrist.metrics.lexical.rouge", "RougeN", {"order": n}) for n in range(1, 10)},
    "rougeL": _Entry("metrist.metrics.lexical.rouge", "RougeL"),
    "rougeLsum": _Entry("metrist.metrics.lexical.rouge", "RougeLsum"),
    "bleu": _Entry("metrist.metrics.lexical.bleu", "Bleu"),
    "chrf": _Entry("metrist.metrics.lexical.chrf", "Chrf"),
    "ter": _Entry("metrist.metrics.lexical.ter", "Ter"),
    "meteor": _Entry("metrist.metrics.lexical.meteor", "Meteor"),
    "exact": _Entry("metrist.metrics.lexical.match", "Exact"),
    "token_f1": _Entry("metrist.metrics.lexical.match", "TokenF1"),
    "distinct": _Entry("metrist.metrics.lexical.descriptive", "Distinct"),
    "length": _Entry("metrist.metrics.lexical.descriptive", "Length"),
    "copy_rate": _Entry("metrist.metrics.lexical.descriptive", "CopyRate"),
    "bertscore": _Entry("metrist.metrics.embedding.bertscore", "BertScore"),
    "moverscore": _Entry("metrist.metrics.embedding.moverscore", "MoverScore"),
    "embedding_cosine": _Entry("metrist.metrics.embedding.embedding", "EmbeddingCosine"),
    "likelihood": _Entry("metrist.metrics.likelihood.likelihood", "Likelihood"),
    "bartscore": _Entry("metrist.metrics.likelihood.likelihood", "BartScore"),
    "bartscore_large": _Entry("metrist.metrics.likelihood.likelihood", "BartScoreLarge"),
    "bartscore_cnn": _Entry("metrist.metrics.likelihood.likelihood", "BartScoreCnn"),
    "bartscore_para": _Entry("metrist.metrics.likelihood.likelihood", "BartScorePara"),
    "prism_style": _Entry("metrist.metrics.likelihood.likelihood", "PrismStyle"),
    "gptscore": _Entry("metrist.metrics.likelihood.causal", "GptScore"),
    "perplexity": _Entry("metrist.metrics.likelihood.causal", "Perplexity"),
    "preference": _Entry("metrist.metrics.preference", "Preference"),
    "calibrated": _Entry("metrist.metrics.calibrated", "Calibrated"),
    "tigerscore": _Entry("metrist.metrics.errors.tigerscore", "TigerScore"),
    "error_analysis": _Entry("metrist.metrics.errors.error_analysis", "ErrorAnalysis"),
    "judge": _Entry("metrist.metrics.judge.judge", "Judge"),
    "panel": _Entry("metrist.metrics.judge.panel", "Panel"),
    "comet": _Entry("metrist.metrics.external.packages", "Comet"),
    "bleurt": _Entry("metrist.metrics.external.packages", "Bleurt"),
    "unieval": _Entry("metrist.metrics.external.packages", "UniEval"),
    "external": _Entry("metrist.metrics.external.program", "Program"),
    "by_score": _Entry("metrist.metrics.comparator", "ByScore"),
    "judge_pair": _Entry("metrist.metrics.judge.pair", "JudgePair"),
    "panel_pair": _Entry("metrist.metrics.judge.panel", "PanelPair"),
}


_DIRECTIONS: Mapping[str, str] = {
    "src_hypo": "source->output",
    "ref_hypo": "reference->output",
    "hypo_ref": "output->reference",
    "avg_f": "f",
}
_BARTSCORES: Mapping[str, str] = {
    "bart_score": "bartscore_large",
    "bart_score_cnn": "bartscore_cnn",
    "bart_score_para": "bartscore_para",
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
    "bartscorer": "bartscore",
    "gpt_score": "gptscore",
    "ppl": "perplexity",
    "prism": "prism_style, with another model than Prism's own",
    **_BARTSCORES,
    **{
        f"{name}_{direction}": f"{ours}(direction={way!r})"
        for name, ours in _BARTSCORES.items()
        for direction, way in _DIRECTIONS.items()
    },
}


#: Metrics that need settings, as they are shown where none are given.
_EXAMPLES: Mapping[str, str] = {
    "tigerscore": "tigerscore(llm=transformers(model='TIGER-Lab/TIGERScore-7B', turns='none'))",
    "error_analysis": "error_analysis(llm=openai(model='gpt-4o-mini'), task='summarization')",
    "calibrated": "calibrated(metric=chrf, by='calibration.json')",
    "external": "external(command='my_program')",
    "judge": "judge(llm=openai(model='gpt-4o-mini'))",
    "panel": "panel(judges=[judge(llm=openai(model='gpt-4o-mini')), judge(llm=openai(model='gpt-4o'))])",
    "by_score": "by_score(metric=rougeL)",
    "judge_pair": "judge_pair(llm=openai(model='gpt-4o-mini'))",
    "panel_pair": "panel_pair(judges=[judge_pair(llm=openai(model='gpt-4o-mini')), by_score(metric=rougeL)])",
}


def names() -> list[str]:
    """All names that a spec can start with: metrist's own, then those that other packages add."""
    return [*_BUILTIN, *(name for name in _added() if name not in _BUILTIN)]


def metric(text: str) -> Metric:
    """The metric that a text such as `chrf(word_order=2)` names, ready to use."""
    return build(text)


def example(name: str) -> Metric:
    """The metric of that name with its defaults, or with the settings of an example where it cannot do without."""
    return build(_EXAMPLES.get(name, name))


def build(metric: str | Spec | Metric, *, allow_import: bool = True, asks: bool = True) -> Metric:
    """The metric that a text names. A dotted name is imported, unless the text comes from a file or a request
    (`allow_import=False`): then nothing is taken either that would run code or send what environment variables hold.
    With `asks=False` the metric only stands for scores that are there: an LLM of that kind is taken, but mute."""
    if isinstance(metric, Metric):
        return metric
    spec = _parsed(metric) if isinstance(metric, str) else metric
    cls, preset = _look_up(spec.name, allow_import)
    if taken := preset.keys() & spec.settings.keys():
        raise SpecError(f"{spec.name} already says its {min(taken)}")
    if not allow_import:
        _check_runs_nothing(cls, spec)
    settings = {**preset, **spec.settings, **_within(cls, spec, allow_import, asks)}
    check_settings(cls, spec.name, settings)
    made = cls(**settings)
    if not isinstance(made, Metric):
        raise SpecError(f"{spec.name} is not a metric: it must be a subclass of metrist.Metric")
    return made


def _check_runs_nothing(cls: type, spec: Spec) -> None:
    if named := set(getattr(cls, "programs", ())) & spec.settings.keys():
        raise SpecError(f"{spec.name}({min(named)}=…) names a program to run, {_ONLY_FROM}")
    if spec.settings.get("trust_remote_code"):
        raise SpecError(f"{spec.name}(trust_remote_code=True) runs code that comes with the model, {_ONLY_FROM}")


def _within(cls: type, spec: Spec, allow_import: bool, asks: bool) -> dict[str, Any]:
    """The settings that are metrics or LLMs themselves, built."""

    def metric(inner: Spec) -> Metric:
        return build(inner, allow_import=allow_import, asks=asks)

    def llm(inner: Spec) -> LLM:
        made = llm_catalog.build_llm(inner)
        if allow_import or (risk := made.risks()) is None:
            return made
        if asks:
            raise SpecError(f"{risk}, {_ONLY_FROM}")
        return made.disable(f"{risk}, and its text comes from a file: name the metric yourself to have it asked")

    given = spec.settings.items()
    metrics = {k: _inner(v, metric) for k, v in given if takes_metrics(cls, k)}
    return {**metrics, **{k: _inner(v, llm) for k, v in given if takes_llms(cls, k)}}


def _inner(value: Any, make: Callable[[Spec], Any]) -> Any:
    """What a spec within a spec makes; what is no spec is left for the check of settings to refuse."""
    if isinstance(value, tuple):
        return tuple(_inner(one, make) for one in value)
    return make(value) if isinstance(value, Spec) else value


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
        raise SpecError(f"{name!r} is an import path, {_ONLY_FROM}")
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
    if not (isinstance(found, type) and issubclass(found, Metric)):
        raise SpecError(f"{name!r} is not a metric: it must be a class derived from metrist.Metric")
    return found


set_metric_builder(build)
