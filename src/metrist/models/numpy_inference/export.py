"""Export transformers models to metrist's own format, quantized weights that run without torch, and restore them.

Every recipe of a shipped model ends here, and its tuning begins with `restore_transformers`. Needs only safetensors,
not torch. An exported folder appears complete or not at all: it is written under a temporary name and then moved.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from metrist.documents import read_json_object
from metrist.errors import ModelError, RunError, SpecError
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.encoder_network import REWARD_HEAD, BertSizes
from metrist.models.numpy_inference.storage import BERT_REWARD, Floats, write_arrays
from metrist.models.numpy_inference.t5 import T5Sizes
from metrist.models.reward_layout import HEAD, RewardSettings
from metrist.models.reward_layout import NAME as REWARD

#: Maps a matrix's name to (bits, columns that share a scale; None: a row); None means float32.
Depths = Callable[[str], tuple[int, int | None] | None]
#: The cards of a training; their figures are those of the model before quantization.
_CARDS = ("card.md", "card.json")
#: In the folder of every training, finished or not.
TRAINING = "training.json"


def default_group(config: Mapping[str, Any]) -> int | None:
    """Return how many columns share a scale in a model of this transformers configuration: 64, as in the shipped
    models, or a whole row if that does not divide its matrices."""
    widths = [config[name] for name in ("hidden_size", "intermediate_size", "d_model", "d_ff") if name in config]
    widths += [config["num_heads"] * config["d_kv"]] if "d_kv" in config else []
    return None if any(width % 64 for width in widths) else 64


def export_t5(source: Path, out: Path, depths: Depths, **facts: Any) -> Path:
    """Export a T5 with gated GELU. `facts` are further keys of its configuration, such as `max_tokens` and
    `condition_template`."""
    _check_destination(source, out)
    source_config = _read_config(source)
    projection = source_config.get("feed_forward_proj")
    if source_config.get("model_type") != "t5" or projection != "gated-gelu":
        raise ModelError(
            f"{source / storage.CONFIG}: expected a 't5' with 'gated-gelu' layers, got a "
            f"{source_config.get('model_type')!r} with {projection!r}",
            code="unsupported",
        )
    sizes = {name: source_config[name] for name in T5Sizes.__dataclass_fields__}
    config = {
        "architecture": "t5",
        **sizes,
        "eos_token_id": source_config["eos_token_id"],
        "max_tokens": 1024,
        **facts,
    }
    arrays = _read_all_arrays(source)
    head = arrays.get("lm_head.weight", arrays["shared.weight"])
    if source_config.get("scale_decoder_outputs", source_config.get("tie_word_embeddings", True)):
        # The original T5, whose head is its embeddings, scales the head's input; here the scale goes into the head.
        head = head * np.float32(source_config["d_model"] ** -0.5)
    arrays["lm_head.weight"] = head
    arrays = {name: array for name, array in arrays.items() if not name.endswith("embed_tokens.weight")}
    with atomic_folder(out) as part:
        _write(source, part, config, arrays, depths)
    return out


def export_reward(source: Path, out: Path, bits: int | None = 8, group: int | None = None, **facts: Any) -> Path:
    """Export a BERT trained on preferences (written by `RewardModel.save`) with its cards. `bits=None` keeps float32;
    `group` is the number of columns that share a scale (None: all columns of a row)."""
    _check_destination(source, out)
    source_config = _read_config(source)
    positions = source_config.get("position_embedding_type") or "absolute"
    if source_config.get("model_type") != "bert" or source_config.get("is_decoder") or positions != "absolute":
        kind = "decoder" if source_config.get("is_decoder") else "encoder"
        raise ModelError(
            f"{source / storage.CONFIG}: is a {source_config.get('model_type')!r} {kind} with {positions!r} positions; "
            "only a 'bert' encoder with 'absolute' positions runs without torch",
            code="unsupported",
        )
    settings = RewardSettings.read(source, str(source))
    sizes = {name: source_config[name] for name in BertSizes.__dataclass_fields__}
    config = {"architecture": BERT_REWARD, **sizes, **facts}
    head = {REWARD_HEAD + name: array for name, array in _read_arrays(source / HEAD).items()}
    body = _read_all_arrays(source, exclude=HEAD)
    arrays = {name: array for name, array in body.items() if not name.startswith("pooler.")} | head
    widths = sorted({array.shape[1] for array in arrays.values() if array.ndim == 2})
    if group and (uneven := [width for width in widths if width % group]):
        raise SpecError(f"a group of {group} columns does not divide this model's {uneven[0]}; give a group that does")
    # The position tables and the head are a hundredth of the file, and every token passes through them.
    exact = ("head.weight", "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight")
    with atomic_folder(out) as part:
        _write(source, part, config, arrays, lambda name: None if bits is None or name in exact else (bits, group))
        settings.write(part)
        for card in (source / name for name in _CARDS):
            if card.is_file():
                shutil.copyfile(card, part / card.name)
    return out


def export_text_encoder(
    arrays: Mapping[str, Floats | storage.Quantized],
    config: Mapping[str, Any],
    tokenizer: Path,
    out: Path,
    *,
    bits: int = 7,
    group: int = 64,
    word_bits: int = 6,
    word_group: int = 64,
) -> Path:
    """Export a text encoder. `arrays` are its weights under the names of `encoder_network`, `config` has
    the fields of its `EncoderSizes`. Products are computed with the stored integers, which have at most 7 bits; the
    table of words may have 8. Arrays that are quantized already stay as they are."""
    if not 2 <= bits <= 7:
        raise SpecError(f"bits must be from 2 to 7, got {bits}")
    for name, array in arrays.items():
        if len(array.shape) == 2 and array.shape[1] % (word_group if name == "words.weight" else group):
            raise SpecError(f"a group of {group} columns does not divide the {array.shape[1]} of {name!r}")
    # Every token passes through these, and they are a hundredth of the file.
    exact = ("types.weight", "places.weight", "heads.")

    def depths(name: str) -> tuple[int, int | None] | None:
        if name == "words.weight":
            return word_bits, word_group
        return None if name.startswith(exact) else (bits, group)

    with atomic_folder(out) as part:
        _write(tokenizer.parent, part, {"architecture": storage.TEXT_ENCODER, **config}, arrays, depths)
    return out


def _write(
    source: Path,
    out: Path,
    config: Mapping[str, Any],
    arrays: Mapping[str, Floats | storage.Quantized],
    depths: Depths,
) -> None:
    chosen = {name: depths(name) for name, array in arrays.items() if len(array.shape) == 2}
    write_arrays(out / storage.WEIGHTS, arrays, {name: depth for name, depth in chosen.items() if depth is not None})
    # Without the indentation of the tokenizers library, which takes half of the file.
    tokenizer = read_json_object(_require_file(source, storage.TOKENIZER), ModelError)
    compact = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    (out / storage.TOKENIZER).write_text(compact + "\n", encoding="utf-8")
    text = json.dumps({"metrist_format": storage.FORMAT, **config}, indent=2, ensure_ascii=False)
    (out / storage.CONFIG).write_text(text + "\n", encoding="utf-8")


def restore_transformers(source: Path, out: Path) -> Path:
    """Write a model of metrist's own format as transformers reads it, with weights in float32: the inverse of an
    export, but for what quantization rounded off."""
    from safetensors.numpy import save_file

    path = source / storage.CONFIG
    config = storage.read_config(source, BERT_REWARD, "t5")
    architecture = config["architecture"]
    arrays = storage.read_arrays(source / storage.WEIGHTS)
    tokenizer = storage.read_tokenizer(source)
    head = {name.removeprefix(REWARD_HEAD): array for name, array in arrays.items() if name.startswith(REWARD_HEAD)}
    body = {name: array for name, array in arrays.items() if not name.startswith(REWARD_HEAD)}
    try:
        if architecture == BERT_REWARD:
            facts = _restore_bert_config(config, body)
            special = {**_BERT_TOKENS, "unk_token": getattr(tokenizer.model, "unk_token", None)}
        else:
            facts = _restore_t5_config(config)
            special = {
                "eos_token": tokenizer.id_to_token(facts["eos_token_id"]),
                "pad_token": tokenizer.id_to_token(facts["pad_token_id"]),
            }
    except KeyError as missing:
        raise ModelError(f"{path}: has no {missing}; {storage.suggest_repair(source)}") from None
    known = {role: token for role, token in special.items() if token and tokenizer.token_to_id(token) is not None}
    limit = config.get("max_tokens") or facts["max_position_embeddings"]
    files = {
        storage.CONFIG: facts,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": limit,
            **known,
        },
    }
    try:
        with translate_disk_errors():
            out.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            shutil.copyfile(source / storage.TOKENIZER, out / storage.TOKENIZER)
            save_file(body, str(out / "model.safetensors"), {"format": "pt"})
            if head:
                save_file(head, str(out / HEAD), {"format": "pt"})
                shutil.copyfile(source / REWARD, out / REWARD)
    except OSError as fault:
        raise RunError(f"{out}: the weights cannot be unpacked: {fault.strerror or fault}") from fault
    return out


#: The special tokens of a BERT, under the names of transformers.
_BERT_TOKENS = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def _restore_bert_config(config: Mapping[str, Any], arrays: Mapping[str, Floats]) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        **{name: config[name] for name in BertSizes.__dataclass_fields__},
        "vocab_size": len(arrays["embeddings.word_embeddings.weight"]),
        "type_vocab_size": len(arrays["embeddings.token_type_embeddings.weight"]),
        "intermediate_size": len(arrays["encoder.layer.0.intermediate.dense.weight"]),
    }


def _restore_t5_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("condition_template", "{text}") != "{text}":
        raise ModelError(
            "a likelihood model with a template for its conditions cannot be trained further", code="unsupported"
        )
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        **{name: config[name] for name in T5Sizes.__dataclass_fields__},
        "feed_forward_proj": "gated-gelu",
        # The scale of an original T5's tied head is already part of the stored head.
        "tie_word_embeddings": False,
        "scale_decoder_outputs": False,
        "eos_token_id": config["eos_token_id"],
        "pad_token_id": config["decoder_start_token_id"],
    }


# ---- Writing the folder


def _check_destination(source: Path, out: Path) -> None:
    """Refuse a destination where the export would damage another model."""
    if out.resolve() == source.resolve():
        raise RunError(
            f"{out} is the folder of the model itself; give another folder for the exported model", code="cannot_write"
        )
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; give a folder for the exported model", code="unreadable")
    if (out / TRAINING).is_file():
        raise RunError(f"{out} is the folder of a training; give another folder for the exported model")


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder; move its files to `out` if the block succeeds. Other files in `out` stay."""
    target = out.resolve()  # A link keeps its target.
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        with translate_disk_errors():
            part.mkdir(parents=True)
            yield part
            if target.exists():
                # Weights last: a folder with weights is complete.
                for path in sorted(part.iterdir(), key=lambda path: path.name == storage.WEIGHTS):
                    os.replace(path, target / path.name)
            else:
                part.rename(target)
    except OSError as fault:
        raise RunError(f"{out}: the model cannot be written: {fault.strerror or fault}", code="cannot_write") from fault
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Turn safetensors' error for a full disk into an OSError."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as fault:
        raise OSError(str(fault)) from fault


# ---- Reading the source


def _read_config(source: Path) -> Mapping[str, Any]:
    config = read_json_object(_require_file(source, storage.CONFIG), ModelError)
    if "metrist_format" in config:
        raise ModelError(f"{source} is already in metrist's own format; export the folder it was made from")
    return config


def _require_file(source: Path, name: str) -> Path:
    if not source.is_dir():
        raise ModelError(f"there is no folder {source}; give the folder of the trained model", code="missing_file")
    if not (source / name).is_file():
        unfinished = "; its training is not finished: run the same `metrist train` command again to resume it"
        raise ModelError(f"{source} has no {name}{unfinished if (source / TRAINING).is_file() else ''}")
    return source / name


def _read_all_arrays(source: Path, exclude: str = "") -> dict[str, Floats]:
    arrays: dict[str, Floats] = {}
    paths = [path for path in sorted(source.glob("*.safetensors")) if path.name != exclude]
    for path in paths or [source / "model.safetensors"]:
        arrays |= _read_arrays(path)
    return arrays


def _read_arrays(path: Path) -> dict[str, Floats]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        stored = load_file(str(_require_file(path.parent, path.name)))
    except (OSError, SafetensorError, KeyError) as fault:
        raise ModelError(
            f"{path}: the weights cannot be read ({fault}); train the model again", code="unreadable"
        ) from None
    return {name: array.astype(np.float32) for name, array in stored.items()}
