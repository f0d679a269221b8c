"""Matrices in few bits: what is read is what was written, to half a step. The bounds follow from the rounding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from error_codes import raises_code
from metrist.errors import MissingExtra, ModelError
from metrist.models.numpy_inference.storage import (
    Quantized,
    dequantize,
    pack_bits,
    quantize,
    read_arrays,
    read_quantized,
    suggest_repair,
    unpack_bits,
    write_arrays,
)


def matrix(rows: int = 24, columns: int = 64) -> np.ndarray:
    rng = np.random.default_rng(3)
    # Rows of very different size: a scale for the whole matrix would lose the small ones.
    return (rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-4, 2, (rows, 1))).astype(np.float32)


@pytest.mark.parametrize(("bits", "group"), [(8, None), (8, 16), (6, 32), (5, 64), (4, 16)])
def test_a_weight_comes_back_close_to_itself_whatever_the_size_of_its_row(bits: int, group: int | None) -> None:
    original = matrix()
    integers, scale = quantize(original, bits, group)
    largest = np.abs(original).reshape(24, -1, group or 64).max(2)
    assert integers.dtype == np.int8
    assert np.abs(integers).max() <= 2 ** (bits - 1) - 1
    error = np.abs(dequantize(integers, scale) - original).reshape(24, -1, group or 64)
    # A quarter of the range may be cut off where that rounds the others better; a step is a share of the range.
    assert (error.max(2) <= 0.26 * largest).all()
    assert (np.sqrt((error**2).mean(2)) <= 0.6 * largest / (2 ** (bits - 1) - 1)).all()


def test_more_bits_and_smaller_groups_lose_less() -> None:
    original = matrix()
    lost = [
        float(
            np.square(
                (dequantize(*quantize(original, *how)) - original) / np.abs(original).max(1, keepdims=True)
            ).mean()
        )
        for how in ((4, None), (4, 16), (6, 16), (8, 16))
    ]
    assert lost == sorted(lost, reverse=True)
    assert lost[0] > 100 * lost[-1]


def test_a_row_of_zeros_stays_one() -> None:
    assert not dequantize(*quantize(np.zeros((2, 8), np.float32), 8)).any()


@pytest.mark.parametrize("bits", range(2, 9))
def test_bit_planes_give_the_numbers_back(bits: int) -> None:
    rng = np.random.default_rng(bits)
    integers = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (7, 13)).astype(np.int8)
    planes = pack_bits(integers, bits)
    assert planes.shape == (bits, 12)  # 91 numbers in whole bytes
    assert np.array_equal(unpack_bits(planes, (7, 13)), integers)


def test_a_file_gives_back_what_was_written_and_takes_the_requested_bits(tmp_path: Path) -> None:
    original = {"small": matrix(8), "fine": matrix(8), "as it is": np.arange(5, dtype=np.float32)}
    write_arrays(tmp_path / "w.safetensors", original, {"small": (4, 32), "fine": (8, None)})
    arrays = read_arrays(tmp_path / "w.safetensors")
    assert arrays.keys() == original.keys()
    assert np.array_equal(arrays["as it is"], original["as it is"])
    for name, how in (("small", (4, 32)), ("fine", (8, None))):
        assert np.array_equal(arrays[name], dequantize(*quantize(original[name], *how)))
        assert arrays[name].dtype == np.float32


def test_a_written_file_can_be_read_by_everybody(tmp_path: Path) -> None:
    write_arrays(tmp_path / "w.safetensors", {"m": matrix()}, {})
    assert (tmp_path / "w.safetensors").stat().st_mode & 0o444 == 0o444


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"\x10broken")
    with raises_code(ModelError, "unreadable", "w.safetensors"):
        read_arrays(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fine.scale": None}, "'fine' has integers (int8) but no 'fine.scale'"),
        ({"small.scale": None}, "'small' has integers (uint8) but no 'small.scale'"),
        ({"small.shape": None}, "'small' has the shape (4, 64) in uint8, expected a matrix of int8"),
        ({"small.shape": np.array([8, 65])}, "'small' has bit planes of (4, 64), which do not fit a matrix of (8, 65)"),
        ({"small.shape": np.array([8])}, "'small.shape' is [8], expected rows and columns"),
        ({"fine.scale": np.ones((8, 3), np.float16)}, "'fine.scale' has the shape (8, 3), which does not fit a matrix"),
        ({"fine.scale": np.ones(8, np.float16)}, "'fine.scale' has the shape (8,), which does not fit a matrix of (8,"),
        ({"fine.scale": np.full((8, 1), np.nan, np.float16)}, "'fine.scale' has numbers that are infinite or N"),
        ({"as it is": np.array([1, np.inf], np.float32)}, "'as it is' has numbers that are infinite or NaN"),
        ({"fine": matrix(8)}, "'fine' has the shape (8, 64) in float32, expected a matrix of int8"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_named(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    original = {"small": matrix(8), "fine": matrix(8), "as it is": np.arange(5, dtype=np.float32)}
    write_arrays(path, original, {"small": (4, 32), "fine": (8, None)})
    save_file({name: array for name, array in {**load_file(path), **changed}.items() if array is not None}, path)
    with pytest.raises(ModelError, match=re.escape(f"{path}: {message}")):
        read_arrays(path)


def test_only_a_model_that_metrist_models_has_is_to_be_installed_again(tmp_path: Path) -> None:
    shipped = pytest.importorskip("metrist_models", reason="metrist_models is not installed")
    assert suggest_repair(Path(shipped.__file__).parent / "preference-small") == "install metrist-models again"
    assert "export it again" in suggest_repair(tmp_path)


def test_without_safetensors_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with raises_code(MissingExtra, "missing_dependency", "'metrist[standard]'"):
        read_arrays(tmp_path / "w.safetensors")


def store(path: Path, original: np.ndarray, bits: int) -> Quantized:
    write_arrays(path, {"m": original}, {"m": (bits, 64)})
    stored = read_quantized(path)["m"]
    assert isinstance(stored, Quantized)
    return stored


@pytest.mark.parametrize("bits", [8, 7, 6])
def test_changes_below_a_step_remain_in_the_mean(tmp_path: Path, bits: int) -> None:
    """All weights grow by a tenth of their step: about one in ten goes one step up, none goes down."""
    before = store(tmp_path / "w", np.random.default_rng(0).standard_normal((400, 128)).astype(np.float32), bits)
    grown = before.dequantize() + 0.1 * np.repeat(before.steps, 64, 1)
    after = before.requantize(grown, np.random.default_rng(1))
    assert (after.bits, after.shape) == (before.bits, before.shape)
    largest = 2 ** (bits - 1) - 1
    free = before.integers() < largest
    moved = (after.integers().astype(int) - before.integers())[free]
    assert set(np.unique(moved)) == {0, 1}
    # The standard error of a share of .1 among some 50,000 weights is .0013.
    assert abs(moved.mean() - 0.1) < 0.006
    # Rounding to the nearest step undoes all of it.
    assert np.array_equal(np.rint(grown / np.repeat(before.steps, 64, 1))[free], before.integers()[free])
    write_arrays(tmp_path / "again", {"m": after}, {})
    np.testing.assert_array_equal(read_arrays(tmp_path / "again")["m"], after.dequantize())


def test_weights_that_did_not_change_stay_and_larger_ones_get_a_new_scale(tmp_path: Path) -> None:
    before = store(tmp_path / "w", np.random.default_rng(0).standard_normal((40, 128)).astype(np.float32), 7)
    same = before.requantize(before.dequantize(), np.random.default_rng(1))
    np.testing.assert_array_equal(same.integers(), before.integers())
    larger = before.dequantize()
    larger[3, :64] *= 4
    after = before.requantize(larger, np.random.default_rng(1))
    changed = after.scale != before.scale
    assert changed[3, 0]
    assert changed.sum() == 1
    assert np.abs(after.dequantize() - larger).max() <= 0.26 * np.abs(larger).max()
