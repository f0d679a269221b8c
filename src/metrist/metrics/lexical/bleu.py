"""BLEU: the share of an output's word sequences that its references have, with a penalty for short outputs.

Agrees with sacrebleu at sentence and corpus level. An output's row of statistics is
`[output length, reference length, matches of order 1…n, n-grams of order 1…n, 1]`. The tokenizers follow mteval-v13a,
mteval-v14 and sacrebleu, so that scores are comparable with published ones; the four that need dictionaries or models
come from sacrebleu itself.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import kernels
from metrist.errors import MissingExtra, RunError, SpecError
from metrist.kernels import SEPARATOR, WORD, CharClasses, Tokens
from metrist.metrics.base import Metric, Pairs, Reduce, Shard, best_pairs, check_choice, pairs_of, reduce_references
from metrist.records import Need
from metrist.scores import Column, Scores

Smooth = Literal["exp", "floor", "add-k", "none"]
Orders = Literal["all", "effective"]

# sacrebleu's defaults, after Chen and Cherry (2014).
_SMOOTH_VALUES: Mapping[str, float] = {"floor": 0.1, "add-k": 1.0}
_MAX_ORDER = 16
#: The version of sacreBLEU that BLEU, chrF and TER agree with, as the tests check.
SACREBLEU_VERSION = "2.6.0"


class BleuValues(NamedTuple):
    """BLEU and what it is made of, one entry or row per row of statistics."""

    values: Column
    precisions: Column
    brevity: Column


@dataclass(frozen=True)
class Bleu(Metric):
    """BLEU (Papineni et al., 2002) from 0 to 100."""

    tokenize: str = "13a"
    lowercase: bool = False
    smooth: Smooth = "exp"
    #: What 'floor' and 'add-k' add to counts; None: 0.1 and 1.
    smooth_value: float | None = None
    max_order: int = 4
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 100.0)
    catalog_name: ClassVar[str | None] = "bleu"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "tokenize", (*_TOKENIZERS, *FROM_SACREBLEU))
        if not 1 <= self.max_order <= _MAX_ORDER:
            raise SpecError(f"bleu: max_order must be a whole number from 1 to {_MAX_ORDER}, got {self.max_order}")
        if (value := self.smooth_value) is None:
            return
        if self.smooth not in _SMOOTH_VALUES:
            raise SpecError(
                f"bleu: smooth_value goes with smooth='floor' or 'add-k', not with smooth={self.smooth!r}",
                code="conflict",
            )
        # A value above 1 could make a precision exceed 100.
        maximum = 1.0 if self.smooth == "floor" else sys.float_info.max
        if not 0 <= value <= maximum:
            allowed = "from 0 to 1 with smooth='floor'" if self.smooth == "floor" else "from 0 up"
            raise SpecError(f"bleu: smooth_value must be a number {allowed}, got {value}")
        object.__setattr__(self, "smooth_value", float(value))  # So that 1 and 1.0 have the same text.

    def facts(self) -> Mapping[str, str]:
        if self.tokenize == "intl":
            return {"unicode": unicodedata.unidata_version}
        return {"sacrebleu": _sacrebleu_version(self.tokenize)} if self.tokenize in FROM_SACREBLEU else {}

    def peer_signature(self, references: str) -> str:
        # sacreBLEU's form cannot tell of other orders and ways to reduce. Where sacreBLEU itself splits the texts, its
        # version is in our signature, and the one here now may be another.
        if self.max_order != 4 or self.reduce != "native" or self.tokenize in FROM_SACREBLEU:
            return ""
        value = f"[{self._smoothing():.2f}]" if self.smooth in _SMOOTH_VALUES else ""
        return (
            f"BLEU|nrefs:{references}|case:{'lc' if self.lowercase else 'mixed'}|eff:no|tok:{self.tokenize}|"
            f"smooth:{self.smooth}{value}|version:{SACREBLEU_VERSION}"
        )

    def score(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard)
        tokens = bleu_tokens(shard, self.tokenize, self.lowercase)
        if self.reduce == "native":
            stats = _native_rows(tokens, pairs, self.max_order)
            bleu = self.compute(stats, "effective")
        else:
            matches = kernels.clipped_matches(tokens, pairs.outputs, pairs.references, self.max_order)
            rows = _rows(tokens.lengths[pairs.outputs], tokens.lengths[pairs.references], matches)
            by_pair = self.compute(rows, "effective")
            columns = np.column_stack([by_pair.values, by_pair.brevity, by_pair.precisions, rows])
            reduced = reduce_references(columns, by_pair.values, pairs.starts, self.reduce)
            values, brevity, precisions, stats = np.split(reduced, [1, 2, 2 + self.max_order], axis=1)
            bleu = BleuValues(values[:, 0], precisions, brevity[:, 0])
        parts = {f"precision_{n + 1}": column for n, column in enumerate(bleu.precisions.T)}
        parts |= {"brevity_penalty": bleu.brevity, "output_length": stats[:, 0], "reference_length": stats[:, 1]}
        return Scores(values=bleu.values, parts=parts, stats=stats)

    def pool(self, sums: Column) -> Column:
        """Corpus BLEU, from the summed counts of all outputs; all orders count, as usual."""
        sums = np.asarray(sums, dtype=np.float64)
        return np.where(sums[..., -1] > 0, self.compute(sums, "all").values, np.nan)

    def compute(self, stats: Column, orders: Orders) -> BleuValues:
        """BLEU from rows of statistics, over all orders or only those that the output is long enough to have."""
        lengths, references = stats[..., 0], stats[..., 1]
        matches, totals = np.split(stats[..., 2:-1], 2, axis=-1)
        # Without any match nothing is smoothed: the output scores 0.
        matched = np.any(matches, axis=-1, keepdims=True)
        if self.smooth == "add-k":
            added = np.where(np.arange(self.max_order) > 0, self._smoothing(), 0.0)
            matches, totals = matches + added, totals + added
        # The orders that the output is long enough to have.
        counted = np.logical_and.accumulate(totals > 0, axis=-1)
        missed = counted & (matches == 0)
        if self.smooth == "exp":
            # Each further order without a match counts half of the one before.
            matches = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), matches)
        elif self.smooth == "floor":
            matches = np.where(missed, self._smoothing(), matches)
        precisions = np.divide(100.0 * matches, totals, out=np.zeros_like(totals), where=counted)
        precisions = np.where(matched, precisions, 0.0)
        short = (lengths < references) & (lengths > 0)
        ratio = np.divide(references, lengths, out=np.ones_like(lengths), where=short)
        brevity = np.where((lengths == 0) & (references > 0), 0.0, np.exp(1.0 - ratio))
        if orders == "all":
            counted = np.ones_like(counted)
        with np.errstate(divide="ignore"):
            logs = np.where(counted, np.log(precisions), 0.0)
        mean = np.exp(logs.sum(axis=-1) / np.maximum(counted.sum(axis=-1), 1))
        mean = np.minimum(mean, 100.0)  # exp(log(100)) is a little more than 100.
        return BleuValues(np.where(matched[..., 0], brevity * mean, 0.0), precisions, brevity)

    def _smoothing(self) -> float:
        return _SMOOTH_VALUES.get(self.smooth, 0.0) if self.smooth_value is None else self.smooth_value


def _native_rows(tokens: Tokens, pairs: Pairs, max_order: int) -> Column:
    """Matches clipped by the reference with most occurrences of each n-gram; the nearest reference length."""
    lengths, starts = tokens.lengths, pairs.starts
    references = lengths[pairs.references]
    distances = np.abs(lengths[pairs.outputs] - references)
    # One number for both criteria: the distance, then the shorter reference.
    scale = int(lengths.max(initial=0)) + 1
    nearest = references[best_pairs(distances * scale + references, starts, "lowest")]
    matches = kernels.clipped_matches(tokens, pairs.outputs, pairs.references, max_order, starts)
    return _rows(lengths[pairs.outputs[starts[:-1]]], nearest, matches)


def _rows(outputs: NDArray[np.int64], references: NDArray[np.int64], matches: NDArray[np.int64]) -> Column:
    totals = np.maximum(outputs[:, None] - np.arange(matches.shape[1]), 0)
    ones = np.ones(len(outputs))  # Their sum is the number of outputs: without any, the score is NaN, not 0.
    return np.column_stack([outputs, references, matches, totals, ones]).astype(np.float64)


# --- Tokenizers

Rule = tuple[str, str]  # A pattern and its replacement.

#: mteval-v13a for Western languages: marks are tokens, except periods and commas inside numbers and most dashes.
SYMBOLS: Rule = (r"([{-~\[-` -&(-+:-@/])", r" \1 ")
PERIODS_AND_DASHES: tuple[Rule, ...] = (
    (r"([^0-9])([.,])", r"\1 \2 "),
    (r"([.,])([^0-9])", r" \1 \2"),
    (r"([0-9])(-)", r"\1 \2 "),
)

# sacrebleu writes the ranges of two supplementary blocks with four-digit escapes, so they mean U+2001 to U+2A6D and a
# part of the Kangxi radicals. Published scores rest on that: curly quotes and dashes are split, Extension B is not.
_CHINESE: Rule = (
    "([\u2001-\u2a6d\u2e80-\u2fdf\u2ff0-\u303f\u3100-\u312f\u31a0-\u31ef\u3200-\u4db5\u4e00-\u9fbb"
    "\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9\ufe10-\ufe1f\ufe30-\ufe4f\uff00-\uffef])",
    r" \1 ",
)

#: Tokenizers of sacrebleu that need a dictionary or a model.
FROM_SACREBLEU = ("ja-mecab", "ko-mecab", "flores200", "flores101")


def bleu_tokens(shard: Shard, tokenize: str, lowercase: bool) -> Tokens:
    """Tokens of the shard's distinct texts (see `pairs_of`), computed once for all metrics with these settings."""

    def tokenise() -> Tokens:
        split = _TOKENIZERS.get(tokenize) or _sacrebleu_tokenizer(tokenize)
        return split([text.rstrip() for text in shard_texts(shard, lowercase)])

    return shard.once(("tokens", f"bleu {tokenize}", lowercase), tokenise)


def shard_texts(shard: Shard, lowercase: bool) -> list[str]:
    """The shard's distinct texts, optionally in lower case."""
    texts = pairs_of(shard).texts
    return shard.once("lowered texts", lambda: [text.lower() for text in texts]) if lowercase else texts


def rewrite(text: str, rules: Iterable[Rule]) -> str:
    """Apply the rules to the text, one after the other."""
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def split_at_spaces(texts: Sequence[str]) -> Tokens:
    """Split texts at white space, including that of Unicode."""
    return kernels.scan(texts, _WHITE_SPACE)


_WHITE_SPACE = CharClasses(lambda character: SEPARATOR if character.isspace() else WORD)


def _international(texts: Sequence[str]) -> Tokens:
    """mteval-v14: symbols are tokens, and so is punctuation unless it is next to a number."""
    characters = set("0!+").union(*texts)
    # Python's patterns have no Unicode categories; listing those of the given characters is faster than a table of all.
    # One character of each category keeps the lists from being empty.
    listed = {"N": "", "P": "", "S": ""}
    for character in sorted(characters):
        kind = unicodedata.category(character)[0]
        if kind in listed:
            listed[kind] += re.escape(character)
    number, mark, symbol = listed.values()
    rules = (
        (f"([^{number}])([{mark}])", r"\1 \2 "),
        (f"([{mark}])([^{number}])", r" \1 \2"),
        (f"([{symbol}])", r" \1 "),
    )
    return split_at_spaces([rewrite(text, rules) for text in texts])


def _chinese(texts: Sequence[str]) -> Tokens:
    """Chinese characters are tokens; the rest is split as in 13a, without its clean-up."""
    return split_at_spaces([rewrite(text.strip(), (_CHINESE, SYMBOLS, *PERIODS_AND_DASHES)) for text in texts])


_TOKENIZERS: Mapping[str, Callable[[Sequence[str]], Tokens]] = {
    "13a": kernels.scan_13a,
    "intl": _international,
    "zh": _chinese,
    "char": kernels.characters,
    "none": split_at_spaces,
}


def _sacrebleu_tokenizer(tokenize: str) -> Callable[[Sequence[str]], Tokens]:
    version = _sacrebleu_version(tokenize)
    from sacrebleu.metrics.bleu import BLEU

    try:
        bleu: Any = BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError):  # sacrebleu raises either if a package is missing.
        raise MissingExtra(f"bleu(tokenize={tokenize!r})", "languages") from None
    except (OSError, AssertionError) as error:
        problem = f"sacrebleu {version} could not load its model or dictionary ({error})"
        raise RunError(f"bleu(tokenize={tokenize!r}): {problem}; it keeps models where SACREBLEU says") from error

    def split(texts: Sequence[str]) -> Tokens:
        # The libraries behind these tokenizers take UTF-8 only, which has no lone surrogates.
        valid = (text.encode("utf-8", "replace").decode("utf-8") for text in texts)
        return split_at_spaces([bleu.tokenizer(text) for text in valid])

    return split


def _sacrebleu_version(tokenize: str) -> str:
    try:
        return importlib.metadata.version("sacrebleu")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra(f"bleu(tokenize={tokenize!r})", "languages") from None
