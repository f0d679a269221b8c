"""Settings are spelled once: a field of a dataclass has type, default, help and limits.

    @dataclass(frozen=True, kw_only=True)
    class MetaPlan:
        draws: int = setting(1000, "Resamples behind intervals.", min=0)
        metrics: tuple[str, ...] = setting((), "Only these; repeatable.", "-m", "--metric", metavar="NAME")

`metrist.cli.options` makes the options of a command from such a class, `metrist.evaluate.config` checks the tables of a
TOML file by it, docs/build.py writes the reference, and `check_settings` checks the arguments of a Python function.
Messages name an argument in backticks, `draws` or `test='sign'`; the command line writes --draws and --test sign
instead.

Considered were libraries that do the same: pydantic-settings and msgspec check values, but know no flags and no help;
cyclopts, tyro and simple-parsing make options from dataclasses, but replace typer with its shell completion.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from metrist.errors import RunError, SpecError, did_you_mean

_KEY = "setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a field says to users. `flags` are the option's names; without a long one, it is that of the field. `shown`
    describes a default that is None or empty. `parse` turns what the command line gives into the field's value: a text,
    or a list of them if the field is a tuple or a mapping; its SpecError goes on after the option's name."""

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    shown: str | None = None
    parse: Callable[[Any], Any] | None = None

    def option_names(self, name: str) -> list[str]:
        """The names of the option for a field: `--top-k` for `top_k`, unless `flags` has a long one."""
        has_long = any("--" in flag for flag in self.flags)
        return [*self.flags, *([] if has_long else [f"--{name.replace('_', '-')}"])]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """A setting with the type and the default of its field; the default of a required one is MISSING."""

    setting: Setting
    type: Any
    default: Any


def setting(
    default: Any,
    help: str,  # noqa: A002
    *flags: str,
    metavar: str | None = None,
    min: float | None = None,  # noqa: A002
    max: float | None = None,  # noqa: A002
    shown: str | None = None,
    parse: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a field, or a parameter of a command, that is a setting; the default `...` makes it required."""
    metadata = {
        _KEY: Setting(help=help, flags=flags, metavar=metavar, min=min, max=max, shown=shown, parse=parse),
    }
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def get_setting(declared: Any, annotation: Any) -> SettingField | None:
    """Return the setting that a field, or a parameter's default, declares; None if it declares none."""
    declaration = getattr(declared, "metadata", {}).get(_KEY)
    if declaration is None:
        return None
    default = declared.default if declared.default_factory is MISSING else declared.default_factory()
    return SettingField(setting=declaration, type=annotation, default=default)


@functools.cache
def find_settings(plan: Any) -> Mapping[str, SettingField]:
    """Return the settings of a dataclass by name. A field that a subclass repeats with another default keeps the help
    of the field that it replaces."""
    hints = get_type_hints(plan)
    found: dict[str, SettingField] = {}
    for declared in fields(plan):
        own = get_setting(declared, hints[declared.name])
        if own is None:
            for base in plan.__bases__:
                inherited = find_settings(base).get(declared.name) if hasattr(base, "__dataclass_fields__") else None
                if inherited is not None:
                    own = replace(inherited, type=hints[declared.name], default=declared.default)
        if own is not None:
            found[declared.name] = own
    return found


def as_arguments(plan: Any) -> dict[str, Any]:
    """Return the values of a dataclass by name, as keyword arguments of the function that takes the same settings."""
    return {declared.name: getattr(plan, declared.name) for declared in fields(plan)}


def select_arguments(plan: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a function's arguments, such as `locals()`, that are fields of a dataclass."""
    return {declared.name: arguments[declared.name] for declared in fields(plan) if declared.name in arguments}


def list_choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, or of one among the members of a union."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(
        choice for member in get_args(annotation) if get_origin(member) is Literal for choice in get_args(member)
    )


def check_settings(plan: Any) -> None:
    """Raise RunError for a value that is none of its choices or beyond its limits; for `__post_init__`."""
    kind: Any = type(plan)
    for name, declared in find_settings(kind).items():
        value = getattr(plan, name)
        if value is None:
            continue
        choices, least, most = list_choices(declared.type), declared.setting.min, declared.setting.max
        if choices and value not in choices:
            known = ", ".join(map(str, choices))
            raise RunError(f"`{name}` must be one of {known}, got {value!r}{did_you_mean(str(value), choices)}")
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            limits = [f"at least {least:g}"] if least is not None else []
            limits += [f"at most {most:g}"] if most is not None else []
            raise RunError(f"`{name}` must be {' and '.join(limits)}, got {value!r}")


# ---- Settings that many functions share


def split_key(texts: list[str]) -> tuple[str, ...]:
    """Parse `["doc+segment"]` as the fields that together identify an item."""
    return tuple(part for text in texts for part in text.split("+") if part)


def split_commas(texts: list[str]) -> tuple[str, ...]:
    """Parse `["a,b", "c"]` as `("a", "b", "c")`."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """Parse `["output=prediction"]` as `{"output": "prediction"}`. Values may be empty: `doc=` drops a column."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise SpecError(f"must be NAME=VALUE, got {pair!r}")
        _check_new(name, values)
        values[name] = value
    return values


def parse_numbers(pairs: list[str]) -> dict[str, float]:
    """Parse `["rougeL=.3"]` as `{"rougeL": 0.3}`. The last = separates: a metric's text may contain others."""
    values: dict[str, float] = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not name or math.isnan(number):
            raise SpecError(f"must be METRIC=NUMBER, such as rougeL=.3, got {pair!r}")
        _check_new(name, values)
        values[name] = number
    return values


def _check_new(name: str, known: Container[str]) -> None:
    if name in known:
        raise SpecError(f"is given twice for {name!r}")


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """How records are read; the fields are keyword arguments of `read_records`."""

    item_key: tuple[str, ...] = setting(
        (), "Build the item's key from these fields, such as doc+segment.", metavar="A+B", parse=split_key
    )
    fields: Mapping[str, str] = setting(
        {}, "Read a field under another name, such as output=prediction.", "--field", metavar="OURS=THEIRS"
    )
    outputs: tuple[str, ...] | None = setting(
        None,
        "A system's column of outputs, in files with a column per system; or a pattern, '*_output'; repeatable.",
        "--output",
        metavar="SYSTEM=COLUMN",
    )
    skip_bad: bool = setting(False, "Skip rows that cannot be read, and count them.")
    delimiter: str | None = setting(None, "What separates cells: ';', tab.", metavar="CHAR", shown="recognised")
    encoding: str | None = setting(None, "cp1252, latin-1, utf-16 …", metavar="NAME", shown="recognised")
    sheet: str | None = setting(None, "The sheet of an .xlsx file.", metavar="NAME", shown="the first")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Where models run; the fields are keyword arguments of `score` and `prefer`."""

    device: str | None = setting(
        None, "Where models run: cpu, cuda, cuda:1, mps or map.", metavar="WHERE", shown="the best one"
    )
    batch_tokens: int | None = setting(None, "Tokens per model batch.", metavar="N", min=1, shown="as fits the device")
    cache: Path | None = setting(None, "Folder in which likelihoods and vectors are cached across runs.", metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class LLMSettings:
    """Limits of LLM calls; the fields are keyword arguments of every function that calls LLMs."""

    max_cost: float | None = setting(
        None, "Send no request that could raise the cost above this.", metavar="USD", min=0
    )
    concurrency: int | None = setting(None, "Parallel requests to an LLM server.", metavar="N", min=1, shown="16")
    rpm: int | None = setting(None, "Requests per minute to an LLM server.", metavar="N", min=1)
    tpm: int | None = setting(None, "Tokens per minute to an LLM server.", metavar="N", min=1)
    fresh: bool = setting(False, "Request LLM answers again that are already stored.")
    retry_failed: bool = setting(False, "Request stored LLM answers again that failed or could not be read.")
