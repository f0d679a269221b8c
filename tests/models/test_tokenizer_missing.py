"""A model's folder into which no tokenizer was saved."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models.devices import Options
from metrist.models.seq2seq import Seq2Seq


@pytest.mark.parametrize("remaining", [[], ["tokenizer_config.json"]])
def test_it_is_refused_before_transformers_makes_one_without_words(
    tiny: Callable[[str], Path], tmp_path: Path, remaining: list[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("t5"), folder)
    for path in folder.glob("*token*"):
        if path.name not in remaining:
            path.unlink()
    with raises_code(ModelError, "no_data", "tokenizer.json", str(folder)):
        Seq2Seq.load(Options(model=str(folder)))
