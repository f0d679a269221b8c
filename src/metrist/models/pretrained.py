"""Models and tokenizers read from a folder through transformers, without a word printed."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from metrist.errors import MissingExtra, ModelError
from metrist.models.devices import MAP, Place, torch_for
from metrist.models.options import DEVICE, Options
from metrist.models.weights import Weights

#: What transformers' classes take, in words.
_KINDS = {
    "AutoModelForSeq2SeqLM": "a sequence-to-sequence model, such as BART or T5",
    "AutoModelForCausalLM": "a causal language model, such as GPT-2 or Llama",
}


def read_model(kind: str, weights: Weights, options: Options, place: Place, **settings: Any) -> Any:
    """The model in that folder as transformers' class `kind` (such as 'AutoModelForSeq2SeqLM'), ready to score."""
    torch_for(f"the model {options.model!r}")
    with silent(), _faults(kind, weights):
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
    torch = torch_for(f"the model {options.model!r}")
    trusted = {"trust_remote_code": options.trust_remote_code}
    with silent(), _faults("AutoModel", weights):
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
    with silent(), _faults("AutoTokenizer", weights):
        return _class("AutoTokenizer").from_pretrained(
            weights.folder, local_files_only=True, trust_remote_code=options.trust_remote_code, **settings
        )


@contextlib.contextmanager
def silent() -> Iterator[None]:
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


def _spread(place: Place) -> bool:
    if not place.spread:
        return False
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise MissingExtra(f"{DEVICE}={MAP}", "train") from None
    return True


@contextlib.contextmanager
def _faults(kind: str, weights: Weights) -> Iterator[None]:
    """What transformers raises, as one line of ours. Memory that runs out stays what it is."""
    from metrist.models.batching import out_of_memory

    try:
        yield
    except (MissingExtra, ModelError):
        raise
    except Exception as fault:
        if out_of_memory(fault):
            raise ModelError(
                f"{weights.name} does not fit into the device's memory; set {DEVICE}={MAP} to spread it over all cards"
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
