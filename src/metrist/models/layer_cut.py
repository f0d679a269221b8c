"""The first layers of an encoder: what lies above a chosen layer is not computed.

The layers are taken out of the model for the time of a call, so whatever the model does after its last layer (T5 and
mBART normalise) is done after the chosen one. bert-score cuts its models in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from metrist.errors import ModelError

#: Where architectures keep their layers, inside the model itself, its `encoder` or its `transformer`.
_LISTS = ("layer", "layers", "block", "h")


class Stack(NamedTuple):
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


def encoder_of(model: Any) -> Any:
    """The model itself, or its encoder where it has a decoder too."""
    return model.encoder if hasattr(model, "encoder") and hasattr(model, "decoder") else model


def stack_of(encoder: Any, name: str) -> Stack:
    """Where the encoder keeps its layers."""
    if isinstance(getattr(encoder, "n_layers", None), int):
        return Stack(encoder, "n_layers")
    parts: list[Any] = [encoder, getattr(encoder, "encoder", None), getattr(encoder, "transformer", None)]
    for part in parts:
        if hasattr(part, "albert_layer_groups"):
            return Stack(part.config, "num_hidden_layers")
        for key in _LISTS:
            if type(getattr(part, key, None)).__name__ == "ModuleList":
                return Stack(part, key)
    raise ModelError(
        f"{name} ({type(encoder).__name__}) keeps its layers where metrist does not find them; "
        f"choose another encoder, such as a BERT, RoBERTa, DeBERTa or T5 model"
    )
