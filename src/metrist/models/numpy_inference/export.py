"""Export transformers models to metrist's own format: quantized weights that run without torch.

Every recipe of a shipped model ends here. Needs only safetensors, not torch. The folder appears complete or not at all:
it is written under a temporary name and then moved.
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

from metrist.errors import ModelError, RunError, SpecError
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.bert import BertSizes
from metrist.models.numpy_inference.scorers import ARCHITECTURE as BERT_REWARD
from metrist.models.numpy_inference.storage import Floats, write_arrays
from metrist.models.numpy_inference.t5 import T5Sizes
from metrist.models.reward_layout import HEAD, RewardSettings

#: Maps a matrix's name to (bits, columns that share a scale; None: a row); None means float32.
Depths = Callable[[str], tuple[int, int | None] | None]
#: The cards of a training; their figures are those of the model before quantization.
_CARDS = ("card.md", "card.json")
#: In the folder of every training, finished or not.
TRAINING = "training.json"


def export_t5(source: Path, out: Path, depths: Depths, **facts: Any) -> Path:
    """Export a T5 with gated GELU. `facts` are further keys of its configuration, such as `max_tokens` and
    `condition_template`."""
    _check_destination(source, out)
    source_config = _read_t5_config(source)
    sizes = {name: source_config[name] for name in T5Sizes.__dataclass_fields__}
    config = {
        "architecture": "t5",
        **sizes,
        "eos_token_id": source_config["eos_token_id"],
        "max_tokens": 1024,
        **facts,
    }
    arrays = _read_t5_arrays(source, source_config)
    with atomic_folder(out) as part:
        _write(source, part, config, arrays, depths)
    return out


def export_reward(source: Path, out: Path, bits: int | None = 8, group: int | None = None, **facts: Any) -> Path:
    """Export a BERT trained on preferences (written by `RewardModel.save`) with its cards. `bits=None` keeps float32;
    `group` is the number of columns that share a scale (None: all columns of a row)."""
    _check_destination(source, out)
    source_config = _read_bert_config(source)
    settings = RewardSettings.read(source, str(source))
    sizes = {name: source_config[name] for name in BertSizes.__dataclass_fields__}
    config = {"architecture": BERT_REWARD, **sizes, **facts}
    head = {f"head.{name}": array for name, array in _read_arrays(source / HEAD).items()}
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


def _write(source: Path, out: Path, config: Mapping[str, Any], arrays: Mapping[str, Floats], depths: Depths) -> None:
    chosen = {name: depths(name) for name, array in arrays.items() if array.ndim == 2}
    write_arrays(out / storage.WEIGHTS, arrays, {name: depth for name, depth in chosen.items() if depth is not None})
    shutil.copyfile(_require_file(source, storage.TOKENIZER), out / storage.TOKENIZER)
    text = json.dumps({"metrist_format": storage.FORMAT, **config}, indent=2, ensure_ascii=False)
    (out / storage.CONFIG).write_text(text + "\n", encoding="utf-8")


# ---- Writing the folder


def _check_destination(source: Path, out: Path) -> None:
    """Refuse a destination where the export would damage another model."""
    if out.resolve() == source.resolve():
        raise RunError(f"{out} is the folder of the model itself; give another folder for the exported model")
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; give a folder for the exported model")
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
            _move(part, target)
    except OSError as fault:
        raise RunError(f"{out}: the model cannot be written: {fault.strerror or fault}") from fault
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move(part: Path, target: Path) -> None:
    if not target.exists():
        part.rename(target)
        return
    # Weights last: a folder with weights is complete.
    for path in sorted(part.iterdir(), key=lambda path: path.name == storage.WEIGHTS):
        os.replace(path, target / path.name)


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
    path = _require_file(source, storage.CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"{path}: cannot be read as a model's configuration ({fault})") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: cannot be read as a model's configuration (it is not a JSON object)")
    if "metrist_format" in config:
        raise ModelError(f"{source} is already in metrist's own format; export the folder it was made from")
    return config


def _require_file(source: Path, name: str) -> Path:
    """Return the path of a file that every model has."""
    if not source.is_dir():
        raise ModelError(f"there is no folder {source}; give the folder of the trained model")
    if not (source / name).is_file():
        unfinished = "; its training is not finished: run the same `metrist train` command again to resume it"
        raise ModelError(f"{source} has no {name}{unfinished if (source / TRAINING).is_file() else ''}")
    return source / name


def _read_t5_config(source: Path) -> Mapping[str, Any]:
    path, config = source / storage.CONFIG, _read_config(source)
    projection = config.get("feed_forward_proj")
    if config.get("model_type") != "t5" or projection != "gated-gelu":
        raise ModelError(
            f"{path}: is a {config.get('model_type')!r} with {projection!r} feed-forward layers; "
            "only a 't5' with 'gated-gelu' runs without torch"
        )
    return config


def _read_bert_config(source: Path) -> Mapping[str, Any]:
    path, config = source / storage.CONFIG, _read_config(source)
    positions = config.get("position_embedding_type") or "absolute"
    if config.get("model_type") != "bert" or config.get("is_decoder") or positions != "absolute":
        kind = "decoder" if config.get("is_decoder") else "encoder"
        raise ModelError(
            f"{path}: is a {config.get('model_type')!r} {kind} with {positions!r} positions; "
            "only a 'bert' encoder with 'absolute' positions runs without torch"
        )
    return config


def _read_t5_arrays(source: Path, config: Mapping[str, Any]) -> dict[str, Floats]:
    arrays = _read_all_arrays(source)
    head = arrays.get("lm_head.weight", arrays["shared.weight"])
    if config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True)):
        # The original T5, whose head is its embeddings, scales the head's input; here the scale goes into the head.
        head = head * np.float32(config["d_model"] ** -0.5)
    arrays["lm_head.weight"] = head
    return {name: array for name, array in arrays.items() if not name.endswith("embed_tokens.weight")}


def _read_all_arrays(source: Path, exclude: str = "") -> dict[str, Floats]:
    """Read the arrays of all safetensors files but one."""
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
    except (OSError, SafetensorError) as fault:
        raise ModelError(f"{path}: the weights cannot be read ({fault}); train the model again") from None
    return {name: array.astype(np.float32) for name, array in stored.items()}
