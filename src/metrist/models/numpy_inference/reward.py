"""A shipped preference model: an instruction, a context and an answer in, a reward out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching
from metrist.models.numpy_inference import cores
from metrist.models.numpy_inference import folder as folders
from metrist.models.numpy_inference.bert import Bert, Sizes, check_shape
from metrist.models.numpy_inference.quantised import Floats, read, remedy
from metrist.models.options import batch_tokens
from metrist.models.reward_layout import Judged, Laid, bare_ids, lay_out, unknown_id
from metrist.models.reward_settings import NAME as SETTINGS
from metrist.models.reward_settings import Pooling, RewardSettings
from metrist.models.rewards import Rewards
from metrist.models.weights import Weights

ARCHITECTURE = "bert-reward"
#: Rows computed at once: enough for large products, few enough for the processor's cache.
_BUDGET = 512
#: With fewer the products are too small to be fast.
_LEAST = 128


class PlainReward:
    """A BERT with a reward's head in metrist's own form. Equal answers are computed once."""

    def __init__(self, weights: Weights) -> None:
        """The model of a folder; a fault in it is a ModelError that names the file."""
        config = folders.read_config(weights.folder, ARCHITECTURE)
        settings = RewardSettings.read(weights.folder, weights.name)
        arrays = read(weights.folder / folders.WEIGHTS)
        tokenizer = folders.read_tokenizer(weights.folder)
        file = folders.CONFIG
        try:
            sizes = Sizes.of(config)
            file = folders.WEIGHTS
            self._head, self._bias = _head(arrays, sizes.hidden_size)
            self._network = Bert({name: one for name, one in arrays.items() if not name.startswith("head.")}, sizes)
            file = folders.TOKENIZER
            # Tokens that were added to it later stand in no text: such words are read as the letters they have.
            self._network.check_tokens("its vocabulary", tokenizer.get_vocab_size(with_added_tokens=False))
            file = SETTINGS
            self._network.check_tokens("frame", 1 + max((one for part in settings.frame for one in part), default=0))
        except KeyError as missing:
            where = f"neither {folders.CONFIG} nor {folders.WEIGHTS} has"
            raise ModelError(f"{weights.folder}: {where} {missing}; {remedy(weights.folder)}") from None
        except ValueError as fault:
            raise ModelError(f"{weights.folder / file}: {fault}; {remedy(weights.folder)}") from None
        room = min(settings.layout.max_length or sizes.max_position_embeddings, sizes.max_position_embeddings)
        self.settings = replace(settings, layout=replace(settings.layout, max_length=room))
        self._encode, self._unknown = bare_ids(tokenizer), unknown_id(tokenizer)
        self._fingerprint = weights.fingerprint

    @property
    def facts(self) -> Mapping[str, str]:
        """The folder's hash covers weights, tokenizer and settings."""
        return {"weights": self._fingerprint, "dtype": "float32", "runs_on": "numpy"}

    def rewards(self, judged: Sequence[Judged]) -> Rewards:
        """One reward per answer, in the order given, within 1e-5 of each other whatever else is judged with it."""
        number = {one: at for at, one in enumerate(dict.fromkeys(judged))}
        laid = lay_out(self._encode, self.settings.frame, self.settings.layout, list(number), self._unknown)
        order = np.array([number[one] for one in judged], np.int64)
        cut, known = (np.array(counts, np.int64)[order] for counts in (laid.cut, laid.read))
        return Rewards(self._values(laid)[order], cut, known)

    def _values(self, laid: Laid) -> NDArray[np.float64]:
        # Alike lengths meet, since attention takes those of one length together.
        order = sorted(range(len(laid.ids)), key=lambda at: len(laid.ids[at]))
        lengths = [len(laid.ids[at]) for at in order]
        batches = [
            [order[at] for at in places] for places in batching.batches(lengths, _at_once(lengths), padded=False)
        ]
        values = np.empty(len(order), np.float64)
        for batch, found in zip(batches, cores.each(lambda one: self._rewards(laid, one), batches), strict=True):
            values[batch] = found
        return values

    def _rewards(self, laid: Laid, batch: Sequence[int]) -> NDArray[np.float64]:
        rows = [laid.ids[at] for at in batch]
        spans = [_span(self.settings.pooling, len(laid.ids[at]), laid.starts[at]) for at in batch]
        # Row by row, in double precision: nothing is rounded by where a row lies.
        products = self._network.vectors(rows, spans).astype(np.float64) * self._head
        found: NDArray[np.float64] = products.sum(1) + self._bias
        return found


def _span(pooling: Pooling, length: int, start: int) -> tuple[int, int]:
    """The tokens that stand for a row in which the answer begins at `start`."""
    spans = {"answer": (start, length), "mean": (0, length), "first": (0, 1), "last": (length - 1, length)}
    return spans[pooling]


def _at_once(lengths: Sequence[int]) -> int:
    """Tokens of a batch: no more than leave some work for every core."""
    return batch_tokens() or min(_BUDGET, max(_LEAST, -(-sum(lengths) // cores.threads())))


def _head(arrays: Mapping[str, Floats], width: int) -> tuple[NDArray[np.float64], float]:
    check_shape("head.weight", arrays["head.weight"], (1, width))
    check_shape("head.bias", arrays["head.bias"], (1,))
    return arrays["head.weight"][0].astype(np.float64), float(arrays["head.bias"][0])
