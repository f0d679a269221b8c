"""Write the generated pages of the docs: `make docs`, or `python docs/build.py`.

docs/reference/metrics has one page per family of metrics, from their cards, and an overview;
docs/reference/card.schema.json is the schema of cards; docs/reference/commands.md has one section per command, from its
options; docs/reference/api.md has the public names of the package, from their docstrings. tests/test_docs.py checks
that they are up to date. With `--packages` there is a page of the metrics that installed packages add, too.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from metrist.cli.app import app
from metrist.metrics import cards, registry
from metrist.metrics.agreement import format_agreement
from metrist.metrics.base import Metric
from metrist.metrics.card_format import card_schema

DOCS = Path(__file__).resolve().parent

_GENERATED = "<!-- Generated from the cards in src/metrist/metrics/cards by `make docs`; edit those, not this page. -->"
_OVERVIEW = f"""\
# The metrics

{_GENERATED}

Look up what a metric measures, how to read its score, and when not to trust it:

```sh
metrist explain-metric chrf
```

The command also prints the signature of the metric with the settings that you give. The pages below have the same text
for all metrics; `metrist list` lists them on the command line.
"""
#: The titles of the pages, which are named after the families of the catalog.
_PAGES = {
    "rouge": "ROUGE",
    "lexical": "BLEU, chrF, TER, METEOR and exact matches",
    "descriptive": "Descriptions: length, copying, diversity",
    "embedding": "Embedding metrics",
    "likelihood": "Likelihood metrics",
    "preference": "Metrics trained on preferences, and calibrated ones",
    "trained": "Metrics trained on other human judgments",
    "errors": "Metrics that explain errors",
    "judges": "LLM judges, and comparators of two outputs",
    "external": "Metrics of other packages and programs",
}
_PACKAGES_PAGE = {registry.OTHER_FAMILY: "Metrics that installed packages add"}
_COMMANDS_HEAD = """\
# The command line

<!-- Generated from the code by `make docs`; edit src/metrist/cli, not this page. -->

`metrist COMMAND --help` prints the options of a command. This page lists those of all commands. `metrist --version`
prints the version.

Exit codes: 0, success; 1, a check of `check`, `card check`, `run` or `build leaks` failed; 2, an error that you can
fix, described in one line on standard error (for a wrong option, with the usage); 130, interrupted.
"""
_OPENING = {"good_for": "Good for", "beaten_by": "Beaten by", "instead": "Instead"}
_QUESTIONS = {
    "range": "Range",
    "reading": "How to read it",
    "distrust": "When not to trust it",
    "citation": "Citation",
}


def metric_pages(*, packages: bool = False) -> dict[str, str]:
    """Return the pages of metrics by file name: an overview, and a page per family with a section per card."""
    titles = _PAGES | (_PACKAGES_PAGE if packages else {})
    by_page: dict[str, list[list[Metric]]] = {page: [] for page in titles}
    for family in _families(packages):
        by_page[registry.family(family[0].name)].append(family)
    rows = [_overview_row(family, page) for page, families in by_page.items() for family in families]
    overview = "\n".join([_OVERVIEW, "| metric | needs | better |", "|---|---|---|", *rows, ""])
    pages = {
        page: "\n".join([f"# {titles[page]}\n\n{_GENERATED}", *map(_section, families), ""])
        for page, families in by_page.items()
    }
    return {"README.md": overview} | {_file_name(page): text for page, text in pages.items()}


def _file_name(page: str) -> str:
    return f"{page.replace(' ', '-')}.md"


def _families(packages: bool) -> list[list[Metric]]:
    """Return the metrics, grouped by shared cards; those of other packages only where the docs are to have them."""
    families: dict[str, list[Metric]] = {}
    for name in registry.names():
        if packages or registry.family(name) != registry.OTHER_FAMILY:
            metric = registry.example(name)
            families.setdefault(repr(cards.card(name)), []).append(metric)
    return list(families.values())


def _title(family: list[Metric]) -> str:
    names = [f"`{metric.name}`" for metric in family]
    return f"{names[0]} … {names[-1]}" if len(names) > 3 else ", ".join(names)


def _overview_row(family: list[Metric], page: str) -> str:
    anchor = re.sub(r"[^\w\- ]", "", _title(family).lower()).replace(" ", "-")  # As GitHub names headings.
    return f"| [{_title(family)}]({_file_name(page)}#{anchor}) | {_needs(family[0])} | {_better(family[0])} |"


def _section(family: list[Metric]) -> str:
    metric, card = family[0], cards.card(family[0].name)
    low, high = metric.bounds
    facts = f"Needs {_needs(metric)} · {_direction(metric)} · {low:g} to {high:g}"
    answers = [f"**{title}.** {text}" for field, title in _QUESTIONS.items() if (text := getattr(card, field))]
    opening = [f"**{title}.** {text}" for field, title in _OPENING.items() if (text := getattr(card, field))]
    blocks = [f"\n## {_title(family)}", facts, *opening, card.measures, *answers, f"**Licence.** {card.licence}"]
    blocks += [*_guidance(card.guidance), *_training_data(card), *_agreement(card), *_settings(metric, card.settings)]
    return "\n\n".join(blocks)


def _guidance(advice: Sequence[cards.Advice]) -> Iterator[str]:
    if advice:
        lines = [f"| {row.aspects} | `{row.use}` | {row.why} |" for row in advice]
        yield "\n".join(["| to judge | use | because |", "|---|---|---|", *lines])


def _training_data(card: cards.Card) -> Iterator[str]:
    if card.training_data:
        lines = [f"| {data.name} | {data.use} | {data.licence} |" for data in card.training_data]
        yield "\n".join(["| training data | what was learned | licence |", "|---|---|---|", *lines])


def _agreement(card: cards.Card) -> Iterator[str]:
    if card.agreement:
        yield "\n".join(["**Agreement with people.**", "", *(f"- {format_agreement(row)}" for row in card.agreement)])


def _settings(metric: Metric, texts: Mapping[str, str]) -> Iterator[str]:
    lines = [_setting(field, texts) for field in _fields(metric)]
    if lines:
        yield "\n".join(["| setting | default | |", "|---|---|---|", *lines])


def _fields(metric: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(metric) if field.init and field.name not in metric.in_name]


def _setting(field: dataclasses.Field[Any], texts: Mapping[str, str]) -> str:
    default = "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
    return f"| `{field.name}` | {default} | {texts.get(field.name, '').replace('|', chr(92) + '|')} |"


def _needs(metric: Metric) -> str:
    return ", ".join(("output", *metric.needs))


def _better(metric: Metric) -> str:
    return {True: "higher", False: "lower", None: "neither: it describes"}[metric.higher_is_better]


def _direction(metric: Metric) -> str:
    return "describes, does not judge" if metric.higher_is_better is None else f"{_better(metric)} is better"


def commands_page() -> str:
    """Return the page of commands: what each does, its arguments and options."""
    commands = _iterate_commands(typer.main.get_command(app))
    return "\n".join([_COMMANDS_HEAD, *(_command_section(name, command) for name, command in commands)])


def _iterate_commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group and its subgroups with their full names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _iterate_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _command_section(name: str, command: Any) -> str:
    rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
    return "\n".join([f"## `metrist {name}`", "", command.help, "", "| | default | |", "|---|---|---|", *rows, ""])


def _parameter(parameter: Any) -> str:
    # An option whose default is None may describe what that means.
    description = getattr(parameter, "show_default", None)
    default = description if isinstance(description, str) else _default(parameter.default)
    text = (parameter.help or "").replace("|", chr(92) + "|")
    return f"| {_usage(parameter)} | {'required' if parameter.required else default} | {text} |"


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name}`"
    # Long names first, as people look them up.
    names = sorted(parameter.opts, key=lambda name: (not name.startswith("--"), name))
    value = f" `{parameter.metavar}`" if parameter.metavar else ""
    return ", ".join(f"`{name}`" for name in names) + value


def _default(value: Any) -> str:
    return "" if value is None or value is False or value == "" else f"`{value}`"


_API_HEAD = """\
# The Python API

<!-- Generated from docstrings by `make docs`; edit those, not this page. -->

`import metrist` is quick: what a name needs is imported when it is used. [Python and notebooks](../guides/notebook.md)
shows how to begin. [Versions](versioning.md) says what may change.
"""
#: The modules whose public names are listed, and the titles of their sections.
_API = {
    "metrist": "metrist",
    "metrist.run.executors": "metrist.run.executors: where a run is scored",
    "metrist.compat": "metrist.compat: drop-ins for other packages",
    "metrist.compat.bert_score": "metrist.compat.bert_score",
    "metrist.compat.evaluate": "metrist.compat.evaluate",
    "metrist.client": "metrist.client: calls of `metrist serve`",
}
#: The names to list where a module also has others that only metrist needs.
_API_NAMES = {"metrist.run.executors": ["Executor", "Processes", "Ray", "Resources", "Serial"]}


def api_page() -> str:
    """Return the page of public names: signatures and docstrings."""
    sections = [_API_HEAD]
    for module_name, title in _API.items():
        module = importlib.import_module(module_name)
        sections.append(f"## {title}\n")
        defined = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module_name
        ]
        names = _API_NAMES.get(module_name) or getattr(module, "__all__", None) or defined
        sections += [_api_entry(name, getattr(module, name)) for name in sorted(names, key=str.lower)]
    return "\n".join(sections)


def _api_entry(name: str, value: Any) -> str:
    if not (inspect.isclass(value) or callable(value)):
        return f"### `{name}`\n"
    parts = [f"### `{name}`", _signature(name, value), inspect.getdoc(value) or ""]
    methods = vars(value).items() if inspect.isclass(value) and not issubclass(value, Exception) else ()
    for method_name, method in methods:
        function = getattr(method, "__func__", method)
        if method_name.startswith("_") or not inspect.isfunction(function):
            continue
        summary = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        parts.append(f"- `.{method_name}{_parameters(function)}`{': ' if summary else ''}{summary}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _signature(name: str, value: Any) -> str:
    """The call as a block of code; nothing where Python cannot tell it, or where it is too general to help."""
    parameters = _parameters(value)
    return "" if parameters in ("", "(*args, **kwargs)") else f"```text\n{name}{parameters}\n```"


def _parameters(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    kept = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_plain_default(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


class _Code(str):
    """A default as it is shown."""

    def __repr__(self) -> str:
        return str(self)


def _plain_default(default: Any) -> Any:
    """Defaults whose representation holds an address or differs between versions of Python are shown as …"""
    if default is inspect.Parameter.empty or isinstance(default, str | int | float | bool | type(None)):
        return default
    return default if default in ((), [], {}) else _Code("…")


if __name__ == "__main__":
    (DOCS / "reference" / "api.md").write_text(api_page(), encoding="utf-8")
    (DOCS / "reference" / "commands.md").write_text(commands_page(), encoding="utf-8")
    (DOCS / "reference" / "card.schema.json").write_text(json.dumps(card_schema(), indent=2) + "\n", encoding="utf-8")
    for file, text in metric_pages(packages="--packages" in sys.argv[1:]).items():
        (DOCS / "reference" / "metrics" / file).write_text(text, encoding="utf-8")
