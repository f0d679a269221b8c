"""AlpacaEval's lists: outputs of one or more systems, and judgments of pairs of outputs.

    outputs    [{"instruction", "output", "generator", "input", "dataset", …}]
    judgments  [{"instruction", "output_1", "output_2", "generator_1", "generator_2", "annotator", "preference", …}]

Items have no names there; an item is identified by its instruction. Items are numbered in the order of their
instructions over all files together, so that lists of several systems match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.io.convert.json_input import (
    ConvertOptions,
    Row,
    drop_empty,
    get_optional_text,
    get_text,
    parse_number,
    read_entries,
    reject,
)

_OUTPUT_FIELDS = frozenset({"instruction", "input", "output", "generator"})
# The other fields of a judgment describe the judge's run (price, time, raw answer) and would make rows of the same
# output differ.
_JUDGMENT_EXTRA = ("dataset", "datasplit")


def is_entry(value: Any) -> bool:
    return isinstance(value, dict) and "instruction" in value and bool(value.keys() & {"output", "output_1"})


def rows(paths: Iterable[Path], options: ConvertOptions) -> Iterator[Row]:
    """Yield one row per output, and one row of two outputs per judgment."""
    items = ItemNames()
    for path in paths:
        for place, entry in read_entries(path):
            convert = _judgment_row if "output_1" in entry or "output_2" in entry else _output_row
            yield convert(place, entry, items, options)


class ItemNames:
    """Number instructions in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._answers: Counter[tuple[int, str]] = Counter()

    def name(self, context: Mapping[str, str | None], answered_by: str) -> str:
        """Return the item's name. A list that answers an instruction twice has two items with equal texts."""
        # Digests instead of texts: the lists of hundreds of systems may be read at once.
        key = sha256(repr((context["instruction"], context["source"])).encode("utf-8", "surrogatepass")).digest()
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._answers[number, answered_by] += 1
        count = self._answers[number, answered_by]
        return str(number) if count == 1 else f"{number}#{count}"


def _output_row(place: str, entry: Mapping[str, Any], items: ItemNames, options: ConvertOptions) -> Row:
    context = _context_fields(place, entry, options)
    if entry.get("generator") is not None:
        system = get_text(place, entry, "generator")
    elif options.system is not None:
        system = options.system
    else:
        raise InputError(f"{place}: no 'generator', which names the output's system; set `system`")
    extra = {field: value for field, value in entry.items() if field not in _OUTPUT_FIELDS}
    fields = {"item": items.name(context, system), "system": system, **context}
    return {**extra, **drop_empty(fields), "output": get_text(place, entry, "output")}


def _judgment_row(place: str, entry: Mapping[str, Any], items: ItemNames, options: ConvertOptions) -> Row:
    context = _context_fields(place, entry, options)
    systems = [get_text(place, entry, f"generator_{side}") for side in (1, 2)]
    judge = str(entry["annotator"]) if entry.get("annotator") is not None else None
    fields = {
        "item": items.name(context, repr((systems, judge))),
        "systems": systems,
        "outputs": [get_text(place, entry, f"output_{side}") for side in (1, 2)],
        **context,
        **_preference_fields(place, entry, judge),
        **{field: entry.get(field) for field in _JUDGMENT_EXTRA},
    }
    return drop_empty(fields)


def _context_fields(place: str, entry: Mapping[str, Any], options: ConvertOptions) -> dict[str, str | None]:
    return {
        "task": options.task or "instruction",
        "language": options.language,
        "instruction": get_text(place, entry, "instruction"),
        "source": get_optional_text(place, entry, "input") or None,
    }


def _preference_fields(place: str, entry: Mapping[str, Any], judge: str | None) -> Row:
    """1 and 2 name the better output, 0 and 1.5 are ties. Values in between express a judge's certainty: the nearer
    output is the choice, and the value is kept as the judge's score."""
    value = parse_number(place, "preference", entry.get("preference"))
    if value is None:
        return {}
    if value != 0 and not 1 <= value <= 2:
        reject(place, "preference", value, "0 or 1.5 for a tie, or a number from 1 (first) to 2 (second)")
    choice = 0 if value in (0, 1.5) else round(value)
    return {
        "ratings": {"preference": [choice]},
        "raters": [judge] if judge else None,
        "scores": {judge or "preference": value} if value not in (0, 1, 1.5, 2) else None,
    }
