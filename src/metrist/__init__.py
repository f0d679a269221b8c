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
    from metrist.errors import InputError as InputError
    from metrist.errors import MetristError as MetristError
    from metrist.errors import MissingExtra as MissingExtra
    from metrist.errors import NeedsError as NeedsError
    from metrist.errors import RunError as RunError
    from metrist.errors import SpecError as SpecError
    from metrist.evaluate.check import check as check
    from metrist.evaluate.compare import compare as compare
    from metrist.evaluate.explain import explain as explain
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
    from metrist.metrics.comparator import Comparator as Comparator
    from metrist.metrics.comparator import Judgment as Judgment
    from metrist.metrics.registry import metric as metric
    from metrist.metrics.shard import Shard as Shard
    from metrist.ratings import Error as Error
    from metrist.ratings import Preference as Preference
    from metrist.ratings import Rating as Rating
    from metrist.records import Pair as Pair
    from metrist.records import Record as Record
    from metrist.run import load as load
    from metrist.run import score as score
    from metrist.run.prefer import prefer as prefer
    from metrist.runtime import Runtime as Runtime
    from metrist.scores import Failure as Failure
    from metrist.scores import FailureKind as FailureKind
    from metrist.scores import Score as Score
    from metrist.scores import Scores as Scores

_HOME = {
    "Runtime": "metrist.runtime",
    "FakeLLM": "metrist.llm.replay",
    "complete": "metrist.llm.gateway",
    "Sampling": "metrist.llm.messages",
    "Message": "metrist.llm.messages",
    "Completion": "metrist.llm.messages",
    "LLM": "metrist.llm.base",
    "FailureKind": "metrist.scores",
    "Failure": "metrist.scores",
    "InputError": "metrist.errors",
    "MetristError": "metrist.errors",
    "MissingExtra": "metrist.errors",
    "NeedsError": "metrist.errors",
    "RunError": "metrist.errors",
    "SpecError": "metrist.errors",
    "Grid": "metrist.grid",
    "Metric": "metrist.metrics.base",
    "Comparator": "metrist.metrics.comparator",
    "Judgment": "metrist.metrics.comparator",
    "Shard": "metrist.metrics.shard",
    "Error": "metrist.ratings",
    "Preference": "metrist.ratings",
    "Rating": "metrist.ratings",
    "Pair": "metrist.records",
    "Record": "metrist.records",
    "Score": "metrist.scores",
    "Scores": "metrist.scores",
    "check": "metrist.evaluate.check",
    "compare": "metrist.evaluate.compare",
    "explain": "metrist.evaluate.explain",
    "load": "metrist.run",
    "meta_evaluate": "metrist.evaluate.meta",
    "metric": "metrist.metrics.registry",
    "prefer": "metrist.run.prefer",
    "read_records": "metrist.io.reader",
    "score": "metrist.run",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'metrist' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
