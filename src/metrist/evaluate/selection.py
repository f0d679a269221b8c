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
        return build(wanted, allow_import=False, asks=False).text
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
