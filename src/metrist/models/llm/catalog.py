"""Which LLMs there are, by name. A module is imported only when its LLM is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from metrist.errors import SpecError, did_you_mean
from metrist.models.llm.base import LLM
from metrist.spec import Spec, parse

_BUILTIN: Mapping[str, tuple[str, str]] = {
    "openai": ("metrist.models.llm.openai", "OpenAI"),
    "transformers": ("metrist.models.llm.local", "Transformers"),
    "vllm": ("metrist.models.llm.vllm", "VLLM"),
    "replay": ("metrist.models.llm.replay", "Replay"),
}


def names() -> list[str]:
    """All names that an LLM's text can start with."""
    return list(_BUILTIN)


def build(llm: str | Spec | LLM) -> LLM:
    """The LLM that a text such as `openai(model='gpt-4o-mini')` names."""
    if isinstance(llm, LLM):
        return llm
    spec = parse(llm) if isinstance(llm, str) else llm
    if spec.name not in _BUILTIN:
        known = ", ".join(_BUILTIN)
        raise SpecError(f"no LLM named {spec.name!r}{did_you_mean(spec.name, _BUILTIN)} (known are {known})")
    module, attribute = _BUILTIN[spec.name]
    made: LLM = getattr(importlib.import_module(module), attribute)(**spec.settings)
    return made
