"""`RougeScorer` and `BootstrapAggregator` as in the package rouge-score: the same calls, the same numbers.

    from metrist.compat import rouge_scorer  # instead of: from rouge_score import rouge_scorer

It differs in two ways: `split_summaries=True` splits sentences with metrist's rules instead of NLTK's model, so that
nothing is downloaded; and `score_many`, which the package does not have, scores lists of texts much faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from metrist.kernels import Tokens, clipped_matches, from_lists, lcs_lengths, union_lcs_hits
from metrist.metrics.lexical import tokenizers
from metrist.metrics.lexical.rouge import precision_recall_f
from metrist.sentences import split_sentences

_ROUGE_N = re.compile(r"rouge([1-9])")
_MAX_UNSTEMMED_LENGTH = 3
#: Resampled positions that are held at a time.
_MAX_POSITIONS = 1 << 21


class Score(NamedTuple):
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    fmeasure: float


class AggregateScore(NamedTuple):
    """The ends of a confidence interval, and the median of the resampled means between them."""

    low: Score
    mid: Score
    high: Score


class Tokenizer(Protocol):
    """What RougeScorer accepts as a tokenizer."""

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        ...


class RougeScorer:
    """ROUGE of a prediction and a target.

    `rouge_types` are 'rouge1' to 'rouge9', 'rougeL' and 'rougeLsum'. A `tokenizer` is an object with a method
    `tokenize`; with one, `use_stemmer` has no effect.
    """

    def __init__(
        self,
        rouge_types: Sequence[str],
        use_stemmer: bool = False,
        split_summaries: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if isinstance(rouge_types, str):
            raise TypeError(f"rouge_types must be a list, such as [{rouge_types!r}], got one text")
        self.rouge_types = rouge_types
        self._stem = use_stemmer
        self._split_summaries = split_summaries
        self._tokenizer = tokenizer

    def score(self, target: str, prediction: str) -> dict[str, Score]:
        """The scores of one prediction, by ROUGE type."""
        return self._score_pairs([target], [prediction])[0]

    def score_multi(self, targets: Sequence[str], prediction: str) -> dict[str, Score]:
        """For each ROUGE type, the scores with the target that has the highest f-measure."""
        _check_list("targets", targets)
        if not targets:
            raise ValueError("score_multi needs at least one target")
        scores = self._score_pairs(list(targets), [prediction] * len(targets))
        return {kind: max((score[kind] for score in scores), key=lambda s: s.fmeasure) for kind in self.rouge_types}

    def score_many(self, targets: Sequence[str], predictions: Sequence[str]) -> list[dict[str, Score]]:
        """The scores of each prediction with the target at the same place."""
        _check_list("targets", targets)
        _check_list("predictions", predictions)
        if len(targets) != len(predictions):
            raise ValueError(f"expected as many targets as predictions, got {len(targets):,} and {len(predictions):,}")
        return self._score_pairs(list(targets), list(predictions))

    def _score_pairs(self, targets: list[str], predictions: list[str]) -> list[dict[str, Score]]:
        kinds: dict[str, int | None] = {}  # The order of ROUGE-N; None for the other kinds.
        for kind in self.rouge_types:
            match = _ROUGE_N.fullmatch(kind)
            if match is None and kind not in ("rougeL", "rougeLsum"):
                # The beginning of the package's message, which scripts may look for.
                raise ValueError(f"Invalid rouge type: {kind}; there are rouge1 to rouge9, rougeL and rougeLsum")
            kinds[kind] = int(match[1]) if match else None
        texts = list(dict.fromkeys([*targets, *predictions]))
        number = {text: n for n, text in enumerate(texts)}
        outputs = np.array([number[text] for text in predictions], np.int32)
        references = np.array([number[text] for text in targets], np.int32)
        tokens = self._tokenise(texts) if set(kinds) != {"rougeLsum"} else None
        orders = [order for order in kinds.values() if order is not None]
        matches = clipped_matches(tokens, outputs, references, max(orders)) if tokens and orders else None
        columns: dict[str, list[list[float]]] = {}
        for kind, order in kinds.items():
            if order is not None and tokens and matches is not None:
                sizes = np.maximum(tokens.lengths - (order - 1), 0)
                overlap = matches[:, order - 1], sizes[outputs], sizes[references]
            elif kind == "rougeL" and tokens:
                hits = lcs_lengths(tokens, outputs, references)
                overlap = hits, tokens.lengths[outputs], tokens.lengths[references]
            else:
                if self._split_summaries:
                    lines = [[text[start:end] for start, end in split_sentences(text)] for text in texts]
                else:
                    lines = [[line for line in text.split("\n") if line] for text in texts]
                line_starts = np.cumsum([0, *map(len, lines)], dtype=np.int64)
                line_tokens = self._tokenise([line for text_lines in lines for line in text_lines])
                words = np.diff(line_tokens.starts[line_starts])
                hits = union_lcs_hits(line_tokens, line_starts, outputs, references)
                overlap = hits, words[outputs], words[references]
            columns[kind] = precision_recall_f(*overlap).tolist()
        return [{kind: Score(*rows[n]) for kind, rows in columns.items()} for n in range(len(predictions))]

    def _tokenise(self, texts: Sequence[str]) -> Tokens:
        if self._tokenizer is not None:
            return from_lists([self._tokenizer.tokenize(text) for text in texts])
        tokens = tokenizers.tokenise(texts, "rouge-score")
        return tokenizers.stem_tokens(tokens, _MAX_UNSTEMMED_LENGTH) if self._stem else tokens


class BootstrapAggregator:
    """Means of scores with bootstrap confidence intervals.

    Draws come from numpy's global generator, as in the package: a script that calls `np.random.seed` gets the package's
    intervals.
    """

    def __init__(self, confidence_interval: float = 0.95, n_samples: int = 1000) -> None:
        if not 0 <= confidence_interval <= 1:
            raise ValueError("confidence_interval must be in range [0, 1]")
        if n_samples <= 0:
            raise ValueError("n_samples must be positive")
        self._confidence_interval = confidence_interval
        self._n_samples = n_samples
        self._scores: dict[str, list[Score]] = {}

    def add_scores(self, scores: Mapping[str, Score]) -> None:
        """Add the scores of one text: a named tuple of numbers for each type."""
        for kind, score in scores.items():
            self._scores.setdefault(kind, []).append(score)

    def aggregate(self) -> dict[str, AggregateScore]:
        """The interval and the median of each type, in the class of its first score."""
        result = {}
        for kind, scores in self._scores.items():
            make = type(scores[0])
            values = np.array([tuple(score) for score in scores], np.float64)
            means = np.empty((self._n_samples, values.shape[1]))
            step = max(1, _MAX_POSITIONS // len(values))
            for start in range(0, self._n_samples, step):
                block = means[start : start + step]
                block[:] = values[np.random.randint(0, len(values), (len(block), len(values)))].mean(axis=1)
            outside = (1 - self._confidence_interval) / 2
            rows = np.percentile(means, [100 * outside, 50, 100 * (1 - outside)], axis=0)
            result[kind] = AggregateScore(*(make(*row) for row in rows.tolist()))
        return result


def _check_list(name: str, texts: Sequence[str]) -> None:
    if isinstance(texts, str | bytes):
        raise TypeError(f"{name} must be a list of texts, got one text; write [{name}]")
