"""A metric's text is its identity: `chrf(word_order=2)` is read to a `Spec` and printed back.

Read are a name, dotted or not, and keyword settings whose values are literals or nested specs. Nothing is
ever evaluated, so a text from a stranger can be parsed without fear.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metrist.errors import SpecError

_LONGEST = 10_000  # Longer texts are refused before Python's parser can run out of stack on them.


@dataclass(frozen=True, slots=True)
class Spec:
    """A name with its settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.settings:
            return self.name
        inside = ", ".join(f"{key}={_literal(value)}" for key, value in self.settings.items())
        return f"{self.name}({inside})"


def parse(text: str) -> Spec:
    """Read a metric's text; whatever is no name with keyword settings is refused with its place."""
    if len(text) > _LONGEST:
        raise SpecError(f"a metric's text of {len(text):,} characters is too long (at most {_LONGEST:,})")
    try:
        found = _value(_tree(text), text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        raise SpecError(f"cannot read the metric {text!r}: {_reason(fault)}") from None
    if not isinstance(found, Spec):
        raise SpecError(f"cannot read the metric {text!r}: wanted a name such as chrf(word_order=2)")
    return found


def _tree(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's remarks on odd escapes in strings are not about us.
        return ast.parse(text.strip(), mode="eval").body


def _reason(fault: Exception) -> str:
    if isinstance(fault, SyntaxError):
        return f"{fault.msg} at character {fault.offset}"
    return str(fault) or "it is nested too deeply"


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Name() | ast.Attribute():
            return Spec(_dotted(node))
        case ast.Call(func=func, args=[], keywords=keywords):
            return Spec(_dotted(func), _settings(keywords, text))
        case ast.Call():
            raise ValueError("settings are given by name, as in chrf(word_order=2)")
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return tuple(_value(element, text) for element in elements)
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    piece = ast.get_source_segment(text.strip(), node) or text
    raise ValueError(f"{piece!r} is neither a literal nor a name")


def _settings(keywords: list[ast.keyword], text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for keyword in keywords:
        if keyword.arg is None:
            raise ValueError("'**' cannot be used here")
        if keyword.arg in settings:
            raise ValueError(f"the setting {keyword.arg!r} is repeated")
        settings[keyword.arg] = _value(keyword.value, text)
    return settings


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
    raise ValueError("only a name can be called")


def _literal(value: Any) -> str:
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_literal, value))
        return f"[{inside}]"
    return str(value) if isinstance(value, Spec) else repr(value)
