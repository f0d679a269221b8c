"""Choose the best of several outputs of an item."""

from metrist.evaluate.rerank.choose import ChosenOutput, Reranked, rerank

__all__ = ["ChosenOutput", "Reranked", "rerank"]
