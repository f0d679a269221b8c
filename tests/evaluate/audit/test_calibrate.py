"""`metrist calibrate`: fitting reference values, and placing a run's scores among them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from run_builder import make_run, noisy

import metrist
from error_codes import raises_code
from metrist.cli.app import main
from metrist.errors import RunError
from metrist.evaluate.audit.calibrate import apply_calibration, calibrate


def test_a_runs_scores_become_a_reference_distribution() -> None:
    run = make_run(quality={"a": [*noisy(0.4, 1), None], "b": noisy(0.6, 2)})
    fitted = calibrate(run)
    (distribution,) = fitted.calibration.groups.values()
    values = run.scores["quality"].values
    assert distribution.count == 160
    assert distribution.mean == pytest.approx(np.nanmean(values))
    assert distribution.sd == pytest.approx(np.nanstd(values))
    assert (fitted.calibration.metric, fitted.calibration.signature) == ("quality", "quality | version 1")
    (row,) = fitted.table().to_dict()["rows"]
    assert row["50 %"] == pytest.approx(np.nanmedian(values))


def test_systems_are_placed_by_the_mean_percentile_of_their_outputs() -> None:
    run = make_run(quality={"a": noisy(0.4, 1), "b": noisy(0.6, 2), "c": [*noisy(0.5, 3), None]})
    calibrated = apply_calibration(run, calibrate(run).calibration)
    rows = {row["system"]: row for row in calibrated.table().to_dict()["rows"]}
    values, systems = run.scores["quality"].values, np.array(run.systems)
    known = values[~np.isnan(values)]
    for system, row in rows.items():
        mine = values[(systems == system) & ~np.isnan(values)]
        expected = np.mean([100 * ((known < v).sum() + (known == v).sum() / 2) / len(known) for v in mine])
        assert row["mean percentile"] == pytest.approx(expected)
        assert row["quality"] == pytest.approx(mine.mean())
    assert (rows["c"]["placed"], rows["c"]["of"]) == (80, 81)
    last = list(calibrated.rows())[-1]
    assert (last["system"], last["value"], last["percentile"]) == ("c", None, None)


def test_percentiles_are_reversed_where_lower_is_better() -> None:
    run = make_run(errors={"few": noisy(10, 1), "many": noisy(20, 2)})
    calibrated = apply_calibration(run, calibrate(run).calibration)
    rows = {row["system"]: row["mean percentile"] for row in calibrated.table().to_dict()["rows"]}
    assert rows["few"] > 70 > 30 > rows["many"]
    assert "160 reference values that are worse, that is higher; equal ones count half" in calibrated.table().render()


def test_another_run_needs_the_same_signature() -> None:
    calibration = calibrate(make_run(quality={"a": noisy(0.5, 1)})).calibration
    calibrated = apply_calibration(make_run(quality={"x": [0.0, 1.0]}), calibration)
    assert calibrated.percentiles.tolist() == [0, 100]
    with raises_code(RunError, "run_failed", "'quality | version 1'", "'quality | version 2'"):
        apply_calibration(make_run(quality={"x": [0.0, 1.0]}, signature="2"), calibration)
    with raises_code(RunError, "unknown_name", "'quality'", "'errors'"):
        apply_calibration(make_run(errors={"x": [0.0, 1.0]}), calibration)


def test_groups_by_system_leave_out_those_with_few_outputs() -> None:
    run = make_run(quality={"a": noisy(0.4, 1), "b": noisy(0.6, 2), "few": noisy(0.5, 3, items=29)})
    fitted = calibrate(run, by="system")
    assert list(fitted.calibration.groups) == ["a", "b"]
    assert fitted.notes == ("system 'few' has only 29 values, fewer than 30, and is left out",)
    calibrated = apply_calibration(run, fitted.calibration)
    rows = {row["system"]: row["mean percentile"] for row in calibrated.table().to_dict()["rows"]}
    assert rows["a"] == rows["b"] == pytest.approx(50)
    assert rows["few"] is None
    assert "29 outputs belong to no group of the calibration, which has 'a', 'b'" in calibrated.table().render()


def test_too_few_values_and_unknown_columns_are_refused() -> None:
    with raises_code(RunError, "too_little_data", "quality", 30, 29):
        calibrate(make_run(quality={"a": [*noisy(0.5, 1, items=29), None]}))
    with raises_code(RunError, "too_little_data", 40, "'a'", 20, "'b'"):
        calibrate(make_run(quality={"a": noisy(0.5, 1, items=20), "b": noisy(0.5, 1, items=20)}), by="system")
    both = make_run(quality={"a": noisy(0.5, 1)}, errors={"a": noisy(0.5, 1)})
    with raises_code(RunError, "missing_value", "`metric='quality'`"):
        calibrate(both)
    with raises_code(RunError, "no_data"):
        calibrate(both, "quality", by="task")


def rows() -> list[dict[str, object]]:
    return [
        {"item": str(i), "system": s, "output": "x" * (i + extra), "task": t, "genre": "g"}
        for i in range(40)
        for s, t, extra in (("one", "short", 1), ("two", "long", 100))
    ]


def test_records_are_scored_first_and_grouped_by_any_column() -> None:
    metric = "length(unit='characters')"
    calibration = calibrate(rows(), metric, by="task").calibration
    assert {name: group.mean for name, group in calibration.groups.items()} == {"long": 119.5, "short": 20.5}
    assert list(calibrate(rows(), metric, by="genre").calibration.groups) == ["g"]
    with raises_code(RunError, "invalid_value", "'language'"):
        calibrate(rows(), metric, by="language")
    with raises_code(RunError, "missing_value"):
        calibrate(rows())


@pytest.mark.parametrize("texts", [True, False])
def test_a_run_is_grouped_by_the_columns_of_its_records(tmp_path: Path, texts: bool) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    metric = "length(unit='characters')"
    metrist.score(path, metric, out=tmp_path / "run", texts=texts)
    for by in ("task", "genre"):
        own, again = (calibrate(*source, by=by).calibration for source in ([tmp_path / "run"], [rows(), metric]))  # type: ignore[misc]
        assert own.to_json() == again.to_json()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The command line in a folder with records and a run."""
    monkeypatch.chdir(tmp_path)
    Path("records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    metrist.score("records.jsonl", ["length", "length(unit='characters')"], out="run", executor="serial")
    metrist.score("records.jsonl", "length(unit='characters')", out="flat.jsonl", executor="serial")

    def call_command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["metrist", "calibrate", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call_command


def test_the_command_fits_applies_and_the_metric_agrees(call) -> None:
    code, out, _ = call("run", "-m", "length(unit='characters')", "-o", "c.json")
    assert (code, "Reference values of length(unit='characters')" in out) == (0, True)
    code, out, _ = call("run", "--apply", "c.json", "-o", "placed.jsonl", "--format", "json")
    assert code == 0
    table = json.loads(out)["rows"]
    calibrated = [json.loads(line) for line in Path("placed.jsonl").read_text().splitlines()]
    spec = "calibrated(metric=length(unit='characters'), by='c.json', show='percentile')"
    results = metrist.score("records.jsonl", spec, executor="serial")
    assert results.scores[spec].values.tolist() == [row["percentile"] for row in calibrated]
    assert [row.value for row in results.system_scores(draws=0)] == [row["mean percentile"] for row in table]


def test_run_flat_file_and_records_give_the_same_calibration(call) -> None:
    for source, name in (("run", "a.json"), ("flat.jsonl", "b.json"), ("records.jsonl", "c.json")):
        assert call(source, "-m", "length(unit='characters')", "-o", name)[0] == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes() == Path("c.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "-m", "length"), "no file to write the calibration to"),
        (("run", "-m", "length", "-o", "c.txt"), "cannot write c.txt"),
        (("run", "-m", "length", "--apply", "c.json"), "omit -m and --by"),
        (("run", "--apply", "c.json"), "c.json: cannot be read (No such file or directory)"),
        (("nowhere", "-m", "length", "-o", "c.json"), "there is no run at nowhere"),
        (("run", "-m", "chrf", "-o", "c.json"), "no metric 'chrf' in the run"),
    ],
)
def test_user_errors_are_reported_on_one_line(call, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = call(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_a_run_takes_its_groups_from_the_records_beside_it() -> None:
    rows = [{"item": str(n), "system": "s", "output": "a" * n, "task": "xy"[n % 2]} for n in range(1, 81)]
    results = metrist.score(rows, "length(unit='characters')")
    fitted = metrist.calibrate([results, rows], by="task").calibration
    direct = metrist.calibrate(rows, "length(unit='characters')", by="task").calibration
    assert {name: group.mean for name, group in fitted.groups.items()} == {"x": 41.0, "y": 40.0}
    assert {name: group.mean for name, group in direct.groups.items()} == {"x": 41.0, "y": 40.0}
    with raises_code(RunError, "run_failed", "1 output", "'1'"):
        metrist.calibrate([results, rows[1:]], by="task")
