"""MetricInstruct, the training data of TIGERScore, and its alpaca form, as a JSON list or one object per line.

    [{"id", "task", "instruction", "input_context", "hypo_output", "errors": text, object or list}]
    [{"instruction": the first line of TIGERScore's prompt, "input": the rest of it, "output": the analysis}]

What the analyses say is read by `metrist.data.error_analysis.examples`, for training as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.io.convert.alpaca_eval import ItemNames
from metrist.io.convert.json_input import ConvertOptions, Row, drop_empty, get_optional_text, read_entries
from metrist.io.row_model import RowError
from metrist.io.rows import UNNAMED

#: The fields of MetricInstruct that have another name in metrist.
ALIASES = {"input_context": "source", "hypo_output": "output"}
#: The first line of TIGERScore's prompt.
_OPENING = "You are evaluating errors in a model-generated output for a given instruction."


def is_entry(value: Any) -> bool:
    return is_alpaca(value) or (isinstance(value, dict) and "hypo_output" in value and "errors" in value)


def is_alpaca(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("instruction"), str):
        return False
    return {"input", "output"} <= value.keys() and value["instruction"].strip() == _OPENING


def rows(paths: Iterable[Path], options: ConvertOptions) -> Iterator[Row]:
    """Yield a row per output, with its errors. Items have the `id` of the file, or a number by instruction and source;
    what occurs again gets a number behind its name."""
    if options.read_analysis is None:
        raise InputError("MetricInstruct's analyses are read by `read_analysis`: give a function", code="missing_value")
    names, seen = ItemNames(), Counter[tuple[str, str]]()
    for path in paths:
        for place, entry in read_entries(path):
            try:
                row = options.read_analysis(entry)
            except RowError as error:
                raise InputError(f"{place}: {error}", code="invalid_row") from None
            if "completion" not in row:
                raise InputError(f"{place}: expected 'hypo_output' and 'errors'", code="invalid_row")
            system = options.system or get_optional_text(place, row, "system") or UNNAMED
            if row.get("id") is None:
                item = names.name({"instruction": row.get("instruction"), "source": row.get("source")}, system)
            else:
                name = str(row["id"])
                seen[name, system] += 1
                item = name if seen[name, system] == 1 else f"{name}#{seen[name, system]}"
            tags = drop_empty({"task": options.task, "language": options.language})
            left = {name: value for name, value in row.items() if name not in ("id", "prompt", "completion", "system")}
            yield {"item": item, "system": system, **left, **tags}
