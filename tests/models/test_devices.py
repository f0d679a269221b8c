from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import MissingExtra, ModelError
from metrist.models import devices
from metrist.models.devices import Dtype, Options
from metrist.runtime import Runtime

OPTIONS = Options(model="m")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METRIST_DEVICE", raising=False)
    monkeypatch.delenv("METRIST_BATCH_TOKENS", raising=False)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cards of 80 GiB, as far as torch says."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    about = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _where: about)


def _no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_without_a_card_a_model_runs_on_the_cpu_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    _no_cards(monkeypatch)
    place = devices.resolve_placement(OPTIONS)
    assert (place.device.type, place.dtype, place.spread) == ("cpu", torch.float32, False)


@pytest.mark.usefixtures("cards")
def test_a_card_is_taken_with_a_budget_that_suits_its_memory() -> None:
    import torch

    place = devices.resolve_placement(Options(model="m", dtype="bfloat16"))
    assert (place.device.type, place.dtype, place.tokens) == ("cuda", torch.bfloat16, 32_768)


@pytest.mark.usefixtures("cards")
def test_a_device_map_spreads_the_model() -> None:
    place = devices.resolve_placement(OPTIONS, Runtime(device="map"))
    assert (place.device.type, place.spread) == ("cuda", True)


@pytest.mark.usefixtures("cards")
def test_a_named_card_is_taken() -> None:
    assert str(devices.resolve_placement(OPTIONS, Runtime(device="cuda:1")).device) == "cuda:1"


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("requested", "value"),
    [("cuda:2", "2 cuda"), ("xpu", "0 xpu")],
)
def test_a_device_that_is_not_there_is_refused(requested: str, value: str) -> None:
    with raises_code(ModelError, "model_unusable", f"'{requested}'", value):
        devices.resolve_placement(OPTIONS, Runtime(device=requested))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_on_a_cpu_is_refused(dtype: Dtype) -> None:
    with raises_code(ModelError, "model_unusable", f"m: dtype='{dtype}'", "CPU"):
        devices.resolve_placement(Options(model="m", dtype=dtype), Runtime(device="cpu"))


def test_other_dtypes_are_refused() -> None:
    with raises_code(ModelError, "invalid_value", "m: dtype", "'float32', 'bfloat16', 'float16'", "'float64'"):
        devices.resolve_placement(Options(model="m", dtype="float64"))


def test_the_runtime_sets_the_batch_size() -> None:
    assert devices.resolve_placement(OPTIONS, Runtime(batch_tokens=77), cpu_tokens=5).tokens == 77
    assert devices.resolve_placement(OPTIONS, Runtime(device="cpu"), cpu_tokens=5).tokens == 5


def test_without_a_runtime_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_BATCH_TOKENS", "77")
    assert devices.resolve_placement(OPTIONS).tokens == 77


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_torch_or_transformers_the_message_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with raises_code(MissingExtra, "missing_dependency", "'m'", "'metrist[neural]'"):
        devices.resolve_placement(OPTIONS)


@pytest.mark.parametrize("kind", ["cuda", "mps", "cpu"])
def test_freeing_empties_the_devices_own_cache(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    emptied: list[str] = []

    def emptying(name: str) -> Any:
        return lambda: emptied.append(name)

    monkeypatch.setattr(torch.cuda, "empty_cache", emptying("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", emptying("mps"))
    devices.free_memory(SimpleNamespace(type=kind))
    assert emptied == ([kind] if kind != "cpu" else [])
