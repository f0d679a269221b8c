"""Fit how the numbers of a training of translation_quality are combined to one value.

    python translation_fit.py GROUPS.json.xz OUT/a.npz OUT/final.npz COMBINATION.json

The first .npz of translation_train.py has the numbers of outputs of the hard sets, which that training did not see; the
weights are fitted on them. The second, of the training that ships, has those of sources that were held out: its numbers
may have other scales, so each weight is divided by the ratio of the spreads, and the constant puts the median at .5.

The weights of a mode minimise, over pairs of outputs of one source, the logistic loss of the difference (outputs with
equal ratings count half for either order), less some correlation with the ratings over sources; both averaged over
data sets. Sets with few pairs count for their ratings alone. A weight has the sign that its feature must have. Whether
matches with reference or source are worth their passes is decided on data sets that did not fit; the weights that ship
are fitted on all. The threshold of the tags is the one with the best F1, read from the .json beside the second file.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize  # type: ignore[import-untyped]
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from translation_train import ALIGNED_LAYER, RATED, compute_acc_eq

Floats = NDArray[np.float64]
#: Columns of the numbers: see translation_train.measure.
QUALITY, RANKING, PENALTY, MATCHES, VALUE, OVERLAP, OWNER, NUMBER, PLACE = 0, 1, 2, 3, 7, 8, 9, 10, 11
FEATURES = (
    *("quality", "ranking", "marked", "chrf"),
    *("reference_precision", "reference_recall", "source_precision", "source_recall"),
)
SIGNS = (1, 1, -1, 1, 1, 1, 1, 1)
#: What each mode may use.
USED = {
    "source": ("quality", "ranking", "marked", "source_precision", "source_recall"),
    "both": FEATURES,
    "reference": ("quality", "ranking", "marked", "chrf", "reference_precision", "reference_recall"),
}
#: Sets with fewer outputs tell nothing.
LEAST_OUTPUTS = 200
#: Fewer pairs than this do not tell an order.
LEAST_PAIRS = 200
#: What matches must gain in agreement to be worth their passes: those with the source take half as long again where
#: there is no reference, and miss the speed that the metric must have; those with a reference a third.
LEAST_GAIN = {"source_": 0.01, "reference_": 0.002}
RIDGE = 0.02
#: The weight of the correlation over all outputs, beside the order within sources.
REGRESSION = 0.5


class Set(NamedTuple):
    """The outputs of one data set in one mode."""

    name: str
    features: Floats
    values: Floats
    groups: list[NDArray[np.int64]]
    #: Rows (better, worse) and their shares; a tie is there in both orders.
    pairs: NDArray[np.int64]
    shares: Floats

    @property
    def is_ordered(self) -> bool:
        """Whether there are enough pairs of one source."""
        return len(self.pairs) >= LEAST_PAIRS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", type=Path)
    parser.add_argument("hard", type=Path, help="numbers of a training that did not see the hard sets")
    parser.add_argument("held_out", type=Path, help="numbers of the training that ships")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    with lzma.open(arguments.groups, "rt", encoding="utf-8") as file:
        groups = json.load(file)["groups"]
    hard, shipped = (dict(np.load(path)) for path in (arguments.hard, arguments.held_out))
    weights, report = {}, {}
    for mode in USED:
        sets = read_sets(hard, groups, mode)
        used = choose_features(sets, USED[mode])
        own = fit(sets, used)
        report[mode] = compare(sets, own, used)
        weights[mode] = rescale(own, sets, read_sets(shipped, groups, mode))
        print(mode, json.dumps(weights[mode]))
        for name, row in report[mode].items():
            print(f"  {name}: {json.dumps(row)}")
    languages = sorted({code for group in groups for code in list_languages(group)})
    combination = {
        "weights": weights,
        "threshold": choose_threshold(arguments.held_out.with_suffix(".json")),
        "languages": languages,
        "layer": ALIGNED_LAYER,
    }
    arguments.out.write_text(json.dumps({"combination": combination, "report": report}, indent=1))


def choose_threshold(path: Path) -> float:
    """Return the threshold of the tags with the best mean F1 over data sets, without a reference."""
    figures = [
        row["F1"]
        for key, row in json.loads(path.read_text()).items()
        if key.endswith(" source") and "joined" not in key and "F1" in row
    ]
    return max((float(name) for name in figures[0]), key=lambda at: sum(row[str(at)] for row in figures))


#: Names of languages in the data sets that are not codes of two letters.
_CODES = {
    "assamese": "as", "guj": "gu", "hin": "hi", "kannada": "kn", "maithili": "mai", "mal": "ml", "mar": "mr",
    "punjabi": "pa", "tam": "ta",
}  # fmt: skip


def list_languages(group: Mapping[str, Any]) -> list[str]:
    """The languages of a group with human judgments."""
    if group["name"].startswith("parallel"):
        return []
    return [_CODES.get(code, code) for code in group["language"].split("-")]


# ---- Sets


def read_sets(numbers: Mapping[str, NDArray[Any]], groups: Sequence[Mapping[str, Any]], mode: str) -> list[Set]:
    sets = []
    for key, rows in sorted(numbers.items()):
        name, _, kind = key.partition(" ")
        if kind.removeprefix("joined ") != mode or len(rows) < 2:
            continue
        features = np.column_stack(
            (
                rows[:, [QUALITY, RANKING]],
                np.log1p(rows[:, PENALTY]),
                np.nan_to_num(rows[:, OVERLAP]),
                rows[:, MATCHES : MATCHES + 4],
            )
        ).astype(np.float64)
        if len(rows) < LEAST_OUTPUTS:
            continue
        by_group: dict[int, list[int]] = defaultdict(list)
        for row, owner in enumerate(rows[:, OWNER].astype(int).tolist()):
            by_group[owner].append(row)
        pairs: list[tuple[int, int]] = []
        shares: list[float] = []
        for own in by_group.values():
            found = list_pairs(own, rows, groups)
            pairs += [pair for pair, _ in found]
            total = sum(share for _, share in found)
            shares += [share / total for _, share in found]
        own_set = Set(
            f"{name}{' joined' if kind.startswith('joined') else ''}",
            features,
            rows[:, VALUE].astype(np.float64),
            [np.array(own) for own in by_group.values() if len(own) > 1],
            np.array(pairs, np.int64).reshape(-1, 2),
            np.array(shares) / max(sum(shares), 1e-9),
        )
        if own_set.is_ordered or not np.isnan(own_set.values).any():
            sets.append(own_set)
    return sets


def list_pairs(
    own: Sequence[int], rows: NDArray[Any], groups: Sequence[Mapping[str, Any]]
) -> list[tuple[tuple[int, int], float]]:
    """Return the pairs of a group's outputs; one with equal ratings is there in both orders, for half."""
    ranked = groups[int(rows[own[0], NUMBER])]["pairs"]
    if ranked:
        place = {int(rows[row, PLACE]): row for row in own}
        return [((place[a], place[b]), 1.0) for a, b in ranked if {a, b} <= place.keys()]
    pairs: list[tuple[tuple[int, int], float]] = []
    for i in own:
        for j in own:
            lead = rows[i, VALUE] - rows[j, VALUE]
            if i != j and lead >= 0:
                pairs.append(((i, j), 1.0 if lead > 0 else 0.5))
    return pairs


# ---- Weights


def fit(sets: Sequence[Set], used: Sequence[str]) -> dict[str, float]:
    """Return a weight for each feature."""
    places = [FEATURES.index(name) for name in used]
    signs = np.array([SIGNS[place] for place in places], float)
    spread = np.mean([spread_of(one)[places] for one in sets], 0)
    ordered = [one for one in sets if one.is_ordered]
    rated = [one for one in sets if not np.isnan(one.values).any()]
    leads = [(one.features[one.pairs[:, 0]] - one.features[one.pairs[:, 1]])[:, places] / spread for one in ordered]
    tables = [one.features[:, places] / spread for one in rated]
    targets = [(one.values - one.values.mean()) / one.values.std() for one in rated]

    def loss(roots: Floats) -> float:
        weights = signs * roots**2
        total = RIDGE * float((weights**2).sum())
        for one, table in zip(ordered, leads, strict=True):
            total += float((np.logaddexp(0, -table @ weights) * one.shares).sum()) / len(ordered)
        for table, target in zip(tables, targets, strict=True):
            predicted = table @ weights
            if predicted.std() > 0:
                total -= REGRESSION * float(np.corrcoef(predicted, target)[0, 1]) / len(rated)
        return total

    result = minimize(loss, np.full(len(places), 0.5), method="L-BFGS-B")
    weights = dict.fromkeys(FEATURES, 0.0)
    for place, number in zip(places, signs * result.x**2 / spread, strict=True):
        weights[FEATURES[place]] = float(number)
    return weights


def spread_of(one: Set) -> Floats:
    """The standard deviation of each feature, never 0."""
    spread: Floats = np.maximum(one.features.std(0), 1e-4)
    return spread


def choose_features(sets: Sequence[Set], allowed: Sequence[str]) -> list[str]:
    """Leave out matches whose passes gain nothing on the sets that did not fit."""
    used = list(allowed)
    for prefix, gain in LEAST_GAIN.items():
        fewer = [name for name in used if not name.startswith(prefix)]
        if len(fewer) < len(used) and cross_check(sets, used) < cross_check(sets, fewer) + gain:
            used = fewer
    return used


def cross_check(sets: Sequence[Set], used: Sequence[str]) -> float:
    """Return the mean agreement on each half of the families by weights that were fitted on the other."""
    families = sorted({one.name.partition(" ")[0] for one in sets})
    figures = []
    for half in (0, 1):
        chosen = {family for place, family in enumerate(families) if place % 2 == half}
        ours = [one for one in sets if one.name.partition(" ")[0] in chosen]
        theirs = [one for one in sets if one.name.partition(" ")[0] not in chosen]
        if ours and theirs:
            weights = fit(ours, used)
            figures += [agree(one, combine(one, weights)) for one in theirs]
    return float(np.mean(figures)) if figures else 0.0


def combine(one: Set, weights: Mapping[str, float]) -> Floats:
    total: Floats = one.features @ np.array([weights[name] for name in FEATURES])
    return total


def agree(one: Set, scores: Floats) -> float:
    """acc_eq and the share of pairs in order, their mean; Spearman where most sources have one output."""
    if not one.is_ordered:
        return float(spearmanr(scores, one.values)[0])
    ahead = float(((scores[one.pairs[:, 0]] > scores[one.pairs[:, 1]]) * one.shares).sum())
    if np.isnan(one.values).any():
        return ahead
    return (ahead + compute_acc_eq([(scores[rows], one.values[rows]) for rows in one.groups])) / 2


def compare(sets: Sequence[Set], weights: Mapping[str, float], used: Sequence[str]) -> dict[str, Any]:
    """Return, per set, the agreement of the combination and of each feature alone."""
    report: dict[str, Any] = {"cross-checked": round(cross_check(sets, used), 4)}
    for one in sets:
        own = {"all": agree(one, combine(one, weights))}
        own |= {name: agree(one, SIGNS[at] * one.features[:, at]) for at, name in enumerate(FEATURES) if name in used}
        if one.is_ordered and not np.isnan(one.values).any():
            own["acc_eq"] = compute_acc_eq([(combine(one, weights)[rows], one.values[rows]) for rows in one.groups])
        if one.name.startswith(RATED):
            own["spearman"] = float(spearmanr(combine(one, weights), one.values)[0])
        report[one.name] = {name: round(number, 4) for name, number in own.items()}
    return report


def rescale(weights: Mapping[str, float], hard: Sequence[Set], shipped: Sequence[Set]) -> dict[str, float]:
    """Return the weights for the numbers of the training that ships, such that values spread over 0 to 1."""
    names = {one.name for one in hard} & {one.name for one in shipped}
    before, after = (
        np.mean([spread_of(one) for one in sets if one.name in names or not names], 0) for sets in (hard, shipped)
    )
    ours = {name: weights[name] * float(before[at] / after[at]) for at, name in enumerate(FEATURES)}
    totals = np.concatenate([combine(one, ours) for one in shipped])
    low, middle, high = np.percentile(totals, [5, 50, 95])
    # The middle 90 % of outputs get values from .1 to .9 or so.
    scale = 2 * np.log(9) / max(float(high - low), 1e-6)
    rounded = {name: round(number * scale, 4) for name, number in ours.items()}
    return {"constant": round(-float(middle) * scale, 4), **rounded}


if __name__ == "__main__":
    main()
