"""`metrist sacrebleu`: BLEU, chrF and TER of line files, with the options and the output of sacreBLEU's command."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from metrist.cli.output import print_note
from metrist.errors import InputError, RunError
from metrist.settings import setting


class SacreName(StrEnum):
    """A metric of sacreBLEU."""  # Typer takes no list of literals.

    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"


#: An output format of sacreBLEU.
SacreForm = Literal["json", "text", "latex"]


def sacrebleu(
    references: Annotated[
        list[Path],
        typer.Argument(metavar="REFERENCE…", help="Line files of references: one per reference of an output."),
    ],
    outputs: list[Path] | None = setting(
        None, "Line files of outputs, one per system: -i A B.", "-i", "--input", shown="standard input"
    ),
    metrics: Annotated[
        list[SacreName], typer.Option("-m", "--metrics", help="Metrics: -m bleu chrf ter.", show_default="bleu")
    ] = [SacreName.bleu],  # noqa: B006
    number: int = setting(1, "References per line of one file, separated by tabs.", "-nr", "--num-refs", min=1),
    encoding: str = setting("utf-8", "Encoding of the files.", "-e"),
    sentences: bool = setting(False, "Score each output, with one metric.", "-sl", "--sentence-level"),
    smooth: str = setting("exp", "BLEU: smoothing: exp, floor, add-k or none.", "-s", "--smooth-method"),
    smooth_value: float | None = setting(None, "BLEU: for floor and add-k.", "-sv", shown="0.1 and 1"),
    tokenize: str | None = setting(None, "BLEU: tokenizer.", "-tok", shown="13a"),
    language: str | None = setting(
        None, "BLEU: choose the tokenizer by the target language: en-zh.", "-l", "--language-pair"
    ),
    lowercase: bool = setting(False, "BLEU: ignore case.", "-lc"),
    force: bool = setting(False, "BLEU: accept outputs that look tokenised."),
    char_order: int = setting(6, "chrF: longest character n-gram.", "-cc", "--chrf-char-order"),
    word_order: int = setting(0, "chrF: longest word n-gram; 2 is chrF++.", "-cw", "--chrf-word-order"),
    beta: int = setting(2, "chrF: weight of recall.", "--chrf-beta"),
    whitespace: bool = setting(False, "chrF: count white space.", "--chrf-whitespace"),
    chrf_lowercase: bool = setting(False, "chrF: ignore case."),
    eps_smoothing: bool = setting(
        False, "chrF: the mean of F over all orders, as in chrF++.py.", "--chrf-eps-smoothing"
    ),
    case_sensitive: bool = setting(False, "TER: heed case.", "--ter-case-sensitive"),
    asian_support: bool = setting(False, "TER: split ideographs.", "--ter-asian-support"),
    no_punct: bool = setting(False, "TER: drop punctuation.", "--ter-no-punct"),
    normalized: bool = setting(False, "TER: separate punctuation.", "--ter-normalized"),
    confidence: bool = setting(False, "Add a 95 % interval by bootstrap resampling.", "-ci"),
    resamples: int = setting(1000, "Number of resamples.", "-cin", "--confidence-n", min=2),
    short: bool = setting(False, "Print a shorter signature.", "-sh"),
    score_only: bool = setting(False, "Print the score only.", "-b"),
    width: int = setting(1, "Decimals.", "-w", min=0),
    form: SacreForm = setting("json", "json, text; latex for several systems.", "-f", "--format"),
    quiet: bool = setting(False, "Print no warnings.", "-q"),
) -> None:
    from metrist.compat import sacrebleu as compat

    wanted = os.environ.get("SACREBLEU_FORMAT", "").lower()
    form = next((known for known in get_args(SacreForm) if known == wanted), form)
    settings: dict[str, dict[str, Any]] = {
        "bleu": {
            "lowercase": lowercase,
            "force": force or quiet,
            "tokenize": tokenize,
            "smooth_method": smooth,
            "smooth_value": smooth_value,
            "effective_order": sentences,
            "trg_lang": (language or "").partition("-")[2],
        },
        "chrf": {
            "char_order": char_order,
            "word_order": word_order,
            "beta": beta,
            "lowercase": chrf_lowercase,
            "whitespace": whitespace,
            "eps_smoothing": eps_smoothing,
        },
        "ter": {
            "normalized": normalized,
            "no_punct": no_punct,
            "asian_support": asian_support,
            "case_sensitive": case_sensitive,
        },
    }
    streams = _read_references(references, number, encoding)
    systems = _read_outputs(outputs, encoding)
    for system, texts in systems.items():
        if any(len(stream) != len(texts) for stream in streams):
            sizes = ", ".join(f"{len(stream):,}" for stream in streams)
            raise InputError(f"{system} has {len(texts):,} outputs, the references {sizes}; give one line for each")
    built: dict[str, Any] = {
        name: compat.METRICS[name.upper()](**settings[name], references=streams) for name in sorted(set(metrics))
    }
    with _show_warnings(quiet):
        if sentences:
            _print_sentences(built, systems, streams, width, score_only, short)
        elif len(systems) == 1:
            (texts,) = systems.values()
            lines = []
            for metric in built.values():
                score = metric.corpus_score(texts, None, n_bootstrap=resamples if confidence else 1)
                signature = metric.get_signature().format(short and form != "json")
                lines.append(score.format(width, score_only, signature, form == "json"))
            _print_lines(lines, form)
        elif confidence:
            raise RunError("an interval of one system: give one -i, or compare systems with `metrist compare`")
        else:
            _print_systems(built, systems, width, form, short)


@contextmanager
def _show_warnings(quiet: bool) -> Iterator[None]:
    """Print warnings as notes, in one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in [] if quiet else caught:
        print_note(str(warning.message))


def _read_lines(path: Path | None, encoding: str) -> list[str]:
    """The lines of a file, compressed or not, without trailing white space. Only line feeds end lines, as in
    sacreBLEU."""
    from metrist.io.compression import open_bytes

    try:
        if path is None:
            content = sys.stdin.buffer.read()
        else:
            with open_bytes(path) as stream:
                content = stream.read()
        text = content.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise InputError(f"{path or 'standard input'} is not {encoding}: {error}; set --encoding") from None
    return [line.rstrip() for line in io.StringIO(text, newline="\n")]


def _read_references(paths: list[Path], number: int, encoding: str) -> list[list[str]]:
    if number == 1:
        return [_read_lines(path, encoding) for path in paths]
    if len(paths) > 1:
        raise InputError(
            "--num-refs goes with one file, whose lines hold references separated by tabs", code="conflict"
        )
    rows = [line.split("\t", number - 1) for line in _read_lines(paths[0], encoding)]
    for line, row in enumerate(rows, start=1):
        if len(row) != number:
            raise InputError(
                f"{paths[0]}:{line}: expected {number} references separated by tabs, got {len(row)}",
                code="invalid_value",
            )
    return [list(stream) for stream in zip(*rows, strict=True)]


def _read_outputs(paths: list[Path] | None, encoding: str) -> dict[str, list[str]]:
    """The outputs by system. Standard input may have several systems, separated by tabs."""
    if paths:
        if len(set(paths)) < len(paths):
            raise InputError("-i names a file twice")
        return {str(path): _read_lines(path, encoding) for path in paths}
    rows = [line.split("\t") for line in _read_lines(None, encoding)]
    if not rows:
        raise InputError("standard input is empty; give outputs there, or with -i", code="no_data")
    for line, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"standard input:{line}: expected {len(rows[0])} outputs separated by tabs, got {len(row)}",
                code="invalid_value",
            )
    return {f"System {n}": [text.rstrip() for text in texts] for n, texts in enumerate(zip(*rows, strict=True), 1)}


def _print_sentences(
    built: dict[str, Any],
    systems: dict[str, list[str]],
    streams: list[list[str]],
    width: int,
    score_only: bool,
    short: bool,
) -> None:
    if len(built) > 1 or len(systems) > 1:
        raise RunError("--sentence-level scores one system with one metric; `metrist score` has no such limit")
    (metric,), (texts,) = built.values(), systems.values()
    for text, *references in zip(texts, *streams, strict=True):
        score = metric.sentence_score(text, references)
        print(score.format(width, score_only, metric.get_signature().format(short)))


def _print_lines(lines: list[str], form: SacreForm) -> None:
    """Print the results of one system; as text aligned at their equals signs."""
    if form == "json":
        print(lines[0] if len(lines) == 1 else "[\n" + ",\n".join(lines) + "\n]")
        return
    widest = max(line.find("=") for line in lines)
    for line in lines:
        name, sign, rest = line.partition("=")
        print(f"{name:>{widest}}{sign}{rest}" if sign and len(lines) > 1 else line)


def _print_systems(
    built: dict[str, Any], systems: dict[str, list[str]], width: int, form: SacreForm, short: bool
) -> None:
    from metrist.report.tables import Column, Table

    rows: list[dict[str, str]] = []
    signatures: dict[str, str] = {}
    for system, texts in systems.items():
        row = {"system": system}
        for metric in built.values():
            score = metric.corpus_score(texts, None)
            row[score.name] = score.format(width, True)
            signatures[score.name] = metric.get_signature().format(short)
        rows.append(row)
    if form == "json":
        print(json.dumps(rows, indent=4))
        return
    columns = [Column(name, align="left" if name == "system" else "right") for name in rows[0]]
    print(Table(columns=columns, rows=[list(row.values()) for row in rows]).render(form))
    for name, signature in signatures.items():
        print(f"{name}|{signature}")
