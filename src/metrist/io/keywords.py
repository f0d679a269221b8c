"""Keywords of functions that hand what they do not know on to `read_records`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from metrist.errors import did_you_mean
from metrist.io.reader import read_records


def check_keywords(function: Callable[..., Any], reading: Mapping[str, Any]) -> None:
    """Refuse a keyword that neither the function nor `read_records` has, in the function's own name: a misspelt one
    would be refused by a function that the caller never called."""
    own, passed_on = _named(function), _named(read_records)
    for name in reading:
        if name not in passed_on:
            raise TypeError(
                f"{function.__name__}() has no parameter {name!r}{did_you_mean(name, (*own, *passed_on))}; it takes "
                f"{', '.join(own)}, and to read the records {', '.join(passed_on)}"
            )


def _named(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters that can be given by name alone."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY)
