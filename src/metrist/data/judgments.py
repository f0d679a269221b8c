"""All that people said of the outputs in some files: ratings, choices and preferences by aspect."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metrist.data.choice_rows import CHOSEN, with_choices
from metrist.errors import InputError, did_you_mean
from metrist.io.fields import check_fields
from metrist.io.reader import Reader
from metrist.io.row_model import Entry
from metrist.ratings import Preference
from metrist.records import Record

#: (item, system)
Key = tuple[str, str]
#: One rater's value; the rater is None where unknown.
Said = tuple[str | None, float]

_SIGNS = {"first": 1.0, "second": -1.0, "tie": 0.0}


@dataclass(slots=True)
class Judgments:
    """Outputs with what people said of them. A preference stands under its two systems in the order of their names and
    is 1 for the first of these, −1 for the second, 0 for a tie. `skipped` counts rows that could not be read."""

    records: dict[Key, Record] = field(default_factory=dict)
    ratings: dict[str, dict[Key, list[Said]]] = field(default_factory=dict)
    preferences: dict[str, dict[tuple[str, str, str], list[Said]]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    skipped: int = 0

    @property
    def aspects(self) -> tuple[str, ...]:
        """All aspects that somebody judged, ratings first."""
        return tuple(dict.fromkeys([*self.ratings, *self.preferences]))

    def check_aspect(self, aspect: str) -> None:
        """Refuse an aspect that nobody judged."""
        if aspect not in self.aspects:
            known = ", ".join(map(repr, self.aspects))
            raise InputError(
                f"nobody judged the aspect {aspect!r}; judged are {known}{did_you_mean(aspect, self.aspects)}"
            )

    def add(self, entry: Entry) -> None:
        """Take in what one row says."""
        self.records.update({(record.item, record.system): record for record in entry.new})
        for rating in entry.ratings:
            by_key = self.ratings.setdefault(rating.aspect, {})
            by_key.setdefault((rating.item, rating.system), []).append((rating.rater, rating.value))
        for preference in entry.preferences:
            self._prefer(preference)

    def _prefer(self, said: Preference) -> None:
        turned = said.first > said.second
        first, second = sorted((said.first, said.second))
        sign = -_SIGNS[said.choice] if turned else _SIGNS[said.choice]
        by_pair = self.preferences.setdefault(said.aspect, {})
        by_pair.setdefault((said.item, first, second), []).append((said.rater, sign))


def read_judgments(
    paths: Sequence[str | os.PathLike[str]],
    *,
    item_key: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    system: str | None = None,
) -> Judgments:
    """What the rows of these files say; texts and judgments may stand in different files. The options are those of
    `metrist.read_records`."""
    mapping = dict(fields or {})
    check_fields(mapping)
    reader = Reader(
        tuple(map(with_choices, paths)), item_key=tuple(item_key), fields=mapping, skip_bad=skip_bad, system=system
    )
    found = Judgments()
    for entry in reader.entries():
        found.add(entry)
    found.remarks, found.skipped = tuple(reader.remarks), len(reader.skipped)
    _check(found, ", ".join(reader.names))
    return found


def _check(found: Judgments, names: str) -> None:
    skipped = f" ({found.skipped:,} bad rows skipped)" if found.skipped > 1 else " (1 bad row skipped)"
    names += skipped if found.skipped else ""
    if not found.records:
        raise InputError(f"{names}: no row has an output: pairs are made of texts; name the file that holds them too")
    if not found.aspects:
        raise InputError(
            f"{names}: nobody judged anything; wanted 'ratings' ({{aspect: [values]}}), preferences (rows with "
            f"'systems', 'outputs' and 'ratings') or choices (rows with 'outputs' and {CHOSEN!r})"
        )
