"""`metrist answers` and `metrist cache`: stored answers of LLMs, and cached results of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli.options import Format, TableFormat
from metrist.errors import ModelError

if TYPE_CHECKING:
    from metrist.llm.cache import AnswerCache


Folder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="The folder of stored answers.",
        show_default="$METRIST_LLM_CACHE, or the user's cache folder",
    ),
]
LLMName = Annotated[
    str | None,
    typer.Option("--llm", metavar="SPEC", help="Only answers of this LLM, as `metrist answers size` names it."),
]


def size(folder: Folder = None, form: TableFormat = Format.text) -> None:
    """Print how many answers of each LLM are stored."""
    from metrist.cli.output import print_table
    from metrist.report.tables import Column, Count, Table

    cache = _open_existing(folder)
    contents = cache.contents()
    table = Table(
        columns=[Column("LLM"), Column("answers", "right")],
        rows=[[llm, Count(count)] for llm, count in contents.answers.items()],
        notes=[f"{cache.path}: {contents.size / 1e6:,.1f} MB"],
    )
    print_table(table, form)


def export(
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write: .jsonl, also .jsonl.gz, .xz or .zst.")
    ],
    llm: LLMName = None,
    folder: Folder = None,
) -> None:
    """Write answers to a JSONL file that others can import or replay. It contains no API keys."""
    from metrist.cli.output import format_count, print_text
    from metrist.io.compression import uncompressed_name
    from metrist.io.writer import check_writable
    from metrist.llm.replay import write_answers

    if not uncompressed_name(out).lower().endswith(".jsonl"):
        raise ModelError(f"cannot write answers to {out}: the name must end in .jsonl (also .gz, .xz, .zst)")
    check_writable(out)
    cache = _open_existing(folder)
    counts = cache.contents().answers
    if not (counts if llm is None else counts.get(llm)):
        raise ModelError(f"there are no answers{f' of {llm}' if llm else ''} to export: see `metrist answers size`")
    print_text(f"{out}: {format_count(write_answers(cache.entries(llm), out), 'answer')}")


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files that `metrist answers export` wrote.")],
    folder: Folder = None,
) -> None:
    """Add the answers of files to the stored ones, which are kept."""
    from metrist.cli.output import format_count, print_text
    from metrist.llm.replay import import_answers

    cache = _open(folder)
    for file in files:
        count, new = import_answers(cache, file)
        print_text(f"{file}: {format_count(count, 'answer')}, {new:,} of them new")


def clear(llm: LLMName = None, folder: Folder = None) -> None:
    """Delete stored answers: the next run asks, and pays, again."""
    from metrist.cli.output import format_count, print_text

    print_text(f"{format_count(_open_existing(folder).clear(llm), 'answer')} deleted")


def _open_existing(folder: Path | None) -> AnswerCache:
    cache = _open(folder)
    if not cache.exists:
        raise ModelError(f"{cache.path.parent} has no stored answers of LLMs; use --cache for another folder")
    return cache


def _open(folder: Path | None) -> AnswerCache:
    from metrist.llm.cache import AnswerCache, open_cache

    return AnswerCache(folder.absolute()) if folder else open_cache()


def cache(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that was used with --cache.")],
    clear: Annotated[bool, typer.Option("--clear", help="Delete the contents.")] = False,
) -> None:
    """Print the size of a cache of likelihoods and vectors; --clear empties it."""
    from metrist.cli.output import print_text
    from metrist.models.sqlite_store import CACHE_NAME, CacheFile

    if not (folder / CACHE_NAME).exists():
        raise ModelError(f"{folder} has no cache: expected a folder that `metrist score --cache` has used")
    file = CacheFile(folder)
    if clear:
        file.clear()
    contents = file.contents()
    print_text(f"{folder}: {contents.entries:,} entries, {contents.size / 1e6:,.1f} MB")
