"""Which LLMs there are, by name. A module is imported only when its LLM is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from metrist.errors import SpecError, did_you_mean
from metrist.llm.base import LLM
from metrist.spec import Spec, parse

_BUILTIN: Mapping[str, tuple[str, str]] = {
    "openai": ("metrist.llm.openai", "OpenAI"),
    "transformers": ("metrist.llm.local", "Transformers"),
    "vllm": ("metrist.llm.vllm", "VLLM"),
    "replay": ("metrist.llm.replay", "Replay"),
}


def names() -> list[str]:
    """All names that an LLM's text can start with."""
    return list(_BUILTIN)


def build(llm: str | Spec | LLM) -> LLM:
    """The LLM that a text such as `openai(model='gpt-4o-mini')` names."""
    if isinstance(llm, LLM):
        return llm
    spec = parsed(llm) if isinstance(llm, str) else llm
    if spec.name not in _BUILTIN:
        raise SpecError(_unknown(spec.name))
    module, attribute = _BUILTIN[spec.name]
    cls: type[LLM] = getattr(importlib.import_module(module), attribute)
    _check_names(cls, spec)
    return cls(**spec.settings)


def parsed(text: str) -> Spec:
    """A text as a name with settings. A model's name alone, which is what most people write first, is told from it."""
    if "(" not in text and text.strip() not in _BUILTIN:
        raise SpecError(_unknown(text.strip()))
    try:
        return parse(text)
    except SpecError as fault:
        said = str(fault).replace("the metric", "the LLM", 1).replace("chrf(word_order=2)", _SUCH)
        raise SpecError(f"{said} (texts stand in quotes, as in {_SUCH})") from None


_SUCH = "openai(model='gpt-4o-mini')"


def _unknown(name: str) -> str:
    near = did_you_mean(name, _BUILTIN)
    model = "" if near else f"; a model is named within one: openai(model={name!r}) or transformers(model={name!r})"
    return f"no LLM named {name!r}{near} (known are {', '.join(_BUILTIN)}){model}"


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
