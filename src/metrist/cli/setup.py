"""`metrist setup`: make the separate Python environment of a metric from another package."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.settings import setting

if TYPE_CHECKING:
    from metrist.metrics.external.environments import Report

#: Without a terminal, a line of a long step is printed this often.
_SECONDS = 10.0


def setup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The metric: comet, bleurt or unieval.")],
    python: str | None = setting(None, "The Python to use.", metavar="PATH", shown="this one, if it fits"),
    dry_run: bool = setting(False, "Print the commands, and stop."),
) -> None:
    from metrist.cli.output import print_note, print_text
    from metrist.metrics.external.environments import find_environment, folder_size, make_environment, plan_setup

    plan = plan_setup(name, python)
    if dry_run:
        print_text(f"# about {plan.recipe.megabytes / 1000:.1f} GB in {plan.folder}, more with CUDA")
        for _, command in plan.steps:
            print_text(shlex.join(command))
        return
    if find_environment(name) is not None:
        print_text(f"{plan.folder} is complete; delete that folder to make it again")
    else:
        print_note(f"making {plan.folder} with {plan.python}: about {plan.recipe.megabytes / 1000:.1f} GB")
        with _reporting() as report:
            make_environment(plan, report)
        print_text(f"made {plan.folder} ({folder_size(plan.folder) / 1e9:.1f} GB)")
    if plan.recipe.next_step:
        print_text(f"next: {plan.recipe.next_step}")
    print_text(f"use it: metrist score … -m {name}")


@contextmanager
def _reporting() -> Iterator[Report]:
    """Yield a function that shows the latest line of a step: in place on a terminal, elsewhere now and then."""
    from metrist.cli.output import print_note

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status("") as status:
            yield lambda line: status.update(escape(line[:100]))
        return
    last = [0.0]

    def report(line: str) -> None:
        if line.startswith("step ") or monotonic() - last[0] >= _SECONDS:
            last[0] = monotonic()
            print_note(line[:200])

    yield report
