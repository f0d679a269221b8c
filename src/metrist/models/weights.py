"""Where a model's weights lie, and what identifies them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, resources, util
from pathlib import Path
from typing import Any

from metrist.errors import MissingExtra, ModelError, did_you_mean
from metrist.models.devices import MAP, Options, Placement, downloads_allowed, import_torch

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


def find_weights(options: Options) -> Weights:
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
    if downloads_allowed() and not (_installed("torch") and _installed("transformers")):
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
                local_files_only=not downloads_allowed(),
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
    if not downloads_allowed():
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
            total.update(f"{path.name} {_known_digest(path) or file_digest(path)}\n".encode())
    return total.hexdigest()[:12]


def _decides(name: str) -> bool:
    return name in ("config.json", "reward.json") or name.endswith(_WEIGHTS) or bool(_TOKENIZER.fullmatch(name))


def _known_digest(path: Path) -> str | None:
    """The hub's cache names large files by their SHA-256, so that they need not be read once more."""
    blob = path.resolve()
    return blob.name if blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name) else None


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, which is read again only after it has changed."""
    about = path.stat()
    return _digest(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Models and tokenizers read from a folder through transformers, without a word printed.


#: What transformers' classes take, in words.
_KINDS = {
    "AutoModelForSeq2SeqLM": "a sequence-to-sequence model, such as BART or T5",
    "AutoModelForCausalLM": "a causal language model, such as GPT-2 or Llama",
}


def read_model(kind: str, weights: Weights, options: Options, place: Placement, **settings: Any) -> Any:
    """The model in that folder as transformers' class `kind` (such as 'AutoModelForSeq2SeqLM'), ready to score."""
    import_torch(f"the model {options.model!r}")
    with quiet_transformers(), _faults(kind, weights):
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
        _check_whole(kind, weights, model, info["missing_keys"])
        return (model if place.spread else model.to(place.device)).eval().requires_grad_(False)


def read_shape(weights: Weights, options: Options) -> Any:
    """The model in that folder as an AutoModel that has no numbers yet: enough to ask what it takes."""
    torch = import_torch(f"the model {options.model!r}")
    trusted = {"trust_remote_code": options.trust_remote_code}
    with quiet_transformers(), _faults("AutoModel", weights):
        config = _class("AutoConfig").from_pretrained(weights.folder, local_files_only=True, **trusted)
        with torch.device("meta"):
            return _class("AutoModel").from_config(config, **trusted)


def _check_whole(kind: str, weights: Weights, model: Any, missing: Iterable[str]) -> None:
    """Refuse a model that lacks weights: transformers would draw them at random, and numbers would mean nothing."""
    lacking = sorted(name for name in missing if not _dispensable(model, name))
    if lacking:
        raise ModelError(
            f"{weights.name} lacks {len(lacking)} of the weights that {kind} needs ({', '.join(lacking[:3])}), so its "
            "numbers would be random; give a model that was trained for it"
        )


def _dispensable(model: Any, name: str) -> bool:
    """Whether a folder may lack that weight: the layer that classifiers put on an encoder, which is above the states
    that scores come from, or positions that are not learned but computed."""
    owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
    return "pooler" in name or "Sinusoidal" in owner


def read_tokenizer(weights: Weights, options: Options, **settings: Any) -> Any:
    """The tokenizer in that folder."""
    if not weights.has_tokenizer and not options.trust_remote_code:
        # transformers would make one that knows no words, and numbers would mean nothing.
        raise ModelError(
            f"{weights.name} has no tokenizer (such as tokenizer.json); save it into the same folder: "
            f"AutoTokenizer.from_pretrained(BASE).save_pretrained({str(weights.folder)!r})"
        )
    with quiet_transformers(), _faults("AutoTokenizer", weights):
        return _class("AutoTokenizer").from_pretrained(
            weights.folder, local_files_only=True, trust_remote_code=options.trust_remote_code, **settings
        )


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Neither warnings nor progress bars of transformers inside; what the user had set holds again after."""
    logging: Any = importlib.import_module("transformers.utils.logging")
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


@contextlib.contextmanager
def _faults(kind: str, weights: Weights) -> Iterator[None]:
    """What transformers raises, as one line of ours. Memory that runs out stays what it is."""
    from metrist.models.batching import is_out_of_memory

    try:
        yield
    except (MissingExtra, ModelError):
        raise
    except Exception as fault:
        if is_out_of_memory(fault):
            raise ModelError(
                f"{weights.name} does not fit into the device's memory; --device {MAP} spreads it over all GPUs"
            ) from fault
        raise ModelError(_said(kind, weights, fault)) from fault


def _said(kind: str, weights: Weights, fault: Exception) -> str:
    if "trust_remote_code" in str(fault):
        return (
            f"{weights.name} brings Python code of its own and wants to run it; if you trust it, "
            f"set trust_remote_code=True"
        )
    if isinstance(fault, ImportError) and "sentencepiece" in str(fault).lower():
        return f"{weights.name}'s tokenizer needs sentencepiece: pip install 'metrist[neural]'"
    if kind in _KINDS and "Unrecognized configuration class" in str(fault):
        return f"{weights.name} is a {weights.config.get('model_type')} model; wanted {_KINDS[kind]}"
    first = next((line for line in str(fault).splitlines() if line.strip()), type(fault).__name__)
    return f"{weights.name} cannot be read as {kind} ({weights.config.get('model_type', 'no model_type')}): {first}"
