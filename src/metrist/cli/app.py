"""The command `metrist`: one small module a verb. Verbs import what they need when they run, so `--help` is quick."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from metrist._version import __version__
from metrist.cli.audit import audit
from metrist.cli.build import build
from metrist.cli.cache import answers, cache
from metrist.cli.catalog import explain_metric, list_metrics
from metrist.cli.compare import calibrate, check, compare
from metrist.cli.convert import convert, export
from metrist.cli.explain import aspects, explain, heat
from metrist.cli.meta import meta, prompts, reproduce
from metrist.cli.output import remark
from metrist.cli.prefer import prefer
from metrist.cli.score import run, score
from metrist.cli.train import train
from metrist.errors import MetristError

app = typer.Typer(
    name="metrist",
    help="Score generated text, explain its errors, and learn which metric to trust on your own data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("score")(score)
app.command("prefer")(prefer)
app.command("compare")(compare)
app.command("check")(check)
app.command("meta")(meta)
app.command("prompts")(prompts)
app.command("calibrate")(calibrate)
app.command("run")(run)
app.command("audit")(audit)
app.command("reproduce")(reproduce)
app.add_typer(build)
app.add_typer(train)
app.command("heat")(heat)
app.command("explain")(explain)
app.command("aspects")(aspects)
app.command("cache")(cache)
app.add_typer(answers)
app.command("export")(export)
app.command("convert")(convert)
app.command("list")(list_metrics)
app.command("explain-metric")(explain_metric)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"metrist {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Score generated text, explain its errors, and learn which metric to trust on your own data."""


_BY_CTRL_C = 130


def main() -> None:
    """Run the command line; whatever the user can mend is one line on standard error and exit code 2."""
    try:
        app(args=_spread(sys.argv[1:], "--systems"))
    except MetristError as fault:
        remark(str(fault))
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # The library beneath turns Ctrl-C into this exit code, without a word.
        if isinstance(end, SystemExit) and end.code != _BY_CTRL_C:
            raise
        remark(_interrupted())
        sys.exit(_BY_CTRL_C)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is wrong, but Python would complain at exit.
        _close_output()
        sys.exit(1)
    except OSError as fault:
        # Without a file's name it is standard output that cannot be written to.
        remark(f"{fault.filename or 'cannot write what was found'}: {fault.strerror or fault}")
        _close_output()
        sys.exit(2)


def _interrupted() -> str:
    """What is to be said of an end by Ctrl-C; a run that asked no LLM has not even loaded what counts answers."""
    base = sys.modules.get("metrist.llm.base")
    kept = base.stored_completions() if base else 0
    if not kept:
        return "interrupted"
    answers = "1 answer is" if kept == 1 else f"{kept:,} answers are"
    return f"interrupted; {answers} kept: the same command goes on from there"


def _close_output() -> None:
    """Give standard output to nobody: what is left in its buffer would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _spread(arguments: list[str], option: str) -> list[str]:
    """Let one option take several values: `--systems A B` becomes `--systems A --systems B`."""
    spread: list[str] = []
    taking = False
    for argument in arguments:
        if taking and not argument.startswith("-") and spread[-1] != option:
            spread.append(option)
        taking = argument == option or (taking and not argument.startswith("-"))
        spread.append(argument)
    return spread
