"""Charts of scores, for notebooks: altair is imported only here, and only when a chart is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from metrist.errors import MissingExtra, escape_controls

_ARROWS = {True: " ↑", False: " ↓", None: ""}


def plot_scores(rows: Sequence[Mapping[str, Any]], better: Mapping[str, bool | None], intervals: str) -> Any:
    """A point with its interval for each system, in a panel for each metric with a scale of its own.

    `rows` have system, metric, value, low, high, n and coverage; `better` says of each metric whether higher is better,
    which an arrow shows. Systems without a score are left out.
    """
    try:
        import altair
    except ImportError:
        raise MissingExtra("plot()", "plots") from None
    alt: Any = altair  # Its types are those of dozens of unions.
    titles = {metric: f"{escape_controls(metric)}{_ARROWS[higher]}" for metric, higher in better.items()}
    data = [
        {**row, "system": escape_controls(row["system"]), "metric": titles[row["metric"]]}
        for row in rows
        if math.isfinite(row["value"])
    ]
    systems = list(dict.fromkeys(escape_controls(row["system"]) for row in rows))
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y("system:N", sort=systems, title=None),
        tooltip=[
            alt.Tooltip(f"{name}:{kind}", format=form)
            for name, kind, form in (
                ("system", "N", ""),
                ("value", "Q", ".4f"),
                ("low", "Q", ".4f"),
                ("high", "Q", ".4f"),
                ("n", "Q", ","),
                ("coverage", "Q", ".1%"),
            )
        ],
    )
    scale = alt.Scale(zero=False)
    points = base.mark_point(filled=True, size=60).encode(x=alt.X("value:Q", scale=scale, title=None))
    rules = base.mark_rule().encode(x=alt.X("low:Q", scale=scale, title=None), x2="high:Q")
    return (
        alt.layer(rules, points)
        .properties(width=240, height=alt.Step(24))
        .facet(facet=alt.Facet("metric:N", sort=list(titles.values()), title=None), columns=3)
        .resolve_scale(x="independent")
        .properties(title=f"System scores, {intervals}")
    )
