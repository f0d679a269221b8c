"""Meta-evaluation: join human judgments with metric scores and measure how well they agree, slice by slice."""

from __future__ import annotations

from metrist.evaluate.meta.dataset import JudgedDataset
from metrist.evaluate.meta.evaluate import evaluate, meta_evaluate
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.notes import advice
from metrist.evaluate.meta.results import Figure, MetaEvaluation
from metrist.evaluate.plans import MetaPlan

__all__ = ["Figure", "JudgedDataset", "MetaEvaluation", "MetaPlan", "advice", "evaluate", "join", "meta_evaluate"]
