"""Find the folder of a LoRA adapter and identify its content; `metrist.models.lora` reads its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrist.documents import read_json_object
from metrist.errors import ModelError
from metrist.models.devices import Options
from metrist.models.folder_check import check_model_folder
from metrist.models.weights import file_digest, find_folder

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: The card of a training of metrist, which names the base.
_CARD, _TRAINING = "card.json", "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The folder of an adapter; `name` is the user's name for it, `base` the fingerprint of the base that it was
    trained on, where it is known."""

    name: str
    folder: Path
    fingerprint: str
    base: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)


def find_adapter(name: str) -> Adapter:
    """Find an adapter in a folder or on the hub, as peft or `metrist train error-analysis` wrote it."""
    folder = find_folder(Options(model=name))
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        if (folder / _TRAINING).is_file() and not (folder / _CARD).is_file():
            raise ModelError(
                f"{name} is an unfinished training; run the same `metrist train` command again to resume it"
            )
        hint = "; it is a model of its own: give it as model=" if (folder / "config.json").is_file() else ""
        raise ModelError(f"{name} has no adapter: expected {CONFIG} and {WEIGHTS}{hint}")
    check_model_folder(name, folder)
    digest = hashlib.sha256()
    for file in (CONFIG, WEIGHTS):
        digest.update(f"{file} {file_digest(folder / file)}\n".encode())
    return Adapter(
        name=name,
        folder=folder,
        fingerprint=digest.hexdigest()[:12],
        base=_read_base(folder / _CARD) if (folder / _CARD).is_file() else None,
        config=read_json_object(folder / CONFIG, ModelError),
    )


def _read_base(card: Path) -> str | None:
    base = read_json_object(card, ModelError).get("base")
    fingerprint = base.get("fingerprint") if isinstance(base, dict) else None
    return fingerprint if isinstance(fingerprint, str) else None
