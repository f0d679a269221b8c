"""Files and functions of metrist that one command or request passes through: `python -m bench.route [ROUTE…] [--list]`.

Named functions count once each, in all threads of the process; comprehensions, lambdas and the code of modules and
class bodies (imports) do not count. Commands run in this process with one worker. `view` opens a run and answers the
first page; `service` answers POST /v1/score, once it is built.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import metrist

PACKAGE = str(Path(metrist.__file__).parent)
ROUTES = ("score", "meta", "llm", "report", "view", "service")


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
        with _prepare(route, folder) as act:
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                act()
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
def _prepare(route: str, folder: Path) -> Iterator[Callable[[], None]]:
    """What the route does, with all that it needs."""
    records, run = folder / "records.jsonl", folder / "run"
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
    score = ["score", str(records), "-m", "rougeL", "--out", str(run), "--workers", "1"]
    if route == "score":
        yield partial(_run, [*score, "-m", "likelihood"])
    elif route == "meta":
        yield partial(_run, ["meta", str(records), "--draws", "100"])
    elif route == "report":
        _run([*score, "-m", "bleu"])
        yield partial(_run, ["report", str(run), "-o", str(folder / "page.html"), "--draws", "100"])
    elif route == "view":
        _run([*score, "-m", "bleu"])
        yield partial(_view, run)
    elif route == "service":
        with _service() as ask:
            yield partial(ask, rows[0])
    else:
        with _loopback_server() as url:
            judge = f"judge(llm=openai(model='m', url='{url}'))"
            yield partial(_run, ["score", str(records), "-m", judge, "--workers", "1"])


def _view(run: Path) -> None:
    from metrist.web.security import Access
    from metrist.web.server import create_app
    from metrist.web.viewed_run import open_view
    from metrist.web.viewer import Collection, Viewer

    with closing(Collection([open_view(run)])) as collection:
        app = create_app(Viewer(collection=collection, picks=run / "picked.jsonl").routes(), Access())
        asyncio.run(_ask(app, "GET", "/api/outputs"))


@contextmanager
def _service() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that has one record scored by a service that runs already."""
    from metrist.web.service.app import Service
    from metrist.web.service.catalog import build_catalog
    from metrist.web.service.settings import ServiceSettings

    def ask(row: dict[str, Any]) -> None:
        texts = {name: row[name] for name in ("source", "output", "references")}
        asyncio.run(_ask(service, "POST", "/v1/score", {"records": [texts]}))

    with closing(Service(build_catalog(["rougeL"]), ServiceSettings(log="off"))) as service:
        yield ask


async def _ask(app: Any, method: str, path: str, body: Any = None) -> None:
    """Send a request to an ASGI app."""
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(content))}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    messages = [{"type": "http.request", "body": content, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if sent[0]["status"] != 200:
        raise RuntimeError(f"{method} {path} failed: {sent}")


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
