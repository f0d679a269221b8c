"""Rubrics: what a judge is asked of an output, and which grades it may give.

A rubric is a TOML file; those that ship are in the folder `rubrics` beside this module.

    about = "Answers to questions"          # what the rubric is for
    reasons = "first"                       # or "none": grades alone
    higher_is_better = true

    [aspects.correctness]
    question = "Is the answer right?"
    [aspects.correctness.levels]            # a numeric scale: each level with its meaning
    1 = "Wrong."
    2 = "Right."

    [aspects.tone.levels]                   # a categorical one: names with values
    rude = { value = 0, meaning = "It offends." }
    civil = { value = 1, meaning = "It does not." }

    [aspects.overall]                       # a long scale: levels need not have a meaning each
    scale = { from = 0, to = 100, step = 10 }
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from metrist.errors import SpecError, did_you_mean

Reasons = Literal["first", "none"]
ALL = "all"
REASONS, MARK = "reasons", "id"
#: Names that an answer or a score uses for something else.
_TAKEN = (ALL, REASONS, MARK, "value", "outside", "default_instruction")
_NAME = re.compile(r"[^\W\d_][\w-]*")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_MOST_LEVELS = 1001


@dataclass(frozen=True, slots=True)
class Level:
    """A grade as the judge writes it, what it counts, and what it means ('' on long scales)."""

    name: str
    value: float
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Aspect:
    """One thing that is graded, on a scale of levels."""

    name: str
    question: str
    levels: tuple[Level, ...]
    categorical: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        values = [level.value for level in self.levels]
        return min(values), max(values)

    @property
    def offered(self) -> str:
        """The grades in words, for prompts and messages."""
        names = [level.name for level in self.levels]
        steps = {round(b.value - a.value, 9) for a, b in zip(self.levels, self.levels[1:], strict=False)}
        if not self.categorical and len(names) > 10 and len(steps) == 1:
            return f"{names[0]} to {names[-1]} in steps of {steps.pop():g}"
        return ", ".join(names)


@dataclass(frozen=True, slots=True)
class Rubric:
    """Aspects that are graded in one answer."""

    name: str
    about: str
    aspects: tuple[Aspect, ...]
    reasons: Reasons = "first"
    higher_is_better: bool = True

    @property
    def digest(self) -> str:
        """A hash of all that the rubric says, the same wherever the file lies."""
        said = repr((self.about, self.aspects, self.reasons, self.higher_is_better))
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def aspect(self, name: str) -> Aspect:
        """The aspect of that name."""
        for one in self.aspects:
            if one.name == name:
                return one
        known = [one.name for one in self.aspects]
        listed = ", ".join(map(repr, (ALL, *known)))
        raise SpecError(f"the rubric {self.name!r} has no aspect {name!r}; it has {listed}{did_you_mean(name, known)}")


@cache
def shipped() -> tuple[str, ...]:
    """The names of the rubrics that come with metrist."""
    folder = resources.files("metrist.metrics") / "rubrics"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def load(rubric: str) -> Rubric:
    """The rubric of that name, or of the file at that path."""
    if rubric in shipped():
        return _shipped(rubric)
    try:
        text = Path(rubric).read_text(encoding="utf-8")
    except OSError as fault:
        known = shipped()
        raise SpecError(
            f"rubric must be {', '.join(map(repr, known))} or a TOML file; {rubric!r} cannot be read "
            f"({fault.strerror}){did_you_mean(rubric, known)}"
        ) from None
    except UnicodeDecodeError:
        raise SpecError(f"{rubric}: a rubric must be a text file in UTF-8") from None
    return parse_rubric(text, rubric)


@cache
def _shipped(name: str) -> Rubric:
    file = resources.files("metrist.metrics") / "rubrics" / f"{name}.toml"
    return parse_rubric(file.read_text(encoding="utf-8"), name)


@lru_cache(maxsize=64)
def parse_rubric(text: str, place: str) -> Rubric:
    """The rubric that a TOML text says; `place` is what messages call it."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise SpecError(f"{place}: {fault}") from None
    _check_keys(place, "", table, ("about", "reasons", "higher_is_better", "aspects"))
    reasons = table.get("reasons", "first")
    if reasons not in ("first", "none"):
        raise SpecError(f"{place}: reasons must be 'first' or 'none', got {reasons!r}")
    better = table.get("higher_is_better", True)
    if not isinstance(better, bool):
        raise SpecError(f"{place}: higher_is_better must be true or false, got {better!r}")
    about = _text(place, "about", table.get("about", ""))
    return Rubric(place, about, _aspects(place, table.get("aspects")), reasons, better)


def _aspects(place: str, table: Any) -> tuple[Aspect, ...]:
    if not isinstance(table, dict) or not table:
        raise SpecError(f"{place}: wanted at least one table [aspects.NAME] with a question and levels")
    seen: set[str] = set()
    for name in table:
        if not _NAME.fullmatch(name):
            raise SpecError(f"{place}: an aspect's name is a letter, then letters, digits, _ and -; got {name!r}")
        if name.lower() in _TAKEN or name.lower() in seen:
            why = "stands for something else" if name.lower() in _TAKEN else "is there twice (capitals do not count)"
            raise SpecError(f"{place}: the aspect name {name!r} {why}; take another")
        seen.add(name.lower())
    return tuple(_aspect(place, name, one) for name, one in table.items())


def _aspect(place: str, name: str, table: Any) -> Aspect:
    key = f"aspects.{name}"
    if not isinstance(table, dict):
        raise SpecError(f"{place}: {key} must be a table with a question and levels, got {table!r}")
    _check_keys(place, f"{key}.", table, ("question", "levels", "scale"))
    question = _text(place, f"{key}.question", table.get("question", ""))
    if not question:
        raise SpecError(f"{place}: {key} needs a question")
    given = table.get("levels", {})
    if not isinstance(given, dict):
        raise SpecError(f"{place}: {key}.levels must be a table of grades with their meanings, got {given!r}")
    if "scale" in table:
        levels, categorical = _on_scale(place, key, table["scale"], given), False
    else:
        levels, categorical = _levels(place, key, given)
    if len({level.value for level in levels}) < 2:
        raise SpecError(f"{place}: {key} needs at least two levels of different value, got {len(levels)}")
    return Aspect(name, question, levels, categorical)


def _levels(place: str, key: str, given: Mapping[str, Any]) -> tuple[tuple[Level, ...], bool]:
    """The levels in the order of the file, and whether they are categories."""
    categorical = any(isinstance(said, dict) and "value" in said for said in given.values())
    found = tuple((_category if categorical else _grade)(place, f"{key}.levels", n, s) for n, s in given.items())
    names = [level.name.lower() for level in found]
    if len(set(names)) < len(names):
        raise SpecError(f"{place}: {key}.levels names one level twice: {', '.join(given)}")
    return (found if categorical else tuple(sorted(found, key=lambda level: level.value))), categorical


def _grade(place: str, key: str, name: str, said: Any) -> Level:
    if isinstance(said, dict):
        # TOML reads 0.5 = "…" as a table 0 with a key 5.
        raise SpecError(f'{place}: {key}: write a decimal grade in quotes ("0.5" = "…"), a category with a value')
    if not _NUMBER.fullmatch(name):
        raise SpecError(
            f"{place}: {key}.{name} must be a number, or a category: {name} = {{ value = 1, meaning = '…' }}"
        )
    return Level(_shown(float(name)), float(name), _text(place, f"{key}.{name}", said))


def _category(place: str, key: str, name: str, said: Any) -> Level:
    if not isinstance(said, dict) or not _is_number(said.get("value")):
        raise SpecError(f"{place}: {key}.{name} needs a value: {name} = {{ value = 1, meaning = '…' }}")
    _check_keys(place, f"{key}.{name}.", said, ("value", "meaning"))
    if not name.strip() or _NUMBER.fullmatch(name.strip()):
        raise SpecError(f"{place}: {key}: a category needs a name in words, got {name!r}")
    return Level(name.strip(), float(said["value"]), _text(place, f"{key}.{name}.meaning", said.get("meaning", "")))


def _on_scale(place: str, key: str, scale: Any, given: Mapping[str, Any]) -> tuple[Level, ...]:
    wanted = f"{place}: {key}.scale must be {{ from = 1, to = 10, step = 1 }}"
    if not isinstance(scale, dict) or not {"from", "to"} <= scale.keys() <= {"from", "to", "step"}:
        raise SpecError(f"{wanted}, got {scale!r}")
    low, high, step = scale["from"], scale["to"], scale.get("step", 1)
    if not all(map(_is_number, (low, high, step))) or not low < high or step <= 0:
        raise SpecError(f"{wanted} with from below to and step above 0, got {scale!r}")
    count = round((high - low) / step)
    if not math.isclose(low + count * step, high) or count >= _MOST_LEVELS:
        raise SpecError(f"{wanted}: at most {_MOST_LEVELS} levels, the last of them 'to'; got {scale!r}")
    values = [round(low + i * step, 9) for i in range(count + 1)]
    meant = {level.value: level.meaning for level in (_grade(place, f"{key}.levels", n, s) for n, s in given.items())}
    if odd := meant.keys() - set(values):
        raise SpecError(f"{place}: {key}.levels has {min(odd):g}, which is not on its scale")
    return tuple(Level(_shown(value), float(value), meant.get(value, "")) for value in values)


def _shown(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text(place: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{place}: {key} must be a string, got {value!r}")
    return " ".join(value.split())


def _check_keys(place: str, prefix: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            listed = ", ".join(known)
            raise SpecError(f"{place}: unknown key {prefix}{key}; wanted {listed}{did_you_mean(key, known)}")
