"""Rate, times and right answers of `metrist serve`: `python -m bench.serve [--write] [--quick] [--guard]`

wrk measures the rate of single pairs over loopback. A checking client compares answers with metrist.score, overloads a
service with a short queue, and ends a service by SIGTERM under load. Guards are timed one at a time. The machine does
the work of the clients, too; the share of the processors that others took (other virtual machines, other programs) is
noted, since all times depend on it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.document import machine, show_section
from bench.texts import rows

WORKERS = 2
CONNECTIONS = 16
SECONDS = 15
CHECKED = 100_000
GUARDS = 100
METRIC = "rougeL"
#: Requests per second, and milliseconds of the 99th percentile, that are required; and those of the 95th of a guard.
MIN_RATE, MAX_P99, MAX_GUARD = 2500, 20, 300


def main() -> None:
    arguments = sys.argv[1:]
    quick = "--quick" in arguments
    lines = [
        f"Measured by `make bench-serve` on {len(os.sched_getaffinity(0))} cores of {machine()}, clients on the same "
        f"cores: `metrist serve -m {METRIC} --workers {WORKERS}` with {describe_libraries()}; requests of one "
        f"output of SummEval with one reference, "
        f"{CONNECTIONS} connections.",
        "",
        "| | required | measured | others' share of the processor |",
        "|---|--:|--:|--:|",
    ]
    if "--guard" not in arguments:
        pairs = [
            {"output": row["output"], "references": row["references"][:1]}
            for row in rows("summeval")
            if row.get("references")
        ]
        measure = [measure_rate(pairs, 5 if quick else SECONDS), *measure_checks(pairs, 5000 if quick else CHECKED)]
        lines += measure
    lines.append(measure_guard(20 if quick else GUARDS))
    report = "\n".join(lines)
    show_section("bench-serve", report)


def describe_libraries() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("uvicorn", "uvloop", "httptools"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


@contextmanager
def serve(*options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A service in processes of its own, once it is ready."""
    command = [sys.executable, "-m", "metrist", "serve", "--port", "0", "--log", "off", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        match = re.search(r":(\d+)$", process.stdout.readline().strip())
        assert match is not None
        port = int(match[1])
        while b'"ready"' not in ask(port, b"GET", "/readyz"):
            time.sleep(0.05)
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def ask(port: int, method: bytes, path: str, body: bytes = b"") -> bytes:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method.decode(), path, body=body or None, headers={"Content-Type": "application/json"})
        return connection.getresponse().read()
    except OSError:
        return b""
    finally:
        connection.close()


class Share:
    """The share of the processors' time that neither was idle nor went to this program's processes."""

    def __enter__(self) -> Share:
        self._before = self._read()
        return self

    def __exit__(self, *exception: object) -> None:
        before, after = self._before, self._read()
        total, idle = after[0] - before[0], after[1] - before[1]
        own = after[2] - before[2]
        self.text = f"{max(0.0, 100 * (total - idle - own) / total):.0f} %"
        self.own = own / os.sysconf("SC_CLK_TCK")

    def _read(self) -> tuple[float, float, float]:
        fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        own = 0.0
        for process in _family(os.getpid()):
            try:
                words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            own += sum(map(int, words[11:15]))  # With children that have ended.
        return sum(fields[:8]), fields[3] + fields[4], own


def _family(parent: int) -> Iterator[int]:
    yield parent
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


# ---- Rate


SCRIPT = """
local file = io.open("{bodies}", "r")
local bodies = {{}}
for line in file:lines() do bodies[#bodies + 1] = line end
file:close()
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local next = 0
request = function()
  next = next % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[next])
end
"""


def measure_rate(pairs: Sequence[dict[str, Any]], seconds: int) -> str:
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder, serve("-m", METRIC, "--workers", str(WORKERS)) as (_, port):
        bodies = Path(folder) / "bodies"
        bodies.write_text("".join(json.dumps({"metrics": [METRIC], "records": [pair]}) + "\n" for pair in pairs))
        script = Path(folder) / "post.lua"
        script.write_text(SCRIPT.format(bodies=bodies))
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", "--latency", "-s", str(script)]
        url = f"http://127.0.0.1:{port}/v1/score"
        subprocess.run([*command, "-d2s", url], check=True, capture_output=True)
        before = _served(port)
        with Share() as share:
            done = subprocess.run([*command, f"-d{seconds}s", url], check=True, capture_output=True, text=True).stdout
            count = _served(port) - before
    print(done, file=sys.stderr)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", done)[1])  # type: ignore[index]
    p50, p99 = (re.search(rf"{percent}%\s+([\d.]+)(us|ms|s)\b", done) for percent in (50, 99))
    assert p50 is not None
    assert p99 is not None
    milliseconds = {"us": 0.001, "ms": 1.0, "s": 1000.0}
    median, slow = (float(match[1]) * milliseconds[match[2]] for match in (p50, p99))
    if "Non-2xx" in done or "Socket errors" in done:
        print("wrk saw errors", file=sys.stderr)
    measured = f"{rate:,.0f} requests/s, median {median:.1f} ms, p99 {slow:.1f} ms"
    measured += f"; {1000 * share.own / count:.2f} ms of processor time each, the client's included"
    return f"| single pairs | {MIN_RATE:,} requests/s, p99 {MAX_P99} ms | {measured} | {share.text} |"


def _served(port: int) -> float:
    text = ask(port, b"GET", "/metrics").decode()
    match = re.search(r'metrist_requests_total\{endpoint="/v1/score",status="200"\} (\S+)', text)
    return float(match[1]) if match is not None else 0.0


# ---- Answers


class Connection:
    """One HTTP connection of the checking client. Reads exactly one answer per request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def score(self, body: bytes) -> tuple[int, dict[bytes, bytes], Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = "POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:] if line)
        content = await reader.readexactly(int(headers[b"content-length"]))
        if headers.get(b"connection") == b"close":
            writer.close()
            self._streams = None
        return int(lines[0].split()[1]), headers, json.loads(content)


async def check_answers(
    port: int, pairs: Sequence[dict[str, Any]], expected: Sequence[float], count: int, connections: int
) -> Counter[str]:
    """Send `count` requests, each for a random pair, and count what comes back. An answer is right if it has the item
    that was sent and the value of that pair. Ends early when the service takes no more connections."""
    rng = random.Random(0)
    outcomes: Counter[str] = Counter()
    numbers = iter(range(count))

    async def work() -> None:
        connection = Connection(port)
        for number in numbers:
            pair = rng.randrange(len(pairs))
            body = json.dumps({"metrics": [METRIC], "records": [{"item": str(number), **pairs[pair]}]}).encode()
            try:
                status, headers, answer = await connection.score(body)
            except ConnectionRefusedError:
                outcomes["refused"] += 1
                return
            except (OSError, EOFError):
                outcomes["lost"] += 1
                return
            if status == 200:
                (row,) = answer["results"]
                right = row["item"] == str(number) and row["scores"][METRIC]["value"] == expected[pair]
                outcomes["right" if right else "wrong"] += 1
            elif status == 429 and int(headers[b"retry-after"]) >= 1:
                outcomes["429"] += 1
            else:
                outcomes[f"status {status}"] += 1

    await asyncio.gather(*(work() for _ in range(connections)))
    return outcomes


def measure_checks(pairs: Sequence[dict[str, Any]], count: int) -> Iterator[str]:
    import metrist

    expected = metrist.score(pairs, [METRIC], executor="serial")[METRIC].values.tolist()
    options = ("-m", METRIC, "--workers", str(WORKERS))
    with serve(*options) as (_, port), Share() as share:
        began = time.monotonic()
        outcomes = asyncio.run(check_answers(port, pairs, expected, count, CONNECTIONS))
        seconds = time.monotonic() - began
    assert outcomes["right"] == count, outcomes
    measured = f"{outcomes['right']:,} right, 0 wrong, in {seconds:.0f} s"
    yield f"| {count:,} answers compared with `metrist.score` | all right | {measured} | {share.text} |"
    with serve(*options, "--queue", "8", "--max-requests", "8") as (_, port), Share() as share:
        outcomes = asyncio.run(check_answers(port, pairs, expected, count // 2, 200))
    assert outcomes["right"] + outcomes["429"] == count // 2, outcomes
    assert outcomes["429"], outcomes
    measured = f"{outcomes['right']:,} right, {outcomes['429']:,} answered with 429, 0 lost"
    what = f"overload: {count // 2:,} requests on 200 connections, 8 at a time per process"
    yield f"| {what} | 429, none lost | {measured} | {share.text} |"
    total: Counter[str] = Counter()
    rounds = 5 if count >= CHECKED else 2
    with Share() as share:
        for _ in range(rounds):
            with serve(*options) as (process, port):
                total += asyncio.run(end_under_load(process, port, pairs, expected))
                assert process.wait(60) == 0
    assert not total["wrong"], total
    assert not total["lost"], total
    measured = f"{total['right']:,} right, {total['lost']} lost; {total['refused']} found no listener"
    yield f"| SIGTERM under load, {rounds} times | none dropped | {measured} | {share.text} |"


async def end_under_load(
    process: subprocess.Popen[str], port: int, pairs: Sequence[dict[str, Any]], expected: Sequence[float]
) -> Counter[str]:
    async def end() -> None:
        await asyncio.sleep(1.5)
        process.send_signal(signal.SIGTERM)

    outcomes, _ = await asyncio.gather(check_answers(port, pairs, expected, 10_000_000, 64), end())
    return outcomes


# ---- Guard


def measure_guard(count: int) -> str:
    """Guards with the small `consistency`: outputs of 128 tokens and sources of 256, by its own tokenizer."""
    bodies = list(make_guard_bodies(count))
    checks = [{"metric": "consistency", "min": 0.5}]
    with serve("-m", "consistency", "--workers", "1") as (_, port), Share() as share:
        times, late = [], 0
        for record in bodies:
            body = json.dumps({"record": record, "checks": checks, "budget_ms": 60_000}).encode()
            began = time.monotonic()
            answer = json.loads(ask(port, b"POST", "/v1/guard", body))
            times.append((time.monotonic() - began) * 1000)
            assert answer["decided_by"] == "checks", answer
            late += answer["elapsed_ms"] > MAX_GUARD
    times.sort()
    median, slow = times[len(times) // 2], times[min(len(times) - 1, round(0.95 * len(times)))]
    measured = f"median {median:.0f} ms, p95 {slow:.0f} ms; {share.own / count:.3f} s of processor time each"
    what = f"`/v1/guard` with `consistency`, {count} outputs of 128 tokens, sources of 256"
    return f"| {what} | p95 {MAX_GUARD} ms | {measured} | {share.text} |"


def make_guard_bodies(count: int) -> Iterator[dict[str, str]]:
    from metrist.models.loading import load_text_encoder

    tokenizer = load_text_encoder("metrist:english-small").tokenizer

    def cut(text: str, tokens: int) -> str | None:
        """The beginning of a text that has this many tokens."""
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        return text[: offsets[tokens - 1][1]] if len(offsets) >= tokens else None

    made = 0
    texts = list(rows("summeval"))
    for position, row in enumerate(texts):
        others = " ".join(other["output"] for other in texts[position : position + 4])
        source, output = cut(row["source"], 256), cut(others, 128)
        if source and output and made < count:
            made += 1
            yield {"source": source, "output": output}


if __name__ == "__main__":
    main()
