"""Errors in an answer's words become errors with places in the text that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metrist.metrics.error_answers import WrittenError, severity_of
from metrist.metrics.placing import Place, place_all, places
from metrist.ratings import Error
from metrist.records import Record

UNNAMED = "unspecified"


def grounded(errors: Sequence[WrittenError], record: Record) -> tuple[Error, ...]:
    """The errors with their places in the output, or in the source where only that has the words: what was left out of
    an output can be quoted from nowhere else. An error that cannot be placed keeps the words that were given for it."""
    found = place_all([error.location for error in errors], record.output)
    return tuple(
        _placed(error, place, record) if place else _unplaced(error, record)
        for error, place in zip(errors, found, strict=True)
    )


def is_grounded(error: Error) -> bool:
    """Whether the words that an error is about were found."""
    return error.start is not None


def _placed(error: WrittenError, place: Place, record: Record) -> Error:
    return replace(_error(error), text=record.output[place.start : place.end], start=place.start, end=place.end)


def _unplaced(error: WrittenError, record: Record) -> Error:
    source = record.source or ""
    found = [place for place in places(error.location, source) if place.how != "fuzzy"] if source else []
    if not found:
        return _error(error)
    start, end = found[0].start, found[0].end
    return replace(_error(error), text=source[start:end], start=start, end=end, side="source")


def _error(error: WrittenError) -> Error:
    return Error(
        aspect=error.aspect.strip() or UNNAMED,
        severity=severity_of(error.severity),
        penalty=error.penalty,
        explanation=error.explanation.strip(),
        revision=error.revision.strip(),
        text=error.location.strip(),
    )
