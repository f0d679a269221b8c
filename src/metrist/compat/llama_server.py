"""Start llama.cpp's server for a GGUF model. There is no wheel of llama-cpp-python that can be installed without a
compiler; `llama-server` is in the packages of llama.cpp for all systems."""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import time
from functools import cache
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from metrist.errors import ModelError

#: Seconds that the server may take to load its model, which it may have to download.
_PATIENCE = 1800.0


@cache
def start_llama_server(model: str) -> str:
    """The base URL of a server of this process for the model: a .gguf file, or a repository of the Hugging Face hub."""
    program = shutil.which("llama-server")
    if program is None:
        raise ModelError(
            "llama-server is not on the PATH: install llama.cpp, or start one elsewhere and pass "
            "llm=\"openai(model='tigerscore', url='http://HOST:8080/v1', turns='none')\"",
            code="missing_dependency",
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = ["--model", model] if Path(model).exists() else ["--hf-repo", model]
    command = [program, *source, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(server.terminate)
    deadline = time.monotonic() + _PATIENCE
    while not _answers(f"http://127.0.0.1:{port}/health"):
        if server.poll() is not None or time.monotonic() > deadline:
            server.terminate()
            raise ModelError(f"llama-server cannot load {model!r}; try it alone: {' '.join(command)}")
        time.sleep(0.1)
    return f"http://127.0.0.1:{port}/v1"


def _answers(url: str) -> bool:
    """Whether a server is ready: while it loads, it answers 503."""
    try:
        with urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
