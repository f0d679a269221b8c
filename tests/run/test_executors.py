"""Metrics with a resident model: one process per GPU, or a single process if there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.run import score
from metrist.run.executors import Adaptive, Executor, Processes, Serial, Task, choose_executor, list_cards
from metrist.scores import Scores

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/sh"), reason="puts shell scripts on the path")

RESIDENT = """
@dataclass(frozen=True)
class Resident(Metric):
    resident = True
    folder: str = ""
    def score(self, shard):
        names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        environment = " ".join(f"{os.environ.get(name)}" for name in names)
        time.sleep(0.1)
        if self.folder and not os.path.exists(f"{self.folder}/died") and shard.records[0].item == "3":
            open(f"{self.folder}/died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return Scores.of(Score(value=1.0, explanation=f"{os.getpid()} {environment}") for _ in shard.records)
"""

TWO_CARDS = """#!/bin/sh
test "$1" = -L || exit 1
echo "GPU 0: NVIDIA H200 (UUID: GPU-aaaa)"
echo "  MIG 1g.10gb Device 0: (UUID: MIG-cccc)"
echo "GPU 1: NVIDIA H200 (UUID: GPU-bbbb)"
"""


@pytest.fixture(autouse=True)
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`smi(script)` installs an `nvidia-smi` with this content; before, there is none."""
    for name in ("CUDA_VISIBLE_DEVICES", "METRIST_DEVICE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def install(script: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.write_text(script)
        program.chmod(0o755)

    return install


@pytest.fixture
def resident(module: Callable[[str], ModuleType]) -> Metric:
    metric: Metric = module(RESIDENT).Resident()
    return metric


def tasks(metric: Metric, count: int = 12) -> Iterator[Task]:
    for n in range(count):
        record = Record(item=str(n), system="s", output="")
        yield Task(start=n, units=(record,), metrics=(metric.text,))


def list_workers(executor: Executor, metric: Metric) -> set[tuple[str, ...]]:
    """(process, card, threads) of each worker that was used."""
    done = executor.map([metric], tasks(metric))
    return {tuple(cast(Scores, o.block).explanations[0].split()) for d in done for o in d.outcomes.values()}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", ("0", "1")),
        ("3", ("3",)),
        (" GPU-aaaa , GPU-bbbb", ("GPU-aaaa", "GPU-bbbb")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("2,2", ("2",)),
    ],
)
def test_cards_are_those_that_cuda_would_show(
    visible: str, expected: tuple[str, ...], smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(TWO_CARDS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert list_cards() == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (TWO_CARDS, ("0", "1")),
        ("#!/bin/sh\necho 'No devices were found'\n", ()),
        ("#!/bin/sh\necho 'GPU 0: NVIDIA'\nexit 9\n", ()),
        ("not a program", ()),
    ],
)
def test_cards_are_counted_by_nvidia_smi(script: str, expected: tuple[str, ...], smi: Callable[[str], None]) -> None:
    assert list_cards() == ()
    smi(script)
    assert list_cards() == expected


def test_a_driver_that_hangs_is_not_waited_for(smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    smi("#!/bin/sh\necho 'GPU 0: x'\nwhile :; do :; done\n")
    monkeypatch.setattr("metrist.run.executors.CARDS_TIMEOUT", 0.2)
    assert list_cards() == ()


@pytest.mark.parametrize(("device", "count"), [("auto", 2), ("cuda", 2), ("cpu", 0), ("cuda:1", 0), ("map", 0)])
def test_an_explicit_device_is_not_distributed(device: str, count: int, smi: Callable[[str], None]) -> None:
    smi(TWO_CARDS)
    assert len(list_cards(device)) == count


def test_without_cards_a_model_stays_in_this_process(resident: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 8)
    assert choose_executor(None, [resident, build("chrf")]) == (Serial(), [])
    assert choose_executor("processes", [resident]) == (Serial(), [])
    assert choose_executor(Processes(workers=3), [resident]) == (Processes(workers=3), [])
    assert choose_executor(None, [build("chrf")])[0] == Adaptive()


def test_one_card_is_used_from_this_process_too(resident: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert choose_executor(None, [resident]) == (Serial(), [])


def test_several_cards_have_a_worker_each(
    resident: Metric, smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(TWO_CARDS)
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 8)
    chosen, _ = choose_executor(None, [build("chrf"), resident])
    assert chosen == Processes(workers=2, cards=("0", "1"))
    workers = list_workers(chosen, resident)
    assert len({process for process, *_ in workers}) == 2
    # Eight cores among two workers.
    assert {tuple(rest) for _, *rest in workers} == {("0", "4"), ("1", "4")}


def test_more_workers_than_cards_share_them_and_share_the_cores(
    resident: Metric, smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(TWO_CARDS)
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 2)
    chosen, _ = choose_executor(Processes(workers=4), [resident])
    workers = list_workers(chosen, resident)
    assert sorted(rest for _, *rest in workers) == [["0", "1"], ["0", "1"], ["1", "1"], ["1", "1"]]
    executor = Processes(workers=2, cards=("7",))
    assert choose_executor(executor, [resident]) == (executor, [])


def test_without_cards_workers_share_the_cores(resident: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 6)
    assert {tuple(rest) for _, *rest in list_workers(Processes(workers=2), resident)} == {("None", "3")}


def test_a_worker_that_dies_is_replaced_on_its_card(
    module: Callable[[str], ModuleType], tmp_path: Path, smi: Callable[[str], None]
) -> None:
    smi(TWO_CARDS)
    metric = module(RESIDENT).Resident(folder=str(tmp_path))
    chosen, _ = choose_executor(Processes(workers=2), [metric])
    workers = list_workers(chosen, metric)
    assert (tmp_path / "died").exists()
    assert {card for _, card, _ in workers} == {"0", "1"}


def test_a_run_uses_the_cards(resident: Metric, smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    smi(TWO_CARDS)
    monkeypatch.setattr("metrist.run.executors.count_cores", lambda: 2)
    rows = [{"item": str(n), "system": "s", "output": "a"} for n in range(12)]
    results = score(rows, [resident, "length"], shard_size=1)
    assert {line.split()[1] for line in results.scores[resident.text].explanations.values()} == {"0", "1"}
    here = score(rows, [resident], shard_size=1, device="cpu")
    assert {line.split()[0] for line in here.scores[resident.text].explanations.values()} == {str(os.getpid())}
