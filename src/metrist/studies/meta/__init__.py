"""Which metric can be trusted: human judgments and scores joined, agreement measured, slice by slice."""

from __future__ import annotations

from metrist.studies.meta.evaluate import evaluate, meta_evaluate
from metrist.studies.meta.join import join
from metrist.studies.meta.judged import Judged
from metrist.studies.meta.plan import Plan
from metrist.studies.meta.recommend import advice
from metrist.studies.meta.result import Figure, MetaEvaluation
from metrist.studies.meta.shows import SHOWS

__all__ = ["SHOWS", "Figure", "Judged", "MetaEvaluation", "Plan", "advice", "evaluate", "join", "meta_evaluate"]
