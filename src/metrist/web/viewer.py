"""The viewer: one page that lists the outputs of runs, and the API that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from metrist.errors import RunError, format_path, quote_word
from metrist.report.errors import error_row
from metrist.run.texts import OutputFacts
from metrist.web.pages import render_page
from metrist.web.queries import PAGE_SIZES, Collection, Query, number_or_none
from metrist.web.viewed_run import ViewedRun

#: Characters of a text that the page gets; the exported file has all of them.
MAX_TEXT = 1_000_000
#: Characters of the outputs of other systems, and how many of them.
_MAX_SIBLING_TEXT = 20_000
_MAX_SIBLINGS = 64
#: Outputs that one request may pick.
_MAX_PICKS = 10_000


def answer_json(value: Any) -> Response:
    """Return data as JSON in ASCII: texts may hold lone surrogates, which UTF-8 cannot encode."""
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request."""
    try:
        value = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise HTTPException(400, "The body is no JSON.") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "The body must be a JSON object.")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The runs that are shown, and the file that outputs picked for annotation are written to."""

    collection: Collection
    picks: Path

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.show_page, methods=["GET"]),
            Route("/api/runs", self.send_runs, methods=["GET"]),
            Route("/api/outputs", self.send_outputs, methods=["GET"]),
            Route("/api/output", self.send_output, methods=["GET"]),
            Route("/api/picks", self.change_picks, methods=["POST"]),
            Route("/api/export", self.send_export, methods=["GET"]),
            Route("/api/annotation", self.write_annotation, methods=["POST"]),
        ]

    async def show_page(self, request: Request) -> Response:  # noqa: ARG002
        return render_page("metrist: outputs", _PAGE, scripts=["viewer.js"], styles=["texts.css", "viewer.css"])

    # Handlers that are no coroutines run in threads, so that a long one does not hold up the others.

    def send_runs(self, request: Request) -> Response:  # noqa: ARG002
        runs = [_describe_run(run) for run in self.collection.runs]
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
        texts = run.read_outputs(siblings)
        return answer_json(
            {
                "output": _describe_output(run, row),
                "other": counterpart,
                "siblings": [
                    {**_describe_row(run, sibling), "text": _cut(texts.get(sibling), _MAX_SIBLING_TEXT)}
                    for sibling in siblings
                ],
                "position": position,
                "before": None if before is None else _name_row(run, before),
                "after": None if after is None else _name_row(run, after),
            }
        )

    async def change_picks(self, request: Request) -> Response:
        """Pick outputs by item and system, or all that a query selects."""
        body = await read_json(request)
        run = self.collection.run(_read_run(body))
        if isinstance(body.get("query"), str):
            rows = self.collection.select(Query.parse(parse_qsl(body["query"], keep_blank_values=True)))
            if len(rows) > _MAX_PICKS:
                raise RunError(f"{len(rows):,} outputs are too many to pick at once; the limit is {_MAX_PICKS:,}")
            keys = [run.key(row) for row in rows.tolist()]
        else:
            given = body.get("keys")
            if not isinstance(given, list) or len(given) > _MAX_PICKS:
                raise HTTPException(400, "Expected a list of items and systems.")
            keys = [run.key(_find_row(run, *_read_key(key))) for key in given]
        run.picks.change(keys, picked=body.get("picked") is True)
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

        run = self.collection.run(_read_run(await read_json(request)))
        rows = list_picked_records(run)
        if not rows:
            raise RunError("nothing is picked")
        with atomic_write(self.picks) as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        path = format_path(self.picks)
        return answer_json(
            {
                "count": len(rows),
                "path": path,
                "command": f"metrist annotate {quote_word(path)} --schema likert -o annotation/",
            }
        )


def list_picked_records(run: ViewedRun) -> list[dict[str, Any]]:
    """The picked outputs as rows that metrist reads: texts, further columns, people's judgments and metrics' scores."""
    records = []
    for row in run.list_picked():
        facts = run.read_facts(row)
        item, system = run.key(row)
        judgments = {"ratings": facts.ratings, "errors": [error_row(error) for error in facts.errors]}
        scores = {
            name: number_or_none(run.numbers[name][row])
            for name, column in run.columns.items()
            if column.kind in ("metric", "aspect")
        }
        records.append(
            {
                **(facts.record.extra if facts.record else {}),
                "item": item,
                "system": system,
                **{name: value for name, value in {**_list_texts(facts), **judgments}.items() if value},
                "scores": {name: value for name, value in scores.items() if value is not None},
            }
        )
    return records


def _list_texts(facts: OutputFacts) -> dict[str, Any]:
    names = ("task", "language", "instruction", "source", "references", "output")
    return {name: getattr(facts.record, name) for name in names} if facts.record else {}


def _read_query(request: Request) -> Query:
    return Query.parse(request.query_params.multi_items())


def _read_run(body: Mapping[str, Any]) -> int:
    number = body.get("run", 0)
    if type(number) is not int:
        raise HTTPException(400, "The run must be a number.")
    return number


def _read_key(key: Any) -> tuple[str, str]:
    if not isinstance(key, list) or len(key) != 2 or not all(isinstance(part, str) for part in key):
        raise HTTPException(400, "Expected an item and a system.")
    return key[0], key[1]


def _find_row(run: ViewedRun, item: str, system: str) -> int:
    for row in run.rows_of(item):
        if run.systems[row] == system:
            return row
    raise HTTPException(404, "The run has no such output.")


def _describe_run(run: ViewedRun) -> dict[str, Any]:
    counts = np.bincount(run.systems.codes, minlength=len(run.systems.names)).tolist()
    return {
        "name": run.name,
        "size": len(run),
        "systems": [{"name": name, "size": size} for name, size in zip(run.systems.names, counts, strict=True)],
        "columns": [asdict(column) for column in run.columns.values()],
        "tasks": run.labels["task"],
        "languages": run.labels["language"],
        "severities": run.labels["severity"],
        "aspects": run.labels["aspect"],
        "notes": run.notes,
        "picked": len(run.picks.keys),
    }


def _name_row(run: ViewedRun, row: int) -> dict[str, str]:
    item, system = run.key(row)
    return {"item": item, "system": system}


def _describe_row(run: ViewedRun, row: int) -> dict[str, Any]:
    return {**_name_row(run, row), "numbers": [number_or_none(numbers[row]) for numbers in run.numbers.values()]}


def _describe_output(run: ViewedRun, row: int) -> dict[str, Any]:
    facts = run.read_facts(row)
    scores, readings = run.read_scores(row)
    texts = _list_texts(facts)
    tags = {tag: texts[tag] for tag in ("task", "language") if texts.get(tag) is not None}
    return {
        **_describe_row(run, row),
        "scores": scores,
        "ratings": facts.ratings,
        **({"errors": [error_row(error) for error in facts.errors]} if facts.errors else {}),
        **({"extra": _plain(facts.record.extra)} if facts.record and facts.record.extra else {}),
        **tags,
        "columns": list(run.columns),
        "text": _cut(texts.get("output")),
        "instruction": _cut(texts.get("instruction")),
        "source": _cut(texts.get("source")),
        "references": [_cut(text) for text in texts.get("references", ())],
        "tokens": readings,
        "picked": run.key(row) in run.picks.keys,
    }


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: NaN is null, and what JSON does not know is text."""
    return json.loads(json.dumps(dict(value), default=str), parse_constant=lambda _: None)


def _cut(text: str | None, limit: int = MAX_TEXT) -> str | None:
    """A text up to a limit, with a remark on what is left out."""
    if text is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n[… {len(text) - limit:,} more characters]"


_PAGE = """
<a class="skip" href="#list">Skip to the outputs</a>
<header class="bar">
  <h1>metrist</h1>
  <nav aria-label="Pages"><a href="/" aria-current="page">Outputs</a><a href="/play">Playground</a></nav>
  <label>Run <select id="run"></select></label>
  <label>compared with <select id="versus"></select></label>
  <span class="end row">
    <span id="picked" class="soft"></span>
    <button type="button" id="send" hidden>Send to annotation</button>
    <a class="button" id="export" href="/api/export" download="picked.jsonl" hidden>Export</a>
    <button type="button" id="help-button" aria-haspopup="dialog">Keys</button>
  </span>
</header>
<div id="layout">
  <form id="filters" aria-label="Filters" autocomplete="off">
    <div class="row search">
      <label class="above grow">Search
        <input id="text" type="search" maxlength="1000" placeholder="words"></label>
      <label class="above">in <select id="where">
        <option value="output">output</option><option value="context">source, references</option>
        <option value="reason">reasons, errors</option><option value="item">item</option></select></label>
    </div>
    <details id="more" open><summary>Filter and sort</summary>
      <div class="fields">
        <label class="above">Sort by <select id="sort"></select></label>
        <label class="above">Order <select id="descending">
          <option value="">lowest first</option><option value="1">highest first</option></select></label>
        <label class="above">System <select id="system"></select></label>
        <label class="above" id="task-label">Task <select id="task"></select></label>
        <label class="above" id="language-label">Language <select id="language"></select></label>
        <label class="above">Errors <select id="errors"></select></label>
        <label class="above" id="aspect-label">Aspect of errors <select id="aspect"></select></label>
        <label class="above">Not scored by <select id="failed"></select></label>
        <label><input type="checkbox" id="only-picked"> only picked</label>
        <label id="differing-label"><input type="checkbox" id="differing"> only other texts</label>
        <fieldset id="ranges"><legend>Between</legend>
          <label class="above">Column <select id="range-column"></select></label>
          <div class="row">
            <label class="above">from <input id="low" type="number" step="any"></label>
            <label class="above">to <input id="high" type="number" step="any"></label>
          </div>
        </fieldset>
      </div>
      <div class="row" id="chips" role="group" aria-label="Active filters"></div>
      <div class="row"><button type="button" id="reset">Reset</button>
        <button type="button" id="pick-all">Pick all shown here</button></div>
      <details id="column-choice"><summary>Columns</summary><div id="column-list"></div></details>
      <details id="notes" hidden><summary>Notes</summary><ul id="note-list"></ul></details>
    </details>
  </form>
  <main id="list" tabindex="-1">
    <div class="row head"><p id="status" role="status" aria-live="polite">Loading …</p>
      <nav id="pager" class="row" aria-label="Pages of outputs"></nav></div>
    <p id="problem" class="message bad" role="alert" hidden></p>
    <div class="scroll"><table id="outputs"><thead></thead><tbody></tbody></table></div>
  </main>
  <section id="detail" aria-label="The output" tabindex="-1" hidden></section>
</div>
<dialog id="help" aria-labelledby="help-title"><h2 id="help-title">Keys</h2>
  <table><tbody>
  <tr><td><kbd>j</kbd> <kbd>k</kbd></td><td>next and previous output</td></tr>
  <tr><td><kbd>Enter</kbd></td><td>open the marked output</td></tr>
  <tr><td><kbd>Esc</kbd></td><td>close it</td></tr>
  <tr><td><kbd>x</kbd></td><td>pick it, or no longer</td></tr>
  <tr><td><kbd>n</kbd> <kbd>p</kbd></td><td>next and previous page</td></tr>
  <tr><td><kbd>d</kbd></td><td>show or hide word differences</td></tr>
  <tr><td><kbd>/</kbd></td><td>search</td></tr>
  <tr><td><kbd>?</kbd></td><td>this list</td></tr></tbody></table>
  <form method="dialog"><button class="primary">Close</button></form></dialog>
"""
