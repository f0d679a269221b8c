"""What others said of the outputs in a row: ratings, preferences, errors and stored scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from metrist.io.fields import JUDGMENTS, as_mapping, as_name, as_number, as_optional_text
from metrist.io.row_model import RowError, StoredChoice, StoredError, StoredScore, format_value
from metrist.ratings import Choice, Error, Preference, Rating, Side
from metrist.records import Record

Key = tuple[str, str]
UNSPECIFIED = "unspecified"
_CHOICES: dict[int | str, Choice] = {
    **dict.fromkeys((1, "1", "first"), "first"),
    **dict.fromkeys((2, "2", "second"), "second"),
    **dict.fromkeys((0, "0", "tie"), "tie"),
}


def take_judgments(row: dict[str, Any]) -> dict[str, Any]:
    """Take all that judges an output out of a row: `ratings`, `scores` and so on, and the columns `rating:…` and
    `score:…`, which are put beside them."""
    judged = {name: row.pop(name) for name in JUDGMENTS if name in row}
    # Most rows have no such column, and one look at all names together is the cheapest way to tell.
    if ":" in "".join(row):
        _gather_flat(row, judged)
    return judged


def _gather_flat(row: dict[str, Any], judged: dict[str, Any]) -> None:
    for name in [name for name in row if name.startswith(("rating:", "score:"))]:
        kind, _, judge = name.partition(":")
        value = row.pop(name)
        if value is not None:
            field = f"{kind}s"
            judged[field] = {**as_mapping(field, judged.get(field) or {}), judge: value}


def with_stored_choice(judged: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The judgments of a row of two, with the choice that a comparator made, as `metrist prefer` writes it. A pair that
    it could not judge has a null choice: there is nothing to put in."""
    if "comparator" not in row or "choice" not in row:
        return judged
    stored = as_mapping("scores", judged.get("scores") or {})
    return {**judged, "scores": {**stored, as_name("comparator", row["comparator"]): row["choice"]}}


def says_something(judged: dict[str, Any]) -> bool:
    """Whether there is a rating, an error or a score: enough to make a row without text worth reading."""
    return any(judged.get(name) for name in ("ratings", "errors", "scores"))


def ratings(judged: dict[str, Any], key: Key) -> tuple[Rating, ...]:
    item, system = key
    return tuple(
        Rating(item=item, system=system, aspect=aspect, rater=rater, value=as_number(f"the rating {aspect!r}", value))
        for aspect, rater, value in _by_rater(judged)
    )


def preferences(judged: dict[str, Any], first: Key, second: Key) -> tuple[Preference, ...]:
    item, one, other = first[0], first[1], second[1]
    return tuple(
        Preference(item=item, first=one, second=other, aspect=aspect, rater=rater, choice=_preferred(aspect, value))
        for aspect, rater, value in _by_rater(judged)
    )


def _preferred(aspect: str, value: Any) -> Choice:
    choice = _choice(value)
    if choice is None:
        raise RowError(f"the rating {aspect!r} must be 1 (first), 2 (second) or 0 (tie), got {format_value(value)}")
    return choice


def _choice(value: Any) -> Choice | None:
    if isinstance(value, str):
        return _CHOICES.get(value.strip().lower())
    return _CHOICES.get(value) if type(value) in (int, float) else None


def _by_rater(judged: dict[str, Any]) -> Iterator[tuple[str, str | None, Any]]:
    """(aspect, rater, value) of all values that are there. Several values have raters only where these are named."""
    named = _raters(judged)
    for aspect, values in as_mapping("ratings", judged.get("ratings") or {}).items():
        listed = list(values) if isinstance(values, (list, tuple)) else [values]
        if values is None or listed == []:
            continue
        names = named if named is not None else [None] * len(listed)
        if len(names) != len(listed):
            raise RowError(
                f"the rating {aspect!r} must have a value for each of {len(names)} raters, got {len(listed)}"
            )
        for rater, value in zip(names, listed, strict=True):
            if value is not None:
                yield aspect, rater, value


def _raters(judged: dict[str, Any]) -> list[str | None] | None:
    if judged.get("raters") is None:
        return None if judged.get("rater") is None else [as_name("rater", judged["rater"])]
    if not isinstance(judged["raters"], (list, tuple)):
        raise RowError(f"'raters' must be a list of names, got {format_value(judged['raters'])}")
    return [None if rater is None else as_name("raters", rater) for rater in judged["raters"]]


def raters(judged: dict[str, Any]) -> tuple[str, ...]:
    return tuple(rater for rater in _raters(judged) or () if rater is not None)


def errors(judged: dict[str, Any], key: Key, record: Record | None) -> tuple[StoredError, ...]:
    found = judged.get("errors") or ()
    if not isinstance(found, (list, tuple)):
        raise RowError(f"'errors' must be a list of objects, got {format_value(found)}")
    return tuple(
        StoredError(item=key[0], system=key[1], error=_error(number, as_mapping(f"errors {number}", error), record))
        for number, error in enumerate(found, 1)
    )


def _error(number: int, error: dict[str, Any], record: Record | None) -> Error:
    def text(field: str) -> str | None:
        return as_optional_text(f"{field} of error {number}", error.get(field))

    side = _side(number, error)
    penalty = error.get("penalty")
    start, end = _offsets(number, error, _judged_text(record, side))
    return Error(
        aspect=text("category") or text("aspect") or UNSPECIFIED,
        severity=text("severity"),
        penalty=None if penalty is None else as_number(f"'penalty' of error {number}", penalty),
        explanation=text("explanation") or "",
        revision=text("revision") or text("correction") or "",
        text=text("text") or "",
        start=start,
        end=end,
        side=side,
        rater=None if error.get("rater") is None else as_name(f"rater of error {number}", error["rater"]),
    )


def _side(number: int, error: dict[str, Any]) -> Side:
    side = error.get("side") or "output"
    if side not in ("output", "source"):
        raise RowError(f"'side' of error {number} must be 'output' or 'source', got {format_value(side)}")
    return cast(Side, side)


def _judged_text(record: Record | None, side: Side) -> str | None:
    if record is None:
        return None
    return record.output if side == "output" else record.source


def _offsets(number: int, error: dict[str, Any], text: str | None) -> tuple[int | None, int | None]:
    start, end = error.get("start"), error.get("end")
    if start is None and end is None:
        return None, None
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise RowError(
            f"'start' and 'end' of error {number} must be offsets or null, got {format_value(start)} and "
            f"{format_value(end)}"
        )
    if text is not None and end > len(text):
        raise RowError(f"'end' of error {number} must lie within a text of {len(text)} characters, got {end}")
    return start, end


def scores(judged: dict[str, Any], key: Key) -> tuple[StoredScore, ...]:
    stored = as_mapping("scores", judged.get("scores") or {})
    return tuple(
        StoredScore(item=key[0], system=key[1], metric=metric, value=as_number(f"the score {metric!r}", value))
        for metric, value in stored.items()
        if value is not None
    )


def choices(judged: dict[str, Any], first: Key, second: Key) -> tuple[StoredChoice, ...]:
    stored = as_mapping("scores", judged.get("scores") or {})
    item, one, other = first[0], first[1], second[1]
    return tuple(
        StoredChoice(item=item, first=one, second=other, metric=metric, choice=_choice(value), answer=_answer(value))
        for metric, value in stored.items()
        if value is not None
    )


def _answer(value: Any) -> str:
    return value if isinstance(value, str) else format_value(value)
