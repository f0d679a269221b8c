"""The viewer: one page that lists the outputs of runs, and the API that it reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from metrist.errors import RunError, format_path, quote_word
from metrist.records import CONTEXT_FIELDS, TAG_FIELDS
from metrist.report.cells import or_none
from metrist.report.output_card import cut_end, error_row
from metrist.web.pages import answer_json, read_body, render_page
from metrist.web.queries import PAGE_SIZES, Collection, Query
from metrist.web.viewed_run import ViewedRun

#: Characters of a text that the page gets; the exported file has all of them.
MAX_TEXT = 1_000_000
#: Characters of the outputs of other systems, and how many of them.
_MAX_SIBLING_TEXT = 20_000
_MAX_SIBLINGS = 64
#: Outputs that one request may pick.
_MAX_PICKS = 10_000


class RunBody(msgspec.Struct, frozen=True):
    """The body of a request about a run."""

    run: int = 0


class PicksBody(RunBody, frozen=True):
    """Outputs by item and system, or by a query, that are picked or no longer picked."""

    keys: Annotated[list[tuple[str, str]], msgspec.Meta(max_length=_MAX_PICKS)] = []
    query: str | None = None
    picked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The runs that are shown, and the file that outputs picked for annotation are written to."""

    collection: Collection
    picks: Path

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.show_page),
            Route("/api/runs", self.send_runs),
            Route("/api/outputs", self.send_outputs),
            Route("/api/output", self.send_output),
            Route("/api/picks", self.change_picks, methods=["POST"]),
            Route("/api/export", self.send_export),
            Route("/api/annotation", self.write_annotation, methods=["POST"]),
        ]

    async def show_page(self, request: Request) -> Response:  # noqa: ARG002
        return render_page("viewer.html", "metrist: outputs", scripts=["viewer.js"], styles=["viewer.css"])

    # Handlers that are no coroutines run in threads, so that a long one does not hold up the others.

    def send_runs(self, request: Request) -> Response:  # noqa: ARG002
        runs = []
        for run in self.collection.runs:
            names, labels = run.systems.names, run.labels
            counts = np.bincount(run.systems.codes, minlength=len(names)).tolist()
            runs.append(
                {
                    "name": run.name,
                    "size": len(run),
                    "systems": [{"name": name, "size": size} for name, size in zip(names, counts, strict=True)],
                    "columns": [asdict(column) for column in run.columns.values()],
                    "tasks": labels["task"],
                    "languages": labels["language"],
                    "severities": labels["severity"],
                    "aspects": labels["aspect"],
                    "notes": run.notes,
                    "picked": len(run.picks.keys),
                }
            )
        return answer_json({"runs": runs, "sizes": PAGE_SIZES, "picks": format_path(self.picks)})

    def send_outputs(self, request: Request) -> Response:
        return answer_json(self.collection.list_page(_read_query(request)))

    def send_output(self, request: Request) -> Response:
        """One output with all that is known about it, the other side's, and those of other systems."""
        query = _read_query(request)
        run = self.collection.run(query.run)
        row = _find_row(run, request.query_params.get("item", ""), request.query_params.get("of", ""))
        position, before, after = self.collection.locate(query, row)
        other = self.collection.find_other(query)
        counterpart = None
        if other is not None and other[1][row] >= 0:
            counterpart = _describe_output(other[0], int(other[1][row]))
            counterpart["run"] = other[0].name
        siblings = [sibling for sibling in run.rows_of(run.items[row]) if sibling != row][:_MAX_SIBLINGS]
        texts = run.read_texts(siblings, "output")
        return answer_json(
            {
                "output": _describe_output(run, row),
                "other": counterpart,
                "siblings": [
                    {**_describe_row(run, sibling), "output": cut_end(texts[sibling].get("output"), _MAX_SIBLING_TEXT)}
                    for sibling in siblings
                ],
                "position": position,
                "before": None if before is None else _name_row(run, before),
                "after": None if after is None else _name_row(run, after),
            }
        )

    async def change_picks(self, request: Request) -> Response:
        """Pick outputs by item and system, or all that a query selects."""
        body = await read_body(request, PicksBody)
        run = self.collection.run(body.run)
        if body.query is not None:
            rows = self.collection.select(Query.parse(parse_qsl(body.query, keep_blank_values=True)))
            if len(rows) > _MAX_PICKS:
                raise RunError(f"{len(rows):,} outputs are more than {_MAX_PICKS:,}, the limit", code="too_large")
            keys = [run.key(row) for row in rows.tolist()]
        else:
            keys = [run.key(_find_row(run, *key)) for key in body.keys]
        run.picks.change(keys, picked=body.picked)
        return answer_json({"picked": len(run.picks.keys)})

    def send_export(self, request: Request) -> Response:
        """The picked outputs as a file of records."""
        run = self.collection.run(_read_query(request).run)
        lines = "".join(f"{json.dumps(row)}\n" for row in list_picked_records(run))
        headers = {"Content-Disposition": 'attachment; filename="picked.jsonl"'}
        return Response(lines, media_type="application/x-ndjson", headers=headers)

    async def write_annotation(self, request: Request) -> Response:
        """Write the picked outputs to the file that `metrist annotate` is to read."""
        from metrist.io.writer import atomic_write

        run = self.collection.run((await read_body(request, RunBody)).run)
        rows = list_picked_records(run)
        if not rows:
            raise RunError("nothing is picked")
        with atomic_write(self.picks) as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        path = format_path(self.picks)
        command = f"metrist annotate {quote_word(path)} --schema likert -o annotation/"
        return answer_json({"count": len(rows), "path": path, "command": command})


def list_picked_records(run: ViewedRun) -> list[dict[str, Any]]:
    """The picked outputs as rows that metrist reads: texts, further columns, people's judgments and metrics' scores."""
    records = []
    for row in run.list_picked():
        facts = run.read_facts(row)
        content = dict(facts.record.extra) if facts.record else {}
        content |= _name_row(run, row)
        for name in (*TAG_FIELDS, *reversed(CONTEXT_FIELDS), "references", "output"):
            if value := getattr(facts.record, name, None):
                content[name] = value
        if facts.ratings:
            content["ratings"] = facts.ratings
        if facts.errors:
            content["errors"] = [error_row(error) for error in facts.errors]
        measured = [name for name, column in run.columns.items() if column.kind in ("metric", "aspect")]
        content["scores"] = {name: value for name in measured if (value := or_none(run.numbers[name][row])) is not None}
        records.append(content)
    return records


def _read_query(request: Request) -> Query:
    return Query.parse(request.query_params.multi_items())


def _find_row(run: ViewedRun, item: str, system: str) -> int:
    for row in run.rows_of(item):
        if run.systems[row] == system:
            return row
    raise HTTPException(404, "The run has no such output.")


def _name_row(run: ViewedRun, row: int) -> dict[str, str]:
    item, system = run.key(row)
    return {"item": item, "system": system}


def _describe_row(run: ViewedRun, row: int) -> dict[str, Any]:
    return {**_name_row(run, row), "numbers": [or_none(numbers[row]) for numbers in run.numbers.values()]}


def _describe_output(run: ViewedRun, row: int) -> dict[str, Any]:
    card, facts, readings = run.read_card(row)
    # Further columns as JSON can hold them: NaN is null, and what JSON does not know is text.
    written = json.dumps(dict(facts.record.extra) if facts.record else {}, default=str)
    extra = json.loads(written, parse_constant=lambda _: None)
    return {
        **_describe_row(run, row),
        **card.for_script(MAX_TEXT),
        "task": facts.record.task if facts.record else None,
        "ratings": {aspect: len(values) for aspect, values in facts.ratings.items()},
        **({"extra": extra} if extra else {}),
        "columns": list(run.columns),
        "tokens": readings,
        "picked": run.key(row) in run.picks.keys,
    }
