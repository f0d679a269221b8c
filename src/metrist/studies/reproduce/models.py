"""The models of learned metrics in published tables: a TOML file that `metrist reproduce --models FILE` reads.

    [models]                          # names at the hub, or folders
    bart-large-cnn = "facebook/bart-large-cnn"
    tigerscore-7b = "TIGER-Lab/TIGERScore-7B"

    [llms]                            # the text of an LLM, instead of a model of its own
    tigerscore-13b = "openai(model='tigerscore-13b', url='http://localhost:8000/v1')"

    [prompts]                         # files with one phrase per line, or phrases
    source-output = "prompts.txt"
    translation = ["Such as"]

    [[rows]]                          # any further metric
    label = "our analyst"
    metric = "error_analysis(llm=…)"
    tables = ["001-tables-18-20"]

A metric of a table names what it needs in braces: `bartscore(model={bart-large-cnn})`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any

from metrist.errors import RunError, check_known
from metrist.metrics.registry import build
from metrist.studies.reproduce.published import PublishedBlock, PublishedTable

#: Keys that stand for an LLM; a model of this name is run in this process.
_LLMS = ("tigerscore-7b", "tigerscore-13b")
MODELS = ("bart-large", "bart-large-cnn", "bart-large-cnn-para", "bertscore", "moverscore", "prism", "gptscore", *_LLMS)
#: Phrases without an entry: our own sets, and that of the paper's Table 3.
_PROMPTS: Mapping[str, Any] = {
    "source-output": "source-output",
    "reference-output": "reference-output",
    "translation": ["Such as"],
}
_KEY = re.compile(r"\{([a-z0-9-]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A metric that is added to tables, on their data sets and with their measures."""

    label: str
    metric: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """What a file of models says; without one, rows of learned metrics are left out."""

    models: Mapping[str, str] = field(default_factory=dict)
    llms: Mapping[str, str] = field(default_factory=dict)
    prompts: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[ModelRow, ...] = ()

    @staticmethod
    def read(path: str | os.PathLike[str], tables: Sequence[str]) -> ModelNames:
        """Read a file; `tables` are those that rows can name. Files of prompts are relative to it."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}", code="missing_file") from None
        except ValueError as error:
            raise RunError(f"{path}: not a TOML file ({error})", code="invalid_value") from None
        for name, known in (("models", MODELS), ("llms", _LLMS), ("prompts", tuple(_PROMPTS))):
            for key in content.get(name, {}):
                check_known(f"{path}: key of [{name}]", key, known, RunError)
        for name in content:
            check_known(f"{path}: table", name, ("models", "llms", "prompts", "rows"), RunError)
        try:
            rows = [ModelRow(**{**row, "tables": tuple(row["tables"])}) for row in content.get("rows", ())]
        except (KeyError, TypeError) as error:
            raise RunError(
                f"{path}: a row has label, metric and tables, and nothing else ({error})", code="invalid_value"
            ) from None
        for row in rows:
            build(row.metric, allow_import=False)
            for table in row.tables:
                check_known(f"{path}: table of the row {row.label!r}", table, tables, RunError)
        prompts = {
            key: value if isinstance(value, list) or value in _PROMPTS else str(Path(path).parent / value)
            for key, value in content.get("prompts", {}).items()
        }
        return ModelNames(
            models=content.get("models", {}), llms=content.get("llms", {}), prompts=prompts, rows=tuple(rows)
        )

    def resolve(self, block: PublishedBlock) -> PublishedBlock:
        """Fill in what the metric of a block names; `missing` lists what the file does not have."""
        keys = _KEY.findall(block.metric)
        missing = tuple(key for key in dict.fromkeys(keys) if self._find(key) is None)
        if missing:
            return replace(block, missing=missing)
        if not keys:
            return block
        # The file may be a stranger's: it must not import code.
        metric = build(_KEY.sub(lambda match: str(self._find(match[1])), block.metric), allow_import=False)
        return replace(block, metric=metric.text, learned=True)

    def _find(self, key: str) -> str | None:
        """What stands for a key in a metric's text."""
        if key in _PROMPTS:
            value = self.prompts.get(key, _PROMPTS[key])
            return repr(tuple(value) if isinstance(value, list) else value)
        if key in self.llms or key not in self.models:
            return self.llms.get(key)
        model = repr(self.models[key])
        return f"transformers(model={model}, turns='none')" if key in _LLMS else model


def needs_models(block: Mapping[str, Any]) -> bool:
    """Whether a block of a table file names models."""
    return bool(_KEY.search(block.get("metric", "")))


def add_models(name: str, table: PublishedTable, names: ModelNames | None) -> PublishedTable:
    """Return the table with its learned metrics and the further rows of a file; without a file, without both."""
    plain = [block for block in table.blocks if not _KEY.search(block.metric)]
    if names is None:
        return replace(table, blocks=tuple(plain))
    blocks = [names.resolve(block) for block in table.blocks]
    for row in names.rows:
        if name in row.tables:
            blocks += _make_rows(row, table.blocks)
    return replace(table, blocks=tuple(blocks))


def _make_rows(row: ModelRow, blocks: Sequence[PublishedBlock]) -> list[PublishedBlock]:
    """A block for each data set of the table, with the measures and the outputs of its other metrics."""
    made: dict[tuple[str, tuple[str, ...]], PublishedBlock] = {}
    for block in (block for block in blocks if not block.stored):
        for data, aspects in block.printed.items():
            printed = {data: {aspect: [nan] * len(block.measures) for aspect in aspects}}
            made.setdefault(
                (data, block.measures),
                PublishedBlock(
                    label=row.label,
                    metric=row.metric,
                    printed=printed,
                    measures=block.measures,
                    group=block.group,
                    exclude=block.exclude,
                    references="all" if block.references == "first" else block.references,
                    learned=True,
                    note="no row of the paper",
                ),
            )
    return list(made.values())
