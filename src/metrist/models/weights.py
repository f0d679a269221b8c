"""Where a model's weights lie, and what identifies them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, resources, util
from pathlib import Path
from typing import Any

from metrist.errors import MissingExtra, ModelError, did_you_mean
from metrist.models.options import Options, may_fetch

#: Models of the second distribution are called by this prefix and their folder's name.
SHIPPED = "metrist:"
#: The key of config.json that marks a model which runs without torch.
PLAIN = "metrist_format"

#: What a training writes first into its folder; the model comes last.
_TRAINING = "training.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_WEIGHTS = (".safetensors", ".npz", ".onnx")
_TOKENIZER = re.compile(
    r"(tokenizer|vocab|merges|special_tokens_map|added_tokens|chat_template).*|.*\.(model|spm|tiktoken)"
)
_VOCABULARY = re.compile(r"tokenizer\.json|dict\.txt|(vocab|merges).*|.*\.(model|spm|tiktoken|tokenizer|codes)")
# Tokenizers of bytes or characters, which have no such file.
_NO_VOCABULARY = ("ByT5", "Canine", "Perceiver")
_NO_NUMBERS = re.compile(r"(README|LICEN[CS]E|NOTICE|card|ATTRIBUTION|__).*|\..*|.*\.(md|py)", re.IGNORECASE)
_FETCHED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.tiktoken"]
_NOT_FETCHED = ["*/*.safetensors", "onnx/*", "openvino/*", "original/*"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A folder with config, tokenizer and safetensors weights; `name` is what the user called it."""

    name: str
    folder: Path
    fingerprint: str

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says."""
        return _config(self.name, self.folder)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder says how texts become tokens."""
        if any(_VOCABULARY.fullmatch(one.name) for one in self.folder.iterdir()):
            return True
        settings = self.folder / "tokenizer_config.json"
        return settings.is_file() and any(name in settings.read_text(encoding="utf-8") for name in _NO_VOCABULARY)

    @property
    def plain(self) -> bool:
        """Whether the model runs without torch."""
        return PLAIN in self.config


def find(options: Options) -> Weights:
    """The folder of a hub model (downloaded if need be), a local folder, or a model shipped as 'metrist:NAME'."""
    folder = _folder(options)
    plain = PLAIN in _config(options.model, folder)
    if not plain and not any(folder.glob("*.safetensors")):
        _refuse(options.model, folder)
    return Weights(name=options.model, folder=folder, fingerprint=_fingerprint(folder, plain, options))


def _folder(options: Options) -> Path:
    name = options.model
    if name.startswith(SHIPPED):
        return _shipped(name)
    local = Path(name).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.is_file():
        raise ModelError(f"{name} is a file; give the folder that holds config.json, the tokenizer and *.safetensors")
    if not _HUB_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise ModelError(f"there is no folder {name!r}, and it is no hub name such as 'facebook/bart-large-cnn' either")
    return _hub(options)


def _shipped(name: str) -> Path:
    try:
        root = resources.files("metrist_models")
    except ModuleNotFoundError:
        raise MissingExtra(f"the shipped model {name!r}", "standard") from None
    known = sorted(SHIPPED + one.name for one in root.iterdir() if (one / "config.json").is_file())
    if name not in known:
        there = f"there are {', '.join(map(repr, known))}" if known else "there are none"
        raise ModelError(f"no shipped model {name!r}: {there}{did_you_mean(name, known)}")
    return Path(str(root / name.removeprefix(SHIPPED)))


def _hub(options: Options) -> Path:
    """A hub model's folder in the hub's own cache. The cache serves where the hub cannot be reached."""
    # Said before gigabytes are fetched, not after.
    if may_fetch() and not (_installed("torch") and _installed("transformers")):
        raise MissingExtra(f"the hub model {options.model!r}", "neural")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra(f"the hub model {options.model!r}", "neural") from None
    fetched = [*_FETCHED, "*.py"] if options.trust_remote_code else _FETCHED
    try:
        with _no_bars():
            found = snapshot_download(
                options.model,
                revision=options.revision,
                allow_patterns=fetched,
                ignore_patterns=_NOT_FETCHED,
                local_files_only=not may_fetch(),
            )
    except (OSError, ValueError) as fault:
        raise ModelError(_why_not(options, fault)) from fault
    return Path(str(found))


def _installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ValueError:  # sys.modules holds None for it
        return False


def _why_not(options: Options, fault: Exception) -> str:
    """One line for a model that the hub does not give, with what to do."""
    from huggingface_hub import errors

    name, revision = options.model, options.revision
    here = "give a folder, or a name as on huggingface.co"
    if isinstance(fault, errors.GatedRepoError):
        return f"{name!r} wants its terms accepted on huggingface.co; then log in with `hf auth login`"
    if isinstance(fault, errors.RevisionNotFoundError):
        return f"{name!r} has no revision {revision!r}; give a branch, a tag or a commit of it"
    if isinstance(fault, errors.RepositoryNotFoundError):
        return f"no folder and no model on the hub is called {name!r}; {here}"
    if not may_fetch():
        return f"{name!r} is no folder and not in the hub's cache yet; scoring with it fetches it"
    if isinstance(fault, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled | ConnectionError):
        at = f" at revision {revision!r}" if revision else ""
        return (
            f"{name!r}{at} is no folder and not in the hub's cache, and the hub cannot be reached: go online once "
            f"(`hf download {name}`), or give the folder of a copy"
        )
    return f"{name!r} could not be had from the hub ({str(fault).splitlines()[0]}); {here}"


@contextmanager
def _no_bars() -> Iterator[None]:
    """No progress bars of the hub's client inside; what the user had set holds again after."""
    bars: Any = import_module("huggingface_hub.utils")
    drawn = not bars.are_progress_bars_disabled()
    if drawn:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        if drawn:
            bars.enable_progress_bars()


def _config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        _refuse_unfinished(name, folder)
        found = ", ".join(sorted(one.name for one in folder.iterdir())[:5]) or "nothing"
        raise ModelError(
            f"{name} has no config.json, so it is no model's folder (found: {found}); "
            f"give the folder that save_pretrained wrote"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise ModelError(f"{path} is not JSON: {fault}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config


def _refuse_unfinished(name: str, folder: Path) -> None:
    if (folder / _TRAINING).is_file():
        raise ModelError(
            f"{name} is a training that is not finished; give the same `metrist train` command as before to go on with "
            "it, and use the folder when it is done"
        )


def _refuse(name: str, folder: Path) -> None:
    """Say how safetensors come out of the pickles, which can run anything when they are read."""
    _refuse_unfinished(name, folder)
    pickles = sorted(one.name for one in folder.iterdir() if one.suffix in _PICKLES)
    if not pickles:
        raise ModelError(f"{name} has no *.safetensors weights; give a model that has them, or convert its weights")
    kind = (_config(name, folder).get("architectures") or ["AutoModelForSeq2SeqLM"])[0]
    state = pickles[0] if not pickles[0].startswith("pytorch_model") else None
    raise ModelError(
        f"{name} has pickled weights only ({', '.join(pickles[:3])}), which can run code when they are read; "
        f"convert them once, if you trust their source, and give the new folder:\n" + _conversion(folder, kind, state)
    )


def _conversion(folder: Path, kind: str, state: str | None) -> str:
    """The lines that write a folder with safetensors; `state`: a file of weights that from_pretrained does not find."""
    here, there = str(folder), str(folder.with_name(f"{folder.name}-safetensors"))
    lines = [
        f"from transformers import AutoConfig, AutoTokenizer, {kind}",
        f"model = {kind}.from_pretrained({here!r})",
        f"model.save_pretrained({there!r})",
        f"AutoTokenizer.from_pretrained({here!r}).save_pretrained({there!r})",
    ]
    if state is not None:
        weights = f"torch.load({str(folder / state)!r}, weights_only=True)"
        lines[1] = f"import torch\n    model = {kind}._from_config(AutoConfig.from_pretrained({here!r}))"
        lines[1] += f"\n    model.load_state_dict({weights})"
    return "\n".join(f"    {line}" for line in lines)


def _fingerprint(folder: Path, plain: bool, options: Options) -> str:
    """Twelve hex digits over all files that decide numbers, by name and content; code that is run is among them."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        counts = not _NO_NUMBERS.fullmatch(path.name) if plain else _decides(path.name)
        counts |= options.trust_remote_code and path.suffix == ".py"
        if counts and path.is_file():
            total.update(f"{path.name} {_known_digest(path) or digest_of(path)}\n".encode())
    return total.hexdigest()[:12]


def _decides(name: str) -> bool:
    return name in ("config.json", "reward.json") or name.endswith(_WEIGHTS) or bool(_TOKENIZER.fullmatch(name))


def _known_digest(path: Path) -> str | None:
    """The hub's cache names large files by their SHA-256, so that they need not be read once more."""
    blob = path.resolve()
    return blob.name if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name) else None


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, which is read again only after it has changed."""
    about = path.stat()
    return _digest(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
