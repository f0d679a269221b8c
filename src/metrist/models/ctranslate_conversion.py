"""A transformers model in ctranslate2's own form: written once into the user's cache, found there ever after.

The vocabulary of the converted model is the token ids as text, so that no two tokens can look alike and none is
unknown. Where ctranslate2's reader and the present transformers disagree about a configuration, it is put right here:
the numbers must be those of the model's own forward pass.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from metrist.errors import MissingExtra, ModelError
from metrist.models.options import Options
from metrist.models.weights import Weights

Compute = Literal["int8", "float32"]

#: Changes when this module writes something else for the same weights.
FORMAT = 1
#: What the engine must know of the model and ctranslate2's files do not say.
ABOUT = "metrist.json"
#: Rounding to 8 bits moves a token's log-probability by hundredths; a layer that was read wrongly, by whole numbers.
_MOST_APART = 0.5
#: Decoders of the other architectures that ctranslate2 reads begin with something else than their start token.
SUPPORTED = ("bart", "marian", "mt5", "pegasus", "t5")


def converted(weights: Weights, options: Options, compute: Compute) -> Path:
    """The folder with the converted model, made now where it is not there yet."""
    kind = str(weights.config.get("model_type"))
    if kind not in SUPPORTED:
        raise ModelError(
            f"{weights.name} is a {kind} model, and int8 is for {', '.join(SUPPORTED)} models; set dtype='float32'"
        )
    place = cache_folder() / f"{weights.fingerprint}-{compute}-{version('ctranslate2')}-{FORMAT}"
    if not (place / ABOUT).is_file():
        _make(place, kind, weights, options, compute)
    return place


def library() -> str:
    """What computes in int8, with its version: another one may round otherwise."""
    try:
        return f"ctranslate2 {version('ctranslate2')}"
    except PackageNotFoundError:
        raise MissingExtra("dtype='int8'", "fast") from None


def about(folder: Path) -> Mapping[str, Any]:
    """What the conversion noted of the model."""
    found: Mapping[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    return found


def cache_folder() -> Path:
    """Where converted models are kept: `metrist/ctranslate2` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "metrist" / "ctranslate2"


def _make(place: Path, kind: str, weights: Weights, options: Options, compute: Compute) -> None:
    """Convert into a folder beside the place and rename it, so that the place is whole or not there."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as fault:
        raise ModelError(
            f"the int8 form of {weights.name} cannot be kept in {place.parent} ({fault.strerror}): "
            "let XDG_CACHE_HOME name a folder that can be written to"
        ) from None
    try:
        _convert(unfinished, kind, weights, options, compute)
        try:
            unfinished.rename(place)
        except OSError:
            if not (place / ABOUT).is_file():  # Else another process was first, with the same content.
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _convert(folder: Path, kind: str, weights: Weights, options: Options, compute: Compute) -> None:
    from metrist.models.devices import Place, torch_for
    from metrist.models.pretrained import read_model, read_tokenizer, silent

    torch = torch_for(f"the model {weights.name!r}")
    place = Place(device=torch.device("cpu"), dtype=torch.float32, tokens=0)
    model = read_model("AutoModelForSeq2SeqLM", weights, options, place)
    tokenizer = read_tokenizer(weights, options)
    with silent(), torch.no_grad():
        try:
            probe = _probe(model)  # Before the conversion, which rounds the model's weights in place.
            spec = _spec(model, tokenizer, kind)
            noted = _noted(model.config, spec)
            _write(folder, spec, compute)
            apart = _apart(folder, probe, compute)
        except (ValueError, KeyError, AttributeError, NotImplementedError) as fault:
            raise ModelError(f"ctranslate2 cannot convert {weights.name} ({fault}); set dtype='float32'") from fault
    if not apart <= _MOST_APART:
        raise ModelError(
            f"{weights.name} does not say the same after its conversion by ctranslate2 (a token's log-probability is "
            f"{apart:.2f} off on average); set dtype='float32'"
        )
    (folder / ABOUT).write_text(json.dumps(noted), encoding="utf-8")


class _Probe(NamedTuple):
    """Tokens of a condition and a target, and the target's log-probabilities by the model itself."""

    source: list[str]
    target: list[str]
    expected: list[float]


def _probe(model: Any) -> _Probe:
    """Tokens taken from all over the vocabulary."""
    import torch

    ids = torch.linspace(3, len(model.get_output_embeddings().weight) - 1, 24).long()
    source, target = ids[::2], torch.cat([ids[1::2], torch.tensor([model.config.eos_token_id])])
    logits = model(input_ids=source[None], labels=target[None]).logits[0]
    expected = torch.log_softmax(logits, dim=-1).gather(1, target[:, None])[:, 0]
    return _Probe(list(map(str, source.tolist())), list(map(str, target.tolist())), expected.tolist())


def _apart(folder: Path, probe: _Probe, compute: Compute) -> float:
    """How far the converted model is from the one that it was made of, in the mean over tokens."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=compute)
    found = translator.score_batch([probe.source], [probe.target[:-1]])[0].log_probs
    return float(sum(abs(a - b) for a, b in zip(found, probe.expected, strict=True)) / len(probe.expected))


def _noted(config: Any, spec: Any) -> dict[str, Any]:
    return {
        "model_type": config.model_type,
        "eos": config.eos_token_id,
        "condition_positions": _positions(spec.encoder),
        "target_positions": _positions(spec.decoder),
        "n_positions": getattr(config, "n_positions", None),
    }


def _positions(stack: Any) -> int | None:
    """How many positions a half of the model has vectors for; None where positions are relative."""
    table = getattr(getattr(stack, "position_encodings", None), "encodings", None)
    return None if table is None else len(table)


def _write(folder: Path, spec: Any, compute: Compute) -> None:
    from ctranslate2.converters.converter import Converter

    class Ready(Converter):  # type: ignore[misc, unused-ignore]
        """Writes a model that is read already."""

        def _load(self) -> Any:
            return spec

    Ready().convert(str(folder), quantization=None if compute == "float32" else compute, force=True)


def _spec(model: Any, tokenizer: Any, kind: str) -> Any:
    """The model as ctranslate2 describes one."""
    config = model.config
    # Left out of configurations that hold the usual value.
    config.normalize_before = getattr(config, "normalize_before", kind == "pegasus")
    config.normalize_embedding = getattr(config, "normalize_embedding", kind != "pegasus")
    if kind in ("t5", "mt5"):
        # ctranslate2 scales outputs where embeddings are tied. In transformers 5 they always count as tied; T5 says
        # elsewhere whether it scales, and mT5 never does.
        config.tie_word_embeddings = getattr(config, "scale_decoder_outputs", False)
    spec = _loader(kind).get_model_spec(model)
    names = {
        "bos_token": config.decoder_start_token_id,
        "decoder_start_token": config.decoder_start_token_id,
        "eos_token": config.eos_token_id,
        "unk_token": tokenizer.unk_token_id or 0,
    }
    for name, token in names.items():
        setattr(spec.config, name, str(token))
    spec.config.layer_norm_epsilon = getattr(config, "layer_norm_epsilon", None)
    numbers = [str(token) for token in range(len(model.get_output_embeddings().weight))]
    spec.register_source_vocabulary(numbers)
    spec.register_target_vocabulary(numbers)
    return spec


def _loader(kind: str) -> Any:
    from ctranslate2.converters import transformers as readers

    class Marian(readers.MarianMTLoader):  # type: ignore[misc, unused-ignore]
        """Keeps the pad token, which takes part in the model's own probabilities, and begins with it."""

        def _remove_pad_weights(self, _spec: Any) -> None:
            pass

        def set_decoder(self, spec: Any, decoder: Any) -> None:
            readers.BartLoader.set_decoder(self, spec, decoder)

    known = {
        "bart": readers.BartLoader,
        "marian": Marian,
        "mt5": readers.MT5Loader,
        "pegasus": readers.PegasusLoader,
        "t5": readers.T5Loader,
    }
    return known[kind]()
