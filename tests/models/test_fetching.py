"""A description of a metric never downloads its model."""

from __future__ import annotations

from typing import Any

import huggingface_hub
import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.metrics.cards import describe
from metrist.metrics.registry import build
from metrist.models.devices import Options, downloads_allowed, no_downloads
from metrist.models.weights import find_weights


@pytest.fixture
def offline_flags(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the hub's client was kept to its cache, for each time that it was called. It finds nothing."""
    calls: list[bool] = []

    def snapshot_download(*_: Any, local_files_only: bool = False, **__: Any) -> str:
        calls.append(local_files_only)
        raise huggingface_hub.errors.LocalEntryNotFoundError("nothing there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_inside_the_block_only_the_cache_is_asked(offline_flags: list[bool]) -> None:
    with no_downloads(), raises_code(ModelError, "model_unusable", "'someone/some-model'"):
        find_weights(Options(model="someone/some-model"))
    assert downloads_allowed()
    with raises_code(ModelError, "model_unusable", "hf download"):
        find_weights(Options(model="someone/some-model"))
    assert offline_flags == [True, False]


def test_a_description_says_why_it_has_no_signature(offline_flags: list[bool]) -> None:
    text = " ".join(describe(build("bartscore(model='someone/some-model')")).split())
    assert "'someone/some-model' is not a folder and not in the hub's cache yet" in text
    assert set(offline_flags) == {True}
