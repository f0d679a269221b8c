"""Where a model's weights lie, and what identifies them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metrist.models.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A folder with config, tokenizer and safetensors weights; `name` is what the user called it."""

    name: str
    folder: Path
    fingerprint: str


def find(options: Options) -> Weights:
    """The folder of a hub model (downloaded if need be), a local folder, or a model shipped as 'metrist:NAME'."""
    raise NotImplementedError
