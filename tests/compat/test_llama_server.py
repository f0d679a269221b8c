"""TIGERScorer with llama.cpp: a stand-in for llama-server, and the real engine out of the wheel of xllamacpp."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.compat import TIGERScorer
from metrist.compat.llama_server import start_llama_server
from metrist.errors import ModelError
from metrist.metrics.errors.tigerscore import build_prompt
from real_models import unpacked

ANSWER = "The model-generated output contains 0 errors, with a total score reduction of 0."
SERVER = f"""#!{sys.executable}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
if "broken.gguf" in " ".join(sys.argv):
    sys.exit(1)
loading = iter([503, 503])
class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(next(loading, 200), {{}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open({{log!r}}, "a") as file:
            file.write(json.dumps([sys.argv[1:], self.path, asked]) + "\\n")
        self.answer(200, {{"choices": [{{"text": {ANSWER!r}, "finish_reason": "stop"}}]}})
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a stand-in for llama-server on the PATH."""
    path = tmp_path / "log.jsonl"
    program = tmp_path / "bin/llama-server"
    program.parent.mkdir()
    program.write_text(SERVER.replace("{log!r}", repr(str(path))))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    start_llama_server.cache_clear()
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="starts a script")
@pytest.mark.parametrize("settings", [{"use_llamacpp": True}, {"quantized": True}])
def test_a_server_is_started_for_a_gguf_file(log: Path, tmp_path: Path, settings: dict[str, bool]) -> None:
    model = tmp_path / "tiger.gguf"
    model.touch()
    tiger = TIGERScorer(str(model), **settings)
    assert tiger.score(["Translate."], ["Ein Satz."], ["A sentence."])[0]["num_errors"] == 0
    ((arguments, path, asked),) = [json.loads(line) for line in log.read_text().splitlines()]
    assert arguments[:4] == ["--model", str(model), "--host", "127.0.0.1"]
    assert path == "/v1/completions"
    assert asked["prompt"] == build_prompt("Translate.", "A sentence.", "Ein Satz.")
    assert asked["temperature"] == 0
    TIGERScorer(str(model), **settings).score(["Translate."], ["Noch einer."], ["Another."])
    assert len({tuple(json.loads(line)[0]) for line in log.read_text().splitlines()}) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="starts a script")
def test_a_repository_of_the_hub_is_left_to_the_server(log: Path) -> None:
    TIGERScorer("TIGER-Lab/TIGERScore-7B-GGUF", use_llamacpp=True).score(["a"], ["b"], ["c"])
    assert json.loads(log.read_text())[0][:2] == ["--hf-repo", "TIGER-Lab/TIGERScore-7B-GGUF"]


@pytest.mark.usefixtures("log")
@pytest.mark.skipif(sys.platform == "win32", reason="starts a script")
def test_a_model_that_the_server_cannot_load_is_an_error(tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.touch()
    with raises_code(ModelError, "model_unusable", "broken.gguf", "--port"):
        TIGERScorer(str(model))


def test_without_llama_server_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    start_llama_server.cache_clear()
    with raises_code(ModelError, "missing_dependency", "llama-server"):
        TIGERScorer("m.gguf")


@pytest.mark.torture  # Downloads an engine and a model.
def test_a_real_engine_answers_the_authors_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2 was not trained on TIGERScore's answers, so that it gives a failure with what it wrote; greedy decoding
    gives the same twice."""
    model = next(unpacked("smollm2").rglob("*.gguf"))
    monkeypatch.syspath_prepend(str(unpacked("xllamacpp")))
    xllamacpp = pytest.importorskip("xllamacpp", reason="its wheel does not run here", exc_type=ImportError)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.n_ctx = 1024
    server = xllamacpp.Server(settings)
    llm = f"openai(model='smollm2', url='{server.listening_address}/v1', turns='none')"
    results = [
        TIGERScorer("smollm2", llm=llm).score(["Translate."], ["Ein Satz."], ["A word."], max_new_tokens=24)[0]
        for _ in range(2)
    ]
    assert results[0]["raw_output"] == results[1]["raw_output"] != ""
    assert results[0]["score"] is None
    assert results[0]["failure"]
