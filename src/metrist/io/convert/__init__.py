"""Other people's formats, turned into rows of metrist's own form: one small file per format.

A row is a plain dictionary as `metrist.io` reads it: `item`, `system`, `output` (or `systems` and `outputs` for a
pair), `source`, `references`, `instruction`, `task`, `language`, `ratings` with `raters`, `scores`; any other field
stays with the record as extra.
"""

from __future__ import annotations

from metrist.io.convert.foreign_json import Row
from metrist.io.convert.formats import KINDS, Kind, convert, detect
from metrist.io.convert.line_files import line_files
from metrist.io.writer import write_rows

__all__ = ["KINDS", "Kind", "Row", "convert", "detect", "line_files", "write_rows"]
