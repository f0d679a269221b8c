"""Aspects by what they are about: semantic overlap, linguistic quality, factual correctness."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources


def aspect_groups(added: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Aspects, in small letters, with the group of each. What a user adds comes first, and may name a group of its
    own."""
    own = {aspect.lower(): group for aspect, group in (added or {}).items()}
    return {**_shipped(), **own}


@cache
def _shipped() -> Mapping[str, str]:
    file = resources.files("metrist.evaluate.prompts") / "aspect_groups.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return {aspect: group for group, aspects in table.items() for aspect in aspects}
