"""`metrist doctor`: what is installed here, and what to install next; `metrist setup`: the environment of a metric."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module, metadata, util
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metrist.cli.output import print_note, print_text
from metrist.settings import setting

if TYPE_CHECKING:
    from metrist.metrics.external.environments import Report


State = Literal["ok", "missing", "note"]
#: The modules that tell whether an extra is installed, and what it is for.
_EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "standard": (
        ("metrist_models", "tokenizers", "safetensors"),
        "shipped models: likelihood, preference, consistency",
    ),
    "large": (("metrist_models_english_large",), "the larger English model: model='large'"),
    "llm": (("httpx2",), "LLM judges over HTTP"),
    "neural": (("torch", "transformers"), "bertscore, BARTScore and other models of transformers"),
    "train": (("torch", "accelerate"), "training on several GPUs"),
    "tables": (("openpyxl",), "Excel files"),
    "plots": (("vl_convert",), "figures as PDF and PNG"),
    "web": (("starlette", "uvicorn"), "the viewer, the playground and annotation"),
    "serve": (("uvicorn", "pydantic", "httptools"), "metrist serve: metrics over HTTP"),
    "client": (("httpx2",), "the client of metrist serve"),
    "otel": (("opentelemetry.sdk",), "spans of metrist serve"),
    "ray": (("ray",), "clusters"),
    "languages": (("sacrebleu", "sentencepiece"), "BLEU's tokenizers for Japanese, Korean and FLORES"),
}
#: Environment variables that usually hold a key. Their content is never read, only whether they are set.
_KEYS = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "HF_TOKEN")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check. `fix` is how to mend what it found, if anything."""

    topic: str
    name: str
    state: State
    detail: str
    fix: str = ""


def doctor(as_json: bool = setting(False, "Print the findings as JSON.", "--json")) -> None:
    # Nothing is downloaded and no model is loaded.
    checks = (_find_core, _find_extras, _find_devices, _find_models, _find_environments, _find_llms)
    findings = [finding for check in checks for finding in check()]
    if as_json:
        print_text(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    marks = {"ok": "ok", "missing": "--", "note": "  "}
    width = max(len(finding.name) for finding in findings)
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            print_text(f"\n{topic}" if finding is not findings[0] else topic)
        print_text(f"  {marks[finding.state]}  {finding.name:<{width}}  {finding.detail}".rstrip())
    fixes = list(dict.fromkeys(finding.fix for finding in findings if finding.fix))
    print_text("\nnext" if fixes else "\nnothing is missing")
    for fix in fixes:
        print_text(f"  {fix}")


def _find_core() -> Iterator[Diagnosis]:
    from metrist import kernels
    from metrist._version import __version__

    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield Diagnosis("metrist", "version", "ok", f"{__version__} on Python {platform.python_version()}, {system}")
    if kernels.have_compiled:
        yield Diagnosis("metrist", "kernels", "ok", "compiled")
    elif os.environ.get("METRIST_KERNELS") == "python":
        yield Diagnosis("metrist", "kernels", "note", "plain Python, because METRIST_KERNELS=python")
    else:
        fix = "install a C compiler, then metrist again: lexical metrics become many times faster"
        yield Diagnosis("metrist", "kernels", "missing", "plain Python", fix)
    for name in ("numpy", "rich", "typer"):
        yield Diagnosis("metrist", name, "ok", _version(name) or "unknown version")


def _find_extras() -> Iterator[Diagnosis]:
    from metrist.errors import install_command

    try:
        known = set(metadata.metadata("metrist").get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError:
        known = set()
    for extra, (modules, purpose) in _EXTRAS.items():
        if known and extra not in known:
            continue
        missing = [module for module in modules if not is_installed(module)]
        if missing:
            wanted = f"{purpose} (lacks {', '.join(missing)})"
            yield Diagnosis("extras", extra, "missing", wanted, install_command(extra))
        else:
            versions = [f"{module} {version}" for module in modules if (version := _version(module))]
            yield Diagnosis("extras", extra, "ok", f"{purpose} ({', '.join(versions)})" if versions else purpose)


def _find_devices() -> Iterator[Diagnosis]:
    if not is_installed("torch"):
        yield Diagnosis("devices", "cpu", "ok", "shipped models run on it without torch")
        return
    torch: Any = import_module("torch")
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        memory = properties.total_memory / 2**30
        yield Diagnosis("devices", f"cuda:{number}", "ok", f"{properties.name}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        yield Diagnosis("devices", "mps", "ok", "the GPU of this Mac")
    yield Diagnosis("devices", "cpu", "ok", f"{torch.get_num_threads()} threads of torch")
    from metrist.runtime import Runtime

    yield Diagnosis("devices", "default", "note", f"{Runtime.current().device} (--device or METRIST_DEVICE chooses)")


def _find_models() -> Iterator[Diagnosis]:
    from pathlib import Path

    from metrist.models.numpy_inference import storage

    packages = storage.find_packages()
    for distribution, folder in packages.items():
        models = sorted(path.name for path in folder.iterdir() if (path / storage.CONFIG).is_file())
        models += sorted(f"{path.parent.name} (an adapter)" for path in folder.glob("*/adapter_config.json"))
        yield Diagnosis("models", distribution, "ok", ", ".join(models) or "no models")
    if not packages:
        yield Diagnosis("models", "shipped models", "missing", "none is installed: see the extra standard")
    cache = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
    folders = sorted(Path(cache).expanduser().glob("models--*"))
    names = [folder.name.removeprefix("models--").replace("--", "/") for folder in folders]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    yield Diagnosis("models", "hub's cache", "note", shown or "empty: a model of the hub is downloaded at first use")


def _find_environments() -> Iterator[Diagnosis]:
    from metrist.metrics.external.environments import find_environment

    for name in ("comet", "bleurt", "unieval"):
        is_ready = find_environment(name) is not None
        detail = "its environment is ready" if is_ready else f"`metrist setup {name}` makes its environment"
        yield Diagnosis("metrics of other packages", name, "ok" if is_ready else "note", detail)


def _find_llms() -> Iterator[Diagnosis]:
    keys = [name for name in _KEYS if os.environ.get(name)]
    for name in keys:
        yield Diagnosis("LLMs", name, "ok", "is set")
    if not keys:
        detail = "no key is set; servers on this machine need none: openai(model=…, url='http://127.0.0.1:8000/v1')"
        yield Diagnosis("LLMs", "keys", "note", detail)


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return util.find_spec(module) is not None
    except (ValueError, ImportError):  # sys.modules holds None for it; its package is missing.
        return False


def _version(module: str) -> str:
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


#: Without a terminal, a line of a long step is printed this often.
_SECONDS = 10.0


def setup(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The metric: comet, bleurt or unieval.")],
    python: str | None = setting(None, "The Python to use.", metavar="PATH", shown="this one, if it fits"),
    dry_run: bool = setting(False, "Print the commands, and stop."),
) -> None:
    from metrist.metrics.external.environments import find_environment, folder_size, make_environment, plan_setup

    plan = plan_setup(name, python)
    if dry_run:
        print_text(f"# about {plan.recipe.megabytes / 1000:.1f} GB in {plan.folder}, more with CUDA")
        for _, command in plan.steps:
            print_text(shlex.join(command))
        return
    if find_environment(name) is not None:
        print_text(f"{plan.folder} is complete; delete that folder to make it again")
    else:
        print_note(f"making {plan.folder} with {plan.python}: about {plan.recipe.megabytes / 1000:.1f} GB")
        with _reporting() as report:
            make_environment(plan, report)
        print_text(f"made {plan.folder} ({folder_size(plan.folder) / 1e9:.1f} GB)")
    if plan.recipe.next_step:
        print_text(f"next: {plan.recipe.next_step}")
    print_text(f"use it: metrist score … -m {name}")


@contextmanager
def _reporting() -> Iterator[Report]:
    """Yield a function that shows the latest line of a step: in place on a terminal, elsewhere now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status("") as status:
            yield lambda line: status.update(escape(line[:100]))
        return
    last = [0.0]

    def report(line: str) -> None:
        if line.startswith("step ") or monotonic() - last[0] >= _SECONDS:
            last[0] = monotonic()
            print_note(line[:200])

    yield report
