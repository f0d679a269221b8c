"""`metrist questionnaire` and `metrist audit --metric` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

from metrist.metrics.errors.answers import WrittenError
from metrist.metrics.errors.tigerscore import format_tiger_answer


def test_the_analyses_of_a_metric_are_audited(metrist, tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text(
        "".join(json.dumps({"item": str(n), "system": "s", "output": f"the cat {n}"}) + "\n" for n in range(4))
    )
    error = WrittenError(location="cat", aspect="Accuracy", explanation="No.", severity="Minor", penalty=1.0)
    metric = f"tigerscore(llm=fake(answers={format_tiger_answer([error])!r}))"
    second = "fake(answers='nothing that can be read')"
    answer = metrist("audit", path, "--metric", metric, "--second-llm", second, "--format", "json")
    assert answer.code == 0, answer.err
    card = json.loads(answer.out)
    findings = {finding["name"]: finding for finding in card["findings"]}
    assert findings["made-up analyses"]["reason"].startswith("only 0 analyses")
    assert findings["errors that are not in the texts"]["reason"].startswith("only 4 errors")
    planned = metrist("audit", path, "-m", metric, "--second-llm", second, "--dry-run", "--format", "json")
    assert [row["questions"] for row in json.loads(planned.out)["rows"]] == [4, 4]
