"""Find the folder of a model or an adapter, check its files, and identify its content.

Files that hold code, block, never end, or lead elsewhere are refused before any reader opens them. Links are followed:
the hub's cache is made of them. What they lead to must be a file.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module, util
from pathlib import Path
from typing import Any

from metrist.documents import read_json, read_json_object
from metrist.errors import MissingExtra, ModelError, did_you_mean
from metrist.models.devices import Options, downloads_allowed
from metrist.models.numpy_inference import storage

#: Prefix of shipped models, which are in metrist-models and the distributions named after it.
SHIPPED = "metrist:"
#: What the metrics of shipped models may call these.
_SHORT_NAMES = ("small", "large")
#: The distribution of a shipped model, by its name or by the first word of it; that of all others is metrist-models.
_DISTRIBUTIONS = {
    "analyst": "metrist-models-analyst",
    "english": "metrist-models-english",
    "english-large": "metrist-models-english-large",
    "multilingual": "metrist-models-multilingual",
}
#: The extra that installs a distribution; that of all others is "standard".
_EXTRAS = {"metrist-models-english-large": "large", "metrist-models-analyst": "analyst"}
#: The key of config.json that marks a model for numpy inference.
_NUMPY_KEY = "metrist_format"

#: What the folder of an adapter has instead of config.json and the weights of a model.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: The card of a training of metrist, which names the base.
_CARD = "card.json"
#: A training writes it first into its folder, and the model last.
_TRAINING = "training.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SETTINGS = ("config.json", "reward.json")
_WEIGHTS = (".safetensors", ".npz", ".onnx")
_TOKENIZER = re.compile(
    r"(tokenizer|vocab|merges|special_tokens_map|added_tokens|chat_template).*|.*\.(model|spm|tiktoken)"
)
_VOCABULARY = re.compile(r"tokenizer\.json|dict\.txt|(vocab|merges).*|.*\.(model|spm|tiktoken|tokenizer|codes)")
# Tokenizers of bytes or characters have no vocabulary file.
_NO_VOCABULARY = ("ByT5", "Canine", "Perceiver")
_NO_NUMBERS = re.compile(
    r"(README|LICEN[CS]E|NOTICE|card|ATTRIBUTION|__).*|training\.(json|lock)|\..*|.*\.(md|py)", re.IGNORECASE
)
_FETCHED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.tiktoken"]
_NOT_FETCHED = ["*/*.safetensors", "onnx/*", "openvino/*", "original/*"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A folder with config, tokenizer and safetensors weights; `name` is the user's name for it."""

    name: str
    folder: Path
    fingerprint: str
    #: The content of config.json.
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: Whether the model runs on numpy, without torch.
    runs_on_numpy: bool = False

    @property
    def has_tokenizer(self) -> bool:
        if any(_VOCABULARY.fullmatch(path.name) for path in self.folder.iterdir()):
            return True
        settings = self.folder / "tokenizer_config.json"
        return settings.is_file() and any(
            name in settings.read_text(encoding="utf-8", errors="replace") for name in _NO_VOCABULARY
        )


def find_weights(options: Options) -> Weights:
    """Find a hub model (downloading it if need be), a local folder, or a shipped model ('metrist:NAME')."""
    folder = find_folder(options)
    _check_folder(options.model, folder)
    config = _read_config(options.model, folder)
    runs_on_numpy = _NUMPY_KEY in config
    if not runs_on_numpy and not any(folder.glob("*.safetensors")):
        _refuse_weights(options.model, folder, config)
    # All files that influence numbers, executed code included.
    files = []
    for path in sorted(folder.iterdir()):
        if runs_on_numpy:
            relevant = not _NO_NUMBERS.fullmatch(path.name)
        else:
            relevant = path.name in _SETTINGS or path.name.endswith(_WEIGHTS) or bool(_TOKENIZER.fullmatch(path.name))
        relevant |= options.trust_remote_code and path.suffix == ".py"
        if relevant and path.is_file():
            files.append(path)
    fingerprint = _fingerprint(files)
    return Weights(
        name=options.model, folder=folder, fingerprint=fingerprint, config=config, runs_on_numpy=runs_on_numpy
    )


def _fingerprint(files: Iterable[Path]) -> str:
    """Hash the names and contents of files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return digest.hexdigest()[:12]


def find_folder(options: Options) -> Path:
    """Return the folder of a model or adapter: a local one, a shipped one, or one of the hub's cache."""
    name = options.model
    if name.startswith(SHIPPED):
        return _find_shipped(name)
    local = Path(name).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.is_file():
        raise ModelError(
            f"{name} is a file; give the folder with config.json, the tokenizer and *.safetensors", code="unreadable"
        )
    if name in _SHORT_NAMES:
        raise ModelError(
            f"{name!r} is short for a shipped model only in metrics whose model ships; name one of the hub or a folder",
            code="unknown_name",
        )
    if not _HUB_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise ModelError(
            f"{name!r} is neither a folder nor a hub name such as 'facebook/bart-large-cnn'", code="missing_file"
        )
    return _hub(options)


def _find_shipped(name: str) -> Path:
    packages = storage.find_packages()
    folders = {
        SHIPPED + folder.name: folder
        for root in packages.values()
        for folder in root.iterdir()
        if (folder / storage.CONFIG).is_file() or (folder / ADAPTER_CONFIG).is_file()
    }
    if name in folders:
        return folders[name]
    home, extra = distribution_name(name), extra_name(name)
    if home not in packages:
        of = "" if home == "metrist-models" else f" of {home}"
        raise MissingExtra(f"the shipped model {name!r}{of}", extra)
    if home != "metrist-models":
        raise ModelError(
            f"the installed {home} has no {name!r}; a newer one may: pip install --upgrade 'metrist[{extra}]'",
            code="missing_dependency",
        )
    known = sorted(folders)
    listed = f"there are {', '.join(map(repr, known))}" if known else "there are none"
    raise ModelError(f"no shipped model {name!r}: {listed}{did_you_mean(name, known)}", code="unknown_name")


def distribution_name(name: str) -> str:
    """Return the distribution that has a shipped model, installed or not, by the model's name."""
    model = name.removeprefix(SHIPPED)
    return _DISTRIBUTIONS.get(model) or _DISTRIBUTIONS.get(model.partition("-")[0], "metrist-models")


def extra_name(name: str) -> str:
    """Return the extra that installs a shipped model, by the model's name."""
    return _EXTRAS.get(distribution_name(name), "standard")


def _hub(options: Options) -> Path:
    """Return a hub model's folder in the hub's cache, which also serves offline."""
    # Checked before gigabytes are downloaded.
    try:
        missing = [module for module in ("torch", "transformers") if util.find_spec(module) is None]
    except ValueError:  # sys.modules holds None for one of them
        missing = ["torch"]
    if downloads_allowed() and missing:
        raise MissingExtra(f"the hub model {options.model!r}", "neural")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra(f"the hub model {options.model!r}", "neural") from None
    fetched = [*_FETCHED, "*.py"] if options.trust_remote_code else _FETCHED
    bars: Any = import_module("huggingface_hub.utils")
    shows_bars = not bars.are_progress_bars_disabled()
    if shows_bars:
        bars.disable_progress_bars()
    try:
        folder = snapshot_download(
            options.model,
            revision=options.revision,
            allow_patterns=fetched,
            ignore_patterns=_NOT_FETCHED,
            local_files_only=not downloads_allowed(),
        )
    except (OSError, ValueError) as error:
        raise ModelError(_explain_hub_error(options, error)) from error
    finally:
        if shows_bars:
            bars.enable_progress_bars()
    return Path(str(folder))


def _explain_hub_error(options: Options, error: Exception) -> str:
    """Say in one line why the hub does not provide a model, and what to do."""
    from huggingface_hub import errors

    name, revision = options.model, options.revision
    remedy = "give a folder, or a name as on huggingface.co"
    if isinstance(error, errors.GatedRepoError):
        return f"{name!r} requires accepting its terms on huggingface.co; accept them, then log in with `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name!r} has no revision {revision!r}; give a branch, a tag or a commit of it"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no folder and no model on the hub is called {name!r}; {remedy}"
    if not downloads_allowed():
        return f"{name!r} is not a folder and not in the hub's cache yet; scoring with it downloads it"
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled | ConnectionError):
        at = f" at revision {revision!r}" if revision else ""
        return (
            f"{name!r}{at} is not a folder and not in the hub's cache, and the hub cannot be reached: go online once "
            f"(`hf download {name}`), or give the folder of a copy"
        )
    return f"{name!r} could not be downloaded from the hub ({str(error).splitlines()[0]}); {remedy}"


def _read_config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        _refuse_unfinished(name, folder)
        files = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise ModelError(
            f"{name} has no config.json (found: {files}); give a folder of save_pretrained", code="invalid_value"
        )
    config = read_json_object(path, ModelError)
    # Sizes that no model has would fill the memory before the weights are compared with them.
    for table in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key, value in table.items():
            most = _MOST_LAYERS if _LAYERS.fullmatch(key) else _LARGEST_SIZE if _SIZES.fullmatch(key) else None
            if most is not None and isinstance(value, int) and abs(value) > most:
                raise ModelError(f"{path}: {key} is {value:.4g}, and no model has more than {most:,}")
    return config


def _refuse_unfinished(name: str, folder: Path) -> None:
    if (folder / _TRAINING).is_file():
        raise ModelError(
            f"{name} is an unfinished training; run the same `metrist train` command again to resume it",
            code="unfinished",
        )


def _refuse_weights(name: str, folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse pickled weights, which can run any code when read, and show how to convert them."""
    _refuse_unfinished(name, folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if not pickles:
        raise ModelError(f"{name} has no *.safetensors weights; give a model that has them, or convert its weights")
    kind = (config.get("architectures") or ["AutoModelForSeq2SeqLM"])[0]
    here, there = str(folder), str(folder.with_name(f"{folder.name}-safetensors"))
    lines = [
        f"from transformers import AutoConfig, AutoTokenizer, {kind}",
        f"model = {kind}.from_pretrained({here!r})",
        f"model.save_pretrained({there!r})",
        f"AutoTokenizer.from_pretrained({here!r}).save_pretrained({there!r})",
    ]
    if not pickles[0].startswith("pytorch_model"):
        # from_pretrained does not find a weights file of another name.
        weights = f"torch.load({str(folder / pickles[0])!r}, weights_only=True)"
        lines[1] = f"import torch\n    model = {kind}._from_config(AutoConfig.from_pretrained({here!r}))"
        lines[1] += f"\n    model.load_state_dict({weights})"
    conversion = "\n".join(f"    {line}" for line in lines)
    raise ModelError(
        f"{name} has pickled weights only ({', '.join(pickles[:3])}), which can run code when they are read; "
        f"convert them once, if you trust their source, and give the new folder:\n{conversion}",
        code="untrusted",
    )


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, reading it again only after it changed."""
    blob = path.resolve()
    if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name):
        return blob.name  # The hub's cache names large files by their SHA-256.
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- Adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The folder of an adapter; `name` is the user's name for it, `base` the fingerprint of the base that it was
    trained on, where it is known."""

    name: str
    folder: Path
    fingerprint: str
    base: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)


def find_adapter(name: str) -> Adapter:
    """Find an adapter in a folder or on the hub, as peft or `metrist train error-analysis` wrote it."""
    folder = find_folder(Options(model=name))
    if not (folder / ADAPTER_CONFIG).is_file() or not (folder / ADAPTER_WEIGHTS).is_file():
        if not (folder / _CARD).is_file():
            _refuse_unfinished(name, folder)
        hint = "; it is a model of its own: give it as model=" if (folder / "config.json").is_file() else ""
        raise ModelError(
            f"{name} has no adapter: expected {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}{hint}", code="invalid_value"
        )
    _check_folder(name, folder)
    card = read_json_object(folder / _CARD, ModelError) if (folder / _CARD).is_file() else {}
    base = card.get("base")
    fingerprint = base.get("fingerprint") if isinstance(base, dict) else None
    return Adapter(
        name=name,
        folder=folder,
        fingerprint=_fingerprint([folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS]),
        base=fingerprint if isinstance(fingerprint, str) else None,
        config=read_json_object(folder / ADAPTER_CONFIG, ModelError),
    )


# ---- Checks of a folder's files

#: Bytes of a file that is not weights. The largest tokenizers have 35 MB.
_LARGEST_TEXT = 1 << 29
_INDEX = ".safetensors.index.json"
#: The beginning of other files that may be called .safetensors.
_BEGINNINGS = {
    b"PK\x03\x04": "a zip archive, as torch.save writes it, with a pickle in it, which can run code",
    b"\x80": "a pickle, which can run code when it is read",
    b"GGUF": "a GGUF file; serve it with llama.cpp, and give its address",
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself with `git lfs pull`",
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"<": "a web page or XML",
}
#: Settings that count layers, experts and the like: each one is an object in memory.
_LAYERS = re.compile(r"(n|num|encoder|decoder)_(\w+_)?(layers?|experts|blocks|groups)")
_MOST_LAYERS = 10_000
#: Settings that are sizes of vectors and vocabularies.
_SIZES = re.compile(r"\w*(_size|_dim|_positions|_heads|d_model|d_ff|n_embd)")
_LARGEST_SIZE = 1 << 28


def _check_folder(name: str, folder: Path) -> None:
    """Refuse a folder whose files are not what models have; `name` is the user's name for it."""
    for path in sorted(folder.iterdir()):
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(
                f"{name}: {path.name} cannot be read ({error.strerror}): is it a broken link?", code="unreadable"
            ) from None
        if stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{name}: {path.name} is a named pipe or a device, expected a file", code="unreadable")
        if path.name.endswith(".safetensors"):
            with path.open("rb") as stream:
                head = stream.read(64)
            for beginning, kind in _BEGINNINGS.items():
                # The first 8 bytes of safetensors are the length of its header, the next one opens that.
                if head.startswith(beginning) and head[8:9] != b"{":
                    raise ModelError(f"{path} is not safetensors: it is {kind}")
        elif path.name.endswith(_INDEX):
            content = read_json(path, ModelError)
            named = content.get("weight_map") if isinstance(content, dict) else None
            if not isinstance(named, dict):
                raise ModelError(f"{path} must hold an object with a 'weight_map'", code="invalid_value")
            for file in named.values():
                if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
                    raise ModelError(
                        f"{path}: weights must be safetensors files of the same folder, got {file!r:.100}",
                        code="invalid_value",
                    )
        elif path.suffix in (".json", ".txt", ".model", ".spm", ".tiktoken") and status.st_size > _LARGEST_TEXT:
            raise ModelError(
                f"{path} has {status.st_size:,} bytes, which is too large: at most {_LARGEST_TEXT:,}", code="too_large"
            )
