"""Fit how the numbers of translation_quality are combined to one value, and write that into the model's config.json.

    python translation_fit.py FIRST FINAL ROWS.jsonl.xz [--most 600]

FIRST is the model that did not see the hard sets of ROWS: the weights are fitted on them. FINAL, which ships, gets the
weights; each is divided by the ratio of its feature's spread in the two models, and the constant puts the median at .5.

The weights of a mode minimise, over pairs of outputs of one source, the logistic loss of the difference, less some
correlation with the ratings over sources; both averaged over data sets. A weight has the sign that its feature must
have. Matches with the source do not gain what their passes cost (LOG-translation.md) and are left out. The threshold of
the tags is a setting: .3 had the best F1.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sets import Row, read_arguments, read_lines

from metrist.metrics.base import Shard
from metrist.metrics.trained.translation_quality import MODES, REFERENCE_MATCHES, TranslationQuality
from metrist.records import Record

Floats = NDArray[np.float64]
FEATURES = ("quality", "ranking", "marked", "chrf", *REFERENCE_MATCHES)
_SIGNS = np.array([1, 1, -1, 1, 1, 1], float)
#: The features of a mode: without a reference there is nothing to match.
_COUNT = {"source": 3, "both": 6, "reference": 6}
#: Names of languages in the data sets that are not codes of two letters.
_CODES = {
    "assamese": "as", "guj": "gu", "hin": "hi", "kannada": "kn", "maithili": "mai", "mal": "ml", "mar": "mr",
    "punjabi": "pa", "tam": "ta",
}  # fmt: skip
#: Weights of large weights, and of the correlation over all outputs beside the order within sources.
_RIDGE, _REGRESSION = 0.02, 0.5


class RatedSet(NamedTuple):
    """The features and ratings (NaN: none) of a set's outputs, and pairs of numbers (better, worse)."""

    features: Floats
    values: Floats
    pairs: NDArray[np.int64]


def read_sets(model: Path, rows: Sequence[Row], mode: str) -> dict[str, RatedSet]:
    """Let a model read the outputs of all rows that have what a mode needs; made faults and people's own translations
    are left out."""
    work: dict[str, list[tuple[Record, float]]] = defaultdict(list)
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, row in enumerate(rows):
        if mode != "source" and not row["references"]:
            continue
        own = work[row["set"]]
        begin, outputs = len(own), [output for output in row["outputs"] if output.get("parent") is None]
        for place, output in enumerate(outputs):
            references = tuple(text for text in row["references"] if text != output["text"])[: mode != "source"]
            source = None if mode == "reference" else row["source"]
            record = Record(
                item=str(number), system=str(place), output=output["text"], source=source, references=references
            )
            own.append((record, np.nan if output.get("value") is None else output["value"]))
        pairs[row["set"]] += [(begin + better, begin + worse) for better, worse in row["pairs"]]
        values = [value for _, value in own[begin:]]
        pairs[row["set"]] += [
            (begin + i, begin + j) for i, high in enumerate(values) for j, low in enumerate(values) if high > low
        ]
    metric = TranslationQuality(model=str(model))
    sets = {}
    for name, own in work.items():
        scores = metric.score(Shard([record for record, _ in own]))
        columns = [np.nan_to_num(np.asarray(scores.parts.get(part, np.zeros(len(own))), float)) for part in FEATURES]
        table = np.column_stack(columns)[:, : _COUNT[mode]]
        values = np.array([value for _, value in own])
        sets[name] = RatedSet(table, values, np.array(pairs[name], np.int64).reshape(-1, 2))
    return sets


def fit(sets: dict[str, RatedSet], count: int) -> Floats:
    spread = measure_spread(sets)
    ordered = [
        (own.features[own.pairs[:, 0]] - own.features[own.pairs[:, 1]]) / spread
        for own in sets.values()
        if len(own.pairs)
    ]
    rated = [
        (own.features / spread, own.values)
        for own in sets.values()
        if not np.isnan(own.values).any() and own.values.std()
    ]

    def loss(roots: Floats) -> float:
        weights = _SIGNS[:count] * roots**2
        total = _RIDGE * float((weights**2).sum())
        for leads in ordered:
            total += float(np.logaddexp(0, -leads @ weights).mean()) / len(ordered)
        for table, values in rated:
            predicted = table @ weights
            if predicted.std() > 0:
                total -= _REGRESSION * float(np.corrcoef(predicted, values)[0, 1]) / len(rated)
        return total

    roots = minimize(loss, np.full(count, 0.5), method="L-BFGS-B").x
    weights: Floats = _SIGNS[:count] * roots**2 / spread
    return weights


def measure_spread(sets: dict[str, RatedSet]) -> Floats:
    spread: Floats = np.maximum(np.mean([own.features.std(0) for own in sets.values()], 0), 1e-4)
    return spread


def scale_weights(weights: Floats, first: dict[str, RatedSet], final: dict[str, RatedSet]) -> dict[str, float]:
    """Return the weights for the numbers of the final model, such that the middle 90 % of outputs get values from .1 to
    .9 or so."""
    moved = weights * measure_spread(first) / measure_spread(final)
    totals = np.concatenate([own.features @ moved for own in final.values()])
    low, middle, high = np.percentile(totals, [5, 50, 95])
    scale = 2 * np.log(9) / max(float(high - low), 1e-6)
    named = dict.fromkeys(FEATURES, 0.0) | {
        name: round(float(w * scale), 4) for name, w in zip(FEATURES, moved, strict=False)
    }
    return {"constant": round(-float(middle) * scale, 4), **named}


def write_combination(folder: Path, weights: dict[str, Any], **facts: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["translation"] = {**config["translation"], "weights": weights, **facts}
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    arguments = read_arguments(__doc__, "first", "final", "rows", most=600)
    chosen: dict[str, list[Row]] = defaultdict(list)
    languages = set()
    for row in read_lines(arguments.rows):
        if not row["set"].startswith("parallel"):
            languages |= {_CODES.get(code, code) for code in row["set"].split(".")[1].split("-")}
        if row["split"] == "hard" and len(chosen[row["set"]]) < arguments.most:
            chosen[row["set"]].append(row)
    rows = [row for own in chosen.values() for row in own]
    # Features without a weight are not computed: each gets one to be read.
    every = {mode: {"constant": 0.0, **dict.fromkeys(FEATURES, 1.0)} for mode in MODES}
    weights = {}
    for mode, count in _COUNT.items():
        sets = []
        for folder in (arguments.first, arguments.final):
            write_combination(folder, every)
            sets.append(read_sets(folder, rows, mode))
        weights[mode] = scale_weights(fit(sets[0], count), *sets)
        print(mode, json.dumps(weights[mode]), flush=True)
    write_combination(arguments.final, weights, languages=sorted(languages), threshold=0.3)


if __name__ == "__main__":
    main()
