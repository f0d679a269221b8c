"""Read models and tokenizers through transformers, and convert pickled weights."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from metrist.errors import MissingExtra, ModelError, install_command
from metrist.models.batching import is_out_of_memory
from metrist.models.devices import MAP, Options, Placement, import_torch
from metrist.models.weights import Weights

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
    if place.spread:
        try:
            import accelerate  # noqa: F401
        except ImportError:
            raise MissingExtra(f"device={MAP!r}", "train") from None
        settings["device_map"] = "auto"
    if options.bits is not None:
        # As `load_in_4bit=True` of the authors of TIGERScore.
        for package in ("accelerate", "bitsandbytes"):
            if importlib.util.find_spec(package) is None:
                raise ModelError(
                    f"{options.model}: bits={options.bits} needs accelerate and bitsandbytes: pip install accelerate "
                    "bitsandbytes",
                    code="missing_dependency",
                )
        quantization = _class("BitsAndBytesConfig")(**{f"load_in_{options.bits}bit": True})
        settings = {"device_map": {"": place.device}, **settings, "quantization_config": quantization}
    with _loading, quiet_transformers(), _translate_errors(kind, weights):
        model, info = _class(kind).from_pretrained(
            weights.folder,
            output_loading_info=True,
            dtype=place.dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=options.trust_remote_code,
            **settings,
        )
        # transformers initializes missing weights at random. No score uses a pooler, and some position embeddings are
        # computed.
        missing = info["missing_keys"]
        owners = {name: type(model.get_submodule(name.rpartition(".")[0])).__name__ for name in missing}
        lacking = sorted(name for name, owner in owners.items() if "pooler" not in name and "Sinusoidal" not in owner)
        if lacking:
            raise ModelError(
                f"{weights.name} lacks {len(lacking)} of the weights that {kind} needs ({', '.join(lacking[:3])}), so "
                "its numbers would be random; give a model that was trained for it"
            )
        placed = model if place.spread or options.bits is not None else model.to(place.device)
        return placed.eval().requires_grad_(False)


def read_shape(weights: Weights, options: Options) -> Any:
    """Read a model's architecture as an AutoModel without weights."""
    torch = import_torch(f"the model {options.model!r}")
    trusted = {"trust_remote_code": options.trust_remote_code}
    with _loading, quiet_transformers(), _translate_errors("AutoModel", weights):
        config = _class("AutoConfig").from_pretrained(weights.folder, local_files_only=True, **trusted)
        with torch.device("meta"):
            return _class("AutoModel").from_config(config, **trusted)


def read_tokenizer(weights: Weights, options: Options, **settings: Any) -> Any:
    if not weights.has_tokenizer and not options.trust_remote_code:
        # transformers would create one with an empty vocabulary.
        raise ModelError(
            f"{weights.name} has no tokenizer (tokenizer.json); save that of its base into {weights.folder}",
            code="no_data",
        )
    with _loading, quiet_transformers(), _translate_errors("AutoTokenizer", weights):
        return _class("AutoTokenizer").from_pretrained(
            weights.folder, local_files_only=True, trust_remote_code=options.trust_remote_code, **settings
        )


class _Quiet:
    """The number of threads that silence transformers and `warnings`, and what restores the settings after them."""

    lock = threading.Lock()
    count = 0
    restore = contextlib.ExitStack()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence warnings and progress bars of transformers inside; the last thread to leave restores the settings."""
    with _Quiet.lock:
        if not _Quiet.count:
            logging: Any = import_module("transformers.utils.logging")
            _Quiet.restore.callback(logging.set_verbosity, logging.get_verbosity())
            if logging.is_progress_bar_enabled():
                _Quiet.restore.callback(logging.enable_progress_bar)
            _Quiet.restore.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            logging.set_verbosity(logging.CRITICAL)
            logging.disable_progress_bar()
        _Quiet.count += 1
    try:
        yield
    finally:
        with _Quiet.lock:
            _Quiet.count -= 1
            if not _Quiet.count:
                _Quiet.restore.close()


def _class(kind: str) -> Any:
    import transformers

    return getattr(transformers, kind)


@contextmanager
def _translate_errors(kind: str, weights: Weights) -> Iterator[None]:
    try:
        yield
    except (MissingExtra, ModelError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(
                f"{weights.name} does not fit into the device's memory; `device='{MAP}'` spreads it over all GPUs",
                code="out_of_memory",
            ) from error
        name = weights.name
        model_type = weights.config.get("model_type")
        if weights.runs_on_numpy:
            message = f"{name} is in metrist's own format, which {kind} does not read: name one of the hub or a folder"
        elif "trust_remote_code" in str(error):
            message = f"{name} contains Python code that must run; if you trust it, set trust_remote_code=True"
        elif isinstance(error, ImportError) and "sentencepiece" in str(error).lower():
            message = f"{name}'s tokenizer needs sentencepiece: {install_command('neural')}"
        elif kind in _KINDS and "Unrecognized configuration class" in str(error):
            message = f"{name} is a {model_type} model; expected {_KINDS[kind]}"
        else:
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            message = f"{name} cannot be read as {kind} ({model_type or 'no model_type'}): {first}"
        raise ModelError(message) from error


# ---- Pickled weights

#: Older versions could be made to run code even with weights_only=True (CVE-2025-32434).
_SAFE_TORCH = (2, 6)


def convert_state_dict(path: Path, out: Path) -> None:
    """Write a pickled state dict (`torch.save(model.state_dict(), path)`) as a safetensors file.

    Nothing in the file runs: torch rebuilds tensors and plain containers, and refuses everything else.
    """
    torch = import_torch("a pickled state dict")
    version = str(torch.__version__)
    if tuple(int(number) for number in version.split(".")[:2]) < _SAFE_TORCH:
        raise ModelError(
            f"reading {path} safely needs torch 2.6 or newer, got {version}: pip install --upgrade torch",
            code="missing_dependency",
        )
    from safetensors.torch import save_file

    _check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}", code="unreadable") from None
    except Exception as error:  # A damaged file can make the reader fail in any way.
        raise ModelError(
            f"{path} is refused: it is not a state dict of tensors, or would run code ({type(error).__name__})",
            code="untrusted",
        ) from None
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in content.items()
    ):
        raise ModelError(
            f"{path} is not a state dict: expected tensors by name, got {type(content).__name__}", code="invalid_value"
        )
    # A small file may claim tensors of any shape by repeating a value.
    size, total = path.stat().st_size, 0
    for name, tensor in content.items():
        needed = tensor.numel() * tensor.element_size()
        total += needed
        if needed > tensor.untyped_storage().nbytes() or total > 8 * size:
            raise ModelError(
                f"{path} is refused: {name!r:.100} claims {needed:,} bytes, the file has {size:,}", code="damaged"
            )
    # Tied tensors share memory, which safetensors does not store.
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in content.items()}, out)


def _check_archive(path: Path) -> None:
    """Refuse a compressed archive, which may unpack to any size: torch.save stores tensors as they are."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ModelError(f"{path} is refused: its archive is damaged ({error})", code="damaged") from None
    if sum(entry.file_size for entry in entries) > path.stat().st_size or any(entry.compress_type for entry in entries):
        raise ModelError(
            f"{path} is refused: it is compressed, and would unpack to more than its own size", code="untrusted"
        )
