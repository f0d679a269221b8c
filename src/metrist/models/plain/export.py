"""From a folder of transformers to metrist's own form: weights in few bits, read and run without torch.

Every recipe of a shipped model ends here. Needs safetensors and nothing else: no torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metrist.errors import ModelError
from metrist.models.plain import folder as folders
from metrist.models.plain.quantised import Floats, write
from metrist.models.plain.t5 import Sizes

#: A matrix's name to its bits and the columns that share a scale (None: a whole row); None: float32.
Depths = Callable[[str], tuple[int, int | None] | None]


def export_t5(source: Path, out: Path, depths: Depths, **facts: Any) -> Path:
    """A T5 with gated GELU as a folder in metrist's form. `facts` are further keys of its configuration, such as
    `max_tokens` and `condition_template`."""
    given = _read_config(source)
    sizes = {name: given[name] for name in Sizes.__dataclass_fields__}
    config = {"metrist_format": folders.FORMAT, "architecture": "t5", **sizes, "eos_token_id": given["eos_token_id"]}
    arrays = _arrays(source, given)
    out.mkdir(parents=True, exist_ok=True)
    chosen = {name: depths(name) for name, array in arrays.items() if array.ndim == 2}
    write(out / folders.WEIGHTS, arrays, {name: depth for name, depth in chosen.items() if depth is not None})
    shutil.copyfile(source / folders.TOKENIZER, out / folders.TOKENIZER)
    text = json.dumps({**config, "max_tokens": 1024, **facts}, indent=2, ensure_ascii=False)
    (out / folders.CONFIG).write_text(text + "\n", encoding="utf-8")
    return out


def _read_config(source: Path) -> Mapping[str, Any]:
    path = source / folders.CONFIG
    config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    projection = config.get("feed_forward_proj")
    if config.get("model_type") != "t5" or projection != "gated-gelu":
        raise ModelError(
            f"{path}: is a {config.get('model_type')!r} with {projection!r} feed-forward layers; "
            "the form without torch takes a 't5' with 'gated-gelu'"
        )
    return config


def _arrays(source: Path, config: Mapping[str, Any]) -> dict[str, Floats]:
    from safetensors.numpy import load_file

    arrays: dict[str, Floats] = {}
    for path in sorted(source.glob("*.safetensors")):
        arrays |= {name: array.astype(np.float32) for name, array in load_file(str(path)).items()}
    head = arrays.get("lm_head.weight", arrays["shared.weight"])
    if config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True)):
        # The first T5, whose head is its embeddings, scales what goes into it; here the scale goes into the head.
        head = head * np.float32(config["d_model"] ** -0.5)
    arrays["lm_head.weight"] = head
    return {name: array for name, array in arrays.items() if not name.endswith("embed_tokens.weight")}
