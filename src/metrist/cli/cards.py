"""`metrist card` and `metrist new-metric`: cards that describe metrics, and packages that add metrics."""

from __future__ import annotations

import json
import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from metrist.cli.options import TABLE_FORMAT, Format
from metrist.cli.output import print_table, print_text
from metrist.errors import RunError, SpecError, escape_controls, format_count, format_path
from metrist.settings import setting


def check(
    target: Annotated[
        str, typer.Argument(metavar="FILE|PACKAGE", help="A card.toml, or an installed package that adds metrics.")
    ],
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.metrics.cards import check_cards
    from metrist.report.tables import Column, Table

    metrics, problems = check_cards(target)
    if form == "text":  # A table would cut long lines.
        lines = [f"{metric}: {escape_controls(problem)}" for metric, problem in problems]
        print_text("\n".join(lines) or f"{target}: {format_count(len(metrics), 'card')}, no problem")
    else:
        rows = [list(problem) for problem in problems]
        print_table(Table(columns=[Column("metric"), Column("problem")], rows=rows), form)
    if problems:
        raise typer.Exit(1)


def schema() -> None:
    from metrist.metrics.card_format import card_schema

    print_text(json.dumps(card_schema(), indent=2))


def new_metric(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the metric, such as long_words.")],
    out: Path | None = setting(None, "The folder to write.", "-o", "--out", metavar="DIR", shown="metrist-NAME"),
) -> None:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from metrist.metrics.base import TAKEN_NAMES
    from metrist.metrics.registry import entry_point

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise SpecError(f"{name!r} cannot name a metric: expected lower-case words joined by '_', such as long_words")
    if entry_point(name) or name in TAKEN_NAMES:
        raise SpecError(f"the name {name!r} is taken: choose another one", code="conflict")
    folder = out or Path("metrist-" + name.replace("_", "-"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists: give a new or an empty folder", code="cannot_write")
    environment = Environment(
        loader=PackageLoader("metrist.cli", "new_metric"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    words = {
        "name": name,
        "package": f"metrist_{name}",
        "distribution": "metrist-" + name.replace("_", "-"),
        "class_name": "".join(word.title() for word in name.split("_")),
    }
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        "metric.py": f"src/{words['package']}/__init__.py",
        "card.toml": f"src/{words['package']}/card.toml",
        "test.py": f"tests/test_{name}.py",
    }
    for template, place in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(f"{template}.jinja").render(words), encoding="utf-8")
    where = format_path(folder)
    print_text(f"{where}: a package with the metric {name}. Next: pip install -e {where} pytest && pytest {where}")
