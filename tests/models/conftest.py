"""Tiny sequence-to-sequence models, saved and loaded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from seq2seq_models import MAKERS

from metrist.models.devices import Options

if TYPE_CHECKING:
    from metrist.models.seq2seq import Seq2Seq

Tiny = Callable[[str], Path]


@pytest.fixture(scope="session")
def seq2seq_folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A folder with a tiny model of any kind above."""
    folders: dict[str, Path] = {}

    def of(kind: str) -> Path:
        import torch

        if kind in ("bart", "t5", "marian"):
            return tiny(kind)
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("model")
            with torch.random.fork_rng():
                torch.manual_seed(7)
                model, tokenizer = MAKERS[kind]()
            model.eval().save_pretrained(folders[kind])
            tokenizer.save_pretrained(folders[kind])
        return folders[kind]

    return of


@pytest.fixture(scope="session")
def loaded(seq2seq_folder: Tiny) -> Callable[[str], Seq2Seq]:
    from metrist.models.seq2seq import Seq2Seq

    models: dict[str, Seq2Seq] = {}

    def of(kind: str) -> Seq2Seq:
        if kind not in models:
            models[kind] = Seq2Seq.load(Options(model=str(seq2seq_folder(kind))))
        return models[kind]

    return of
