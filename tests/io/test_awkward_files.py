"""Files as people have them: each is read rightly and says how, or is refused with the flag that mends it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import read_records

Content = str | bytes | list[dict[str, Any]] | Callable[[Path], None]


@dataclass(frozen=True)
class Awkward:
    """A file that is read: `records` are (item, system, output) or longer, `reading` is what is announced."""

    content: Content
    records: list[tuple[Any, ...]]
    reading: str = ""
    name: str = "data.csv"
    options: dict[str, Any] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True)
class Refused:
    """A file that is refused: `message` names the place and the flag; with `mended` it is read as `records`."""

    content: Content
    message: str
    name: str = "data.csv"
    mended: dict[str, Any] = field(default_factory=dict)
    records: list[tuple[Any, ...]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


def as_tuple(record: Any, length: int) -> tuple[Any, ...]:
    fields = (record.item, record.system, record.output, record.references, record.source, record.instruction)
    return fields[:length]


def save(folder: Path, name: str, content: Content) -> Path:
    path = folder / name
    if callable(content):
        content(path)
    elif isinstance(content, list):
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def sheets(**rows: list[list[Any]]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
        book = openpyxl.Workbook()
        book.remove(book.active)
        for title, cells in rows.items():
            sheet = book.create_sheet(title)
            for row in cells:
                sheet.append(row)
        book.save(path)

    return write


TEXT = "id,model,prompt,completion,gold\n1,a,hi,Hello,Hi\n1,b,hi,Hey,Hi\n"
ROWS = [("1", "a", "Hello", ("Hi",), "hi"), ("1", "b", "Hey", ("Hi",), "hi")]
NAMES = "item = id, system = model, output = completion, references = gold, source = prompt"

READ = {
    "other names": Awkward(TEXT, ROWS, NAMES),
    "names with capitals and spaces": Awkward(
        "Example ID,Model Name,Model Output,Reference\n1,a,x,r\n",
        [("1", "a", "x", ("r",))],
        "item = Example ID, system = Model Name, output = Model Output, references = Reference",
    ),
    "camel case": Awkward(
        [{"sampleId": 3, "modelName": "m", "generatedText": "x", "groundTruth": "g"}],
        [("3", "m", "x", ("g",))],
        "item = sampleId, system = modelName, output = generatedText, references = groundTruth",
        "data.jsonl",
    ),
    "our names": Awkward("item,system,output\n1,a,x\n", [("1", "a", "x")]),
    "our names and others": Awkward(
        [{"item": 1, "system": "a", "output": "x", "context": "c", "label": 1, "split": "dev", "id": 9}],
        [("1", "a", "x", (), None)],
        name="data.jsonl",
    ),
    "a question and its context": Awkward(
        [{"qid": "q", "question": "who?", "context": "text", "prediction": "me", "answers": ["I", "me"]}],
        [("q", "data", "me", ("I", "me"), "text", "who?")],
        "item = qid, output = prediction, references = answers, source = context, instruction = question",
        "data.jsonl",
    ),
    "answers as in SQuAD": Awkward(
        [{"id": 1, "prediction": "x", "answers": {"text": ["a", "b"], "answer_start": [1, 2]}}],
        [("1", "data", "x", ("a", "b"))],
        "item = id, output = prediction, references = answers.text",
        "data.jsonl",
    ),
    "an instruction with an input": Awkward(
        [{"instruction": "Add.", "input": "1 2", "output": "3"}],
        [("1", "data", "3", (), "1 2", "Add.")],
        "source = input",
        "data.jsonl",
    ),
    "a summary of a text": Awkward(
        "text,summary\nlong text,short\n", [("1", "data", "short", (), "long text")], "output = summary, source = text"
    ),
    "a text with a class": Awkward("text,label\nhello,1\n", [("1", "data", "hello", ())], "output = text"),
    "numbered references": Awkward(
        "id,hyp,ref2,ref10,ref1\n1,x,b,c,a\n",
        [("1", "data", "x", ("a", "b", "c"))],
        "item = id, output = hyp, references = ref1,ref2,ref10",
    ),
    "references by letters": Awkward(
        "seg_id\tmt\trefA\trefB\n1\tx\ta\tb\n",
        [("1", "data", "x", ("a", "b"))],
        "item = seg_id, output = mt, references = refA,refB",
        "data.tsv",
    ),
    "a reference that is a JSON list": Awkward(
        'id,prediction,targets\n1,x,"[""a"", ""b""]"\n2,y,plain\n',
        [("1", "data", "x", ("a", "b")), ("2", "data", "y", ("plain",))],
        "item = id, output = prediction, references = targets",
    ),
    "a model that --system overrules": Awkward(
        TEXT.replace("b,hi", "a,hi").replace("1,a,hi,Hey", "2,a,hi,Hey"),
        [("1", "mine", "Hello"), ("2", "mine", "Hey")],
        "item = id, output = completion, references = gold, source = prompt, model is not read (`system`)",
        options={"system": "mine"},
    ),
    "no column for the system": Awkward(
        TEXT, [("1", "data", "Hello")], "item = id", options={"fields": {"system": ""}, "skip_bad": True}
    ),
    "an id of its own in each row": Awkward(
        "id,model,source,completion\n1,a,s,x\n2,b,s,y\n",
        [("1", "a", "x"), ("2", "b", "y")],
        "item = id, system = model, output = completion",
        remark="item_key='source'",
    ),
    "semicolons": Awkward(TEXT.replace(",", ";"), ROWS, f"delimited by ;, {NAMES}"),
    "semicolons around commas": Awkward(
        "id;output\n1;a, b, and c\n2;d, e\n",
        [("1", "data", "a, b, and c"), ("2", "data", "d, e")],
        "delimited by ;, item = id",
    ),
    "bars": Awkward(TEXT.replace(",", "|"), ROWS, f"delimited by |, {NAMES}"),
    "tabs in a .csv": Awkward(TEXT.replace(",", "\t"), ROWS, f"delimited by tabs, {NAMES}"),
    "commas in a .tsv": Awkward(TEXT, ROWS, f"delimited by ,, {NAMES}", "data.tsv"),
    "a .txt": Awkward(TEXT.replace(",", "\t"), ROWS, NAMES, "data.txt"),
    "Excel's first line": Awkward("sep=;\r\nid;output\r\n1;x\r\n", [("1", "data", "x")], "delimited by ;, item = id"),
    "a delimiter that is named": Awkward(
        "id~output\n1~x\n", [("1", "data", "x")], "item = id", options={"delimiter": "~"}
    ),
    "a byte order mark": Awkward(b"\xef\xbb\xbf" + TEXT.encode(), ROWS, f"UTF-8 text with a byte order mark, {NAMES}"),
    "UTF-16": Awkward(TEXT.encode("utf-16"), ROWS, f"UTF-16 text, {NAMES}"),
    "UTF-16 without a mark": Awkward(TEXT.encode("utf-16-le"), ROWS, f"UTF-16 text, {NAMES}"),
    "big-endian UTF-16 without a mark": Awkward(TEXT.encode("utf-16-be"), ROWS, f"UTF-16 text, {NAMES}"),
    "JSON lines in UTF-16": Awkward(
        '{"id": 1, "response": "ü"}\r\n'.encode("utf-16"),
        [("1", "data", "ü")],
        "UTF-16 text, item = id, output = response",
        "data.jsonl",
    ),
    "Windows-1252": Awkward(
        "id,output\n1,plain\n2,caf\u00e9 \u2013 \u201cna\u00efve\u201d\n".encode("cp1252"),
        [("1", "data", "plain"), ("2", "data", "café – “naïve”")],
        "Windows-1252 text, item = id",
    ),
    "an encoding that is named": Awkward(
        "id,output\n1,日本\n".encode("shift-jis"),
        [("1", "data", "日本")],
        "item = id",
        options={"encoding": "shift-jis"},
    ),
    "lines that end in CR": Awkward(TEXT.replace("\n", "\r"), ROWS, NAMES),
    "commas at the ends of lines": Awkward(
        "id,output\n1,x,,\n2,y,\n", [("1", "data", "x"), ("2", "data", "y")], "item = id"
    ),
    "empty columns": Awkward(",id,output,,\n0,1,x,,\n", [("1", "data", "x", (), None)], "item = id"),
    "a NUL in a text": Awkward("id,output\n1,a\0b\n", [("1", "data", "a\0b")], "item = id"),
    "a column in later rows only": Awkward(
        [{"id": 1, "output": "x"}, {"id": 1, "output": "y", "model": "m"}],
        [("1", "data", "x"), ("1", "m", "y")],
        "item = id, system = model",
        "data.jsonl",
    ),
    "rows in an object": Awkward(
        json.dumps({"version": 1, "data": [{"id": 1, "output": "x"}, {"id": 2, "output": "y"}]}, indent=1),
        [("1", "data", "x"), ("2", "data", "y")],
        "rows = data, item = id",
        "data.json",
    ),
    "rows in an object on one line": Awkward(
        json.dumps({"results": [{"id": 1, "response": "x"}]}),
        [("1", "data", "x")],
        "rows = results, item = id, output = response",
        "data.json",
    ),
    "rows of the dataset viewer": Awkward(
        json.dumps({"features": [{"name": "id"}], "rows": [{"row_idx": 0, "row": {"id": 1, "output": "x"}}]}),
        [("1", "data", "x")],
        "rows = rows, item = id",
        "data.json",
    ),
    "objects over several lines": Awkward(
        '{\n "id": 1,\n "output": "x"\n}\n{\n "id": 2,\n "output": "y"\n}\n',
        [("1", "data", "x"), ("2", "data", "y")],
        "item = id",
        "data.json",
    ),
    "a text inside an object": Awkward(
        [{"id": 1, "response": {"text": "x", "tokens": 3}}],
        [("1", "data", "x")],
        "item = id",
        "data.jsonl",
        options={"fields": {"output": "response.text"}},
    ),
    "a conversation with a system prompt": Awkward(
        [
            {
                "conversations": [
                    {"from": "system", "value": "Be kind."},
                    {"from": "human", "value": "a"},
                    {"from": "gpt", "value": "b"},
                    {"from": "human", "value": "c"},
                    {"from": "gpt", "value": "d"},
                ]
            }
        ],
        [("1", "data", "d", (), "Human: a\n\nAssistant: b\n\nHuman: c", "Be kind.")],
        "output = the last of conversations",
        "data.jsonl",
    ),
    "outputs side by side": Awkward(
        "id,question,v1_output,v2_output,gold\n1,q,x,y,g\n2,q,z,,g\n",
        [
            ("1", "v1", "x", ("g",), "q"),
            ("1", "v2", "y", ("g",), "q"),
            ("2", "v1", "z", ("g",), "q"),
            ("2", "v2", "", ("g",), "q"),
        ],
        "outputs = v1_output (v1), v2_output (v2), item = id, references = gold, source = question",
        options={"outputs": "*_output"},
        remark="1 output is empty",
    ),
    "outputs side by side without ids": Awkward(
        [{"old": "x", "new": "y"}, {"old": "z"}],
        [("1", "v1", "x"), ("1", "v2", "y"), ("2", "v1", "z")],
        "outputs = old (v1), new (v2)",
        "data.jsonl",
        options={"outputs": {"v1": "old", "v2": "new"}},
        remark="new is missing in 1 row",
    ),
    "a sheet": Awkward(
        sheets(Sheet1=[["id", "model", "output", "ref"], [7, "a", "x", "r"], [None] * 4, [8, "a", 42, None]]),
        [("7", "a", "x", ("r",)), ("8", "a", "42", ())],
        "sheet 'Sheet1', item = id, system = model, references = ref",
        "data.xlsx",
    ),
    "a sheet that is named": Awkward(
        sheets(notes=[["a"], ["b"]], runs=[["id", "output"], ["1", "x"]]),
        [("1", "data", "x")],
        "item = id",
        "data.xlsx",
        options={"sheet": "runs"},
    ),
}

REFUSED = {
    "two ids": Refused(
        "id,doc_id,output\n1,7,x\n",
        "use `fields={'item': 'id'}` or `fields={'item': 'doc_id'}`, or `item_key='id+doc_id'`",
        mended={"item_key": ["id", "doc_id"]},
        records=[("1|7", "data", "x")],
    ),
    "two outputs": Refused(
        "id,prediction,summary\n1,x,y\n",
        "use `fields={'output': 'prediction'}` or `fields={'output': 'summary'}`",
        mended={"fields": {"output": "prediction", "references": "summary"}},
        records=[("1", "data", "x", ("y",))],
    ),
    "two references": Refused(
        "id,output,gold,target\n1,x,g,t\n",
        "or `fields={'references': 'gold,target'}`",
        mended={"fields": {"references": "gold,target"}},
        records=[("1", "data", "x", ("g", "t"))],
    ),
    "another name in later rows": Refused(
        [{"id": 1, "prediction": "x"}, {"id": 2, "response": "y"}],
        ":2: 'prediction' and 'response' may both be the output",
        "data.jsonl",
    ),
    "our name first, then another": Refused(
        [{"item": 1, "system": "a", "output": "x"}, {"item": 1, "model": "b", "output": "y"}],
        ":2: 'model' where earlier rows have 'system'",
        "data.jsonl",
    ),
    "outputs side by side": Refused(
        "id,v1_output,v2_output\n1,x,y\n",
        "use `outputs='*_output'`",
        mended={"outputs": "*_output"},
        records=[("1", "v1", "x"), ("1", "v2", "y")],
    ),
    "outputs side by side, as people name them": Refused(
        "Ticket ID,Question,Answer A,Answer B\n1,q,,y\n",
        "use `outputs='Answer *'`",
        mended={"outputs": "Answer *", "fields": {"item": "Ticket ID"}},
        records=[("1", "A", ""), ("1", "B", "y")],
    ),
    "a wide file with a system": Refused(
        "id,system,v1,v2\n1,s,x,y\n",
        "drop it with `fields={'system': ''}`",
        options={"outputs": ["v1", "v2"]},
        mended={"outputs": ["v1", "v2"], "fields": {"system": ""}},
        records=[("1", "v1", "x"), ("1", "v2", "y")],
    ),
    "a pattern that matches nothing": Refused(
        "id,a,b\n1,x,y\n",
        "no column matches '*_output'; the columns are 'id', 'a', 'b'",
        options={"outputs": "*_output"},
    ),
    "an output that is an object": Refused(
        [{"id": 1, "output": {"text": "x"}}],
        "use `fields={'output': 'output.text'}`",
        "data.jsonl",
        mended={"fields": {"output": "output.text"}},
        records=[("1", "data", "x")],
    ),
    "a response that is an object": Refused(
        [{"id": 1, "response": {"text": "x"}}],
        "use `fields={'output': 'response.text'}`",
        "data.jsonl",
        mended={"fields": {"output": "response.text"}},
        records=[("1", "data", "x")],
    ),
    "two lists of rows": Refused(
        json.dumps({"train": [{"id": 1, "output": "x"}], "test": [{"id": 2, "output": "y"}]}),
        "use `sheet='train'` or `sheet='test'`",
        "data.json",
        mended={"sheet": "test"},
        records=[("2", "data", "y")],
    ),
    "columns of pandas": Refused(
        json.dumps({"output": {"0": "x", "1": "y"}, "id": {"0": 1, "1": 2}}), "orient='records'", "data.json"
    ),
    "two encodings": Refused("id,output\n1,é\n".encode() + "2,é\n".encode("cp1252"), "use `encoding`"),
    "UTF-8 after Windows-1252": Refused(
        b"id,output\n" + "1,é\n".encode("cp1252") + "2,é\n".encode(), "the file mixes encodings; use `encoding`"
    ),
    "JSON lines in Windows-1252": Refused(
        '{"id": 1, "output": "é"}\n'.encode("cp1252"),
        "use `encoding`",
        "data.jsonl",
        mended={"encoding": "cp1252"},
        records=[("1", "data", "é")],
    ),
    "the wrong encoding": Refused(b"id,output\n1,\x81\n", "`encoding`", options={"encoding": "cp1252"}),
    "an encoding that does not exist": Refused(
        TEXT, "no text encoding is called 'utf-9'; common ones are utf-8, cp1252", options={"encoding": "utf-9"}
    ),
    "a delimiter of two characters": Refused(TEXT, "the delimiter must be one character", options={"delimiter": "||"}),
    "one id for two outputs": Refused(
        "id,output\n1,x\n1,y\n",
        "`fields={'item': ''}` to number the rows",
        mended={"fields": {"item": ""}},
        records=[("1", "data", "x"), ("2", "data", "y")],
    ),
    "a sheet that does not exist": Refused(
        sheets(runs=[["id", "output"], [1, "x"]]),
        "no sheet 'run'; did you mean 'runs'",
        "data.xlsx",
        options={"sheet": "run"},
    ),
    "a sheet with an error": Refused(
        sheets(runs=[["id", "output"], [1, "#N/A"]]), ":2: cell B2 holds the error #N/A", "data.xlsx"
    ),
    "an old sheet": Refused(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save it as .xlsx or CSV", "data.xls"),
    "a sheet named .csv": Refused(sheets(runs=[["id", "output"]]), "zip archive", "data.csv"),
    # The time in its header is a carriage return, which ends lines on old Macs.
    "an archive without its suffix": Refused(gzip.compress(TEXT.encode(), mtime=13), "name it .gz", "data.jsonl"),
    "a value nested without end": Refused(
        '{"id": 1, "output": "x", "tree": ' + "[" * 500 + "]" * 500 + "}\n",
        "'tree' is nested more than 100 levels deep; drop it with `fields={'tree': ''}`",
        "data.jsonl",
        mended={"fields": {"tree": ""}},
        records=[("1", "data", "x")],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_an_awkward_file_is_read_and_the_reading_announced(case: str, tmp_path: Path) -> None:
    expected = READ[case]
    path = save(tmp_path, expected.name, expected.content)
    lines: list[str] = []
    reader = read_records(path, announce=lines.append, **expected.options)
    length = len(expected.records[0])
    assert [as_tuple(record, length) for record in reader] == expected.records
    if expected.reading:
        assert lines[-1].startswith(f"reading {path}: {expected.reading}")
    else:
        assert lines == []
    assert any(expected.remark in remark for remark in reader.remarks) if expected.remark else reader.remarks == []
    # Read once more, it is read the same, and nothing is announced again.
    announced = len(lines)
    assert len(list(reader)) == len(expected.records)
    assert len(lines) == announced


@pytest.mark.parametrize("case", REFUSED)
def test_an_awkward_file_is_refused_with_the_flag_that_mends_it(case: str, tmp_path: Path) -> None:
    expected = REFUSED[case]
    path = save(tmp_path, expected.name, expected.content)
    with pytest.raises(InputError) as caught:
        list(read_records(path, **expected.options))
    assert expected.message in str(caught.value)
    if expected.mended:
        length = len(expected.records[0])
        assert [as_tuple(record, length) for record in read_records(path, **expected.mended)] == expected.records


def test_several_files_by_a_pattern(tmp_path: Path) -> None:
    for name in ("b", "a"):
        save(tmp_path, f"{name}.csv", "id,completion\n1,x\n")
    lines: list[str] = []
    reader = read_records(str(tmp_path / "*.csv"), announce=lines.append)
    assert [(record.item, record.system) for record in reader] == [("1", "a"), ("1", "b")]
    assert lines == [f"reading {tmp_path}/a.csv and files like it: item = id, output = completion"]
    assert reader.readings == [f"reading {tmp_path}/a.csv and 1 more: item = id, output = completion"]
    with raises_code(InputError, "missing_file", "matches"):
        read_records(str(tmp_path / "*.jsonl"))
    save(tmp_path, "[x].csv", "id,completion\n2,x\n")
    assert [record.item for record in read_records(str(tmp_path / "[x].csv"))] == ["2"]


def test_without_announce_the_reading_is_a_remark() -> None:
    reader = read_records([{"id": 1, "prediction": "x"}])
    list(reader)
    assert reader.remarks == reader.readings == ["reading the rows: item = id, output = prediction"]


def test_a_sheet_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    import zipfile

    pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    path = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"\0" * (70 << 20))
    with raises_code(InputError, "unreadable", "70"):
        list(read_records(path))


def test_ratings_of_a_wide_row_belong_to_no_system(tmp_path: Path) -> None:
    path = save(tmp_path, "wide.csv", "id,v1_output,v2_output,rating:fluency\n1,x,y,3\n")
    reader = read_records(path, outputs="*_output")
    assert len(list(reader)) == 2
    with raises_code(InputError, "invalid_row", "fields", "rating:fluency"):
        list(reader.entries())
    dropped = read_records(path, outputs="*_output", fields={"rating:fluency": ""})
    assert [entry.ratings for entry in dropped.entries()] == [(), ()]


def test_columns_of_numbers_are_never_taken_for_ratings(tmp_path: Path) -> None:
    path = save(tmp_path, "rated.csv", "id,completion,fluency,rating,rating:style\n1,x,3,4,5\n")
    (entry,) = read_records(path).entries()
    assert [(rating.aspect, rating.value) for rating in entry.ratings] == [("style", 5.0)]
    assert entry.records[0].extra == {"fluency": "3", "rating": "4"}


@pytest.mark.parametrize("depth", [200, 985, 100_000])
@pytest.mark.parametrize("kind", ["list", "object"])
def test_a_deeply_nested_value_in_memory_is_named(depth: int, kind: str) -> None:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    with raises_code(InputError, "invalid_row", "row 2", "'tree'"):
        list(read_records([{"id": 1, "output": "x"}, {"id": 2, "output": "y", "tree": value}]))
