"""Verdicts as JUnit XML, the form in which CI services show what failed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from metrist.report.cells import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One verdict: `failure` says why it failed, and is None where it passed."""

    group: str
    name: str
    failure: str | None = None
    details: str = ""


def junit_xml(suite: str, cases: Sequence[Case]) -> str:
    """A whole XML document. It holds no times, so that equal verdicts give equal bytes."""
    counts = {"tests": str(len(cases)), "failures": str(sum(case.failure is not None for case in cases))}
    root = ET.Element("testsuites", {"name": _clean(suite), **counts, "errors": "0"})
    element = ET.SubElement(root, "testsuite", {"name": _clean(suite), **counts, "errors": "0", "skipped": "0"})
    for case in cases:
        _add(element, case)
    ET.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def _add(suite: ET.Element, case: Case) -> None:
    element = ET.SubElement(suite, "testcase", classname=_clean(case.group), name=_clean(case.name))
    if case.failure is not None:
        failure = ET.SubElement(element, "failure", message=_clean(case.failure), type="metrist")
        failure.text = _clean(case.details or case.failure)


def _clean(text: str) -> str:
    """Text of which every character may stand in XML: line breaks stay, other control characters are escaped."""
    lines = (visible(line) for line in text.split("\n"))
    # These two are no characters for XML, though Unicode knows them as code points.
    return "\n".join(lines).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
