"""Find the folder of a model, identify its content, and read model and tokenizer through transformers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module, util
from pathlib import Path
from typing import Any

from metrist.documents import read_json
from metrist.errors import MissingExtra, ModelError, did_you_mean, install_command
from metrist.models.devices import MAP, Options, Placement, downloads_allowed, import_torch
from metrist.models.folder_check import (
    check_config,
    check_model_folder,
    check_state_dict_archive,
    check_tensor_sizes,
)
from metrist.models.numpy_inference import storage

#: Prefix of shipped models, which are in metrist-models and the distributions named after it.
SHIPPED = "metrist:"
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

#: What the folder of an adapter has instead of config.json.
_ADAPTER_CONFIG = "adapter_config.json"
#: A training writes it first into its folder, and the model last.
_TRAINING = "training.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
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
        """Whether the folder has a tokenizer."""
        if any(_VOCABULARY.fullmatch(path.name) for path in self.folder.iterdir()):
            return True
        settings = self.folder / "tokenizer_config.json"
        return settings.is_file() and any(
            name in settings.read_text(encoding="utf-8", errors="replace") for name in _NO_VOCABULARY
        )


def find_weights(options: Options) -> Weights:
    """Find a hub model (downloading it if need be), a local folder, or a shipped model ('metrist:NAME')."""
    folder = find_folder(options)
    check_model_folder(options.model, folder)
    config = _read_config(options.model, folder)
    runs_on_numpy = _NUMPY_KEY in config
    if not runs_on_numpy and not any(folder.glob("*.safetensors")):
        _refuse(options.model, folder)
    # The names and contents of all files that influence numbers, executed code included.
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        relevant = not _NO_NUMBERS.fullmatch(path.name) if runs_on_numpy else _is_relevant(path.name)
        relevant |= options.trust_remote_code and path.suffix == ".py"
        if relevant and path.is_file():
            digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return Weights(
        name=options.model,
        folder=folder,
        fingerprint=digest.hexdigest()[:12],
        config=config,
        runs_on_numpy=runs_on_numpy,
    )


def find_folder(options: Options) -> Path:
    """Return the folder of a model or adapter: a local one, a shipped one, or one of the hub's cache."""
    name = options.model
    if name.startswith(SHIPPED):
        return _find_shipped(name)
    local = Path(name).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.is_file():
        raise ModelError(f"{name} is a file; give the folder with config.json, the tokenizer and *.safetensors")
    if not _HUB_NAME.fullmatch(name) or "--" in name or ".." in name:
        raise ModelError(f"{name!r} is neither a folder nor a hub name such as 'facebook/bart-large-cnn'")
    return _hub(options)


def _find_shipped(name: str) -> Path:
    packages = storage.find_packages()
    folders = {
        SHIPPED + folder.name: folder
        for root in packages.values()
        for folder in root.iterdir()
        if (folder / storage.CONFIG).is_file() or (folder / _ADAPTER_CONFIG).is_file()
    }
    if name in folders:
        return folders[name]
    home, extra = distribution_name(name), extra_name(name)
    if home not in packages:
        of = "" if home == "metrist-models" else f" of {home}"
        raise MissingExtra(f"the shipped model {name!r}{of}", extra)
    if home != "metrist-models":
        raise ModelError(
            f"the installed {home} has no {name!r}; a newer one may: pip install --upgrade 'metrist[{extra}]'"
        )
    known = sorted(folders)
    listed = f"there are {', '.join(map(repr, known))}" if known else "there are none"
    raise ModelError(f"no shipped model {name!r}: {listed}{did_you_mean(name, known)}")


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
    if downloads_allowed() and not (_installed("torch") and _installed("transformers")):
        raise MissingExtra(f"the hub model {options.model!r}", "neural")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra(f"the hub model {options.model!r}", "neural") from None
    fetched = [*_FETCHED, "*.py"] if options.trust_remote_code else _FETCHED
    try:
        with _no_bars():
            folder = snapshot_download(
                options.model,
                revision=options.revision,
                allow_patterns=fetched,
                ignore_patterns=_NOT_FETCHED,
                local_files_only=not downloads_allowed(),
            )
    except (OSError, ValueError) as error:
        raise ModelError(_explain_hub_error(options, error)) from error
    return Path(str(folder))


def _installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ValueError:  # sys.modules holds None for it
        return False


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


@contextmanager
def _no_bars() -> Iterator[None]:
    """Turn off progress bars of the hub's client inside."""
    bars: Any = import_module("huggingface_hub.utils")
    enabled = not bars.are_progress_bars_disabled()
    if enabled:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        if enabled:
            bars.enable_progress_bars()


def _read_config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        _refuse_unfinished(name, folder)
        files = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise ModelError(
            f"{name} has no config.json, so it is not a model folder (found: {files}); "
            "give the folder that save_pretrained wrote"
        )
    config = read_json(path, ModelError)
    if not isinstance(config, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(config).__name__}")
    check_config(path, config)
    return config


def _refuse_unfinished(name: str, folder: Path) -> None:
    if (folder / _TRAINING).is_file():
        raise ModelError(
            f"{name} is an unfinished training; run the same `metrist train` command again to resume it, "
            "and use the folder when it is done"
        )


def _refuse(name: str, folder: Path) -> None:
    """Refuse pickled weights, which can run any code when read, and show how to convert them."""
    _refuse_unfinished(name, folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if not pickles:
        raise ModelError(f"{name} has no *.safetensors weights; give a model that has them, or convert its weights")
    kind = (_read_config(name, folder).get("architectures") or ["AutoModelForSeq2SeqLM"])[0]
    state = pickles[0] if not pickles[0].startswith("pytorch_model") else None
    raise ModelError(
        f"{name} has pickled weights only ({', '.join(pickles[:3])}), which can run code when they are read; "
        f"convert them once, if you trust their source, and give the new folder:\n" + _conversion(folder, kind, state)
    )


def _conversion(folder: Path, kind: str, state: str | None) -> str:
    """Return Python lines that write a folder with safetensors. `state` names a weights file that from_pretrained does
    not find."""
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


#: Older versions could be made to run code even with weights_only=True (CVE-2025-32434).
_SAFE_TORCH = (2, 6)


def convert_state_dict(path: Path, out: Path) -> None:
    """Write a pickled state dict (`torch.save(model.state_dict(), path)`) as a safetensors file.

    Nothing in the file runs: torch rebuilds tensors and plain containers, and refuses everything else.
    """
    torch = import_torch("a pickled state dict")
    version = str(torch.__version__)
    if tuple(int(number) for number in version.split(".")[:2]) < _SAFE_TORCH:
        raise ModelError(f"reading {path} safely needs torch 2.6 or newer, got {version}: pip install --upgrade torch")
    from safetensors.torch import save_file

    check_state_dict_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # A damaged file can make the reader fail in any way.
        first = str(error).strip().splitlines()[:1]
        raise ModelError(
            f"{path} is refused: it is not a state dict of tensors, or holds something that would run code when read "
            f"({type(error).__name__}{': ' if first else ''}{''.join(first)[:120]})"
        ) from None
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in content.items()
    ):
        raise ModelError(f"{path} is not a state dict: expected tensors by name, got {type(content).__name__}")
    check_tensor_sizes(path, dict(content))
    # Tied tensors share memory, which safetensors does not store.
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in content.items()}, out)


def _is_relevant(name: str) -> bool:
    return name in ("config.json", "reward.json") or name.endswith(_WEIGHTS) or bool(_TOKENIZER.fullmatch(name))


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


#: from_pretrained patches functions of transformers while it runs (no initialization, no tied weights). Two threads
#: that load at once would leave them patched, and later models would get random heads.
_loading = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)

#: What transformers' classes accept.
_KINDS = {
    "AutoModelForSeq2SeqLM": "a sequence-to-sequence model, such as BART or T5",
    "AutoModelForCausalLM": "a causal language model, such as GPT-2 or Llama",
}


def read_model(kind: str, weights: Weights, options: Options, place: Placement, **settings: Any) -> Any:
    """Read a model as the transformers class `kind` (such as 'AutoModelForSeq2SeqLM'), ready to score."""
    import_torch(f"the model {options.model!r}")
    with _loading, quiet_transformers(), _translate_errors(kind, weights):
        model, info = _class(kind).from_pretrained(
            weights.folder,
            output_loading_info=True,
            dtype=place.dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=options.trust_remote_code,
            **({"device_map": "auto"} if _spread(place) else {}),
            **settings,
        )
        _check_complete(kind, weights, model, info["missing_keys"])
        return (model if place.spread else model.to(place.device)).eval().requires_grad_(False)


def read_shape(weights: Weights, options: Options) -> Any:
    """Read a model's architecture as an AutoModel without weights."""
    torch = import_torch(f"the model {options.model!r}")
    trusted = {"trust_remote_code": options.trust_remote_code}
    with _loading, quiet_transformers(), _translate_errors("AutoModel", weights):
        config = _class("AutoConfig").from_pretrained(weights.folder, local_files_only=True, **trusted)
        with torch.device("meta"):
            return _class("AutoModel").from_config(config, **trusted)


def _check_complete(kind: str, weights: Weights, model: Any, missing: Iterable[str]) -> None:
    """Refuse a model that lacks weights: transformers would initialize them at random."""
    lacking = sorted(name for name in missing if not _is_optional(model, name))
    if lacking:
        raise ModelError(
            f"{weights.name} lacks {len(lacking)} of the weights that {kind} needs ({', '.join(lacking[:3])}), so its "
            "numbers would be random; give a model that was trained for it"
        )


def _is_optional(model: Any, name: str) -> bool:
    """Whether a folder may lack this weight: the pooler, which no score uses, or computed position embeddings."""
    owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
    return "pooler" in name or "Sinusoidal" in owner


def read_tokenizer(weights: Weights, options: Options, **settings: Any) -> Any:
    """Read a model's tokenizer."""
    if not weights.has_tokenizer and not options.trust_remote_code:
        # transformers would create one with an empty vocabulary.
        raise ModelError(
            f"{weights.name} has no tokenizer (such as tokenizer.json); save it into the same folder: "
            f"AutoTokenizer.from_pretrained(BASE).save_pretrained({str(weights.folder)!r})"
        )
    with _loading, quiet_transformers(), _translate_errors("AutoTokenizer", weights):
        return _class("AutoTokenizer").from_pretrained(
            weights.folder, local_files_only=True, trust_remote_code=options.trust_remote_code, **settings
        )


class _Quiet:
    """What transformers and `warnings` were set to before the first of several threads silenced them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.restore = contextlib.ExitStack()


_quiet = _Quiet()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence warnings and progress bars of transformers inside; the last thread to leave restores the settings."""
    with _quiet.lock:
        if not _quiet.count:
            _quiet.restore.enter_context(_silence())
        _quiet.count += 1
    try:
        yield
    finally:
        with _quiet.lock:
            _quiet.count -= 1
            if not _quiet.count:
                _quiet.restore.close()


@contextmanager
def _silence() -> Iterator[None]:
    logging: Any = import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _class(kind: str) -> Any:
    import transformers

    return getattr(transformers, kind)


def _spread(place: Placement) -> bool:
    if not place.spread:
        return False
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise MissingExtra(f"device={MAP!r}", "train") from None
    return True


@contextmanager
def _translate_errors(kind: str, weights: Weights) -> Iterator[None]:
    """Turn what transformers raises into a one-line ModelError."""
    from metrist.models.batching import is_out_of_memory

    try:
        yield
    except (MissingExtra, ModelError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(
                f"{weights.name} does not fit into the device's memory; `device='{MAP}'` spreads it over all GPUs"
            ) from error
        raise ModelError(_explain_read_error(kind, weights, error)) from error


def _explain_read_error(kind: str, weights: Weights, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return f"{weights.name} contains Python code that must run; if you trust it, set trust_remote_code=True"
    if isinstance(error, ImportError) and "sentencepiece" in str(error).lower():
        return f"{weights.name}'s tokenizer needs sentencepiece: {install_command('neural')}"
    if kind in _KINDS and "Unrecognized configuration class" in str(error):
        return f"{weights.name} is a {weights.config.get('model_type')} model; expected {_KINDS[kind]}"
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{weights.name} cannot be read as {kind} ({weights.config.get('model_type', 'no model_type')}): {first}"
