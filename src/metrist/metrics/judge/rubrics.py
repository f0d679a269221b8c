"""Rubrics: the questions a judge answers about an output, and the grades it may give.

A rubric is a TOML file; shipped ones are in the folder `rubrics` of the metrics package. The representations of
`Aspect` and `Level` are part of a rubric's hash, so their names and fields must not change.

    about = "Answers to questions"          # what the rubric is for
    reasons = "first"                       # or "none": grades alone
    higher_is_better = true
    needs = ["source"]                      # a record without it is not judged: "source", "references", "instruction"

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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from metrist.documents import parse_toml, read_bytes
from metrist.errors import SpecError, did_you_mean
from metrist.records import Need

Reasons = Literal["first", "none"]
ALL_ASPECTS = "all"
REASONS_KEY, MARK_KEY = "reasons", "id"
#: Names that answers and scores use for something else.
_RESERVED = (ALL_ASPECTS, REASONS_KEY, MARK_KEY, "value", "outside", "default_instruction")
_NAME = re.compile(r"[^\W\d_][\w-]*")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_MAX_LEVELS = 1001


@dataclass(frozen=True, slots=True)
class Level:
    """A grade as the judge writes it, its value, and its meaning ('' on long scales)."""

    name: str
    value: float
    meaning: str = ""


@dataclass(frozen=True)  # Without slots, which leave no room for the cached properties: each record asks for them.
class Aspect:
    """One graded property, on a scale of levels."""

    name: str
    question: str
    levels: tuple[Level, ...]
    categorical: bool = False

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        values = [level.value for level in self.levels]
        return min(values), max(values)

    @cached_property
    def choices(self) -> str:
        """The grades as text, for prompts and messages."""
        names = [level.name for level in self.levels]
        steps = {round(b.value - a.value, 9) for a, b in zip(self.levels, self.levels[1:], strict=False)}
        if not self.categorical and len(names) > 10 and len(steps) == 1:
            return f"{names[0]} to {names[-1]} in steps of {steps.pop():g}"
        return ", ".join(names)


@dataclass(frozen=True, slots=True)
class Rubric:
    """Aspects graded in one answer."""

    name: str
    about: str
    aspects: tuple[Aspect, ...]
    reasons: Reasons = "first"
    higher_is_better: bool = True
    needs: tuple[Need, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of what the rubric says to a judge, independent of the file's path."""
        content = repr((self.about, self.aspects, self.reasons, self.higher_is_better))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def aspect(self, name: str) -> Aspect:
        """The aspect of that name."""
        for aspect in self.aspects:
            if aspect.name == name:
                return aspect
        known = [aspect.name for aspect in self.aspects]
        listed = ", ".join(map(repr, (ALL_ASPECTS, *known)))
        raise SpecError(
            f"the rubric {self.name!r} has no aspect {name!r}; it has {listed}{did_you_mean(name, known)}",
            code="unknown_name",
        )


@cache
def list_rubrics() -> tuple[str, ...]:
    """The names of the shipped rubrics."""
    folder = resources.files("metrist.metrics") / "rubrics"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def load_rubric(rubric: str) -> Rubric:
    """The shipped rubric of that name, or the one in the file at that path."""
    if rubric in list_rubrics():
        return _load_shipped(rubric)
    try:
        text = read_bytes(Path(rubric), largest=_LARGEST).decode("utf-8-sig")
    except OSError as error:
        known = list_rubrics()
        files: list[str] = []
        with suppress(OSError):
            files = [str(file) for file in Path(rubric).parent.glob("*.toml")]
        raise SpecError(
            f"rubric must be {', '.join(map(repr, known))} or a TOML file; {rubric!r} cannot be read "
            f"({error.strerror}){did_you_mean(rubric, [*known, *files])}",
            code="unknown_name",
        ) from None
    except UnicodeDecodeError:
        raise SpecError(f"{rubric}: a rubric must be a text file in UTF-8") from None
    except ValueError as error:
        raise SpecError(f"{rubric}: {error}") from None
    return parse_rubric(text, rubric)


#: Bytes of a rubric.
_LARGEST = 1 << 20


@cache
def _load_shipped(name: str) -> Rubric:
    file = resources.files("metrist.metrics") / "rubrics" / f"{name}.toml"
    return parse_rubric(file.read_text(encoding="utf-8"), name)


@lru_cache(maxsize=64)
def parse_rubric(text: str, place: str) -> Rubric:
    """Parse the TOML text of a rubric; `place` names it in messages."""
    table = parse_toml(text, place, SpecError)
    _check_keys(place, "", table, ("about", "reasons", "higher_is_better", "needs", "aspects"))
    reasons = table.get("reasons", "first")
    if reasons not in ("first", "none"):
        raise SpecError(f"{place}: reasons must be 'first' or 'none', got {reasons!r}")
    higher = table.get("higher_is_better", True)
    if not isinstance(higher, bool):
        raise SpecError(f"{place}: higher_is_better must be true or false, got {higher!r}")
    about = _text(place, "about", table.get("about", ""))
    needs = table.get("needs", [])
    if not isinstance(needs, list) or not all(need in get_args(Need) for need in needs):
        raise SpecError(f"{place}: needs must be a list of {', '.join(map(repr, get_args(Need)))}, got {needs!r}")
    aspects = table.get("aspects")
    if not isinstance(aspects, dict) or not aspects:
        raise SpecError(f"{place}: expected at least one table [aspects.NAME] with a question and levels")
    seen: set[str] = set()
    for name in aspects:
        if not _NAME.fullmatch(name):
            raise SpecError(
                f"{place}: an aspect's name must be a letter followed by letters, digits, _ and -, got {name!r}"
            )
        if name.lower() in _RESERVED or name.lower() in seen:
            problem = "is reserved" if name.lower() in _RESERVED else "occurs twice (case is ignored)"
            raise SpecError(f"{place}: the aspect name {name!r} {problem}; choose another")
        seen.add(name.lower())
    parsed = tuple(_parse_aspect(place, name, aspect) for name, aspect in aspects.items())
    return Rubric(place, about, parsed, reasons, higher, tuple(needs))


def _parse_aspect(place: str, name: str, table: Any) -> Aspect:
    key = f"aspects.{name}"
    if not isinstance(table, dict):
        raise SpecError(f"{place}: {key} must be a table with a question and levels, got {table!r}")
    _check_keys(place, f"{key}.", table, ("question", "levels", "scale"))
    question = _text(place, f"{key}.question", table.get("question", ""))
    if not question:
        raise SpecError(f"{place}: {key} needs a question", code="missing_value")
    meanings = table.get("levels", {})
    if not isinstance(meanings, dict):
        raise SpecError(f"{place}: {key}.levels must be a table of grades with their meanings, got {meanings!r}")
    categorical = False
    if "scale" in table:
        levels = _parse_scale(place, key, table["scale"], meanings)
    else:
        categorical = any(isinstance(entry, dict) and "value" in entry for entry in meanings.values())
        parse = _parse_category if categorical else _parse_grade
        levels = tuple(parse(place, f"{key}.levels", level, entry) for level, entry in meanings.items())
        if len({level.name.lower() for level in levels}) < len(levels):
            raise SpecError(f"{place}: {key}.levels names a level twice: {', '.join(meanings)}")
        if not categorical:
            levels = tuple(sorted(levels, key=lambda level: level.value))
    if len({level.value for level in levels}) < 2:
        raise SpecError(
            f"{place}: {key} needs at least two levels of different value, got {len(levels)}", code="too_little_data"
        )
    return Aspect(name, question, levels, categorical)


def _parse_grade(place: str, key: str, name: str, meaning: Any) -> Level:
    if isinstance(meaning, dict):
        # TOML parses 0.5 = "…" as a table 0 with a key 5.
        raise SpecError(f'{place}: {key}: write a decimal grade in quotes ("0.5" = "…"), a category with a value')
    if not _NUMBER.fullmatch(name):
        raise SpecError(
            f"{place}: {key}.{name} must be a number, or a category: {name} = {{ value = 1, meaning = '…' }}"
        )
    return Level(_format_number(float(name)), float(name), _text(place, f"{key}.{name}", meaning))


def _parse_category(place: str, key: str, name: str, entry: Any) -> Level:
    if not isinstance(entry, dict) or not _is_number(entry.get("value")):
        raise SpecError(
            f"{place}: {key}.{name} needs a value: {name} = {{ value = 1, meaning = '…' }}", code="missing_value"
        )
    _check_keys(place, f"{key}.{name}.", entry, ("value", "meaning"))
    if not name.strip() or _NUMBER.fullmatch(name.strip()):
        raise SpecError(f"{place}: {key}: a category needs a name in words, got {name!r}")
    return Level(name.strip(), float(entry["value"]), _text(place, f"{key}.{name}.meaning", entry.get("meaning", "")))


def _parse_scale(place: str, key: str, scale: Any, entries: Mapping[str, Any]) -> tuple[Level, ...]:
    requirement = f"{place}: {key}.scale must be {{ from = 1, to = 10, step = 1 }}"
    if not isinstance(scale, dict) or not {"from", "to"} <= scale.keys() <= {"from", "to", "step"}:
        raise SpecError(f"{requirement}, got {scale!r}")
    low, high, step = scale["from"], scale["to"], scale.get("step", 1)
    if not all(map(_is_number, (low, high, step))) or not low < high or step <= 0:
        raise SpecError(f"{requirement} with from < to and step > 0, got {scale!r}")
    count = round((high - low) / step)
    if not math.isclose(low + count * step, high) or count >= _MAX_LEVELS:
        raise SpecError(f"{requirement}: at most {_MAX_LEVELS} levels, the last being 'to'; got {scale!r}")
    values = [round(low + i * step, 9) for i in range(count + 1)]
    described = [_parse_grade(place, f"{key}.levels", name, meaning) for name, meaning in entries.items()]
    meanings = {level.value: level.meaning for level in described}
    if unknown := meanings.keys() - set(values):
        raise SpecError(f"{place}: {key}.levels has {min(unknown):g}, which is not on its scale")
    return tuple(Level(_format_number(value), float(value), meanings.get(value, "")) for value in values)


def _format_number(value: float) -> str:
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
            raise SpecError(
                f"{place}: unknown key {prefix}{key}; expected {listed}{did_you_mean(key, known)}", code="unknown_name"
            )
