from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import MissingExtra, ModelError
from metrist.models.devices import Options
from metrist.models.numpy_inference.storage import find_distribution
from metrist.models.pretrained import _translate_errors
from metrist.models.weights import Weights, find_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What save_pretrained leaves, as far as finding it goes."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}')
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed metrist_models with one model in it."""
    package = tmp_path / "site" / "metrist_models"
    (package / "small").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "small" / "config.json").write_text('{"metrist_format": 1}')
    (package / "small" / "weights.npz").write_bytes(b"numbers")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    real = sys.modules.pop("metrist_models", None)
    yield package / "small"
    sys.modules.pop("metrist_models", None)
    if real:
        sys.modules["metrist_models"] = real


def test_a_local_folder_is_found_under_the_name_the_user_gave(folder: Path) -> None:
    result = find_weights(Options(model=str(folder)))
    assert (result.name, result.folder, len(result.fingerprint), result.runs_on_numpy) == (
        str(folder),
        folder,
        12,
        False,
    )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "merges.txt", "source.spm"])
def test_the_fingerprint_changes_with_every_file_that_decides_numbers(folder: Path, name: str) -> None:
    before = find_weights(Options(model=str(folder))).fingerprint
    (folder / name).write_text('{"another": "content"}')
    assert find_weights(Options(model=str(folder))).fingerprint != before


def test_code_counts_in_the_fingerprint_where_it_is_run(folder: Path) -> None:
    plain, trusted = Options(model=str(folder)), Options(model=str(folder), trust_remote_code=True)
    (folder / "modeling_own.py").write_text("factor = 1")
    before = find_weights(plain).fingerprint, find_weights(trusted).fingerprint
    (folder / "modeling_own.py").write_text("factor = 2.5")
    assert find_weights(plain).fingerprint == before[0]
    assert find_weights(trusted).fingerprint != before[1] != before[0]


def test_the_fingerprint_depends_on_neither_place_nor_notes(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "README.md").write_text("about this model")
    assert find_weights(Options(model=str(copy))).fingerprint == find_weights(Options(model=str(folder))).fingerprint


def test_weights_in_the_hubs_cache_are_not_read_to_know_their_hash(folder: Path, tmp_path: Path) -> None:
    import hashlib

    blobs = tmp_path / "blobs"
    blobs.mkdir()
    as_file = find_weights(Options(model=str(folder))).fingerprint
    blob = blobs / hashlib.sha256(b"weights").hexdigest()
    blob.write_bytes(b"never looked at")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(blob)
    assert find_weights(Options(model=str(folder))).fingerprint == as_file


def test_a_shipped_model_is_a_folder_of_the_installed_package(shipped: Path) -> None:
    result = find_weights(Options(model="metrist:small"))
    assert (result.folder, result.runs_on_numpy, len(result.fingerprint)) == (shipped, True, 12)


def test_a_shipped_models_fingerprint_takes_in_all_files_but_its_papers(shipped: Path) -> None:
    before = find_weights(Options(model="metrist:small")).fingerprint
    (shipped / "LICENSE").write_text("MIT")
    assert find_weights(Options(model="metrist:small")).fingerprint == before
    (shipped / "pieces.bin").write_bytes(b"vocabulary")
    assert find_weights(Options(model="metrist:small")).fingerprint != before


@pytest.mark.usefixtures("shipped")
def test_an_unknown_shipped_model_lists_those_there_are() -> None:
    with raises_code(ModelError, "unknown_name", "'metrist:smal'", "'metrist:small'"):
        find_weights(Options(model="metrist:smal"))


def test_shipped_models_that_are_not_installed_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metrist_models", None)
    with raises_code(MissingExtra, "missing_dependency", "'metrist:small'", "'metrist[standard]'"):
        find_weights(Options(model="metrist:small"))


def test_a_model_of_another_package_names_that_package(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    english = shipped.parent.parent / "metrist_models_english"
    name = "metrist:english-small"
    monkeypatch.setitem(sys.modules, "metrist_models_english", None)
    with raises_code(MissingExtra, "missing_dependency", "'metrist:english-small'"):
        find_weights(Options(model=name))
    shutil.copytree(shipped, english / "english-small")
    (english / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "metrist_models_english")
    assert find_weights(Options(model=name)).folder == english / "english-small"
    assert find_distribution(english / "english-small") == "metrist-models-english"
    monkeypatch.delitem(sys.modules, "metrist_models_english")
    with raises_code(ModelError, "missing_dependency", "'metrist:english-big'", "--upgrade"):
        find_weights(Options(model="metrist:english-big"))


@pytest.mark.usefixtures("shipped")
def test_the_large_model_names_its_own_package_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metrist_models_english_large", None)
    values = "'metrist:english-large'", "metrist-models-english-large", "'metrist[large]'"
    with raises_code(MissingExtra, "missing_dependency", *values):
        find_weights(Options(model="metrist:english-large"))


def test_a_folder_without_a_config_is_refused_with_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with raises_code(ModelError, "invalid_value", "config.json", "notes.txt"):
        find_weights(Options(model=str(tmp_path)))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_training_that_is_not_finished_is_called_one(folder: Path, missing: str) -> None:
    """Weights come last into its folder; before them there may be a config already."""
    (folder / "training.json").write_text("{}")
    find_weights(Options(model=str(folder)))
    (folder / missing).unlink()
    with raises_code(ModelError, "unfinished", str(folder)):
        find_weights(Options(model=str(folder)))


@pytest.mark.parametrize(("content", "value"), [("{", "JSON"), ("[]", "list")])
def test_a_config_that_cannot_be_read_is_refused(folder: Path, content: str, value: str) -> None:
    (folder / "config.json").write_text(content)
    with raises_code(ModelError, "model_unusable", "config.json", value):
        find_weights(Options(model=str(folder)))


def test_a_file_is_refused(folder: Path) -> None:
    with raises_code(ModelError, "unreadable", "model.safetensors"):
        find_weights(Options(model=str(folder / "model.safetensors")))


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c", "two words", "a--b", "~/nowhere/at/all"])
def test_a_name_that_is_neither_a_folder_nor_a_hub_name_is_refused(name: str) -> None:
    with raises_code(ModelError, "missing_file", "neither"):
        find_weights(Options(model=name))


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_short_name_of_a_shipped_model_is_no_name_on_the_hub(name: str) -> None:
    with raises_code(ModelError, "unknown_name", name):
        find_weights(Options(model=name))


def test_a_model_in_the_own_format_is_not_called_unrecognized() -> None:
    weights = Weights(name="metrist:english-small", folder=Path(), fingerprint="0", runs_on_numpy=True)
    with raises_code(ModelError, "model_unusable", "own format", "hub"), _translate_errors("AutoModel", weights):
        raise ValueError("Unrecognized model")


def test_a_folder_without_any_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with raises_code(ModelError, "model_unusable", "*.safetensors"):
        find_weights(Options(model=str(folder)))


@pytest.mark.filterwarnings("ignore")
def test_the_advice_on_pickled_weights_works_when_followed(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    copy = shutil.copytree(tiny("bart"), tmp_path / "pickled")
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with raises_code(ModelError, "untrusted", "pytorch_model.bin") as caught:
        find_weights(Options(model=str(copy)))
    exec("\n".join(line.removeprefix("    ") for line in str(caught.value).splitlines()[1:]), {})
    converted = tmp_path / "pickled-safetensors"
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny("bart"), converted))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert find_weights(Options(model=str(converted))).runs_on_numpy is False


def test_the_advice_on_a_lone_state_dict_loads_it(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "bart_score.pth").touch()
    with raises_code(ModelError, "untrusted", "torch.load", "weights_only=True"):
        find_weights(Options(model=str(folder)))


def _offline(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def test_a_hub_model_comes_from_the_cache_when_offline(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "hub" / "models--some--model"
    shutil.copytree(folder, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    _offline(monkeypatch, tmp_path / "hub")
    result = find_weights(Options(model="some/model"))
    assert (result.folder.name, result.name) == (commit, "some/model")
    assert result.fingerprint == find_weights(Options(model=str(folder))).fingerprint
    assert find_weights(Options(model="some/model", revision=commit)).folder == result.folder


@pytest.mark.parametrize(("revision", "at"), [(None, ""), ("v2", "'v2'")])
def test_a_hub_model_that_cannot_be_reached_says_what_to_do_in_one_line(
    revision: str | None, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offline(monkeypatch, tmp_path / "empty")
    with raises_code(ModelError, "model_unusable", "'some/model'", at, "hf download") as caught:
        find_weights(Options(model="some/model", revision=revision))
    assert "\n" not in str(caught.value)


def _refusing(code: str) -> Exception:
    """What the hub's client raises for an answer of the hub, without the answer."""
    from huggingface_hub import errors

    kind: type[Exception] = getattr(errors, code)
    fault = kind.__new__(kind)
    Exception.__init__(fault, "Not for you.\nMore lines.")
    return fault


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("RepositoryNotFoundError", "huggingface.co"),
        ("GatedRepoError", "hf auth login"),
        ("RevisionNotFoundError", "'v2'"),
        ("HfHubHTTPError", "Not for you."),
    ],
)
def test_what_the_hub_refuses_is_one_line(kind: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_args: object, **_settings: object) -> str:
        raise _refusing(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with raises_code(ModelError, "model_unusable", "'some/model'", value) as caught:
        find_weights(Options(model="some/model", revision="v2"))
    assert "\n" not in str(caught.value)


def test_finding_a_folder_imports_neither_torch_nor_the_hubs_client(folder: Path) -> None:
    code = (
        "import sys; from metrist.models.weights import find_weights; from metrist.models.devices import Options; "
        "find_weights(Options(model=sys.argv[1])); "
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_config_is_at_hand(folder: Path) -> None:
    assert find_weights(Options(model=str(folder))).config == json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("files", "known"),
    [
        ({}, False),
        ({"tokenizer_config.json": '{"tokenizer_class": "T5Tokenizer"}', "special_tokens_map.json": "{}"}, False),
        ({"tokenizer_config.json": '{"tokenizer_class": "ByT5Tokenizer"}'}, True),
        ({"spiece.model": ""}, True),
        ({"vocab.txt": ""}, True),
        ({"tokenizer.json": "{}"}, True),
    ],
)
def test_a_folder_has_a_tokenizer_or_not(folder: Path, files: dict[str, str], known: bool) -> None:
    (folder / "tokenizer.json").unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    assert find_weights(Options(model=str(folder))).has_tokenizer is known


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_what_is_not_installed_is_said_before_a_hub_model_is_fetched(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with raises_code(MissingExtra, "missing_dependency", "'someone/big'", "'metrist[neural]'"):
        find_weights(Options(model="someone/big"))
