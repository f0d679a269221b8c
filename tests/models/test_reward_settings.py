"""What a preference model's folder says beside its weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from metrist.errors import ModelError
from metrist.models.reward_layout import RewardFrame, RewardLayout, RewardSettings

GIVEN = RewardSettings(
    pooling="answer",
    layout=RewardLayout(labelled=True, max_length=None, keep="both"),
    frame=RewardFrame((0,), (2, 3), ()),
    criteria={"fluency": "Judge it."},
    fields={"fluency": ("source", "summary")},
    centre=-0.5,
    spread=0.0,
)


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Its spread of 0 is that of a model which gives every answer the same reward."""
    GIVEN.write(tmp_path)
    assert RewardSettings.read(tmp_path, "mine") == GIVEN


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"spread": -1}, "spread must be at least 0, got -1.0"),
        ({"spread": float("inf")}, "spread must be a finite number, got inf"),
        ({"spread": "2"}, "spread must be a finite number, got '2'"),
        ({"spread": True}, "spread must be a finite number, got True"),
        ({"centre": float("nan")}, "centre must be a finite number, got nan"),
        ({"centre": 10**400}, "digits"),
        ({"frame": []}, "frame must be an object, got []"),
        ({"frame": {"prefix": "101", "separator": [], "suffix": []}}, "frame.prefix must be a list of token ids"),
        ({"frame": {"prefix": [], "separator": ["1"], "suffix": []}}, "frame.separator must be a list of token ids"),
        ({"frame": {"prefix": [], "separator": [], "suffix": [-1]}}, "frame.suffix must be a list of token ids"),
        ({"layout": {"labelled": "no", "max_length": 9, "keep": "end"}}, "layout.labelled must be true or false, got"),
        ({"layout": {"labelled": True, "max_length": 9.5, "keep": "end"}}, "layout.max_length must be an integer"),
        ({"layout": {"labelled": True, "max_length": 0, "keep": "end"}}, "max_length must be at least 1, got 0"),
        ({"layout": {"labelled": True, "max_length": 9, "keep": "all"}}, "or 'both', got 'all'"),
        ({"layout": {"max_length": 9, "keep": "end"}}, "KeyError: 'labelled'"),
        ({"layout": {"labelled": True, "max_length": 9}}, "KeyError: 'keep'"),
        ({"criteria": ["fluency"]}, "criteria must be an object, got ['fluency']"),
        ({"criteria": {"fluency": 5}}, "criteria.fluency must be a text, got 5"),
        ({"fields": None}, "fields must be an object, got None"),
        ({"fields": {"fluency": "source"}}, "fields.fluency must be a list of labels, got 'source'"),
        ({"fields": {"fluency": []}}, "fields.fluency must be a list of labels, got []"),
        ({"fields": {"fluency": [1]}}, "fields.fluency must be a list of labels, got [1]"),
    ],
)
def test_invalid_settings_are_named(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    GIVEN.write(tmp_path)
    path = tmp_path / "reward.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(ModelError, match=re.escape(message)) as error:
        RewardSettings.read(tmp_path, "mine")
    assert str(error.value).startswith(f"{path} cannot be used (")
    assert str(error.value).endswith("; train the model again")
    assert len(str(error.value).splitlines()) == 1


def test_a_damaged_exported_folder_should_be_exported_again(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").touch()
    (tmp_path / "reward.json").write_text("[]")
    with pytest.raises(ModelError, match=r"the file must be an object, got \[\]\); the folder is damaged: export it"):
        RewardSettings.read(tmp_path, "mine")
