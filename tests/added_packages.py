"""Packages that add metrics by entry points, as pip installs them: a folder of modules and one of metadata."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metrist.metrics import cards

METRIC = '''
from typing import ClassVar
import metrist

class Shouting(metrist.Metric):
    """The share of capital letters."""
    catalog_name: ClassVar = "shouting"
    higher_is_better: ClassVar = False
    bounds: ClassVar = (0.0, 1.0)

    def score_record(self, record):
        return sum(map(str.isupper, record.output)) / max(len(record.output), 1)
'''
CARD = """
[shouting]
measures = "The share of capital letters."
needs = []
better = "lower"
bounds = [0, 1]
distrust = "Names and abbreviations are no shouting."
licence = "MIT"
good_for = "Chats."
training_data = [{ name = "Forum", licence = "CC0", use = "nothing" }]

[[shouting.agreement]]
data = "Chats"
task = "dialogue"
measure = "spearman"
n = 90
value = 0.25
baselines = { length = 0.1 }
"""


def write_package(
    folder: Path,
    package: str,
    files: dict[str, str],
    entry_points: str = "shouting = {package}:Shouting",
    distribution: str = "",
) -> None:
    """Write the modules of a package and the metadata that pip writes beside them."""
    for name, text in files.items():
        path = folder / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    name = distribution or package.replace("_", "-")
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[metrist.metrics]\n{entry_points.format(package=package)}\n")


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let Python find the packages in the folder."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    cards.package_cards.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        cards.package_cards.cache_clear()
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
