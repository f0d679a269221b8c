"""Fit `answer_preference` on SET... (turing-advice, hhh-alignment, haluquestqa-pairs), print what fits on the others
reach on each, and write its table. A set counts as at most 250 pairs; no training of the models had its prompts."""

import sys
from collections import Counter
from collections.abc import Iterable

import numpy as np
from good_texts import split_heap
from sets import read_rows

import metrist
from metrist.metrics.trained.answer_preference import find_table, load_weights
from metrist.studies.reproduce.agreement import fit_logistic


def read_choices(name: str) -> Iterable[tuple[str | None, str | None, str, str]]:
    """Yield source, instruction, the answer that most people chose, and the other one."""
    if name == "turing-advice":
        pairs = [pair for side in ("dev", "test") for pair in split_heap().side(side) if pair.criterion == "AH"]
        yield from (("\n\n".join(t for _, t in p.good[:-1]), None, p.good[-1][1], p.bad[-1][1]) for p in pairs)
        return
    for row in read_rows(name):
        (choice, votes), *others = Counter(row["ratings"]["preference"]).most_common()
        clear = choice in (1, 2) and not any(count == votes for _, count in others)
        if clear:
            yield row.get("source"), row.get("instruction"), *row["outputs"][:: 3 - 2 * choice]


def read_values(name: str, size: str) -> np.ndarray:
    """Return preference and log length (pairs, 2, 2) of the chosen answer and of the other."""
    fields = [(s, i, answer) for s, i, *answers in read_choices(name) for answer in answers]
    rows = [{"item": str(n), "source": s, "instruction": i, "output": o} for n, (s, i, o) in enumerate(fields)]
    (scores,) = metrist.score(rows, f"preference(model='{size}')", system="answers").scores.values()
    pairs = np.stack([scores.values, np.log1p([len(answer) for *_, answer in fields])], axis=1).reshape(-1, 2, 2)
    return pairs[np.isfinite(pairs).all(axis=(1, 2))]


def fit(sets: Iterable[np.ndarray]) -> dict[str, float]:
    leads = np.concatenate([pairs[:, 0] - pairs[:, 1] for pairs in sets])
    counts = np.concatenate([np.full(len(pairs), min(1.0, 250 / len(pairs))) for pairs in sets])
    preference, length = fit_logistic(leads, counts)
    owed = preference * (counts @ leads.prod(axis=1)) / (counts @ leads[:, 1] ** 2)
    return {"preference": preference, "length": length + owed, "owed": owed}


def main() -> None:
    lines = ["# Written by models/recipes/answer_weights.py; edit the recipe, not this file."]
    for size in load_weights():
        sets = {name: read_values(name, size) for name in sys.argv[1:]}
        for name, pairs in sets.items():
            fitted = fit([own for other, own in sets.items() if other != name])
            preferred, longer = (pairs[:, 0] - pairs[:, 1]).T
            free = fitted["preference"] * preferred - fitted["owed"] * longer
            leads = {"preference": preferred, "longer": longer, "free": free, "value": free + fitted["length"] * longer}
            print(size, name, len(pairs), {key: f"{(lead > 0).mean():.3f}" for key, lead in leads.items()})
        typical = np.mean([pairs.mean(axis=(0, 1)) for pairs in sets.values()], axis=0)
        numbers = {**fit([*sets.values()]), "typical_preference": typical[0], "typical_length": typical[1]}
        lines += ["", f"[{size}]", *(f"{key} = {number:.4f}" for key, number in numbers.items())]
    find_table().write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
