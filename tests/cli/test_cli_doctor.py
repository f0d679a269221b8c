"""`metrist doctor`, and completion in shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from metrist.cli import installation as module
from metrist.models.numpy_inference import storage

SECRET = "sk-do-not-print-this-0123456789"


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch takes seconds; the tests that need a device say so."""
    monkeypatch.setitem(sys.modules, "torch", None)


def find(metrist, *arguments: str) -> dict[str, dict[str, str]]:
    code, out, err = metrist("doctor", "--json", *arguments)
    assert (code, err) == (0, "")
    return {finding["name"]: finding for finding in json.loads(out)}


def test_the_report_has_all_topics(metrist):
    code, out, _ = metrist("doctor")
    assert code == 0
    topics = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert topics == ["metrist", "extras", "devices", "models", "metrics of other packages", "LLMs", "next"]


def test_what_is_missing_comes_with_the_command_that_installs_it(metrist, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    findings = find(metrist)
    assert findings["neural"]["state"] == "missing"
    assert findings["neural"]["fix"] == "pip install 'metrist[neural]'"
    assert "lacks vl_convert" in findings["plots"]["detail"]
    assert findings["standard"]["state"] == "ok"
    assert findings["cpu"]["detail"] == "shipped models run on it without torch"


def test_keys_are_named_and_never_printed(metrist, monkeypatch):
    for name in module._KEYS:
        monkeypatch.delenv(name, raising=False)
    assert "no key is set" in find(metrist)["keys"]["detail"]
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert find(metrist)["OPENAI_API_KEY"]["detail"] == "is set"
    for arguments in (["doctor"], ["doctor", "--json"]):
        answer = metrist(*arguments)
        assert SECRET not in answer.out + answer.err
        assert SECRET[:8] not in answer.out + answer.err


def test_models_of_the_hubs_cache_are_listed(metrist, monkeypatch, tmp_path):
    for number in range(7):
        (tmp_path / f"models--org--model-{number}").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find(metrist)["hub's cache"]["detail"].startswith("org/model-0, org/model-1")
    assert find(metrist)["hub's cache"]["detail"].endswith("and 2 more")
    (tmp_path / "package" / "analyst").mkdir(parents=True)
    (tmp_path / "package" / "analyst" / "adapter_config.json").write_text("{}")
    monkeypatch.setattr(storage, "find_packages", lambda: {"some-models": tmp_path / "package"})
    assert find(metrist)["some-models"]["detail"] == "analyst (an adapter)"
    monkeypatch.setattr(storage, "find_packages", dict)
    assert find(metrist)["shipped models"]["state"] == "missing"


class Cuda:
    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def get_device_properties(_number: int) -> object:
        return type("Properties", (), {"name": "Some GPU", "total_memory": 80 * 2**30})


def test_gpus_are_listed(metrist, monkeypatch):
    mps = type("Mps", (), {"is_available": staticmethod(lambda: True)})
    fake = type("Torch", (), {"cuda": Cuda, "backends": type("B", (), {"mps": mps}), "get_num_threads": lambda: 2})
    monkeypatch.setattr(module, "is_installed", lambda _name: True)
    monkeypatch.setattr(module, "import_module", lambda _name: fake)
    findings = find(metrist)
    assert findings["cuda:0"]["detail"] == "Some GPU, 80 GiB"
    assert findings["mps"]["state"] == "ok"
    assert findings["default"]["detail"].startswith("auto")


@pytest.mark.parametrize(("setting", "state"), [("python", "note"), ("", "missing")])
def test_plain_kernels_are_noted(metrist, monkeypatch, setting, state):
    monkeypatch.setattr("metrist.kernels.have_compiled", False)
    monkeypatch.setenv("METRIST_KERNELS", setting)
    assert find(metrist)["kernels"]["state"] == state


@pytest.mark.parametrize(
    ("words", "number", "completions"),
    [
        ("metrist sac", 1, {"sacrebleu"}),
        ("metrist train li", 2, {"likelihood"}),
        ("metrist sacrebleu --chrf-be", 2, {"--chrf-beta"}),
    ],
)
def test_bash_completes_commands_and_options(words, number, completions):
    # In a program of its own: the name of the program decides which variable asks for completions.
    code = "import sys; sys.argv = ['metrist']; from metrist.cli.app import main; main()"
    asked_for = {"_METRIST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked_for}, capture_output=True, text=True, check=False
    )
    assert set(process.stdout.split()) == completions
