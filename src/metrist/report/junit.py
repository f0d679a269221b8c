"""Write verdicts as JUnit XML, which CI services show as tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from metrist.report.tables import escape_controls


@dataclass(frozen=True, slots=True, kw_only=True)
class JUnitCase:
    """One verdict; `failure` says why it failed, and is None where it passed."""

    group: str
    name: str
    failure: str | None = None
    details: str = ""


def junit_xml(suite: str, cases: Sequence[JUnitCase]) -> str:
    """A complete XML document, without times, so that equal verdicts give equal bytes."""
    counts = {"tests": str(len(cases)), "failures": str(sum(case.failure is not None for case in cases))}
    root = ET.Element("testsuites", {"name": _escape(suite), **counts, "errors": "0"})
    element = ET.SubElement(root, "testsuite", {"name": _escape(suite), **counts, "errors": "0", "skipped": "0"})
    for case in cases:
        entry = ET.SubElement(element, "testcase", classname=_escape(case.group), name=_escape(case.name))
        if case.failure is not None:
            failure = ET.SubElement(entry, "failure", message=_escape(case.failure), type="metrist")
            failure.text = _escape(case.details or case.failure)
    ET.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def _escape(text: str) -> str:
    """Escape what XML does not allow: line breaks stay, other control characters become escapes."""
    lines = (escape_controls(line) for line in text.split("\n"))
    # XML forbids these two code points.
    return "\n".join(lines).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
