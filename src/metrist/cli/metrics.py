"""Commands about metrics: `list` and `explain-metric` describe them, `reproduce` recomputes published tables, `card`
checks how others describe theirs, and `new-metric` writes a package that adds one."""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from metrist.cli.options import TABLE_FORMAT, Format, Names, ReadingOptions
from metrist.cli.output import print_note, print_table, print_text, write_file
from metrist.errors import (
    MetristError,
    RunError,
    SpecError,
    check_known,
    describe_exception,
    escape_controls,
    format_count,
    format_path,
)
from metrist.evaluate.plans import MetaPlan
from metrist.settings import as_arguments, reuse_setting, setting
from metrist.spec import split_list

#: Where standard output is no terminal.
_LIST_WIDTH = 100
#: How a metric is described.
CardFormat = Literal["text", "json", "bibtex"]


def list_metrics(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="Only the metrics of this family, one by one.")
    ] = None,
    every: bool = setting(False, "List all metrics one by one.", "--all"),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.metrics import registry
    from metrist.report.tables import Column, Table

    by_family: dict[str, list[str]] = {}
    for name in registry.names():
        by_family.setdefault(registry.family(name), []).append(name)
    if family is not None:
        check_known("family", family, by_family)
    notes = ["`metrist explain-metric NAME` describes a metric and how to read it."]
    # Programs read JSON and CSV, and want single metrics.
    if family is not None or every or form in ("json", "csv"):
        columns = ("metric", "needs", "better", "range", "install")
        rows = [_describe_metric(name) for name in (by_family[family] if family else registry.names())]
    else:
        columns = ("family", "metrics", "needs", "better", "install")
        rows = []
        for title, names in by_family.items():
            groups: dict[tuple[str, ...], list[str]] = {}
            for name in names:
                _, needs, better, _, install = _describe_metric(name)
                # All need the output: it is shown where nothing else is.
                groups.setdefault((needs.removeprefix("output "), better, install), []).append(name)
            rows += [[title, _join_names(group), *facts] for facts, group in groups.items()]
        notes.append("`metrist list FAMILY` and `metrist list --all` list the metrics one by one, with their ranges.")
    table = Table(columns=[*map(Column, columns)], rows=rows, notes=notes)
    if form == "text" and not sys.stdout.isatty():
        print_text(table.text(_LIST_WIDTH))
    else:
        print_table(table, form)


def _join_names(names: Sequence[str]) -> str:
    """The names between commas; more than three in a row that differ by a number only are shown as first … last."""
    runs: list[list[str]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        if runs and stem != name and runs[-1][-1].rstrip("0123456789") == stem:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]} … {run[-1]}" if len(run) > 3 else ", ".join(run) for run in runs)


def _describe_metric(name: str) -> list[Any]:
    from metrist.metrics.registry import entry_point, example, package_name

    try:
        metric = example(name)
        better = {True: "higher", False: "lower", None: "describes"}[metric.higher_is_better]
        low, high = metric.bounds
    except MetristError as error:  # A metric of another package may be broken, or may require settings.
        return [name, "", "", "", str(error)]
    except Exception as error:
        return [name, "", "", "", describe_exception(error)]
    point = entry_point(name)
    package = package_name(point) if point else "metrist"
    install = f"{package}[{metric.extra}]" if metric.extra else package
    return [metric.name, " ".join(("output", *metric.needs)), better, f"{low:g} to {high:g}", install]


def explain_metric(
    spec: Annotated[str, typer.Argument(metavar="NAME", help="A metric, such as rougeL or 'chrf(word_order=2)'.")],
    form: CardFormat = setting("text", "The description, its card as data, or the papers to cite.", "--format"),
) -> None:
    from metrist.metrics.cards import describe, export_card, format_bibliography
    from metrist.metrics.registry import example

    metric = example(spec)
    if form == "json":
        print_text(msgspec.json.format(msgspec.json.encode(export_card(metric)), indent=2).decode())
    else:
        print_text(format_bibliography([metric]) if form == "bibtex" else describe(metric).rstrip())


def _parse_pair(texts: list[str]) -> tuple[str, ...]:
    names = split_list(texts[-1])
    if len(set(names)) != 2:
        raise SpecError(f"must be two metrics, such as judge,rougeL, got {texts[-1]!r}")
    return tuple(names)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How a reliability study is made from one's own ratings."""

    aspect: str | None = setting(None, "Reliability: the rating that metrics should agree with.", "-a", metavar="A")
    class_column: str | None = setting(
        None,
        "Reliability: the column with classes of tasks, such as short and long.",
        "--class",
        metavar="COLUMN",
        shown="by the length of references",
    )
    metrics: Names = setting(
        (),
        "Only these rows of a paper's tables; reliability: only these metrics, also those without scores; repeatable.",
        "-m",
        "--metrics",
        metavar="NAME",
    )
    epsilon_over: Literal["language", "all"] = setting(
        "language", "Reliability: one threshold per metric for each language, or for all."
    )
    epsilon: Mapping[str, Any] = reuse_setting(
        MetaPlan,
        "epsilon",
        help="Reliability: a metric's tie threshold instead of the best, or a TOML or JSON file of them; repeatable.",
    )
    pair: Names = setting(
        (),
        "Reliability: the two metrics of the last figure.",
        metavar="A,B",
        shown="best judge, best other",
        parse=_parse_pair,
    )


def reproduce(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE_OR_RUN…",
            help="For --table reliability: records with ratings, runs and score files, to be joined.",
            show_default=False,
        ),
    ] = None,
    *,
    data: Path | None = setting(
        None, "Folder of data sets.", metavar="DIR", shown="$METRIST_TEST_DATA, or ../shared/data"
    ),
    tables: list[str] | None = setting(
        None, "Only this table; repeatable; --list names all.", "--table", metavar="NAME", shown="all"
    ),
    scores: Path | None = setting(
        None, "Keep scores here; another time computes only what has changed.", metavar="DIR"
    ),
    agreement: Path | None = setting(
        None, "Write the figures of the shipped metrics here, for explain-metric.", metavar="FILE"
    ),
    keep: list[str] | None = setting(
        None,
        "Keep this column of shipped-metrics as published, for weights that have not changed; repeatable.",
        metavar="COLUMN",
    ),
    only: list[str] | None = setting(
        None,
        "Compute only this data set of shipped-metrics; other rows stay as published; repeatable.",
        "--set",
        metavar="DATA",
    ),
    out: Path | None = setting(
        None, "Markdown file; for --table reliability a folder.", "-o", metavar="PATH", shown="standard output"
    ),
    models: Path | None = setting(
        None, "Compute learned metrics, too, with the models that this TOML file names.", metavar="FILE"
    ),
    limit: int | None = setting(
        None, "Only the first N items of each data set, in tables of papers.", metavar="N", min=1
    ),
    list_only: bool = setting(False, "List the tables, and compute nothing.", "--list"),
    dry_run: bool = setting(False, "Print what learned metrics would take, and missing weights; compute nothing."),
    study: StudyOptions,
    reading: ReadingOptions,
) -> None:
    from metrist.metrics.agreement import dump_agreements
    from metrist.studies.reproduce.page import format_page, format_sections, list_contents
    from metrist.studies.reproduce.page import reproduce as reproduce_tables

    if list_only:
        print_table(list_contents(), "text")
        return
    if tables == ["reliability"]:
        if not inputs:
            raise RunError("`--table reliability` needs files with ratings", code="missing_value")
        others: dict[str, object] = {"data": data, "scores": scores, "agreement": agreement, "keep": keep, "only": only}
        others |= {"models": models, "limit": limit, "dry_run": dry_run}
        if unused := next((name for name, value in others.items() if value), None):
            raise SpecError(f"`{unused}` is for other tables than reliability; omit it", code="conflict")
        _study_reliability(inputs, study, reading, out)
        return
    if inputs or study != StudyOptions(metrics=study.metrics):
        raise SpecError("files and their options are for `--table reliability` alone", code="conflict")
    if dry_run:
        from metrist.studies.reproduce.page import plan_tables

        print_table(plan_tables(tables or (), data, scores, models, study.metrics, limit), "text")
        return
    sections = []
    for section in reproduce_tables(tables or (), data, scores, keep or (), only or (), models, study.metrics, limit):
        print_note(f"{section.name}: {section.summary}")
        sections.append(section)
    rows = [row for section in sections for row in section.agreements]
    if agreement is not None:
        if not rows:
            raise RunError(
                "--agreement has nothing to write: compute the table shipped-metrics, from data at hand", code="no_data"
            )
        write_file(agreement, dump_agreements(rows))
    if out is None:
        print_text(format_sections(sections).rstrip("\n"))
    else:
        write_file(out, format_page(sections))


def _study_reliability(inputs: list[str], options: StudyOptions, reading: ReadingOptions, out: Path | None) -> None:
    from metrist.studies.reproduce.reliability import study_reliability
    from metrist.studies.reproduce.reliability_figures import format_study, write_study

    reading.check_system(inputs)
    settings = as_arguments(options)
    pair = settings.pop("pair")
    study = study_reliability(inputs, **settings, **reading.keywords())
    if out is None:
        print_text(format_study(study).rstrip("\n"))
        return
    paths = write_study(study, out, pair)
    print_note(f"wrote {out}: {', '.join(path.name for path in paths)}")


# ---- Metrics of others


def check_card(
    target: Annotated[
        str, typer.Argument(metavar="FILE|PACKAGE", help="A card.toml, or an installed package that adds metrics.")
    ],
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.metrics.cards import check_cards
    from metrist.report.tables import Table, name_columns

    metrics, problems = check_cards(target)
    if form == "text":  # A table would cut long lines.
        lines = [f"{metric}: {escape_controls(problem)}" for metric, problem in problems]
        print_text("\n".join(lines) or f"{target}: {format_count(len(metrics), 'card')}, no problem")
    else:
        rows = [list(problem) for problem in problems]
        print_table(Table(columns=name_columns("metric", "problem"), rows=rows), form)
    if problems:
        raise typer.Exit(1)


def show_card_schema() -> None:
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
