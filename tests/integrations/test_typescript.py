"""The client in TypeScript: its types, and its own tests against a service: `make test-typescript`. With
METRIST_WRITE_SNAPSHOTS=1 the types are written again from the document of the service."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
TOKEN = "a-token-for-tests"

if not (CLIENT / "node_modules").exists():
    pytest.skip("the packages of the client are not installed (make test-typescript)", allow_module_level=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a service."""
    command = [sys.executable, "-m", "metrist", "serve", "-m", "rougeL", "-m", "chrf", "--guard", "rougeL>=.5"]
    process = subprocess.Popen(
        [*command, "--port", "0"],
        env={**os.environ, "METRIST_SERVE_TOKENS": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_types_are_those_of_the_service(url: str, tmp_path: Path) -> None:
    request = urllib.request.Request(f"{url}/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        (tmp_path / "openapi.json").write_bytes(answer.read())
    schema = CLIENT / "src" / "schema.ts"
    written = schema if os.environ.get("METRIST_WRITE_SNAPSHOTS") else tmp_path / "schema.ts"
    command = ["npm", "run", "generate", "--", tmp_path / "openapi.json", "-o", written]
    subprocess.run(command, cwd=CLIENT, check=True)
    assert written.read_text("utf-8") == schema.read_text("utf-8")


def test_the_client_passes_its_own_tests(url: str) -> None:
    subprocess.run(
        ["npm", "test"], cwd=CLIENT, env={**os.environ, "METRIST_URL": url, "METRIST_TOKEN": TOKEN}, check=True
    )
