"""`metrist build heap`: pairs out of the data sets that HEAP was made of."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli.options import (
    Fields,
    Format,
    Inputs,
    ItemKey,
    SkipBad,
    System,
    TableFormat,
    parse_item_key,
    parse_pairs,
)
from metrist.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metrist.data.build import Splitting
    from metrist.data.judgments import Judgments
    from metrist.data.pairs import GoodBad, Shape
    from metrist.data.rules import Aim


class SplitRule(StrEnum):
    """How the pairs are split."""

    none = "none"
    positional = "positional"


def heap(
    data_set: Annotated[
        str, typer.Argument(metavar="DATA_SET", help="A data set, such as CHASM, or a code, such as CNG.")
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="The files that it was published in.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Where to: .jsonl, also .gz, .xz or .zst.")],
    wording: Annotated[int, typer.Option("--wording", min=0, help="Which wording of the instruction to write.")] = 0,
    split: Annotated[
        SplitRule,
        typer.Option(
            "--split", help="positional: 80, 10 and 10 % of each criterion in the file's order, as HEAP has it."
        ),
    ] = SplitRule.none,
) -> None:
    """Make pairs of a data set that HEAP was made of, from the files that its authors published."""
    from metrist.cli.output import format_count, print_note
    from metrist.data import originals
    from metrist.data.pairs import check_pairs_path, write_good_bad
    from metrist.data.splits import split_by_position
    from metrist.io.writer import check_distinct

    check_pairs_path(out)
    check_distinct(out, files, "the data set is")
    pairs = originals.read(data_set, *files, wording=wording)
    if split is SplitRule.positional:
        pairs = split_by_position(pairs)
    write_good_bad(out, pairs)
    made = ", ".join(f"{code} {count:,}" for code, count in Counter(pair.criterion for pair in pairs).items())
    print_note(f"wrote {format_count(len(pairs), 'pair')} to {out}: {made}")


class WithinName(StrEnum):
    """Which outputs are paired."""

    item = "item"
    all = "all"


class AggregateName(StrEnum):
    """How several raters' values become one."""

    mean = "mean"
    median = "median"
    majority = "majority"


class TiesName(StrEnum):
    """What becomes of ties."""

    drop = "drop"
    soft = "soft"


class CertaintyName(StrEnum):
    """How sure a pair's order is."""

    full = "full"
    shares = "shares"


class SplitByName(StrEnum):
    """What decides on which side a pair stands."""

    text = "text"
    position = "position"


PairsFile = Annotated[
    Path, typer.Argument(metavar="PAIRS", help="A file of pairs, as `metrist build pairs` writes it.")
]
OutFile = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .jsonl file to write; .xz packs it.")]
SplitBy = Annotated[
    SplitByName,
    typer.Option("--split-by", help="text: what shares a text stays together; position: the first are for training."),
]
Near = Annotated[
    float,
    typer.Option("--near", help="Share of word 5-grams that makes two texts near-duplicates; 1: equal ones only."),
]
Inside = Annotated[
    float,
    typer.Option(
        "--inside",
        help="Share of a text's word 5-grams that a longer text must have to contain it; 0: this is not looked at.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all drawing and splitting.")]


def pairs(
    inputs: Inputs,
    out: OutFile,
    aspects: Annotated[
        list[str] | None,
        typer.Option("--aspect", metavar="A", help="An aspect to learn; repeatable.", show_default="all"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="A,B",
            help="What an output is judged in: source, references (the first), instruction, or any column of text; "
            "'' for nothing.",
            show_default="instruction and source, where there are any",
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="FIELD=LABEL", help="What a field is called: source=article; repeatable."),
    ] = None,
    criterion: Annotated[
        list[str] | None,
        typer.Option("--criterion", metavar="NAME", help="The aspect's criterion; A=NAME for one of several aspects."),
    ] = None,
    instruction: Annotated[
        list[str] | None,
        typer.Option("--instruction", metavar="TEXT", help="What to judge; A=TEXT for one of several aspects."),
    ] = None,
    opposite: Annotated[
        list[str] | None,
        typer.Option("--opposite", metavar="A", help="An aspect whose lower rating is the good one; repeatable."),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option("--choice", metavar="A", help="An aspect that marks the chosen of several outputs with 1."),
    ] = None,
    within: Annotated[
        WithinName, typer.Option("--within", help="Pair outputs of one item, or any two outputs.")
    ] = WithinName.item,
    aggregate: Annotated[
        AggregateName, typer.Option("--aggregate", help="How several raters' values become one.")
    ] = AggregateName.mean,
    margin: Annotated[float, typer.Option("--margin", help="The least difference of two aggregated ratings.")] = 0.0,
    ties: Annotated[
        TiesName, typer.Option("--ties", help="Drop ties, or keep them as soft labels (certainty .5).")
    ] = TiesName.drop,
    certainty: Annotated[
        CertaintyName, typer.Option("--certainty", help="full: 1; shares: the share of raters who agree.")
    ] = CertaintyName.full,
    cap: Annotated[
        int | None, typer.Option("--cap", min=1, metavar="N", help="Pairs that an item may take part in.")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="T,D,T", help="Shares of train, dev and test: 0.8,0.1,0.1.")
    ] = None,
    split_by: SplitBy = SplitByName.text,
    near: Near = 0.5,
    inside: Inside = 0.8,
    seed: Seed = 0,
    key: ItemKey = "",
    fields: Fields = None,
    system: System = None,
    skip_bad: SkipBad = False,
    form: TableFormat = Format.text,
) -> None:
    """Make pairs of a good and a bad output of ratings, preferences or choices; print what was dropped and why."""
    from metrist.cli.build_tables import accounts_table
    from metrist.cli.output import format_count, print_note, print_table
    from metrist.data.build import build_pairs
    from metrist.data.judgments import read_judgments
    from metrist.data.pairs import check_pairs_path, write_good_bad
    from metrist.data.rules import Rules
    from metrist.io.writer import check_distinct

    check_pairs_path(out)
    rules = Rules(
        within=within.value,
        aggregate=aggregate.value,
        margin=margin,
        ties=ties.value,
        certainty=certainty.value,
        cap=cap,
        seed=seed,
    )
    splitting = _splitting(split, split_by, near, inside)
    check_distinct(out, inputs, "what people said is")
    judged = read_judgments(
        inputs,
        item_key=parse_item_key(key),
        fields=parse_pairs(fields or [], "--field"),
        skip_bad=skip_bad,
        system=system,
    )
    # Before anything that may go wrong: rows that are missing are often why.
    for said in _remarks_on_rows(judged):
        print_note(said)
    aims = _aims(
        judged, aspects or list(judged.aspects), criterion or [], instruction or [], opposite or [], choice or []
    )
    built = build_pairs(judged, aims, rules, _shape(judged, context, labels or []), splitting)
    write_good_bad(out, built.pairs)
    if unknown := [aim.criterion for aim in aims if not aim.instruction]:
        print_note(_no_instruction(unknown))
    for said in _twice_opposite(aims):
        print_note(said)
    print_table(accounts_table(built, rules), form)
    print_note(f"wrote {format_count(len(built.pairs), 'pair')} to {out}")


def split(
    source: PairsFile,
    out: OutFile,
    shares: Annotated[
        str, typer.Option("--split", metavar="T,D,T", help="Shares of train, dev and test.")
    ] = "0.8,0.1,0.1",
    split_by: SplitBy = SplitByName.text,
    near: Near = 0.5,
    inside: Inside = 0.8,
    seed: Seed = 0,
    form: TableFormat = Format.text,
) -> None:
    """Split a file of pairs anew, so that nothing on one side was seen on another; print the sides."""
    from metrist.cli.build_tables import sides_table
    from metrist.cli.output import format_count, print_note, print_table
    from metrist.data.pairs import check_pairs_path, read_good_bad, write_good_bad
    from metrist.data.splits import Split, split_by_position, split_pairs
    from metrist.io.writer import check_distinct

    check_pairs_path(out)
    wanted = _shares(shares)
    check_distinct(out, [source], "the pairs are")
    given = read_good_bad(source)
    if split_by is SplitByName.position:
        found = Split(pairs=split_by_position(given, wanted), left_out=[])
    else:
        found = split_pairs(given, wanted, seed=seed, near=near, inside=inside)
    write_good_bad(out, found.pairs)
    print_table(sides_table(found), form)
    print_note(f"wrote {format_count(len(found.pairs), 'pair')} to {out}")


def leaks(
    source: PairsFile,
    fail_on_leak: Annotated[
        bool, typer.Option("--fail-on-leak", help="Exit with 1 if any dev or test pair shares a text with train.")
    ] = False,
    near: Near = 0.5,
    inside: Inside = 0.8,
    form: TableFormat = Format.text,
) -> None:
    """Tell how many dev and test pairs share a text, a near-duplicate or a part of one with the training pairs."""
    from metrist.cli.build_tables import leaks_table
    from metrist.cli.output import print_table
    from metrist.data.leaks import leaks as find_leaks
    from metrist.data.pairs import read_good_bad

    found = find_leaks(_read_split(read_good_bad(source)), near, inside)
    print_table(leaks_table(found, near, inside), form)
    if fail_on_leak and any(row.elsewhere for row in found):
        raise typer.Exit(1)


def _read_split(given: list[GoodBad]) -> list[GoodBad]:
    from metrist.cli.output import format_count, print_note

    without = sum(pair.split is None for pair in given)
    if without and without < len(given):
        are = "is" if without == 1 else "are"
        print_note(f"{without:,} of {format_count(len(given), 'pair')} {are} on no side and not looked at")
    return given


def _splitting(split: str | None, by: SplitByName, near: float, inside: float) -> Splitting | None:
    from metrist.data.build import Splitting

    return None if split is None else Splitting(shares=_shares(split), by=by.value, near=near, inside=inside)


def _shares(text: str) -> tuple[float, float, float]:
    from metrist.data.splits import check_shares

    try:
        train, dev, test = (float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"--split wants three shares, such as 0.8,0.1,0.1, got {text!r}") from None
    check_shares((train, dev, test))
    return train, dev, test


def _shape(judged: Judgments, context: str | None, labels: list[str]) -> Shape:
    from metrist.data.pairs import Shape

    if context is None:
        known = judged.records.values()
        chosen = [name for name in ("instruction", "source") if any(getattr(record, name) for record in known)]
    else:
        chosen = [part.strip() for part in context.split(",") if part.strip()]
    named = parse_pairs(labels, "--label")
    for field in named:
        if field not in (*chosen, "output"):
            fields = (*chosen, "output")
            raise SpecError(
                f"--label names {field!r}, which is no field of the pairs; they have {', '.join(map(repr, fields))} "
                f"(--context){did_you_mean(field, fields)}"
            )
    return Shape(context=tuple(chosen), labels=named)


def _aims(
    judged: Judgments,
    aspects: Sequence[str],
    criteria: list[str],
    instructions: list[str],
    opposite: list[str],
    choices: list[str],
) -> list[Aim]:
    from metrist.data.judgments import CHOSEN
    from metrist.data.rules import Aim

    for aspect in (*aspects, *opposite, *choices):
        judged.check_aspect(aspect)
    _check_taken(opposite, aspects, "--opposite")
    _check_taken(choices, aspects, "--choice")
    for aspect in choices:
        if aspect not in judged.ratings:
            raise SpecError(f"--choice names {aspect!r}, which has preferences between two outputs and no ratings")
    named = _by_aspect(criteria, aspects, "--criterion")
    asked = _by_aspect(instructions, aspects, "--instruction")
    return [
        Aim(
            aspect=aspect,
            criterion=named.get(aspect, aspect),
            instruction=asked.get(aspect) or _known_instruction(named.get(aspect, aspect)),
            opposite=aspect in opposite,
            choice=aspect in choices or aspect == CHOSEN,
        )
        for aspect in dict.fromkeys(aspects)
    ]


def _check_taken(named: list[str], aspects: Sequence[str], option: str) -> None:
    for aspect in named:
        if aspect not in aspects:
            taken = ", ".join(map(repr, aspects))
            raise SpecError(f"{option} names {aspect!r}, but only {taken} is made into pairs; add --aspect {aspect!r}")


def _by_aspect(given: list[str], aspects: Sequence[str], option: str) -> dict[str, str]:
    """What an option says of each aspect. Where there is one aspect, its name need not be said."""
    found: dict[str, str] = {}
    for text in given:
        aspect, equals, value = text.partition("=")
        near = did_you_mean(aspect, aspects)
        if not (equals and aspect in aspects):
            # An instruction for one aspect may hold a = of its own; after one word it is meant to name an aspect.
            if len(set(aspects)) > 1 or (equals and " " not in aspect) or (equals and near):
                raise SpecError(f"{option} wants ASPECT=TEXT with one of {', '.join(aspects)}, got {text!r}{near}")
            aspect, value = aspects[0], text
        if aspect in found:
            raise SpecError(f"{option} is given twice for {aspect!r}")
        found[aspect] = value
    return found


def _known_instruction(criterion: str) -> str:
    """The instruction of a criterion that metrist knows by this name, or nothing."""
    from metrist import criteria

    known = criteria.known(criterion)
    return known.instruction if known else ""


def _remarks_on_rows(judged: Judgments) -> list[str]:
    from metrist.cli.output import format_count

    were = "was" if judged.skipped == 1 else "were"
    skipped = [f"{format_count(judged.skipped, 'row')} could not be read and {were} left out"] if judged.skipped else []
    return [*judged.remarks, *skipped]


def _twice_opposite(aims: Sequence[Aim]) -> list[str]:
    """Where less of the aspect is good and the criterion asks for what people do not want: often one too many."""
    from metrist import criteria

    return [
        f"{aim.criterion} asks for what people would rather not have ({aim.instruction!r}), and --opposite says that "
        f"an output with less {aim.aspect} has more of it; leave --opposite out if {aim.aspect} is a rating of it"
        for aim in aims
        if aim.opposite and (known := criteria.known(aim.criterion)) and known.opposite
    ]


def _no_instruction(unknown: list[str]) -> str:
    from metrist import criteria

    near = [did_you_mean(name, criteria.names()) for name in unknown]
    named = ", ".join(
        f"{name!r}{f' ({found[2:]})' if found else ''}" for name, found in zip(unknown, near, strict=True)
    )
    return f"no instruction for {named}: name a known criterion (--criterion) or say what to judge (--instruction)"
