"""Requests that schemathesis makes up from the OpenAPI document, against a running service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from metrist.web.service.app import Service
from metrist.web.service.catalog import build_catalog
from metrist.web.service.settings import Check, ServiceSettings
from torture_table import TortureRow
from web_server import run_server

#: The program, if it is not on the path: it may be in an environment of its own.
FOLDERS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
PROGRAM = os.environ.get("METRIST_TEST_SCHEMATHESIS") or shutil.which("schemathesis", path=FOLDERS)
METRICS = ("rougeL", "bleu", "chrf", "ter", "meteor", "token_f1", "length", "distinct", "service_metrics.Marking")
#: What is checked: no answer of 500 or more, and answers as the document says.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,allow_header_conformance,unsupported_method"
)


@pytest.mark.torture
@pytest.mark.skipif(PROGRAM is None, reason="schemathesis is not installed (pip install schemathesis)")
def test_schemathesis_finds_no_server_error(tmp_path: Path, torture_row: Callable[[str], TortureRow]) -> None:
    row = torture_row("fuzz: metrist serve, by schemathesis")
    settings = ServiceSettings(log="off", checks=(Check.parse("length>=1"),), max_draws=200, max_records=100)
    service = Service(build_catalog(METRICS), settings)
    with run_server(service) as running:
        deadline = time.monotonic() + 120
        while running.ask("/readyz").status != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        command = [str(PROGRAM), "run", f"{running.url}/openapi.json", "--checks", CHECKS, "--seed", "7"]
        examples = os.environ.get("METRIST_TEST_EXAMPLES", "100")
        command += ["--max-examples", examples, "--no-color", "--request-timeout", "120"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1500, check=False)
    row.tried = row.survived = int(service.counters.total("metrist_requests_total"))
    if done.returncode:
        print(done.stdout[-6000:])
        row.survived -= max(1, done.stdout.count("Test Case ID"))
    assert row.tried > 200
