"""The channels that ask an LLM, as in the TIGERScore paper, 3.2: it analyses outputs of systems, puts errors into good
texts, and says whether an analysis is reasonable.

All requests go through the answer cache: what was answered is not paid for again, and what was not answered is asked
for when the same build runs again. In a dry run, placeholders take the place of answers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from metrist.data.error_analysis.channels import JudgedOutput
from metrist.data.error_analysis.examples import AnalysisExample, Channel, make_example
from metrist.data.error_analysis.filters import FilterStep, describe
from metrist.errors import agree, format_count
from metrist.llm.base import LLM
from metrist.llm.estimate import PLACEHOLDER, current_estimate
from metrist.llm.messages import Completion, Message, Sampling
from metrist.metrics.answer_parsing import find_objects
from metrist.metrics.base import Shard
from metrist.metrics.errors.answers import errors_schema, parse_errors
from metrist.metrics.errors.aspect_tables import AspectTable, choose_table
from metrist.metrics.errors.base import PARTIAL
from metrist.metrics.errors.error_analysis import ErrorAnalysis, parse_verdict
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.llm_metric import ask_llm, is_retryable
from metrist.metrics.prompt_layout import REMINDER, PromptText, fence_texts, fill_template, load_template, resolve_task
from metrist.ratings import Error
from metrist.records import Record
from metrist.runtime import Runtime

#: Solutions of a mathematical problem of which one is analysed (TIGERScore paper, 3.2).
CANDIDATES = 5
#: The temperature at which several outputs of one LLM are generated.
_TEMPERATURE = 0.8
#: Records that are analysed together: so many answers are held in memory at once.
_BATCH = 512
_MAX_TOKENS = 2048
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

Key = tuple[str, str]
Steps = dict[str, FilterStep]


# ---- Outputs to analyse


def generate_outputs(
    outputs: Sequence[JudgedOutput], llms: Sequence[LLM], steps: Steps, runtime: Runtime | None = None
) -> list[JudgedOutput]:
    """Outputs of these LLMs for all items, one of each; for mathematical problems, five."""
    items: dict[tuple[str, str | None, str | None], Record] = {}
    for output in outputs:
        record = output.record
        if (record.instruction or record.source or "").strip():
            items.setdefault((record.item, record.source, record.instruction), record)
    made: list[JudgedOutput] = []
    for llm in llms:
        name = str(getattr(llm, "model", "") or llm)
        for sample in range(CANDIDATES):
            # Of problems there are several solutions, at a temperature; of other items one output.
            for is_math in (True, False) if sample == 0 else (True,):
                chosen = [record for record in items.values() if (resolve_task(record.task) == "math") is is_math]
                temperature = _TEMPERATURE if is_math else 0.0
                sampling = Sampling(temperature=temperature, max_tokens=_MAX_TOKENS, sample=sample)
                questions = []
                for record in chosen:
                    instruction = record.instruction or choose_table(record.task).instruction
                    question = f"{instruction}\n\n{record.source}" if record.source else instruction
                    questions.append((Message("user", question),))
                answers = ask_llm(llm, questions, sampling, runtime)
                for record, answer in zip(chosen, answers, strict=True):
                    if answer.failure is not None or not answer.text.strip() or answer.finish == "length":
                        _add_failure(steps, "not generated", record, answer)
                        continue
                    system = f"{name}#{sample + 1}" if is_math else name
                    new = replace(record, system=system, output=answer.text.strip())
                    made.append(JudgedOutput(record=new))
    return made


def choose_outputs(
    outputs: Sequence[JudgedOutput], count: int | None, scores: Mapping[Key, float] | None = None, seed: int = 0
) -> list[JudgedOutput]:
    """Outputs to analyse, at most `count` of each task: as many of the best, middle and worst third by these scores.
    Outputs without a score, and all if there are no scores, are chosen at random. Of the solutions of a mathematical
    problem, one of five is chosen, a wrong one if there is any."""
    by_task: dict[str | None, list[JudgedOutput]] = {}
    for output in outputs:
        if output.record.output.strip():
            by_task.setdefault(resolve_task(output.record.task) or output.record.task, []).append(output)
    chosen: list[JudgedOutput] = []
    for task, group in by_task.items():
        rng = random.Random(f"{seed}\0real\0{task}")
        if task == "math":
            by_item: dict[str, list[JudgedOutput]] = {}
            for output in group:
                by_item.setdefault(output.record.item, []).append(output)
            solutions = []
            for outputs_of_item in by_item.values():
                candidates = rng.sample(outputs_of_item, min(CANDIDATES, len(outputs_of_item)))
                wrong = [output for output in candidates if _is_wrong(output.record)]
                solutions.append(rng.choice(wrong or candidates))
            chosen += choose_in_thirds(solutions, count, {}, rng)
        else:
            chosen += choose_in_thirds(group, count, scores or {}, rng)
    return chosen


def choose_in_thirds(
    outputs: Sequence[JudgedOutput], count: int | None, scores: Mapping[Key, float], rng: random.Random
) -> list[JudgedOutput]:
    """At most `count` outputs, a third of them from each third by score; outputs without a score fill up."""
    if count is None or count >= len(outputs):
        return list(outputs)
    scored = [output for output in outputs if (output.record.item, output.record.system) in scores]
    scored.sort(key=lambda output: scores[output.record.item, output.record.system])
    bounds = [round(part * len(scored) / 3) for part in range(4)]
    chosen: list[JudgedOutput] = []
    for part in range(3):
        third = scored[bounds[part] : bounds[part + 1]]
        chosen += rng.sample(third, min(len(third), (count + part) // 3))
    ids = {id(output) for output in chosen}
    rest = [output for output in outputs if id(output) not in ids]
    return [*chosen, *rng.sample(rest, min(len(rest), count - len(chosen)))]


def _is_wrong(record: Record) -> bool:
    """Whether the last number of a solution is not that of the reference."""
    results = []
    for text in (record.output, *record.references[:1]):
        numbers = _NUMBER.findall(text)
        results.append(float(numbers[-1].replace(",", "")) if numbers else None)
    return len(results) == 2 and results[0] != results[1]


# ---- Analyses


def analyse_outputs(
    outputs: Sequence[JudgedOutput],
    llm: LLM,
    steps: Steps,
    *,
    channel: Channel = "real",
    runtime: Runtime | None = None,
) -> Iterator[AnalysisExample]:
    """Outputs with the errors that the LLM finds in two steps. It sees references where there are any. In the channel
    `freeform` it chooses the aspects itself."""
    aspects = "none" if channel == "freeform" else "task"
    for shown in (True, False):
        metric = ErrorAnalysis(llm=llm, reference="shown" if shown else "hidden", aspects=aspects)
        records = [output.record for output in outputs if bool(output.record.references) is shown]
        for start in range(0, len(records), _BATCH):
            batch = records[start : start + _BATCH]
            scores = metric.score(Shard(batch, runtime=runtime))
            for number, record in enumerate(batch):
                if current_estimate() is not None:
                    yield _make_placeholder(record, channel)
                elif (failure := scores.failures.get(number)) is not None:
                    name = "not answered" if is_retryable(failure) else "unreadable"
                    _add(steps, name, str(failure), record)
                elif scores.parts[PARTIAL][number]:
                    _add(steps, "cut off", "the answer was cut off or is incomplete", record)
                else:
                    table = choose_table(record.task)
                    errors = [_name_aspect(error, table) for error in scores.errors.get(number, ())]
                    yield make_example(record, errors, channel)


def _name_aspect(error: Error, table: AspectTable) -> Error:
    """The error under the table's spelling of its aspect."""
    names = {name.casefold(): name for name in table.names}
    return replace(error, aspect=names.get(error.aspect.strip().casefold(), error.aspect))


def inject_by_llm(
    texts: Sequence[Record],
    llm: LLM,
    count: int,
    steps: Steps,
    *,
    most: int = 3,
    seed: int = 0,
    runtime: Runtime | None = None,
) -> Iterator[AnalysisExample]:
    """Good texts into which the LLM puts errors under aspects that are chosen evenly, with its explanations."""
    schema: dict[str, Any] = json.loads(json.dumps(errors_schema()))
    schema["properties"] = {"mark": {"type": "string"}, "output": {"type": "string"}, **schema["properties"]}
    schema["required"] = ["mark", "output", "errors"]
    sampling = Sampling(max_tokens=_MAX_TOKENS, schema=schema)
    tasks = [_plan(texts[number % len(texts)], number, most, seed) for number in range(count if texts else 0)]
    for start in range(0, len(tasks), _BATCH):
        batch = tasks[start : start + _BATCH]
        questions = [(Message("user", question),) for _, question, _ in batch]
        for (record, _, mark), answer in zip(batch, ask_llm(llm, questions, sampling, runtime), strict=True):
            if current_estimate() is not None:
                yield _make_placeholder(record, "synthetic")
            elif answer.failure is not None:
                _add_failure(steps, "not answered" if is_retryable(answer.failure) else "unreadable", record, answer)
            elif isinstance(made := _parse_injection(record, answer, mark), str):
                _add(steps, "unreadable", made, record)
            else:
                yield made


def _plan(text: Record, number: int, most: int, seed: int) -> tuple[Record, str, str]:
    """A text with its question about errors under chosen aspects, and the mark of the answer."""
    rng = random.Random(f"{seed}\0inject\0{number}\0{text.item}\0{text.system}")
    table = choose_table(text.task)
    aspects = rng.sample(table.aspects, min(rng.randint(1, most), len(table.aspects)))
    texts = [PromptText("instruction", text.instruction or table.instruction)]
    if text.source:
        texts.append(PromptText("source", text.source))
    fenced = fence_texts([*texts, PromptText(table.output, text.output)])
    question = fill_template(
        load_template("error_injection"),
        task=table.task.replace("_", " "),
        count=format_count(len(aspects), "error"),
        output=table.output,
        aspects=replace(table, aspects=tuple(aspects)).describe_aspects(),
        names=", ".join(aspect.name for aspect in aspects),
        reminder=REMINDER,
        texts=fenced.text,
        mark=fenced.mark,
    )
    return text, question, fenced.mark


def _parse_injection(record: Record, answer: Completion, mark: str) -> AnalysisExample | str:
    """The example, or why the answer gives none."""
    if answer.finish == "length":
        return "the answer was cut off"
    marked = [parsed.values for parsed in find_objects(answer.text) if parsed.values.get("mark") == mark]
    output = marked[-1].get("output") if marked else None
    if not isinstance(output, str) or not output.strip():
        return "the answer has no JSON object with the mark and an output"
    parsed = parse_errors(answer.text, [record.output, record.source or ""], mark=mark)
    if parsed.failure is not None:
        return str(parsed.failure)
    if parsed.partial or not parsed.errors:
        return "the answer names no errors" if not parsed.errors else "the errors are not complete"
    if output.split() == record.output.split():
        return "the output is the good text without any error"
    changed = replace(record, output=output.strip())
    errors = [_name_aspect(error, choose_table(record.task)) for error in ground_errors(parsed.errors, changed)]
    return make_example(changed, errors, "synthetic")


# ---- The question whether an analysis is reasonable


def review_examples(
    examples: Sequence[AnalysisExample], llm: LLM, steps: Steps, runtime: Runtime | None = None
) -> list[AnalysisExample]:
    """The examples whose analysis the LLM calls reasonable."""
    steps.setdefault("unreasonable", FilterStep("unreasonable", "an LLM does not find the analysis reasonable"))
    reasonable: list[AnalysisExample] = []
    for start in range(0, len(examples), _BATCH):
        batch = examples[start : start + _BATCH]
        conversations = []
        marks = []
        for example in batch:
            table = choose_table(example.task)
            texts = [PromptText("instruction", example.instruction)]
            if example.source:
                texts.append(PromptText("source", example.source))
            # The analysis quotes the judged text, so it stands between fences as well.
            texts += [PromptText(table.output, example.output), PromptText("analysis", example.completion)]
            fenced = fence_texts(texts)
            question = fill_template(
                load_template("error_analysis_review"),
                task=table.task.replace("_", " "),
                output=table.output,
                reminder=REMINDER,
                texts=fenced.text,
                mark=fenced.mark,
            )
            conversations.append((Message("user", question),))
            marks.append(fenced.mark)
        answers = ask_llm(llm, conversations, Sampling(max_tokens=512), runtime)
        for example, answer, mark in zip(batch, answers, marks, strict=True):
            verdict = parse_verdict(answer.text, mark) if answer.failure is None else None
            if verdict or current_estimate() is not None:
                reasonable.append(example)
            elif verdict is False:
                steps["unreasonable"].add(" ".join(answer.text.split())[:300], **describe(example))
            else:
                step = steps.setdefault("not reviewed", FilterStep("not reviewed", _DESCRIPTIONS["not reviewed"]))
                step.add(str(answer.failure or "the answer has no verdict"), **describe(example))
    return reasonable


# ---- Failures

_DESCRIPTIONS = {
    "not generated": "an LLM gave no output; the same command asks again",
    "not answered": "the LLM gave no answer; the same command asks again",
    "unreadable": "the answer cannot be read as errors in JSON",
    "cut off": "the answer was cut off or is incomplete",
    "not reviewed": "the LLM gave no verdict; the same command asks again",
}


def _add(steps: Steps, name: str, reason: str, record: Record) -> None:
    step = steps.setdefault(name, FilterStep(name, _DESCRIPTIONS[name]))
    step.add(reason, item=record.item, system=record.system, task=record.task, output=record.output[:300])


def _add_failure(steps: Steps, name: str, record: Record, answer: Completion) -> None:
    _add(steps, name, str(answer.failure or "the answer is empty or was cut off"), record)


def _make_placeholder(record: Record, channel: Channel) -> AnalysisExample:
    error = Error(aspect=choose_table(record.task).names[0], severity="major", penalty=1.0, explanation=PLACEHOLDER)
    return make_example(record, [error], channel)


def describe_failures(steps: Mapping[str, FilterStep]) -> list[str]:
    """What was not answered and can be asked for again."""
    names = [name for name in ("not generated", "not answered", "not reviewed") if name in steps]
    return [
        f"{format_count(steps[name].removed, 'output')} {agree(steps[name].removed, 'was', 'were')} {name}: "
        f"{steps[name].samples[0]['reason']}; the same command asks again and pays for nothing twice"
        for name in names
    ]
