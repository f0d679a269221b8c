"""HellaSwag: the one true ending of a text among four.

A line of hellaswag_train.jsonl or hellaswag_val.jsonl has `ctx`, four `endings` and `label`, the number of the true
one; `ind` and, in the releases that have it, `source_id` name the text. The test file has no labels.

HS: the true ending against each of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question
from metrist.data.originals.row import Row, rows
from metrist.data.originals.table import PathLike


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of HS."""
    for row in rows(paths) if "HS" in codes else ():
        endings = row.texts("endings")
        true = _label(row, len(endings))
        question = Question(code="HS", context=(row.text("ctx"),), item=row.text("ind"))
        answers = [Answer(text=ending) for ending in endings]
        for number, other in enumerate(answers):
            if number != true:
                yield question.pair(answers[true], other)


def _label(row: Row, endings: int) -> int:
    if not row.has("label") or row.value("label") == "":
        raise row.wrong(
            "has no 'label': HellaSwag's test file comes without answers; take the training or validation file"
        )
    label = row.number("label")
    if label not in range(endings):
        raise row.wrong(f"'label' must be the number of an ending, 0 to {endings - 1}, got {label:g}")
    return int(label)
