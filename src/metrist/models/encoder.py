"""Encoders of transformers: a vector for every token of a text, after any layer.

Every distinct text is encoded once, in batches by a budget of tokens over sorted lengths. Vectors in fp32 agree within
1e-5 whatever the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching, devices, pretrained, weights
from metrist.models.encoder_windows import Frame, Window, windows
from metrist.models.layer_cut import Stack, encoder_of, stack_of
from metrist.models.options import Options, batch_tokens
from metrist.models.states import Long, States
from metrist.models.tokenizing import whole_characters

#: What a model that knows no limit reads at once.
_WINDOW = 512
#: Tokenizers without a limit say so by a number of this size.
_NO_LIMIT = 1_000_000
#: On a CPU small batches are fastest: what is computed stays in the processor's caches.
_CPU_TOKENS = 512
#: Models whose tokenizer reads a word at the very beginning unlike the same word after a space.
_SPACED = {"roberta", "roberta-prelayernorm", "data2vec-text", "gpt2", "gpt_neo", "gptj", "opt"}


@dataclass(eq=False)
class Encoder:
    """Any AutoModel that encodes: an encoder, the encoder of an encoder-decoder, or a causal model's stack."""

    model: Any
    tokenizer: Any
    stack: Stack
    place: devices.Place
    budget: batching.Budget
    facts: Mapping[str, str]
    name: str

    @staticmethod
    def load(options: Options) -> Encoder:
        """The model that the options name, on the device that the environment asks for."""
        place, found = devices.place(options), weights.find(options)
        model = encoder_of(pretrained.read_model("AutoModel", found, options, place))
        return Encoder(
            model=model,
            tokenizer=pretrained.read_tokenizer(found, options),
            stack=stack_of(model, found.name),
            place=place,
            budget=batching.Budget(at_once(place)),
            facts={"weights": found.fingerprint, "dtype": options.dtype},
            name=found.name,
        )

    @property
    def layers(self) -> int:
        return self.stack.size

    @property
    def limit(self) -> int:
        return self._frame.limit

    @property
    def word_start(self) -> str:
        return " " if self.model.config.model_type in _SPACED else ""

    def states(self, texts: Sequence[str], layer: int | None = None, long: Long = "windows") -> States:
        """Each text's vectors after the given layer (None: the last; 0: the embeddings). A text that is longer than the
        model takes at once is read in overlapping windows, or cut."""
        chosen = self._checked(layer)
        distinct = list(dict.fromkeys(texts))
        whole = self._ids(distinct)
        ids = [self._frame.kept(one, long) for one in whole]
        cut = np.array([len(all_of) - len(read) for all_of, read in zip(whole, ids, strict=True)], np.int64)
        vectors = self._vectors(ids, chosen)
        return _spread_out(texts, distinct, ids, vectors, cut, self._special)

    def token_ids(self, texts: Sequence[str], long: Long = "windows") -> list[list[int]]:
        return [self._frame.kept(one, long) for one in self._ids(list(texts))]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as text. A piece that goes on with the word before it starts with ##, whatever the tokenizer."""
        written = [str(piece) for piece in self.tokenizer.convert_ids_to_tokens([int(token) for token in tokens])]
        if self._word_mark is None:
            return written
        special = set(self.tokenizer.all_special_tokens)
        return [
            piece if piece in special else piece[1:] if piece[:1] == self._word_mark else f"##{piece}"
            for piece in written
        ]

    @cached_property
    def _word_mark(self) -> str | None:
        """The letter with which pieces begin that begin a word; None: the others are marked, by ##."""
        vocabulary = self.tokenizer.get_vocab()
        marked = {mark: sum(piece.startswith(mark) for piece in vocabulary) for mark in "Ġ▁"}
        mark = max(marked, key=marked.__getitem__)
        # A WordPiece vocabulary may hold these letters too, as characters of their own.
        return mark if marked[mark] > 1 and marked[mark] > len(vocabulary) // 100 else None

    @cached_property
    def _special(self) -> NDArray[np.int64]:
        known = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id)
        return np.array([number for number in known if number is not None], np.int64)

    @cached_property
    def _frame(self) -> Frame:
        with pretrained.silent():
            marks = self.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        opening = next((at for at, mark in enumerate(marks) if not mark), 0)
        closing = next((at for at, mark in enumerate(reversed(marks)) if not mark), 0)
        return Frame(opening, closing, limit_of(self.model, self.tokenizer))

    def _checked(self, layer: int | None) -> int:
        if layer is None:
            return self.layers
        if not 0 <= layer <= self.layers:
            raise ModelError(f"{self.name} has layers 0 (the embeddings) to {self.layers}, got layer={layer}")
        return layer

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        with pretrained.silent():
            clean = [whole_characters(text) for text in texts]
            found = self.tokenizer(clean, truncation=False, padding=False, return_attention_mask=False)
        return [list(ids) for ids in found["input_ids"]]

    def _vectors(self, ids: list[list[int]], layer: int) -> NDArray[np.float32]:
        """The vectors of all texts, one after the other."""
        starts = np.cumsum([0, *map(len, ids)])
        vectors = np.empty((int(starts[-1]), self._width), np.float32)
        asked = [window for text, one in enumerate(ids) for window in windows(text, one, self._frame)]
        asked.sort(key=lambda window: -len(window.ids))

        def work(batch: list[int]) -> None:
            some = [asked[at] for at in batch]
            for window, rows in zip(some, self._forward(some), strict=True):
                start = int(starts[window.text]) + window.row
                vectors[start : start + window.last - window.first] = rows[window.first : window.last]

        lengths = [len(window.ids) for window in asked]
        with self.stack.first(layer):
            failures = batching.halving(lengths, self.budget, work, lambda: devices.free(self.place.device))
        for reason in failures.values():
            raise ModelError(f"{self.name}: a text {reason}")
        return vectors

    def _forward(self, some: Sequence[Window]) -> NDArray[np.float32]:
        """The last layer's vectors, (sequence, token, dimension)."""
        import torch

        longest = max(len(window.ids) for window in some)
        ids = np.full((len(some), longest), self._padding, np.int64)
        mask = np.zeros((len(some), longest), np.int64)
        for row, window in enumerate(some):
            ids[row, : len(window.ids)] = window.ids
            mask[row, : len(window.ids)] = 1
        with torch.inference_mode():
            put = (torch.from_numpy(array).to(self.place.device) for array in (ids, mask))
            found = self.model(**dict(zip(("input_ids", "attention_mask"), put, strict=True)))
            last: NDArray[np.float32] = found[0].float().cpu().numpy()
        return last

    @property
    def _padding(self) -> int:
        """Padding is masked, so where there is no token for it any will do."""
        known = (self.tokenizer.pad_token_id, getattr(self.model.config, "pad_token_id", None), 0)
        return next(number for number in known if number is not None)

    @property
    def _width(self) -> int:
        return int(self.model.config.hidden_size)


def _spread_out(
    texts: Sequence[str],
    distinct: Sequence[str],
    ids: Sequence[Sequence[int]],
    vectors: NDArray[np.float32],
    cut: NDArray[np.int64],
    special: NDArray[np.int64],
) -> States:
    """What was found for the distinct texts, laid out for all."""
    tokens = np.array([token for one in ids for token in one], np.int64)
    sizes = np.array([len(one) for one in ids], np.int64)
    if len(texts) != len(distinct):
        number = {text: at for at, text in enumerate(distinct)}
        order = np.array([number[text] for text in texts], np.int64)
        starts = np.cumsum([0, *sizes])
        rows = np.concatenate([np.arange(starts[at], starts[at + 1]) for at in order])
        vectors, tokens, sizes, cut = vectors[rows], tokens[rows], sizes[order], cut[order]
    return States(
        vectors=vectors,
        tokens=tokens,
        special=np.isin(tokens, special),
        starts=np.cumsum([0, *sizes]).astype(np.int64),
        cut=cut,
    )


def limit_of(model: Any, tokenizer: Any) -> int:
    """How many tokens fit: the smallest of what the tokenizer and the model's positions say."""
    said = [tokenizer.model_max_length]
    config = model.config
    for key in ("max_encoder_position_embeddings", "max_position_embeddings"):
        if isinstance(positions := getattr(config, key, None), int):
            said.append(positions - _before_positions(model))
            break
    return min((number for number in said if 0 < number < _NO_LIMIT), default=_WINDOW)


def _before_positions(model: Any) -> int:
    """RoBERTa and its kin count positions from the padding token's number on, which so many are lost to."""
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def at_once(place: devices.Place) -> int:
    """How many tokens an encoder computes at once."""
    on_cpu = place.device.type == "cpu" and batch_tokens() is None
    return _CPU_TOKENS if on_cpu else place.tokens
