"""Choose the best of several outputs of an item."""

from metrist.evaluate.rerank.choose import Choice, Reranked, rerank

__all__ = ["Choice", "Reranked", "rerank"]
