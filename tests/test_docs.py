"""The docs match the code: generated pages are up to date, examples run and print what the page shows, links exist.

Examples run in a folder with a copy of demo/, page by page, from top to bottom:

- a `console` block: each line that begins with `$ metrist`, or with another of the commands in RUN, is run; the
  text below it is compared with its output (standard output and errors). `…` matches any text within a line, a line
  with only `…` any lines.
- a block whose first line is a comment with a file name (`# my_metrics.py`, `# settings.toml`) is written to it.
- all other `python` blocks of a page run as one script, at its end. ` ```python no-run` excludes one.

What needs a server, a model or the user's files does not run: commands in other blocks and in indented lines, and
Python that is excluded. Their options and imports are checked all the same.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from command_server import CommandServer
from metrist.cli.app import _repeat_option, app
from metrist.metrics.card_format import card_schema

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "demo" / "README.md"]
PAGES = [*WRITTEN, *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"metrist", "cat", "head", "ls", "mkdir", "printf", "pytest"}

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
#: What a command prints every ten seconds, if a machine is that slow.
_PROGRESS = re.compile(r"^metrist: .*, \d+:\d\d:\d\d so far$\n", re.MULTILINE)
_FILE_NAME = re.compile(r"# (?P<name>[\w-]+\.(?:py|toml|jsonl|txt))\n")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    info: str
    body: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield Block(match["info"].strip(), match["body"], text.count("\n", 0, match.start()) + 1)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what is shown below it; a backslash continues a line."""
    for piece in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = piece.partition("\n")
        while command.endswith("\\"):  # What is shown, such as LaTeX, may end lines with backslashes, too.
            more, _, shown = shown.partition("\n")
            command = command[:-1] + more.lstrip()
        yield command, shown.strip("\n")


def fits(shown: str, printed: str) -> bool:
    lines = [re.escape(line.rstrip()).replace("…", ".*") for line in shown.splitlines()]
    pattern = "\n".join(".*(?:\n.*)*" if line == ".*" else line for line in lines)
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())) is not None


@dataclass(frozen=True)
class Shell:
    """Runs the commands of a page."""

    folder: Path
    server: CommandServer | None

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        scripts = str(Path(sys.executable).parent)
        environment = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
        if self.server and needs_no_shell(command):
            return self.server.run(shlex.split(command), self.folder, environment)
        return subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=environment,
            text=True,
            encoding="utf-8",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
        )


def needs_no_shell(command: str) -> bool:
    """Whether a command is a call of metrist or python with nothing outside quotes that a shell would replace."""
    bare = re.sub(r"""'[^']*'|"[^"$`\\]*\"""", "", command)
    return command.split()[0] in ("metrist", "python") and not re.search(r"""[|&;<>()$`\\"'*?~#\[\]{}!]""", bare)


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer | None]:
    if sys.platform != "linux":  # Elsewhere, forks of a process that has loaded numpy may crash.
        yield None
        return
    with CommandServer() as server:
        yield server


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run_and_print_what_the_page_shows(page: Path, tmp_path: Path, server: CommandServer | None) -> None:
    shell = Shell(tmp_path, server)
    shutil.copytree(ROOT / "demo", tmp_path / "demo")
    script: list[str] = []
    for block in blocks(page):
        if name := _FILE_NAME.match(block.body):
            (tmp_path / name["name"]).write_text(block.body, encoding="utf-8")
        elif block.info == "python":
            script.append(block.body)
        elif block.info == "console":
            # What users run first runs in a new process, as they run it.
            first = page == WRITTEN[0] and "$ metrist" not in page.read_text(encoding="utf-8").partition(block.body)[0]
            _check_console(page, block, Shell(tmp_path, None) if first else shell)
    if script:
        (tmp_path / "script_of_the_page.py").write_text("\n".join(script), encoding="utf-8")
        done = shell.run("python script_of_the_page.py")
        assert done.returncode == 0, f"the python blocks of {page.name} fail:\n{done.stdout}"


def _check_console(page: Path, block: Block, shell: Shell) -> None:
    for command, shown in commands(block.body):
        if command.split()[0] not in RUN:
            continue
        done = shell.run(command)
        place = f"{page.relative_to(ROOT)}:{block.line}: `{command}`"
        if shown:
            printed = _PROGRESS.sub("", done.stdout)
            assert fits(shown, printed), f"{place} shows\n{shown}\nbut prints\n{printed}"
        else:
            assert done.returncode == 0, f"{place} fails:\n{done.stdout}"


def commands_that_do_not_run(page: Path) -> Iterator[str]:
    """The lines with `metrist …` in blocks of other kinds, and in indented ones."""
    bodies = [block.body for block in blocks(page) if block.info != "console" and not block.info.startswith("python")]
    indented = re.findall(r"^    .*$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    for line in [*"".join(bodies).replace("\\\n", " ").splitlines(), *indented]:
        if (command := line.strip().removeprefix("$ ")).startswith("metrist "):
            yield command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_does_not_run_has_known_options_and_imports(page: Path) -> None:
    for command in commands_that_do_not_run(page):
        parse_command(command)
    for block in blocks(page):
        if block.info != "python no-run":
            continue
        for statement in ast.walk(ast.parse(block.body)):
            if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("metrist"):
                # Not imported: some modules need torch.
                spec = importlib.util.find_spec(str(statement.module))
                source = Path(str(spec.origin if spec else None)).read_text(encoding="utf-8")
                assert [name.name for name in statement.names if not re.search(rf"\b{name.name}\b", source)] == []


@cache
def command_tree() -> Any:
    return get_command(app)


def parse_command(text: str) -> None:
    """Find the command and its options; raise if there is no such one. Values are not looked at."""
    arguments = _repeat_option(shlex.split(text, comments=True)[1:], "--systems")
    command = command_tree()
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_parser(Context(command)).parse_args(arguments)


def test_unknown_options_and_commands_are_noticed() -> None:
    with pytest.raises(Exception, match="No such option: --metrics"):
        parse_command("metrist compare run/ --systems a b --metrics bleu")
    with pytest.raises(KeyError):
        parse_command("metrist scores a.jsonl")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(build: ModuleType) -> None:
    reference = ROOT / "docs" / "reference"
    expected = {reference / "commands.md": build.commands_page(), reference / "api.md": build.api_page()}
    expected |= {reference / "metrics" / name: text for name, text in build.metric_pages().items()}
    expected[reference / "card.schema.json"] = json.dumps(card_schema(), indent=2) + "\n"
    assert set((reference / "metrics").iterdir()) <= set(expected)
    for page, text in expected.items():
        assert page.read_text(encoding="utf-8") == text, f"{page.relative_to(ROOT)} is out of date; run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_exist(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [match["target"].partition("#")[0] for match in _LINK.finditer(text)]
    missing = [t for t in targets if t and "://" not in t and not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_exist(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [match["target"].partition("#") for match in _LINK.finditer(text) if "://" not in match["target"]]
    linked = [(page.parent / path if path else page, anchor) for path, _, anchor in targets if anchor]
    assert [f"{target.name}#{anchor}" for target, anchor in linked if anchor not in anchors(target)] == []


def test_no_page_installs_from_an_index_that_has_no_metrist() -> None:
    assert "not on PyPI" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if re.search(r"pip install .?metrist\b", page.read_text(encoding="utf-8"))] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize(
    ("shown", "printed", "fitting"),
    [
        ("a\nb", "a  \nb\n", True),
        ("a\nb", "a\nc", False),
        ("took … s", "took 0.12 s", True),
        ("took … s", "took\n s", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…", "b\nc", False),
        ("a (b)", "a (b)", True),
    ],
)
def test_output_is_compared_line_by_line(shown: str, printed: str, fitting: bool) -> None:
    assert fits(shown, printed) is fitting
