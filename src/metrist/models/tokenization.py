"""Tokenize texts and cut them to a model's limit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError, did_you_mean
from metrist.models.devices import Options

Ids = NDArray[np.int64]

#: Texts on which two ways to tokenize are compared.
PROBES = ["a", "A small cat sat on the mat, twice.", " Zürich  is\n2 far – ", ""]
#: Tokenizers without a limit report a larger number than this.
_NO_LIMIT = 1_000_000
#: Prefixes of tokens that begin a word, in byte-level and sentencepiece vocabularies.
_WORD_STARTS = ("Ġ", "▁")


class TokenizerSide:
    """A tokenizer for conditions, or for targets, which some tokenizers treat as another language."""

    def __init__(self, tokenizer: Any, *, target: bool = False) -> None:
        self._tokenizer = tokenizer
        self._name = "text_target" if target and hasattr(tokenizer, "_switch_to_target_mode") else "text"
        # The compiled tokenizer alone is faster, as it builds no unused lists; it must give the same ids.
        self._direct = hasattr(getattr(tokenizer, "backend_tokenizer", None), "encode_batch_fast") and all(
            map(np.array_equal, self._encode_fast(PROBES), self._call_tokenizer(PROBES))
        )
        #: The numbers of special tokens before and after a text.
        bare = tokenizer(**{self._name: PROBES[:1]}, add_special_tokens=False, verbose=False)["input_ids"][0]
        full = self.ids(PROBES[:1])[0].tolist()
        self.before = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        self.after = len(full) - len(bare) - self.before

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Return each text's ids with the special tokens that the tokenizer adds, without truncation."""
        clean = [replace_surrogates(text) for text in texts]
        if not clean:
            return []
        return self._encode_fast(clean) if self._direct else self._call_tokenizer(clean)

    def cut(self, ids: Ids, limit: int | None) -> Ids:
        """Return the first `limit` tokens, keeping the special tokens at the end, as the tokenizer itself truncates."""
        if limit is None or len(ids) <= limit:
            return ids
        stop = max(limit - self.after, self.before)
        return np.concatenate([ids[:stop], ids[len(ids) - self.after :]])

    def _call_tokenizer(self, texts: list[str]) -> list[Ids]:
        # verbose=True warns about every text that is longer than the model's limit.
        rows = self._tokenizer(**{self._name: texts}, verbose=False)["input_ids"]
        return [np.array(row, dtype=np.int64) for row in rows]

    def _encode_fast(self, texts: list[str]) -> list[Ids]:
        backend = self._tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return [np.array(encoding.ids, dtype=np.int64) for encoding in backend.encode_batch_fast(texts)]


class BackgroundTokens:
    """Tokenizes texts part by part in a background thread, in the order in which they are needed. Compiled tokenizers
    release the GIL, so the main thread can feed the device meanwhile."""

    _PART = 1 << 17  # characters

    def __init__(self, side: TokenizerSide, texts: Sequence[str]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._parts: list[Future[list[Ids]]] = []
        self._positions: list[tuple[int, int]] = []
        part: list[str] = []
        size = 0
        for text in texts:
            if part and size + len(text) > self._PART:
                self._parts.append(self._thread.submit(side.ids, part))
                part, size = [], 0
            self._positions.append((len(self._parts), len(part)))
            part.append(text)
            size += len(text)
        if part:
            self._parts.append(self._thread.submit(side.ids, part))

    def part(self, text: int) -> int:
        """Return the part that contains the text; all texts of a part become available together."""
        return self._positions[text][0]

    def __getitem__(self, text: int) -> Ids:
        part, at = self._positions[text]
        return self._parts[part].result()[at]

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def token_limit(tokenizer: Any) -> int | None:
    """Return the model's limit according to the tokenizer; None if it has none."""
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if limit is not None and limit < _NO_LIMIT else None


def context_length(tokenizer: Any, config: Any) -> int | None:
    """Return the context length of a causal model: the model's limit, or else the tokenizer's."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return token_limit(tokenizer)


def readable_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return tokens as text; a word's first token has a space before it."""
    special = set(tokenizer.all_special_ids)
    texts = []
    for number in map(int, ids):
        token = str(tokenizer.convert_ids_to_tokens(number))
        text = token if number in special else str(tokenizer.convert_tokens_to_string([token]))
        if number not in special and token.startswith(_WORD_STARTS):
            text = f" {text.lstrip()}"
        texts.append(text or token)
    return texts


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which broken JSON may contain and tokenizers reject, by `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


# ---- Languages of multilingual models


def set_languages(tokenizer: Any, options: Options) -> Any:
    """Set the languages of conditions and targets on a tokenizer that marks languages. Such a tokenizer needs them;
    others do not accept them."""
    marks = hasattr(tokenizer, "tgt_lang") and hasattr(tokenizer, "src_lang")
    if options.languages is None:
        if marks and tokenizer.tgt_lang is None:
            raise ModelError(f"{options.model} is multilingual: set the language of the texts, as in language='en'")
        return tokenizer
    if not marks:
        raise ModelError(
            f"{options.model} takes no language, got language={options.languages[1]!r}; set language=None",
            code="conflict",
        )
    # Tokenizers list their codes under different names, or not at all.
    known = list(getattr(tokenizer, "lang_code_to_id", None) or getattr(tokenizer, "lang_code_to_token", None) or ())
    for code in options.languages:
        exists = code in known if known else tokenizer.convert_tokens_to_ids(code) != tokenizer.unk_token_id
        if not exists:
            hint = did_you_mean(code, known)
            raise ModelError(f"{options.model} has no language {code!r}{hint}", code="unknown_name")
    tokenizer.src_lang, tokenizer.tgt_lang = options.languages
    return tokenizer
