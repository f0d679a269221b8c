"""Shipped metrics with models, through `metrist.score`. `python -m bench.shipped [--write]`

Texts have the lengths that the requirements name. Each case runs in processes of its own, in turn, on all cores, so run
nothing else; the CPU time of an output changes less than the rate when other work disturbs it. Needs the folder of
human judgments for its texts, and the packages of models: what is not installed has no row.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bench.document import machine, run_in_child, show_section
from bench.texts import rows

ROUNDS = 3
#: Tokens of a source and an output of `consistency`, of an output of `fluency`, and of each side of a translation.
SOURCE, OUTPUT, SENTENCE, SIDE = 500, 256, 25, 40
#: Every so many words, one is left out of a sentence of the source, so that none is copied word for word.
LEFT_OUT = 7

#: Cuts a text to a number of tokens; None if it has fewer.
Cut = Callable[[str, int], str | None]


class Case(NamedTuple):
    """A metric on texts of one kind: a row of the table. `errors` has several models and `likelihood` no encoder: for
    them, `model` only counts tokens."""

    metric: str
    model: str
    texts: Callable[[Cut], Iterator[dict[str, Any]]]
    records: int
    #: Outputs per second that are required on two cores.
    required: float


def make_consistency_records(cut: Cut) -> Iterator[dict[str, Any]]:
    """Articles, and their sentences with some words left out: most are supported, and some by words further on."""
    for article in dict.fromkeys(row["source"] for row in rows("bump")):
        source = cut(article, SOURCE)
        words = [word for number, word in enumerate((source or "").split()) if (number + 1) % LEFT_OUT]
        output = cut(" ".join(words), OUTPUT)
        if source and output:
            yield {"source": source, "output": output}


def make_summaries(_: Cut) -> Iterator[dict[str, Any]]:
    """Articles and summaries of SummEval, one system each, at the lengths that they have."""
    for number, row in enumerate(rows("summeval")):
        if number % 17 == 0:
            yield {"source": row["source"], "output": row["output"], "task": "summarization"}


def make_systems_summaries(_: Cut) -> Iterator[dict[str, Any]]:
    """Articles of SummEval, each with the summaries of all 16 systems: a source is read once for all of them."""
    for row in rows("summeval"):
        yield {"source": row["source"], "output": row["output"], "task": "summarization"}


def make_fluency_records(cut: Cut) -> Iterator[dict[str, Any]]:
    for article in dict.fromkeys(row["source"] for row in rows("bump")):
        for sentence in re.split(r"(?<=\.)\s+", article):
            output = cut(sentence, SENTENCE)
            if output:
                yield {"output": output}


def make_translation_records(cut: Cut) -> Iterator[dict[str, Any]]:
    """Translations from Romanian, two joined for enough tokens, and the same two in the other order as reference."""
    pairs = [(row["source"], row["output"]) for row in rows("mlqe-pe.ro-en")]
    for (source, output), (other_source, other_output) in zip(pairs[::2], pairs[1::2], strict=False):
        texts = (f"{source} {other_source}", f"{output} {other_output}", f"{other_output} {output}")
        sides = [cut(text, SIDE) for text in texts]
        if all(sides):
            yield {"source": sides[0], "output": sides[1], "references": [sides[2]], "language": "ro-en"}


def make_unreferenced_records(cut: Cut) -> Iterator[dict[str, Any]]:
    for record in make_translation_records(cut):
        yield {name: value for name, value in record.items() if name != "references"}


CASES = {
    "consistency, small": Case("consistency", "metrist:english-small", make_consistency_records, 16, 4),
    "consistency, large": Case("consistency", "metrist:english-large", make_consistency_records, 8, 0.7),
    "consistency, small, SummEval": Case("consistency", "metrist:english-small", make_summaries, 48, 10),
    "likelihood, SummEval": Case("likelihood", "metrist:english-small", make_systems_summaries, 160, 20),
    "likelihood, one system of SummEval": Case("likelihood", "metrist:english-small", make_summaries, 48, 20),
    "errors, small": Case("errors", "metrist:english-small", make_summaries, 48, 5),
    "fluency, small": Case("fluency", "metrist:english-small", make_fluency_records, 256, 40),
    "fluency, large": Case("fluency", "metrist:english-large", make_fluency_records, 64, 40),
    "translation_quality without references": Case(
        "translation_quality", "metrist:multilingual", make_unreferenced_records, 96, 40
    ),
    "translation_quality with a reference": Case(
        "translation_quality", "metrist:multilingual", make_translation_records, 96, 40
    ),
}


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--measure"]:
        print(json.dumps(measure(CASES[arguments[1]])))
        return
    report = describe()
    show_section("bench-shipped", report)


def describe() -> str:
    """Measure all cases, and return the table with a description of the setup."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, runs in results.items():
            runs.append(measure_in_process(name))
            print(name, runs[-1], file=sys.stderr, flush=True)
    lines = [
        f"Shipped metrics with models, measured by `make bench-shipped` on {os.cpu_count()} "
        f"cores of {machine()}: through `metrist.score`, the best of {ROUNDS} processes each, in turn. Outputs of "
        f"`consistency` have {OUTPUT} tokens and sources {SOURCE}, sentences of `fluency` {SENTENCE}, and each side of "
        f"a translation {SIDE}. `errors` and the rows named so read SummEval: one system per article, `likelihood, "
        "SummEval` all 16. *Reads*: sequences and tokens per output. Loading is from the start of Python to the first "
        "score.",
        "",
        "| | loads in | outputs/s | required | CPU seconds per output | reads |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name, runs in results.items():
        if any("missing" in run for run in runs):
            continue
        load, rate, cpu = (
            min(run["load"] for run in runs),
            max(run["rate"] for run in runs),
            min(r["cpu"] for r in runs),
        )
        reads = f"{runs[0]['sequences']:.1f} of {runs[0]['tokens']:.0f}" if runs[0]["tokens"] else ""
        lines.append(f"| {name} | {load:.2f} s | {rate:.3g} | {CASES[name].required:g} | {cpu:.4f} | {reads} |")
    return "\n".join(lines)


def measure_in_process(name: str) -> dict[str, Any]:
    measured: dict[str, Any] = run_in_child("bench.shipped", "--measure", name)
    return measured


def measure(case: Case) -> dict[str, Any]:
    """Return the loading time, outputs per second and CPU seconds per output, or why the model is missing."""
    started = time.perf_counter() - time.process_time()
    import metrist
    from metrist.errors import MetristError
    from metrist.models.loading import load_text_encoder
    from metrist.models.numpy_inference.encoder_network import Network

    try:
        encoder = load_text_encoder(case.model)
    except MetristError as fault:
        return {"missing": str(fault)}
    has_model = case.metric not in ("errors", "likelihood")
    metric = f"{case.metric}(model={case.model!r})" if has_model else case.metric
    metrist.score([{"source": "One.", "output": "Two."}], [metric], progress=False)
    load = time.perf_counter() - started

    def cut(text: str, tokens: int) -> str | None:
        offsets = encoder.encode([text])[0].offsets
        return text[: offsets[tokens - 1][1]] if len(offsets) >= tokens else None

    records = [record for record, _ in zip(case.texts(cut), range(case.records), strict=False)]
    lengths = count_reads(Network)
    metrist.score(records[:4], [metric], progress=False)
    lengths.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    results = metrist.score(records, [metric], progress=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    values = [row["value"] for row in results.rows()]
    assert len(values) == case.records
    assert None not in values
    return {
        "load": load,
        "rate": case.records / wall,
        "cpu": cpu / case.records,
        "sequences": len(lengths) / case.records,
        "tokens": sum(lengths) / max(len(lengths), 1),
    }


def count_reads(network: Any) -> list[int]:
    """Return a list that each sequence's length is added to when it is read."""
    lengths: list[int] = []
    encode = network.encode

    def encode_and_count(self: Any, sequences: Sequence[Any], *more: Any) -> Any:
        lengths.extend(len(ids) for ids, _ in sequences)
        return encode(self, sequences, *more)

    network.encode = encode_and_count
    return lengths


if __name__ == "__main__":
    main()
