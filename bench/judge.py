"""Cost of an LLM request on the client's side: metrist's client and the openai SDK, with a local server that answers
immediately, in its own process. `python -m bench.judge [--write]`

Each client runs in a fresh process, all in turn, several times, so that other work on the machine affects all of them.
The CPU time of the client's process is what counts: a judge is slow because of its server, not because of its client.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from bench.document import machine, run_in_child, show_section

REQUESTS = 2000
CONCURRENCY = 16
WARM_UP = 100
ROUNDS = 7
#: Requests per second of CPU time that metrist's client must reach.
LEAST_RATE = 100
PROMPT = "Grade how natural this answer is, from 1 to 5, and give a reason first. " + "The cat sat on the mat. " * 80
_SERVER = Path(__file__).resolve().parents[1] / "tests" / "fault_server.py"

#: Sends a number of requests and returns the answers.
Client = Callable[[int], list[str]]


def main() -> None:
    if "--measure" in sys.argv[1:]:
        print(json.dumps(measure_client(*sys.argv[2:])))
        return
    text = report()
    show_section("bench-judge", text)


def report() -> str:
    """Measure, and return the table with a description of the setup."""
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in CLIENTS}
    with start_server() as url:
        for _ in range(ROUNDS):
            for name, seconds in timings.items():
                seconds.append(measure_in_process(name, url))
    ours = _per_core(timings["metrist"])
    if (rate := statistics.median(ours)) < LEAST_RATE:
        sys.exit(f"metrist sends {rate:.0f} requests per second of CPU time; the limit is {LEAST_RATE}")
    rows = [_row(name, seconds, ours) for name, seconds in timings.items()]
    head = "| client | requests/s of one core | range | requests/s, wall clock | metrist is |"
    return "\n".join([_describe_setup(), "", head, "|---|--:|--:|--:|--:|", *rows])


def _describe_setup() -> str:
    return (
        f"Measured by `make bench-judge` on {machine()}, load average {os.getloadavg()[0]:.1f} at the end: "
        f"{REQUESTS:,} chat requests of {len(PROMPT):,} characters, {CONCURRENCY} at once, to a server on the same "
        f"machine that answers immediately; medians of {ROUNDS} rounds, in each of which every client runs once in a "
        f"fresh process, after {WARM_UP} requests that are not counted. CPU time is that of the client's process; the "
        "wall clock includes the server's work on the shared cores. The last column is the median ratio of CPU times, "
        f"with its range over the rounds. The required rate is {LEAST_RATE} requests per second of one core."
    )


def _per_core(seconds: list[tuple[float, float]]) -> list[float]:
    return [REQUESTS / cpu for cpu, _ in seconds]


def _row(name: str, seconds: list[tuple[float, float]], ours: list[float]) -> str:
    speeds, clock = _per_core(seconds), statistics.median(REQUESTS / wall for _, wall in seconds)
    ratios = [mine / theirs for mine, theirs in zip(ours, speeds, strict=True)]
    ratio = f"{statistics.median(ratios):.1f}× ({min(ratios):.1f} to {max(ratios):.1f})"
    titled = name.replace("SDK", f"SDK {version('openai')}")
    spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
    shown = "" if name.startswith("metrist") else ratio
    return f"| {titled} | {statistics.median(speeds):,.0f} | {spread} | {clock:,.0f} | {shown} |"


@contextmanager
def start_server() -> Iterator[str]:
    command = [sys.executable, str(_SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


def measure_in_process(name: str, url: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"METRIST_LLM_CONCURRENCY": str(CONCURRENCY), "METRIST_LLM_CACHE": folder}
        cpu, wall = run_in_child("bench.judge", "--measure", name, url, **settings)
    return cpu, wall


def measure_client(name: str, url: str) -> tuple[float, float]:
    """Return seconds of CPU time and of the wall clock."""
    request = CLIENTS[name](url)
    request(WARM_UP)
    cpu, wall = time.process_time(), time.perf_counter()
    answers = request(REQUESTS)
    seconds = time.process_time() - cpu, time.perf_counter() - wall
    assert len(answers) == REQUESTS
    assert all("grade" in answer for answer in answers)
    return seconds


def metrist_client(url: str) -> Client:
    from metrist.llm.messages import Message, Sampling
    from metrist.llm.openai import OpenAI

    llm = OpenAI(model="m", url=url)

    def request(count: int) -> list[str]:
        conversations = [(Message("user", f"{PROMPT} {number}"),) for number in range(count)]
        return [completion.text for completion in llm.complete(conversations, Sampling())]

    return request


def cached_metrist_client(url: str) -> Client:
    from metrist.llm import gateway
    from metrist.llm.messages import Message, Sampling
    from metrist.llm.openai import OpenAI

    llm = OpenAI(model="m", url=url)

    def request(count: int) -> list[str]:
        conversations = [(Message("user", f"{PROMPT} {number} of {count}"),) for number in range(count)]
        return [completion.text for completion in gateway.complete(llm, conversations, Sampling())]

    return request


def sdk_thread_client(url: str) -> Client:
    import openai

    client = openai.OpenAI(api_key="none", base_url=url)

    def request_one(number: int) -> str:
        message = {"role": "user", "content": f"{PROMPT} {number}"}
        answer = client.chat.completions.create(model="m", messages=[message], temperature=0.0, max_tokens=1024, seed=0)
        return answer.choices[0].message.content

    def request(count: int) -> list[str]:
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            return list(threads.map(request_one, range(count)))

    return request


def sdk_asyncio_client(url: str) -> Client:
    import openai

    async def request_all(count: int) -> list[str]:
        limit = asyncio.Semaphore(CONCURRENCY)
        async with openai.AsyncOpenAI(api_key="none", base_url=url) as client:

            async def request_one(number: int) -> str:
                message = {"role": "user", "content": f"{PROMPT} {number}"}
                async with limit:
                    answer = await client.chat.completions.create(
                        model="m", messages=[message], temperature=0.0, max_tokens=1024, seed=0
                    )
                return answer.choices[0].message.content

            return list(await asyncio.gather(*map(request_one, range(count))))

    return lambda count: asyncio.run(request_all(count))


CLIENTS: dict[str, Callable[[str], Client]] = {
    "metrist": metrist_client,
    "metrist, each answer stored in the cache": cached_metrist_client,
    "openai SDK, threads": sdk_thread_client,
    "openai SDK, asyncio": sdk_asyncio_client,
}

if __name__ == "__main__":
    main()
