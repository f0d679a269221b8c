"""Options of commands: how they are made from settings, and those that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from metrist.cli.output import name_arguments, print_note
from metrist.errors import SpecError
from metrist.settings import (
    MAX_DRAWS,
    InputSettings,
    LLMSettings,
    ReadingSettings,
    SettingField,
    as_arguments,
    find_settings,
    get_setting,
    parse_numbers,
    parse_pairs,
    reuse_setting,
    setting,
)

if TYPE_CHECKING:
    from metrist.io.reader import Reader
    from metrist.report.tables import TableLayout


# ---- From settings to options


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: each parameter that is a setting becomes an option, and so does each setting of a
    parameter whose type is a dataclass, which the command receives whole."""
    parameters: list[inspect.Parameter] = []
    own: dict[str, SettingField] = {}
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if hasattr(parameter.annotation, "__dataclass_fields__"):
            groups[parameter.name] = parameter.annotation
            for name, option in find_settings(parameter.annotation).items():
                parameters.append(_make_parameter(f"{parameter.name}_{name}", name, option))
        elif declared := get_setting(parameter.default, parameter.annotation):
            own[parameter.name] = declared
            parameters.append(_make_parameter(parameter.name, parameter.name, declared))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        # Notes of commands that read a run may say how to read its files.
        known = dict(find_settings(ReadingSettings))
        for group in groups.values():
            known.update(find_settings(group))
        with name_arguments({**known, **own}):
            values |= {name: _convert(name, option, values[name]) for name, option in own.items()}
            for group_name, group in groups.items():
                settings = find_settings(group).items()
                given = {name: _convert(name, option, values.pop(f"{group_name}_{name}")) for name, option in settings}
                values[group_name] = group(**given)
            command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _make_parameter(parameter: str, name: str, option: SettingField) -> inspect.Parameter:
    setting = option.setting
    annotation = option.type
    default = inspect.Parameter.empty if option.default is MISSING else option.default
    names = setting.option_names(name)
    if names[0].startswith("/"):  # It turns off what is on by default.
        names, default = [names[0].removeprefix("/")], not default
    if (element := _find_element(annotation)) is not None:
        annotation, default = list[element] | None, None  # type: ignore[valid-type]
    elif setting.parse and not {annotation, *get_args(annotation)} & {bool, int, float, str, Path}:
        annotation, default = str | None, None
    values = {"metavar": setting.metavar, "min": setting.min, "max": setting.max, "show_default": setting.shown}
    # What is left out keeps typer's own defaults.
    given: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    info = typer.Option(*names, help=setting.help, **given)
    return inspect.Parameter(
        parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _find_element(annotation: Any) -> Any:
    """The type of one value where an option can be given several times, for a tuple of any length or a mapping; else
    None."""
    for member in (annotation, *get_args(annotation)):
        if get_origin(member) is Mapping:
            return str
        if get_origin(member) is tuple and get_args(member)[-1] is Ellipsis:
            return get_args(member)[0]
    return None


def _convert(name: str, option: SettingField, value: Any) -> Any:
    """Turn what typer gives for an option into the value of the setting."""
    parse = option.setting.parse
    if option.setting.option_names(name)[0].startswith("/"):
        return not value
    if _find_element(option.type) is not None:
        if not value:
            return option.default
        if parse is None:
            kinds = {Mapping[str, str]: parse_pairs, Mapping[str, float]: parse_numbers}
            parse = kinds.get(option.type, tuple)
    if value is None or parse is None:
        return value
    try:
        return parse(value)
    except SpecError as error:
        raise SpecError(f"`{name}` {error}") from None


# ---- Arguments and options that several commands have

#: How tables are printed.
Format = Literal["text", "markdown", "html", "latex", "csv", "json"]
#: How tables are printed, or the papers to cite for them.
PaperFormat = Literal["text", "markdown", "html", "latex", "csv", "json", "bibtex"]
#: How intervals are printed.
IntervalStyle = Literal["brackets", "plusminus", "none"]

Names = tuple[str, ...]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="IN…", help="Records: JSONL, CSV, Excel, Parquet, also compressed; or URLs; - for standard input."
    ),
]
#: Not Paths, which would drop a slash of a URL.
RunPath = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, or a .jsonl file that `metrist score` wrote; or its URL.")
]
RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its URL.")]
RunPaths = Annotated[
    list[str],
    typer.Argument(metavar="RUN…", help="Run folders, or .jsonl files that `metrist score` wrote; or their URLs."),
]


TABLE_FORMAT = setting("text", "How to print the table.", "--format")
PAPER_FORMAT = setting("text", "How to print the table; bibtex: the papers to cite instead.", "--format")
DRAWS = setting(1000, "Resamples behind intervals and tests.", min=100, max=MAX_DRAWS)
SEED = setting(0, "Seed of the resampling.", min=0)
TEXTS = setting(True, "Store no texts in the run folder; commands that need them read the inputs again.", "/--no-texts")
DRY_RUN = setting(False, "Print time, LLM requests, cost and a prompt; send and write nothing.")
WORKERS = setting(
    0, "Processes to score with; 0: all cores, or one process per GPU for models; 1: only this process.", min=0
)
#: The limit of a command that calls LLMs now and then.
MAX_COST = reuse_setting(LLMSettings, "max_cost")


@dataclass(frozen=True, kw_only=True)
class FileOptions(ReadingSettings):
    """How records are read."""

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of `read_records`."""
        # Several readers may give the same note.
        return {**as_arguments(self), "announce": functools.cache(print_note)}


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(InputSettings, FileOptions):
    """How records are read, and of which system they are."""

    def check_system(self, sources: Sequence[str]) -> None:
        """Refuse --system where it can name no output: runs name the systems of all of theirs."""
        from metrist.run.run import is_run

        if self.system and all(map(is_run, sources)):
            raise SpecError("--system is for files that name no system, and a run names all: --systems chooses some")

    def read(self, inputs: Sequence[str]) -> Reader:
        from metrist.io.reader import read_records

        return read_records(inputs if len(inputs) > 1 else inputs[0], **self.keywords())


@dataclass(frozen=True, kw_only=True)
class LLMOptions(LLMSettings):
    """Limits of LLM calls."""

    def activate(self) -> AbstractContextManager[object]:
        """Apply the options to what runs inside a `with` block, such as a dry run."""
        from metrist.runtime import Runtime

        return Runtime.current().override(**as_arguments(self)).activate()


def parse_renames(pairs: list[str]) -> dict[str, str]:
    """Parse `["rougeL=ROUGE-L"]`. The last = separates: a metric's text may contain others."""
    renamed: dict[str, str] = {}
    for pair in pairs:
        name, equals, shown = pair.rpartition("=")
        if not (name and equals):
            raise SpecError(f"must be NAME=SHOWN, such as rougeL=ROUGE-L, got {pair!r}")
        if name in renamed:
            raise SpecError(f"is given twice for {name!r}")
        renamed[name] = shown
    return renamed


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """How a table looks; no number changes."""

    caption: str = setting("", "The table's title, or caption in LaTeX.", metavar="TEXT")
    label: str = setting("", "The LaTeX label, such as tab:scores.", metavar="NAME")
    decimals: int | None = setting(None, "Decimals of scores.", metavar="N", min=0, max=15, shown="by the range")
    drop: Names = setting((), "Leave these columns out, such as coverage,scored.", metavar="A,B")
    rename: Mapping[str, str] = setting(
        {}, "Show a metric, system or column as this; repeatable.", metavar="NAME=SHOWN", parse=parse_renames
    )
    intervals: IntervalStyle | None = setting(None, "How to print intervals.", shown="brackets")

    def layout(self) -> TableLayout | None:
        """The chosen layout; None without a choice."""
        if self == LayoutOptions():
            return None
        from metrist.report.tables import TableLayout

        return TableLayout(**as_arguments(self))
