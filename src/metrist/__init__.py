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
    from metrist.evaluate.meta import meta_evaluate as meta_evaluate
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

_MODULES = {
    "InputError": "metrist.errors",
    "MetristError": "metrist.errors",
    "MissingExtra": "metrist.errors",
    "NeedsError": "metrist.errors",
    "RunError": "metrist.errors",
    "SpecError": "metrist.errors",
    "audit": "metrist.evaluate.audit.audit",
    "calibrate": "metrist.evaluate.audit.calibrate",
    "check": "metrist.evaluate.compare.check",
    "compare": "metrist.evaluate.compare.comparison",
    "explain": "metrist.evaluate.explain.explain",
    "meta_evaluate": "metrist.evaluate.meta",
    "stress": "metrist.evaluate.audit.stress",
    "verify": "metrist.run.verify",
    "worst": "metrist.evaluate.explain.worst",
    "Grid": "metrist.grid",
    "read_records": "metrist.io.reader",
    "LLM": "metrist.llm.base",
    "complete": "metrist.llm.gateway",
    "Completion": "metrist.llm.messages",
    "Message": "metrist.llm.messages",
    "Sampling": "metrist.llm.messages",
    "FakeLLM": "metrist.llm.replay",
    "Metric": "metrist.metrics.base",
    "hash_file": "metrist.metrics.base",
    "Comparator": "metrist.metrics.comparator",
    "Judgment": "metrist.metrics.comparator",
    "LLMMetric": "metrist.metrics.llm_metric",
    "ModelMetric": "metrist.metrics.model_metric",
    "metric": "metrist.metrics.registry",
    "Shard": "metrist.metrics.base",
    "Error": "metrist.ratings",
    "Preference": "metrist.ratings",
    "Rating": "metrist.ratings",
    "Pair": "metrist.records",
    "Record": "metrist.records",
    "export": "metrist.run",
    "load": "metrist.run",
    "score": "metrist.run",
    "prefer": "metrist.run.prefer",
    "Run": "metrist.run.run",
    "open_run": "metrist.run.run",
    "Runtime": "metrist.runtime",
    "Failure": "metrist.scores",
    "FailureKind": "metrist.scores",
    "Score": "metrist.scores",
    "Scores": "metrist.scores",
}

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
