"""Settings are spelled once: what holds for every dataclass of settings, on the command line, in Python and in TOML."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, make_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
from typer.testing import CliRunner

from error_codes import raises_code
from metrist.cli.app import app
from metrist.cli.options import LayoutOptions, expand_options
from metrist.cli.output import name_options
from metrist.cli.train_options import AnalysisTrainingOptions, PreferenceTrainingOptions, TrainingOptions
from metrist.cli.train_study import SuiteOptions
from metrist.data.rules import Rules
from metrist.data.settings import ExampleSettings
from metrist.errors import InputError, MetristError, RunError
from metrist.evaluate.audit import audit
from metrist.evaluate.compare.check import check
from metrist.evaluate.compare.comparison import compare
from metrist.evaluate.compare.methods import describe_methods
from metrist.evaluate.explain.explain import explain
from metrist.evaluate.meta import meta_evaluate
from metrist.evaluate.plans import AuditPlan, CheckSettings, ComparisonSettings, JoinSettings, JudgeSettings, MetaPlan
from metrist.io.reader import read_records
from metrist.run import score
from metrist.run.prefer import prefer
from metrist.settings import (
    InputSettings,
    LLMSettings,
    ModelSettings,
    SettingField,
    check_table,
    find_settings,
    list_changed,
    list_choices,
    setting,
)
from metrist.train.error_analysis import ErrorAnalysisTask
from metrist.train.preference import PreferenceTask
from metrist.train.recipe import AnalystSettings, PreferenceSettings, Recipe
from metrist.web.annotation.plan import ProjectPlan
from metrist.web.annotation.setup import set_up
from metrist.web.service.settings import ServiceOptions

PLANS = [
    *(InputSettings, ModelSettings, LLMSettings, LayoutOptions, MetaPlan, JoinSettings, ComparisonSettings),
    *(CheckSettings, JudgeSettings, AuditPlan, PreferenceSettings, AnalystSettings, TrainingOptions),
    *(PreferenceTrainingOptions, AnalysisTrainingOptions, SuiteOptions, Rules, ExampleSettings, ProjectPlan),
    ServiceOptions,
]
#: Functions and classes that take the settings of a plan as arguments.
TAKES: list[tuple[Callable[..., Any], Any]] = [
    (read_records, InputSettings),
    *((function, LLMSettings) for function in (score, prefer, explain, audit)),
    *((function, ModelSettings) for function in (score, prefer)),
    *((meta_evaluate, plan) for plan in (MetaPlan, JoinSettings)),
    *((function, ComparisonSettings) for function in (compare, describe_methods)),
    (check, CheckSettings),
    (audit, JudgeSettings),
    (set_up, ProjectPlan),
    (PreferenceTask, PreferenceSettings),
    (ErrorAnalysisTask, AnalystSettings),
]
COMMANDS = ["score", "meta", "check", "audit", "annotate", "serve", "build pairs", "train preference"]


def example(option: SettingField) -> tuple[str, Any]:
    """A value as the command line gives it, and the setting's value then."""
    members = (option.type, *get_args(option.type))
    if choices := list_choices(option.type):
        return choices[-1], choices[-1]
    if option.type == Mapping[str, Any] or Mapping[str, float] in get_args(option.type):
        return "a=0.5", {"a": 0.5}
    if option.type == Mapping[str, str]:
        return "a=b", {"a": "b"}
    if Mapping[str, float] in members:
        return "a=0.5", {"a": 0.5}
    for kind in (int, float):
        if kind in members:
            value = kind(option.setting.max or max(option.setting.min or 0, 3)) * (0.5 if option.setting.open else 1)
            return str(value), value
    if Path in members:
        return "a", Path("a")
    return "a", "a" if option.type in (str, str | None) else ("a",)


def received(plan: Any, arguments: list[str]) -> Any:
    """What a command gets whose options are those of a plan."""
    values = []

    def command(*, settings: Any) -> None:
        values.append(settings)

    command.__annotations__["settings"] = plan
    single = typer.Typer()
    single.command()(expand_options(command))
    result = CliRunner().invoke(single, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return values[0]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.__name__)
def test_every_option_reaches_its_setting(plan: Any) -> None:
    assert list_changed(received(plan, [])) == []
    for name, option in find_settings(plan).items():
        assert option.setting.help.endswith((".", "…")), name
        flag = next(flag for flag in option.setting.option_names(name) if "--" in flag)
        on, _, off = flag.partition("/")
        if bool in (option.type, *get_args(option.type)):
            arguments, expected = [off if option.default else on], not option.default
        else:
            text, expected = example(option)
            arguments = [on, text]
        if name == "one_sided":
            arguments += ["--test", "sign"]
        assert getattr(received(plan, arguments), name) == expected, name


@pytest.mark.parametrize(
    "plan", [MetaPlan, AuditPlan, Recipe, PreferenceSettings, Rules], ids=lambda plan: plan.__name__
)
def test_values_beyond_their_limits_and_choices_are_refused_by_the_name_of_the_argument(plan: Any) -> None:
    for name, option in find_settings(plan).items():
        wrong: Any = "nonsense" if list_choices(option.type) else None
        if option.setting.min is not None:
            wrong = option.setting.min - (0 if option.setting.open else 1)
        if wrong is not None:
            with pytest.raises(MetristError, match=f"`{name}` must be") as caught:
                plan(**{name: wrong})
            assert caught.value.code == "invalid_value"


@pytest.mark.parametrize(("function", "plan"), TAKES, ids=lambda value: value.__name__)
def test_a_function_has_the_arguments_of_its_plan(function: Callable[..., Any], plan: Any) -> None:
    parameters = inspect.signature(function).parameters
    for name, option in find_settings(plan).items():
        default = parameters[name].default
        factory = getattr(default, "default_factory", MISSING)
        assert (default or None) == (option.default or None) or factory is not MISSING, name


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_a_command_have_different_names(command: str) -> None:
    built: Any = typer.main.get_command(app)
    for name in command.split():
        built = built.commands[name]
    flags = [flag for parameter in built.params for flag in (*parameter.opts, *parameter.secondary_opts)]
    assert len(flags) == len(set(flags))


def test_messages_name_options_on_the_command_line() -> None:
    options = {**find_settings(MetaPlan), **find_settings(JoinSettings)}
    message = "`top_k` and `test='sign'`, `preferences=True`, `weighted=False`, `draws=0`; `aspects`, `metrist list`"
    expected = "--top-k and --test sign, --preferences, --unweighted, --draws 0; --aspect, `metrist list`"
    assert name_options(message, options) == expected


@pytest.mark.parametrize("value", ["{[]: 1}", "[", "a\x00b", "(" * 9_000])
def test_messages_may_quote_what_looks_like_an_argument(value: str) -> None:
    assert name_options(f"`draws={value}`", find_settings(MetaPlan)).startswith("--draws ")


def test_a_subclass_changes_a_default_and_keeps_the_help() -> None:
    tuned: Any = make_dataclass("Tuned", [("lr", float, 1.0)], bases=(Recipe,), frozen=True, kw_only=True)
    assert find_settings(tuned)["lr"].setting == find_settings(Recipe)["lr"].setting
    assert find_settings(tuned)["lr"].default == 1.0


@pytest.mark.parametrize(
    ("annotation", "limits", "right", "wrong", "description"),
    [
        (int, {"min": 1}, 1, 0, "a whole number, at least 1"),
        (int, {}, 5, True, "a whole number"),
        (float | None, {"min": 0, "max": 1}, 1, 1.5, "a number from 0 to 1"),
        (float, {"min": 0, "max": 1, "open": True}, 0.5, 1, "a number between 0 and 1"),
        (bool, {}, True, "yes", "true or false"),
        (str, {}, "a", "", "a string"),
        (str | tuple[str, ...], {}, ["a"], [], "a string or a list of strings"),
        (Mapping[str, float], {}, {"a": 1}, {"a": "b"}, "a table of numbers"),
        (Mapping[str, str] | None, {}, {"a": "b"}, {"a": 1}, "a table of strings"),
    ],
)
def test_a_table_is_checked_by_types_and_limits(
    annotation: Any, limits: dict[str, Any], right: Any, wrong: Any, description: str
) -> None:
    plan: Any = make_dataclass("Plan", [("size", annotation, setting(None, "The size.", **limits))])
    check_table(find_settings(plan), {"size": right}, "a.toml:")
    with pytest.raises(InputError, match=f"a.toml: size must be {description}"):
        check_table(find_settings(plan), {"size": wrong}, "a.toml:")
    with raises_code(InputError, "unknown_name", "'sise'", "'size'"):
        check_table(find_settings(plan), {"sise": right}, "a.toml:")


def test_an_argument_that_is_wrong_is_named_as_an_option() -> None:
    with raises_code(RunError, "conflict", "--test"):
        received(MetaPlan, ["--one-sided"])
