"""The import graph of the package: no cycles, not even through late imports or imports for type checkers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import metrist

_ROOT = Path(metrist.__file__).parent


def _modules() -> dict[str, Path]:
    names = {}
    for path in _ROOT.rglob("*.py"):
        parts = ("metrist", *path.relative_to(_ROOT).with_suffix("").parts)
        names[".".join(parts).removesuffix(".__init__")] = path
    return names


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements, also those inside functions and in blocks for type checkers."""
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(statement, field, []))


def _imports(path: Path, modules: dict[str, Path]) -> set[str]:
    imported: set[str] = set()
    for statement in _statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.Import):
            imported.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                submodule = f"{statement.module}.{alias.name}"
                imported.add(submodule if submodule in modules else statement.module)
    return imported & set(modules)


def test_there_are_no_import_cycles() -> None:
    modules = _modules()
    graph = {name: _imports(path, modules) - {name, "metrist"} for name, path in modules.items()}
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()  # Raises an error that names a cycle.


#: Words of a private vocabulary that the code once used, and that its definitions must not bring back.
_FORBIDDEN = {
    *("asked", "found", "said", "told", "settled", "surroundings", "crew", "hire", "dismiss", "patience"),
    *("complaints", "crowd", "talk", "beside", "placed", "sent"),
}


def _definitions(tree: ast.Module) -> Iterator[str]:
    """The names of classes and functions, and of annotated fields of classes."""
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (
                s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            )


def test_no_definition_has_a_forbidden_name() -> None:
    # The established name of early stopping's limit, and a key of training recipes.
    allowed = {"metrist.train.recipe: patience", "metrist.cli.train_options: patience"}
    names = {
        f"{module}: {name}"
        for module, path in _modules().items()
        for name in (module.rpartition(".")[2], *_definitions(ast.parse(path.read_text(encoding="utf-8"))))
        if name.strip("_").lower() in _FORBIDDEN
    }
    assert names <= allowed
