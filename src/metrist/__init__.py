"""metrist scores generated text, explains its errors, and tells which metric to trust on your own data.

    import metrist

    results = metrist.score("outputs.jsonl", ["rougeL(stem=True)", "chrf"])
    results.table()

Names are imported when they are first used, so that `import metrist` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from metrist._version import __version__ as __version__

if TYPE_CHECKING:
    import metrist.train as train
    from metrist.errors import InputError as InputError
    from metrist.errors import MetristError as MetristError
    from metrist.errors import MissingExtra as MissingExtra
    from metrist.errors import NeedsError as NeedsError
    from metrist.errors import RunError as RunError
    from metrist.errors import SpecError as SpecError
    from metrist.evaluate.audit.audit import audit as audit
    from metrist.evaluate.audit.calibrate import calibrate as calibrate
    from metrist.evaluate.audit.stress import stress as stress
    from metrist.evaluate.compare.check import check as check
    from metrist.evaluate.compare.comparison import compare as compare
    from metrist.evaluate.explain.explain import explain as explain
    from metrist.evaluate.explain.worst import worst as worst
    from metrist.evaluate.leaderboard import leaderboard as leaderboard
    from metrist.evaluate.meta import meta_evaluate as meta_evaluate
    from metrist.evaluate.rerank.rerank import rerank as rerank
    from metrist.grid import Grid as Grid
    from metrist.io.reader import read_records as read_records
    from metrist.llm.base import LLM as LLM
    from metrist.llm.gateway import complete as complete
    from metrist.llm.messages import Completion as Completion
    from metrist.llm.messages import Message as Message
    from metrist.llm.messages import Sampling as Sampling
    from metrist.llm.replay import FakeLLM as FakeLLM
    from metrist.metrics.base import Metric as Metric
    from metrist.metrics.base import Shard as Shard
    from metrist.metrics.base import hash_file as hash_file
    from metrist.metrics.comparator import Comparator as Comparator
    from metrist.metrics.comparator import Judgment as Judgment
    from metrist.metrics.llm_metric import LLMMetric as LLMMetric
    from metrist.metrics.model_metric import ModelMetric as ModelMetric
    from metrist.metrics.registry import metric as metric
    from metrist.ratings import Error as Error
    from metrist.ratings import Preference as Preference
    from metrist.ratings import Rating as Rating
    from metrist.records import Pair as Pair
    from metrist.records import Record as Record
    from metrist.run import export as export
    from metrist.run import load as load
    from metrist.run import score as score
    from metrist.run.prefer import prefer as prefer
    from metrist.run.run import Run as Run
    from metrist.run.run import open_run as open_run
    from metrist.run.verify import verify as verify
    from metrist.runtime import Runtime as Runtime
    from metrist.scores import Failure as Failure
    from metrist.scores import FailureKind as FailureKind
    from metrist.scores import Score as Score
    from metrist.scores import Scores as Scores

_NAMES = {
    "metrist.errors": ("InputError", "MetristError", "MissingExtra", "NeedsError", "RunError", "SpecError"),
    "metrist.evaluate.audit.audit": ("audit",),
    "metrist.evaluate.audit.calibrate": ("calibrate",),
    "metrist.evaluate.audit.stress": ("stress",),
    "metrist.evaluate.compare.check": ("check",),
    "metrist.evaluate.compare.comparison": ("compare",),
    "metrist.evaluate.explain.explain": ("explain",),
    "metrist.evaluate.explain.worst": ("worst",),
    "metrist.evaluate.leaderboard": ("leaderboard",),
    "metrist.evaluate.meta": ("meta_evaluate",),
    "metrist.evaluate.rerank.rerank": ("rerank",),
    "metrist.grid": ("Grid",),
    "metrist.io.reader": ("read_records",),
    "metrist.llm.base": ("LLM",),
    "metrist.llm.gateway": ("complete",),
    "metrist.llm.messages": ("Completion", "Message", "Sampling"),
    "metrist.llm.replay": ("FakeLLM",),
    "metrist.metrics.base": ("Metric", "hash_file", "Shard"),
    "metrist.metrics.comparator": ("Comparator", "Judgment"),
    "metrist.metrics.llm_metric": ("LLMMetric",),
    "metrist.metrics.model_metric": ("ModelMetric",),
    "metrist.metrics.registry": ("metric",),
    "metrist.ratings": ("Error", "Preference", "Rating"),
    "metrist.records": ("Pair", "Record"),
    "metrist.run": ("export", "load", "score"),
    "metrist.run.prefer": ("prefer",),
    "metrist.run.run": ("Run", "open_run"),
    "metrist.run.verify": ("verify",),
    "metrist.runtime": ("Runtime",),
    "metrist.scores": ("Failure", "FailureKind", "Score", "Scores"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_MODULES)
__all__ += ["train"]


def __getattr__(name: str) -> Any:
    if name == "train":  # A package, which importing it makes an attribute.
        return importlib.import_module("metrist.train")
    if name not in _MODULES:
        raise AttributeError(f"module 'metrist' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
