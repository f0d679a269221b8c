"""Tokenizers by name, and the shard's texts cut by them, once for all metrics.

`unicode`      lower-cased runs of letters, digits and combining marks of any script. Scripts that are written without
               spaces (Chinese, Japanese, Thai, Lao, Khmer, Myanmar) are split per character.
`rouge-score`  lower-cased runs of a-z and 0-9, as the package rouge-score cuts them: other scripts vanish.
`squad`        lower-cased words between white space, without ASCII punctuation and English articles.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from metrist.kernels import SEPARATOR, SINGLE, WORD, CharClasses, Tokens, from_lists, relabel, scan
from metrist.metrics.porter import stem
from metrist.metrics.shard import Shard, pairs_of

_SPACELESS = (
    *("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HENTAIGANA"),
    *("HALFWIDTH KATAKANA", "COMBINING KATAKANA-HIRAGANA", "THAI", "LAO", "KHMER", "MYANMAR"),
)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def tokenise(texts: Sequence[str], tokenizer: str) -> Tokens:
    """The texts cut by the named tokenizer."""
    return TOKENIZERS[tokenizer](texts)


def tokens_of(shard: Shard, tokenizer: str) -> Tokens:
    """The distinct outputs and references of the shard, numbered as `pairs_of` does, cut by the named tokenizer."""
    return shard.once(("tokens", tokenizer), lambda: tokenise(pairs_of(shard).texts, tokenizer))


def stems_of(shard: Shard, tokenizer: str, longer_than: int = 0) -> Tokens:
    """The same with each word stemmed that has more than `longer_than` characters."""
    tokens = tokens_of(shard, tokenizer)
    return shard.once(("stems", tokenizer, longer_than), lambda: stemmed(tokens, longer_than))


def stemmed(tokens: Tokens, longer_than: int = 0) -> Tokens:
    """The tokens with each word stemmed that has more than `longer_than` characters."""
    return relabel(tokens, [stem(word) if len(word) > longer_than else word for word in tokens.words])


def facts(tokenizer: str) -> Mapping[str, str]:
    """What a signature must say of the tokenizer besides its name: which characters exist grows with Unicode."""
    return {"unicode": unicodedata.unidata_version} if tokenizer == "unicode" else {}


def without_articles(text: str) -> str:
    """The text as SQuAD compares answers: lower-cased, without punctuation and articles, one space between words."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _unicode(texts: Sequence[str]) -> Tokens:
    return scan(texts, _unicode_classes())


def _rouge_score(texts: Sequence[str]) -> Tokens:
    return scan(texts, _rouge_score_classes())


def _squad(texts: Sequence[str]) -> Tokens:
    return from_lists([without_articles(text).split() for text in texts])


TOKENIZERS: Mapping[str, Callable[[Sequence[str]], Tokens]] = {
    "unicode": _unicode,
    "rouge-score": _rouge_score,
    "squad": _squad,
}


@cache
def _unicode_classes() -> CharClasses:
    return CharClasses(_unicode_class, case="lower")


@cache
def _rouge_score_classes() -> CharClasses:
    kept = frozenset(string.ascii_lowercase + string.digits)
    return CharClasses(lambda character: WORD if character in kept else SEPARATOR, case="lower")


def _unicode_class(character: str) -> int:
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    if category[0] not in "LMN" or "VARIATION SELECTOR" in name:
        return SEPARATOR  # A variation selector is a mark by category, but mostly follows an emoji, which is no word.
    return SINGLE if category != "Nd" and name.startswith(_SPACELESS) else WORD
