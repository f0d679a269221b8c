"""Unknown keywords, and arguments of a wrong type, are errors in the name of the called function."""

from __future__ import annotations

import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import metrist
from metrist.errors import MetristError

ROWS = [{"item": "1", "system": "a", "output": "o"}]


@pytest.mark.parametrize("function", [metrist.score, metrist.prefer, metrist.explain])
def test_an_unknown_keyword_is_an_error_that_suggests_the_nearest(function: Any) -> None:
    for wrong, nearest in (("max_costs", "max_cost"), ("field", "fields")):
        with pytest.raises(TypeError, match=rf"{function.__name__}\(\) has no parameter '{wrong}'.*'{nearest}'"):
            function(ROWS, "length", **{wrong: 1})


WRONG: dict[str, list[Any]] = {
    "device": [5, "", []],
    "batch_tokens": ["x", 0, 1.5, True],
    "cache": [5, ""],
    "max_cost": ["x", -1, math.nan],
    "concurrency": ["x", 0, 1.5],
    "rpm": ["x", 0],
    "tpm": ["x", -1],
    "executor": [5, "", []],
    "out": [5, "", [], b"x"],
    "shard_size": ["x", 0, 1.5],
    "progress": [5, "x"],
    "tokens": ["x", 5],
    "texts": ["x", 5],
    "fresh": ["x", 5],
    "runtime": [5, "x"],
    "item_key": [5, "", [5], [""], "a+"],
    "fields": [5, "x", ["a"], {"output": 5}, {5: "x"}],
    "outputs": [5, {"a": 5}, [5], ""],
    "skip_bad": ["x", 5],
    "system": [5, ""],
    "delimiter": [5, ""],
    "encoding": [5, ""],
    "sheet": [5, ""],
    "announce": [5],
    "predictions": [5, [5], "x"],
    "references": [5],
    "records": [5, b"x", [5]],
    "metrics": [5, [5], None, {"a": 5}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_argument_of_score_is_an_error_with_a_code(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"records": [{"output": "x", "references": ["x"]}], "metrics": ["chrf"], name: value}
    if name == "predictions":
        del arguments["records"]
    with pytest.raises(MetristError) as caught:
        metrist.score(**arguments)
    assert caught.value.code != MetristError.code


def test_numbers_of_numpy_and_abstract_types_are_arguments(tmp_path: Path) -> None:
    records = [{"doc": n, "output": "x", "references": ["x"]} for n in range(3)]
    reading = {"item_key": ["doc"], "fields": MappingProxyType({"output": "output"}), "outputs": None}
    results = metrist.score(records, "chrf", shard_size=np.int64(2), max_cost=1, out=tmp_path / "run", **reading)
    assert list(results.items) == ["0", "1", "2"]
