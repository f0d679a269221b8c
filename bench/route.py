"""Files and functions of metrist that one command passes through: `python -m bench.route [score|meta|llm] [--list]`.

Named functions count once each, in all threads of the process; comprehensions, lambdas and the code of modules and
class bodies (imports) do not count. The commands run in this process with one worker.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import metrist

PACKAGE = str(Path(metrist.__file__).parent)
ROUTES = ("score", "meta", "llm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.route", description=__doc__)
    parser.add_argument("routes", nargs="*", default=ROUTES, metavar="ROUTE", help=f"of {', '.join(ROUTES)}")
    parser.add_argument("--list", action="store_true", help="list the files with their functions")
    arguments = parser.parse_args()
    for route in arguments.routes:
        functions = measure(route)
        files = {file for file, _ in functions}
        print(f"{route}: {len(files)} files, {len(functions)} functions")
        if arguments.list:
            for file in sorted(files):
                names = sorted(name for other, name in functions if other == file)
                print(f"  {file} ({len(names)}): {', '.join(names)}")


def measure(route: str) -> set[tuple[str, str]]:
    """The (file, qualified name) of each function that the route calls."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            function = code.co_filename[len(PACKAGE) + 1 :], code.co_qualname
            if function not in called and _is_named_function(frame):
                called.add(function)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _command(route, folder) as command:
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                _run(command)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    return called


def _is_named_function(frame: FrameType) -> bool:
    """Whether the frame is a named function's, and not called by a module that is being imported."""
    code = frame.f_code
    # Only functions have optimised locals; the bodies of classes and modules do not.
    if not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith("<"):
        return False
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(PACKAGE):
            return False
        caller = caller.f_back
    return True


def _run(arguments: list[str]) -> None:
    from metrist.cli.app import main

    sys.argv = ["metrist", *arguments]
    errors = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(errors):
        try:
            main()
        except SystemExit as status:
            code = status.code
        else:
            code = 0
    if code:
        raise RuntimeError(f"metrist {' '.join(arguments)} failed: {errors.getvalue()}")


@contextmanager
def _command(route: str, folder: Path) -> Iterator[list[str]]:
    records = folder / "records.jsonl"
    rows = [
        {
            "item": str(n // 2),
            "system": "ab"[n % 2],
            "source": f"the {n // 2} old cats slept on the mat",
            "output": f"the cat number {n} slept",
            "references": [f"cat {n} slept on the mat"],
            "ratings": {"quality": n % 5},
            "scores": {"other": n * 7 % 11},
        }
        for n in range(20)
    ]
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if route == "score":
        run = ["--out", str(folder / "run"), "--workers", "1"]
        yield ["score", str(records), "-m", "rougeL", "-m", "likelihood", *run]
    elif route == "meta":
        yield ["meta", str(records), "--draws", "100"]
    else:
        with _loopback_server() as url:
            judge = f"judge(llm=openai(model='m', url='{url}'))"
            yield ["score", str(records), "-m", judge, "--workers", "1"]


@contextmanager
def _loopback_server() -> Iterator[str]:
    """A server on this machine that gives every output the same grades."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = " ".join(str(message["content"]) for message in request["messages"])
            mark = text.rpartition("carry the mark ")[2].split()[0].strip(".,\"'") if "carry the mark " in text else ""
            grades = {"naturalness": 3, "relatedness": 3, "correctness": 3, "id": mark}
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": json.dumps(grades)},
                "finish_reason": "stop",
            }
            usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
            body = json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()
