from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from metrist.report.junit import JUnitCase, junit_xml


def test_verdicts_become_test_cases() -> None:
    cases = [
        JUnitCase(group="metrist.minimum", name="a: rougeL"),
        JUnitCase(
            group="metrist.minimum", name="b: rougeL", failure="0.1 is below", details="0.1 is below\nfound: 0.1"
        ),
    ]
    text = junit_xml("metrist", cases)
    root = ET.fromstring(text.encode())
    (suite,) = root
    assert root.tag == "testsuites"
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["errors"]) == ("2", "1", "0")
    passed, failed = suite
    assert len(passed) == 0
    assert failed.attrib == {"classname": "metrist.minimum", "name": "b: rougeL"}
    assert failed[0].attrib["message"] == "0.1 is below"
    assert failed[0].text == "0.1 is below\nfound: 0.1"
    assert junit_xml("metrist", cases) == text


@given(st.text(st.characters()), st.text(st.characters()))
def test_any_text_gives_valid_xml(name: str, why: str) -> None:
    text = junit_xml(name, [JUnitCase(group=name, name=name, failure=why, details=why)])
    (case,) = ET.fromstring(text.encode("utf-8")).iter("testcase")
    assert case[0].tag == "failure"
    if name.isascii() and name.isprintable():
        assert case.attrib["name"] == name


def test_characters_that_xml_forbids_are_escaped() -> None:
    (case,) = ET.fromstring(junit_xml("s", [JUnitCase(group="g", name="\x1b\ud800\x00\ufffe]]>")]).encode()).iter(
        "testcase"
    )
    assert case.attrib["name"] == "\\x1b\\ud800\\x00\\ufffe]]>"
