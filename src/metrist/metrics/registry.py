"""Metrics by name: which there are, and how a text such as `chrf(word_order=2)` becomes a metric.

The module of a metric is imported only when the metric is built.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from metrist.errors import SpecError, did_you_mean
from metrist.llm.base import LLM, build_llm
from metrist.metrics.base import Metric, set_metric_builder
from metrist.spec import Spec, parse, split_list, split_name

MetricLike = str | Spec | Metric | type[Metric]
MetricList = MetricLike | Mapping[str, MetricLike] | Iterable[MetricLike]

ENTRY_POINTS = "metrist.metrics"
_TRUSTED_ONLY = "accepted only from Python and the command line (metrist run: --allow-import)"

#: The metrics that ship, by name: entry points as those of other packages, in code because the sources also run
#: without being installed.
_SHIPPED: Mapping[str, EntryPoint] = {
    name: EntryPoint(name, f"metrist.metrics.{place}", ENTRY_POINTS)
    for name, place in {
        **{f"rouge{n}": "lexical.rouge:RougeN" for n in range(1, 10)},
        "rougeL": "lexical.rouge:RougeL",
        "rougeLsum": "lexical.rouge:RougeLsum",
        "bleu": "lexical.bleu:Bleu",
        "chrf": "lexical.chrf:Chrf",
        "ter": "lexical.ter:Ter",
        "meteor": "lexical.meteor:Meteor",
        "exact": "lexical.answer:Exact",
        "token_f1": "lexical.answer:TokenF1",
        "answer": "lexical.answer:Answer",
        "distinct": "lexical.descriptive:Distinct",
        "length": "lexical.descriptive:Length",
        "copy_rate": "lexical.descriptive:CopyRate",
        "bertscore": "embedding.bertscore:BertScore",
        "moverscore": "embedding.moverscore:MoverScore",
        "embedding_cosine": "embedding.embedding:EmbeddingCosine",
        "likelihood": "likelihood.likelihood:Likelihood",
        "bartscore": "likelihood.likelihood:BartScore",
        "bartscore_large": "likelihood.likelihood:BartScoreLarge",
        "bartscore_cnn": "likelihood.likelihood:BartScoreCnn",
        "bartscore_para": "likelihood.likelihood:BartScorePara",
        "prism_style": "likelihood.likelihood:PrismStyle",
        "gptscore": "likelihood.causal:GptScore",
        "perplexity": "likelihood.causal:Perplexity",
        "preference": "trained.preference:PreferenceMetric",
        "answer_preference": "trained.answer_preference:AnswerPreference",
        "fluency": "trained.fluency:Fluency",
        "translation_quality": "trained.translation_quality:TranslationQuality",
        "consistency": "trained.consistency:Consistency",
        "answer_relevance": "trained.relevance:AnswerRelevance",
        "context_relevance": "trained.relevance:ContextRelevance",
        "rag": "trained.relevance:Rag",
        "quality": "trained.quality:Quality",
        "calibrated": "trained.calibrated:Calibrated",
        "errors": "errors.combined:Errors",
        "tigerscore": "errors.tigerscore:TigerScore",
        "error_analysis": "errors.error_analysis:ErrorAnalysis",
        "judge": "judge.judge:Judge",
        "panel": "judge.panel:Panel",
        "comet": "external.packages:Comet",
        "bleurt": "external.packages:Bleurt",
        "unieval": "external.packages:UniEval",
        "external": "external.program:Program",
        "by_score": "comparator:ByScore",
        "judge_pair": "judge.pair:JudgePair",
        "judge_choice": "judge.first_token:JudgeChoice",
        "judge_grade": "judge.first_token:JudgeGrade",
        "panel_pair": "judge.panel:PanelPair",
    }.items()
}
#: The families of the catalog, with the beginnings of their modules' names.
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "rouge": ("lexical.rouge",),
    "descriptive": ("lexical.descriptive",),
    "lexical": ("lexical.",),
    "embedding": ("embedding.",),
    "likelihood": ("likelihood.",),
    "preference": ("trained.preference", "trained.answer_preference", "trained.calibrated"),
    "trained": ("trained.",),
    "errors": ("errors.",),
    "judges": ("judge.", "comparator"),
    "external": ("external.",),
}
OTHER_FAMILY = "other packages"
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

#: Names that stand for a metric with settings: its text, and so its identity, is that on the right.
ALIASES: Mapping[str, str] = {"chrf++": "chrf(word_order=2)"}
#: Names that other tools use, and what the metric is called here.
_FOREIGN_NAMES: Mapping[str, str] = {
    "rouge-1": "rouge1",
    "rouge-2": "rouge2",
    "rouge-l": "rougeL",
    "rouge-lsum": "rougeLsum",
    "sacrebleu": "bleu",
    "exact_match": "exact",
    "em": "exact",
    "f1": "token_f1",
    "final_answer": "answer",
    "math_equal": "answer",
    "rouge": "rougeL",
    "bartscorer": "bartscore",
    "gpt_score": "gptscore",
    "ppl": "perplexity",
    "prism": "prism_style, with another model than Prism's own",
    **_BARTSCORES,
    **{
        f"{name}_{direction}": f"{ours}(direction={ours_direction!r})"
        for name, ours in _BARTSCORES.items()
        for direction, ours_direction in _DIRECTIONS.items()
    },
}


def names() -> list[str]:
    """All names that a spec can start with: metrist's own, then those that other packages add."""
    return [point.name for point in list_entry_points()]


def family(name: str) -> str:
    """The family of a metric of the catalog; that of metrics from installed packages is 'other packages'."""
    if name not in _SHIPPED:
        return OTHER_FAMILY
    module = _SHIPPED[name].module.removeprefix("metrist.metrics.")
    return next(family for family, modules in _FAMILIES.items() if module.startswith(modules))


def metric(text: str) -> Metric:
    """The metric that a text such as `chrf(word_order=2)` describes."""
    return build(text)


def example(name: str) -> Metric:
    """The metric of that name or text, with example settings where a name alone requires some."""
    cls = _find_class(name, allow_import=True)[0] if entry_point(name) else None
    return build((cls and cls.catalog_example) or name)


def build(metric: MetricLike, *, allow_import: bool = True, disable_risky_llms: bool = False) -> Metric:
    """Build a metric from its text, which may begin with a short name: `judge=judge(llm=…)`. A class is built with its
    defaults.

    `allow_import=False` is for texts from files and requests: it refuses dotted names and everything else that would
    run code or send the value of an environment variable. With `disable_risky_llms` such an LLM is accepted but cannot
    be called, for metrics whose scores are already stored.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, type):
        if not issubclass(metric, Metric):
            raise SpecError(f"the class {metric.__name__} is not a metric: derive it from metrist.Metric")
        check_settings(metric, metric.__name__, {})
        return metric()
    if not isinstance(metric, str | Spec):  # A common mistake, which the types rule out but nothing else does.
        raise SpecError(
            f"expected a metric, such as 'chrf' or a metrist.Metric, got {_describe_value(metric)}",
            code="invalid_value",
        )
    if isinstance(metric, str) and "=" in metric:
        name, text = split_name(metric)
        if name is not None and split_name(text)[0] is not None:
            raise SpecError(f"{metric!r} gives a metric two names: expected one, as in {name}={split_name(text)[1]}")
        if name is not None:
            built = build(text, allow_import=allow_import, disable_risky_llms=disable_risky_llms)
            return built.named(name)
    if isinstance(metric, str):
        metric = ALIASES.get(metric.strip().lower(), metric)
    if isinstance(metric, str) and (ours := _FOREIGN_NAMES.get(metric.strip().lower())) and metric not in names():
        raise SpecError(f"no metric named {metric!r}; here it is {ours}", code="unknown_name")
    spec = parse(metric) if isinstance(metric, str) else metric
    cls, preset = _find_class(spec.name, allow_import)
    if repeated := preset.keys() & spec.settings.keys():
        raise SpecError(f"{spec.name} already sets {min(repeated)} by its name; leave it out", code="conflict")
    if not allow_import:
        _check_trusted(cls, spec)
    settings = {**preset, **spec.settings}
    hints = typing.get_type_hints(cls) if spec.settings else {}
    for key, value in spec.settings.items():
        for kind in (Metric, LLM):
            if _mentions(kind, hints.get(key)):
                settings[key] = _build_nested(kind, value, allow_import, disable_risky_llms)
    check_settings(cls, spec.name, settings)
    return cls(**settings)


def build_all(metrics: MetricList, *, allow_import: bool = True) -> tuple[Metric, ...]:
    """Build metrics that were requested together: one or several, texts with commas between them included, or a
    mapping from short names to metrics. The same metric twice is once; two metrics of one name are refused."""
    if isinstance(metrics, Mapping):
        built = [build(metric, allow_import=allow_import).named(name) for name, metric in metrics.items()]
    else:
        alone = isinstance(metrics, str | Spec | Metric | type)
        if not alone and not isinstance(metrics, Iterable):
            raise SpecError(
                f"expected metrics, such as ['rougeL', 'chrf'], got {_describe_value(metrics)}", code="missing_value"
            )
        several: Any = [metrics] if alone else metrics
        pieces = [p for m in several for p in (split_list(m) if isinstance(m, str) and "," in m else [m])]
        built = [build(piece, allow_import=allow_import) for piece in pieces]
    by_text: dict[str, Metric] = {}
    by_label: dict[str, Metric] = {}
    for metric in built:
        if (same := by_text.setdefault(metric.text, metric)).label != metric.label:
            raise SpecError(f"{metric.text} is requested as {same.label!r} and as {metric.label!r}: give it one name")
        if (other := by_label.setdefault(metric.label, metric)).text != metric.text:
            raise SpecError(f"{other.text} and {metric.text} are both called {metric.label!r}: give them two names")
    return tuple(by_text.values())


def _describe_value(value: Any) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= 80 else f'{shown[:80]}…'} ({type(value).__name__})"


def _check_trusted(cls: type, spec: Spec) -> None:
    if named := set(getattr(cls, "programs", ())) & spec.settings.keys():
        raise SpecError(f"{spec.name}({min(named)}=…) names a program to run, {_TRUSTED_ONLY}", code="untrusted")
    if spec.settings.get("trust_remote_code"):
        raise SpecError(
            f"{spec.name}(trust_remote_code=True) runs code that comes with the model, {_TRUSTED_ONLY}",
            code="untrusted",
        )


def _build_nested(kind: type, value: Any, allow_import: bool, disable_risky_llms: bool) -> Any:
    """The metric or LLM within a metric that a spec describes, or each of a list of specs. Other values stay, for
    `check_settings` to refuse."""
    if isinstance(value, tuple):
        return tuple(_build_nested(kind, element, allow_import, disable_risky_llms) for element in value)
    if not isinstance(value, Spec):
        return value
    if kind is Metric:
        return build(value, allow_import=allow_import, disable_risky_llms=disable_risky_llms)
    llm = build_llm(value)
    if allow_import or (risk := llm.risks()) is None:
        return llm
    if not disable_risky_llms:
        raise SpecError(f"{risk}, {_TRUSTED_ONLY}", code="untrusted")
    return llm.disable(f"{risk}, and its text comes from a file: name the metric yourself to have it called")


def _find_class(name: str, allow_import: bool) -> tuple[type[Metric], Mapping[str, Any]]:
    if point := entry_point(name):
        package = f" of the package {package_name(point)}"
        try:
            cls: type[Metric] = point.load()
        except (Exception, SystemExit) as error:  # The import of another package may fail in any way.
            reason = f"{type(error).__name__}: {error}"
            raise SpecError(f"cannot load the metric {point.name!r}{package}: {reason}") from error
        if not _is_subclass(cls, Metric):
            raise SpecError(f"{point.name!r}{package} is not a metric: {point.value} must be a class of metrist.Metric")
        return cls, cls.presets.get(name, {})
    if "." in name and allow_import:
        return _import_class(name), {}
    if "." in name:
        raise SpecError(f"{name!r} is an import path, {_TRUSTED_ONLY}", code="untrusted")
    hint = (
        did_you_mean(name, names())
        or f"; see `metrist list`, or name a metric of your own with its module: my_module.{name}"
    )
    raise SpecError(f"no metric named {name!r}{hint}", code="unknown_name")


def entry_point(name: str) -> EntryPoint | None:
    """Where the metric of that name is defined; None if neither metrist nor another package has one."""
    return _SHIPPED.get(name) or _find_added().get(name)


def list_entry_points() -> list[EntryPoint]:
    """Where the metrics of the catalog are defined, in its order."""
    return [*_SHIPPED.values(), *_find_added().values()]


def package_name(point: EntryPoint) -> str:
    """The name of the distribution that a metric comes from."""
    return point.dist.name if point.dist else point.module.partition(".")[0]


def _find_added() -> dict[str, EntryPoint]:
    """The metrics that other packages add. metrist's own names cannot be taken over."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in _SHIPPED}


def _import_class(name: str) -> type[Metric]:
    module_name, _, attribute = name.rpartition(".")
    if os.getcwd() not in sys.path and "" not in sys.path:
        # An installed script does not search the current folder, where a user's own metric usually is.
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SpecError(f"cannot import the metric {name!r}: no module named {error.name!r}") from None
    except Exception as error:
        raise SpecError(f"cannot import the metric {name!r}: {type(error).__name__}: {error}") from error
    try:
        cls = getattr(module, attribute)
    except AttributeError:
        raise SpecError(f"cannot import the metric {name!r}: {module_name} has no {attribute!r}") from None
    if not (isinstance(cls, type) and issubclass(cls, Metric)):
        raise SpecError(f"{name!r} is not a metric: it must be a class derived from metrist.Metric")
    return cls


# --- Checking settings


def check_settings(cls: type, name: str, settings: Mapping[str, Any]) -> None:
    """Refuse unknown settings, values of the wrong type, and missing settings that have no default."""
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else []
    known = [f.name for f in fields]
    for key, value in settings.items():
        if key not in known:
            takes = (
                f"it takes {', '.join(known)}" if known else "it takes none (settings are the fields of a dataclass)"
            )
            raise SpecError(f"{name} has no setting {key!r}; {takes}{did_you_mean(key, known)}", code="unknown_name")
        try:
            msgspec.convert(value, hints[key], dec_hook=_convert_own_type)
        except msgspec.ValidationError:
            shown = f"{value}; quote a string: {key}='{value}'" if isinstance(value, Spec) else repr(value)
            raise SpecError(f"{name}: {key} must be {_describe_type(hints[key])}, got {shown}") from None
        except (_RicherType, TypeError):
            continue
    for setting in fields:
        if setting.name not in settings and setting.default is setting.default_factory is dataclasses.MISSING:
            usage = f"{name}({setting.name}=...), {_describe_type(hints[setting.name])}"
            raise SpecError(f"{name} needs the setting {setting.name!r}: {usage}", code="missing_value")


def _is_subclass(hint: Any, kind: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _mentions(kind: type, hint: Any) -> bool:
    """Whether the type of a setting is that kind of object, or a list or union with it."""
    return _is_subclass(hint, kind) or any(_mentions(kind, inner) for inner in get_args(hint))


class _RicherType(Exception):
    """The type of a setting is a class whose values its metric checks itself."""


def _convert_own_type(kind: Any, value: Any) -> Any:
    """A value for a type that msgspec does not know. It compares the type of the result."""
    if not (_is_subclass(kind, Metric) or _is_subclass(kind, LLM)):
        raise _RicherType
    return value


_TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}


def _describe_type(hint: Any) -> str:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_describe_type, inside))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inside))
    if origin is tuple:
        return f"a list, each {_describe_type(inside[0])}"
    if _is_subclass(hint, Metric):
        return "a metric without quotes, such as chrf(word_order=2)"
    if _is_subclass(hint, LLM):
        return "an LLM without quotes, such as openai(model='gpt-4o-mini')"
    return _TYPE_NAMES.get(hint, str(hint))


set_metric_builder(build)
