"""How BLEU cuts text into tokens. The rules are those of mteval-v13a, mteval-v14 and sacrebleu, so that scores can be
set beside published ones; the four that need dictionaries or models come from sacrebleu itself."""

from __future__ import annotations

import importlib.metadata
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from metrist import kernels
from metrist.errors import MissingExtra, RunError
from metrist.kernels import SEPARATOR, WORD, CharClasses, Tokens
from metrist.metrics.shard import Shard, pairs_of

Rule = tuple[str, str]  # A pattern and what takes its place.

#: mteval-v13a for Western languages: marks stand alone, except periods and commas inside numbers and most dashes.
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

#: Tokenizers that sacrebleu runs for us: they need a dictionary or a model.
FROM_SACREBLEU = ("ja-mecab", "ko-mecab", "flores200", "flores101")


def names() -> tuple[str, ...]:
    """All tokenizers that `tokenize=` can name."""
    return (*_OWN, *FROM_SACREBLEU)


def tokens_of(shard: Shard, tokenize: str, lowercase: bool) -> Tokens:
    """The shard's distinct texts (see `pairs_of`) as tokens, cut once for all metrics that ask alike."""

    def make() -> Tokens:
        cut = _OWN.get(tokenize) or _sacrebleu_tokenizer(tokenize)
        return cut([text.rstrip() for text in texts_of(shard, lowercase)])

    return shard.once(("tokens", f"bleu {tokenize}", lowercase), make)


def texts_of(shard: Shard, lowercase: bool) -> list[str]:
    """The shard's distinct texts, in lower case if asked."""
    texts = pairs_of(shard).texts
    return shard.once("lowered texts", lambda: [text.lower() for text in texts]) if lowercase else texts


def facts_of(tokenize: str) -> Mapping[str, str]:
    """What the tokens depend on besides metrist: tables of characters, or the package that cuts them."""
    if tokenize == "intl":
        return {"unicode": unicodedata.unidata_version}
    if tokenize in FROM_SACREBLEU:
        return {"sacrebleu": _sacrebleu_version(tokenize)}
    return {}


def rewrite(text: str, rules: Iterable[Rule]) -> str:
    """The text after each rule has been applied to all of it, one rule after the other."""
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def words_between_spaces(texts: Sequence[str]) -> Tokens:
    """What lies between stretches of white space, Unicode's too."""
    return kernels.scan(texts, _white_space())


@cache
def _white_space() -> CharClasses:
    return CharClasses(lambda character: SEPARATOR if character.isspace() else WORD)


def _international(texts: Sequence[str]) -> Tokens:
    """mteval-v14: symbols stand alone, and punctuation too unless a number lies on that side of it."""
    rules = _international_rules(set().union(*texts))
    return words_between_spaces([rewrite(text, rules) for text in texts])


def _international_rules(characters: set[str]) -> tuple[Rule, ...]:
    # Python's patterns know no Unicode categories; listing those of the characters at hand is quicker than a table of
    # them all. One character of each keeps the lists from being empty.
    number, mark, symbol = (
        re.escape("".join(sorted(c for c in {*characters, *"0!+"} if unicodedata.category(c)[0] == kind)))
        for kind in "NPS"
    )
    return (
        (f"([^{number}])([{mark}])", r"\1 \2 "),
        (f"([{mark}])([^{number}])", r" \1 \2"),
        (f"([{symbol}])", r" \1 "),
    )


def _chinese(texts: Sequence[str]) -> Tokens:
    """Chinese characters stand alone; what lies between them is cut as 13a cuts it, without its clean-up."""
    rules = (_CHINESE, SYMBOLS, *PERIODS_AND_DASHES)
    return words_between_spaces([rewrite(text.strip(), rules) for text in texts])


_OWN: Mapping[str, Callable[[Sequence[str]], Tokens]] = {
    "13a": kernels.scan_13a,
    "intl": _international,
    "zh": _chinese,
    "char": kernels.characters,
    "none": words_between_spaces,
}


def _sacrebleu_tokenizer(tokenize: str) -> Callable[[Sequence[str]], Tokens]:
    cut = _loaded(tokenize)

    def scan(texts: Sequence[str]) -> Tokens:
        # The libraries behind these tokenizers take UTF-8 only, which has no lone surrogates.
        sound = (text.encode("utf-8", "replace").decode("utf-8") for text in texts)
        return words_between_spaces([cut(text) for text in sound])

    return scan


def _loaded(tokenize: str) -> Callable[[str], str]:
    version = _sacrebleu_version(tokenize)
    from sacrebleu.metrics.bleu import BLEU

    try:
        made: Any = BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError):  # sacrebleu raises one or the other when the package behind it is missing.
        raise MissingExtra(f"bleu(tokenize={tokenize!r})", "languages") from None
    except (OSError, AssertionError) as fault:
        raise RunError(
            f"bleu(tokenize={tokenize!r}): sacrebleu {version} could not load what it needs ({fault}); "
            "it downloads models to the folder that the environment variable SACREBLEU names"
        ) from fault
    cut: Callable[[str], str] = made.tokenizer
    return cut


def _sacrebleu_version(tokenize: str) -> str:
    try:
        return importlib.metadata.version("sacrebleu")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra(f"bleu(tokenize={tokenize!r})", "languages") from None
