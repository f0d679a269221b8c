"""`metrist answers`: what LLMs have answered, kept so that nothing is paid for twice."""

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
    typer.Option("--cache", metavar="DIR", help="The cache's folder; METRIST_LLM_CACHE, or the user's, unless given."),
]
Of = Annotated[
    str | None,
    typer.Option("--llm", metavar="SPEC", help="Only this LLM's, by its text as `metrist answers size` has it."),
]


def size(folder: Folder = None, form: TableFormat = Format.text) -> None:
    """Say how many answers of which LLMs are kept."""
    from metrist.cli.output import print_table
    from metrist.report.cells import Count
    from metrist.report.tables import Column, Table

    cache = _cache(folder)
    held = cache.contents()
    table = Table(
        columns=[Column("LLM"), Column("answers", "right")],
        rows=[[llm, Count(count)] for llm, count in held.answers.items()],
        notes=[f"{cache.path}: {held.size / 1e6:,.1f} MB"],
    )
    print_table(table, form)


def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Where to: .jsonl, also as .jsonl.gz, .xz or .zst.")],
    llm: Of = None,
    folder: Folder = None,
) -> None:
    """Write answers to a file that others can import or replay: JSONL, one answer a line. It holds no keys."""
    from metrist.cli.output import format_count, print_text
    from metrist.io.compression import uncompressed_name
    from metrist.io.writer import check_writable
    from metrist.llm.replay import write_answers

    if not uncompressed_name(out).lower().endswith(".jsonl"):
        raise ModelError(f"cannot write answers to {out}: wanted a name that ends in .jsonl (.gz, .xz, .zst)")
    check_writable(out)
    cache = _cache(folder)
    held = cache.contents().answers
    if not (held if llm is None else held.get(llm)):
        raise ModelError(f"there are no answers{f' of {llm}' if llm else ''} to export: see `metrist answers size`")
    print_text(f"{out}: {format_count(write_answers(cache.entries(llm), out), 'answer')}")


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files that `metrist answers export` wrote.")],
    folder: Folder = None,
) -> None:
    """Put the answers of files into the cache; what it has already stays."""
    from metrist.cli.output import format_count, print_text
    from metrist.llm.replay import import_answers

    cache = _new_or_not(folder)
    for file in files:
        count, new = import_answers(cache, file)
        print_text(f"{file}: {format_count(count, 'answer')}, {new:,} of them new")


def clear(llm: Of = None, folder: Folder = None) -> None:
    """Forget answers: the next run asks, and pays, again."""
    from metrist.cli.output import format_count, print_text

    print_text(f"{format_count(_cache(folder).clear(llm), 'answer')} forgotten")


def _cache(folder: Path | None) -> AnswerCache:
    cache = _new_or_not(folder)
    if not cache.exists:
        raise ModelError(f"{cache.path.parent} holds no answers of LLMs yet; --cache names another folder")
    return cache


def _new_or_not(folder: Path | None) -> AnswerCache:
    from metrist.llm.cache import AnswerCache, open_cache

    return AnswerCache(folder.absolute()) if folder else open_cache()


# `metrist cache`: what `--cache` keeps.


def cache(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that was given as --cache.")],
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is kept there.")] = False,
) -> None:
    """Say how much a cache of likelihoods and vectors holds; --clear empties it."""
    from metrist.cli.output import print_text
    from metrist.models.sqlite_store import CACHE_NAME, CacheFile

    if not (folder / CACHE_NAME).exists():
        raise ModelError(f"{folder} holds no cache: wanted a folder that `metrist score --cache` has used")
    file = CacheFile(folder)
    if clear:
        file.clear()
    held = file.contents()
    print_text(f"{folder}: {held.entries:,} entries, {held.size / 1e6:,.1f} MB")
