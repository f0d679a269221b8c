"""Options that several verbs share, each said once."""

from __future__ import annotations

import math
from collections.abc import Container
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from metrist.errors import SpecError


class Format(StrEnum):
    """How a table is printed."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    json = "json"


Inputs = Annotated[
    list[str],
    typer.Argument(metavar="IN…", help="Records: JSONL, CSV, TSV or Parquet, also compressed; - for standard input."),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option("-m", "--metric", metavar="SPEC", help="A metric: rougeL, 'chrf(word_order=2)'; repeatable."),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or a .jsonl file that `metrist score` wrote.")
]
TableFormat = Annotated[Format, typer.Option("--format", help="How to print the table.")]
Draws = Annotated[int, typer.Option("--draws", min=100, help="Resamples behind intervals and tests.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the resampling.")]
ItemKey = Annotated[
    str, typer.Option("--item-key", metavar="A+B", help="Build the item's key from these fields, such as doc+segment.")
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="OURS=THEIRS", help="Read a field under another name, such as output=prediction."),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read, and count them.")]
System = Annotated[str | None, typer.Option("--system", help="The system's name, for files that do not say it.")]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        min=0,
        help="Processes to score with; 0: all cores, or a process per GPU for models; 1: none besides this one.",
    ),
]
Tokens = Annotated[bool, typer.Option("--tokens", help="Keep what metrics found at single tokens, for `metrist heat`.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="WHERE", help="Where models run: cpu, cuda, cuda:1, mps, map; chosen unless given."
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option("--batch-tokens", metavar="N", min=1, help="Tokens that a model takes at once; chosen unless given."),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Keep likelihoods and vectors here, for other runs too."),
]

MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", metavar="USD", min=0, help="Send nothing to LLMs that could make the run cost more."),
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", metavar="N", min=1, help="Requests to an LLM server at once; 16.")
]
Rpm = Annotated[int | None, typer.Option("--rpm", metavar="N", min=1, help="Requests to an LLM server in a minute.")]
Tpm = Annotated[int | None, typer.Option("--tpm", metavar="N", min=1, help="Tokens to an LLM server in a minute.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only tell what LLMs would be asked and what it would cost; send nothing.")
]


def named_values(pairs: list[str], option: str) -> dict[str, str]:
    """`["output=prediction"]` as `{"output": "prediction"}`. Values may be empty: `doc=` leaves a column out."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise SpecError(f"{option} wants NAME=VALUE, got {pair!r}")
        _check_new(name, found, option)
        found[name] = value
    return found


def numbers(pairs: list[str], option: str) -> dict[str, float]:
    """`["rougeL=.3"]` as `{"rougeL": 0.3}`. The last = counts: a metric's own text may hold others."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not name or math.isnan(number):
            raise SpecError(f"{option} wants METRIC=NUMBER, such as rougeL=.3, got {pair!r}")
        _check_new(name, found, option)
        found[name] = number
    return found


def _check_new(name: str, known: Container[str], option: str) -> None:
    if name in known:
        raise SpecError(f"{option} is given twice for {name!r}")


def item_key(text: str) -> tuple[str, ...]:
    """`"doc+segment"` as its fields."""
    return tuple(part for part in text.split("+") if part)
