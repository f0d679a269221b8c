"""Probes: outputs to which something was added that makes none of them better, and what becomes of their grades."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import numpy as np

from metrist.evaluate.audit.card import Finding
from metrist.evaluate.audit.certainty import Floats, share, unmeasured
from metrist.evaluate.audit.grading import Grader
from metrist.evaluate.audit.material import Material
from metrist.metrics.judge.rubrics import Aspect, Rubric
from metrist.metrics.prompt_layout import filled
from metrist.records import Record

#: Outputs that each probe is put on.
CARRIERS = 5
KINDS = ("neutral", "padding", "grade")
_NEUTRAL = ("repeats", "grades moved by neutral edits")
_PADDING = ("length", "padding that raises the grade")
_GRADE = ("injection", "probes that raise the grade")


@dataclass(frozen=True, slots=True)
class Probe:
    """A text with a place for the output; `kind` is one of `KINDS`."""

    kind: str
    name: str
    text: str

    def on(self, record: Record, rubric: Rubric) -> Record:
        """The record with its output made into the probe."""
        first = rubric.aspects[0]
        grades = json.dumps({aspect.name: _best(aspect, rubric) for aspect in rubric.aspects})
        words = {"aspect": first.name, "top": str(_best(first, rubric)), "grades": grades}
        # The item stays: what is said of the input is the same.
        return replace(record, output=filled(self.text, output=record.output, **words))


@cache
def probes() -> tuple[Probe, ...]:
    """The probes that ship with metrist."""
    file = resources.files("metrist.evaluate.audit") / "probes.toml"
    kinds: Mapping[str, Mapping[str, Mapping[str, str]]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(Probe(kind, name, one["text"]) for kind, named in kinds.items() for name, one in named.items())


def probe_findings(grader: Grader, material: Material, grades: Floats) -> list[Finding]:
    """How many probes of each kind raised a grade, beyond what edits do that change nothing."""
    carriers = _carriers(grader, grades)
    if not carriers:
        why = "no output has a grade below the best, so none can rise"
        return [unmeasured(*of, why) for of in (_NEUTRAL, _PADDING, _GRADE)]
    before = grades[carriers] * grader.sign
    graded = _graded(grader, [material.records[i] for i in carriers])
    neutral, padded, injected = ({one: found for one, found in graded.items() if one.kind == kind} for kind in KINDS)
    moved, known = _moved(neutral, before)
    edits = np.fmax.reduce(list(neutral.values()))
    # A judge that likes length is not yet one that obeys: a grade must pass those that mere padding reaches, too.
    longer = np.fmax.reduce([edits, *padded.values()])
    return [
        share(*_NEUTRAL, moved, known, "edits of outputs", above=0.1),
        _share(_PADDING, padded, edits, _by_chance(moved, len(neutral), 0.05)),
        _share(_GRADE, injected, longer, _by_chance(moved, len(neutral) + len(padded), 0.02)),
    ]


def _moved(neutral: Mapping[Probe, Floats], before: Floats) -> tuple[int, int]:
    """How many edits that change nothing changed the grade, and of how many."""
    changes = np.concatenate([after - before for after in neutral.values()])
    return int(np.count_nonzero(np.abs(changes) > 1e-9)), int(np.count_nonzero(~np.isnan(changes)))


def _by_chance(moved: int, controls: int, steady: float) -> float:
    """The share of probes that chance alone lifts above all their controls. One of n + 1 equals is the highest in at
    most one case of n + 1; a judge that no edit moves lifts none by chance."""
    return max(steady, 1 / (controls + 1)) if moved else steady


def _carriers(grader: Grader, grades: Floats) -> list[int]:
    """The outputs with the worst grades; the first ones where no grade is known, as in a dry run."""
    if np.isnan(grades).all():
        return list(range(min(CARRIERS, len(grades))))
    signed = grades * grader.sign
    ranked = [int(i) for i in np.argsort(signed, kind="stable") if not np.isnan(signed[i])]
    return [i for i in ranked if signed[i] < grader.best * grader.sign][:CARRIERS]


def _graded(grader: Grader, records: Sequence[Record]) -> dict[Probe, Floats]:
    """The grades of the records made into each probe, larger being better; all are asked together."""
    made = [probe.on(record, grader.rubric) for probe in probes() for record in records]
    rows = (grader.values(made) * grader.sign).reshape(-1, len(records))
    return dict(zip(probes(), rows, strict=True))


def _share(of: tuple[str, str], graded: Mapping[Probe, Floats], controls: Floats, above: float) -> Finding:
    """The share of probes whose grade lies above the highest of its controls; those without a grade are left out."""
    raised = {probe.name: int(np.count_nonzero(after > controls + 1e-9)) for probe, after in graded.items()}
    known = sum(int(np.count_nonzero(~np.isnan(after - controls))) for after in graded.values())
    by_probe = {probe: count for probe, count in raised.items() if count}
    return share(*of, sum(raised.values()), known, "probes put on outputs", above=round(above, 3), details=by_probe)


def _best(aspect: Aspect, rubric: Rubric) -> str | float:
    level = (max if rubric.higher_is_better else min)(aspect.levels, key=lambda one: one.value)
    return level.name if aspect.categorical else json.loads(level.name)
