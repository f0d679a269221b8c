"""The first layers of an encoder: what lies above a chosen layer is not computed.

The layers are taken out of the model for the time of a call, so whatever the model does after its last layer (T5 and
mBART normalise) is done after the chosen one. bert-score cuts its models in the same way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching, devices, weights
from metrist.models.devices import Options
from metrist.models.protocols import Long, States
from metrist.models.tokenization import replace_surrogates
from metrist.runtime import Runtime

#: Where architectures keep their layers, inside the model itself, its `encoder` or its `transformer`.
_LISTS = ("layer", "layers", "block", "h")


class LayerStack(NamedTuple):
    """The layers as an attribute of one of the model's parts: a list of modules, or how many times to go round."""

    owner: Any
    name: str

    @property
    def size(self) -> int:
        """How many layers there are."""
        held = getattr(self.owner, self.name)
        return held if isinstance(held, int) else len(held)

    @contextlib.contextmanager
    def first(self, count: int) -> Iterator[None]:
        """Only the first `count` layers are there inside."""
        whole = getattr(self.owner, self.name)
        setattr(self.owner, self.name, count if isinstance(whole, int) else whole[:count])
        try:
            yield
        finally:
            setattr(self.owner, self.name, whole)


def get_encoder(model: Any) -> Any:
    """The model itself, or its encoder where it has a decoder too."""
    return model.encoder if hasattr(model, "encoder") and hasattr(model, "decoder") else model


def find_layers(encoder: Any, name: str) -> LayerStack:
    """Where the encoder keeps its layers."""
    if isinstance(getattr(encoder, "n_layers", None), int):
        return LayerStack(encoder, "n_layers")
    parts: list[Any] = [encoder, getattr(encoder, "encoder", None), getattr(encoder, "transformer", None)]
    for part in parts:
        if hasattr(part, "albert_layer_groups"):
            return LayerStack(part.config, "num_hidden_layers")
        for key in _LISTS:
            if type(getattr(part, key, None)).__name__ == "ModuleList":
                return LayerStack(part, key)
    raise ModelError(
        f"{name} ({type(encoder).__name__}) keeps its layers where metrist does not find them; "
        f"choose another encoder, such as a BERT, RoBERTa, DeBERTa or T5 model"
    )


# Texts as sequences that an encoder takes: one per text that fits, overlapping windows for one that does not.
#
# Every token of a long text gets its vector from the window in which it stands most centrally.
# Each window is opened and closed like a text of its own; the opening vector of the text is that of the
# first window, the closing vector that of the last.


@dataclass(frozen=True, slots=True)
class SequenceFormat:
    """How many tokens open and close a text, and how many the model takes at once, these included."""

    opening: int
    closing: int
    limit: int

    @property
    def room(self) -> int:
        """Tokens of a text that fit beside those that open and close it."""
        return max(1, self.limit - self.opening - self.closing)

    def inside(self, ids: Sequence[int]) -> int:
        """How many of the tokens are the text's own."""
        return len(ids) - self.opening - self.closing

    def kept(self, ids: list[int], long: Long) -> list[int]:
        """The tokens that are read: all of them, or as many as fit."""
        if long == "windows" or self.inside(ids) <= self.room:
            return ids
        return ids[: self.opening + self.room] + ids[len(ids) - self.closing :]


@dataclass(frozen=True, slots=True)
class Window:
    """One sequence for the model. Its vectors `first:last` become the text's rows from `row` on."""

    text: int
    ids: list[int]
    first: int
    last: int
    row: int


def split_windows(text: int, ids: list[int], frame: SequenceFormat) -> Iterator[Window]:
    """The sequences that give a text's vectors; none where it has no tokens."""
    size, room = frame.inside(ids), frame.room
    if size <= room:
        if ids:
            yield Window(text, ids, 0, len(ids), 0)
        return
    body = ids[frame.opening : len(ids) - frame.closing]
    opening, closing = ids[: frame.opening], ids[len(ids) - frame.closing :]
    starts = [*range(0, size - room, max(1, room // 2)), size - room]
    for start, begin, end in zip(starts, *_owned(starts, room, size), strict=True):
        first = 0 if start == 0 else frame.opening + begin - start
        last = frame.opening + end - start + (frame.closing if end == size else 0)
        row = 0 if start == 0 else frame.opening + begin
        yield Window(text, opening + body[start : start + room] + closing, first, last, row)


def _owned(starts: Sequence[int], room: int, size: int) -> tuple[list[int], list[int]]:
    """Where each window's own tokens begin and end: half-way between its middle and its neighbours' middles."""
    borders = [(later + earlier + room - 1) // 2 + 1 for earlier, later in pairwise(starts)]
    return [0, *borders], [*borders, size]


# Encoders of transformers: a vector for every token of a text, after any layer.
#
# Every distinct text is encoded once, in batches by a budget of tokens over sorted lengths.
# Vectors in fp32 agree within 1e-5 whatever the batch.


#: What a model that knows no limit reads at once.
_WINDOW = 512
#: Tokenizers without a limit say so by a number of this size.
_NO_LIMIT = 1_000_000
#: Tokens per batch on a CPU: small batches are fastest, since they stay in the processor's caches.
CPU_TOKENS = 512
#: Models whose tokenizer reads a word at the very beginning unlike the same word after a space.
_SPACED = {"roberta", "roberta-prelayernorm", "data2vec-text", "gpt2", "gpt_neo", "gptj", "opt"}


@dataclass(eq=False)
class Encoder:
    """Any AutoModel that encodes: an encoder, the encoder of an encoder-decoder, or a causal model's stack."""

    model: Any
    tokenizer: Any
    stack: LayerStack
    place: devices.Placement
    budget: batching.Budget
    facts: Mapping[str, str]
    name: str
    _lock: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    @staticmethod
    def load(options: Options, runtime: Runtime | None = None) -> Encoder:
        """Load the model that the options name, on the device of the runtime."""
        place = devices.resolve_placement(options, runtime, cpu_tokens=CPU_TOKENS)
        found = weights.find_weights(options)
        model = get_encoder(weights.read_model("AutoModel", found, options, place))
        return Encoder(
            model=model,
            tokenizer=weights.read_tokenizer(found, options),
            stack=find_layers(model, found.name),
            place=place,
            budget=batching.Budget(place.tokens),
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
    def _frame(self) -> SequenceFormat:
        with weights.quiet_transformers():
            marks = self.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        opening = next((at for at, mark in enumerate(marks) if not mark), 0)
        closing = next((at for at, mark in enumerate(reversed(marks)) if not mark), 0)
        return SequenceFormat(opening, closing, token_limit(self.model, self.tokenizer))

    def _checked(self, layer: int | None) -> int:
        if layer is None:
            return self.layers
        if not 0 <= layer <= self.layers:
            raise ModelError(f"{self.name} has layers 0 (the embeddings) to {self.layers}, got layer={layer}")
        return layer

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        with weights.quiet_transformers():
            clean = [replace_surrogates(text) for text in texts]
            found = self.tokenizer(clean, truncation=False, padding=False, return_attention_mask=False)
        return [list(ids) for ids in found["input_ids"]]

    def _vectors(self, ids: list[list[int]], layer: int) -> NDArray[np.float32]:
        """The vectors of all texts, one after the other."""
        starts = np.cumsum([0, *map(len, ids)])
        vectors = np.empty((int(starts[-1]), self._width), np.float32)
        asked = [window for text, one in enumerate(ids) for window in split_windows(text, one, self._frame)]
        asked.sort(key=lambda window: -len(window.ids))

        def work(batch: list[int]) -> None:
            some = [asked[at] for at in batch]
            for window, rows in zip(some, self._forward(some), strict=True):
                start = int(starts[window.text]) + window.row
                vectors[start : start + window.last - window.first] = rows[window.first : window.last]

        lengths = [len(window.ids) for window in asked]
        # The layers are removed from the shared model during the call.
        with self._lock, self.stack.first(layer):
            failures = batching.run_in_batches(
                lengths, self.budget, work, lambda: devices.free_memory(self.place.device)
            )
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


def token_limit(model: Any, tokenizer: Any) -> int:
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
