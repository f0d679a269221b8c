"""Loaded models are shared by equal options, and runtimes of different threads do not disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metrist.errors import ModelError
from metrist.models import loading
from metrist.models.cache import CACHE_NAME, CacheFile
from metrist.models.devices import Options
from metrist.runtime import Runtime

TEXTS = ["the cat sat", "a dog ran"]


def test_threads_with_different_runtimes_do_not_disturb_each_other(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "not a device")
    monkeypatch.setenv("METRIST_CACHE", str(tmp_path / "unused"))
    options = Options(model=str(tiny("bert")))
    runtimes = [
        Runtime(device="cpu"),
        Runtime(device="cpu", batch_tokens=7, cache=tmp_path / "a"),
        Runtime(device="cpu:0", batch_tokens=9, cache=tmp_path / "b"),
    ]
    barrier = threading.Barrier(len(runtimes))

    def encode(runtime: Runtime) -> tuple[str, int]:
        barrier.wait()
        for _ in range(3):
            model = loading.load_encoder(options, runtime=runtime)
            model.states(TEXTS)
        return str(model.place.device), model.budget.tokens  # type: ignore[attr-defined]

    with ThreadPoolExecutor(len(runtimes)) as pool:
        placements = list(pool.map(encode, runtimes))
    assert placements == [("cpu", 512), ("cpu", 7), ("cpu:0", 9)]
    assert sorted(path.parent.name for path in tmp_path.glob(f"*/{CACHE_NAME}")) == ["a", "b"]
    assert [CacheFile(tmp_path / name).contents().entries for name in "ab"] == [2, 2]


def test_threads_that_ask_for_one_model_load_it_once(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models.encoder import Encoder

    loads: list[Options] = []
    load = Encoder.load
    monkeypatch.setattr(Encoder, "load", lambda *arguments: loads.append(arguments[0]) or load(*arguments))
    options, runtime = Options(model=str(tiny("roberta"))), Runtime(device="cpu", batch_tokens=11)
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: loading.load_encoder(options, runtime=runtime), range(8)))
    assert len(loads) == 1
    assert all(model is models[0] for model in models)


def test_a_failed_load_is_tried_again(tmp_path: Path) -> None:
    options = Options(model=str(tmp_path))
    for _ in range(2):
        with pytest.raises(ModelError):
            loading.load_encoder(options, runtime=Runtime(device="cpu"))
