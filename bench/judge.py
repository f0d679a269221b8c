"""What a request to an LLM costs on our side: metrist's client beside the openai SDK, against a server on this machine
that answers at once, in a process of its own. `python -m bench.judge [--write]`

Each contender runs in a fresh process, all of them in turn, several times over: other work on the machine comes and
goes, and must not fall on one of them alone. CPU time of the asking process is what counts: a judge is
slow because of its server, and the client must not be what is in the way.
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

from bench.document import machine, put

REQUESTS = 2000
AT_ONCE = 16
WARM_UP = 100
ROUNDS = 7
#: Requests per second of CPU time that the client must reach.
BAR = 100
PROMPT = "Grade how natural this answer is, from 1 to 5, and give a reason first. " + "The cat sat on the mat. " * 80
_SERVER = Path(__file__).resolve().parents[1] / "tests" / "fault_server.py"

#: Asks so many times; gives what was answered.
Client = Callable[[int], list[str]]


def main() -> None:
    if "--measure" in sys.argv[1:]:
        print(json.dumps(_measured(*sys.argv[2:])))
        return
    text = report()
    print(text)
    if "--write" in sys.argv[1:]:
        put("bench-judge", text)


def report() -> str:
    """The table, with what was measured said above it."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CLIENTS}
    with _server() as url:
        for _ in range(ROUNDS):
            for name, seconds in found.items():
                seconds.append(_in_a_process(name, url))
    ours = _per_core(found["metrist"])
    if statistics.median(ours) < BAR:
        sys.exit(f"metrist sends {statistics.median(ours):.0f} requests a second of CPU time; {BAR} are wanted")
    rows = [_row(name, seconds, ours) for name, seconds in found.items()]
    head = "| client | requests/s of one core | least to most | requests/s by the clock | metrist is |"
    return "\n".join([_about(), "", head, "|---|--:|--:|--:|--:|", *rows])


def _about() -> str:
    return (
        f"Measured by `make bench-judge` on {machine()}, load average {os.getloadavg()[0]:.1f} at its end: "
        f"{REQUESTS:,} chat requests of {len(PROMPT):,} characters, {AT_ONCE} at once, to a server on the same "
        f"machine that answers at once; medians of {ROUNDS} rounds, in each of which every client runs once in a "
        f"fresh process, after {WARM_UP} requests that are not counted. CPU time is the asking process's alone; by "
        "the clock, the server's work on the shared cores counts too. The last column is the median of the rounds' "
        f"ratios of CPU time, with the least and the most. The bar is {BAR} requests a second of one core."
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
def _server() -> Iterator[str]:
    command = [sys.executable, str(_SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


def _in_a_process(name: str, url: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.judge", "--measure", name, url]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "METRIST_LLM_CONCURRENCY": str(AT_ONCE), "METRIST_LLM_CACHE": folder}
        said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    cpu, wall = json.loads(said.splitlines()[-1])
    return cpu, wall


def _measured(name: str, url: str) -> tuple[float, float]:
    """Seconds of CPU time and by the clock."""
    ask = CLIENTS[name](url)
    ask(WARM_UP)
    cpu, wall = time.process_time(), time.perf_counter()
    answers = ask(REQUESTS)
    seconds = time.process_time() - cpu, time.perf_counter() - wall
    assert len(answers) == REQUESTS
    assert all("grade" in one for one in answers)
    return seconds


def metrist(url: str) -> Client:
    from metrist.llm.messages import Message, Sampling
    from metrist.llm.openai import OpenAI

    llm = OpenAI(model="m", url=url)

    def ask(count: int) -> list[str]:
        conversations = [(Message("user", f"{PROMPT} {number}"),) for number in range(count)]
        return [one.text for one in llm.complete(conversations, Sampling())]

    return ask


def metrist_kept(url: str) -> Client:
    from metrist.llm import gateway
    from metrist.llm.messages import Message, Sampling
    from metrist.llm.openai import OpenAI

    llm = OpenAI(model="m", url=url)

    def ask(count: int) -> list[str]:
        conversations = [(Message("user", f"{PROMPT} {number} of {count}"),) for number in range(count)]
        return [one.text for one in gateway.complete(llm, conversations, Sampling())]

    return ask


def sdk_threads(url: str) -> Client:
    import openai

    client = openai.OpenAI(api_key="none", base_url=url)

    def one(number: int) -> str:
        message = {"role": "user", "content": f"{PROMPT} {number}"}
        found = client.chat.completions.create(model="m", messages=[message], temperature=0.0, max_tokens=1024, seed=0)
        return found.choices[0].message.content

    def ask(count: int) -> list[str]:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(one, range(count)))

    return ask


def sdk_asyncio(url: str) -> Client:
    import openai

    async def some(count: int) -> list[str]:
        room = asyncio.Semaphore(AT_ONCE)
        async with openai.AsyncOpenAI(api_key="none", base_url=url) as client:

            async def one(number: int) -> str:
                message = {"role": "user", "content": f"{PROMPT} {number}"}
                async with room:
                    found = await client.chat.completions.create(
                        model="m", messages=[message], temperature=0.0, max_tokens=1024, seed=0
                    )
                return found.choices[0].message.content

            return list(await asyncio.gather(*map(one, range(count))))

    return lambda count: asyncio.run(some(count))


CLIENTS: dict[str, Callable[[str], Client]] = {
    "metrist": metrist,
    "metrist, each answer kept in the cache": metrist_kept,
    "openai SDK, threads": sdk_threads,
    "openai SDK, asyncio": sdk_asyncio,
}

if __name__ == "__main__":
    main()
