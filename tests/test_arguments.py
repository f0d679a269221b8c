"""Arguments of a wrong type, or beyond limits, are errors of metrist's own in every public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import metrist
from error_codes import raises_code
from metrist.errors import MetristError
from metrist.evaluate.report import build_report
from metrist.run import Results
from metrist.settings import MAX_DRAWS, checks_types

#: Whatever the types say.
API: Any = metrist
ROWS = [{"item": str(n), "system": s, "output": f"a {n}", "references": ["a b"]} for n in range(4) for s in "ab"]


@pytest.fixture(scope="module")
def results() -> Results:
    return metrist.score(ROWS, ["rougeL"], progress=False)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda r: API.compare(r, seed=-1), "seed"),
        (lambda r: API.compare(r, seed="x"), "seed"),
        (lambda r: API.compare(r, systems=5), "systems"),
        (lambda r: API.compare(r, draws=1), "draws"),
        (lambda r: API.compare(r, draws=MAX_DRAWS + 1), "draws"),
        (lambda r: API.compare(r, alpha="x"), "alpha"),
        (lambda r: API.compare(r, baseline=5), "baseline"),
        (lambda _: API.compare(5), "runs"),
        (lambda r: API.check(r, minimum=[1]), "minimum"),
        (lambda r: API.check(r, against=5), "against"),
        (lambda r: API.worst(r, n="5"), "n"),
        (lambda _: API.worst(5), "run"),
        (lambda _: API.load(None), "path"),
        (lambda _: API.open_run(None), "path"),
        (lambda _: API.explain(ROWS, 5), "metric"),
        (lambda _: API.explain(ROWS, "rougeL", limit="x"), "limit"),
        (lambda _: API.prefer(ROWS, "rougeL", limit_per_item="x"), "limit_per_item"),
        (lambda _: API.meta_evaluate(ROWS, draws="x"), "draws"),
        (lambda _: API.complete(5, ["x"]), "LLM"),
        (lambda _: API.Runtime(device=5), "device"),
        (lambda _: API.Runtime(max_cost="x"), "max_cost"),
        (lambda r: r.table(draws=10**9), "draws"),
        (lambda r: r.system_scores(seed="x"), "seed"),
        (lambda r: r.write(5), "path"),
        (lambda r: r[5], "5"),
        (lambda r: build_report(r, draws="x"), "draws"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_of_a_wrong_type_is_named(results: Results, call: Callable[[Any], Any], name: str) -> None:
    with raises_code(MetristError, "invalid_value", name):
        call(results)


def test_a_call_that_a_function_cannot_take_is_pythons_to_refuse() -> None:
    @checks_types
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    with pytest.raises(TypeError, match="double"):
        double(4, 5)  # type: ignore[call-arg]
