"""Checks a metric's settings against the types that its class declares, before the metric is made."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from metrist.errors import SpecError, did_you_mean
from metrist.llm.base import LLM
from metrist.metrics.base import Metric
from metrist.models.options import Dtype, dtype_fault
from metrist.spec import Spec


def check_settings(cls: type, name: str, settings: Mapping[str, Any]) -> None:
    """Refuse unknown settings (naming the nearest), values of a type that the setting does not take, and the lack of a
    setting that has no default."""
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else []
    known = [f.name for f in fields]
    for key, value in settings.items():
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SpecError(f"{name} has no setting {key!r}; {takes}{did_you_mean(key, known)}")
        if hints[key] == Dtype and (fault := dtype_fault(value)):
            raise SpecError(f"{name}: {fault}")
        if not _fits(value, hints[key]):
            raise SpecError(f"{name}: {key} must be {_words(hints[key])}, got {_shown(key, value)}")
    for setting in fields:
        if setting.name not in settings and setting.default is setting.default_factory is dataclasses.MISSING:
            wanted = f"{name}({setting.name}=...), {_words(hints[setting.name])}"
            raise SpecError(f"{name} needs the setting {setting.name!r}: {wanted}")


def takes_metrics(cls: type, key: str) -> bool:
    """Whether a setting of that class is a metric itself, or a list of them."""
    return _holds(Metric, typing.get_type_hints(cls).get(key))


def takes_llms(cls: type, key: str) -> bool:
    """Whether a setting of that class is an LLM, or a list of them."""
    return _holds(LLM, typing.get_type_hints(cls).get(key))


def _holds(kind: type, hint: Any) -> bool:
    return _is(kind, hint) or any(_holds(kind, inner) for inner in get_args(hint))


def _is(kind: type, hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _shown(key: str, value: Any) -> str:
    if isinstance(value, Spec):
        return f"{value}, which is no string without quotes: {key}='{value}'"
    return repr(value)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if origin is tuple:
        inner = get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(element, inner) for element in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint) or (hint is type(None) and value is None)
    if _is(Metric, hint) or _is(LLM, hint):
        return isinstance(value, hint)
    return True  # Richer types check themselves.


_PLAIN = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", type(None): "None"}


def _words(hint: Any) -> str:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, inside))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inside))
    if origin is tuple:
        return f"a list, each {_words(inside[0])}"
    if _is(Metric, hint):
        return "a metric without quotes, such as chrf(word_order=2)"
    if _is(LLM, hint):
        return "an LLM without quotes, such as openai(model='gpt-4o-mini')"
    return _PLAIN.get(hint, str(hint))
