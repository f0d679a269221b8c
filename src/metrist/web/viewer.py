"""The viewer: one page that lists the outputs of runs, and the API that it reads.

Outputs are filtered, sorted, searched and compared by queries. A query comes from the address of a page, so that every
view has a link: unknown names and numbers that cannot be read are errors with a message for the user.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from metrist.errors import RunError, did_you_mean, format_path, quote_word
from metrist.grid import pair_outputs
from metrist.records import CONTEXT_FIELDS, TAG_FIELDS
from metrist.report.cells import or_none
from metrist.report.output_card import cut_end, error_row
from metrist.web.pages import answer_json, read_body, render_page
from metrist.web.viewed_run import Floats, ViewedRun

PAGE_SIZES = (25, 50, 100)
MAX_QUERY = 1000
FIELDS = ("output", "context", "reason", "item")
#: The suffix of a column's name that stands for its difference from the other side.
CHANGE = "change"
INPUT_ORDER, DISAGREEMENT = "input", "disagreement"
_PREVIEW = 400
#: Characters of an instruction, a source or a failure in the list.
_SHORT_PREVIEW = 200
#: Orders of all outputs that are kept.
_MAX_ORDERS = 8
#: Seconds until searches are prepared, and that closing waits for it.
_PREPARE_SECONDS, _CLOSE_SECONDS = 1.0, 5.0
#: Characters of a text that the page gets; the exported file has all of them.
MAX_TEXT = 1_000_000
#: Characters of the outputs of other systems, and how many of them.
_MAX_SIBLING_TEXT = 20_000
_MAX_SIBLINGS = 64
#: Outputs that one request may pick.
_MAX_PICKS = 10_000

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which outputs of a run are shown, and in which order.

    `versus` names the other side of a comparison: `run:1` for the same outputs in another run, `system:NAME` for
    another system's outputs of the same items. `ranges` are limits by column; a column's name with ` change` limits the
    difference from the other side. `errors` is any, none, unchecked or a severity. Without `sort`, the worst outputs by
    the first metric come first.
    """

    run: int = 0
    versus: str = ""
    text: str = ""
    where: str = "output"
    systems: tuple[str, ...] = ()
    task: str = ""
    language: str = ""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    failed: str = ""
    errors: str = ""
    aspect: str = ""
    picked: bool = False
    differing: bool = False
    sort: str = ""
    descending: bool = False
    page: int = 1
    size: int = 50

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]]) -> Query:
        """Read a query from the parameters of an address."""
        values: dict[str, Any] = {}
        ranges: dict[str, tuple[float, float]] = {}
        names = {"q": "text", "in": "where", "vs": "versus"}
        for name, value in pairs:
            if len(value) > MAX_QUERY:
                raise RunError(f"{name} has {len(value):,} characters; the limit is {MAX_QUERY:,}", code="too_large")
            if name == "system":
                values.setdefault("systems", []).append(value)
            elif name.startswith(("min.", "max.")):
                low, high = ranges.get(name[4:], (-math.inf, math.inf))
                number = _read_number(name, value)
                ranges[name[4:]] = (number, high) if name.startswith("min.") else (low, number)
            elif name in ("run", "page", "size"):
                values[name] = int(_read_number(name, value))
            elif name in ("picked", "differing", "descending"):
                values[name] = value == "1"
            elif (known := names.get(name, name)) in cls.__dataclass_fields__ and known not in ("ranges", "systems"):
                values[known] = value
        if values.get("where", "output") not in FIELDS:
            raise RunError(f"texts are searched in {', '.join(FIELDS)}, not in {values['where']!r}")
        values["systems"] = tuple(values.get("systems", ()))
        values["page"] = max(1, values.get("page", 1))
        if values.get("size", 50) not in PAGE_SIZES:
            values["size"] = 50
        return cls(ranges=ranges, **values)


def _read_number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number) or (math.isinf(number) and not name.startswith(("min.", "max."))):
        raise RunError(f"{name} must be a number, got {value!r}", code="invalid_value")
    return number


class Collection:
    """The runs of a viewer, with caches of what queries compute."""

    def __init__(self, runs: Sequence[ViewedRun]) -> None:
        self.runs = list(runs)
        self._counterparts: dict[tuple[int, str], Rows] = {}
        self._orders: dict[tuple[Any, ...], NDArray[np.int32]] = {}
        self._closing = threading.Event()
        self._preparing: threading.Thread | None = None

    def prepare(self) -> None:
        """Make searches faster, which takes seconds for a large run, in the background and after the first page."""
        self._preparing = threading.Thread(target=self._prepare, name="prepare", daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        if self._closing.wait(_PREPARE_SECONDS):
            return
        try:
            for run in self.runs:
                run.prepare()
        except Exception:
            if not self._closing.is_set():  # Else it was interrupted.
                raise

    def close(self) -> None:
        self._closing.set()
        for run in self.runs:
            run.close()
        if self._preparing:
            self._preparing.join(_CLOSE_SECONDS)

    def run(self, number: int) -> ViewedRun:
        if not 0 <= number < len(self.runs):
            raise RunError(f"there is no run {number}; there are {len(self.runs)}", code="unknown_name")
        return self.runs[number]

    # ---- The other side

    def find_other(self, query: Query) -> tuple[ViewedRun, Rows] | None:
        """The run of the other side, and each row's counterpart there; -1 where there is none."""
        if not query.versus:
            return None
        run = self.run(query.run)
        kind, _, name = query.versus.partition(":")
        if kind == "run" and name.isascii() and name.isdecimal():
            other = self.run(int(name))
        elif kind == "system":
            other = run
            _check_name("system", name, run.systems.names)
        else:
            raise RunError(f"`vs` must be run:NUMBER or system:NAME, got {query.versus!r}", code="invalid_value")
        key = (query.run, query.versus)
        if key not in self._counterparts:
            own, others = run.systems.names, other.systems.names
            pairs = {system: system for system in own}
            if kind == "system":
                pairs = {system: name for system in own if system != name}
            elif len(own) == len(others) == 1:
                pairs = {own[0]: others[0]}
            self._counterparts[key] = pair_outputs(run.items, run.systems, other.items, other.systems, pairs)
        return other, self._counterparts[key]

    # ---- Filter and sort

    def select(self, query: Query) -> Rows:
        """The rows that a query selects, in its order."""
        run = self.run(query.run)
        kept = np.ones(len(run), np.bool_)
        if query.systems:
            for name in query.systems:
                _check_name("system", name, run.systems.names)
            kept &= np.isin(run.systems.codes, [run.systems.names.index(name) for name in query.systems])
        for tag in TAG_FIELDS:
            if value := getattr(query, tag):
                _check_name(tag, value, run.labels[tag])
                kept &= run.tags[tag] == run.labels[tag].index(value)
        for name, (low, high) in query.ranges.items():
            numbers = self._find_numbers(query, name)
            with np.errstate(invalid="ignore"):
                kept &= (numbers >= low) & (numbers <= high)
        if query.failed:
            kept &= np.isnan(self._find_numbers(query, query.failed))
        if query.errors or query.aspect:
            kept &= self._select_errors(run, query)
        if query.picked:
            kept &= np.isin(np.arange(len(run)), run.list_picked())
        if query.versus and (other := self.find_other(query)):
            kept &= other[1] >= 0
            if query.differing:  # By the text.
                kept[kept] = run.text_hashes[kept] != other[0].text_hashes[other[1][kept]]
        elif query.differing:
            kept[:] = False
        if query.text:
            kept &= run.search(query.text, query.where)
        return self._sort(query, kept)

    def _find_numbers(self, query: Query, name: str) -> Floats:
        run = self.run(query.run)
        if name.endswith(f" {CHANGE}") and name not in run.numbers:
            column = name.removesuffix(f" {CHANGE}")
            _check_name("column", column, run.numbers)
            changes = np.full(len(run), np.nan)
            if (other := self.find_other(query)) and column in other[0].numbers:
                paired = other[1] >= 0
                changes[paired] = run.numbers[column][paired] - other[0].numbers[column][other[1][paired]]
            return changes
        _check_name("column", name, run.numbers)
        return run.numbers[name]

    def _select_errors(self, run: ViewedRun, query: Query) -> NDArray[np.bool_]:
        lines = run.errors
        if query.aspect:
            _check_name("aspect", query.aspect, run.labels["aspect"])
            lines = lines[lines[:, 1] == run.labels["aspect"].index(query.aspect)]
        if query.errors == "unchecked":
            return run.unchecked
        if query.errors not in ("", "any", "none"):
            _check_name("severity", query.errors, run.labels["severity"])
            lines = lines[lines[:, 2] == run.labels["severity"].index(query.errors)]
        kept = np.zeros(len(run), np.bool_)
        kept[lines[:, 0]] = True
        return ~(kept | run.unchecked) if query.errors == "none" else kept

    def choose_order(self, query: Query) -> tuple[str, bool]:
        """The column to sort by, and whether the highest come first: by default the worst by the first metric."""
        if query.sort:
            return query.sort, query.descending
        judging = (column for column in self.run(query.run).columns.values() if column.higher is not None)
        if (first := next(judging, None)) is None:
            return INPUT_ORDER, query.descending
        return f"{first.name} {CHANGE}" if query.versus else first.name, not first.higher

    def _sort(self, query: Query, kept: NDArray[np.bool_]) -> Rows:
        sort, descending = self.choose_order(query)
        if sort == INPUT_ORDER:
            rows = np.flatnonzero(kept)
            return rows[::-1] if descending else rows
        key = (query.run, query.versus, sort, descending)
        if key not in self._orders:
            run = self.run(query.run)
            numbers = _find_disagreement(run) if sort == DISAGREEMENT else self._find_numbers(query, sort)
            # Rows without a number come last in either direction; equal ones stay in the input's order.
            keys = np.where(np.isnan(numbers), np.inf, -numbers if descending else numbers)
            while len(self._orders) >= _MAX_ORDERS:
                self._orders.pop(next(iter(self._orders)), None)
            self._orders[key] = np.argsort(keys, kind="stable").astype(np.int32)
        order = self._orders[key]
        return order[kept[order]].astype(np.intp)

    # ---- What a page shows

    def list_page(self, query: Query) -> dict[str, Any]:
        """One page of the selected outputs as plain data."""
        run = self.run(query.run)
        rows = self.select(query)
        pages = max(1, -(-len(rows) // query.size))
        page = min(query.page, pages)
        shown = rows[(page - 1) * query.size : page * query.size].tolist()
        sort, descending = self.choose_order(query)
        place = {"sort": sort, "descending": descending, "total": len(rows), "page": page, "pages": pages}
        texts, picks = run.read_texts(shown, "output", *CONTEXT_FIELDS), run.picks.keys
        other = self.find_other(query)
        ranks = {"critical": 0, "major": 0, "minor": 1}
        severities = [ranks.get(name, 2) for name in run.labels["severity"]]
        found: dict[int, list[int]] = {}
        for row, _, severity in run.errors[np.isin(run.errors[:, 0], shown)].tolist():
            found.setdefault(row, []).append(severities[severity])
        listed = []
        for row in shown:
            item, system = run.key(row)
            entry = {
                "row": row,
                "item": item,
                "system": system,
                "preview": _shorten(texts[row].get("output"), query.text if query.where == "output" else ""),
                **{name: _shorten(texts[row].get(name), most=_SHORT_PREVIEW) for name in CONTEXT_FIELDS},
                "numbers": [or_none(numbers[row]) for numbers in run.numbers.values()],
                "failures": {name: _shorten(why, most=_SHORT_PREVIEW) for name, why in run.list_failures(row).items()},
                "errors": len(found.get(row, ())),
                "worst": min(found.get(row, ()), default=None),
                "picked": (item, system) in picks,
            }
            if other is not None:
                counterpart = int(other[1][row])
                entry["changes"] = [
                    or_none(run.numbers[name][row] - other[0].numbers[name][counterpart])
                    if counterpart >= 0 and name in other[0].numbers
                    else None
                    for name in run.columns
                ]
            listed.append(entry)
        return {**place, "outputs": listed}

    def locate(self, query: Query, row: int) -> tuple[int, int | None, int | None]:
        """The position of a row among those selected, from 1 (0: not selected), and the rows before and after it."""
        rows = self.select(query)
        (places,) = np.nonzero(rows == row)
        place = int(places[0]) if len(places) else -1
        before = int(rows[place - 1]) if place > 0 else None
        return place + 1, before, int(rows[place + 1]) if place + 1 < len(rows) else None


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise RunError(f"the run has no {what} {name!r}{did_you_mean(name, known)}", code="unknown_name")


def _find_disagreement(run: ViewedRun) -> Floats:
    """The distance between the highest and the lowest percentile by metrics that have a better side."""
    from metrist.evaluate.explain.worst import percentile_ranks

    ranks = [
        percentile_ranks(run.numbers[name] if column.higher else -run.numbers[name])
        for name, column in run.columns.items()
        if column.kind == "metric" and column.higher is not None
    ]
    if len(ranks) < 2:
        raise RunError("a disagreement takes two metrics that have a better side", code="invalid_value")
    return np.asarray(np.ptp(np.stack(ranks), axis=0), np.float64)


def _shorten(text: str | None, words: str = "", most: int = _PREVIEW) -> str | None:
    """The beginning of a text, or the place where the words occur."""
    if text is None:
        return None
    start = 0
    if words:
        place = text.casefold().find(words.casefold())
        start = max(0, place - 80) if place > most - 80 else 0
    part = text[start : start + most]
    return f"{'…' if start else ''}{part}{'…' if start + most < len(text) else ''}"


# ---- The page and its API


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
            names = run.systems.names
            counts = np.bincount(run.systems.codes, minlength=len(names)).tolist()
            runs.append(
                {
                    "name": run.name,
                    "size": len(run),
                    "systems": [{"name": name, "size": size} for name, size in zip(names, counts, strict=True)],
                    "columns": [asdict(column) for column in run.columns.values()],
                    "tasks": run.labels["task"],
                    "languages": run.labels["language"],
                    "severities": run.labels["severity"],
                    "aspects": run.labels["aspect"],
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
