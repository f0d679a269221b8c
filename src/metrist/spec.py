"""Specs: a metric's text, such as `chrf(word_order=2)`, is its identity; it is parsed to a `Spec` and printed back.

A spec is a name, dotted or not, and keyword settings whose values are literals or nested specs. Nothing is evaluated,
so texts from untrusted sources can be parsed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metrist.errors import SpecError

_MAX_LENGTH = 10_000  # Longer texts are refused before Python's parser can run out of stack.
_MAX_SHOWN = 500  # Characters of a text that messages quote.


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
    """Parse a metric's text. Anything but a name with keyword settings is refused."""
    if len(text) > _MAX_LENGTH:
        raise SpecError(
            f"a metric's text of {len(text):,} characters is too long (at most {_MAX_LENGTH:,})", code="too_large"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about odd escapes in strings.
            tree = ast.parse(text.strip(), mode="eval").body
        spec = _value(tree, text)
    except SyntaxError as error:
        hint = _describe_bare_model(text)
        raise SpecError(
            f"cannot read the metric {_shorten(text)}: {error.msg} at character {error.offset}{hint}",
            code="invalid_value",
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = f"{str(error) or 'it is nested too deeply'}{_describe_bare_model(text)}"
        raise SpecError(f"cannot read the metric {_shorten(text)}: {reason}", code="invalid_value") from None
    if not isinstance(spec, Spec):
        raise SpecError(
            f"cannot read the metric {_shorten(text)}: expected a name such as chrf(word_order=2)", code="invalid_value"
        )
    return spec


def _shorten(text: str) -> str:
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}…"


def _describe_bare_model(text: str) -> str:
    """A hint where a model's name, such as gpt-4o-mini, stands in place of an LLM, which is a common mistake."""
    match = re.search(r"\bllm\s*=\s*([\w./:]+-[\w./:-]+)\s*[,)]", text)
    return f"; write llm=openai(model={match[1]!r})" if match else ""


def split_list(text: str) -> list[str]:
    """The texts of a list such as `rougeL,chrf(word_order=2)`: commas within brackets and quotes do not separate."""
    pieces: list[str] = []
    start = depth = 0
    quote = ""
    escaped = False
    for at, character in enumerate(text):
        if quote:
            if escaped or character == "\\":
                escaped = not escaped
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth <= 0:
            pieces.append(text[start:at])
            start = at + 1
    return [piece.strip() for piece in (*pieces, text[start:]) if piece.strip()] or [text]


def split_name(text: str) -> tuple[str | None, str]:
    """The short name and the rest of `judge=judge(llm=…)`; None for a text without a name."""
    before, equals, rest = text.partition("=")
    return (before.strip(), rest.strip()) if equals and "(" not in before else (None, text)


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Name(id=name):
            return Spec(name)
        case ast.Attribute():
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
    raise ValueError(f"{_shorten(piece)} is neither a literal nor a name")


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
