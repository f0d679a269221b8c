"""The runtime: defaults from the environment, overrides, validation and sharing among processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import RunError
from metrist.metrics.base import Shard
from metrist.runtime import VARIABLES, Runtime


def test_every_field_has_a_variable() -> None:
    # That stored answers are requested again is asked of one run, not of all runs of a shell.
    fields = [name for name in Runtime.__dataclass_fields__ if name not in ("fresh", "retry_failed")]
    assert list(VARIABLES) == fields


def test_environment_variables_give_defaults(tmp_path: Path) -> None:
    given: dict[str, tuple[str, str, Any]] = {
        "METRIST_DEVICE": ("cuda:1", "device", "cuda:1"),
        "METRIST_BATCH_TOKENS": ("512", "batch_tokens", 512),
        "METRIST_CACHE": (str(tmp_path), "cache", tmp_path),
        "METRIST_CACHE_GB": ("0.5", "cache_gb", 0.5),
        "METRIST_MAX_COST": ("2.5", "max_cost", 2.5),
        "METRIST_LLM_CONCURRENCY": ("4", "concurrency", 4),
        "METRIST_LLM_RPM": ("60", "rpm", 60),
        "METRIST_LLM_TPM": ("1000", "tpm", 1000),
        "METRIST_LLM_TIMEOUT": ("20", "timeout", 20.0),
        "METRIST_LLM_ATTEMPTS": ("3", "attempts", 3),
        "METRIST_LLM_PATIENCE": ("90", "max_wait", 90.0),
        "METRIST_LLM_CACHE": (f"{tmp_path}/answers", "llm_cache", tmp_path / "answers"),
        "METRIST_PRICES": (f"{tmp_path}/prices.toml", "prices", tmp_path / "prices.toml"),
        "METRIST_LLM_RUN": ("abc", "run_id", "abc"),
    }
    runtime = Runtime.from_environment({variable: text for variable, (text, _, _) in given.items()})
    assert runtime == Runtime(**{name: value for _, name, value in given.values()})
    assert Runtime.from_environment({}) == Runtime.from_environment({"METRIST_DEVICE": ""}) == Runtime()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("METRIST_LLM_RPM", "0"),
        ("METRIST_LLM_TPM", "many"),
        ("METRIST_BATCH_TOKENS", "1.5"),
        ("METRIST_LLM_ATTEMPTS", "-1"),
        ("METRIST_MAX_COST", "nan"),
        ("METRIST_MAX_COST", "-1"),
        ("METRIST_LLM_TIMEOUT", "0"),
        ("METRIST_CACHE_GB", "inf"),
        ("METRIST_CACHE", __file__),
        ("METRIST_DEVICE", "foo"),
    ],
)
def test_bad_variable_is_named(variable: str, text: str) -> None:
    with raises_code(RunError, "invalid_value", variable):
        Runtime.from_environment({variable: text})


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"rpm": True}, "rpm"),
        ({"max_cost": -1.0}, "max_cost"),
        ({"cache": __file__}, "cache"),
        ({"device": "foo"}, "device"),
        ({"device": "cuda:-1"}, "device"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], keyword: str) -> None:
    with pytest.raises(RunError, match=keyword):
        Runtime().override(**options)
    with pytest.raises(TypeError, match="colour"):
        Runtime().override(colour=1)


def test_override_keeps_what_is_none_and_names_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = Runtime(device="cpu", rpm=7).override(device=None, rpm=None, cache="kept")
    assert (first.device, first.rpm, first.cache) == ("cpu", 7, tmp_path / "kept")
    assert first.run_id
    assert first.override(device="mps").run_id == first.run_id
    assert first.override(max_cost=1.0).run_id != first.run_id
    assert pickle.loads(pickle.dumps(first)) == first


def test_processes_share_the_limits() -> None:
    runtime = Runtime(concurrency=16, rpm=10, tpm=None)
    assert runtime.max_llm_processes == 10
    share = runtime.split(4)
    assert (share.concurrency, share.rpm, share.tpm) == (4, 2, None)
    assert runtime.split(100).concurrency == 1


def test_shard_carries_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "xpu")
    assert Shard([]).runtime.device == "xpu"
    assert Shard([], runtime=Runtime(device="cpu")).runtime.device == "cpu"
