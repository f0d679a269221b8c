"""The settings of an annotation project. Importing them is cheap: the command line reads its options here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from metrist.settings import setting

#: Which outputs or pairs raters see.
Pick = Literal["random", "items", "system", "disagreement"]
#: The order in which they see them.
Order = Literal["random", "informative"]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPlan:
    """Whom a project asks about what: arguments of `set_up`."""

    aspects: Names = setting(
        (),
        "A criterion to rate or choose by, or an aspect of the rubric or of errors (of the first schema); repeatable.",
        "--aspect",
        metavar="A",
        shown="overall; all of a rubric",
    )
    points: int = setting(5, "Points of the Likert scale.", metavar="N", min=2)
    table: str | None = setting(
        None,
        "The aspects of errors to mark, as `metrist aspects` writes them.",
        "--error-table",
        metavar="FILE",
        shown="that of the task",
    )
    count: int | None = setting(None, "Outputs or pairs to annotate, about.", "-n", metavar="N", min=1, shown="all")
    pick: Pick = setting(
        "random",
        "Which: any; whole items; equally many of each system; whole items, those that metrics disagree about "
        "more often (needs a run).",
    )
    order: Order = setting(
        "random",
        "Which come next: any; or, once 100 are rated, those whose rating tells most (needs scores of metrics).",
        "--next",
    )
    run: str | None = setting(
        None,
        "A run folder: scores that narrow the intervals of mean ratings, for --pick disagreement, and the "
        "explanations that the questionnaire asks about.",
        metavar="RUN",
    )
    metrics: Names = setting((), "The metrics of the run to use; repeatable.", "-m", "--metric", metavar="SPEC")
    systems: Names = setting((), "Only outputs of these systems.", metavar="S", shown="all")
    overlap: int | None = setting(None, "Raters who see the same item.", metavar="K", min=1, shown="all of them")
    share: float = setting(1.0, "Share of the items that several raters see.", "--overlap-share", metavar="SHARE")
    attention: Names = setting(
        (),
        "Attention items: records whose ratings, preferences or errors are the right answers; repeatable.",
        metavar="FILE",
    )
    guidelines: str | None = setting(
        None, "A text file, in Markdown, that raters read first and can open at any time.", metavar="FILE"
    )
    show_references: bool = setting(False, "Show raters the references, too.")
    seed: int = setting(0, "Seed of the sample and of all orders.", min=0)
