"""Encoders: a vector for every token of a text, after any layer of a transformers model.

Layers above the requested one are removed from the model during a call, so what the model does after its last layer (T5
and mBART normalize) is done after the requested one; bert-score truncates models in the same way. Distinct texts are
encoded once, in batches by length within a token budget. Vectors in float32 agree within 1e-5 whatever the batch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching, devices
from metrist.models.devices import Options
from metrist.models.pretrained import quiet_transformers, read_model, read_tokenizer
from metrist.models.protocols import Long, States
from metrist.models.tokenization import replace_surrogates
from metrist.models.weights import find_weights
from metrist.models.windows import CentralWindow, SequenceFormat, split_tokens
from metrist.runtime import Runtime

#: Names of the list of layers in the model itself, its `encoder` or its `transformer`.
_LAYER_LISTS = ("layer", "layers", "block", "h")


class LayerStack(NamedTuple):
    """The attribute with the model's layers: a list of modules, or the number of repetitions of a shared layer."""

    owner: Any
    name: str

    @property
    def size(self) -> int:
        layers = getattr(self.owner, self.name)
        return layers if isinstance(layers, int) else len(layers)

    @contextlib.contextmanager
    def first(self, count: int) -> Iterator[None]:
        """Remove all but the first `count` layers inside the block."""
        layers = getattr(self.owner, self.name)
        setattr(self.owner, self.name, count if isinstance(layers, int) else layers[:count])
        try:
            yield
        finally:
            setattr(self.owner, self.name, layers)


def get_encoder(model: Any) -> Any:
    """Return the encoder of an encoder-decoder model, or the model itself."""
    return model.encoder if hasattr(model, "encoder") and hasattr(model, "decoder") else model


def find_layers(encoder: Any, name: str) -> LayerStack:
    if isinstance(getattr(encoder, "n_layers", None), int):
        return LayerStack(encoder, "n_layers")
    parts: list[Any] = [encoder, getattr(encoder, "encoder", None), getattr(encoder, "transformer", None)]
    for part in parts:
        if hasattr(part, "albert_layer_groups"):
            return LayerStack(part.config, "num_hidden_layers")
        for key in _LAYER_LISTS:
            if type(getattr(part, key, None)).__name__ == "ModuleList":
                return LayerStack(part, key)
    raise ModelError(
        f"the layers of {name} ({type(encoder).__name__}) are not found; choose a BERT, RoBERTa, DeBERTa or T5 model",
        code="unsupported",
    )


# ---- Encoders


#: The window of a model without a limit.
_WINDOW = 512
#: Tokenizers without a limit report a number of at least this size.
_NO_LIMIT = 1_000_000
#: Tokens per batch on a CPU: small batches are fastest, since they fit into the processor's caches.
CPU_TOKENS = 512
#: Models whose tokenizer treats a word at the beginning of a text unlike the same word after a space.
_SPACE_SENSITIVE = {"roberta", "roberta-prelayernorm", "data2vec-text", "gpt2", "gpt_neo", "gptj", "opt"}


@dataclass(eq=False)
class Encoder:
    """An AutoModel that encodes: an encoder, the encoder of an encoder-decoder, or a causal model."""

    model: Any
    tokenizer: Any
    stack: LayerStack
    place: devices.Placement
    budget: batching.TokenBudget
    facts: Mapping[str, str]
    name: str
    _lock: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    @staticmethod
    def load(options: Options, runtime: Runtime | None = None) -> Encoder:
        place = devices.resolve_placement(options, runtime, cpu_tokens=CPU_TOKENS)
        files = find_weights(options)
        model = get_encoder(read_model("AutoModel", files, options, place))
        return Encoder(
            model=model,
            tokenizer=read_tokenizer(files, options),
            stack=find_layers(model, files.name),
            place=place,
            budget=batching.TokenBudget(place.tokens),
            facts={"weights": files.fingerprint, "dtype": options.dtype},
            name=files.name,
        )

    @property
    def layers(self) -> int:
        return self.stack.size

    @property
    def limit(self) -> int:
        """The largest number of tokens at once, special tokens included."""
        return self._format.limit

    @property
    def word_start(self) -> str:
        """What to put before a text so that its first word is tokenized as elsewhere."""
        return " " if self.model.config.model_type in _SPACE_SENSITIVE else ""

    def states(self, texts: Sequence[str], layer: int | None = None, long: Long = "windows") -> States:
        """Return each text's vectors after a layer (None: the last; 0: the embeddings). A text longer than the model's
        limit is read in overlapping windows, or truncated."""
        layer = self.layers if layer is None else layer
        if not 0 <= layer <= self.layers:
            raise ModelError(
                f"{self.name} has layers 0 (the embeddings) to {self.layers}, got layer={layer}", code="unsupported"
            )
        distinct = list(dict.fromkeys(texts))
        all_ids = self.token_ids(distinct)
        ids = [self._format.truncate(full, long) for full in all_ids]
        cut = np.array([len(full) - len(read) for full, read in zip(all_ids, ids, strict=True)], np.int64)
        vectors = self._compute_vectors(ids, layer)
        tokens = np.array([token for row in ids for token in row], np.int64)
        sizes = np.array([len(row) for row in ids], np.int64)
        if len(texts) != len(distinct):
            number = {text: at for at, text in enumerate(distinct)}
            order = np.array([number[text] for text in texts], np.int64)
            starts = np.cumsum([0, *sizes])
            rows = np.concatenate([np.arange(starts[at], starts[at + 1]) for at in order])
            vectors, tokens, sizes, cut = vectors[rows], tokens[rows], sizes[order], cut[order]
        known = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id)
        return States(
            vectors=vectors,
            tokens=tokens,
            special=np.isin(tokens, [token for token in known if token is not None]),
            starts=np.cumsum([0, *sizes]).astype(np.int64),
            cut=cut,
        )

    def token_ids(self, texts: Sequence[str], long: Long = "windows") -> list[list[int]]:
        if not texts:
            return []
        with quiet_transformers():
            clean = [replace_surrogates(text) for text in texts]
            encoded = self.tokenizer(clean, truncation=False, padding=False, return_attention_mask=False)
        return [self._format.truncate(list(ids), long) for ids in encoded["input_ids"]]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return tokens as text. A piece that continues a word starts with ##, whatever the tokenizer."""
        pieces = [str(piece) for piece in self.tokenizer.convert_ids_to_tokens([int(token) for token in tokens])]
        if self._word_mark is None:
            return pieces
        special = set(self.tokenizer.all_special_tokens)
        for number, piece in enumerate(pieces):
            if piece not in special:
                pieces[number] = piece[1:] if piece[:1] == self._word_mark else f"##{piece}"
        return pieces

    @cached_property
    def _word_mark(self) -> str | None:
        """The character that marks pieces at the beginning of a word; None if ## marks the others instead."""
        vocabulary = self.tokenizer.get_vocab()
        marked = {mark: sum(piece.startswith(mark) for piece in vocabulary) for mark in "Ġ▁"}
        mark = max(marked, key=marked.__getitem__)
        # A WordPiece vocabulary may contain these characters too, by themselves.
        return mark if marked[mark] > 1 and marked[mark] > len(vocabulary) // 100 else None

    @cached_property
    def _format(self) -> SequenceFormat:
        with quiet_transformers():
            marks = self.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        opening = next((at for at, mark in enumerate(marks) if not mark), 0)
        closing = next((at for at, mark in enumerate(reversed(marks)) if not mark), 0)
        return SequenceFormat(opening, closing, token_limit(self.model, self.tokenizer))

    def _compute_vectors(self, ids: list[list[int]], layer: int) -> NDArray[np.float32]:
        starts = np.cumsum([0, *map(len, ids)])
        vectors = np.empty((int(starts[-1]), int(self.model.config.hidden_size)), np.float32)
        windows = [window for text, row in enumerate(ids) for window in split_tokens(text, row, self._format)]

        def work(batch: list[int]) -> None:
            selected = [windows[at] for at in batch]
            for window, rows in zip(selected, self._forward(selected), strict=True):
                start = int(starts[window.text]) + window.row
                vectors[start : start + window.last - window.first] = rows[window.first : window.last]

        lengths = [len(window.ids) for window in windows]
        # Other threads use the same model, whose layers are removed during the call.
        with self._lock, self.stack.first(layer):
            failures = batching.run_in_batches(
                lengths, self.budget, work, lambda: devices.free_memory(self.place.device)
            )
        for reason in failures.values():
            raise ModelError(f"{self.name}: a text {reason}")
        return vectors

    def _forward(self, windows: Sequence[CentralWindow]) -> NDArray[np.float32]:
        """Return the last layer's vectors, (sequence, token, dimension)."""
        import torch

        tables = batching.pad_rows([window.ids for window in windows], padding_id(self.model.config, self.tokenizer))
        with torch.inference_mode():
            ids, mask = (torch.from_numpy(table).to(self.place.device) for table in tables)
            outputs = self.model(input_ids=ids, attention_mask=mask)
            vectors: NDArray[np.float32] = outputs[0].float().cpu().numpy()
        return vectors


def padding_id(config: Any, tokenizer: Any) -> int:
    """Return the padding token. Some models count positions by it, so the model's own setting comes first; without one,
    any token will do, as padding is masked."""
    known = (getattr(config, "pad_token_id", None), tokenizer.pad_token_id, 0)
    return int(next(number for number in known if number is not None))


def token_limit(model: Any, tokenizer: Any) -> int:
    """Return the model's limit: the smaller of the tokenizer's and that of the model's positions."""
    limits = [tokenizer.model_max_length]
    # RoBERTa and similar models count positions from the padding token's id on: those before are unusable.
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    for key in ("max_encoder_position_embeddings", "max_position_embeddings"):
        if isinstance(positions := getattr(model.config, key, None), int):
            limits.append(positions if padding is None else positions - int(padding) - 1)
            break
    return min((number for number in limits if 0 < number < _NO_LIMIT), default=_WINDOW)
