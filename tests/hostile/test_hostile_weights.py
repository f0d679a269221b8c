"""Model folders of strangers: pickles under other names, impossible headers, paths, code, sizes, pipes."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import metrist
from metrist.metrics.registry import build
from metrist.models.pretrained import convert_state_dict
from metrist.models.weights import find_adapter

Refused = Callable[..., str]

ROWS = [{"item": "1", "system": "a", "output": "the cat sat", "source": "the dog", "references": ["a cat"]}]


class _Exploit:
    """What a pickle runs when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def _pickle(function: Any = os.system, *arguments: Any) -> bytes:
    return pickle.dumps({"weight": _Exploit(function, *(arguments or ("touch canary",)))}, protocol=2)


def _header(content: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _tensor(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def _zip(name: str, data: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


def _gguf(version: int = 3, tensors: int = 1, settings: int = 1, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, settings) + rest


@pytest.fixture
def folder(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("gpt2"), tmp_path / "model"))


def _score(folder: Path) -> object:
    return metrist.score(ROWS, [f"perplexity(model={str(folder)!r})"], progress=False)


WEIGHTS: dict[str, tuple[str, bytes]] = {
    "a pickle": ("pickle", _pickle()),
    "a pickle of the oldest protocol": ("", pickle.dumps(_Exploit(os.system, "touch canary"), protocol=0)),
    "a zip archive with a pickle": ("zip archive", _zip("archive/data.pkl", _pickle())),
    "GGUF": ("GGUF", _gguf()),
    "a pointer of Git LFS": ("Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "a web page": ("web page", b"<!DOCTYPE html><script>alert(1)</script>"),
    "a header of 2^63 bytes": ("", _header(b"{}", length=1 << 63)),
    "a header beyond the file": ("", _header(b"{}", length=1 << 20)),
    "a header nested 100,000 deep": ("", _header(b'{"a":' * 100_000)),
    "a header that is a list": ("", _header([])),
    "a tensor twice": ("", _header(b'{"a": %s, "a": %s}' % ((json.dumps(_tensor()).encode(),) * 2), bytes(8))),
    "offsets beyond the file": ("", _header({"a": _tensor(offsets=(0, 1 << 40))}, bytes(8))),
    "tensors that overlap": ("", _header({"a": _tensor(), "b": _tensor(offsets=(4, 12))}, bytes(12))),
    "a shape whose size overflows": ("", _header({"a": _tensor(shape=(1 << 40, 1 << 40))}, bytes(8))),
    "a type that does not exist": ("", _header({"a": _tensor("F4096")}, bytes(8))),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_are_refused(case: str, folder: Path, refused: Refused) -> None:
    word, content = WEIGHTS[case]
    (folder / "model.safetensors").write_bytes(content)
    refused(word or "model", _score, folder)


def _rename(folder: Path, name: str, content: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)


def _change(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def _write_index(folder: Path, name: str) -> None:
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _replace_by_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _make_large(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 30)  # Without taking any space.


FOLDERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "pytorch_model.bin": ("pickled weights", lambda folder: _rename(folder, "pytorch_model.bin", _pickle())),
    "GGUF with 2^64 tensors": (
        "safetensors",
        lambda folder: _rename(folder, "model.gguf", _gguf(tensors=(1 << 64) - 1, settings=(1 << 64) - 1)),
    ),
    "GGUF with another magic": ("safetensors", lambda folder: _rename(folder, "model.gguf", b"FUGG" + bytes(40))),
    "ONNX with external data": (
        "safetensors",
        lambda folder: _rename(folder, "model.onnx", b"\x08\x08location../../../../etc/passwd"),
    ),
    "an index that leads to another folder": ("same folder", lambda folder: _write_index(folder, "../x.safetensors")),
    "an index of pickles": ("same folder", lambda folder: _write_index(folder, "pytorch_model.bin")),
    "an index that is a list": ("weight_map", lambda f: (f / "model.safetensors.index.json").write_text("[]")),
    "weights that are a named pipe": ("named pipe", lambda folder: _replace_by_pipe(folder / "model.safetensors")),
    "weights that are a link to a device": (
        "device",
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").symlink_to("/dev/zero")),
    ),
    "a link to nowhere": ("broken link", lambda folder: (folder / "extra.json").symlink_to("/nowhere/at/all")),
    "a tokenizer of a gigabyte": ("too large", lambda folder: _make_large(folder / "tokenizer.json")),
    "a tokenizer that is none": ("", lambda folder: (folder / "tokenizer.json").write_text("[" * 100_000)),
    "a configuration nested 100,000 deep": (
        "nested",
        lambda folder: (folder / "config.json").write_text("[" * 100_000),
    ),
    "a billion layers": ("n_layer", lambda folder: _change(folder / "config.json", n_layer=10**9)),
    "a vocabulary of 10^18": ("vocab_size", lambda folder: _change(folder / "config.json", vocab_size=10**18)),
    "a model with code of its own": (
        "Python code",
        lambda folder: (
            _change(
                folder / "config.json",
                model_type="stranger",
                auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
            ),
            (folder / "code.py").write_text("import os; os.system('touch canary')"),
        ),
    ),
    "a model with code on a server": (
        "Python code",
        lambda folder: _change(
            folder / "config.json", model_type="stranger", auto_map={"AutoConfig": "evil/repository--code.Config"}
        ),
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_model_folder_is_refused(case: str, folder: Path, refused: Refused) -> None:
    word, spoil = FOLDERS[case]
    spoil(folder)
    refused(word, _score, folder)


def test_a_folder_of_links_to_files_is_read_as_the_hubs_cache_is(folder: Path, tmp_path: Path) -> None:
    links = tmp_path / "snapshot"
    links.mkdir()
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    assert build(f"perplexity(model={str(links)!r})").signature


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        pytest.param("adapter_model.safetensors", _pickle(), "pickle", id="weights that are a pickle"),
        pytest.param("adapter_config.json", b"[" * 100_000, "nested", id="settings nested 100,000 deep"),
        pytest.param("adapter_config.json", b"[]", "object", id="settings that are a list"),
        pytest.param("card.json", b"7", "object", id="a card that is a number"),
    ],
)
def test_an_adapter_is_refused(name: str, content: bytes, word: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(_header({}))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "http://192.0.2.1/model"}')
    (tmp_path / name).write_bytes(content)
    refused(word, find_adapter, str(tmp_path))


def _convert(path: Path) -> None:
    convert_state_dict(path, path.with_name("out.safetensors"))


STATE_DICTS: dict[str, Callable[[Path], object]] = {
    "os.system": lambda path: path.write_bytes(_pickle()),
    "eval": lambda path: path.write_bytes(_pickle(eval, "open('canary', 'w')")),
    "getattr": lambda path: path.write_bytes(_pickle(getattr, str, "mro")),
    "a file that is opened": lambda path: path.write_bytes(_pickle(open, "canary", "w")),
    "a module that is imported": lambda path: path.write_bytes(_pickle(__import__, "antigravity")),
    "os.system in an archive of torch": lambda path: _save_with(path, _pickle()),
    "a compressed archive": lambda path: path.write_bytes(
        _zip("archive/data.pkl", bytes(1 << 20), zipfile.ZIP_DEFLATED)
    ),
    "an archive with a path": lambda path: path.write_bytes(_zip("../../canary", b"x")),
    "a truncated archive": lambda path: path.write_bytes(_zip("archive/data.pkl", _pickle())[:-30]),
    "text": lambda path: path.write_bytes(b"hello"),
    "nothing": lambda path: path.write_bytes(b""),
    "a folder": lambda path: path.mkdir(),
    "a list": lambda path: _save(path, [1, 2]),
    "names that are numbers": lambda path: _save(path, {1: _torch().zeros(1)}),
    "a small tensor of a terabyte": lambda path: _save(path, {"a": _torch().zeros(1).expand(1 << 38)}),
    "one tensor under ten thousand names": lambda path: _save(
        path, dict.fromkeys(map(str, range(10_000)), _torch().zeros(1 << 16))
    ),
}


def _torch() -> Any:
    import torch

    return torch


def _save(path: Path, content: Any) -> None:
    _torch().save(content, path)


def _save_with(path: Path, data: bytes) -> None:
    _save(path, {"a": _torch().zeros(1)})
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, data if name.endswith("data.pkl") else content)


@pytest.mark.parametrize("case", STATE_DICTS)
def test_a_state_dict_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    STATE_DICTS[case](tmp_path / "model.pth")
    refused("model.pth", _convert, tmp_path / "model.pth")
    assert not (tmp_path / "out.safetensors").exists()
