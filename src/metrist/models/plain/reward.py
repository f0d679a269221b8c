"""A shipped preference model: an instruction, a context and an answer in, a reward out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models import batching
from metrist.models.options import batch_tokens
from metrist.models.plain import cores
from metrist.models.plain import folder as folders
from metrist.models.plain.bert import Bert, Sizes
from metrist.models.plain.quantised import Floats, read
from metrist.models.reward_layout import Judged, Laid, bare_ids, lay_out
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
        try:
            sizes = Sizes.of(config)
            self._network = Bert(arrays, sizes)
            self._head, self._bias = _head(arrays)
        except KeyError as missing:
            where = f"neither {folders.CONFIG} nor {folders.WEIGHTS} has"
            raise ModelError(f"{weights.folder}: {where} {missing}; install metrist-models again") from None
        room = min(settings.layout.max_length or sizes.max_position_embeddings, sizes.max_position_embeddings)
        self.settings = replace(settings, layout=replace(settings.layout, max_length=room))
        self._encode = bare_ids(folders.read_tokenizer(weights.folder))
        self._fingerprint = weights.fingerprint

    @property
    def facts(self) -> Mapping[str, str]:
        """The folder's hash covers weights, tokenizer and settings."""
        return {"weights": self._fingerprint, "dtype": "float32", "runs_on": "numpy"}

    def rewards(self, judged: Sequence[Judged]) -> Rewards:
        """One reward per answer, in the order given, within 1e-5 of each other whatever else is judged with it."""
        number = {one: at for at, one in enumerate(dict.fromkeys(judged))}
        laid = lay_out(self._encode, self.settings.frame, self.settings.layout, list(number))
        order = np.array([number[one] for one in judged], np.int64)
        return Rewards(self._values(laid)[order], np.array(laid.cut, np.int64)[order])

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


def _head(arrays: Mapping[str, Floats]) -> tuple[NDArray[np.float64], float]:
    return arrays["head.weight"][0].astype(np.float64), float(arrays["head.bias"][0])
