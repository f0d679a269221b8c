"""`metrist prefer`: choose the better of two outputs."""

from __future__ import annotations

from typing import Any, Literal

from metrist.cli.options import DRAWS, DRY_RUN, NO_TEXTS, SEED, TABLE_FORMAT, Format, Inputs, LLMOptions, ReadingOptions
from metrist.errors import SpecError
from metrist.settings import ModelSettings, as_arguments, setting

#: Which outputs are compared.
PairSource = Literal["given", "all"]


def prefer(
    inputs: Inputs,
    *,
    comparators: list[str] | None = setting(
        None,
        "A comparator, such as 'judge_pair(llm=…)', or a metric, whose better score wins; repeatable.",
        "-m",
        "--metric",
        metavar="SPEC",
    ),
    out: str | None = setting(
        None, "A .jsonl file of preferences, or a run folder (resumable); or its URL.", "-o", metavar="PATH"
    ),
    pairs: PairSource | None = setting(
        None, "given: rows of two outputs; all: every two systems of an item.", shown="given, if there are any"
    ),
    baseline: str | None = setting(None, "Compare each system with this one only.", metavar="SYSTEM"),
    limit_per_item: int | None = setting(None, "Compare at most N pairs of an item.", metavar="N", min=1),
    reading: ReadingOptions,
    models: ModelSettings,
    llms: LLMOptions,
    no_texts: bool = NO_TEXTS,
    dry_run: bool = DRY_RUN,
    draws: int = DRAWS,
    seed: int = SEED,
    form: Format = TABLE_FORMAT,
) -> None:
    if not comparators:
        raise SpecError("no comparator was requested: name at least one, such as -m 'judge_pair(llm=…)' or -m rougeL")
    from metrist.cli.output import print_estimate, print_tables
    from metrist.cli.progress import progress_bar
    from metrist.cli.score import report_skipped
    from metrist.run.prefer import estimate_preferences
    from metrist.run.prefer import prefer as prefer_records

    reader = reading.read(inputs)
    choice: dict[str, Any] = {
        "pairs": pairs,
        "baseline": baseline,
        "limit_per_item": limit_per_item,
    }
    if dry_run:
        with llms.activate():
            print_estimate(estimate_preferences(reader, comparators, **choice), form)
        return
    with progress_bar("comparing", "pairs") as progress:
        preferences = prefer_records(
            reader,
            comparators,
            out=out,
            progress=progress,
            texts=not no_texts,
            **choice,
            **as_arguments(models),
            **as_arguments(llms),
        )
    report_skipped(reader)
    print_tables([preferences.table(draws, seed), preferences.comparator_table(draws, seed)], form)
