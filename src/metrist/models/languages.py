"""Languages that a multilingual model's tokenizer marks by a token of their own."""

from __future__ import annotations

from typing import Any

from metrist.errors import ModelError, did_you_mean
from metrist.models.options import Options


def told(tokenizer: Any, options: Options) -> Any:
    """The tokenizer, told in which languages conditions and targets are. One that marks languages must be told; another
    cannot be."""
    marks = hasattr(tokenizer, "tgt_lang") and hasattr(tokenizer, "src_lang")
    if options.languages is None:
        if marks and tokenizer.tgt_lang is None:
            raise ModelError(f"{options.model} marks languages: say which one the texts are in, as in language='en'")
        return tokenizer
    if not marks:
        raise ModelError(
            f"{options.model} marks no languages: leave language={options.languages[1]!r} out, or set language=None "
            f"where that is the metric's default"
        )
    for code in options.languages:
        _check(tokenizer, options.model, code)
    tokenizer.src_lang, tokenizer.tgt_lang = options.languages
    return tokenizer


def languages_of(tokenizer: Any) -> dict[str, str]:
    """The languages as a fact of the model, where there are any."""
    both = getattr(tokenizer, "src_lang", None), getattr(tokenizer, "tgt_lang", None)
    return {"languages": f"{both[0]}->{both[1]}"} if all(both) else {}


def _check(tokenizer: Any, model: str, code: str) -> None:
    # Some kinds of tokenizer list their codes in one way, some in another.
    known = list(getattr(tokenizer, "lang_code_to_id", None) or getattr(tokenizer, "lang_code_to_token", None) or ())
    there = code in known if known else tokenizer.convert_tokens_to_ids(code) != tokenizer.unk_token_id
    if not there:
        raise ModelError(f"{model} knows no language {code!r}{did_you_mean(code, known)}")
