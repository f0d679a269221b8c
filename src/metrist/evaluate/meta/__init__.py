"""Which metric can be trusted: human judgments and scores joined, agreement measured, slice by slice."""

from __future__ import annotations

from metrist.evaluate.meta.evaluate import evaluate, meta_evaluate
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.judged import Judged
from metrist.evaluate.meta.plan import Plan
from metrist.evaluate.meta.recommend import advice
from metrist.evaluate.meta.result import Figure, MetaEvaluation
from metrist.evaluate.meta.shows import SHOWS

__all__ = ["SHOWS", "Figure", "Judged", "MetaEvaluation", "Plan", "advice", "evaluate", "join", "meta_evaluate"]
