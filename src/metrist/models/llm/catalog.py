"""Which LLMs there are, by name. A module is imported only when its LLM is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

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
    cls: type[LLM] = getattr(importlib.import_module(module), attribute)
    _check_names(cls, spec)
    return cls(**spec.settings)


def _check_names(cls: type[LLM], spec: Spec) -> None:
    """Refuse settings that the LLM does not know, and the lack of one that has no default. Values it checks itself."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    known = [field.name for field in fields]
    for name in spec.settings:
        if name not in known:
            raise SpecError(
                f"{spec.name} has no setting {name!r}; it takes {', '.join(known)}{did_you_mean(name, known)}"
            )
    for field in fields:
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in spec.settings:
            raise SpecError(f"{spec.name} needs the setting {field.name!r}: {spec.name}({field.name}='…')")
