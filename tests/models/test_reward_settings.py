"""What a preference model's folder says beside its weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
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
        ({"metrist_reward": 2}, "metrist_reward"),
        ({"pooling": "sum"}, "$.pooling"),
        ({"spread": -1}, "$.spread"),
        ({"spread": "2"}, "$.spread"),
        ({"centre": float("nan")}, "$.centre"),
        ({"centre": 10**400}, "digits"),
        ({"frame": []}, "$.frame"),
        ({"frame": {"prefix": "101", "separator": [], "suffix": []}}, "$.frame.prefix"),
        ({"frame": {"prefix": [], "separator": [], "suffix": [-1]}}, "$.frame.suffix"),
        ({"layout": {"labelled": "no", "max_length": 9, "keep": "end"}}, "$.layout.labelled"),
        ({"layout": {"labelled": True, "max_length": 9.5, "keep": "end"}}, "$.layout.max_length"),
        ({"layout": {"labelled": True, "max_length": 0, "keep": "end"}}, "max_length must be at least 1"),
        ({"layout": {"labelled": True, "max_length": 9, "keep": "all"}}, "$.layout.keep"),
        ({"layout": {"max_length": 9, "keep": "end"}}, "`labelled`"),
        ({"layout": {"labelled": True, "max_length": 9}}, "`keep`"),
        ({"criteria": {"fluency": 5}}, "$.criteria"),
        ({"fields": None}, "$.fields"),
        ({"fields": {"fluency": []}}, "$.fields"),
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
    with raises_code(ModelError, "unreadable", "damaged"):
        RewardSettings.read(tmp_path, "mine")
