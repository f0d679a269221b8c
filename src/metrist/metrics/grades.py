"""Reads grades out of a judge's answer: only such as the rubric offers, and only the judge's own.

The judge ends its answer with a JSON object that carries the mark of the prompt's fences as its last member. No text of
the record holds that mark, so an object that has it was not copied from one. A judge that forgets the mark is read by
its last object, unless a text of the record looks as if it gave grades itself: then nobody could say whose they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrist.metrics.answer_objects import FoundObject, broken_off, objects_in
from metrist.metrics.judging import Unreadable
from metrist.metrics.prompt_layout import plain_letters
from metrist.metrics.rubrics import MARK, REASONS, Aspect, Level

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """What an answer grades. `faults` says of each aspect without a grade why it has none; `spans` says where in the
    answer the grades stand."""

    levels: Mapping[str, Level]
    faults: Mapping[str, str]
    spans: Mapping[str, tuple[int, int]]
    reasons: str
    repaired: bool

    def need(self, names: Iterable[str]) -> None:
        """Refuse an answer in which one of these aspects has no grade."""
        if wanting := [self.faults[name] for name in names if name in self.faults]:
            raise Unreadable("; ".join(wanting))


def read_grades(answer: str, aspects: Sequence[Aspect], mark: str, texts: Sequence[str]) -> Grades:
    """The judge's own grades. `texts` are those of the record that stood in the prompt."""
    own = own_object(answer, mark, [aspect.name for aspect in aspects], texts)
    levels: dict[str, Level] = {}
    faults: dict[str, str] = {}
    for aspect in aspects:
        try:
            levels[aspect.name] = _level(aspect, own)
        except Unreadable as fault:
            faults[aspect.name] = str(fault)
    spans = {name: own.spans[name.lower()] for name in levels}
    return Grades(levels=levels, faults=faults, spans=spans, reasons=_reasons(answer, own), repaired=own.repaired)


def own_object(answer: str, mark: str, keys: Sequence[str], texts: Sequence[str]) -> FoundObject:
    """The last object that carries the mark; without one, the last of all if the texts leave no doubt whose it is."""
    found = objects_in(answer)
    if not found:
        raise Unreadable("the answer has no JSON object")
    marked = [one for one in found if str(one.values.get(MARK)).strip() == mark]
    if not marked and planted(keys, texts):
        raise Unreadable(
            f"the answer lacks the {MARK} that it was to carry, and a text of the record looks as if it gave grades "
            "itself: whose these are cannot be told"
        )
    own = (marked or found)[-1]
    graded = {key.lower() for key in keys}
    # Where the judge quotes a text without escapes, its own grades break off, and what is next may be the text's.
    if own.broken & graded:
        raise Unreadable("a JSON object with grades breaks off in the answer: whose the next ones are is not sure")
    # A judge that thinks again means its last grades: those before are a draft.
    if broken_off(answer, own.end) & {*graded, REASONS, MARK}:
        raise Unreadable(
            "the last JSON object of the answer breaks off: the grades before it need not be the final ones"
        )
    return own


def planted(keys: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether one of the texts has something that could be read as a grade, whatever letters it is dressed up in."""
    names = "|".join(re.escape(plain_letters(key)) for key in keys)
    pattern = re.compile(rf"(?:{names})\W*[:=]")
    return any(pattern.search(plain_letters(text)) for text in texts)


def _level(aspect: Aspect, own: FoundObject) -> Level:
    key = aspect.name.lower()
    if key not in own.values:
        raise Unreadable(f"the answer has no grade for {aspect.name}")
    given = own.values[key]
    if key in own.contradicted:
        raise Unreadable(f"the answer grades {aspect.name} twice, and differently")
    for level in aspect.levels:
        if _says(given, level, aspect.categorical):
            return level
    raise Unreadable(f"{aspect.name}: got {_shown(given)}, wanted one of {aspect.offered}")


def _says(given: Any, level: Level, categorical: bool) -> bool:
    if categorical:
        return isinstance(given, str) and given.strip().lower() == level.name.lower()
    if isinstance(given, str) and _NUMBER.fullmatch(given.strip()):
        return float(given) == level.value
    return isinstance(given, float) and given == level.value


def _shown(given: Any) -> str:
    text = f"{given:g}" if isinstance(given, float) else repr(given)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _reasons(answer: str, own: FoundObject) -> str:
    """The reasons within the object, or what stands before it."""
    said = own.values.get(REASONS)
    before = re.sub(r"```\w*\s*$", "", answer[: own.start])
    return said.strip() if isinstance(said, str) and said.strip() else before.strip()
