"""`metrist answers` and `metrist cache`: stored answers of LLMs, and cached results of models."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli.options import TABLE_FORMAT, Format
from metrist.cli.output import Dollars, print_table, print_text
from metrist.errors import ModelError, SpecError, did_you_mean, format_count
from metrist.settings import setting

if TYPE_CHECKING:
    from metrist.llm.cache import AnswerCache, Scope


FOLDER = setting(
    None,
    "The folder of stored answers.",
    "--cache",
    metavar="DIR",
    shown="$METRIST_LLM_CACHE, or the user's cache folder",
)
LLM_NAME = setting(None, "Only answers of this LLM, as `metrist answers size` names it.", metavar="SPEC")


def size(folder: Path | None = FOLDER, form: Format = TABLE_FORMAT) -> None:
    from metrist.report.tables import Count, Table, name_columns

    cache = _open_existing(folder)
    contents = cache.contents()
    table = Table(
        columns=name_columns("LLM", right=("answers", "unreadable")),
        rows=[[llm, Count(count), Count(contents.unreadable.get(llm, 0))] for llm, count in contents.answers.items()],
        notes=[f"{cache.path}: {contents.size / 1e6:,.1f} MB"],
    )
    print_table(table, form)


def export(
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write: .jsonl, also .jsonl.gz, .xz or .zst.")
    ],
    llm: str | None = LLM_NAME,
    folder: Path | None = FOLDER,
) -> None:
    from metrist.io.compression import uncompressed_name
    from metrist.io.writer import check_writable
    from metrist.llm.cache import Scope
    from metrist.llm.replay import write_answers

    if not uncompressed_name(out).lower().endswith(".jsonl"):
        raise ModelError(
            f"cannot write answers to {out}: the name must end in .jsonl (also .gz, .xz, .zst)", code="cannot_write"
        )
    check_writable(out)
    cache = _open_existing(folder)
    counts = cache.contents().answers
    if not (counts if llm is None else counts.get(llm)):
        raise ModelError(
            f"there are no answers{f' of {llm}' if llm else ''} to export: see `metrist answers size`", code="no_data"
        )
    print_text(f"{out}: {format_count(write_answers(cache.entries(Scope(llm=llm)), out), 'answer')}")


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files that `metrist answers export` wrote.")],
    folder: Path | None = FOLDER,
) -> None:
    from metrist.llm.replay import import_answers

    cache = _open(folder)
    for file in files:
        count, new = import_answers(cache, file)
        print_text(f"{file}: {format_count(count, 'answer')}, {new:,} of them new")


def clear(
    everything: bool = setting(False, "All answers.", "--all"),
    llm: str | None = LLM_NAME,
    older_than: str | None = setting(None, "Only answers older than 30d, 12h or 2w.", metavar="AGE"),
    failed: bool = setting(False, "Only failures, and answers that a metric could not read."),
    yes: bool = setting(False, "Do not ask for confirmation.", "-y"),
    folder: Path | None = FOLDER,
) -> None:
    from metrist.llm.cache import Scope

    narrowed = llm is not None or older_than is not None or failed
    if everything == narrowed:
        reason = "--all does not go with --llm, --older-than or --failed" if everything else "name which answers"
        raise SpecError(
            f"{reason}: expected --all, or some of --llm SPEC, --older-than 30d and --failed "
            "(`metrist answers size` lists what is stored)"
        )
    before = None if older_than is None else time.time() - _parse_age(older_than)
    cache = _open_existing(folder)
    known = cache.contents().answers
    if llm is not None and llm not in known:
        raise ModelError(
            f"there are no answers of {llm}{did_you_mean(llm, known)}: see `metrist answers size`", code="unknown_name"
        )
    scope = Scope(llm=llm, before=before, failed=failed)
    count, description = _describe_scope(cache, scope)
    if count and not yes:
        if not sys.stdin.isatty():
            raise ModelError(f"this would delete {description}; add --yes to delete them", code="missing_value")
        typer.confirm(f"Delete {description}?", abort=True, err=True)
    print_text(f"{format_count(cache.clear(scope) if count else 0, 'answer')} deleted")


def _describe_scope(cache: AnswerCache, scope: Scope) -> tuple[int, str]:
    """The number of answers in a scope; and with the days on which they came, and what they cost."""
    count, unpriced, cost, days = 0, 0, 0.0, set()
    for answer in cache.entries(scope):
        count += 1
        days.add(time.strftime("%Y-%m-%d", time.localtime(answer.arrived)))
        paid = answer.completion.usage.cost
        unpriced += paid is None
        cost += paid or 0.0
    if not count:
        return 0, "0 answers"
    when = min(days) if len(days) == 1 else f"{min(days)} to {max(days)}"
    cost_text = "cost unknown" if unpriced == count else f"{Dollars(cost)} paid for them"
    rest = f", the cost of {unpriced:,} unknown" if 0 < unpriced < count else ""
    return count, f"{format_count(count, 'answer')} ({when}; {cost_text}{rest})"


def _parse_age(text: str) -> float:
    """Seconds of an age such as 30d."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([hdw])", text.strip().lower())
    if match is None:
        raise SpecError(f"--older-than must be a number of hours, days or weeks such as 12h, 30d or 2w, got {text!r}")
    return float(match[1]) * {"h": 3600, "d": 86_400, "w": 7 * 86_400}[match[2]]


def _open_existing(folder: Path | None) -> AnswerCache:
    cache = _open(folder)
    if not cache.exists:
        raise ModelError(
            f"{cache.path.parent} has no stored answers of LLMs; use --cache for another folder", code="no_data"
        )
    return cache


def _open(folder: Path | None) -> AnswerCache:
    from metrist.llm.cache import AnswerCache, open_cache

    return AnswerCache(folder.absolute()) if folder else open_cache()


def cache(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that was used with --cache.")],
    clear: bool = setting(False, "Delete the contents."),
) -> None:
    from metrist.models.cache import CACHE_NAME, CacheFile

    if not (folder / CACHE_NAME).exists():
        raise ModelError(
            f"{folder} has no cache: expected a folder that `metrist score --cache` has used", code="invalid_value"
        )
    file = CacheFile(folder)
    if clear:
        file.clear()
    contents = file.contents()
    print_text(f"{folder}: {contents.entries:,} entries, {contents.size / 1e6:,.1f} MB")
