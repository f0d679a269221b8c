"""Short phrases that lead a model from one text to the other, and where they stand.

A phrase is put before the target, or after the condition (paper 002, section 3.3.1). The sets that ship are text files
in the folder `prompts` beside this module, one phrase a line; a user's file looks the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

from metrist.errors import SpecError, did_you_mean

NONE = "none"
#: What the shipped sets are called.
SETS = ("source-output", "reference-output")
Side = Literal["target", "condition"]


def phrases_of(prompts: str | Sequence[str]) -> tuple[str, ...]:
    """The phrases that a setting means; ('',) for none. The empty phrase is the text without a prompt."""
    if prompts == NONE:
        return ("",)
    if not isinstance(prompts, str):
        return tuple(prompts)
    if prompts in SETS:
        file = resources.files("metrist.metrics") / "prompts" / f"{prompts}.txt"
        return _lines(file.read_text(encoding="utf-8"))
    return _from_file(prompts)


def facts_of(prompts: str | Sequence[str]) -> Mapping[str, str]:
    """How many phrases a named set has, and their hash: a name does not say which they are."""
    if prompts == NONE or not isinstance(prompts, str):
        return {}
    phrases = phrases_of(prompts)
    digest = hashlib.sha256("\n".join(phrases).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return {"prompts": f"{len(phrases)} {digest}"}


def prompted(condition: str, target: str, phrase: str, side: Side) -> tuple[str, str]:
    """The pair with the phrase in its place."""
    if not phrase:
        return condition, target
    if side == "condition":
        return f"{condition} {phrase},", target
    return condition, f"{phrase}, {target}"


def _from_file(path: str) -> tuple[str, ...]:
    known = (NONE, *SETS)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as fault:
        raise SpecError(
            f"prompts must be {', '.join(map(repr, known))}, a list of phrases or a file with one phrase a line; "
            f"{path!r} cannot be read ({fault.strerror}){did_you_mean(path, known)}"
        ) from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: prompts must be a text file in UTF-8 with one phrase a line") from None
    phrases = _lines(text)
    if not phrases:
        raise SpecError(f"{path}: wanted one phrase a line, found none")
    return phrases


def _lines(text: str) -> tuple[str, ...]:
    stripped = (line.strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in stripped if line and not line.startswith("#")))
