"""A likelihood model without weights: tokens are words between <s> and </s>, and a token's log-probability is a number
drawn from the condition, the token and its place. Its scores can be recomputed by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from metrist.models.protocols import Likelihoods

FAILING = "unspeakable"


def tokens_of(text: str, max_tokens: int | None = None) -> tuple[list[str], int]:
    """Return the tokens that fit, including <s> and </s>, and the number of words cut off."""
    words = text.split()
    room = len(words) if max_tokens is None else max_tokens - 2
    return ["<s>", *words[:room], "</s>"], max(len(words) - room, 0)


def logprob(condition: Sequence[str], token: str, place: int) -> float:
    digest = hashlib.sha256(repr((list(condition), token, place)).encode()).digest()
    return -5 * int.from_bytes(digest[:4], "big") / 2**32


class WordModel:
    """Records the pairs of each call in `calls`, so that tests can check what is scored together."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, str]]] = []

    @property
    def facts(self) -> Mapping[str, str]:
        return {"weights": "none"}

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        self.calls.append(list(pairs))
        logprobs: list[float] = []
        tokens: list[int] = []
        starts, failures, cut = [0], {}, []
        for n, (condition, target) in enumerate(pairs):
            condition_tokens, condition_cut = tokens_of(condition, max_tokens)
            target_tokens, target_cut = tokens_of(target, max_tokens)
            cut.append((condition_cut, target_cut))
            if FAILING in target:
                failures[n] = f"the target contains {FAILING}"
            else:
                logprobs += [logprob(condition_tokens, token, place) for place, token in enumerate(target_tokens)]
                tokens += [
                    int.from_bytes(hashlib.sha256(token.encode()).digest()[:4], "big") for token in target_tokens
                ]
            starts.append(len(logprobs))
        both = np.array(cut, dtype=np.int64).reshape(-1, 2)
        return Likelihoods(
            logprobs=np.array(logprobs, dtype=np.float32),
            tokens=np.array(tokens, dtype=np.int64),
            starts=np.array(starts, dtype=np.int64),
            condition_cut=both[:, 0],
            target_cut=both[:, 1],
            failures=failures,
        )

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        words = text.split()
        room = len(words) if max_tokens is None else max_tokens - 2
        return [" ".join(words[i : i + room]) for i in range(0, max(len(words), 1), max(room, 1))]

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        return tokens_of(target, max_tokens)[0]


def mean(condition: str, target: str, max_tokens: int | None = None) -> float:
    """The score of one pair, computed token by token."""
    condition_tokens, target_tokens = tokens_of(condition, max_tokens)[0], tokens_of(target, max_tokens)[0]
    total = sum(np.float32(logprob(condition_tokens, token, place)) for place, token in enumerate(target_tokens))
    return float(total / len(target_tokens))
