"""AlpacaEval's lists: outputs of one or more systems, and judgments of pairs of outputs.

    outputs    [{"instruction", "output", "generator", "input", "dataset", …}]
    judgments  [{"instruction", "output_1", "output_2", "generator_1", "generator_2", "annotator", "preference", …}]

An item has no name there: it is its instruction. Items are numbered as their instructions come, over all files
together, so that lists of several systems meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.io.convert.foreign_json import Options, Row, filled, number, optional_text, read_entries, text, wrong

_OUTPUT_FIELDS = frozenset({"instruction", "input", "output", "generator"})
# What a judgment keeps beside itself: all of its other fields tell of the judge's run (price, time, raw answer) and
# would set rows of one output apart that are otherwise the same.
_JUDGMENT_EXTRA = ("dataset", "datasplit")


def looks_alike(entry: Any) -> bool:
    """Whether an entry of a list is built as AlpacaEval's are."""
    return isinstance(entry, dict) and "instruction" in entry and bool(entry.keys() & {"output", "output_1"})


def rows(paths: Iterable[Path], options: Options) -> Iterator[Row]:
    """One row per output, one row of two outputs per judgment."""
    items = _Items()
    for path in paths:
        for place, entry in read_entries(path):
            row = _judgment if "output_1" in entry or "output_2" in entry else _output
            yield row(place, entry, items, options)


class _Items:
    """Numbers instructions in the order in which they first come."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._seen: Counter[tuple[int, str]] = Counter()

    def name(self, asked: Mapping[str, str | None], answered: str) -> str:
        """The item's name. A list that answers the same instruction twice holds two items with equal texts."""
        # Digests, not texts: the lists of hundreds of systems are read in one go.
        key = sha256(repr((asked["instruction"], asked["source"])).encode("utf-8", "surrogatepass")).digest()
        found = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._seen[found, answered] += 1
        again = self._seen[found, answered]
        return str(found) if again == 1 else f"{found}#{again}"


def _instruction_fields(place: str, entry: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        "instruction": text(place, entry, "instruction"),
        "source": optional_text(place, entry, "input") or None,
    }


def _output(place: str, entry: Mapping[str, Any], items: _Items, options: Options) -> Row:
    asked, system = _instruction_fields(place, entry), _system(place, entry, "generator", options)
    extra = {field: value for field, value in entry.items() if field not in _OUTPUT_FIELDS}
    fields = {"item": items.name(asked, system), "system": system, **_shared_fields(options), **asked}
    return {**extra, **filled(fields), "output": text(place, entry, "output")}


def _judgment(place: str, entry: Mapping[str, Any], items: _Items, options: Options) -> Row:
    asked = _instruction_fields(place, entry)
    systems = [text(place, entry, f"generator_{side}") for side in (1, 2)]
    judge = str(entry["annotator"]) if entry.get("annotator") is not None else None
    fields = {
        "item": items.name(asked, repr((systems, judge))),
        "systems": systems,
        "outputs": [text(place, entry, f"output_{side}") for side in (1, 2)],
        **_shared_fields(options),
        **asked,
        **_preference(place, entry, judge),
        **{field: entry.get(field) for field in _JUDGMENT_EXTRA},
    }
    return filled(fields)


def _preference(place: str, entry: Mapping[str, Any], judge: str | None) -> Row:
    """1 and 2 name the better output, 0 and 1.5 are ties. In between lies a judge's certainty: the nearer output is the
    choice and the number itself is kept as the judge's score."""
    value = number(place, "preference", entry.get("preference"))
    if value is None:
        return {}
    if value != 0 and not 1 <= value <= 2:
        wrong(place, "preference", value, "0 or 1.5 for a tie, or a number from 1 (first) to 2 (second)")
    choice = 0 if value in (0, 1.5) else round(value)
    return {
        "ratings": {"preference": [choice]},
        "raters": [judge] if judge else None,
        "scores": {judge or "preference": value} if value not in (0, 1, 1.5, 2) else None,
    }


def _system(place: str, entry: Mapping[str, Any], field: str, options: Options) -> str:
    if entry.get(field) is None and options.system is not None:
        return options.system
    if entry.get(field) is None:
        raise InputError(f"{place}: no {field!r} says which system wrote the output; name it with system= or --system")
    return text(place, entry, field)


def _shared_fields(options: Options) -> Row:
    return {"task": options.task or "instruction", "language": options.language}
