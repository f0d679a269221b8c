"""WordNet folders: a small one written here, and the real one where this machine has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Per part of speech: synsets as (letter, words); inflected forms with their base forms.
SYNSETS = {
    "noun": [("n", ["car", "auto", "motor_car"]), ("n", ["automobile", "car"]), ("n", ["man", "Adult"])],
    "verb": [("v", ["run", "operate"]), ("v", ["buy", "purchase"])],
    "adj": [("a", ["big", "large"]), ("a", ["big", "galore(ip)"])],
    "adv": [("r", ["quickly", "rapidly"])],
}
EXCEPTIONS = {"noun": "men man\n", "verb": "bought buy\nran run\n", "adj": "bigger big\n", "adv": ""}
LICENCE = "  1 A licence would stand here.  \n"


@pytest.fixture(scope="session")
def small_wordnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole WordNet folder with eight synsets, in the layout of wndb(5)."""
    folder = tmp_path_factory.mktemp("small-wordnet")
    for part, synsets in SYNSETS.items():
        data, offsets = LICENCE, {}
        for letter, words in synsets:
            for word in words:
                offsets.setdefault(word.partition("(")[0].lower(), []).append(len(data))
            named = " ".join(f"{word} 0" for word in words)
            data += f"{len(data):08d} 03 {letter} {len(words):02x} {named} 000 | a gloss  \n"
        lines = [
            f"{word} {synsets[0][0]} {len(at)} 0 {len(at)} 0 {' '.join(f'{o:08d}' for o in at)}  \n"
            for word, at in sorted(offsets.items())
        ]
        (folder / f"data.{part}").write_text(data)
        (folder / f"index.{part}").write_text(LICENCE + "".join(lines))
        (folder / f"{part}.exc").write_text(EXCEPTIONS[part])
    return folder


@pytest.fixture(scope="session")
def debian_wordnet() -> Path:
    """WordNet 3.0 as Debian's package wordnet-base installs it, or where METRIST_TEST_WORDNET says."""
    folder = Path(os.environ.get("METRIST_TEST_WORDNET") or "/usr/share/wordnet")
    if not (folder / "index.noun").exists():
        pytest.skip(f"no WordNet in {folder} (METRIST_TEST_WORDNET names the folder)")
    return folder
