"""The command `metrist`: the tree of its subcommands, and how errors end it.

Each command imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from metrist._version import __version__
from metrist.cli import build, build_error_analysis, cache, train, train_error_analysis, train_study
from metrist.cli.annotate import annotate
from metrist.cli.audit import audit, questionnaire
from metrist.cli.compare import calibrate, check, compare, methods, verify
from metrist.cli.convert import convert, export
from metrist.cli.doctor import doctor
from metrist.cli.explain import aspects, explain, heat, worst
from metrist.cli.meta import meta
from metrist.cli.metrics import explain_metric, list_metrics, prompts, reproduce
from metrist.cli.output import print_note
from metrist.cli.prefer import prefer
from metrist.cli.query import query
from metrist.cli.report import plot, report
from metrist.cli.sacrebleu import REPEATED_OPTIONS, sacrebleu
from metrist.cli.score import remove, run, score
from metrist.cli.serve import serve
from metrist.cli.setup import setup
from metrist.cli.stress import stress
from metrist.cli.view import view
from metrist.errors import MetristError, format_count

_INTERRUPTED = 130
#: What loading a library, and Python, say where memory runs out.
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory", "cannot allocate memory", "can't start new thread")


def _group(
    name: str, help_text: str, commands: Mapping[str, Callable[..., Any]], *, completion: bool = False
) -> typer.Typer:
    group = typer.Typer(
        name=name,
        help=help_text,
        short_help=help_text,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        # Help without rich: its import alone takes a third of the time of `metrist --help`.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command_name, command in commands.items():
        # Without `short_help` the list of commands cuts each description off after a few words.
        group.command(command_name, short_help=command.__doc__)(command)
    return group


app = _group(
    "metrist",
    "Score generated text, explain its errors, and learn which metric to trust on your own data.",
    {
        "score": score,
        "prefer": prefer,
        "compare": compare,
        "methods": methods,
        "check": check,
        "verify": verify,
        "worst": worst,
        "query": query,
        "report": report,
        "plot": plot,
        "view": view,
        "serve": serve,
        "meta": meta,
        "prompts": prompts,
        "calibrate": calibrate,
        "run": run,
        "audit": audit,
        "questionnaire": questionnaire,
        "annotate": annotate,
        "stress": stress,
        "reproduce": reproduce,
        "heat": heat,
        "explain": explain,
        "aspects": aspects,
        "cache": cache.cache,
        "remove": remove,
        "export": export,
        "convert": convert,
        "sacrebleu": sacrebleu,
        "setup": setup,
        "doctor": doctor,
        "list": list_metrics,
        "explain-metric": explain_metric,
    },
    completion=True,
)
app.add_typer(
    _group(
        "build",
        "Build training data: pairs of a good and a bad answer, and outputs with their errors.",
        {
            "heap": build.heap,
            "pairs": build.pairs,
            "split": build.split,
            "leaks": build.leaks,
            "error-analysis": build_error_analysis.error_analysis,
        },
    )
)
app.add_typer(
    _group(
        "train",
        "Train a metric of your own.",
        {
            "likelihood": train.likelihood,
            "preference": train.preference,
            "consistency": train.consistency,
            "error-analysis": train_error_analysis.error_analysis,
            "tables": train_study.tables,
            "export": train.export,
        },
    )
)
app.add_typer(
    _group(
        "answers",
        "Stored answers of LLMs: count, export, import or delete them.",
        {"size": cache.size, "export": cache.export, "import": cache.import_, "clear": cache.clear},
    )
)


@app.callback(invoke_without_command=True)
def _common(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Score generated text, explain its errors, and learn which metric to trust on your own data."""
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
        for option in REPEATED_OPTIONS if arguments[:1] == ["sacrebleu"] else ("--systems",):
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
    # A run that asked no LLM has not even loaded the module that counts answers.
    base = sys.modules.get("metrist.llm.base")
    stored = base.stored_completions() if base else 0
    if not stored:
        return _describe_stored_scores(sys.argv[1:])
    answers = format_count(stored, "answer is", "answers are")
    command = "without --fresh to use them" if "--fresh" in sys.argv else "again to continue"
    return f"interrupted; {answers} kept: run the same command {command}"


def _describe_stored_scores(arguments: list[str]) -> str:
    """What an interrupted command leaves, and how to go on. Read from the command line: the interruption may have come
    before its options were."""
    if arguments[:1] not in (["score"], ["prefer"]) or "--dry-run" in arguments:
        return "interrupted"
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    outs = [
        following if argument in ("-o", "--out") else argument.removeprefix("--out=").removeprefix("-o")
        for argument, following in pairs
        if argument in ("-o", "--out") or argument.startswith(("--out=", "-o"))
    ]
    out = outs[-1] if outs else ""
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
