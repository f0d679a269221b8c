"""The command `metrist`: the tree of its subcommands, and how errors end it.

Each command is imported when it is called, so that `--help` is quick.
"""

from __future__ import annotations

import io
import os
import sys
import tomllib
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module, resources
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from metrist._version import __version__
from metrist.cli.options import expand_options
from metrist.cli.output import print_note
from metrist.errors import MetristError, format_count

_INTERRUPTED = 130
#: What loading a library, and Python, say where memory runs out.
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory", "cannot allocate memory", "can't start new thread")
#: Options that take several values: `--systems A B`; those of `metrist sacrebleu` are its own.
_REPEATED = ("--systems",)
_SACREBLEU_REPEATED = ("-m", "--metrics", "-i", "--input")
_CONTEXT = {"help_option_names": ["-h", "--help"]}


class LazyCommand(TyperCommand):
    """A command whose module is imported when its options are needed, and not for the list of commands."""

    def __init__(self, name: str, function: str, help: str) -> None:  # noqa: A002
        self._function = function
        # Without `short_help` the list of commands cuts each description off after a few words.
        super().__init__(name, help=help, short_help=help, rich_markup_mode=None, context_settings=dict(_CONTEXT))

    @cached_property
    def _command(self) -> Any:
        module, _, function = self._function.partition(".")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command()(expand_options(getattr(import_module(f"metrist.cli.{module}"), function)))
        return get_command(single)

    @property
    def params(self) -> Any:
        return self._command.params

    @params.setter
    def params(self, value: Any) -> None:
        """The constructor of the base sets it to nothing."""

    @property
    def callback(self) -> Any:
        return self._command.callback

    @callback.setter
    def callback(self, value: Any) -> None:
        """The constructor of the base sets it to nothing."""


def _group(name: str, help_text: str, commands: Mapping[str, tuple[str, str]]) -> typer.Typer:
    class Group(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            lazy = {
                name: LazyCommand(name, function, description) for name, (function, description) in commands.items()
            }
            self.commands = {**lazy, **self.commands}

    return typer.Typer(
        name=name,
        cls=Group,
        help=help_text,
        short_help=help_text,
        no_args_is_help=True,
        add_completion=name == "metrist",
        pretty_exceptions_enable=False,
        # Help without rich: its import alone takes as long as the rest of `metrist --help`.
        rich_markup_mode=None,
        context_settings=dict(_CONTEXT),
    )


_COMMANDS = tomllib.loads((resources.files(__package__) / "commands.toml").read_text(encoding="utf-8"))
_HELP = {
    "metrist": "Score generated text, explain its errors, and learn which metric to trust on your own data.",
    "build": "Build training data: pairs of a good and a bad answer, and outputs with their errors.",
    "train": "Train a metric of your own.",
    "answers": "Stored answers of LLMs: count, export, import or delete them.",
    "card": "Cards that describe metrics: check them, print the schema of their format.",
}

app = _group("metrist", _HELP["metrist"], _COMMANDS["metrist"])
for _name in ("build", "train", "answers", "card"):
    app.add_typer(_group(_name, _HELP[_name], _COMMANDS[_name]))


@app.callback(invoke_without_command=True)
def _common(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"metrist {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line. An error that the user can fix prints one line on standard error and exits with 2."""
    arguments = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Not every terminal can encode the user's data.
    try:
        for option in _SACREBLEU_REPEATED if arguments[:1] == ["sacrebleu"] else _REPEATED:
            arguments = _repeat_option(arguments, option)
        app(args=arguments)
    except MetristError as error:
        print_note(str(error))
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer turns Ctrl-C into this exit code without a message.
        if isinstance(stop, SystemExit) and stop.code != _INTERRUPTED:
            raise
        print_note(_describe_interruption())
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output (head, less) is gone. That is no error, but Python would report it at exit.
        _close_output()
        sys.exit(1)
    except OSError as error:
        # Without a file's name, standard output is what cannot be written to.
        print_note(f"{error.filename or 'cannot write the results'}: {error.strerror or error}")
        _close_output()
        sys.exit(2)
    except (MemoryError, ImportError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in _NO_MEMORY):
            raise
        print_note("not enough memory; what was stored is whole, and the same command goes on with more memory")
        sys.exit(2)


def _describe_interruption() -> str:
    """Describe what an interrupted command has kept and how to resume it. The command line is read again, because the
    interruption may have come before its options were parsed."""
    from argparse import ArgumentParser

    arguments = sys.argv[1:]
    # A run that asked no LLM has not even loaded the module that counts answers.
    base = sys.modules.get("metrist.llm.base")
    stored = base.stored_completions if base else 0
    if stored:
        answers = format_count(stored, "answer is", "answers are")
        command = "without --fresh to use them" if "--fresh" in arguments else "again to continue"
        return f"interrupted; {answers} kept: run the same command {command}"
    if arguments[:1] not in (["score"], ["prefer"]) or "--dry-run" in arguments:
        return "interrupted"
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-o", "--out", nargs="?")
    out = parser.parse_known_args(arguments)[0].out
    if out and any((Path(out) / folder).is_dir() for folder in ("scores", "judgments", "log")):
        return f"interrupted; {out} keeps what was scored so far: run the same command again to continue"
    if out and (out.endswith("/") or not Path(out).suffix):
        return "interrupted before anything was scored"
    return "interrupted; nothing was stored: with a folder (-o run/) the same command would continue where it stopped"


def _close_output() -> None:
    """Redirect standard output to the null device: flushing its buffer would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _repeat_option(arguments: list[str], option: str) -> list[str]:
    """Let an option take several values: `--systems A B` becomes `--systems A --systems B`."""
    repeated: list[str] = []
    is_value = False
    for argument in arguments:
        if is_value and not argument.startswith("-") and repeated[-1] != option:
            repeated.append(option)
        is_value = argument == option or (is_value and not argument.startswith("-"))
        repeated.append(argument)
    return repeated
