"""That the shipped preference model agrees with people as its card claims: the card's table is the one that
`metrist reproduce --table shipped-preference` writes, and its figures are computed again here without metrist.meta."""

from __future__ import annotations

import json
import lzma
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib import resources, util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrist.files import read_records
from metrist.metrics.preference import Preference
from metrist.metrics.shard import Shard

NAME = "preference-small"
JUDGED = ("summeval", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar")
OWN, OVERALL = "preference", "preference, overall"
Row = dict[str, str]
Values = dict[tuple[str, str], float]
Data = Callable[[str], Path]


@pytest.fixture(scope="module")
def card() -> str:
    if util.find_spec("metrist_models") is None:
        pytest.skip("metrist-models is not installed (pip install ./models)")
    path = Path(str(resources.files("metrist_models"))) / NAME / "card.md"
    if not path.is_file():
        pytest.skip(f"metrist-models has no {NAME}")
    return path.read_text(encoding="utf-8")


def claimed(card: str) -> list[Row]:
    """The rows of the card's table of agreement."""
    lines = card.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| data | aspect |"))
    names, *rows = [_cells(line) for line in _while_table(lines[start:])]
    return [dict(zip(names, row, strict=True)) for row in rows if not set(row[0]) <= set(":- ")]


def _while_table(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield line


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(cell: str) -> float:
    """The value of a cell such as `0.312 [0.280, 0.344]`."""
    return float(cell.split(" ")[0].replace(",", ""))


def test_the_cards_table_has_every_judged_set_with_intervals(card: str) -> None:
    rows = claimed(card)
    assert {row["data"].split(":")[0] for row in rows} == set(JUDGED)
    for row in rows:
        assert row["aspect"] == "mean of all" or re.fullmatch(r"-?\d\.\d{3} \[-?\d\.\d{3}, -?\d\.\d{3}\]", row[OWN])


@pytest.mark.torture
@pytest.mark.parametrize("name", JUDGED)
def test_agreement_is_what_the_card_says(card: str, data: Data, name: str) -> None:
    path = data(name)
    with lzma.open(path, "rt", encoding="utf-8") as file:
        told = [json.loads(line) for line in file]
    rows = [row for row in claimed(card) if row["data"].split(":")[0] == name and row["aspect"] != "mean of all"]
    values = {c: scored(path, c) for c in {"overall", *(row["criterion"] for row in rows)}}
    for row in rows:
        for column, criterion in ((OWN, row["criterion"]), (OVERALL, "overall")):
            found = by_item(told, values[criterion], row["aspect"]) if "system" in told[0] else None
            found = by_pair(_part(told, row["data"]), values[criterion]) if found is None else found
            assert found == pytest.approx(number(row[column]), abs=1e-3), (row["data"], row["aspect"], column)


def scored(path: Path, criterion: str) -> Values:
    records = list(read_records(path))
    values = Preference(model=f"metrist:{NAME}", criterion=criterion).score(Shard(records)).values
    return {(record.item, record.system): float(value) for record, value in zip(records, values, strict=True)}


def by_item(told: list[dict[str, Any]], values: Values, aspect: str) -> float:
    """Summary-level Spearman by scipy: per item over the systems, averaged, constant ratings or scores left out."""
    from scipy.stats import spearmanr

    items: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in told:
        items[row["item"]].append((float(np.mean(row["ratings"][aspect])), values[row["item"], row["system"]]))
    pairs = [tuple(zip(*group, strict=True)) for group in items.values()]
    able = [(human, metric) for human, metric in pairs if len(set(human)) > 1 and len(set(metric)) > 1]
    return float(np.mean([spearmanr(human, metric).statistic for human, metric in able]))


def by_pair(told: list[dict[str, Any]], values: Values) -> float:
    """The share of pairs where the answer that most people chose has the higher score; their ties are left out, and so
    is a pair with an answer that has no score."""
    right = []
    for row in told:
        (winner, count), *others = Counter(row["ratings"]["preference"]).most_common()
        first, second = (values[row["item"], system] for system in row["systems"])
        if winner == 0 or (others and others[0][1] == count) or math.isnan(first + second):
            continue
        right.append(first > second if winner == 1 else second > first)
    return float(np.mean(right))


def _part(told: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    """The rows of a part such as `llmbar: Adversarial/Manual`, or of a family of parts."""
    part = label.partition(": ")[2]
    return [row for row in told if not part or f"{row['task']}/".startswith(f"instruction/{part}/")]
