"""A model's folder that appears whole or not at all: written beside its place, then moved there."""

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
from metrist.models.numpy_inference import quantization as folders
from metrist.models.numpy_inference.bert import Sizes as BertSizes
from metrist.models.numpy_inference.quantization import Floats, write_arrays
from metrist.models.numpy_inference.scorers import ARCHITECTURE as BERT_REWARD
from metrist.models.numpy_inference.t5 import T5Sizes
from metrist.models.reward_layout import HEAD, RewardSettings

#: The folder of a training has it, whether finished or not.
TRAINING = "training.json"


def check_destination(source: Path, out: Path) -> None:
    """Refuse a place where the new model would spoil another one."""
    if out.resolve() == source.resolve():
        raise RunError(f"{out} is the folder of the model itself; give another one for the exported model")
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; give a folder for the exported model")
    if (out / TRAINING).is_file():
        raise RunError(f"{out} is the folder of a training; give another one for the exported model")


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, whose files move to `out` when the block ends well. Other files there stay."""
    # A link keeps pointing where it points.
    place = out.resolve()
    part = place.with_name(f".{place.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        with translate_disk_errors():
            part.mkdir(parents=True)
            yield part
            _move(part, place)
    except OSError as fault:
        raise RunError(f"{out}: the model cannot be written: {fault.strerror or fault}") from fault
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _move(part: Path, place: Path) -> None:
    if not place.exists():
        part.rename(place)
        return
    # Weights last: no one takes half a model for one.
    for path in sorted(part.iterdir(), key=lambda one: one.name == folders.WEIGHTS):
        os.replace(path, place / path.name)


@contextmanager
def translate_disk_errors() -> Iterator[None]:
    """What safetensors says of a disk that is full, as what it is."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as fault:
        raise OSError(str(fault)) from fault


# From a folder of transformers to metrist's own form: weights in few bits, read and run without torch.
#
# Every recipe of a shipped model ends here. Needs safetensors and nothing else: no torch.


#: A matrix's name to its bits and the columns that share a scale (None: a whole row); None: float32.
Depths = Callable[[str], tuple[int, int | None] | None]
#: What a training tells of its model; figures in it are those of the model before its weights were rounded.
_CARDS = ("card.md", "card.json")


def export_t5(source: Path, out: Path, depths: Depths, **facts: Any) -> Path:
    """A T5 with gated GELU as a folder in metrist's form. `facts` are further keys of its configuration, such as
    `max_tokens` and `condition_template`."""
    check_destination(source, out)
    given = _read_t5_config(source)
    sizes = {name: given[name] for name in T5Sizes.__dataclass_fields__}
    config = {"architecture": "t5", **sizes, "eos_token_id": given["eos_token_id"], "max_tokens": 1024, **facts}
    arrays = _t5_arrays(source, given)
    with atomic_folder(out) as part:
        _write(source, part, config, arrays, depths)
    return out


def export_reward(source: Path, out: Path, bits: int | None = 8, group: int | None = None, **facts: Any) -> Path:
    """A BERT that was trained on preferences as a folder in metrist's form: what `RewardModel.save` wrote, its matrices
    in so many bits with a scale for each `group` of columns (None: for each row). `bits=None` keeps float32. Its cards
    go with it."""
    check_destination(source, out)
    given = _read_bert_config(source)
    settings = RewardSettings.read(source, str(source))
    config = {"architecture": BERT_REWARD, **{name: given[name] for name in BertSizes.__dataclass_fields__}, **facts}
    head = {f"head.{name}": array for name, array in _read_arrays(source / HEAD).items()}
    arrays = {name: array for name, array in _arrays(source, HEAD).items() if not name.startswith("pooler.")} | head
    widths = sorted({array.shape[1] for array in arrays.values() if array.ndim == 2})
    if group and (uneven := [width for width in widths if width % group]):
        raise SpecError(f"groups of {group} columns do not divide this model's {uneven[0]}; give a group that does")
    # Position tables and the head are a hundredth of the file, and every token goes through them.
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
    write_arrays(out / folders.WEIGHTS, arrays, {name: depth for name, depth in chosen.items() if depth is not None})
    shutil.copyfile(_there(source, folders.TOKENIZER), out / folders.TOKENIZER)
    text = json.dumps({"metrist_format": folders.FORMAT, **config}, indent=2, ensure_ascii=False)
    (out / folders.CONFIG).write_text(text + "\n", encoding="utf-8")


def _read_config(source: Path) -> Mapping[str, Any]:
    path = _there(source, folders.CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"{path}: cannot be read as a model's configuration ({fault})") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: cannot be read as a model's configuration (it is no JSON object)")
    if "metrist_format" in config:
        raise ModelError(f"{source} is in metrist's own form already; export the folder that it was made of")
    return config


def _there(source: Path, name: str) -> Path:
    """A file that every model has."""
    if not source.is_dir():
        raise ModelError(f"there is no folder {source}; give the one that the trained model is in")
    if not (source / name).is_file():
        unfinished = "; its training is not finished: the command that began it goes on with it"
        raise ModelError(f"{source} has no {name}{unfinished if (source / TRAINING).is_file() else ''}")
    return source / name


def _read_t5_config(source: Path) -> Mapping[str, Any]:
    path, config = source / folders.CONFIG, _read_config(source)
    projection = config.get("feed_forward_proj")
    if config.get("model_type") != "t5" or projection != "gated-gelu":
        raise ModelError(
            f"{path}: is a {config.get('model_type')!r} with {projection!r} feed-forward layers; "
            "the form without torch takes a 't5' with 'gated-gelu'"
        )
    return config


def _read_bert_config(source: Path) -> Mapping[str, Any]:
    path, config = source / folders.CONFIG, _read_config(source)
    positions = config.get("position_embedding_type") or "absolute"
    if config.get("model_type") != "bert" or config.get("is_decoder") or positions != "absolute":
        kind = "decoder" if config.get("is_decoder") else "encoder"
        raise ModelError(
            f"{path}: is a {config.get('model_type')!r} {kind} with {positions!r} positions; "
            "the form without torch takes a 'bert' encoder with 'absolute' ones"
        )
    return config


def _t5_arrays(source: Path, config: Mapping[str, Any]) -> dict[str, Floats]:
    arrays = _arrays(source)
    head = arrays.get("lm_head.weight", arrays["shared.weight"])
    if config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True)):
        # The first T5, whose head is its embeddings, scales what goes into it; here the scale goes into the head.
        head = head * np.float32(config["d_model"] ** -0.5)
    arrays["lm_head.weight"] = head
    return {name: array for name, array in arrays.items() if not name.endswith("embed_tokens.weight")}


def _arrays(source: Path, besides: str = "") -> dict[str, Floats]:
    """All arrays of the folder's files, but for one file."""
    arrays: dict[str, Floats] = {}
    paths = [path for path in sorted(source.glob("*.safetensors")) if path.name != besides]
    for path in paths or [source / "model.safetensors"]:
        arrays |= _read_arrays(path)
    return arrays


def _read_arrays(path: Path) -> dict[str, Floats]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        stored = load_file(str(_there(path.parent, path.name)))
    except (OSError, SafetensorError) as fault:
        raise ModelError(f"{path}: the weights cannot be read ({fault}); train the model again") from None
    return {name: array.astype(np.float32) for name, array in stored.items()}
