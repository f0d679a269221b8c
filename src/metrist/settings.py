"""Settings are spelled once: a field of a dataclass has type, default, help and limits.

    @dataclass(frozen=True, kw_only=True)
    class MetaPlan:
        draws: int = setting(1000, "Resamples behind intervals.", min=0)
        metrics: tuple[str, ...] = setting((), "Only these; repeatable.", "-m", "--metric", metavar="NAME")

`metrist.cli.options` makes the options of a command from such a class, `metrist.evaluate.compare.config` checks the
tables of a TOML file by it, docs/build.py writes the reference, and `check_settings` checks the arguments of a Python
function. Messages name an argument in backticks, `draws` or `test='sign'`; the command line writes --draws and --test
sign instead.

Considered were libraries that do the same: pydantic-settings and msgspec check values, but know no flags and no help;
cyclopts, tyro and simple-parsing make options from dataclasses, but replace typer with its shell completion.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from metrist.errors import InputError, MetristError, RunError, SpecError, did_you_mean

_KEY = "setting"
_F = TypeVar("_F", bound=Callable[..., Any])
#: The most resamples that a function or a command draws: p-values and intervals gain nothing beyond.
MAX_DRAWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a field says to users. `flags` are the option's names; without a long one, it is that of the field. `open`
    limits are no values themselves. `shown` describes a default that is None or empty. `parse` turns what the command
    line gives into the field's value: a text, or a list of them if the field is a tuple or a mapping; its SpecError
    goes on after the option's name."""

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    open: bool = False
    shown: str | None = None
    parse: Callable[[Any], Any] | None = None

    def contains(self, value: float) -> bool:
        """Whether a number is within the limits."""
        if self.open and value in (self.min, self.max):
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def describe_limits(self) -> str:
        """The limits in words: at least 1, from 0 to 1, between 0 and 1; empty if there are none."""
        if self.max is None:
            return "" if self.min is None else f"at least {self.min:g}"
        low, high = f"{self.min:,.12g}", f"{self.max:,.12g}"
        return f"between {low} and {high}" if self.open else f"from {low} to {high}"

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
    open: bool = False,  # noqa: A002
    shown: str | None = None,
    parse: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a field, or a parameter of a command, that is a setting; the default `...` makes it required."""
    metadata = {
        _KEY: Setting(help=help, flags=flags, metavar=metavar, min=min, max=max, open=open, shown=shown, parse=parse),
    }
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def reuse_setting(plan: Any, name: str, **changes: Any) -> Any:
    """Declare a setting again that a dataclass has, perhaps with another `help` or `shown` default."""
    declared = plan.__dataclass_fields__[name]
    metadata = {_KEY: replace(declared.metadata[_KEY], **changes)}
    return field(default=declared.default, default_factory=declared.default_factory, metadata=metadata)


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


def list_changed(plan: Any) -> list[str]:
    """Return the names of the settings that have another value than their default."""
    kind: Any = type(plan)
    return [name for name, option in find_settings(kind).items() if getattr(plan, name) != option.default]


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


def check_settings(plan: Any, error: type[MetristError] = RunError) -> None:
    """Raise an error for a value that is none of its choices or beyond its limits; for `__post_init__`."""
    kind: Any = type(plan)
    for name, declared in find_settings(kind).items():
        value = getattr(plan, name)
        if value is None:
            continue
        choices, setting = list_choices(declared.type), declared.setting
        if choices and value not in choices:
            known = ", ".join(map(str, choices))
            raise error(
                f"`{name}` must be one of {known}, got {value!r}{did_you_mean(str(value), choices)}",
                code="invalid_value",
            )
        if setting.describe_limits() and not setting.contains(value):
            raise error(f"`{name}` must be {setting.describe_limits()}, got {value!r}", code="invalid_value")


def checks_types(function: _F) -> _F:
    """Make a function check its arguments by `check_types` first."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # Whose message names the function.
        check_types(function, {name: value for name, value in bound.items() if name != "self"})
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def check_types(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise InputError for an argument that is not of the type which the function, or the dataclass, declares, and for
    an empty text; RunError for `draws` and `seed` beyond the limits that they have everywhere."""
    hints = _read_hints(function)
    for name, value in arguments.items():
        if name in hints and not _is_of(value, hints[name]):
            shown = f"{value!r:.60} ({type(value).__name__})"
            expected = str(inspect.signature(function).parameters[name].annotation).replace(" | None", "")
            rule = "not be empty" if value == "" else f"be {expected}, got {shown}"
            raise InputError(f"`{name}` must {rule}", code="invalid_value")
    draws, seed = arguments.get("draws"), arguments.get("seed")
    if draws is not None and (draws == 1 or not 0 <= draws <= MAX_DRAWS):
        raise RunError(f"`draws` must be from 2 to {MAX_DRAWS:,} (0: none), got {draws:,}", code="invalid_value")
    if seed is not None and seed < 0:
        raise RunError(f"`seed` must be at least 0, got {seed}", code="invalid_value")


@functools.cache
def _read_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The types that a function declares; those that only type checkers import are Any."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(function, localns=unknown)
        except NameError as error:
            unknown[str(error.name)] = Any


def _is_of(value: Any, annotation: Any) -> bool:
    kind, members = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, UnionType):
        return any(_is_of(value, member) for member in members)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and value != ""
    if kind is Mapping:
        return (
            isinstance(value, Mapping)
            and all(_is_of(key, members[0]) for key in value)
            and all(one == "" or _is_of(one, members[1]) for one in value.values())
        )
    if kind is Sequence:
        return (
            isinstance(value, Sequence) and not isinstance(value, str) and all(_is_of(one, members[0]) for one in value)
        )
    if kind is Literal:  # Which of them there are is checked, and said, where it is used.
        return type(value) in set(map(type, members))
    if getattr(kind, "_is_protocol", False):  # One with methods is checked where it is used.
        return callable(value) or "__call__" not in vars(kind)
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


# ---- Tables of TOML files


def check_table(
    settings: Mapping[str, SettingField], table: Mapping[str, Any], place: str, tables: Iterable[str] = ()
) -> None:
    """Raise InputError for a key of a TOML table that is no setting, and for a value of another type or beyond its
    limits. `tables` are names that a misspelt key may mean, too."""
    for key, value in table.items():
        if key not in settings:
            known = (*settings, *tables)
            hint = did_you_mean(key, known) or f"; known are {', '.join(known)}"
            raise InputError(f"{place} unknown setting {key!r}{hint}", code="unknown_name")
        option = settings[key]
        if not any(_accepts(member, option.setting, value) for member in list_members(option.type)):
            raise InputError(f"{place} {key} must be {describe_value(option)}, got {value!r}", code="invalid_value")


def list_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union but None, or the type itself."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for member in get_args(annotation) if member is not NoneType)
    return (annotation,)


def describe_value(option: SettingField) -> str:
    """Say what a TOML file may have for a setting."""
    texts = list[str]()
    plain = {bool: "true or false", tuple: "a list of strings"}
    for kind in list_members(option.type):
        if choices := list_choices(kind):
            texts.append(f"one of {', '.join(map(repr, choices))}")
        elif kind in (int, float):
            number, limits = "a whole number" if kind is int else "a number", option.setting.describe_limits()
            texts.append(f"{number}, {limits}" if limits.startswith("at") else f"{number} {limits}".rstrip())
        elif get_origin(kind) is Mapping:
            is_numeric = float in get_args(kind)
            texts.append("a table of numbers, such as {rougeL = 0.3}" if is_numeric else "a table of strings")
        else:
            texts.append(plain.get(get_origin(kind) or kind, "a string"))
    return " or ".join(texts)


def _accepts(annotation: Any, setting: Setting, value: Any) -> bool:
    if choices := list_choices(annotation):
        return value in choices
    if annotation is bool:
        return isinstance(value, bool)
    if annotation in (int, float):
        is_number = isinstance(value, int if annotation is int else int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and setting.contains(value)
    if get_origin(annotation) is Mapping:
        element = get_args(annotation)[1]
        return isinstance(value, dict) and bool(value) and all(_accepts(element, setting, v) for v in value.values())
    if get_origin(annotation) is tuple:
        return isinstance(value, list) and bool(value) and all(_accepts(str, setting, item) for item in value)
    return isinstance(value, str) and bool(value)


# ---- Settings that many functions share


def split_key(texts: list[str]) -> tuple[str, ...]:
    """Parse `["doc+segment"]` as the fields that together identify an item."""
    names = tuple(part for text in texts for part in text.split("+"))
    if not all(names):
        raise SpecError(f"must name fields, such as doc+segment, got {'+'.join(texts)!r}")
    return names


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


def parse_shares(texts: list[str]) -> dict[str, float]:
    """Parse `[".95", "judge=.8"]` as `{"*": 0.95, "judge": 0.8}`."""
    return parse_numbers([text if "=" in text else f"*={text}" for text in texts])


def _check_new(name: str, known: Container[str]) -> None:
    if name in known:
        raise SpecError(f"is given twice for {name!r}")


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """How records are read; the fields are keyword arguments of `read_records`."""

    item_key: str | tuple[str, ...] = setting(
        (), "Build the item's key from these fields, such as doc+segment.", metavar="A+B", parse=split_key
    )
    fields: Mapping[str, str] = setting(
        {}, "Read a field under another name, such as output=prediction.", "--field", metavar="OURS=THEIRS"
    )
    outputs: str | tuple[str, ...] | Mapping[str, str] | None = setting(
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
class InputSettings(ReadingSettings):
    """How records are read, and of which system they are."""

    system: str | None = setting(None, "The system's name, for files that do not name it.")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Where models run; the fields are keyword arguments of `score` and `prefer`."""

    device: str | None = setting(
        None, "Where models run: cpu, cuda, cuda:1, mps or map.", metavar="WHERE", shown="the best one"
    )
    batch_tokens: int | None = setting(None, "Tokens per model batch.", metavar="N", min=1, shown="as fits the device")
    cache: Path | None = setting(None, "Folder in which likelihoods and vectors are cached across runs.", metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class LLMLimits:
    """Limits of LLM calls."""

    max_cost: float | None = setting(
        None, "Send no request that could raise the cost above this.", metavar="USD", min=0
    )
    concurrency: int | None = setting(None, "Parallel requests to an LLM server.", metavar="N", min=1, shown="16")
    rpm: int | None = setting(None, "Requests per minute to an LLM server.", metavar="N", min=1)
    tpm: int | None = setting(None, "Tokens per minute to an LLM server.", metavar="N", min=1)


@dataclass(frozen=True, kw_only=True)
class LLMSettings(LLMLimits):
    """How LLMs are called; the fields are keyword arguments of every function that calls them."""

    fresh: bool = setting(False, "Request LLM answers again that are already stored.")
    retry_failed: bool = setting(False, "Request stored LLM answers again that failed or could not be read.")
