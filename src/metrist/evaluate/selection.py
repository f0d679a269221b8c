"""Which runs, systems and metrics a study is about; a name that is not there is answered with the nearest one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from metrist.errors import RunError, SpecError, did_you_mean
from metrist.metrics.base import Metric
from metrist.report.cells import visible
from metrist.spec import parse

if TYPE_CHECKING:
    from metrist.run.results import Results
import math
from typing import Literal

from metrist.report.cells import decimals_for


def opened(run: Results | str | os.PathLike[str], named: Iterable[str] = ()) -> Results:
    """The results of a run, read where only their place is given. A metric from outside the catalog is imported when it
    is among those that the user named, never because the run holds it."""
    if isinstance(run, str | os.PathLike):
        from metrist.run import load

        return load(run, metrics=[text for text in named if _is_import_path(text)])
    return run


def chosen_systems(present: Iterable[str], wanted: Sequence[str] | None) -> list[str]:
    """The systems asked for, in the order of the asking; all of them, in the run's order, where none is named."""
    known = list(dict.fromkeys(present))
    if wanted is None:
        return known
    for name in wanted:
        if name not in known:
            raise RunError(f"no system {name!r} in the run, which has {_listed(known)}{did_you_mean(name, known)}")
    return list(dict.fromkeys(wanted))


def chosen_metrics(present: Sequence[Metric], wanted: Sequence[str] | None) -> list[Metric]:
    """The metrics asked for by text or by name, or all of them."""
    if wanted is None:
        return list(present)
    return list({metric.text: metric for metric in (find_metric(present, text) for text in wanted)}.values())


def find_metric(present: Sequence[Metric], wanted: str) -> Metric:
    """The run's metric with this text. A name alone also finds the only metric of that name, whatever its settings."""
    known = {metric.text: metric for metric in present}
    if found := known.get(wanted) or known.get(_usual_text(wanted)):
        return found
    named = [metric for metric in present if metric.name == wanted]
    if len(named) == 1:
        return named[0]
    if named:
        raise RunError(f"{wanted!r} could be any of {_listed(m.text for m in named)}: say which")
    hint = did_you_mean(wanted, dict.fromkeys([*known, *(metric.name for metric in present)]))
    raise RunError(f"no metric {wanted!r} in the run, which has {_listed(known)}{hint}")


def check_signatures(metric: Metric, runs: Mapping[str, Results]) -> None:
    """Refuse to set numbers side by side that were not computed alike."""
    (first, signature), *others = ((name, signature_of(run, metric)) for name, run in runs.items())
    for name, other in others:
        if other != signature:
            raise RunError(
                f"{metric.text} was not computed alike: {first} has the signature {visible(signature)!r}, "
                f"{name} has {visible(other)!r}; score one of them again with the other's settings and version"
            )


def signature_of(run: Results, metric: Metric) -> str:
    """How the run says that the metric's numbers were computed."""
    return run.signatures[metric.text]


def _usual_text(wanted: str) -> str:
    """The text as metrist prints it: settings in order, defaults left out. A text that names nothing stays as it is."""
    from metrist.metrics.registry import build

    try:
        return build(wanted, allow_import=False, disable_risky_llms=True).text
    except SpecError:
        return wanted


def _is_import_path(text: str) -> bool:
    try:
        return "." in parse(text).name
    except SpecError:
        return False


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
    return ", ".join(map(repr, shown[:10])) + more


# The scale that a metric counts on: how its scores are written, and whether a threshold was meant for it.


def scale_note(metric: Metric, kind: Literal["minimum", "maximum"], threshold: float, typical: float) -> str | None:
    """A warning where a threshold lies off the metric's scale, or looks like a share where the metric counts in
    percent; None where nothing is odd. `typical` is a score that the run itself holds."""
    low, high = metric.bounds
    if not low <= threshold <= high:
        fate = "never" if (threshold > high) is (kind == "minimum") else "always"
        meant = f"; did you mean {threshold / 100:g}?" if 1 < threshold <= 100 and high == 1 else ""
        return f"{metric.text} ranges from {low:g} to {high:g}: a {kind} of {threshold:g} is {fate} met{meant}"
    if 0 < threshold <= 1 and _counts_in_percent(metric) and typical > 1:
        return (
            f"{metric.text} counts in percent (here {typical:.1f}): a {kind} of {threshold:g} means {threshold:g} %; "
            f"did you mean {100 * threshold:g}?"
        )
    return None


def decimals_of(metric: Metric, *scores: float) -> int:
    """How many decimals the metric's scores deserve: by its bounds, or by these scores where it has none."""
    bounds = metric.bounds if all(map(math.isfinite, metric.bounds)) else scores
    return decimals_for(min(bounds), max(bounds))


def _counts_in_percent(metric: Metric) -> bool:
    """Bounded by 100; or an error rate, which starts at 0 and, as outputs can be wrong without end, has no bound."""
    low, high = metric.bounds
    return low == 0 and (high == 100 or (math.isinf(high) and metric.higher_is_better is False))
