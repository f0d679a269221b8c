"""Tokenizers of ROUGE, METEOR and the short-answer metrics, and the Porter stemmer.

`unicode`      lower-cased runs of letters, digits and combining marks of any script. Scripts that are written without
               spaces (Chinese, Japanese, Thai, Lao, Khmer, Myanmar) are split into characters.
`rouge-score`  lower-cased runs of a-z and 0-9, as in the package rouge-score: other scripts vanish.
`squad`        lower-cased words between white space, without ASCII punctuation and English articles.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from metrist.kernels import SEPARATOR, SINGLE, WORD, CharClasses, Tokens, from_lists, relabel, scan
from metrist.metrics.base import Metric, Shard, check_choice, pairs_of

_SPACELESS = (
    "CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HENTAIGANA",
    "HALFWIDTH KATAKANA", "COMBINING KATAKANA-HIRAGANA", "THAI", "LAO", "KHMER", "MYANMAR",
)  # fmt: skip
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ALPHANUMERIC = frozenset(string.ascii_lowercase + string.digits)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class WordMetric(Metric):
    """Base of metrics on the words that a setting `tokenizer` finds."""

    tokenizer: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "tokenizer", TOKENIZERS)

    def facts(self) -> Mapping[str, str]:
        """What the words depend on besides the tokenizer's name: the version of the Unicode tables."""
        return {"unicode": unicodedata.unidata_version} if self.tokenizer == "unicode" else {}


def tokenise(texts: Sequence[str], tokenizer: str) -> Tokens:
    return TOKENIZERS[tokenizer](texts)


def tokenise_shard(shard: Shard, tokenizer: str) -> Tokens:
    """Tokens of the shard's distinct texts (numbered as in `pairs_of`), computed once for all metrics."""
    return shard.once(("tokens", tokenizer), lambda: TOKENIZERS[tokenizer](pairs_of(shard).texts))


def stem_shard(shard: Shard, tokenizer: str, longer_than: int = 0) -> Tokens:
    """The same, with words of more than `longer_than` characters stemmed."""
    tokens = tokenise_shard(shard, tokenizer)
    return shard.once(("stems", tokenizer, longer_than), lambda: stem_tokens(tokens, longer_than))


def stem_tokens(tokens: Tokens, longer_than: int = 0) -> Tokens:
    return relabel(tokens, [stem(word) if len(word) > longer_than else word for word in tokens.words])


def normalise_answer(text: str) -> str:
    """Normalise an answer as SQuAD does: lower-cased, without punctuation and articles, words separated by a space."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _classify_unicode(character: str) -> int:
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    if category[0] not in "LMN" or "VARIATION SELECTOR" in name:
        return SEPARATOR  # A variation selector is a mark, but usually follows an emoji, which is not a word.
    return SINGLE if category != "Nd" and name.startswith(_SPACELESS) else WORD


_UNICODE = CharClasses(_classify_unicode, case="lower")
_ROUGE_SCORE = CharClasses(lambda character: WORD if character in _ALPHANUMERIC else SEPARATOR, case="lower")

TOKENIZERS: Mapping[str, Callable[[Sequence[str]], Tokens]] = {
    "unicode": lambda texts: scan(texts, _UNICODE),
    "rouge-score": lambda texts: scan(texts, _ROUGE_SCORE),
    "squad": lambda texts: from_lists([normalise_answer(text).split() for text in texts]),
}


# --- The Porter stemmer
#
# M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980, with its author's later corrections and NLTK's
# default extensions: a few irregular words, died -> die, y -> i only after a consonant, alli before all other endings,
# fulli and logi. The ROUGE and METEOR packages for Python use this variant.

_VOWELS = frozenset("aeiou")

_IRREGULAR = {
    **{word: word for word in ("sky", "news", "howe", "proceed", "exceed", "succeed", "inning", "outing", "canning")},
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "innings": "inning",
    "outings": "outing",
    "cannings": "canning",
}

_STEP_2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "fulli": "ful",
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = {
    **dict.fromkeys(("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion"), ""),
    **dict.fromkeys(("ou", "ism", "ate", "iti", "ous", "ive", "ize"), ""),
}


def stem(word: str) -> str:
    """The lower-cased stem of a word. Stems are cached, because texts repeat their words."""
    return _cached_stem(word) if len(word) <= _MAX_CACHED_LENGTH else _compute_stem(word)


def _compute_stem(word: str) -> str:
    lowered = word.lower()
    if lowered in _IRREGULAR:
        return _IRREGULAR[lowered]
    if len(word) <= 2:
        return lowered
    rest = lowered
    if rest.endswith("ies"):
        rest = rest[:-1] if len(rest) == 4 else rest[:-2]
    elif rest.endswith("sses"):
        rest = rest[:-2]
    elif rest.endswith("s") and not rest.endswith("ss"):
        rest = rest[:-1]
    rest = _strip_past_and_progressive(rest)
    if len(rest) > 2 and rest.endswith("y") and _shape(rest)[-2] == "c":
        rest = rest[:-1] + "i"
    rest = _step_2(rest)
    for endings, least in ((_STEP_3, 1), (_STEP_4, 2)):
        ending = _find_ending(rest, endings, 5)
        kept = rest[: -len(ending)] if ending else ""
        if ending and _measure(kept) >= least and (ending != "ion" or kept[-1] in "st"):
            rest = kept + endings[ending]
    if rest.endswith("e"):
        measure = _measure(rest[:-1])
        if measure > 1 or (measure == 1 and not _ends_short(rest[:-1])):
            rest = rest[:-1]
    return rest[:-1] if rest.endswith("ll") and _measure(rest[:-1]) > 1 else rest


_MAX_CACHED_LENGTH = 64  # Longer "words" are rarely words, and caching them costs memory.
_cached_stem = lru_cache(maxsize=1 << 18)(_compute_stem)


def _shape(word: str) -> str:
    """The word as consonants (c) and vowels (v); y is a vowel after a consonant."""
    letters = []
    kind = "v"  # So that an initial y is a consonant.
    for letter in word:
        kind = "v" if letter in _VOWELS or (letter == "y" and kind == "c") else "c"
        letters.append(kind)
    return "".join(letters)


def _measure(stem: str) -> int:
    """Porter's m: how often a vowel is followed by a consonant."""
    return _shape(stem).count("vc")


def _ends_short(word: str) -> bool:
    """Porter's *o: consonant, vowel, consonant other than w, x, y; here also a word of vowel, consonant."""
    shape = _shape(word)
    return (shape.endswith("cvc") and word[-1] not in "wxy") or shape == "vc"


def _strip_past_and_progressive(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        stem = word[: -len(ending)]
        if not word.endswith(ending) or "v" not in _shape(stem):
            continue
        # Repair what is left: conflat(e), siz(e), hop(p), fil(e).
        if stem.endswith(("at", "bl", "iz")):
            return stem + "e"
        if len(stem) > 1 and stem[-1] == stem[-2] and _shape(stem)[-1] == "c":
            return stem if stem[-1] in "lsz" else stem[:-1]
        return stem + "e" if _measure(stem) == 1 and _ends_short(stem) else stem
    return word


def _find_ending(word: str, endings: dict[str, str], longest: int) -> str | None:
    return next((word[-n:] for n in range(min(longest, len(word)), 1, -1) if word[-n:] in endings), None)


def _step_2(word: str) -> str:
    ending = _find_ending(word, _STEP_2, 7)
    if ending is None:
        # The l of logi belongs to the stem, so that geology loses its ending like archaeology.
        return word[:-1] if word.endswith("logi") and _measure(word[:-3]) > 0 else word
    rest = word[: -len(ending)]
    if _measure(rest) == 0:
        return word
    return _step_2(rest + "al") if ending == "alli" else rest + _STEP_2[ending]
