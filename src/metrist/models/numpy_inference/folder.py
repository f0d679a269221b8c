"""A folder in metrist's own form: what it says of itself, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metrist.errors import MissingExtra, ModelError

FORMAT = 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "weights.safetensors", "tokenizer.json"


def read_config(folder: Path, architecture: str) -> Mapping[str, Any]:
    """The folder's configuration, if it is of this form, of this version and of that architecture."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"{path}: cannot be read as a model's configuration ({fault})") from None
    if not isinstance(config, dict) or "metrist_format" not in config:
        raise ModelError(f"{path}: has no 'metrist_format'; this folder is no model in metrist's own form")
    if config["metrist_format"] != FORMAT:
        raise ModelError(
            f"{path}: is of format {config['metrist_format']!r}, this metrist reads {FORMAT}; "
            "install metrist and metrist-models of one time"
        )
    if config.get("architecture") != architecture:
        raise ModelError(f"{path}: is a {config.get('architecture')!r}, wanted a {architecture!r}")
    return config


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, which neither cuts nor pads."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("running a shipped model", "standard") from None
    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as fault:  # The package raises Exception itself.
        raise ModelError(f"{path}: cannot be read as a tokenizer ({fault})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
