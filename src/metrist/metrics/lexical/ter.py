"""TER: the number of edits (insertions, deletions, substitutions, shifts) that turn an output into its reference.

Agrees with sacrebleu, which follows tercom. A row of statistics is `[edits, reference length, 1]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metrist import kernels
from metrist.kernels import Tokens
from metrist.metrics.base import Metric, Reduce, Shard, best_pairs, mean_rows, pairs_of, reduce_references
from metrist.metrics.lexical.bleu import (
    PERIODS_AND_DASHES,
    SACREBLEU_VERSION,
    SYMBOLS,
    Rule,
    rewrite,
    shard_texts,
    split_at_spaces,
)
from metrist.records import Need
from metrist.scores import Column, Scores

_JOIN_LINES: tuple[Rule, ...] = (("\n-", ""), ("\n", " "))
_ENTITIES: tuple[Rule, ...] = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_PAD: Rule = (r"(?s)\A(.*)\Z", r" \1 ")  # So that the first and the last mark have neighbours.
_POSSESSIVES: Rule = ("'s ", " 's ")
_WESTERN = (*_JOIN_LINES, *_ENTITIES, _PAD, SYMBOLS, _POSSESSIVES, *PERIODS_AND_DASHES)

# Tercom also separates kana from its neighbours, but only at the start of the text, where the padding already is.
_ASIAN_MARKS = (
    "\u3001\u3002\u3008-\u3011\u3014-\u301f\u30fb\uff61-\uff65\uff01\uff02\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f"
)
_IDEOGRAPHS = "\u2e80-\u2eff\u31c0-\u31ef\u3200-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f"
_ASIAN: Rule = (f"([{_IDEOGRAPHS}{_ASIAN_MARKS}])", r" \1 ")

_NO_MARKS: Rule = (r'[.,?:;!"()]', "")
_NO_ASIAN_MARKS: Rule = (f"[{_ASIAN_MARKS}]", "")


@dataclass(frozen=True)
class Ter(Metric):
    """Translation edit rate (Snover et al., 2006): edits per 100 words of the reference."""

    #: Separate punctuation and decode XML entities first.
    normalized: bool = False
    no_punct: bool = False
    #: Makes `normalized` separate ideographs and `no_punct` drop full-width marks.
    asian_support: bool = False
    case_sensitive: bool = False
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    higher_is_better: ClassVar[bool | None] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, np.inf)
    catalog_name: ClassVar[str | None] = "ter"

    def peer_signature(self, references: str) -> str:
        if self.reduce != "native":
            return ""
        settings = {"norm": self.normalized, "punct": not self.no_punct, "asian": self.asian_support}
        answers = "".join(f"|{name}:{'yes' if value else 'no'}" for name, value in settings.items())
        case = "mixed" if self.case_sensitive else "lc"
        return f"TER|nrefs:{references}|case:{case}|tok:tercom{answers}|version:{SACREBLEU_VERSION}"

    def score(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard)
        tokens, first_reference = self._words(shard)
        references = pairs.references + np.int32(first_reference)
        edits = kernels.ter_edits(tokens, pairs.outputs, references)
        lengths = tokens.lengths[references]
        rows = np.column_stack([edits, lengths, np.ones(len(edits))]).astype(np.float64)
        if self.reduce == "native":
            # The fewest edits over the mean length of all references.
            stats = mean_rows(rows, pairs.starts)
            stats[:, 0] = rows[best_pairs(rows[:, 0], pairs.starts, "lowest"), 0]
            return _scores(_rates(stats), stats)
        by_pair = _rates(rows)
        reduced = reduce_references(np.column_stack([by_pair, rows]), by_pair, pairs.starts, self.reduce, "lowest")
        return _scores(reduced[:, 0], reduced[:, 1:])

    def pool(self, sums: Column) -> Column:
        sums = np.asarray(sums, dtype=np.float64)
        return np.where(sums[..., -1] > 0, _rates(sums), np.nan)

    def _words(self, shard: Shard) -> tuple[Tokens, int]:
        """The words of the texts as outputs and then of the same texts as references, and how many the former are."""
        rules: tuple[Rule, ...] = ()
        if self.normalized:
            rules += (*_WESTERN, _ASIAN) if self.asian_support else _WESTERN
        if self.no_punct:
            rules += (_NO_MARKS, _NO_ASIAN_MARKS) if self.asian_support else (_NO_MARKS,)
        lowercase = not self.case_sensitive
        return shard.once(("ter words", rules, lowercase), lambda: _words(shard_texts(shard, lowercase), rules))


def _words(texts: list[str], rules: tuple[Rule, ...]) -> tuple[Tokens, int]:
    if not rules:
        return split_at_spaces(texts), 0
    once = [rewrite(text.rstrip(), rules) for text in texts]
    # sacrebleu applies its rules to references twice, which can split them more finely than the same text as an output.
    twice = [rewrite(" ".join(text.split()), rules) for text in once]
    return split_at_spaces(once + twice), len(texts)


def _rates(stats: Column) -> Column:
    edits, lengths = stats[..., 0], stats[..., 1]
    # With an empty reference, an output is completely wrong unless it is empty too.
    return 100 * np.divide(edits, lengths, out=np.asarray(edits > 0, np.float64), where=lengths > 0)


def _scores(values: Column, stats: Column) -> Scores:
    return Scores(values=values, parts={"edits": stats[:, 0], "reference_length": stats[:, 1]}, stats=stats)
