"""`metrist explain-metric`: what a metric measures and how to read its numbers."""

from __future__ import annotations

from typing import Annotated

import typer


def explain_metric(
    spec: Annotated[str, typer.Argument(metavar="NAME", help="A metric, such as rougeL or 'chrf(word_order=2)'.")],
) -> None:
    """Say what a metric measures, its range, how to read it, when not to trust it, and whom to cite."""
    from metrist.cli.output import say
    from metrist.metrics.cards import describe
    from metrist.metrics.registry import example

    say(describe(example(spec)).rstrip())
