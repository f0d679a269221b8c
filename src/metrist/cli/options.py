"""Options that several commands share: single ones, and groups that a command takes as one parameter."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.errors import SpecError, escape_controls

if TYPE_CHECKING:
    from metrist.io.reader import Reader
    from metrist.report.tables import TableLayout


#: How tables are printed.
Format = Literal["text", "markdown", "html", "latex", "csv", "json"]
#: How tables are printed, or the papers to cite for them.
PaperFormat = Literal["text", "markdown", "html", "latex", "csv", "json", "bibtex"]
#: How intervals are printed.
IntervalStyle = Literal["brackets", "plusminus", "none"]
#: What is done with ties in training data.
TiesName = Literal["drop", "soft"]


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="IN…", help="Records: JSONL, CSV, Excel, Parquet, also compressed; or URLs; - for standard input."
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--metric",
        metavar="SPEC",
        help="A metric: rougeL, 'chrf(word_order=2)', or with a short name: 'judge=judge(llm=…)'; repeatable.",
    ),
]
#: Not Paths, which would drop a slash of a URL.
RunPath = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, or a .jsonl file that `metrist score` wrote; or its URL.")
]
RunPaths = Annotated[
    list[str],
    typer.Argument(metavar="RUN…", help="Run folders, or .jsonl files that `metrist score` wrote; or their URLs."),
]
TableFormat = Annotated[Format, typer.Option("--format", help="How to print the table.")]
PaperTableFormat = Annotated[
    PaperFormat, typer.Option("--format", help="How to print the table; bibtex: the papers to cite instead.")
]
Caption = Annotated[str, typer.Option("--caption", metavar="TEXT", help="The table's title, or caption in LaTeX.")]
Label = Annotated[str, typer.Option("--label", metavar="NAME", help="The LaTeX label, such as tab:scores.")]
Decimals = Annotated[
    int | None,
    typer.Option("--decimals", metavar="N", min=0, max=15, help="Decimals of scores.", show_default="by the range"),
]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", metavar="A,B", help="Leave these columns out, such as coverage,scored.")
]
Rename = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="NAME=SHOWN", help="Show a metric, system or column as this; repeatable."),
]
ShownIntervals = Annotated[
    IntervalStyle | None, typer.Option("--intervals", help="How to print intervals.", show_default="brackets")
]
Draws = Annotated[int, typer.Option("--draws", min=100, help="Resamples behind intervals and tests.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the resampling.")]
ItemKey = Annotated[
    str, typer.Option("--item-key", metavar="A+B", help="Build the item's key from these fields, such as doc+segment.")
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="OURS=THEIRS", help="Read a field under another name, such as output=prediction."),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        metavar="SYSTEM=COLUMN",
        help="A system's column of outputs, in files with a column per system; or a pattern, '*_output'; repeatable.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", metavar="CHAR", help="What separates cells: ';', tab.", show_default="recognised"),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="cp1252, latin-1, utf-16 …", show_default="recognised"),
]
Sheet = Annotated[
    str | None, typer.Option("--sheet", metavar="NAME", help="The sheet of an .xlsx file.", show_default="the first")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip rows that cannot be read, and count them.")]
System = Annotated[str | None, typer.Option("--system", help="The system's name, for files that do not name it.")]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        min=0,
        help="Processes to score with; 0: all cores, or one process per GPU for models; 1: only this process.",
    ),
]
ExecutorName = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="NAME",
        help="Where to score: serial, processes, ray or ray:ADDRESS (docs/guides/cluster.md).",
        show_default="the fastest here",
    ),
]
Tokens = Annotated[bool, typer.Option("--tokens", help="Store scores of single tokens, for `metrist heat`.")]
NoTexts = Annotated[
    bool,
    typer.Option("--no-texts", help="Store no texts in the run folder; commands that need them read the inputs again."),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="WHERE",
        help="Where models run: cpu, cuda, cuda:1, mps or map.",
        show_default="the best one",
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens", metavar="N", min=1, help="Tokens per model batch.", show_default="as fits the device"
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Folder in which likelihoods and vectors are cached across runs."),
]

MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost", metavar="USD", min=0, help="Send no request that could raise the cost above this."),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="N", min=1, help="Parallel requests to an LLM server.", show_default="16"),
]
Rpm = Annotated[int | None, typer.Option("--rpm", metavar="N", min=1, help="Requests per minute to an LLM server.")]
Tpm = Annotated[int | None, typer.Option("--tpm", metavar="N", min=1, help="Tokens per minute to an LLM server.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Request LLM answers again that are already stored.")]
RetryFailed = Annotated[
    bool,
    typer.Option("--retry-failed", help="Request stored LLM answers again that failed or could not be read."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print time, LLM requests, cost and a prompt; send and write nothing.")
]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How records are read."""

    item_key: ItemKey = ""
    fields: Fields = None
    output_columns: Outputs = None
    system: System = None
    skip_bad: SkipBad = False
    delimiter: Delimiter = None
    encoding: Encoding = None
    sheet: Sheet = None

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of `read_records`."""
        return {
            "item_key": tuple(part for part in self.item_key.split("+") if part),  # "doc+segment"
            "fields": parse_pairs(self.fields, "--field") if self.fields else {},
            "outputs": self.output_columns,
            "system": self.system,
            "skip_bad": self.skip_bad,
            "delimiter": self.delimiter,
            "encoding": self.encoding,
            "sheet": self.sheet,
            "announce": functools.cache(print_note),  # Several readers may have the same to say.
        }

    def check_system(self, sources: Sequence[str]) -> None:
        """Refuse --system where it can name no output: runs name the systems of all of theirs."""
        from metrist.run.stores import is_run

        if self.system and all(map(is_run, sources)):
            raise SpecError("--system is for files that name no system, and a run names all: --systems chooses some")

    def read(self, inputs: Sequence[str]) -> Reader:
        from metrist.io.reader import read_records

        return read_records(inputs if len(inputs) > 1 else inputs[0], **self.keywords())


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Where models run; the fields are keyword arguments of `score` and `prefer`."""

    device: Device = None
    batch_tokens: BatchTokens = None
    cache: Cache = None


@dataclass(frozen=True, kw_only=True)
class LLMOptions:
    """Limits of LLM calls; the fields are keyword arguments of every function that calls LLMs."""

    max_cost: MaxCost = None
    concurrency: Concurrency = None
    rpm: Rpm = None
    tpm: Tpm = None
    fresh: Fresh = False
    retry_failed: RetryFailed = False

    def activate(self) -> AbstractContextManager[object]:
        """Apply the options to what runs inside a `with` block, such as a dry run."""
        from metrist.runtime import Runtime

        return Runtime.current().override(**vars(self)).activate()


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """How a table looks; no number changes."""

    caption: Caption = ""
    label: Label = ""
    decimals: Decimals = None
    drop: Drop = None
    rename: Rename = None
    intervals: ShownIntervals = None

    def layout(self) -> TableLayout | None:
        """What was chosen; None where nothing was."""
        if self == LayoutOptions():
            return None
        from metrist.report.tables import TableLayout

        renamed: dict[str, str] = {}
        for pair in self.rename or ():
            # The last = separates: a metric's text may contain others.
            name, equals, shown = pair.rpartition("=")
            if not (name and equals):
                raise SpecError(f"--rename must be NAME=SHOWN, such as rougeL=ROUGE-L, got {pair!r}")
            _check_new(name, renamed, "--rename")
            renamed[name] = shown
        return TableLayout(
            caption=self.caption,
            label=self.label,
            decimals=self.decimals,
            drop=self.drop or (),
            rename=renamed,
            intervals=self.intervals,
        )


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter of a command whose type is a dataclass into one option per field of that dataclass."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group: Any = parameter.annotation
        if hasattr(group, "__dataclass_fields__"):
            groups[parameter.name] = group
            parameters += inspect.signature(group, eval_str=True).parameters.values()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def print_note(text: str) -> None:
    """Print a message that is not a result, on standard error. It may quote a server, a model or a file, so what a
    terminal would obey is escaped; lines stay lines."""
    safe = "\n".join(map(escape_controls, text.split("\n")))
    sys.stderr.write(f"metrist: {safe}\n")


def parse_pairs(pairs: list[str], option: str) -> dict[str, str]:
    """Parse `["output=prediction"]` as `{"output": "prediction"}`. Values may be empty: `doc=` drops a column."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise SpecError(f"{option} must be NAME=VALUE, got {pair!r}")
        _check_new(name, values, option)
        values[name] = value
    return values


def parse_numbers(pairs: list[str], option: str) -> dict[str, float]:
    """Parse `["rougeL=.3"]` as `{"rougeL": 0.3}`. The last = separates: a metric's text may contain others."""
    values: dict[str, float] = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not name or math.isnan(number):
            raise SpecError(f"{option} must be METRIC=NUMBER, such as rougeL=.3, got {pair!r}")
        _check_new(name, values, option)
        values[name] = number
    return values


def _check_new(name: str, known: Container[str], option: str) -> None:
    if name in known:
        raise SpecError(f"{option} is given twice for {name!r}")
