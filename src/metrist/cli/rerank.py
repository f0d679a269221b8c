"""`metrist rerank`: the best of several outputs of an item."""

from __future__ import annotations

from typing import Any

from metrist.cli.options import DRY_RUN, TABLE_FORMAT, WORKERS, Format, Inputs, LLMOptions, Names, ReadingOptions
from metrist.cli.output import print_estimate, print_table, progress_bar, report_skipped
from metrist.errors import SpecError
from metrist.evaluate.plans import RerankSettings
from metrist.settings import ModelSettings, as_arguments, setting


def rerank(
    inputs: Inputs,
    *,
    mbr: Names = setting(
        (),
        "Choose the output that is closest to all outputs of its item by this metric: chrf, rougeL, bertscore, …; "
        "repeatable.",
        metavar="SPEC",
    ),
    metrics: Names = setting((), "Choose by the score of this metric; repeatable.", "-m", "--metric", metavar="SPEC"),
    comparators: Names = setting(
        (),
        "Choose by comparisons of two outputs: 'judge_pair(llm=…)', or a metric, whose better score wins; repeatable.",
        "--comparator",
        metavar="SPEC",
    ),
    settings: RerankSettings,
    report: Names = setting(
        (), "Also tell what was gained by this metric; repeatable.", "--report-metric", metavar="SPEC"
    ),
    out: str | None = setting(
        None, "Write the rows of the chosen outputs here: a .jsonl, .csv or .tsv file.", "-o", metavar="PATH"
    ),
    reading: ReadingOptions,
    models: ModelSettings,
    llms: LLMOptions,
    workers: int = WORKERS,
    executor: str | None = setting(
        None, "Where to score: serial, processes, ray or ray:ADDRESS.", metavar="NAME", shown="the fastest here"
    ),
    dry_run: bool = DRY_RUN,
    form: Format = TABLE_FORMAT,
) -> None:
    if not (mbr or metrics or comparators):
        raise SpecError(
            "nothing to choose by: name a metric, such as --mbr chrf or -m consistency", code="missing_value"
        )
    from metrist.evaluate.rerank.rerank import estimate_reranking
    from metrist.evaluate.rerank.rerank import rerank as rerank_records
    from metrist.run.executors import resolve_executor

    reader = reading.read(inputs)
    choosers: dict[str, Any] = {"mbr": mbr, "comparators": comparators, "report": report}
    if dry_run:
        with llms.activate():
            print_estimate(estimate_reranking(reader, metrics, pairing=settings.pairing, **choosers), form)
        return
    options: dict[str, Any] = {**as_arguments(settings), **as_arguments(models), **as_arguments(llms)}
    with progress_bar("reranking", "outputs") as progress:
        reranked = rerank_records(
            reader,
            metrics,
            **choosers,
            out=out,
            executor=resolve_executor(executor, workers or None),
            progress=progress,
            **options,
        )
    report_skipped(reader)
    print_table(reranked.table(), form)
