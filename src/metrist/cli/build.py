"""`metrist build`: make, split and check pairs of a good and a bad answer, and outputs with their errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.cli.options import DRY_RUN, TABLE_FORMAT, Format, Inputs, LLMOptions, Names, ReadingOptions
from metrist.cli.output import (
    Dollars,
    print_estimate,
    print_note,
    print_table,
    print_tables,
    progress_bar,
    report_skipped,
)
from metrist.data.rules import Rules
from metrist.data.settings import ExampleSettings, OverlapSettings
from metrist.errors import RunError, SpecError, agree, did_you_mean, format_count
from metrist.settings import as_arguments, reuse_setting, setting, split_commas

if TYPE_CHECKING:
    from metrist.data.build import BuildResult
    from metrist.data.error_analysis.build import AnalysisBuildResult
    from metrist.data.error_analysis.channels import JudgedOutput
    from metrist.data.judgments import JudgedRecords
    from metrist.data.pairs import Shape
    from metrist.data.rules import Aim
    from metrist.report.tables import Table


#: How the pairs of HEAP are split.
SplitRule = Literal["none", "positional"]
#: What decides on which side of the split a pair is.
SplitByName = Literal["text", "position"]


PairsFile = Annotated[
    Path, typer.Argument(metavar="PAIRS", help="A file of pairs, as `metrist build pairs` writes it.")
]
OUT = setting(..., "The file to write: .jsonl, also .jsonl.gz, .xz or .zst.", "-o", metavar="FILE")
INSTRUCTIONS = setting(None, "A TOML file of your own instructions: AH = 'TEXT'.", metavar="FILE")
SPLIT_BY = setting("text", "text: pairs that share a text stay together; position: the first are for train.")


def heap(
    data_set: Annotated[
        str, typer.Argument(metavar="DATA_SET", help="A data set, such as CHASM, or a code, such as CNG.")
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="The files in which it was published.")],
    out: Path = OUT,
    wording: int = setting(0, "Which wording of the instruction to use.", min=0),
    instructions: Path | None = INSTRUCTIONS,
    split: SplitRule = setting("none", "positional: 80, 10 and 10 % of each criterion in file order, as in HEAP."),
) -> None:
    from metrist.data.heap import list_skipped, read_data_set, read_instructions
    from metrist.data.pairs import check_pairs_path, write_good_bad
    from metrist.data.splits import split_by_position
    from metrist.io.writer import check_distinct

    check_distinct(out, files, "the data set is")
    check_pairs_path(out)
    pairs = read_data_set(data_set, *files, wording=read_instructions(instructions) if instructions else wording)
    if split == "positional":
        pairs = split_by_position(pairs)
    write_good_bad(out, pairs)
    counts = ", ".join(f"{code} {count:,}" for code, count in Counter(pair.criterion for pair in pairs).items())
    print_note(*list_skipped(data_set, *files))
    print_note(f"wrote {format_count(len(pairs), 'pair')} to {out}: {counts}")


def pairs(
    inputs: Inputs,
    *,
    out: Path = OUT,
    aspects: list[str] | None = setting(None, "An aspect to learn; repeatable.", "--aspect", metavar="A", shown="all"),
    context: str | None = setting(
        None,
        "Fields that are the context of an output: source, references (the first), instruction, or any text "
        "column; '' for none.",
        metavar="A,B",
        shown="instruction and source, if present",
    ),
    labels: Mapping[str, str] = setting(
        {}, "The label of a field: source=article; repeatable.", "--label", metavar="FIELD=LABEL"
    ),
    criterion: list[str] | None = setting(
        None, "The aspect's criterion; A=NAME for one of several aspects.", metavar="NAME"
    ),
    instruction: list[str] | None = setting(None, "What to judge; A=TEXT for one of several aspects.", metavar="TEXT"),
    opposite: list[str] | None = setting(
        None, "An aspect for which lower ratings are better; repeatable.", metavar="A"
    ),
    choice: list[str] | None = setting(None, "An aspect that marks the chosen of several outputs with 1.", metavar="A"),
    rules: Rules,
    split: str | None = setting(None, "Shares of train, dev and test: 0.8,0.1,0.1.", metavar="T,D,T"),
    split_by: SplitByName = SPLIT_BY,
    overlap: OverlapSettings,
    reading: ReadingOptions,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.data.build import Splitting, build_pairs
    from metrist.data.judgments import read_judgments
    from metrist.data.pairs import check_pairs_path, write_good_bad
    from metrist.io.writer import check_distinct

    check_distinct(out, inputs, "the judgments are")
    check_pairs_path(out)
    shares = None if split is None else _parse_shares(split)
    splitting = Splitting(shares=shares, by=split_by, **as_arguments(overlap)) if shares else None
    judgments = read_judgments(inputs, **reading.keywords())
    # Before anything can fail: missing rows are often the reason.
    print_note(*judgments.remarks)
    if skipped := judgments.skipped:
        print_note(f"{format_count(skipped, 'row')} could not be read and {agree(skipped, 'was', 'were')} skipped")
    aims = _choose_aims(
        judgments, aspects or list(judgments.aspects), criterion or [], instruction or [], opposite or [], choice or []
    )
    result = build_pairs(judgments, aims, rules, _choose_shape(judgments, context, labels), splitting)
    write_good_bad(out, result.pairs)
    print_note(*_check_aims(aims))
    print_table(_tabulate_accounts(result, rules), form)
    print_note(f"wrote {format_count(len(result.pairs), 'pair')} to {out}")


def split(
    source: PairsFile,
    *,
    out: Path = OUT,
    shares: str = setting("0.8,0.1,0.1", "Shares of train, dev and test.", "--split", metavar="T,D,T"),
    split_by: SplitByName = SPLIT_BY,
    overlap: OverlapSettings,
    seed: int = reuse_setting(Rules, "seed"),
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.data.pairs import SPLITS, check_pairs_path, read_good_bad, write_good_bad
    from metrist.data.splits import Split, split_by_position, split_pairs
    from metrist.io.writer import check_distinct

    check_distinct(out, [source], "the pairs are")
    check_pairs_path(out)
    parts = _parse_shares(shares)
    pairs = read_good_bad(source)
    if split_by == "position":
        result = Split(pairs=split_by_position(pairs, parts), left_out=[])
    else:
        result = split_pairs(pairs, parts, seed=seed, **as_arguments(overlap))
    write_good_bad(out, result.pairs)
    counts = Counter((pair.criterion, pair.split) for pair in (*result.pairs, *result.left_out))
    rows = [
        [criterion, *(counts[criterion, side] for side in SPLITS), counts[criterion, None]]
        for criterion in dict.fromkeys(criterion for criterion, _ in counts)
    ]
    notes = ["left out: pairs whose texts are on two sides"] if result.left_out else []
    print_table(_total_table("Split", ["criterion"], [*SPLITS, "left out"], rows, notes), form)
    print_note(f"wrote {format_count(len(result.pairs), 'pair')} to {out}")


def leaks(
    source: PairsFile,
    *,
    fail_on_leak: bool = setting(False, "Exit with 1 if any dev or test pair shares a text with train."),
    overlap: OverlapSettings,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.data.leaks import leaks as find_leaks
    from metrist.data.pairs import read_good_bad
    from metrist.data.text_overlap import FEWEST_WORDS_INSIDE, GRAM

    pairs = read_good_bad(source)
    unsplit = sum(pair.split is None for pair in pairs)
    if 0 < unsplit < len(pairs):
        are = agree(unsplit, "is", "are")
        print_note(f"{unsplit:,} of {format_count(len(pairs), 'pair')} {are} on no side of the split and not checked")
    found = find_leaks(pairs, **as_arguments(overlap))
    columns = {
        "pairs": "pairs",
        "context": "same_context",
        "near context": "near_context",
        "part context": "part_context",
        "answer": "same_answer",
        "near answer": "near_answer",
        "part answer": "part_answer",
        "any text": "any_text",
        "any criterion": "elsewhere",
    }
    rows = [[leak.criterion, leak.split, *(getattr(leak, name) for name in columns.values())] for leak in found]
    notes = [
        "pairs that share a text with the training pairs of their criterion; last column: of any criterion",
        f"near: at least {overlap.near:.0%} of all word {GRAM}-grams in common, but not the same text",
    ]
    if overlap.inside:
        notes.append(
            f"part: neither of these, but one has at least {overlap.inside:.0%} of the other's word {GRAM}-grams "
            f"({FEWEST_WORDS_INSIDE} words or more)"
        )
    print_table(_total_table("Leaks", ["criterion", "split"], list(columns), rows, notes), form)
    if fail_on_leak and any(leak.elsewhere for leak in found):
        raise typer.Exit(1)


def _parse_shares(text: str) -> tuple[float, float, float]:
    from metrist.data.splits import check_shares

    try:
        train, dev, test = (float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"--split must be three shares, such as 0.8,0.1,0.1, got {text!r}") from None
    check_shares((train, dev, test))
    return train, dev, test


def _choose_shape(judgments: JudgedRecords, context: str | None, labels: Mapping[str, str]) -> Shape:
    from metrist.data.pairs import Shape

    if context is None:
        records = judgments.records.values()
        chosen = [name for name in ("instruction", "source") if any(getattr(record, name) for record in records)]
    else:
        chosen = [part.strip() for part in context.split(",") if part.strip()]
    fields = (*chosen, "output")
    label_of = dict(labels)
    for field in label_of:
        if field not in fields:
            raise SpecError(
                f"--label names {field!r}, which is no field of the pairs; they have {', '.join(map(repr, fields))} "
                f"(--context){did_you_mean(field, fields)}",
                code="unknown_name",
            )
    return Shape(context=tuple(chosen), labels=label_of)


def _choose_aims(
    judgments: JudgedRecords,
    aspects: Sequence[str],
    criteria: list[str],
    instructions: list[str],
    opposite: list[str],
    choices: list[str],
) -> list[Aim]:
    from metrist.criteria import known
    from metrist.data.judgments import CHOSEN
    from metrist.data.rules import Aim

    for aspect in (*aspects, *opposite, *choices):
        judgments.check_aspect(aspect)
    for option, names in (("--opposite", opposite), ("--choice", choices)):
        for aspect in names:
            if aspect not in aspects:
                paired = ", ".join(map(repr, aspects))
                raise SpecError(f"{option} names {aspect!r}, but pairs are made of {paired}; add --aspect {aspect!r}")
    for aspect in choices:
        if aspect not in judgments.ratings:
            raise SpecError(f"--choice names {aspect!r}, which has preferences between two outputs and no ratings")
    criterion_of = _parse_by_aspect(criteria, aspects, "--criterion")
    instruction_of = _parse_by_aspect(instructions, aspects, "--instruction")
    aims = []
    for aspect in dict.fromkeys(aspects):
        name = criterion_of.get(aspect, aspect)
        shipped = known(name)
        aims.append(
            Aim(
                aspect=aspect,
                criterion=name,
                instruction=instruction_of.get(aspect) or (shipped.instruction if shipped else ""),
                opposite=aspect in opposite,
                choice=aspect in choices or aspect == CHOSEN,
            )
        )
    return aims


def _parse_by_aspect(values: list[str], aspects: Sequence[str], option: str) -> dict[str, str]:
    """Parse `ASPECT=TEXT`; if there is a single aspect, its name may be omitted."""
    texts: dict[str, str] = {}
    for value in values:
        aspect, equals, text = value.partition("=")
        suggestion = did_you_mean(aspect, aspects)
        if not (equals and aspect in aspects):
            # An instruction for a single aspect may contain a =; a single word before it is meant as an aspect.
            if len(set(aspects)) > 1 or (equals and " " not in aspect) or (equals and suggestion):
                raise SpecError(
                    f"{option} must be ASPECT=TEXT with one of {', '.join(aspects)}, got {value!r}{suggestion}"
                )
            aspect, text = aspects[0], value
        if aspect in texts:
            raise SpecError(f"{option} is given twice for {aspect!r}")
        texts[aspect] = text
    return texts


def _check_aims(aims: Sequence[Aim]) -> Iterator[str]:
    """Yield warnings about aspects without an instruction, and about directions that look reversed."""
    from metrist import criteria

    for aim in aims:
        if not aim.instruction:
            suggestion = did_you_mean(aim.criterion, criteria.names()).removeprefix("; ")
            yield (
                f"warning: the pairs of {aim.criterion!r} have no instruction, so a model that learns from them is not "
                f"told what to judge{f' ({suggestion})' if suggestion else ''}. Name a known criterion, as in "
                f"--criterion '{aim.aspect}=overall', or say what to judge: --instruction '{aim.aspect}=Judge how …'"
            )
        criterion = criteria.known(aim.criterion)
        if aim.opposite and criterion and criterion.opposite:
            yield (
                f"{aim.criterion} asks for an undesirable property ({aim.instruction!r}), and --opposite means that "
                f"outputs with less {aim.aspect} have more of it; omit --opposite if {aim.aspect} rates that property"
            )


def _tabulate_accounts(result: BuildResult, rules: Rules) -> Table:
    """Tabulate possible, kept and dropped pairs of each criterion; possible = kept + the columns of reasons."""
    from metrist.data.pairs import SPLITS
    from metrist.data.rules import REASONS, list_reasons

    reasons = list_reasons(result.accounts)
    has_soft = any(account.soft for account in result.accounts)
    sides = [side for side in SPLITS if any(pair.split == side for pair in result.pairs)]
    counts = Counter((pair.criterion, pair.split) for pair in result.pairs)
    rows = [
        [
            account.criterion,
            account.good,
            account.possible,
            account.kept,
            *(account.dropped[reason] for reason in reasons),
            *([account.soft] if has_soft else []),
            *(counts[account.criterion, side] for side in sides),
        ]
        for account in result.accounts
    ]
    names = ["possible", "kept", *reasons, *(["soft"] if has_soft else []), *sides]
    notes = [f"{reason}: {REASONS[reason]}" for reason in reasons]
    if rules.margin:
        notes.append(f"margin {rules.margin:g}")
    if missing := sum(account.without_text for account in result.accounts):
        notes.append(f"{missing:,} rated outputs have no text in the files and are in no pair")
    return _total_table("Pairs", ["criterion", "good"], names, rows, notes)


def _total_table(
    title: str, labels: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[Any]], notes: Sequence[str]
) -> Table:
    """Build a table of label columns and number columns; several rows get a row of totals."""
    from metrist.report.tables import Table, name_columns

    columns = name_columns(*labels, right=numbers)
    totals = [sum(row[at] for row in rows) for at in range(len(labels), len(columns))]
    total = ["all", *[""] * (len(labels) - 1), *totals]
    return Table(title=title, columns=columns, rows=[*rows, total] if len(rows) > 1 else rows, notes=notes)


def error_analysis(
    inputs: Inputs,
    *,
    out: Path = setting(..., "The folder to write.", "-o", metavar="FOLDER"),
    examples: ExampleSettings,
    channels: Names = setting(
        (),
        "Where errors come from: real, synthetic, human, reference, freeform.",
        "--channel",
        metavar="A,B",
        shown="all; real only with --llm",
        parse=split_commas,
    ),
    llm: str | None = setting(None, "The LLM that analyses outputs: \"openai(model='gpt-4o')\".", metavar="SPEC"),
    generate: Names = setting((), "An LLM whose outputs are analysed as well; repeatable.", metavar="SPEC"),
    run: Path | None = setting(None, "Choose outputs in thirds by the scores of this run.", "--scores", metavar="RUN"),
    by: str | None = setting(
        None,
        "The metric of the run, or of `scores` in the records, such as a likelihood.",
        metavar="METRIC",
        shown="the only one",
    ),
    review: str | None = setting(None, "An LLM that removes analyses that are not reasonable.", metavar="SPEC"),
    task: str | None = setting(None, "The task of all records.", metavar="NAME", shown="their own"),
    instruction: str | None = setting(None, "The instruction of all records.", metavar="TEXT", shown="their own"),
    mix: str = setting("all", "Examples per task and channel: all, paper, or TOML.", metavar="NAME_OR_FILE"),
    chat: bool = setting(False, "Also write chat.jsonl with user and assistant turns."),
    reading: ReadingOptions,
    llms: LLMOptions,
    dry_run: bool = DRY_RUN,
    form: Format = TABLE_FORMAT,
) -> None:
    from metrist.data.error_analysis.build import EXAMPLES, BuildSettings, build_examples, check_folder, read_mix
    from metrist.data.error_analysis.channels import read_outputs
    from metrist.data.error_analysis.examples import CHANNELS
    from metrist.llm.base import build_llm
    from metrist.llm.estimate import estimate_calls

    chosen: tuple[Any, ...] = channels  # The settings check the names.
    settings = BuildSettings(
        channels=chosen or tuple(name for name in CHANNELS if llm is not None or name != "real"),
        llm=build_llm(llm) if llm is not None else None,
        generate=tuple(map(build_llm, generate)),
        review=build_llm(review) if review is not None else None,
        mix=None if mix == "all" else read_mix(mix),
        **as_arguments(examples),
    )
    check_folder(out)
    reader = reading.read(inputs)
    outputs = read_outputs(reader, task=task, instruction=instruction)
    report_skipped(reader)
    scores = _read_scores(outputs, run, by)
    with llms.activate():
        if settings.llm is not None or dry_run:
            with estimate_calls() as estimate:
                build_examples(outputs, settings, scores=scores)
            if dry_run:
                print_estimate(estimate, form)
                return
            for calls in estimate.by_llm.values():
                new = format_count(calls.calls - calls.answered, "question")
                stored = f" ({calls.answered:,} more are answered already)" if calls.answered else ""
                cost = f"cost {Dollars(calls.least_cost)} to {Dollars(calls.most_cost)}"
                print_note(f"{calls.llm}: {new}{stored}, {cost if calls.price else 'cost unknown'}")
        with progress_bar("building", "examples"):
            result = build_examples(outputs, settings, scores=scores)
    result.write(out, chat=chat)
    print_tables(_tabulate_examples(result, settings.tokenizer), form)
    print_note(*result.notes)
    print_note(f"wrote {format_count(len(result.examples), 'example')} to {out / EXAMPLES}")


def _read_scores(outputs: Sequence[JudgedOutput], run: Path | None, by: str | None) -> dict[tuple[str, str], float]:
    """The scores by which outputs are chosen in thirds: those of a run, or those that the records hold."""
    from metrist.evaluate.selection import find_metric
    from metrist.run import load

    keys = [(output.record.item, output.record.system) for output in outputs]
    if run is None:
        if by is None:
            return {}
        stored = [output.scores for output in outputs]
        scores = {key: own[by] for key, own in zip(keys, stored, strict=True) if by in own}
        if not scores:
            known = sorted({name for own in stored for name in own})
            have = (
                f"they have scores of {', '.join(known)}{did_you_mean(by, known)}" if known else "they have no scores"
            )
            raise SpecError(f"--by names {by!r}, but no record has a score of it: {have}; --scores RUN reads a run")
        return scores
    results = load(run)
    if by is None and len(results.metrics) != 1:
        listed = ", ".join(metric.label for metric in results.metrics)
        raise SpecError(
            f"{run} has {len(results.metrics)} metrics: name one with --by ({listed})", code="missing_value"
        )
    metric = find_metric(results.metrics, by, results.unfinished) if by else results.metrics[0]
    rows = zip(results.items, results.systems, results[metric].values.tolist(), strict=True)
    scores = {(item, system): value for item, system, value in rows if not math.isnan(value)}
    if scores.keys().isdisjoint(keys):
        raise RunError(f"{run} has no scores of the outputs that were read: score these files first", code="no_data")
    return scores


def _tabulate_examples(result: AnalysisBuildResult, tokenizer: str | None) -> list[Table]:
    """What was made, what each filter removed, what the mix took, and what the set is like."""
    from metrist.data.error_analysis.examples import CHANNELS
    from metrist.report.tables import Count, Table, name_columns

    def table(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]], notes: Sequence[str] = ()) -> Table:
        columns = name_columns(names[0], right=names[1:])
        cells = [[Count(cell) if isinstance(cell, int) else cell for cell in row] for row in rows]
        return Table(title=title, columns=columns, rows=cells, notes=list(notes))

    def by_task(title: str, name: str, key: str, notes: Sequence[str] = ()) -> Table:
        """Counts of all examples, and of each task beside them if there are several."""
        tasks = statistics[f"{key} by task"]
        shown = tasks if len(tasks) > 1 else {}
        rows = [
            [value, count, *(own.get(value, 0) for own in shown.values())] for value, count in statistics[key].items()
        ]
        return table(title, [name, "examples", *shown], rows, notes)

    report = result.report()
    statistics, severities = report["statistics"], report["statistics"]["severities"]
    removed = [row for row in report["removed"] if row["count"]]
    examples = [
        [
            task,
            *(counts.get(channel, 0) for channel in CHANNELS),
            *(severities.get(task, {}).get(severity, 0) for severity in ("major", "minor")),
        ]
        for task, counts in statistics["channels"].items()
    ]
    tables = [
        table(
            "Removed",
            ["step", "examples"],
            [[row["step"], row["count"]] for row in removed],
            [f"{row['step']}: {row['why']}" for row in removed],
        ),
        table(
            "Mix",
            ["task and channel", "available", "expected", "taken"],
            [[f"{row['task']} {row['channel']}", *list(row.values())[2:]] for row in report["mix"]],
        ),
        table("Examples", ["task", *CHANNELS, "major errors", "minor errors"], examples),
        by_task("Errors per example", "errors", "errors per example"),
        by_task(
            "Length",
            "tokens",
            "tokens",
            [f"prompt and completion; {f'tokens of {tokenizer}' if tokenizer else 'a token is about four bytes'}"],
        ),
    ]
    return [table for table in tables if table.rows]
